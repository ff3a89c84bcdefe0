"""Pods' network namespaces under a name of their own: `/run/netns/cni-trikubelet-MARK-SANDBOX`.

The keeper holds a namespace as a descriptor, which is enough for the containers. A plugin wants a path, and may hand
it to a daemon that runs in another mount namespace: so the namespace is mounted where everybody expects such, in a
folder whose mounts appear in other mount namespaces too. It lives as long as it is mounted, so a plugin can undo what
it did there also when the keeper is gone.

The mark is the runtime folder's: two runtimes on one machine do not touch each other's. All of it blocks, and one at a
time may change something.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import attrs

from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.digests import sha256
from trikubelet.formats.values import define
from trikubelet.linux import mount_calls as calls
from trikubelet.linux.mount_table import MountTable

DEFAULT_NAMESPACES: Final = Path("/run/netns")
_PREFIX: Final = "cni-trikubelet"


@define(eq=False)
class NamespaceMounts:
    """The mounts of one runtime."""

    folder: Path
    mark: str
    _prepared: bool = attrs.field(default=False, init=False)
    """Whether the folder was looked at, which takes milliseconds on a machine with many mounts."""

    @classmethod
    def of_runtime(cls, root: Path, folder: Path) -> NamespaceMounts:
        return cls(folder.resolve(), sha256(str(root.resolve()).encode()).hexdigest()[:8])

    def path_of(self, sandbox_id: str) -> Path:
        return self.folder / f"{self._prefix}{sandbox_id}"

    def is_ours(self, path: str) -> bool:
        return path.startswith(f"{self.folder}/{self._prefix}")

    def mounted(self, sandbox_id: str) -> bool:
        """Whether a namespace is there; a file alone is none."""
        try:
            return self.path_of(sandbox_id).stat().st_dev != self.folder.stat().st_dev
        except OSError:
            return False

    def sandboxes(self) -> list[str]:
        """Whose there are, also as a file without a namespace. Raises NetworkError."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NetworkError(f"cannot read {self.folder}: {error.strerror}") from error
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]

    def prepare(self) -> None:
        """Make the folder ready. A container that has it mounted sees what is mounted in it from then on.

        Raises NetworkError.
        """
        try:
            self._prepare_folder()
        except OSError as error:
            raise NetworkError(f"cannot make {self.folder} a shared mount: {error.strerror}") from error

    def bind(self, sandbox_id: str, source: str) -> Path:
        """Mount a namespace, in the place of another one if need be. Idempotent. Raises NetworkError."""
        path = self.path_of(sandbox_id)
        try:
            self._prepare_folder()
            if self.mounted(sandbox_id):
                if path.samefile(source):
                    return path
                self.release(sandbox_id)
            path.touch(mode=0o444)
            calls.mount(source, str(path), "none", calls.MS_BIND, "", name=path)
        except OSError as error:
            self._prepared = False
            raise NetworkError(f"cannot mount network namespace {source} at {path}: {error.strerror}") from error
        return path

    def release(self, sandbox_id: str) -> None:
        """Let a namespace go. Idempotent. Raises NetworkError."""
        path = self.path_of(sandbox_id)
        try:
            while self.mounted(sandbox_id):
                calls.umount(path, calls.MNT_DETACH | calls.UMOUNT_NOFOLLOW)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NetworkError(f"cannot unmount network namespace {path}: {error.strerror}") from error

    def remove_folder(self) -> None:
        """Remove the folder and its mount where nobody uses it. `ip netns` makes such again when it needs it."""
        with contextlib.suppress(OSError):
            if not any(self.folder.iterdir()):
                if self._is_mount():
                    calls.umount(self.folder, calls.UMOUNT_NOFOLLOW)  # fails when something was mounted meanwhile
                self.folder.rmdir()
                self._prepared = False

    @property
    def _prefix(self) -> str:
        return f"{_PREFIX}-{self.mark}-"

    def _is_mount(self) -> bool:
        return MountTable.read().at(self.folder) is not None

    def _prepare_folder(self) -> None:
        """As `ip netns add` does it, but only where the folder is on no mount that is shared already."""
        if self._prepared:
            return
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        holder = MountTable.read().holder(self.folder)
        if holder is None or not holder.shared:
            folder = str(self.folder)
            if holder is None or holder.point != self.folder:
                calls.mount(folder, folder, "none", calls.MS_BIND | calls.MS_REC, "", name=self.folder)
            calls.mount("none", folder, "none", calls.MS_SHARED | calls.MS_REC, "", name=self.folder)
        self._prepared = True
