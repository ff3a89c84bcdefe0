"""What a pod waits for now, and since when: the answer of `trikubelet why`.

Everything is read from its owner at the moment of the question: the pod's phase, what goes on for it
(`telemetry.steps`), why its last sync failed, what its volumes wait for, how its pulls get on, whether the runtime and
the API server answer. Nothing is kept for it. The first cause is the true one: what would have to happen for the pod
to go on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.api.pod_kinds import is_static_pod
from trikubelet.api.timestamps import format_micro_time
from trikubelet.container.model import start_problem
from trikubelet.formats.values import frozen
from trikubelet.node.port_holder import is_listened_on
from trikubelet.pods.context import INSPECTION
from trikubelet.pods.journal import Kind, wall_time
from trikubelet.pods.phases import (
    Finished,
    Phase,
    Syncing,
    Terminated,
    Terminating,
    TerminationRequested,
    WaitingToStart,
)
from trikubelet.pods.syncer import RELEASE, VOLUMES
from trikubelet.runtime.results import CRASH_LOOP_BACK_OFF, CREATE_CONTAINER_CONFIG_ERROR, IMAGE_PULL_BACK_OFF
from trikubelet.telemetry.steps import TURN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Container, ContainerStatus, Pod, PodStatus
    from trikubelet.telemetry.steps import Step

SLOW_ANSWER: Final = 2.0
"""Seconds after which a call that needs no time of its own counts as one that is not answered."""
_TAKE_TIME: Final = frozenset({"StopContainer", "ExecSync", "GetContainerEvents", "CheckpointContainer"})
"""Calls of the runtime that last as long as what they ask for."""


@frozen
class Cause:
    """One thing that a pod waits for."""

    text: str
    since: float | None = None
    """Trio time."""
    until: float | None = None
    """Trio time at which it is over at the latest, as far as that is known."""


def causes(agent: Agent, uid: str) -> list[Cause]:
    """What the pod of this UID waits for, the true cause first. Empty when it waits for nothing."""
    phase = agent.workers.states.phase(uid)
    match phase:
        case None:
            return list(_before_its_life(agent, uid))
        case WaitingToStart():
            return list(_of_predecessor(agent, phase))
        case Syncing():
            return list(_of_sync(agent, uid, phase))
        case TerminationRequested() | Terminating() | Terminated():
            idle = Cause(f"its life to go on: it is {type(phase).__name__}", phase.ending.asked_at)
            return list(_of_end(agent, uid, phase)) or [idle]
        case Finished():
            return list(_of_object(agent, uid))


def first_cause(agent: Agent, uid: str) -> str:
    """The true cause in a line, with how long it has lasted and who asked for the end of a pod that ends."""
    return _first_line(agent, uid, causes(agent, uid))


def _first_line(agent: Agent, uid: str, known: list[Cause]) -> str:
    text = known[0].text if known else f"nothing: the pod is {_state(agent, uid)}"
    asked = asked_by(agent.workers.states.phase(uid))
    return f"{text}; asked by: {', then '.join(asked)}" if asked else text


def _state(agent: Agent, uid: str) -> str:
    change = agent.statuses.change(uid)
    if change is None:
        return "not reported yet"
    ready = any(one.type == "Ready" and one.status == "True" for one in change.status.conditions)
    return f"{change.status.phase} and ready" if ready else change.status.phase


def asked_by(phase: Phase | None) -> tuple[str, ...]:
    """Who asked for the end of a pod."""
    return () if isinstance(phase, WaitingToStart | Syncing | None) else phase.ending.asked_by


def explain(agent: Agent, namespace: str, name: str, pod: Pod | None) -> dict[str, Any] | None:
    """All of it as JSON values, for the newest pod of this name; None when nothing is known of such a pod.

    `uid`, `pod`, `phase` (a class of `pods.phases`; null before and after its life), `cause` (the first line), `waits`
    (each with `text`, and `since` and `until` as far as they are known), `askedBy`, `phases` (each with `phase`, `at`,
    `end`, and what the journal has of it), `runs` (the starts and ends of its containers, as in the journal),
    `manifest` (only while its file is broken, see `sources.file.ManifestState`: the pod is of the last good version).
    """
    named = agent.journal.find(f"{namespace}/{name}")
    uid = named[-1] if pod is None and named else "" if pod is None else pod.metadata.uid
    if not uid:
        return None
    phase = agent.workers.states.phase(uid)
    entries = agent.journal.entries(uid)
    waits = causes(agent, uid)
    return {
        "uid": uid,
        "pod": f"{namespace}/{name}",
        "phase": None if phase is None else type(phase).__name__,
        "cause": _first_line(agent, uid, waits),
        "waits": [_as_json(agent, cause) for cause in waits],
        "askedBy": list(asked_by(phase)),
        "phases": _phases(agent, [entry.as_json() for entry in entries if entry.kind is Kind.PHASE]),
        "runs": [entry.as_json() for entry in entries if entry.kind is Kind.CONTAINER],
    } | _broken_manifest(agent, uid)


def _broken_manifest(agent: Agent, uid: str) -> dict[str, Any]:
    for state in () if agent.files is None else agent.files.manifests_with_problems():
        if state.broken and any(pod.metadata.uid == uid for pod in state.pods):
            return {"manifest": state.as_json()}
    return {}


def _as_json(agent: Agent, cause: Cause) -> dict[str, Any]:
    times = {"since": cause.since, "until": cause.until}
    return {"text": cause.text} | {
        name: format_micro_time(wall_time(agent.clock, time)) for name, time in times.items() if time is not None
    }


def _phases(agent: Agent, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each phase once, with its length; the last one lasts until now. A pod that was rejected had none."""
    ends = [entry["at"] for entry in entries[1:]] + [format_micro_time(agent.clock.now())]
    return [
        {name: value for name, value in entry.items() if name not in ("n", "uid", "pod", "kind", "what")}
        | {"phase": entry["what"], "end": end}
        for entry, end in zip(entries, ends, strict=False)
    ]


# --- By phase --------------------------------------------------------------------------------------------------------


def _before_its_life(agent: Agent, uid: str) -> Iterator[Cause]:
    if (held := agent.admitting.why_held(uid)) is not None:
        yield Cause(f"admission: it waits for {held[0]}", held[1])
        return
    change = agent.statuses.change(uid)
    if change is not None and change.rejected:
        yield Cause(f"nothing: it was rejected with {change.status.reason}: {change.status.message}")
    elif agent.pods.pod_by_uid(uid) is None:
        yield Cause("nothing: the pod is gone")
    else:
        yield from _of_runtime(agent)
        yield Cause("the agent has not begun with it")


def _of_predecessor(agent: Agent, phase: WaitingToStart) -> Iterator[Cause]:
    """A static pod waits for the end of another one of its name."""
    name = phase.identity.full_name
    since = phase.identity.first_seen
    predecessor = agent.workers.states.started_static_pod(name)
    if predecessor is None:
        yield Cause("its turn among the static pods of its name", since)
        return
    yield Cause(f"the end of the pod that had its name before: {first_cause(agent, predecessor)}", since)


def _of_sync(agent: Agent, uid: str, phase: Syncing) -> Iterator[Cause]:
    now = trio.current_time()
    # Each look at a pod begins with one: it is worth a word only when it does not end.
    steps = tuple(
        step for step in agent.steps.of_pod(uid) if step.what != INSPECTION or now - step.since >= SLOW_ANSWER
    )
    yield from _of_steps(agent, uid, steps)
    change = agent.statuses.change(uid)
    status = None if change is None else change.status
    life = agent.workers.life(uid)
    if life is not None and life.in_flight is not None and not steps and now - life.begun_at >= SLOW_ANSWER:
        if (lost_at := _server_lost_at(agent)) is not None:
            yield Cause(f"the API server, which has not answered for {_ago(lost_at)}", lost_at)
        yield Cause(f"its sync to end, which has gone on for {_ago(life.begun_at)}", life.begun_at)
    if status is not None:
        yield from _of_taken_ports(agent, phase.active.pod, status)
    waiting = list(_of_containers(agent, phase.active.pod, status))
    yield from waiting
    if life is not None and life.problem and not steps and not waiting:
        yield Cause(f"another attempt{_due(life.look_again_at)}: {life.problem}", life.begun_at)
    if status is not None:
        yield from _of_readiness(phase.active.pod, status)


def _of_end(agent: Agent, uid: str, phase: TerminationRequested | Terminating | Terminated) -> Iterator[Cause]:
    life = agent.workers.life(uid)
    steps = agent.steps.of_pod(uid)
    yield from _of_steps(agent, uid, steps)
    if life is not None and life.problem and not steps:
        yield from _of_runtime(agent)
        waits = [_of_volume(wait.volume, wait.doing, wait.since, wait.problem) for wait in agent.volumes.waits(uid)]
        yield from waits
        yield Cause(f"another attempt to end it{_due(life.look_again_at)}: {life.problem}", life.begun_at)
    if isinstance(phase, TerminationRequested) and phase.in_flight:
        yield Cause("the sync in flight to be called off", phase.ending.asked_at)


def _of_object(agent: Agent, uid: str) -> Iterator[Cause]:
    """It has ended, and all that it held is released: its object may still be there."""
    pod = agent.pods.pod_by_uid(uid)
    if agent.cluster is None or pod is None or is_static_pod(pod):
        change = agent.statuses.change(uid)
        reason = "" if change is None or not change.status.reason else f": {change.status.reason}"
        yield Cause(f"nothing: it has ended{reason}")
        return
    if (lost_at := _server_lost_at(agent)) is not None:
        yield Cause("the API server, which does not answer: that the pod has ended cannot be told", lost_at)
    elif pod.metadata.deletion_timestamp is None:
        yield Cause("nothing: it has ended, and nobody has deleted its object")
    elif finalizers := pod.metadata.finalizers:
        names = ", ".join(f"`{name}`" for name in finalizers)
        yield Cause(f"finalizers, which keep its object: {names}")
    else:
        yield Cause("the deletion of its object at the API server")


# --- By what is missing ----------------------------------------------------------------------------------------------


def _of_steps(agent: Agent, uid: str, steps: tuple[Step, ...]) -> Iterator[Cause]:
    """What goes on. Of what ends in time by itself the one that ends last is the true cause."""
    within = [step for step in steps if step.what != TURN]
    for step in sorted(within or steps, key=lambda step: (step.what == "turn to end", step.since)):
        yield from _of_step(agent, uid, step)


def _of_step(agent: Agent, uid: str, step: Step) -> Iterator[Cause]:
    lasts = trio.current_time() - step.since
    what = step.what + (f" of `{step.container}`" if step.container else "")
    if step.deadline is not None:
        yield _of_grace(agent, step, what)
    elif step.what == VOLUMES:
        yield from _of_volumes(agent, uid, step)
    elif step.what == RELEASE:
        waits = agent.volumes.waits(uid)
        yield from (_of_volume(wait.volume, wait.doing, wait.since, wait.problem) for wait in waits)
        yield Cause(f"release of what it held ({step.subject}): {_seconds(lasts)}", step.since)
    elif step.what == INSPECTION:
        yield from _of_runtime(agent)
        yield Cause(f"{what}: {_seconds(lasts)}", step.since)
    elif step.what == "PullImage":
        yield Cause(f"{what}: image {step.subject}, {_seconds(lasts)}{_progress(agent, step)}", step.since)
    elif step.what == "turn to pull":
        yield Cause(f"{what}: other images are pulled before {step.subject}, {_seconds(lasts)}", step.since)
    elif step.what.endswith(" hook"):
        yield Cause(f"{what}: {_seconds(lasts)}", step.since)
    elif step.what == TURN:
        yield Cause(f"{what}: calls for other pods come first, {_seconds(lasts)}", step.since)
    else:
        unanswered = ": the runtime has not answered" if lasts >= SLOW_ANSWER else ""
        yield Cause(f"{what}: {_seconds(lasts)}{unanswered}", step.since)


def _of_grace(agent: Agent, step: Step, what: str) -> Cause:
    """Something of the end of a container, which has its grace."""
    assert step.deadline is not None
    now, deadline = trio.current_time(), step.deadline()
    reason = f"; {step.subject}" if step.subject else ""
    lasts, grace = now - step.since, max(deadline - step.since, 0.0)
    if now <= deadline:
        return Cause(f"{what}: {lasts:.0f} of {grace:.0f} s of grace{reason}", step.since, deadline)
    over = f"{what}: {_seconds(lasts)}, {_seconds(now - deadline)} longer than its grace"
    if step.what == "StopContainer" and now - deadline >= SLOW_ANSWER:
        over += ": the runtime has not answered"
        if (problem := agent.runtime_state.conditions.runtime_problem) is not None:
            over += f" ({problem})"
    return Cause(over + reason, step.since, deadline)


def _of_volumes(agent: Agent, uid: str, step: Step) -> Iterator[Cause]:
    lost_at = _server_lost_at(agent)
    waits = agent.volumes.waits(uid)
    if lost_at is not None and waits:
        names = ", ".join(f"`{wait.volume}`" for wait in waits)
        yield Cause(
            f"the API server, which has not answered for {_ago(lost_at)}: volumes {names} are made of it", lost_at
        )
    for wait in waits:
        yield _of_volume(wait.volume, wait.doing, wait.since, wait.problem)
    yield Cause(f"{step.what}: {_ago(step.since)}", step.since)


def _server_lost_at(agent: Agent) -> float | None:
    """Since when the API server does not answer; None when it does, or there is none."""
    return None if agent.cluster is None else agent.cluster.client.health.lost_at


def _of_volume(name: str, doing: str, since: float | None, problem: str) -> Cause:
    text = f"volume `{name}`"
    if doing and since is not None:
        text += f": {doing} for {_ago(since)}"
    elif not problem:
        text += " is not there yet"
    return Cause(f"{text}: {problem}" if problem else text, since)


def _of_runtime(agent: Agent) -> Iterator[Cause]:
    """A runtime that does not answer holds up everything."""
    now = trio.current_time()
    problem = agent.runtime_state.conditions.runtime_problem
    for rpc, began in agent.runtime_client.metrics.under_way:
        if rpc not in _TAKE_TIME and now - began >= SLOW_ANSWER:
            yield Cause(f"the runtime, which has not answered {rpc} for {_seconds(now - began)}", began)
            return
    if problem is not None:
        yield Cause(f"the runtime: {problem}")


def _of_containers(agent: Agent, pod: Pod, status: PodStatus | None) -> Iterator[Cause]:
    """Containers that could not be started."""
    if status is None:
        return
    uid = pod.metadata.uid
    life = agent.workers.life(uid)
    next_look = math.inf if life is None else life.look_again_at
    reasons, ends = agent.runtime.waiting_reasons(uid), agent.runtime.back_off_ends(pod)
    for container in (*status.init_container_statuses, *status.container_statuses):
        if container.name not in reasons or container.state.running is not None:
            continue
        reason, message = reasons[container.name]
        last_end = _last_end(container)
        # That it backs off is said by the reason: what it backs off from is what counts.
        if reason == IMAGE_PULL_BACK_OFF:
            message = message.partition('": ')[2].removeprefix("ErrImagePull: ") or message
        told = [last_end] if last_end and reason == CRASH_LOOP_BACK_OFF else [message, last_end]
        due = _start_due(next_look, ends.get(container.name))
        text = f"{reason} of `{container.name}`{_due(due)}: {', '.join(filter(None, told))}"
        yield Cause(text, until=None if math.isinf(due) else due)
        if reason == CREATE_CONTAINER_CONFIG_ERROR and (lost_at := _server_lost_at(agent)) is not None:
            yield Cause(f"the API server, which has not answered for {_ago(lost_at)} and may know more", lost_at)


def _of_taken_ports(agent: Agent, pod: Pod, status: PodStatus) -> Iterator[Cause]:
    """Ports that containers in a back-off declare, where the pod shares the machine's network and they are taken."""
    if not _shares_machine_network(status):
        return
    reasons = agent.runtime.waiting_reasons(pod.metadata.uid)
    for container in pod.spec.containers:
        if reasons.get(container.name, ("",))[0] != CRASH_LOOP_BACK_OFF:
            continue
        for number in _tcp_ports(container):
            if is_listened_on(number):
                holder = _pod_on_port(agent, pod, number) or "another process"
                yield Cause(
                    f"port {number} of `{container.name}`: {holder} has it, and both share the machine's network"
                )


def _pod_on_port(agent: Agent, pod: Pod, number: int) -> str:
    """Another pod that runs on the machine's network and declares the port; empty if there is none."""
    for other in agent.pods.pods():
        uid = other.metadata.uid
        status = agent.statuses.get_pod_status(uid)
        if uid == pod.metadata.uid or status is None or not _shares_machine_network(status):
            continue
        if agent.pleg.cache.runs(uid) and any(number in _tcp_ports(container) for container in other.spec.containers):
            return f"pod {other.metadata.namespace}/{other.metadata.name}"
    return ""


def _shares_machine_network(status: PodStatus) -> bool:
    return bool(status.pod_ip) and status.pod_ip == status.host_ip


def _tcp_ports(container: Container) -> list[int]:
    return [port.container_port for port in container.ports if port.protocol in ("", "TCP")]


def _start_due(next_look: float, back_off_end: float | None) -> float:
    """When a container is started again: at a look at its pod, and at none before its back-off ends.

    There are looks in between, after a minute at most. None is due while one goes on (infinity).
    """
    if back_off_end is None:
        return next_look
    return back_off_end if math.isinf(next_look) else max(next_look, back_off_end)


def _last_end(container: ContainerStatus) -> str:
    ended = container.state.terminated or container.last_state.terminated
    if ended is None:
        return ""
    text = f"its last run ended with exit code {ended.exit_code}" + (f" ({ended.reason})" if ended.reason else "")
    problem = start_problem(ended.reason, ended.message)
    return f"{text}: {problem}" if problem else text


def _of_readiness(pod: Pod, status: PodStatus) -> Iterator[Cause]:
    """Containers that run and are not ready."""
    probed = {one.name: one for one in (*pod.spec.init_containers, *pod.spec.containers)}
    for container in (*status.init_container_statuses, *status.container_statuses):
        if container.ready or container.state.running is None or (spec := probed.get(container.name)) is None:
            continue
        if spec.startup_probe is not None and container.started is not True:
            yield Cause(f"startup probe of `{container.name}`: it has not succeeded yet")
        elif spec.readiness_probe is not None:
            yield Cause(f"readiness probe of `{container.name}`: it does not succeed")
    for gate in pod.spec.readiness_gates:
        if not any(one.type == gate.condition_type and one.status == "True" for one in status.conditions):
            yield Cause(f"readiness gate: nobody has set the condition {gate.condition_type}")


# --- Words -----------------------------------------------------------------------------------------------------------


def _progress(agent: Agent, step: Step) -> str:
    told = agent.pull_progress(step.subject)
    return f", {told}" if told else ""


def _due(at: float) -> str:
    left = at - trio.current_time()
    return "" if math.isinf(left) else f", tried again in {max(left, 0):.0f} s"


def _ago(since: float) -> str:
    return _seconds(trio.current_time() - since)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
