"""The files that configure networks, and the programs of plugins.

A network plugin's installer writes its file into the folder when it is ready, and replaces or removes it later. So the
folder is read whenever a pod is attached or the runtime is asked how it is; that takes less than a millisecond, and
nothing has to be watched. All of it blocks on files.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.cni.configuration import (
    NetworkConfiguration,
    PluginConfiguration,
    parse_list,
    parse_plugin,
    parse_single,
    with_plugins,
)
from trikubelet.embedded.network.cni.documents import MOST_BYTES
from trikubelet.embedded.network.model import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FOLDER: Final = Path("/etc/cni/net.d")
DEFAULT_PLUGIN_FOLDERS: Final = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
"""Where network plugins install themselves, and where Debian's package has its own."""
_SUFFIXES: Final = (".conflist", ".conf", ".json")


def configuration_files(folder: Path) -> list[Path]:
    """The files that configure networks, the first first. A folder that is not there has none. Raises NetworkError."""
    return _files(folder, _SUFFIXES)


def read_networks(folder: Path, most: int) -> list[NetworkConfiguration]:
    """The first networks in the order of the files' names. One that cannot be read is an error, as with containerd:
    with the next one in its place pods would be on the wrong network. Raises NetworkError."""
    files = configuration_files(folder)
    if not files:
        raise NetworkError(
            f"no CNI network is configured: there is no *.conflist, *.conf or *.json in {folder}; "
            "installing a network plugin puts one there"
        )
    return [_read_network(path) for path in files[:most]]


def find_plugin(kind: str, folders: Sequence[Path]) -> Path:
    """The program of a plugin. Raises NetworkError."""
    for folder in folders:
        path = folder / kind
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode):
            if os.access(path, os.X_OK):
                return path
            raise NetworkError(f"CNI plugin {kind}: {path} cannot be executed; chmod +x it")
    places = " or ".join(str(folder) for folder in folders)
    raise NetworkError(f"CNI plugin {kind} is not installed: expected a program of this name in {places}")


def _read_network(path: Path) -> NetworkConfiguration:
    if path.suffix != ".conflist":
        return parse_single(_read(path), str(path))
    network = parse_list(_read(path), str(path))
    more: list[PluginConfiguration] = []
    if not network.inlined_only:
        more = [parse_plugin(_read(each), str(each)) for each in _files(path.parent / network.name, (".conf",))]
    return with_plugins(network, more)


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in suffixes and not path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NetworkError(f"cannot read {folder}: {error.strerror}") from error


def _read(path: Path) -> bytes:
    """A little more than there may be, so that a file that is too long is refused."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NetworkError(f"cannot read {path}: {error.strerror}") from error
