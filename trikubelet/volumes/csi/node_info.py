"""What the API server has of the node's CSI drivers (kubelet: `nodeInfoManager`).

Three places tell it. The node's CSINode has an entry for each driver: what the driver calls this node, by which labels
it tells topologies apart, how many volumes it can attach. An annotation of the node has the driver's name for the node
too, for older controllers. And the node's labels say where in the driver's topology it is. Controllers look at them
before volumes are made or attached for pods of this node, and the scheduler before it sends such pods.

The first half of this module says how an object should be, without touching any; `DriverEntries` makes it so. An API
server that does not answer is waited for: a driver can serve volumes that are attached already in the meantime.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from trikubelet.api import CSINode, CSINodeDriver, ObjectMeta, VolumeNodeResources
from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiUnreachable, CredentialsError
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio_typing import TaskStatus

    from trikubelet.kube_client.health import ConnectionHealth

NODE_ID_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"
MOST_VOLUMES: Final = 2**31 - 1
PAUSES: Final = (0.01, 0.05, 0.25)
"""Seconds between the attempts of one change: others write these objects too, and the newest version is changed."""
AWAY_FIRST: Final = 0.5
AWAY_LONGEST: Final = 30.0
"""Seconds between attempts without an answer."""

log = get_logger("node")


@frozen
class DriverOnNode:
    """What a driver says of itself on this node (NodeGetInfo)."""

    name: str
    node_id: str
    """What the driver calls the node."""
    max_volumes: int = 0
    """That can be attached; 0 when the driver does not say."""
    topology: Mapping[str, str] = attrs.field(factory=dict)
    """Labels that say where in the driver's topology the node is."""


class DriverEntryError(Exception):
    """The API server could not be updated. The text begins as the kubelet's."""


# How the objects should be. None: as they are.


def with_driver(csi_node: CSINode, driver: DriverOnNode) -> CSINode | None:
    """The CSINode with the driver's entry, which is its last when it is not there yet or says something else."""
    entry = CSINodeDriver(
        name=driver.name,
        node_id=driver.node_id,
        topology_keys=tuple(sorted(driver.topology)),
        allocatable=_allocatable(driver),
    )
    before = csi_node.spec.drivers
    if any(_same_entry(known, entry) for known in before):
        return None
    return _with_entries(csi_node, (*(known for known in before if known.name != driver.name), entry))


def without_driver(csi_node: CSINode, name: str) -> CSINode | None:
    rest = tuple(entry for entry in csi_node.spec.drivers if entry.name != name)
    return None if rest == csi_node.spec.drivers else _with_entries(csi_node, rest)


def with_driver_metadata(node: ObjectMeta, driver: DriverOnNode) -> ObjectMeta:
    """A node's metadata with the driver's name for it and with the driver's labels. Raises DriverEntryError when a
    label says something else already, or when the annotation cannot be read."""
    for key, value in driver.topology.items():
        if (known := node.labels.get(key, value)) != value:
            raise DriverEntryError(
                f'detected topology value collision: driver reported "{key}":"{value}" '
                f'but existing label is "{key}":"{known}"'
            )
    ids = _node_ids(node)
    return attrs.evolve(
        node,
        labels={**node.labels, **driver.topology},
        annotations=node.annotations
        if ids.get(driver.name) == driver.node_id
        else {**node.annotations, NODE_ID_ANNOTATION: _json({**ids, driver.name: driver.node_id})},
    )


def without_driver_metadata(node: ObjectMeta, name: str) -> ObjectMeta:
    """A node's metadata without the driver's name for it. The labels stay: pods were placed by them. Raises
    DriverEntryError."""
    ids = _node_ids(node)
    if ids.pop(name, None) is None:
        return node
    annotations = {key: text for key, text in node.annotations.items() if key != NODE_ID_ANNOTATION}
    return attrs.evolve(node, annotations={**annotations, NODE_ID_ANNOTATION: _json(ids)} if ids else annotations)


def _node_ids(node: ObjectMeta) -> dict[str, str]:
    text = node.annotations.get(NODE_ID_ANNOTATION, "")
    try:
        ids = json.loads(text or "null")
    except ValueError:
        ids = text
    if ids is None:
        return {}
    if not isinstance(ids, dict) or not all(isinstance(value, str) for value in ids.values()):
        raise DriverEntryError(
            f"failed to parse node's {NODE_ID_ANNOTATION!r} annotation value: expected a JSON object of strings, "
            f"got {text!r}; remove the annotation"
        )
    return ids


def _json(ids: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(ids.items())), separators=(",", ":"), ensure_ascii=False)


def _allocatable(driver: DriverOnNode) -> VolumeNodeResources | None:
    if driver.max_volumes < 0:
        log.error("a driver's limit of volumes cannot be told", driver=driver.name, limit=driver.max_volumes)
    return VolumeNodeResources(count=min(driver.max_volumes, MOST_VOLUMES)) if driver.max_volumes > 0 else None


def _same_entry(one: CSINodeDriver, other: CSINodeDriver) -> bool:
    return (
        one.name == other.name
        and one.node_id == other.node_id
        and set(one.topology_keys) == set(other.topology_keys)
        and _count(one) == _count(other)
    )


def _count(entry: CSINodeDriver) -> int | None:
    return None if entry.allocatable is None else entry.allocatable.count


def _with_entries(csi_node: CSINode, entries: tuple[CSINodeDriver, ...]) -> CSINode:
    return attrs.evolve(csi_node, spec=attrs.evolve(csi_node.spec, drivers=entries))


# Making them so.


class NodeObject(Protocol):
    """The owner of the node's metadata: `node.status_manager.NodeStatusManager`."""

    async def wait_registered(self) -> None: ...

    async def change_metadata(self, change: Callable[[ObjectMeta], ObjectMeta]) -> object:
        """Raises ApiError, and what `change` raises."""
        ...


class CSINodeObject(Protocol):
    """The owner of the CSINode: `node.csi_node.CSINodeManager`."""

    async def wait_done(self) -> None: ...

    async def change(self, change: Callable[[CSINode], CSINode | None]) -> None:
        """Raises ApiError."""
        ...


class DriverEntries:
    """Writes the node's drivers to the API server."""

    def __init__(self, node: NodeObject, csi_node: CSINodeObject, *, health: ConnectionHealth) -> None:
        """`health`: of the API server that both are on."""
        self._node = node
        self._csi_node = csi_node
        self._health = health
        self._installed: set[str] = set()
        self._leftover: set[str] = set()
        """Drivers that are gone, and that the API server still has."""
        self._more_left: Broadcast[None] = Broadcast()

    async def install(self, driver: DriverOnNode) -> None:
        """Write a driver's entries; waits for the node's registration and for an API server that is away. Raises
        DriverEntryError. Cancelled, some of it may have been written: `uninstall` takes it back."""
        if not driver.node_id:
            raise DriverEntryError("error adding CSI driver node info: driverNodeID must not be empty")
        self._installed.add(driver.name)
        self._leftover.discard(driver.name)
        await self._node.wait_registered()
        await self._csi_node.wait_done()
        await self._when_answered(
            lambda: self._node.change_metadata(lambda node: with_driver_metadata(node, driver)),
            "error updating Node object with CSI driver node info",
        )
        await self.update(driver)

    async def update(self, driver: DriverOnNode) -> None:
        """Write what the driver reports now, to the CSINode only. Raises DriverEntryError."""
        await self._when_answered(
            lambda: self._csi_node.change(lambda csi_node: with_driver(csi_node, driver)),
            "error updating CSINode object with CSI driver node info",
        )

    async def uninstall(self, name: str) -> None:
        """Remove a driver's entries. What fails now, or is cancelled, is done later by
        `run`; never fails."""
        self._installed.discard(name)
        self._leftover.add(name)
        try:
            await self._remove(name)
        except (ApiError, DriverEntryError) as error:
            log.error("Error uninstalling CSI driver", driver=name, error=str(error))
        else:
            self._leftover.discard(name)
        finally:
            if name in self._leftover:
                self._more_left.send(None)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell of drivers that are gone until it is known, until cancelled. Started at once."""
        task_status.started()
        while True:
            while not self._leftover:
                await self._more_left.wait()
            pauses = GrowingPauses(self._health, AWAY_FIRST, AWAY_LONGEST)
            while self._leftover:
                await pauses.after_failure()
                pauses.attempt()
                for name in sorted(self._leftover):
                    await self._remove_leftover(name)

    async def _remove_leftover(self, name: str) -> None:
        if name not in self._leftover:
            return  # it has come again
        try:
            await self._remove(name)
        except (ApiError, DriverEntryError) as error:
            log.debug("CSI driver still not uninstalled", driver=name, error=str(error))
        else:
            self._leftover.discard(name)

    async def _remove(self, name: str) -> None:
        """Raises ApiError, DriverEntryError."""

        def entry(csi_node: CSINode) -> CSINode | None:
            return None if name in self._installed else without_driver(csi_node, name)

        def metadata(node: ObjectMeta) -> ObjectMeta:
            return node if name in self._installed else without_driver_metadata(node, name)

        await _persistently(lambda: self._csi_node.change(entry))
        await _persistently(lambda: self._node.change_metadata(metadata))

    async def _when_answered(self, change: Callable[[], Awaitable[object]], failure: str) -> None:
        pauses = GrowingPauses(self._health, AWAY_FIRST, AWAY_LONGEST)
        while True:
            pauses.attempt()
            try:
                await _persistently(change)
            except (ApiUnreachable, CredentialsError) as error:
                log.warning(failure, error=str(error), retry_in=pauses.next)
            except (ApiError, DriverEntryError) as error:
                raise DriverEntryError(f"{failure}: {error}") from error
            else:
                return
            await pauses.after_failure()


async def _persistently(change: Callable[[], Awaitable[object]]) -> None:
    """A change that somebody else's change came in between is made again. Raises what the last attempt raised."""
    for pause in PAUSES:
        try:
            await change()
        except (ApiUnreachable, CredentialsError, DriverEntryError):
            raise
        except ApiError:
            await trio.sleep(pause)
        else:
            return
    await change()
