"""The agent is killed, and a new one goes on, at random moments while pods come and go.

An agent has no memory but the runtime and the API server. Whatever it was doing when it ended, the next one must come
to the same end: every pod as if nothing had happened, no container run more often than its life asks for, nothing left.
"""

from __future__ import annotations

import random
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from tests.examples import IS_NIGHT
from tests.scenarios.outage_stage import Answers, Chronicle, Kind, essence, runs_of, until_same
from tests.scenarios.stage import NODE, Stage, cluster_stage, condition_status
from trikubelet.sim import Life
from trikubelet.sim.node import run_deterministically

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.apiserver.requests import Call
    from trikubelet.sim.machine import Change

PLACES: Final = 30 if IS_NIGHT else 16
"""By day two for each kind of pod."""
STATIC_EACH: Final = 5
"""One place in so many has static pods."""
KILLS: Final = 50 if IS_NIGHT else 12
LOOK: Final = 0.5
LONGEST_WAIT: Final = 1.2
LONGEST_PAUSE: Final = 0.6
"""Seconds until the next kill, and without an agent."""
PATIENCE: Final = 300.0
SOON: Final = 30.0
CALL_SECONDS: Final = (0.002, 0.08)
"""A call to the runtime takes long enough to be cut off."""

NEVER: Final = {"restartPolicy": "Never"}
ON_FAILURE: Final = {"restartPolicy": "OnFailure"}
SIDECAR: Final = {"initContainers": [{"name": "proxy", "image": "test/service:1", "restartPolicy": "Always"}]}
KINDS: Final = {
    "service": Kind((Life(sigterm=0.3),), 1, "Running"),
    "crasher": Kind((Life(duration=1, exit_code=1), Life(duration=2, exit_code=1), Life()), 3, "Running"),
    "batch": Kind((Life(duration=6),), 1, "Succeeded", NEVER),
    "failing": Kind((Life(duration=4, exit_code=3),), 1, "Failed", NEVER),
    "retrying": Kind((Life(duration=1, exit_code=2), Life(duration=3)), 2, "Succeeded", ON_FAILURE),
    "staged": Kind((Life(),), 1, "Running", init=Life(duration=2)),
    "meshed": Kind((Life(sigterm=0.2),), 1, "Running", SIDECAR),
    "stubborn": Kind((Life(sigterm=None),), 1, "Running", {"terminationGracePeriodSeconds": 3}),
}


@attrs.define(eq=False)
class Place:
    """Where one pod comes, lives and goes, and another one comes and stays."""

    number: int
    kind_name: str
    kind: Kind
    static: bool
    cuts: bool
    """The first pod goes at any moment of its life."""
    rng: random.Random

    def name(self, generation: int) -> str:
        """In the API server."""
        return f"p{self.number}-{generation}" + (f"-{NODE}" if self.static else "")

    async def run(self, stage: Stage) -> None:
        await trio.sleep(self.rng.uniform(0, 8))
        self._create(stage, 0)
        if self.cuts:
            await trio.sleep(self.rng.uniform(0, 6))
        else:
            await self._until_settled(stage, 0)
        await trio.sleep(self.rng.uniform(0, 2))
        self.remove(stage, 0)
        await until(lambda: not stage.exists(self.name(0)), f"{self.name(0)} not gone")
        self._create(stage, 1)
        await self._until_settled(stage, 1)

    def _create(self, stage: Stage, generation: int) -> None:
        create = stage.add_static_pod if self.static else stage.create_pod
        create(f"p{self.number}-{generation}", **self.kind.pod(self.kind_name))

    def remove(self, stage: Stage, generation: int) -> None:
        name = self.name(generation)
        if self.static:
            stage.source.remove(*(uid for uid, pod in stage.source.pods.items() if pod.metadata.name == name))
        else:
            stage.delete_pod(name)

    async def _until_settled(self, stage: Stage, generation: int) -> None:
        name = self.name(generation)
        await until(lambda: self._is_settled(stage, name), f"{name} not settled")

    def _is_settled(self, stage: Stage, name: str) -> bool:
        pod = stage.admin.find("pods", name)
        if pod is None or pod["status"].get("phase") != self.kind.phase:
            return False
        done = self.kind.phase != "Running" or condition_status(pod, "Ready") == "True"
        return done and len(main_runs(stage, name)) >= self.kind.runs


def main_runs(stage: Stage, name: str) -> list[Any]:
    return [run for run in stage.sim.runs() if run.pod_name == name and run.container_name == "main"]


async def until(condition: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    """Wait for what takes a while, of many things at once: looks seldom."""
    began = trio.current_time()
    while not condition():
        assert trio.current_time() - began < within, f"{what} within {within} s"
        await trio.sleep(LOOK)


def make_places(seed: int) -> list[Place]:
    kinds = list(KINDS.items())
    return [
        Place(
            number,
            *kinds[number % len(kinds)],
            static=number % STATIC_EACH == 0,
            cuts=number % 3 == 0,
            rng=random.Random(f"{seed}/{number}"),
        )
        for number in range(PLACES)
    ]


class Killer:
    """Kills the agent at moments of all sorts: of time, of what happens to containers, of what the server is asked."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage = stage
        self._rng = rng
        self._countdown = 0
        self._now = trio.Event()
        self.kinds: dict[str, int] = {}
        stage.sim.machine.observers.append(self._container_changed)
        self._answers = Answers(stage.server)
        self._answers.on_done = self._call_done
        self._counts = ""

    async def kill(self, times: int) -> None:
        for _ in range(times):
            self._counts = self._rng.choice(("time", "containers", "calls"))
            self._countdown = self._rng.randint(1, 25)
            self._now = trio.Event()
            with trio.move_on_after(self._rng.uniform(0.05, LONGEST_WAIT)):
                await self._now.wait()
            kind = self._counts if self._now.is_set() else "time"
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            await self._stage.kill_agent()
            await trio.sleep(self._rng.choice((0, self._rng.uniform(0, LONGEST_PAUSE))))
            await self._stage.start_agent()

    def _container_changed(self, _change: Change) -> None:
        self._count("containers")

    def _call_done(self, call: Call) -> bool:
        """Whether the agent is killed before it has the answer."""
        return call.writes and self._count("calls")

    def _count(self, what: str) -> bool:
        if self._counts != what or self._now.is_set():
            return False
        self._countdown -= 1
        if self._countdown <= 0:
            self._now.set()
        return self._countdown <= 0


async def live(seed: int, wanted: Mapping[tuple[str, bool], dict[str, Any]]) -> dict[str, int]:
    """In each place a pod comes and goes, and one stays, while agents are killed. Returns how many were, at moments of
    each kind."""
    async with cluster_stage(seed=seed) as stage:
        stage.sim.delays["*"] = CALL_SECONDS
        chronicle = Chronicle(stage.server)
        for name, kind in KINDS.items():
            kind.install(stage, name)
        places = make_places(seed)
        killer = Killer(stage, random.Random(f"{seed}/kills"))
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(place.run, stage)
            nursery.start_soon(killer.kill, KILLS)
        assert stage.lives == KILLS + 1
        await until_same(
            lambda: {place.name(1): end_of(stage, place.name(1)) for place in places},
            {place.name(1): wanted[place.kind_name, place.static] for place in places},
            within=SOON,
        )
        check_runs(stage, places)
        await check_nothing_is_left(stage, places)
        chronicle.check()
        return killer.kinds


def end_of(stage: Stage, name: str) -> dict[str, Any]:
    """What became of a pod, but for what an agent that is killed loses or adds, as the kubelet does.

    The address of a pod that has ended is only in the memory of the agent that saw it run. So is, of a static one, how
    its containers ended the time before, as soon as the older ones are removed.
    """
    pod = essence(stage.pod(name))
    if pod["phase"] != "Running":
        del pod["ip"]
        if pod["mirror"]:
            pod["containers"] = {container: told[:3] for container, told in pod["containers"].items()}
    codes = sorted((container, code) for container, _, code in runs_of(stage, [name])[name] if code is not None)
    return {**pod, "codes": codes}


@cache
def undisturbed() -> dict[tuple[str, bool], dict[str, Any]]:
    """How a pod of each kind ends up, static or not, when nobody disturbs the agent."""

    async def tell() -> dict[tuple[str, bool], dict[str, Any]]:
        async with cluster_stage() as stage:
            for name, kind in KINDS.items():
                kind.install(stage, name)
                stage.create_pod(name, **kind.pod(name))
                stage.add_static_pod(name, **kind.pod(name))
            await trio.sleep(60)
            return {
                (name, static): end_of(stage, f"{name}-{NODE}" if static else name)
                for name in KINDS
                for static in (False, True)
            }

    return run_deterministically(tell, seed=1)


def check_runs(stage: Stage, places: list[Place]) -> None:
    """No container ran more often than its life asks for."""
    for place in places:
        for generation in (0, 1):
            runs = runs_of(stage, [place.name(generation)])[place.name(generation)]
            times = {name: sum(name == container for container, _, _ in runs) for name, _, _ in runs}
            main = times.pop("main", 0)
            cut = place.cuts and generation == 0
            assert main <= place.kind.runs if cut else main == place.kind.runs, (place, runs)
            assert set(times.values()) <= {1}, (place, runs)
            for container in times:
                attempts = sorted(attempt for name, attempt, _ in runs if name == container)
                assert attempts == list(range(len(attempts))), (place, runs)


async def check_nothing_is_left(stage: Stage, places: list[Place]) -> None:
    """After all pods have gone."""
    for place in places:
        place.remove(stage, 1)
    machine, workers = stage.sim.machine, stage.agent.workers
    await until(lambda: not stage.admin.list("pods"), "not all pods are gone", within=SOON)
    await until(lambda: not machine.containers and not machine.sandboxes, "something is left", within=2 * SOON)
    assert await stage.agent.volumes.pod_uids() == set()
    assert not [pod for pod in stage.admin.list("pods") if workers.states.phase(pod["metadata"]["uid"])]


def test_an_agent_that_is_killed_at_random_moments_comes_to_the_same_end() -> None:
    wanted = undisturbed()
    assert {name: pod["phase"] for (name, _), pod in wanted.items()} == {n: k.phase for n, k in KINDS.items()}
    kinds = run_deterministically(partial(live, 0, wanted), seed=0)
    assert min(kinds.values()) >= KILLS // 10, kinds
