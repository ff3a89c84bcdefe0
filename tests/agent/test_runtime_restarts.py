"""The runtime is stopped and started again at a point of a pod's life: the pod converges, and runs once.

The pod has everything that a life can have: an init container, images that have to be pulled, both hooks, an end that
takes a second. Its neighbour runs through all of it and must notice nothing.

The bounds have two parts that are not the restart's: a sync that failed is tried again after ten to fifteen seconds,
unless it was clear at once that it may be sooner, and what could not be removed is left to the garbage collection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

import attrs
import pytest
import trio

from tests.agent.sim_node import SimNode, sim_node, static_pod
from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT
from trikubelet.sim import ExecOutcome, FaultKind, Life, Program, Run, SimulatedRuntime
from trikubelet.sim.faults import When
from trikubelet.sim.node import run_deterministically

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTS: Final = {
    "its sandbox is made": ("RunPodSandbox", 1),
    "its address is asked for": ("PodSandboxStatus", 1),
    "its init container's image is looked for": ("ImageStatus", 1),
    "its init container's image is pulled": ("PullImage", 1),
    "its init container is created": ("CreateContainer", 1),
    "its init container is started": ("StartContainer", 1),
    "its init container is looked at": ("ContainerStatus", 1),
    "its sandbox is looked at": ("PodSandboxStatus", 2),
    "its image is looked for": ("ImageStatus", 3),
    "its image is pulled": ("PullImage", 2),
    "its container is created": ("CreateContainer", 2),
    "its container is started": ("StartContainer", 2),
    "its postStart hook runs": ("ExecSync", 1),
    "its container is looked at": ("ContainerStatus", 3),
    "sandboxes are listed": ("ListPodSandbox", 3),
    "containers are listed": ("ListContainers", 3),
    "its preStop hook runs": ("ExecSync", 2),
    "its container is stopped": ("StopContainer", 1),
    "its sandbox is stopped": ("StopPodSandbox", 1),
    "its container is removed": ("RemoveContainer", 1),
    "its init container is removed": ("RemoveContainer", 2),
    "its sandbox is removed": ("RemovePodSandbox", 1),
}
EACH: Final = 1 if IS_NIGHT else 2
"""After one call in so many the runtime restarts, where it may be any."""
HOOKED: Final = ("ExecSync", 1)
TAKES_TIME: Final = ("PullImage", "ExecSync", "StopContainer")
"""Calls that can be cut short. All others have had their effect at once."""

PULL: Final = 2.0
STARTING: Final = 2 * PULL + 3.0
"""Seconds in which the pod becomes ready when nothing fails; the rest are the init container's and the hook's."""
ENDING: Final = 3.0
"""Seconds in which it ends: its preStop hook and its container's way of ending."""
DOWNTIME: Final = 3.0
RETRY: Final = 15.0
"""The longest wait after a failed sync."""
GARBAGE_PERIOD: Final = 60.0
QUIET: Final = 16.0
"""Seconds in which a pod that runs must go on running as it is."""


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


@attrs.frozen
class Ended:
    """What came of a life."""

    restarts: int
    runs: Sequence[Run]
    neighbours: Sequence[Run]
    commands: Sequence[str]
    """The hooks that ran, in their order."""


@attrs.define
class PodLife:
    """One pod's life from its source to its last trace, with a restart of the runtime on its way."""

    rpc: str
    nth: int
    when: When
    downtime: float = DOWNTIME
    quiet: float = QUIET
    commands: list[str] = attrs.field(factory=list, init=False)

    def live(self) -> Ended:
        return run_deterministically(self._live, seed=1)

    async def _live(self) -> Ended:
        sim = self._runtime()
        # Runtimes with events are not asked for each container.
        sim.events.supported = self.rpc != "ContainerStatus"
        neighbour = static_pod("neighbour", containers=[{"name": "other", "image": "test/other:1"}])
        hooks = {name: {"exec": {"command": [name]}} for name in ("postStart", "preStop")}
        pod = static_pod(
            "web",
            initContainers=[{"name": "setup", "image": "test/setup:1"}],
            containers=[{"name": "main", "image": "test/main:1", "lifecycle": hooks}],
        )
        uid = pod.metadata.uid
        async with sim_node(sim=sim) as node:
            node.source.put(neighbour)
            await node.until_running(neighbour)
            await trio.sleep(0.5)
            sim.restart_at(self.rpc, self.nth, when=self.when, downtime=self.downtime)
            node.source.put(pod)
            await node.until_running(pod, within=STARTING + self.downtime + RETRY)
            await trio.sleep(self.quiet)
            assert [one.name for one in sim.running_containers(uid)] == ["main"]
            node.source.remove(pod)
            await node.until_gone(pod, within=ENDING + self.downtime + RETRY)
            await node.until(lambda: not remains(node, uid), within=self.downtime + GARBAGE_PERIOD + 5)
            assert await node.agent.volumes.pod_uids() == {neighbour.metadata.uid}
            return Ended(
                sim.faults.met[FaultKind.RESTART], sim.runs(uid), sim.runs(neighbour.metadata.uid), self.commands
            )

    def _runtime(self) -> SimulatedRuntime:
        def run_command(command: Sequence[str]) -> ExecOutcome:
            self.commands.extend(command)
            return ExecOutcome(seconds=0.5)

        sim = SimulatedRuntime(seed=1)
        sim.images.default_pull_seconds = PULL
        sim.program(Program.exits(after=1), container="setup")
        sim.program(Program((Life(sigterm=1),), exec=run_command), container="main")
        return sim


def remains(node: SimNode, uid: str) -> list[str]:
    """What the runtime still has of the pod."""
    machine = node.sim.machine
    return [*machine.sandboxes_by_pod.get(uid, ()), *machine.containers_by_pod.get(uid, ())]


def check_ran_once(ended: Ended, *, restarted: str = "") -> None:
    """Every container ran once, but `restarted`, which ran once after the other."""
    runs = {name: [run for run in ended.runs if run.container_name == name] for name in ("setup", "main")}
    assert {name: len(each) for name, each in runs.items()} == {
        name: 2 if name == restarted else 1 for name in ("setup", "main")
    }
    attempts = Counter((run.container_name, run.attempt) for run in ended.runs)
    assert max(attempts.values()) == 1
    for earlier, later in pairwise(runs["main"]):
        assert earlier.ended_at is not None
        assert earlier.ended_at <= later.started_at
    assert runs["setup"][0].exit_code == 0
    assert all(run.ended_at is not None for run in ended.runs)
    assert [run.ended_at for run in ended.neighbours] == [None]


BEFORE_AND_AFTER: Final = pytest.mark.parametrize("when", ["before", "after"])


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.night)])
@pytest.mark.parametrize("point", POINTS)
def test_a_pod_runs_once_and_leaves_nothing_when_the_runtime_restarts_as(point: str, when: When) -> None:
    check_life_at(point, when)


@pytest.mark.parametrize("point", [name for name, (rpc, _) in POINTS.items() if rpc in TAKES_TIME])
def test_a_pod_runs_once_and_leaves_nothing_when_the_runtime_restarts_while(point: str) -> None:
    check_life_at(point, "during")


def check_life_at(point: str, when: When) -> None:
    rpc, nth = POINTS[point]
    ended = PodLife(rpc, nth, when).live()
    assert ended.restarts == 1
    # A container whose postStart hook failed is ended and started anew: nobody knows whether a hook ran that was cut.
    check_ran_once(ended, restarted="main" if (rpc, nth) == HOOKED else "")


def test_a_pod_runs_once_wherever_the_runtime_restarts() -> None:
    for number in count(1, EACH):
        ended = PodLife("*", number, "after", quiet=1).live()
        if not ended.restarts:
            break
        hooked = sum(run.container_name == "main" for run in ended.runs) == 2
        check_ran_once(ended, restarted="main" if hooked else "")
        assert not hooked or ended.commands == ["postStart", "postStart", "preStop"]
    assert number > 30


@pytest.mark.parametrize("downtime", [0.0, 20.0])
@BEFORE_AND_AFTER
@pytest.mark.parametrize("rpc", ["RunPodSandbox", "PullImage", "StartContainer", "StopContainer"])
def test_it_does_not_matter_how_long_the_runtime_is_away(rpc: str, when: When, downtime: float) -> None:
    ended = PodLife(rpc, 1, when, downtime).live()
    assert ended.restarts == 1
    check_ran_once(ended)


@BEFORE_AND_AFTER
@pytest.mark.parametrize("point", ["its container is stopped", "its sandbox is stopped", "its sandbox is removed"])
def test_hooks_run_once_when_the_runtime_restarts_after_them_as(point: str, when: When) -> None:
    assert PodLife(*POINTS[point], when).live().commands == ["postStart", "preStop"]


def test_one_seed_gives_one_life() -> None:
    first, second = (PodLife("PullImage", 2, "during").live() for _ in range(2))
    assert [(run.container_id, run.started_at, run.ended_at) for run in first.runs] == [
        (run.container_id, run.started_at, run.ended_at) for run in second.runs
    ]
