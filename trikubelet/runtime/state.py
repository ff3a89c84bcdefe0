"""Whether the container runtime and its network are ready (kubelet: `updateRuntimeUp`, `runtimeState`).

Asked every five seconds, and every second while there is a problem. A pod that needs the network waits for it. While
the runtime itself is not ready, or was not heard of for half a minute, or PLEG is not healthy, no pod is synced at all
and the node is not ready. When a runtime that was away answers again, pods that failed meanwhile are told not to wait
longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import betterproto
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.container.abilities import HandlerAbilities, RuntimeAbilities
from trikubelet.formats.aggregate import aggregate
from trikubelet.formats.values import frozen
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_typing import TaskStatus

    from trikubelet.rpc.cri import v1
    from trikubelet.rpc.cri.client import RuntimeClient

log = get_logger("runtime")

PERIOD: Final = 5.0
PERIOD_OF_TROUBLE: Final = 1.0
"""Seconds between questions."""
DOWN_AFTER: Final = 30.0
"""Seconds without an answer after which the runtime counts as down (kubelet: `maxWaitForContainerRuntime`)."""
RUNTIME_READY: Final = "RuntimeReady"
NETWORK_READY: Final = "NetworkReady"


@frozen
class RuntimeConditions:
    """Problems in words; None where there is none."""

    runtime_problem: str | None = "container runtime status check may not have completed yet"
    network_problem: str | None = "container runtime status check may not have completed yet"


class RuntimeState:
    """Keeps the newest conditions and abilities."""

    def __init__(self, client: RuntimeClient, changed: Broadcast[None] | None = None) -> None:
        """`changed` is sent to when problems, the network's or the runtime's abilities have changed."""
        self._client = client
        self.changed = Broadcast() if changed is None else changed
        self.recovered: Broadcast[None] = Broadcast()
        """A runtime that had gone answers again, or lists its pods again: what failed meanwhile may be tried."""
        self.conditions = RuntimeConditions()
        self.abilities = RuntimeAbilities()
        self._answered_at: float | None = None
        self._not_ready: str | None = None
        self._told: tuple[object, ...] = ()
        self._health_checks: dict[str, Callable[[], str | None]] = {}

    @property
    def answered(self) -> bool:
        """Whether it ever did: before, nothing is known of its abilities."""
        return self._answered_at is not None

    def add_health_check(self, name: str, check: Callable[[], str | None]) -> None:
        """`check` says what is wrong with something that pods cannot be synced without, or None."""
        self._health_checks[name] = check

    def problems(self) -> tuple[str, ...]:
        """Why no pod can be synced now and the node is not ready, each in the kubelet's words. Empty: nothing is
        wrong. What only the network lacks is not among them."""
        problems = []
        if self._answered_at is None:
            problems.append("container runtime status check may not have completed yet")
        elif trio.current_time() - self._answered_at > DOWN_AFTER:
            problems.append("container runtime is down")
        for name, check in self._health_checks.items():
            if (problem := check()) is not None:
                problems.append(f"{name} is not healthy: {problem}")
        if self._not_ready is not None:
            problems.append(f"container runtime not ready: {self._not_ready}")
        return tuple(problems)

    def errors(self) -> str | None:
        """All `problems` as one text, None where there is none."""
        problems = self.problems()
        return aggregate(problems) if problems else None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask until cancelled; started after the first answer or failure."""
        await self._update()
        self._tell_changes()
        task_status.started()
        while True:
            await trio.sleep(PERIOD if self.conditions.runtime_problem is None else PERIOD_OF_TROUBLE)
            await self._update()
            self._tell_changes()

    def _tell_changes(self) -> None:
        state = (self.problems(), self.conditions.network_problem, self.abilities)
        if state != self._told:
            self._told = state
            self.changed.send(None)

    async def _update(self) -> None:
        before = self.conditions
        try:
            reply = await self._client.status()
            abilities, problems = _abilities(reply), _problems(reply)
        except Exception as error:  # noqa: BLE001 - whatever it is, the runtime did not answer as it should
            self.conditions = attrs.evolve(before, runtime_problem=f"container runtime is down: {error}")
        else:
            self.abilities = abilities
            gone = self.answered and before.runtime_problem is not None
            self._answered_at = trio.current_time()
            self._not_ready = problems.get(RUNTIME_READY, "the runtime reports no RuntimeReady condition")
            self.conditions = RuntimeConditions(
                runtime_problem=self._not_ready,
                network_problem=_network_problem(problems.get(NETWORK_READY, f"no condition {NETWORK_READY}")),
            )
            if gone and self.conditions.runtime_problem is None:
                self.recovered.send(None)
        if self.conditions != before:
            log.info(
                "runtime conditions",
                runtime=self.conditions.runtime_problem or "ready",
                network=self.conditions.network_problem or "ready",
            )


def _problems(reply: v1.StatusResponse) -> dict[str, str | None]:
    """By the types of its conditions; None for one that holds."""
    return {condition.type: None if condition.status else _problem(condition) for condition in reply.status.conditions}


def _problem(condition: v1.RuntimeCondition) -> str:
    """In the kubelet's words (`RuntimeCondition.String`)."""
    return f"{condition.type}=false reason:{condition.reason} message:{condition.message}"


def _network_problem(problem: str | None) -> str | None:
    return None if problem is None else f"container runtime network not ready: {problem}"


def _abilities(reply: v1.StatusResponse) -> RuntimeAbilities:
    return RuntimeAbilities(
        handlers={
            handler.name: HandlerAbilities(
                recursive_read_only_mounts=handler.features.recursive_read_only_mounts,
                user_namespaces=handler.features.user_namespaces,
            )
            for handler in reply.runtime_handlers
        },
        supplemental_groups_policy=reply.features.supplemental_groups_policy,
        features_told=betterproto.serialized_on_wire(reply.features),
    )
