"""The node's CSINode: the list of its volume drivers, empty at first (kubelet: `nodeInfoManager`, `csiPlugin`).

The scheduler and the volume controllers look there before they send a pod with volumes, so a node is not ready until
the object is there. Drivers come and go later, all through here (`volumes.csi.node_info`). The object also says which
of the drivers that were once part of the kubelet are served by CSI drivers instead (`volumes.migration`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import CSINode, ObjectMeta, OwnerReference
from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.kube_client.types import CSI_NODES, NODES
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.migration.translate import MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.kube_client.types import ApiClient

log = get_logger("node")

MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"
MIGRATED: Final = ",".join(sorted(one.plugin for one in MIGRATIONS.values()))
RETRY_FIRST: Final = 0.03
RETRY_FACTOR: Final = 8
RETRY_LONGEST: Final = 60.0


def new_csi_node(node_name: str, uid: str) -> CSINode:
    """Of a node without drivers."""
    owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=uid)
    annotations = {MIGRATED_PLUGINS: MIGRATED}
    return CSINode(metadata=ObjectMeta(name=node_name, owner_references=(owner,), annotations=annotations))


def belongs_to(csi_node: CSINode, node_name: str, uid: str) -> bool:
    """Whether the object is this node's, and not that of a node of its name that is gone."""
    return any(
        (owner.kind, owner.name, owner.uid) == ("Node", node_name, uid) for owner in csi_node.metadata.owner_references
    )


def with_migrated_plugins(csi_node: CSINode) -> CSINode | None:
    """The object with the annotation, or None when it says that already, in whatever order."""
    annotations = csi_node.metadata.annotations
    if set(annotations.get(MIGRATED_PLUGINS, "").split(",")) == set(MIGRATED.split(",")):
        return None
    metadata = attrs.evolve(csi_node.metadata, annotations={**annotations, MIGRATED_PLUGINS: MIGRATED})
    return attrs.evolve(csi_node, metadata=metadata)


class CSINodeManager:
    """Makes the object, once, and changes it."""

    def __init__(self, client: ApiClient, node_name: str, *, changed: Broadcast[None] | None = None) -> None:
        """`changed` is sent when `problem` is another one."""
        self._client = client
        self._name = node_name
        self._changed = Broadcast[None]() if changed is None else changed
        self._problem: str | None = "CSINode is not yet initialized"
        self._done = trio.Event()
        self._one_at_a_time = trio.Lock()

    @property
    def problem(self) -> str | None:
        """Why the node is not ready for volumes; None once the object is there."""
        return self._problem

    async def wait_done(self) -> None:
        """Return once the object is there. Cancellable; nothing is left behind."""
        await self._done.wait()

    async def run(self) -> None:
        """Return when it is done; try for ever until then. The kubelet gives up, and ends, after two minutes."""
        pauses = GrowingPauses(self._client.health, RETRY_FIRST, RETRY_LONGEST, factor=RETRY_FACTOR)
        while True:
            pauses.attempt()
            try:
                done = await self._try()
                problem = None if done else f'CSINode "{self._name}" was owned by different node, deleted it'
            except ApiError as error:
                problem = str(error)
            if problem is None:
                self._log_problem(None)
                self._done.set()
                return
            log.warning("the node's CSINode is not there yet", error=problem, retry_in=pauses.next)
            self._log_problem(f"failed to initialize CSINode: {problem}")
            await pauses.after_failure()

    async def change(self, change: Callable[[CSINode], CSINode | None]) -> None:
        """Make another object of the one that the API server has; None: it is as it should be.

        One that is missing, or that is a stranger's, is made first. Raises ApiError: a conflict when somebody else
        changed it meanwhile, which may be tried again. What `change` raises is passed on.
        """
        async with self._one_at_a_time:
            existing = await self._own() or await self._own()
            if existing is not None and (wanted := change(existing)) is not None:
                await self._client.update(CSI_NODES, wanted)

    async def _try(self) -> bool:
        """False: a stranger's object was deleted, and the next try can create ours. Raises ApiError."""
        async with self._one_at_a_time:
            return await self._own() is not None

    async def _own(self) -> CSINode | None:
        """The node's own object, made or put right where necessary; None when a stranger's was deleted instead."""
        node = await self._client.get(NODES, self._name)
        uid = node.metadata.uid
        try:
            existing = await self._client.get(CSI_NODES, self._name)
        except ApiStatusError as error:
            if not error.not_found:
                raise
            return await self._client.create(CSI_NODES, new_csi_node(self._name, uid))
        if not belongs_to(existing, self._name, uid):
            await self._client.delete(CSI_NODES, self._name, uid=existing.metadata.uid)
            return None
        wanted = with_migrated_plugins(existing)
        return existing if wanted is None else await self._client.update(CSI_NODES, wanted)

    def _log_problem(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            self._changed.send(None)
