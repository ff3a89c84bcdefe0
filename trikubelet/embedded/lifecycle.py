"""What happens to sandboxes and containers: starting, stopping and removing them, and hearing how they end.

This is the owner of the inventory. The keeper says what runs and what ended (`connected`, `event`); the calls of the
runtime service change the rest. Every change of a record is followed by its CRI event.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.broadcast import Inbox
from trikubelet.embedded import messages
from trikubelet.embedded.attachments import Attachments
from trikubelet.embedded.commands import Commands
from trikubelet.embedded.event_stream import ContainerEvents
from trikubelet.embedded.inventory import Inventory
from trikubelet.embedded.keeper_client import KeeperAbilities, KeeperClient, KeeperError, KeeperLostError
from trikubelet.embedded.network.model import NetworkError
from trikubelet.embedded.pod_networks import PodNetworks
from trikubelet.embedded.records import (
    ContainerRecord,
    Exit,
    NetworkPhase,
    Phase,
    RecordStore,
    SandboxNetwork,
    SandboxRecord,
    delete_tree,
)
from trikubelet.embedded.sandbox_files import write_sandbox_files
from trikubelet.linux.relabel import relabel
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.clock import WallClock
    from trikubelet.embedded.network.choice import NetworkOptions
    from trikubelet.embedded.network.model import PodNetwork

log = get_logger("embedded")

_KILLED_WITHIN: Final = 10.0
_CLEANUP_DEADLINE: Final = 60.0
_FAILURES: Final = (NetworkError, KeeperError, KeeperLostError, OSError, trio.TooSlowError)


class WrongStateError(Exception):
    """A container or sandbox that is not in the state that a call needs."""


class NotEndedError(Exception):
    """A container whose processes did not end although they were killed (uninterruptible sleep in the kernel)."""

    def __init__(self, container_id: str) -> None:
        super().__init__(
            f"container {container_id}: its processes were killed, but have not ended after {_KILLED_WITHIN:g} s"
        )
        self.container_id = container_id


class StartFailedError(Exception):
    """A container that could not become what it was asked to be; the text is the exact reason."""


class Lifecycle:
    """Sandboxes and containers of one runtime folder."""

    def __init__(
        self,
        store: RecordStore,
        *,
        clock: WallClock,
        address: Callable[[], str],
        networks: Mapping[str, PodNetwork],
        network_options: NetworkOptions,
    ) -> None:
        self.inventory = Inventory()
        self.events = ContainerEvents()
        self.abilities: KeeperAbilities | None = None
        self.keeper = KeeperClient(store.root, connected=self.connected, event=self.event)
        self.commands = Commands(self.keeper)
        self.attachments = Attachments(self.keeper)
        self.networks = PodNetworks(self.keeper, networks, network_options, store)
        self.untidy = Inbox[None]()
        """Gets news when there is something to tidy up."""
        self._held: set[str] = set()
        """Sandboxes whose namespaces the keeper has."""
        self._store = store
        self._clock = clock
        self._address = address
        self._unwanted: list[tuple[str, dict[str, Any]]] = []
        self._deletions = trio.CapacityLimiter(2)
        self._relabelling = trio.CapacityLimiter(4)
        self._load()

    def now(self) -> int:
        """Nanoseconds since the epoch, for the wire."""
        return int(self._clock.now().timestamp() * 1_000_000) * 1000

    def _load(self) -> None:
        for sandbox in self._store.load_sandboxes():
            self.inventory.sandboxes[sandbox.id] = sandbox
        for container in self._store.load_containers():
            if container.sandbox_id in self.inventory.sandboxes:
                self.inventory.containers[container.id] = container
            else:
                self._store.set_aside(self._store.container_folder(container.id))

    # -- what the keeper says ----------------------------------------------------------------------------------------

    def connected(self, abilities: KeeperAbilities, listing: dict[str, Any]) -> None:
        """A keeper is there: its list is the truth about what runs."""
        self.abilities = abilities
        self.commands.keeper_lost()
        held = {entry["container"]: entry for entry in listing["containers"]}
        for record in self.inventory.containers.values():
            self._settle(record, held.pop(record.id, None))
        self._held = sandboxes = set(listing["sandboxes"])
        for sandbox_id in listing.get("lost_networks", ()):  # absent in what an older keeper says
            self._network_lost(sandbox_id)
        for sandbox in self.inventory.sandboxes.values():
            sandbox.ready = sandbox.id in sandboxes and sandbox.may_be_ready
        self._unwanted = [("kill", {"container": container}) for container in held]
        for unknown in sandboxes - self.inventory.sandboxes.keys():
            self._unwanted.append(("sandbox_stop", {"sandbox": unknown}))
        self.untidy.put(None)

    def _settle(self, record: ContainerRecord, entry: dict[str, Any] | None) -> None:
        """Bring a record to what the keeper, or what an earlier one wrote down, says."""
        if record.phase is Phase.EXITED:
            return
        if entry is not None and entry["exit"] is None:
            self._running(record, entry)
            return
        outcome = Exit.from_json(entry["exit"]) if entry is not None else self._store.recorded_exit(record.id)
        if outcome is None and self._store.was_started(record.id):
            outcome = Exit(255, "Unknown", "the record of its end was lost", record.started_at, self.now())
        if outcome is not None:
            record.set_exit(outcome)
            self._emit(record, v1.ContainerEventType.CONTAINER_STOPPED_EVENT)

    def _running(self, record: ContainerRecord, entry: dict[str, Any]) -> None:
        record.phase = Phase.RUNNING
        record.pid = entry["pid"]
        record.started_at = entry["started_at"]
        record.user = entry["user"]
        record.cgroup = entry["cgroup"]

    def event(self, message: dict[str, Any]) -> None:
        """Something ended."""
        if message["event"] == "exec_ended":
            self.commands.ended(message)
            return
        if message["event"] == "network_lost":
            self._network_lost(message["sandbox"])
            return
        record = self.inventory.containers.get(message["container"])
        if record is not None and record.phase is not Phase.EXITED:
            if record.phase is Phase.CREATED:
                # It ended before the task that started it could run again.
                self._running(record, message)
                self._emit(record, v1.ContainerEventType.CONTAINER_STARTED_EVENT)
            record.set_exit(Exit.from_json(message["exit"]))
            self._emit(record, v1.ContainerEventType.CONTAINER_STOPPED_EVENT)

    async def tidy(self) -> None:
        """End what no record knows, take down networks of pods that are gone, delete what earlier removals left.

        Raises OSError where that cannot be listed.
        """
        unwanted, self._unwanted = self._unwanted, []
        for operation, fields in unwanted:
            log.warning("the keeper holds something without a record", operation=operation, **fields)
            try:
                await self.keeper.request(operation, **fields)
            except (KeeperError, KeeperLostError, trio.TooSlowError) as error:
                log.warning("cannot end it", error=str(error) or "no answer", **fields)
        for record in list(self.inventory.sandboxes.values()):
            await self._release_if_lost(record)
        await self.reconcile_networks()
        for folder in self._store.leftovers():
            await trio.to_thread.run_sync(delete_tree, folder, limiter=self._deletions)

    # -- sandboxes ---------------------------------------------------------------------------------------------------

    def has_networks(self) -> bool:
        """Whether a pod has, or may still have something of, a network of its own."""
        return any(record.holds_network for record in self.inventory.sandboxes.values())

    async def reconcile_networks(self) -> None:
        """Bring the machine to what the pods' networks need. What cannot be had is logged, and tried again.

        A sandbox whose network is gone for good is not ready any more, so that its pod gets another one.
        """
        choice = await self.networks.choose(self.abilities)
        for sandbox_id in await self.networks.reconcile(self.inventory.sandboxes.values(), choice):
            self._network_lost(sandbox_id)

    def _network_lost(self, sandbox_id: str) -> None:
        """Nothing but another sandbox gives the pod a network again: what is left of this one is to be taken down."""
        record = self.inventory.sandboxes.get(sandbox_id)
        if record is None or record.network is None or not record.holds_network:
            return
        record.network.phase = NetworkPhase.DETACHING
        if record.ready:
            log.warning("the network of a pod is gone", sandbox=sandbox_id)
            record.ready = False
            self._emit_sandbox(record, v1.ContainerEventType.CONTAINER_STOPPED_EVENT)

    async def run_sandbox(self, record: SandboxRecord, request: dict[str, Any]) -> None:
        """Make the pod's namespaces and its network, and record it.

        Raises NetworkError, KeeperError, KeeperLostError. Then, and when it is cancelled, all of it is taken down; what
        could not be stays in the records as a sandbox that is not ready.
        """
        async with record.changing:
            self.inventory.sandboxes[record.id] = record
            try:
                if record.first_container:
                    request = {**request, "first": self._first_container(record)}
                await self._make_namespaces(record, request)
                if record.network is not None:
                    await self._attach(record, record.network)
                if record.id not in self._held:
                    raise KeeperLostError("sandbox_start")
            except BaseException:
                await self._undo(record)
                raise
            record.ready = True
        self._emit_sandbox(record, v1.ContainerEventType.CONTAINER_CREATED_EVENT)
        self._emit_sandbox(record, v1.ContainerEventType.CONTAINER_STARTED_EVENT)

    async def _make_namespaces(self, record: SandboxRecord, request: dict[str, Any]) -> None:
        """Have the keeper make them, and write down meanwhile what is to be: what of it is not, is taken down again."""
        try:
            with trio.CancelScope(shield=True):  # bounded: a request has a deadline
                await self.keeper.request("sandbox_start", meanwhile=lambda: self._save_sandbox(record), **request)
        except BaseException:
            if record.network is not None:
                record.network.phase = NetworkPhase.DETACHED
            raise
        self._held.add(record.id)

    def _save_sandbox(self, record: SandboxRecord) -> None:
        """Before its network is attached. Raises OSError."""
        write_sandbox_files(
            self._store.sandbox_folder(record.id), record.config, own_network=record.network is not None
        )
        if record.network is not None:
            record.network.phase = NetworkPhase.ATTACHING
        self._store.save_network(record)  # first: a record without it is a pod on the machine's network
        self._store.save_sandbox(record)

    def _first_container(self, record: SandboxRecord) -> dict[str, str]:
        """What the keeper needs for a process that is ready to become it, whose folder is made here. Raises OSError."""
        folder = self._store.container_folder(record.first_container)
        folder.mkdir()
        parent = record.config.linux.cgroup_parent
        return {"container": record.first_container, "directory": str(folder), "cgroup_parent": parent}

    async def _attach(self, record: SandboxRecord, network: SandboxNetwork) -> None:
        network.attachment = await self.networks.attach(network, self.inventory.sandboxes.values())
        if network.phase is not NetworkPhase.ATTACHING:
            raise NetworkError("it was lost as soon as it was made")
        network.phase = NetworkPhase.ATTACHED
        self._store.save_network(record)

    async def _undo(self, record: SandboxRecord) -> None:
        """Take down what was made of a sandbox, and forget it if that worked."""
        with trio.move_on_after(_CLEANUP_DEADLINE, shield=True) as scope:
            try:
                await self._release(record)
            except _FAILURES as error:
                log.error("a pod's network is left for later", sandbox=record.id, error=str(error) or "too slow")
                return
        if not scope.cancelled_caught:
            del self.inventory.sandboxes[record.id]
            self._store.set_aside(self._store.sandbox_folder(record.id))
            if record.first_container:
                self._store.set_aside(self._store.container_folder(record.first_container))
            self.untidy.put(None)

    async def _release(self, record: SandboxRecord) -> None:
        """Detach the pod's network and let its namespaces go; idempotent. Whoever calls holds `record.changing`."""
        network = record.network
        if network is not None and network.phase is not NetworkPhase.DETACHED:
            self._note(record, network, NetworkPhase.DETACHING)
            await self.networks.detach(network, held=record.id in self._held)
            self._note(record, network, NetworkPhase.DETACHED)
        await self.keeper.request("sandbox_stop", sandbox=record.id)
        self._held.discard(record.id)

    def _note(self, record: SandboxRecord, network: SandboxNetwork, phase: NetworkPhase) -> None:
        """How far it is taken down. A full disk does not hold it up: detaching it again does no harm."""
        network.phase = phase
        try:
            self._store.save_network(record)
        except OSError as error:
            log.warning("cannot write how far a pod's network is", sandbox=record.id, error=str(error))

    async def _release_if_lost(self, record: SandboxRecord) -> None:
        """Of a sandbox that was half made or half stopped, or whose namespaces went with their keeper."""
        async with record.changing:
            if record.ready or not record.holds_network or record.id not in self.inventory.sandboxes:
                return
            log.warning("taking down the network of a pod that is gone", sandbox=record.id)
            try:
                await self._release(record)
            except _FAILURES as error:
                log.error("cannot take it down", sandbox=record.id, error=str(error) or "too slow")

    async def stop_sandbox(self, record: SandboxRecord) -> None:
        """Kill what runs in it, take its network down, and let its namespaces go.

        Raises NotEndedError, NetworkError, KeeperError, KeeperLostError.
        """
        failures: list[NotEndedError | KeeperError | KeeperLostError | trio.TooSlowError] = []

        async def kill(container: ContainerRecord) -> None:
            try:
                await self.stop_container(container, 0.0)
            except (NotEndedError, KeeperError, KeeperLostError, trio.TooSlowError) as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for container in self.inventory.containers_of(record.id):
                nursery.start_soon(kill, container)
        if failures:
            raise failures[0]
        async with record.changing:
            try:
                await self._release(record)
            finally:
                was_ready, record.ready = record.ready, record.id in self._held and record.may_be_ready
        if was_ready and not record.ready:
            self._emit_sandbox(record, v1.ContainerEventType.CONTAINER_STOPPED_EVENT)

    async def remove_sandbox(self, record: SandboxRecord) -> None:
        """Stop it, and delete it with its containers."""
        await self.stop_sandbox(record)
        for container in self.inventory.containers_of(record.id):
            await self.remove_container(container)
        if self.inventory.sandboxes.pop(record.id, None) is None:
            return
        self._emit_sandbox(record, v1.ContainerEventType.CONTAINER_DELETED_EVENT)
        await self._delete(self._store.sandbox_folder(record.id))
        if record.first_container:
            await self._delete(self._store.container_folder(record.first_container))

    # -- containers --------------------------------------------------------------------------------------------------

    async def create_container(self, record: ContainerRecord) -> None:
        """Have the keeper make it ready, and record it meanwhile. Raises OSError, WrongStateError."""
        self.inventory.containers[record.id] = record
        sandbox = self.inventory.sandboxes[record.sandbox_id]
        if sandbox.first_container == record.id:
            sandbox.first_container = ""
        try:
            self._store.container_folder(record.id).mkdir(exist_ok=True)
            await self._relabel(record)
            if self.abilities is not None and self.abilities.creates:
                await self.keeper.tell("create", spec=record.spec)
            if record.id not in self.inventory.containers:
                raise WrongStateError(f"sandbox {record.sandbox_id} has been removed")
            self._store.save_container(record)
        except BaseException:
            self.inventory.containers.pop(record.id, None)
            with trio.move_on_after(_KILLED_WITHIN, shield=True), suppress(KeeperError, KeeperLostError):
                await self.keeper.request("forget", container=record.id)
            self._store.set_aside(self._store.container_folder(record.id))
            self.untidy.put(None)
            raise
        self._emit(record, v1.ContainerEventType.CONTAINER_CREATED_EVENT)

    async def _relabel(self, record: ContainerRecord) -> None:
        """Give the files of volumes that ask for it the container's SELinux label. Cancelled, it ends soon; what was
        done is not done again. Raises OSError."""
        labels: dict[str, str] = record.spec.get("selinux") or {}
        paths = [Path(mount["source"]) for mount in record.spec["mounts"] if labels and mount.get("relabel")]

        def work() -> None:
            for path in paths:
                if not path.exists():  # as the keeper would make it
                    path.mkdir(parents=True, exist_ok=True)
                relabel(path, labels["files"], trio.from_thread.check_cancelled)

        if paths:
            await trio.to_thread.run_sync(work, limiter=self._relabelling, abandon_on_cancel=True)

    async def start_container(self, record: ContainerRecord) -> None:
        """Start it. Raises WrongStateError, StartFailedError, KeeperLostError.

        Once begun it is not cancelled: no container may run unrecorded.
        """
        async with record.changing:
            if record.phase is not Phase.CREATED:
                raise WrongStateError(f"container {record.id} is {record.phase.value}, expected created")
            if not self.inventory.sandboxes[record.sandbox_id].ready:
                raise WrongStateError(f"sandbox {record.sandbox_id} is not ready")
            if record.spec["log_path"]:
                Path(record.spec["log_path"]).parent.mkdir(parents=True, exist_ok=True)
            with trio.CancelScope(shield=True):  # bounded: a request has a deadline
                try:
                    entry = await self.keeper.request("start", spec=record.spec)
                except KeeperError as error:
                    now = self.now()
                    record.set_exit(
                        self._store.recorded_exit(record.id) or Exit(128, "StartError", str(error), now, now)
                    )
                    self._emit(record, v1.ContainerEventType.CONTAINER_STOPPED_EVENT)
                    raise StartFailedError(f"unable to start container process: {error}") from None
            if record.phase is Phase.CREATED:
                self._running(record, entry)
                self._emit(record, v1.ContainerEventType.CONTAINER_STARTED_EVENT)

    async def stop_container(self, record: ContainerRecord, timeout: float) -> None:
        """Ask it to end, and kill it after `timeout` seconds (0: at once). Returns when nothing of it is left.

        Several calls may wait at once, each with its own timeout; the container is asked once. Cancelled, it stays
        asked, but is not killed. One that is being started is asked as soon as it runs. Raises NotEndedError,
        KeeperLostError.
        """
        if record.phase is Phase.CREATED:
            async with record.changing:
                pass
        await self._stop_started(record, timeout)

    async def _stop_started(self, record: ContainerRecord, timeout: float) -> None:
        """As `stop_container`, but a start that is under way is not waited for."""
        if record.phase is not Phase.RUNNING:
            return
        if timeout > 0:
            if not record.stop_signalled:
                record.stop_signalled = True
                await self._notify_keeper(record, "signal", signal=record.stop_signal)
            with trio.move_on_after(timeout):
                await record.exited.wait()
                return
        await self._notify_keeper(record, "kill")
        with trio.move_on_after(_KILLED_WITHIN):
            await record.exited.wait()
            return
        raise NotEndedError(record.id)

    async def remove_container(self, record: ContainerRecord) -> None:
        """Kill it if it runs, and delete it. Raises NotEndedError, KeeperLostError."""
        async with record.changing:
            if self.inventory.containers.get(record.id) is not record:
                return
            await self._stop_started(record, 0.0)
            try:
                await self.keeper.request("forget", container=record.id)
            except KeeperError as error:
                raise WrongStateError(f"container {record.id} cannot be removed: {error}") from None
            self._emit(record, v1.ContainerEventType.CONTAINER_DELETED_EVENT, without=record)
            del self.inventory.containers[record.id]
            await self._delete(self._store.container_folder(record.id))

    async def _notify_keeper(self, record: ContainerRecord, operation: str, **fields: Any) -> None:
        try:
            await self.keeper.request(operation, container=record.id, **fields)
        except KeeperError as error:
            if error.kind not in ("not_running", "unknown"):
                raise

    async def _delete(self, folder: Path) -> None:
        """Set aside at once; the deletion may take its time, and the next start finishes an interrupted one."""
        aside = self._store.set_aside(folder)
        if aside is not None:
            with trio.move_on_after(_CLEANUP_DEADLINE, shield=True):
                await trio.to_thread.run_sync(delete_tree, aside, limiter=self._deletions)

    # -- events ------------------------------------------------------------------------------------------------------

    def _emit(
        self, record: ContainerRecord, kind: v1.ContainerEventType, without: ContainerRecord | None = None
    ) -> None:
        sandbox = self.inventory.sandboxes.get(record.sandbox_id)
        if sandbox is not None:
            self._publish(record.id, kind, sandbox, without)

    def _emit_sandbox(self, sandbox: SandboxRecord, kind: v1.ContainerEventType) -> None:
        self._publish(sandbox.id, kind, sandbox, None)

    def _publish(
        self, subject: str, kind: v1.ContainerEventType, sandbox: SandboxRecord, without: ContainerRecord | None
    ) -> None:
        if not self.events.wanted:
            return
        containers = [record for record in self.inventory.containers_of(sandbox.id) if record is not without]
        self.events.publish(
            v1.ContainerEventResponse(
                container_id=subject,
                container_event_type=kind,
                created_at=self.now(),
                pod_sandbox_status=messages.sandbox_status(sandbox, self._address()),
                containers_statuses=[messages.container_status(record) for record in containers],
            )
        )
