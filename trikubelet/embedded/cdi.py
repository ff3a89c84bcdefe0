"""Devices that containers ask for by names of the Container Device Interface, `vendor.com/class=name`.

What a name stands for says a file in `/etc/cdi` or `/var/run/cdi`, which drivers write: variables, files of devices,
mounts, groups. All files are read for each container that asks (drivers write theirs a moment before), by containerd's
rules: `.json` and `.yaml` count; what the second folder says of a device counts more; a device that two files of one
folder have is none. A file that cannot be read takes only its own devices away.

What a file wants of the container is put into its configuration, in the place of what the pod wants where both say
something. Hooks, which run programs of the driver around the start of a container, are refused, and so is what only
newer kernels and runtimes know: a container that did without would fail later, and nobody would know why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.embedded.container_spec import SpecError
from trikubelet.formats import go_json
from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import YamlError, read_documents
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The later one counts more."""
MOST_OF_A_FILE: Final = 4 * 2**20
"""Bytes."""
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_UNSUPPORTED: Final = ("hooks", "intelRdt", "netDevices")
_PROPAGATION: Final = {
    "rslave": v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
    "slave": v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
    "rshared": v1.MountPropagation.PROPAGATION_BIDIRECTIONAL,
    "shared": v1.MountPropagation.PROPAGATION_BIDIRECTIONAL,
}

log = get_logger("embedded")


class CDIError(SpecError):
    """A container cannot have its devices, or a file is no specification. The text says why."""


@frozen
class Edits:
    """What a device, or all devices of a file, want of a container."""

    variables: tuple[tuple[str, str], ...] = ()
    devices: tuple[v1.Device, ...] = ()
    mounts: tuple[v1.Mount, ...] = ()
    groups: tuple[int, ...] = ()
    unsupported: tuple[str, ...] = ()
    """Names of what this runtime has not."""


@frozen
class Specification:
    """A file."""

    path: Path
    kind: str
    """`vendor.com/class`"""
    devices: Mapping[str, Edits]
    """By name."""
    edits: Edits = Edits()
    """For a container that has one of the devices."""


async def spell_out_cdi_devices(config: v1.ContainerConfig, folders: Sequence[Path]) -> v1.ContainerConfig:
    """The configuration with what its devices want, as the folders say; itself without devices. Raises CDIError."""
    if not config.cdi_devices:
        return config
    return with_cdi_devices(config, await trio.to_thread.run_sync(read_specifications, folders, abandon_on_cancel=True))


def read_specifications(folders: Iterable[Path]) -> list[list[Specification]]:
    """Those of each folder. Blocks on the disk."""
    return [_of_folder(folder) for folder in folders]


def with_cdi_devices(config: v1.ContainerConfig, found: Sequence[Sequence[Specification]]) -> v1.ContainerConfig:
    """A configuration in which the named devices are spelled out, and not named any more. Raises CDIError."""
    edits: list[Edits] = []
    seen: set[Path] = set()
    missing: list[str] = []
    for name in dict.fromkeys(device.name for device in config.cdi_devices):
        specification = _with_device(name, found)
        if specification is None:
            missing.append(name)
            continue
        if specification.path not in seen:
            seen.add(specification.path)
            edits.append(specification.edits)
        edits.append(specification.devices[name.partition("=")[2]])
    if missing:
        raise CDIError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    if refused := sorted({name for one in edits for name in one.unsupported}):
        raise CDIError(
            f"CDI device injection failed: the embedded runtime cannot do what the devices want: {', '.join(refused)}"
        )
    new = v1.ContainerConfig.FromString(bytes(config))
    new.cdi_devices = []
    for one in edits:
        new.envs += [v1.KeyValue(key=name, value=value.encode()) for name, value in one.variables]
        new.devices = _replaced(new.devices, one.devices)
        new.mounts = _replaced(new.mounts, one.mounts)
        groups = new.linux.security_context.supplemental_groups
        groups += [group for group in one.groups if group not in groups]
    return new


def _replaced(present: list[Any], added: Iterable[Any]) -> list[Any]:
    """Devices or mounts, one for each path in the container."""
    added = list(added)
    paths = {one.container_path for one in added}
    return [*(one for one in present if one.container_path not in paths), *added]


def _with_device(name: str, found: Sequence[Sequence[Specification]]) -> Specification | None:
    kind, _, device = name.partition("=")
    for folder in reversed(found):
        having = [one for one in folder if one.kind == kind and device in one.devices]
        if len(having) > 1:
            paths = ", ".join(str(one.path) for one in having)
            raise CDIError(f"CDI device injection failed: conflicting device {name} in {paths}")
        if having:
            return having[0]
    return None


def _of_folder(folder: Path) -> list[Specification]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".yaml") and path.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("CDI specifications cannot be read", folder=str(folder), problem=str(error))
        return []
    found = []
    for path in paths:
        try:
            found.append(_read(path))
        except (OSError, CDIError) as error:
            log.warning("a CDI specification is left out", path=str(path), problem=str(error))
    return found


def _read(path: Path) -> Specification:
    """Raises OSError and CDIError."""
    with path.open("rb") as file:
        content = file.read(MOST_OF_A_FILE + 1)
    if len(content) > MOST_OF_A_FILE:
        raise CDIError(f"expected at most {MOST_OF_A_FILE} bytes")
    fields = _mapping(_parsed(path, content), "a specification")
    kind = _text(fields.get("kind"), "kind")
    if not _KIND.fullmatch(kind):
        raise CDIError(f"kind: expected vendor/class, got {kind!r:.60}")
    devices: dict[str, Edits] = {}
    for entry in _list(fields.get("devices"), "devices"):
        device = _mapping(entry, "devices")
        name = _text(device.get("name"), "devices.name")
        if not _NAME.fullmatch(name) or name in devices:
            raise CDIError(f"devices.name: expected names, each once, got {name!r:.60}")
        devices[name] = _edits(device.get("containerEdits"))
    return Specification(path, kind, devices, _edits(fields.get("containerEdits")))


def _parsed(path: Path, content: bytes) -> Any:
    try:
        if path.suffix == ".json":
            return go_json.loads(content)
        documents = read_documents(content)
        if len(documents) != 1:
            raise CDIError(f"expected one document, got {len(documents)}")
        return documents[0].data()
    except (ValueError, RecursionError, YamlError) as error:
        raise CDIError(f"expected {path.suffix[1:].upper()}: {error}") from error


def _edits(wire: Any) -> Edits:
    """Raises CDIError."""
    if wire is None:
        return Edits()
    fields = _mapping(wire, "containerEdits")
    return Edits(
        variables=tuple(_variable(one) for one in _list(fields.get("env"), "env")),
        devices=tuple(_device(one) for one in _list(fields.get("deviceNodes"), "deviceNodes")),
        mounts=tuple(_mount(one) for one in _list(fields.get("mounts"), "mounts")),
        groups=tuple(_group(one) for one in _list(fields.get("additionalGids"), "additionalGids") if one),
        unsupported=tuple(name for name in _UNSUPPORTED if fields.get(name)),
    )


def _variable(wire: Any) -> tuple[str, str]:
    name, equals, value = _text(wire, "env").partition("=")
    if not name or not equals:
        raise CDIError(f"env: expected NAME=value, got {wire!r:.60}")
    return name, value


def _device(wire: Any) -> v1.Device:
    """A node of the host's, with the host's mode and owner, whatever the file says of those."""
    fields = _mapping(wire, "deviceNodes")
    path = _path(fields.get("path"), "deviceNodes.path")
    host_path = _path(fields.get("hostPath") or path, "deviceNodes.hostPath")
    permissions = _text(fields.get("permissions") or "rwm", "deviceNodes.permissions")
    return v1.Device(container_path=path, host_path=host_path, permissions=permissions)


def _mount(wire: Any) -> v1.Mount:
    fields = _mapping(wire, "mounts")
    kind = _text(fields.get("type") or "bind", "mounts.type")
    if kind not in ("bind", "none"):
        raise CDIError(f"mounts.type: expected bind, got {kind!r:.60}")
    options = [_text(one, "mounts.options") for one in _list(fields.get("options"), "mounts.options")]
    propagation = next((_PROPAGATION[one] for one in options if one in _PROPAGATION), 0)
    return v1.Mount(
        container_path=_path(fields.get("containerPath"), "mounts.containerPath"),
        host_path=_path(fields.get("hostPath"), "mounts.hostPath"),
        readonly="ro" in options,
        propagation=v1.MountPropagation(propagation),
    )


def _group(wire: Any) -> int:
    if type(wire) is not int or not 0 < wire < 2**32:
        raise CDIError(f"additionalGids: expected group ids, got {wire!r:.60}")
    return wire


def _path(wire: Any, place: str) -> str:
    path = _text(wire, place)
    if not path.startswith("/"):
        raise CDIError(f"{place}: expected an absolute path, got {path!r:.60}")
    return path


def _text(wire: Any, place: str) -> str:
    if not isinstance(wire, str) or "\0" in wire:
        raise CDIError(f"{place}: expected a text, got {wire!r:.60}")
    try:
        wire.encode()
    except UnicodeEncodeError:
        raise CDIError(f"{place}: expected a text, got {wire!r:.60}") from None
    return wire


def _mapping(wire: Any, place: str) -> dict[str, Any]:
    if not isinstance(wire, dict):
        raise CDIError(f"{place}: expected an object, got {wire!r:.60}")
    return wire


def _list(wire: Any, place: str) -> list[Any]:
    if wire is None:
        return []
    if not isinstance(wire, list):
        raise CDIError(f"{place}: expected a list, got {wire!r:.60}")
    return wire
