"""The group of all pods, limited to what the node gives, and the groups of what is reserved (kubelet:
`createNodeAllocatableCgroups`, `enforceNodeAllocatableCgroups`).

What the node gives here is its capacity without reservations; the room that hard eviction keeps free stays within, or
eviction would come too late. Where more is in use already than the limit leaves, writing it fails: pods go by eviction,
and it is tried again every minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Quantity
from trikubelet.cgroups.errors import CgroupError, CgroupNotAllowedError
from trikubelet.cgroups.names import NODE_ALLOCATABLE, CgroupName, cgroup_name, tier_names
from trikubelet.cgroups.ownership import is_same_mark
from trikubelet.cgroups.pods import NoPodCgroups
from trikubelet.cgroups.settings import CgroupSettings, node_settings
from trikubelet.formats.values import frozen
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.cgroups.interface import CgroupDriver, PodCgroups
    from trikubelet.cgroups.pods import PodCgroupManager
    from trikubelet.telemetry.events import EventRecorder

PODS: Final = "pods"
SYSTEM_RESERVED: Final = "system-reserved"
KUBE_RESERVED: Final = "kube-reserved"
COMPRESSIBLE: Final = "-compressible"
RETRY: Final = 60.0
"""Seconds."""
ENFORCED: Final = "NodeAllocatableEnforced"
NOT_ENFORCED: Final = "FailedNodeAllocatableEnforcement"
"""Reasons of events."""
_ZERO: Final = Quantity()

log = get_logger("cgroups")


class NodeAllocatableError(Exception):
    """A reservation that was to be enforced could not be: the agent does not start."""


@frozen(kw_only=True)
class NodeCgroupOptions:
    """What is enforced; the names of the kubelet's settings in brackets."""

    cgroup_root: CgroupName = ()
    """The group that holds all that follows (cgroupRoot). It has to exist, unless `own_root_of` is set."""
    own_root_of: str = ""
    """The mark of the agent whose own group `cgroup_root` is: the agent makes and removes it. Empty: it is not."""
    capacity: Mapping[str, Quantity] = attrs.field(factory=dict)
    """What the machine has: `cpu`, `memory`, `pid`, `hugepages-…`."""
    kube_reserved: Mapping[str, Quantity] = attrs.field(factory=dict)
    system_reserved: Mapping[str, Quantity] = attrs.field(factory=dict)
    enforce: frozenset[str] = frozenset({PODS})
    """(enforceNodeAllocatable)"""
    kube_reserved_cgroup: str = ""
    system_reserved_cgroup: str = ""
    cpus: str | None = None
    """All processors, `0-3`: they are written, so that systemd knows of the controller."""
    memory_qos: bool = False
    """Whether the feature gate MemoryQoS is on and cgroups are v2: reserved memory is protected then."""

    @property
    def pods_root(self) -> CgroupName:
        """The group of all pods. Raises CgroupNameError."""
        return cgroup_name(self.cgroup_root, NODE_ALLOCATABLE)


def enforceable(
    capacity: Mapping[str, Quantity], kube: Mapping[str, Quantity], system: Mapping[str, Quantity]
) -> dict[str, Quantity]:
    """What pods may use together (kubelet: `getNodeAllocatableInternalAbsolute`)."""
    left: dict[str, Quantity] = {}
    for name, amount in capacity.items():
        rest = amount - system.get(name, _ZERO) - kube.get(name, _ZERO)
        left[name] = rest if rest >= _ZERO else Quantity.from_nanos(0, amount.format)
    return left


class NodeCgroups:
    """`prepare`, then `enforce_reserved`, then let `run` limit the pods."""

    def __init__(self, driver: CgroupDriver, options: NodeCgroupOptions, recorder: EventRecorder) -> None:
        self._driver = driver
        self._options = options
        self._recorder = recorder

    def pod_limits(self) -> CgroupSettings:
        """What all pods together are limited to."""
        options = self._options
        amounts = options.capacity
        if PODS in options.enforce:
            amounts = enforceable(options.capacity, options.kube_reserved, options.system_reserved)
        return node_settings(amounts, compressible=False, cpus=options.cpus)

    async def prepare(self) -> None:
        """Make the group of all pods, without limits as yet. Raises CgroupError; CgroupNotAllowedError without the
        right to."""
        if self._options.own_root_of:
            await self._driver.make(self._options.cgroup_root, CgroupSettings(), self._options.own_root_of)
        missing = await self._driver.missing(self._options.cgroup_root)
        if missing:
            raise CgroupError(
                _quoted(self._options.cgroup_root),
                f"invalid configuration: cgroupRoot has to exist, missing are {', '.join(missing)}",
            )
        root = self._options.pods_root
        if not await self._driver.exists(root):
            await self._driver.create(root, CgroupSettings())

    async def leave(self) -> None:
        """Remove the agent's own cgroup root and the groups that the agent made in it, where they are empty.

        Raises CgroupError.
        """
        options = self._options
        marks = (await self._driver.marks((options.cgroup_root,))).get(options.cgroup_root)
        if options.own_root_of and marks and all(is_same_mark(mark, options.own_root_of) for mark in marks):
            tiers = set(tier_names(options.pods_root).values()) - {options.pods_root}
            for name in (*tiers, options.pods_root, options.cgroup_root):
                await self._driver.discard(name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Limit all pods together, and try again until it is done; then it ends."""
        task_status.started()
        limits = self.pod_limits()
        while True:
            try:
                await self._driver.update(self._options.pods_root, limits)
            except CgroupError as error:
                self._recorder.node_event(
                    EventType.WARNING,
                    NOT_ENFORCED,
                    f"Failed to update Node Allocatable Limits {_quoted(self._options.pods_root)}: {error}",
                )
                await trio.sleep(RETRY)
            else:
                self._recorder.node_event(EventType.NORMAL, ENFORCED, "Updated Node Allocatable limit across pods")
                return

    async def enforce_reserved(self) -> None:
        """Limit the groups of what is reserved, as far as the configuration asks. Raises NodeAllocatableError."""
        options = self._options
        for suffix, compressible in (("", False), (COMPRESSIBLE, True)):
            for key, group, amounts in (
                (SYSTEM_RESERVED, options.system_reserved_cgroup, options.system_reserved),
                (KUBE_RESERVED, options.kube_reserved_cgroup, options.kube_reserved),
            ):
                if key + suffix in options.enforce:
                    await self._limit_reserved(key, group, amounts, compressible=compressible)

    async def _limit_reserved(
        self, key: str, group: str, amounts: Mapping[str, Quantity], *, compressible: bool
    ) -> None:
        settings = node_settings(amounts, compressible=compressible, cpus=self._options.cpus)
        if self._options.memory_qos and settings.memory is not None:
            settings = attrs.evolve(settings, unified={"memory.min": str(settings.memory)})
        try:
            name = self._driver.name_of(group)
            missing = await self._driver.missing(name)
            if missing:
                raise CgroupError(group, f"it has to exist, missing are {', '.join(missing)}")
            await self._driver.update(name, settings)
        except CgroupError as error:
            what = "Kube Reserved" if key == KUBE_RESERVED else "System Reserved"
            kind = f"{what} Compressible" if compressible else what
            message = f'Failed to enforce {kind} Cgroup Limits on "{group}": {error}'
            self._recorder.node_event(EventType.WARNING, NOT_ENFORCED, message)
            raise NodeAllocatableError(message) from error
        what = "kube reserved" if key == KUBE_RESERVED else "system reserved"
        self._recorder.node_event(EventType.NORMAL, ENFORCED, f"Updated limits on {what} cgroup {group}")


async def open_pod_cgroups(node: NodeCgroups, manager: PodCgroupManager, *, required: bool) -> PodCgroups:
    """Make the groups of all pods and of the classes, and answer the manager of pods' groups.

    Without the right to, that is said once and pods go without; when not `required`, as where no configuration asks for
    cgroups, so it is with every other failure. Else raises CgroupError.
    """
    try:
        await node.prepare()
        await manager.start()
    except CgroupError as error:
        if required and not isinstance(error, CgroupNotAllowedError):
            raise
        log.warning(
            "cannot write cgroups: pods run without cgroups of their own, as with cgroupsPerQOS: false",
            problem=str(error),
        )
        return NoPodCgroups()
    return manager


def _quoted(name: CgroupName) -> str:
    return "[" + " ".join(f'"{part}"' for part in name) + "]"
