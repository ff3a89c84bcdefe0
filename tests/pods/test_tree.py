"""A pod's life is one tree of tasks: what is in there, what its end leaves of it, and whom a fault in it reaches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio
import trio.testing

from tests.agent.sim_node import SimNode, sim_node
from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from trikubelet.api import Pod, pod_from_dict, set_pod_defaults
from trikubelet.node_api.task_tree import task_tree
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.node import ScriptedSource
from trikubelet.sim.programs import ExecOutcome
from trikubelet.volumes.manager import VolumeManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from trikubelet.agent.agent import Agent

OF_A_POD: Final = ("pod ", "container ", "probes of ", "statuses for probes", "kill ")


def make_pod(name: str, *, grace: int = 30, **spec: Any) -> Pod:
    spec = {
        "containers": [{"name": "main", "image": "test:1"}],
        "terminationGracePeriodSeconds": grace,
        **spec,
    }
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))


def deleted(node: SimNode, pod: Pod, grace: int) -> Pod:
    metadata = attrs.evolve(
        pod.metadata, deletion_timestamp=node.agent.clock.now(), deletion_grace_period_seconds=grace
    )
    return attrs.evolve(pod, metadata=metadata)


# --- What there is ---------------------------------------------------------------------------------------------------


def tasks() -> Iterator[trio.lowlevel.Task]:
    """All of this run of Trio."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    yield from _within(root)


def _within(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _within(child)


def life_of(pod: Pod) -> list[trio.lowlevel.Task]:
    """The tasks of a pod's life."""
    [life] = [task for task in tasks() if task.name == f"pod {pod.full_name} {pod.metadata.uid}"]
    return list(_within(life))


def is_of_a_pod(name: str) -> bool:
    return name.startswith(OF_A_POD) or " probe of " in name


def names_in_tree(tree: dict[str, Any]) -> list[str]:
    children = [child for nursery in tree.get("nurseries", ()) for child in nursery["tasks"]]
    return [str(tree["name"]), *(name for child in children for name in names_in_tree(child))]


def subtrees(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The topmost tasks that are of a pod."""
    if is_of_a_pod(str(tree["name"])):
        yield tree
        return
    for nursery in tree.get("nurseries", ()):
        for child in nursery["tasks"]:
            yield from subtrees(child)


def statistics(agent: Agent) -> dict[str, object]:
    """What the parts say they hold; not how much they have done."""
    workers, probes, statuses = (
        agent.workers.statistics(),
        agent.probes.statistics(),
        agent.statuses.statistics(),
    )
    return {
        "workers": (workers.tasks, workers.in_flight, agent.workers.states.count_by_phase()),
        "probes": (probes.pods, probes.workers, probes.resting, probes.asking, probes.results, probes.updates_waiting),
        "statuses": (statuses.pods, statuses.finished, statuses.subscriptions),
        "pleg": agent.pleg.cache.statistics(),
        "volumes": dict(agent.volumes.statistics()) if isinstance(agent.volumes, VolumeManager) else None,
        "hooks begun": agent.runtime._killer.hooks_begun,
        "processes watched": agent.pleg_sources.pidfds.watched,
        "pods wanted": len(agent.pods.pods()),
        "listeners for ends": agent.workers.finished.statistics(),
    }


ELSEWHERE: Final = tuple(f"trikubelet.{part}" for part in ("api.", "rpc.", "sim.", "telemetry."))
"""Modules of what is not about pods: clients, events, what counts by labels."""
BOUNDED: Final = {
    "_asker",
    "_counted",
    "_demands",
    "_ended",
    "_reported",
    "_measures",
    "_metrics",
    "counts",
    "journal",
    "measures",
    "metrics",
}
"""What remembers the last so and so many of something, or counts by labels."""


def sizes(of: object, path: str = "agent") -> dict[str, int]:
    """The lengths of all collections in the agent's parts, by where they are."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting = deque([(of, path)])
    while waiting:
        one, path = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | set | list | deque):
            found[path] = len(one)
            continue
        module = type(one).__module__
        if not module.startswith("trikubelet.") or module.startswith(ELSEWHERE):
            continue
        for name in [*getattr(one, "__dict__", ()), *(getattr(type(one), "__slots__", ()) or ())]:
            if name not in BOUNDED and (value := getattr(one, name, None)) is not None:
                waiting.append((value, f"{path}.{name}"))
    return found


@attrs.frozen
class Held:
    """What there is at one moment."""

    tasks: list[str]
    statistics: dict[str, object]
    sizes: dict[str, int]

    @classmethod
    def by(cls, agent: Agent) -> Held:
        return cls(sorted(task.name for task in tasks()), statistics(agent), sizes(agent))

    def assert_no_more_than(self, before: Held) -> None:
        assert self.tasks == before.tasks
        assert self.statistics == before.statistics
        more = {path: size for path, size in self.sizes.items() if size > before.sizes.get(path, 0)}
        assert more == {}, more


# --- The tree --------------------------------------------------------------------------------------------------------

PROBE = {"tcpSocket": {"port": 80}, "periodSeconds": 5}
WITH_EVERYTHING = make_pod(
    "everything",
    initContainers=[
        {"name": "side", "image": "test:1", "restartPolicy": "Always", "readinessProbe": PROBE},
    ],
    containers=[
        {
            "name": "one",
            "image": "test:1",
            "livenessProbe": PROBE,
            "readinessProbe": PROBE,
            "startupProbe": PROBE,
            "lifecycle": {"preStop": {"exec": {"command": ["drain"]}}},
        },
        {"name": "two", "image": "test:1", "livenessProbe": PROBE},
    ],
)


async def test_all_that_runs_for_a_pod_is_one_tree_which_goes_with_it(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1)
    drains = attrs.evolve(Program.runs_forever(sigterm=None), exec=lambda _: ExecOutcome(seconds=1000))
    sim.program(drains, container="one")
    sim.program(Program.runs_forever(), container="two")
    sim.program(Program.runs_forever(), container="side")
    source = ScriptedSource("api")
    async with sim_node(sim=sim, source=source) as node:
        await trio.sleep(30)
        before = Held.by(node.agent)

        source.put(WITH_EVERYTHING)
        await node.until_running(WITH_EVERYTHING)
        await trio.sleep(20)
        [tree] = subtrees(task_tree())
        names = names_in_tree(tree)
        assert names[0] == "pod everything_default uid-everything"
        assert {name for name in names if name.startswith("container ")} == {
            "container one",
            "container two",
            "container side",
        }
        assert {name for name in names if " probe of " in name} == {
            "Liveness probe of one",
            "Readiness probe of one",
            "Startup probe of one",
            "Liveness probe of two",
            "Readiness probe of side",
        }

        source.put(deleted(node, WITH_EVERYTHING, 100))
        await trio.sleep(5)
        assert node.agent.runtime._killer.hooks_begun == 1
        [tree] = subtrees(task_tree())
        ending = set(names_in_tree(tree))
        assert {"container one", "container side", "kill one", "kill side"} <= ending
        assert {"Readiness probe of one", "Readiness probe of side"} <= ending, "they serve until they end"
        assert not {"Liveness probe of one", "Startup probe of one", "container two"} & ending

        tasks_then = life_of(WITH_EVERYTHING)
        source.put(deleted(node, WITH_EVERYTHING, 20))
        began = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        tasks_now = life_of(WITH_EVERYTHING)
        for kept in tasks_then:
            if "probe" not in kept.name:
                assert any(kept is task for task in tasks_now), f"{kept.name} goes on"
        assert sim.calls.count("ExecSync") == 1
        assert [call for call in sim.calls.of("ExecSync") if call.ended_at is not None] == []

        await node.until(lambda: node.agent.workers.states.should_pod_be_finished("uid-everything"))
        [run] = sim.started("one")
        assert run.ended_at is not None
        assert run.ended_at - began == pytest.approx(22, abs=0.5), "the hook takes all, and two seconds are always left"
        await trio.testing.wait_all_tasks_blocked()
        assert list(subtrees(task_tree())) == []
        source.remove(WITH_EVERYTHING)
        await trio.sleep(200)
        Held.by(node.agent).assert_no_more_than(before)


PODS: Final = 1000 if IS_NIGHT else 60


async def test_pods_that_come_and_go_leave_nothing(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime(seed=1, log_limit=10)
    sim.program(Program.runs_forever(sigterm=0.2), container="main")
    sim.program(Program.exits(1), container="batch")
    hook = {"preStop": {"exec": {"command": ["drain"]}}}
    plain = {"name": "main", "image": "test:1", "lifecycle": hook}
    main = {**plain, "readinessProbe": PROBE, "livenessProbe": PROBE}
    batch = {"name": "batch", "image": "test:1", "startupProbe": PROBE}
    shapes = (
        {"containers": [main]},
        {"containers": [plain]},
        {"containers": [main, batch], "restartPolicy": "Never"},
        {"containers": [plain]},
        {"containers": [plain]},
    )
    pods = [make_pod(f"pod-{number}", **shapes[number % len(shapes)]) for number in range(PODS)]
    source = ScriptedSource("api")
    with capture_logs() as lines:
        async with sim_node(sim=sim, source=source) as node:

            async def come_and_go(some: list[Pod]) -> None:
                source.put(*some)
                await node.until(lambda: len(sim.running_containers()) >= len(some), within=600)
                await trio.sleep(4)
                for number, pod in enumerate(some):
                    if number % 2:
                        source.put(deleted(node, pod, 5))
                await trio.sleep(2)
                source.remove(*some)
                await node.until(lambda: not node.agent.workers.states.phases(), within=600)
                lines.clear()

            await come_and_go(pods[:10])
            await trio.sleep(200)
            before = Held.by(node.agent)
            for begin in range(0, PODS, 100):
                await come_and_go(pods[begin : begin + 100])
            await trio.sleep(200)
            Held.by(node.agent).assert_no_more_than(before)
