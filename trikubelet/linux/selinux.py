"""SELinux, as far as an agent meets it: the labels that container runtimes give, and those of its own folders.

A runtime gives a container's process and files the machine's default labels, with what the pod asks for in their
places. It reads the defaults from a file of the policy, and so do we: then it is known beforehand which label the files
of a container will need (go-selinux: `label.InitLabels`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.api import SELinuxOptions

PLUGIN_FOLDERS: Final = "system_u:object_r:container_file_t:s0"
"""The label of folders where containers of plugins put sockets."""
RUNTIME_LABEL: Final = "system_u:system_r:container_runtime_t:s0"
"""The label of processes that the usual policy for containers lets start some."""
_CONTAINERS: Final = "usr/share/containers/selinux/contexts"
_CONFIG: Final = "etc/selinux/config"
_OF_POLICY: Final = "contexts/lxc_contexts"
ATTRIBUTE: Final = "security.selinux"
"""The extended attribute that a file's label is in."""


class LabelError(Exception):
    """The machine's default labels are not understood."""


@frozen
class Context:
    """`user:role:type`, with `:level` where the policy has levels."""

    user: str
    role: str
    type: str
    level: str = ""

    @classmethod
    def of(cls, label: str) -> Context:
        """Raises LabelError."""
        parts = label.split(":", 3)
        if len(parts) < 3:
            raise LabelError(f"expected a SELinux label user:role:type[:level] for containers, got {label!r}")
        return cls(*parts)

    def __str__(self) -> str:
        return ":".join((self.user, self.role, self.type, *([self.level] if self.level else [])))


@frozen
class ContainerLabels:
    """What containers get of which no pod says more. All are empty where no policy for containers is installed."""

    process: str = ""
    file: str = ""
    image: str = ""
    """Of files that containers share and do not write; empty: as `file`."""

    @classmethod
    def read(cls, root: Path = Path("/")) -> ContainerLabels:
        """From the policy below `root`. Blocks."""
        settings = _settings(root / _CONTAINERS)
        if settings is None:
            policy = (_settings(root / _CONFIG) or {}).get("SELINUXTYPE", "")
            settings = _settings(root / "etc/selinux" / policy / _OF_POLICY) or {}
        return cls(settings.get("process", ""), settings.get("file", ""), settings.get("ro_file", ""))

    def of_files(self, options: SELinuxOptions | None) -> str:
        """The label of a container's files. Empty when nobody knows it before the container starts: a runtime gives
        each container a level of its own, unless the pod says one. Raises LabelError."""
        if options is None or not any((options.user, options.role, options.type, options.level)):
            return ""
        if not self.process or not self.file:
            return self.file
        process, file = Context.of(self.process), Context.of(self.file)
        if process.level and not options.level:
            return ""
        return str(attrs.evolve(file, user=options.user or file.user, level=options.level or file.level))


def set_label(folder: Path, label: str) -> None:
    """Blocks. Raises OSError."""
    os.setxattr(folder, ATTRIBUTE, label.encode())


def _settings(path: Path) -> dict[str, str] | None:
    """Lines `name = "value"`; None when the file cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    pairs = [line.partition("=") for line in map(str.strip, lines) if line and line[0] not in "#;"]
    return {name.strip(): value.strip().strip('"') for name, equals, value in pairs if equals}
