"""Keeps the node object: creates it, reports the node's status, and answers for it to the agent's other parts.

Facts are looked at every ten seconds, and as soon as somebody says that they changed. The API server hears of it only
when there is something to tell, or when five minutes have passed: that the node lives, its lease says. One task does
all reporting, so reports never overtake each other. The kubelet polls where this waits: it finds out at its next
heartbeat that its runtime is back; here the report goes out at once, though never more than once a second.

Registering happens once. A node object that is deleted later stays deleted until the agent starts anew, as with the
kubelet: somebody wanted it gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.node_view import host_ips
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.kube_client.types import NODES, PatchType, Urgency, version_number
from trikubelet.node.conditions import is_ready
from trikubelet.node.csi_node import CSINodeManager
from trikubelet.node.facts import NodeFacts
from trikubelet.node.lease import LeaseController, connection_may_be_bad
from trikubelet.node.pod_cidrs import PodCIDRUpdater
from trikubelet.node.registration import initial_node, reconciled
from trikubelet.node.reporting import ReportClock, StatusEvents
from trikubelet.node.startup import NodeStartup
from trikubelet.node.status import Accepted, has_changed, next_node, node_patch
from trikubelet.supervision import follow, supervise
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.csi.node_info import DriverEntries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.api import Node, ObjectMeta, Quantity
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.node.facts import NodeSettings
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("node")

TRIES: Final = 5
"""Attempts of one report, at once; after the first, on the node that the API server has."""
REGISTER_FIRST: Final = 0.1
REGISTER_LONGEST: Final = 7.0
"""Seconds between attempts to register."""
JITTER: Final = 0.04
SETTLE: Final = 0.05
"""Seconds that a change waits for others that come with it."""
START_TIMEOUT: Final = 1.0
"""Seconds that the first report waits for the CSINode: an agent that starts anew on a node that is ready would take it
out of service for a moment, as the kubelet does."""
REPORT_WITHIN: Final = 10.0
"""Seconds that a caller waits until the API server has the status: what follows is not put off for ever."""
BETWEEN_CHANGES: Final = 1.0
"""Seconds between reports of changes, so that something that flickers does not fill the API server."""
LOOK_WHILE_NOT_READY: Final = 0.1
LOOK_AT_MOST: Final = 120.0
"""Seconds between looks at a node that is not ready yet, and for how long: at the start some of what keeps it from
being ready goes away without anybody saying so."""


@frozen(kw_only=True)
class ReportedMachine:
    """What the node's status is made of, and what receives the pod networks of the node's object."""

    facts: Callable[[], NodeFacts]
    """As they are now, `storage_problem` aside, to which the manager adds the CSINode's."""
    facts_changed: Broadcast[None] | None = None
    """Tells when it is time to look at them."""
    update_pod_cidr: Callable[[str], Awaitable[None]] | None = None
    """Tells the runtime the pods' networks; raises CRIError."""
    reset_extended: Callable[[], bool] = lambda: False
    """Whether what a node object that is there already says of devices is not about this machine."""


class NodeStatusManager:
    """The owner of the node object. It is a NodeView."""

    def __init__(
        self,
        client: ApiClient,
        heartbeat: ApiClient,
        store: Store[Node],
        machine: ReportedMachine,
        settings: NodeSettings,
        *,
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
    ) -> None:
        """`heartbeat`: the same server without a rate limit, with a short deadline. `store`: holds this node alone."""
        self._client = client
        self._heartbeat = heartbeat
        self._store = store
        self._machine = machine
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self.reported: Broadcast[tuple[str, ...]] = Broadcast()
        """The volumes in use that the API server has in the node's status, after each look at it."""
        self._changed: Broadcast[None] = Broadcast()
        self._change = self._changed.subscribe()
        self._asked_for: Broadcast[None] = Broadcast()
        self._ask = self._asked_for.subscribe()
        self._recorder = recorder
        self._events = StatusEvents(settings.name, recorder)
        self._reports = ReportClock(settings.report_period, rng)
        self._pod_cidrs = None if machine.update_pod_cidr is None else PodCIDRUpdater(machine.update_pod_cidr)
        self.csi_node = CSINodeManager(client, settings.name, changed=self._changed)
        self.drivers = DriverEntries(self, self.csi_node, health=client.health)
        self._lease = LeaseController(
            heartbeat,
            settings.name,
            duration=settings.lease_duration,
            uid=self._owner_uid,
            node_comes=self._node_comes,
            clock=clock,
            rng=rng,
        )
        self.startup = NodeStartup()
        """For metrics."""
        self._known: Node | None = None
        """The newest copy that a call of ours brought."""
        self._accepted: Accepted | None = None
        self._registered = trio.Event()
        self._asked = 0
        self._done = 0
        self._change_reported_at = -BETWEEN_CHANGES
        self._retry_facts_until = 0.0
        self._progress: Broadcast[None] = Broadcast()
        self._metadata_lock = trio.Lock()

    # The view of the node

    @property
    def registered(self) -> bool:
        return self._registered.is_set()

    @property
    def uid(self) -> str | None:
        return self.cached().metadata.uid if self.registered else None

    async def wait_registered(self) -> None:
        await self._registered.wait()

    def cached(self) -> Node:
        """The newest of what is watched and what our own calls brought; without these, what would be created."""
        watched = self._store.get(self._settings.name)
        copies = [node for node in (watched, self._known) if node is not None]
        if not copies:
            return initial_node(self._settings, self._facts(), self._clock.now()).node
        return max(copies, key=_version)

    async def fetch(self) -> Node:
        """Ask the API server; raises ApiError."""
        node = await self._client.get(NODES, self._settings.name)
        self._learn(node)
        return node

    def host_ips(self) -> tuple[str, ...]:
        return host_ips(self.cached())

    def allocatable(self) -> Mapping[str, Quantity]:
        return self.cached().status.allocatable

    # What others ask for

    def changed_soon(self) -> None:
        """Something that the node's status tells may have changed: look at once, and report it if so."""
        self._changed.send(None)

    def report_soon(self) -> None:
        """The same, and it is reported without the pause between changes: a caller waits for it."""
        self._asked += 1
        self._asked_for.send(None)
        self.changed_soon()

    async def report_now(self, within: float = REPORT_WITHIN) -> bool:
        """Return True once the API server has the status as it is now, or a newer one; False after `within` seconds.

        The report is not taken back then, nor when this is cancelled: it is made when the API server answers.
        """
        self.report_soon()
        wanted = self._asked
        with trio.move_on_after(within):
            while self._done < wanted:
                await self._progress.wait()
            return True
        log.warning("the node's status was not taken in time", node=self._settings.name, within=f"{within:g} s")
        return False

    async def change_metadata(self, change: Callable[[ObjectMeta], ObjectMeta]) -> Node:
        """Change the node's labels and annotations: `change` makes new metadata of what the API server has now.

        One change at a time, so that of two changes of one annotation neither is lost; what others write meanwhile
        stays, where it is not the same key. Raises ApiError, and what `change` raises. When cancelled, it may have been
        made.
        """
        async with self._metadata_lock:
            original = await self.fetch()
            wanted = attrs.evolve(original, metadata=change(original.metadata))
            return original if wanted == original else await self._patch(self._client, original, wanted)

    # The tasks

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; started at once, whether or not the API server answers."""
        self._retry_facts_until = trio.current_time() + LOOK_AT_MOST
        self._recorder.node_event(EventType.NORMAL, "Starting", "Starting kubelet.")
        self._store.subscribe(self._node_changed)
        reachability = self._heartbeat.health.changes.subscribe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._keep_status)
            nursery.start_soon(follow, reachability, self._reachability_changed)
            nursery.start_soon(supervise, self._lease.run)
            nursery.start_soon(supervise, self._keep_csi_node)
            nursery.start_soon(supervise, self.drivers.run)
            if self._pod_cidrs is not None:
                nursery.start_soon(supervise, self._pod_cidrs.run)
            if self._machine.facts_changed is not None:
                nursery.start_soon(follow, self._machine.facts_changed.subscribe(), lambda _: self.changed_soon())
            task_status.started()

    async def _keep_csi_node(self) -> None:
        await self._registered.wait()
        await self.csi_node.run()

    async def _keep_status(self) -> None:
        if not self.registered:
            await (self._register() if self._settings.register else self._wait_for_node())
            self._registered.set()
            log.info("Successfully registered node", node=self._settings.name)
        with trio.move_on_after(START_TIMEOUT):
            await self.csi_node.wait_done()
        while True:
            self._change.drop(None)
            self._ask.drop(None)
            asked = self._asked
            facts = self._facts()
            if await self._report(facts):
                self._done = asked
                self._progress.send(None)
            await self._wait_for_change(facts)

    async def _wait_for_change(self, facts: NodeFacts) -> None:
        """Until the next look is due. `facts`: those of the last look."""
        period = self._settings.update_period * (1 + JITTER * self._rng.random())
        changed = False
        with trio.move_on_after(period):
            await self._until_changed(facts.problems)
            changed = True
        if changed and self._asked == self._done:
            with trio.move_on_at(max(self._change_reported_at + BETWEEN_CHANGES, trio.current_time() + SETTLE)):
                await self._ask.receive()

    async def _until_changed(self, problems: tuple[str, ...]) -> None:
        """Return when a change is signalled, or `problems` are others: some of them go away without a signal."""
        while problems and trio.current_time() < self._retry_facts_until:
            if self._facts().problems != problems:
                return
            with trio.move_on_after(LOOK_WHILE_NOT_READY):
                await self._change.receive()
                return
        await self._change.receive()

    def _facts(self) -> NodeFacts:
        facts = self._machine.facts()
        return facts if facts.storage_problem else attrs.evolve(facts, storage_problem=self.csi_node.problem)

    def _owner_uid(self) -> str | None:
        """Of a node that is there, as far as is known: what belongs to one that is gone is removed at once."""
        node = self._base() if self.registered else None
        return None if node is None else node.metadata.uid

    async def _node_comes(self) -> None:
        if self.registered:
            await trio.sleep_forever()
        await self._registered.wait()

    # Registration

    async def _wait_for_node(self) -> None:
        while self._store.get(self._settings.name) is None:
            await self._store.changes.wait()

    async def _register(self) -> None:
        pauses = GrowingPauses(
            self._client.health, REGISTER_FIRST, REGISTER_LONGEST, vary=lambda: 1 + JITTER * self._rng.random()
        )
        while True:
            pauses.attempt()
            self.startup.attempt(self._clock.now())
            following = initial_node(self._settings, self._facts(), self._clock.now())
            self._events.record(following)
            try:
                self._learn(await self._create_or_correct(following.node))
            except ApiError as error:
                log.warning("Unable to register node with API server", node=self._settings.name, error=str(error))
            else:
                return
            await pauses.after_failure()

    async def _create_or_correct(self, initial: Node) -> Node:
        """The node as the API server has it now. A node that may not create itself may be there already."""
        try:
            node = await self._client.create(NODES, initial, urgency=Urgency.URGENT)
        except ApiStatusError as error:
            may_be_there = error.already_exists or (error.forbidden and self._settings.looks_when_forbidden)
            if not may_be_there:
                raise
            log.info("the node is not created anew", node=self._settings.name, answer=str(error))
        else:
            self._reports.reported(changed=True)
            self._accepted = Accepted(initial.status, node.status)
            self.startup.created(self._clock.now())
            return node
        existing = await self._client.get(NODES, self._settings.name)
        wanted = reconciled(initial, existing, reset_extended=self._machine.reset_extended())
        return existing if wanted is existing else await self._patch(self._client, existing, wanted)

    # Reports

    async def _report(self, facts: NodeFacts) -> bool:
        """Tell the API server of the node if there is something to tell. Returns whether it knows all now."""
        base = self._base()
        for attempt in range(TRIES):
            try:
                if base is None:
                    base = await self._heartbeat.get(NODES, self._settings.name)
                    self._learn(base)
                await self._report_on(base, self._facts() if attempt else facts)
            except ApiError as error:
                log.warning("Error updating node status, will retry", error=str(error))
                if _is_gone(error):
                    return False
                if attempt > 0 and connection_may_be_bad(error):
                    self._heartbeat.drop_connections()
                base = None
            else:
                return True
        log.error("Unable to update node status", node=self._settings.name)
        return False

    async def _report_on(self, original: Node, facts: NodeFacts) -> None:
        following = next_node(original, facts, self._settings, self._clock.now())
        self._events.record(following)
        changed = has_changed(original, following.node, self._accepted)
        if not changed and not self._reports.due():
            self.reported.send(original.status.volumes_in_use)
            return
        node = await self._patch(self._heartbeat, original, following.node)
        self._reports.reported(changed=changed)
        if changed:
            self._change_reported_at = trio.current_time()
        self._accepted = Accepted(following.node.status, node.status)
        if is_ready(node.status.conditions) and not is_ready(original.status.conditions):
            log.info("the node is ready", node=self._settings.name)
            self.startup.ready(self._clock.now())
        self.reported.send(node.status.volumes_in_use)

    async def _patch(self, client: ApiClient, old: Node, new: Node) -> Node:
        node = await client.patch(
            NODES,
            self._settings.name,
            "",
            PatchType.STRATEGIC,
            node_patch(old, new),
            subresource="status",
            urgency=Urgency.URGENT,
        )
        self._learn(node)
        return node

    def _base(self) -> Node | None:
        """The node at hand, None when it is better to ask: what is watched is gone, or there is nothing yet."""
        watched = self._store.get(self._settings.name)
        if watched is None and self._known is not None and self._store.synced:
            newer = version_number(self._store.resource_version) < _version(self._known)
            return self._known if newer else None
        return max((node for node in (watched, self._known) if node is not None), key=_version, default=None)

    def _learn(self, node: Node) -> None:
        if self._known is None or _version(node) >= _version(self._known):
            self._known = node
        self._record(node)

    def _node_changed(self, _old: Node | None, new: Node | None) -> None:
        if new is None or new.metadata.name != self._settings.name:
            return
        self._record(new)
        if self.registered and (self._known is None or _version(new) > _version(self._known)):
            self.changed_soon()  # Somebody else wrote it: what we know better is put right.

    def _record(self, node: Node) -> None:
        self._events.record_schedulable(node)
        if self._pod_cidrs is not None:
            self._pod_cidrs.update(node.spec.pod_cidrs)

    def _reachability_changed(self, reachable: bool) -> None:
        if reachable:
            self.changed_soon()


def _is_gone(error: ApiError) -> bool:
    return isinstance(error, ApiStatusError) and error.not_found


def _version(node: Node) -> int:
    return version_number(node.metadata.resource_version)
