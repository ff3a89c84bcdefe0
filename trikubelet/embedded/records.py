"""Pod sandboxes and containers as values, and the files that they live in.

    sandboxes/<id>/sandbox.json      what the pod asked for, and resolv.conf, hostname, hosts beside it
    sandboxes/<id>/network.json      its network, if that is not the machine's, and how far it is made or taken down
    containers/<id>/container.json   what was asked for, and the specification made of it
    containers/<id>/run.json         written by the keeper at the start
    containers/<id>/exit.json        written by the keeper at the end
    containers/<id>/upper            the container's own changes to its image
    containers/<id>/volumes          the volumes that its image declares

Each file has one writer and is replaced in one step. What runs and how it ended is the keeper's knowledge: the agent's
files never say so, and so cannot be wrong about it. A file that cannot be read is moved to `corrupt/` and reported; it
costs that one container, not the runtime.
"""

from __future__ import annotations

import base64
import enum
import json
import os
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from trikubelet.embedded.network.model import Attachment, PodNetworkSpec, PortMapping
from trikubelet.formats.values import define, frozen
from trikubelet.linux.durable_files import naming
from trikubelet.linux.trees import remove_tree
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

log = get_logger("embedded")

_VERSION = 1
_NETWORKS = "networks.json"
T = TypeVar("T")


class Phase(enum.Enum):
    """Where a container is in its life."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@frozen
class ContainerImage:
    """The image a container was made of, as it was called and as it is known."""

    name: str
    reference: str
    id: str


@frozen
class Exit:
    """How a container ended. Times are nanoseconds since the epoch."""

    code: int
    reason: str
    message: str
    started_at: int
    finished_at: int

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Exit:
        return cls(
            code=int(record["exit_code"]),
            reason=str(record["reason"]),
            message=str(record["message"]),
            started_at=int(record["started_at"]),
            finished_at=int(record["finished_at"]),
        )


@define(eq=False)
class ContainerRecord:
    """One container. The first six fields are on disk and fixed; the others are what the keeper last said."""

    id: str
    sandbox_id: str
    config: v1.ContainerConfig
    image: ContainerImage
    spec: dict[str, Any]
    """What the keeper gets, but for what it adds itself; see `container_spec.py`."""
    created_at: int
    stop_signal: int = 15
    phase: Phase = Phase.CREATED
    pid: int = 0
    started_at: int = 0
    user: dict[str, Any] = attrs.field(factory=dict)
    cgroup: dict[str, Any] | None = None
    exit: Exit | None = None
    exited: trio.Event = attrs.field(factory=trio.Event)
    changing: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while it is started or removed."""
    stop_signalled: bool = False

    def set_exit(self, outcome: Exit) -> None:
        self.phase, self.exit, self.pid = Phase.EXITED, outcome, 0
        self.started_at = outcome.started_at
        self.exited.set()


class NetworkPhase(enum.Enum):
    """How far a pod's network is. It is written down before each step, so that an interrupted one is found."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"
    DETACHED = "detached"


@define(eq=False)
class SandboxNetwork:
    """The network of a pod that has its own."""

    kind: str
    """Which of the networks of `pod_networks.py` made it, and is to take it down."""
    spec: PodNetworkSpec
    phase: NetworkPhase = NetworkPhase.DETACHED
    attachment: Attachment | None = None


@define(eq=False)
class SandboxRecord:
    """One pod sandbox. Ready means that the keeper holds its namespaces, and that its network is attached."""

    id: str
    config: v1.PodSandboxConfig
    created_at: int
    runtime_handler: str = ""
    network: SandboxNetwork | None = None
    """None: it is on the machine's network, as all pods of earlier releases are."""
    selinux_level: str = ""
    """Of its containers, unless they ask for another; empty: there is no SELinux, or it has no levels."""
    ready: bool = False
    first_container: str = ""
    """The id that its first container gets, for which the keeper has a process; empty: it gets any."""
    changing: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while it is made or stopped."""

    @property
    def may_be_ready(self) -> bool:
        """Whether it is ready as far as its network goes."""
        return self.network is None or self.network.phase is NetworkPhase.ATTACHED

    @property
    def holds_network(self) -> bool:
        """Whether something of its network may be there."""
        return self.network is not None and self.network.phase is not NetworkPhase.DETACHED


def images_in(own: str, spec: Mapping[str, Any]) -> set[str]:
    """Ids of the images that a container needs: the one it is made of, and its volumes'."""
    return {own, *(mount["image"] for mount in spec.get("mounts", ()) if "image" in mount)}


def image_users(root: Path) -> dict[str, list[str]]:
    """Ids of the containers that need each image, by its id, as the files of a runtime folder tell.

    For other processes than the runtime's own: changes nothing, and leaves out what cannot be read.
    """
    users: dict[str, list[str]] = {}
    for path in (root / "containers").glob("*/container.json"):
        try:
            document = json.loads(path.read_bytes())
            image_ids = images_in(document["image"]["id"], document["spec"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        for image_id in image_ids:
            users.setdefault(image_id, []).append(path.parent.name)
    return users


class RecordStore:
    """The files of one runtime folder. All methods do small synchronous file work, except `delete_tree`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("sandboxes", "containers", "removing"):
            (root / name).mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)

    def sandbox_folder(self, sandbox_id: str) -> Path:
        return self.root / "sandboxes" / sandbox_id

    def container_folder(self, container_id: str) -> Path:
        return self.root / "containers" / container_id

    def load_sandboxes(self) -> Iterator[SandboxRecord]:
        yield from self._load("sandboxes", "sandbox.json", self._read_sandbox)

    def load_containers(self) -> Iterator[ContainerRecord]:
        yield from self._load("containers", "container.json", self._read_container)

    def save_sandbox(self, record: SandboxRecord) -> None:
        folder = self.sandbox_folder(record.id)
        folder.mkdir(exist_ok=True)
        document = {
            "version": _VERSION,
            "id": record.id,
            "name": record.config.metadata.name,
            "namespace": record.config.metadata.namespace,
            "created_at": record.created_at,
            "runtime_handler": record.runtime_handler,
            "selinux_level": record.selinux_level,
            "config": _encode(record.config),
        }
        write_document(folder / "sandbox.json", document)

    def save_network(self, record: SandboxRecord) -> None:
        """Write down how far its network is; nothing for a pod on the machine's."""
        if record.network is None:
            return
        folder = self.sandbox_folder(record.id)
        folder.mkdir(exist_ok=True)
        document = {
            "version": _VERSION,
            "kind": record.network.kind,
            "phase": record.network.phase.value,
            "spec": attrs.asdict(record.network.spec),
            "attachment": None if record.network.attachment is None else attrs.asdict(record.network.attachment),
        }
        write_document(folder / "network.json", document)

    def networks_made(self) -> frozenset[str]:
        """The ways of networks of which something may be on the machine."""
        path = self.root / _NETWORKS
        try:
            return frozenset(map(str, _read_document(path)["made"]))
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("unreadable list of networks", path=str(path), error=str(error))
            return frozenset()

    def save_networks_made(self, kinds: Collection[str]) -> None:
        """Raises OSError."""
        write_document(self.root / _NETWORKS, {"version": _VERSION, "made": sorted(kinds)})

    def save_container(self, record: ContainerRecord) -> None:
        folder = self.container_folder(record.id)
        folder.mkdir(exist_ok=True)
        document = {
            "version": _VERSION,
            "id": record.id,
            "sandbox": record.sandbox_id,
            "name": record.config.metadata.name,
            "created_at": record.created_at,
            "stop_signal": record.stop_signal,
            "image": attrs.asdict(record.image),
            "spec": record.spec,
            "config": _encode(record.config),
        }
        write_document(folder / "container.json", document)

    def recorded_exit(self, container_id: str) -> Exit | None:
        """What the keeper wrote at the container's end, if it ended."""
        path = self.container_folder(container_id) / "exit.json"
        try:
            return Exit.from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("unreadable exit record", path=str(path), error=str(error))
            return Exit(255, "Unknown", f"the record of its end cannot be read: {error}", 0, 0)

    def was_started(self, container_id: str) -> bool:
        return (self.container_folder(container_id) / "run.json").exists()

    def set_aside(self, folder: Path) -> Path | None:
        """Take a folder out of the records at once; `delete_tree` then may take its time. None if it is not there."""
        target = self.root / "removing" / f"{folder.name}-{os.urandom(4).hex()}"
        try:
            folder.rename(target)
        except FileNotFoundError:
            return None
        return target

    def leftovers(self) -> list[Path]:
        """What an interrupted removal left."""
        return list((self.root / "removing").iterdir())

    def _load(self, kind: str, name: str, read: Callable[[Path], T]) -> Iterator[T]:
        for folder in sorted((self.root / kind).iterdir()):
            try:
                yield read(folder / name)
            except FileNotFoundError:
                self.set_aside(folder)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                kept = self._move_to_corrupt(folder)
                log.warning("unreadable record moved aside", path=str(folder / name), now=str(kept), error=str(error))

    def _move_to_corrupt(self, folder: Path) -> Path:
        corrupt = self.root / "corrupt"
        corrupt.mkdir(exist_ok=True)
        target = corrupt / f"{folder.name}-{os.urandom(4).hex()}"
        folder.rename(target)
        return target

    def _read_sandbox(self, path: Path) -> SandboxRecord:
        document = _read_document(path)
        return SandboxRecord(
            id=str(document["id"]),
            config=v1.PodSandboxConfig.FromString(_decode(document["config"])),
            created_at=int(document["created_at"]),
            runtime_handler=str(document["runtime_handler"]),
            network=_read_network(path.with_name("network.json")),
            selinux_level=str(document.get("selinux_level", "")),  # absent in what older releases wrote
        )

    def _read_container(self, path: Path) -> ContainerRecord:
        document = _read_document(path)
        if not isinstance(document["spec"], dict):
            raise ValueError(f"expected an object as spec, got {type(document['spec']).__name__}")
        return ContainerRecord(
            id=str(document["id"]),
            sandbox_id=str(document["sandbox"]),
            config=v1.ContainerConfig.FromString(_decode(document["config"])),
            image=ContainerImage(**document["image"]),
            spec=document["spec"],
            created_at=int(document["created_at"]),
            stop_signal=int(document["stop_signal"]),
        )


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".new")
    with naming(path):
        temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.replace(path)


def delete_tree(folder: Path) -> None:
    """Delete a folder and all below it, following no link. Blocking. What cannot be deleted stays, with a warning."""
    try:
        remove_tree(folder)
    except OSError as error:
        log.warning("cannot delete", path=str(folder), error=str(error))


def _read_network(path: Path) -> SandboxNetwork | None:
    try:
        document = _read_document(path)
    except FileNotFoundError:
        return None
    spec, attachment = document["spec"], document["attachment"]
    ports = tuple(PortMapping(**port) for port in spec.pop("ports"))
    return SandboxNetwork(
        kind=str(document["kind"]),
        spec=PodNetworkSpec(ports=ports, **spec),
        phase=NetworkPhase(document["phase"]),
        attachment=None
        if attachment is None
        else Attachment(ips=tuple(attachment["ips"]), interface=attachment["interface"], state=attachment["state"]),
    )


def _read_document(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, got {type(document).__name__}")
    if document["version"] != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {document['version']!r}")
    return document


def _encode(message: Any) -> str:
    return base64.b64encode(bytes(message)).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
