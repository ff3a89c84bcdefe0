"""An API server that is away, or hardly there, for minutes in which much happens on the node: ten at night, six by day.

One story is told several times: undisturbed, and under every kind of trouble. Pods start, crash, restart and end;
static pods come, change and go; pods are bound, deleted and replaced in the API server meanwhile. Soon after the
trouble is over everything must be as in the undisturbed telling: what the API server shows, how often containers ran,
which events arrived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
import trio

from tests.apiserver.access import ServerAccess
from tests.examples import IS_NIGHT
from tests.scenarios.outage_stage import (
    Answers,
    Chronicle,
    Kind,
    lose_node,
    outcome,
    running,
    told,
    until_same,
)
from tests.scenarios.stage import NODE, Stage, cluster_stage
from trikubelet.sim import Life
from trikubelet.sim.node import run_deterministically

if TYPE_CHECKING:
    from trio.testing import MockClock

BEGIN: Final = 30.0
END: Final = 630.0 if IS_NIGHT else 390.0
"""Seconds of the story between which there is trouble."""
SOON: Final = 25.0
"""Seconds after which everything is right again. An answer that is on its way may still need twenty of them."""
MOST_CALLS: Final = 3 * (END - BEGIN)
"""A server in trouble is asked three times a second at most, by everybody together."""
AFTERWARDS: Final = 20.0
"""Seconds for which it must stay so."""

NEVER: Final = {"restartPolicy": "Never"}
KINDS: Final = {
    "steady": Kind((Life(),), 1, "Running"),
    "crasher": Kind((*[Life(duration=40, exit_code=1)] * 3, Life()), 4, "Running"),
    "batch": Kind((Life(duration=100),), 1, "Succeeded", NEVER),
    "failing": Kind((Life(duration=120, exit_code=3),), 1, "Failed", NEVER),
    "retrying": Kind(
        (*[Life(duration=50, exit_code=2)] * 2, Life(duration=20)), 3, "Succeeded", {"restartPolicy": "OnFailure"}
    ),
    "staged": Kind((Life(),), 1, "Running", init=Life(duration=60)),
    "expiring": Kind((Life(),), 1, "Failed", {"activeDeadlineSeconds": 90}),
    "leaving": Kind((Life(sigterm=None),), 1, "", {"terminationGracePeriodSeconds": 60}),
    "deleted": Kind((Life(),), 1, "", {"terminationGracePeriodSeconds": 5}),
    "forced": Kind((Life(),), 1, ""),
    "replaced": Kind((Life(),), 2, "Running"),
    "late": Kind((Life(),), 1, "Running"),
    "late-batch": Kind((Life(duration=3),), 1, "Succeeded", NEVER),
    "misplaced": Kind((Life(),), 0, "Failed", {"nodeSelector": {"disk": "ssd"}}),
}
STATIC_KINDS: Final = {
    "static": Kind((Life(),), 1, "Running"),
    "static-crasher": KINDS["crasher"],
    "static-batch": KINDS["batch"],
    "edited": Kind((Life(),), 2, "Running"),
    "dropped": Kind((Life(),), 1, ""),
    "added": Kind((Life(),), 1, "Running"),
}
FIRST: Final = ("steady", "crasher", "batch", "failing", "retrying", "staged", "expiring", "leaving", "deleted")
MIRRORS_MADE: Final = {"static": 1, "static-crasher": 1, "static-batch": 1, "edited": 2, "dropped": 1, "added": 1}
LASTING: Final = frozenset({*KINDS} - {"leaving", "deleted", "forced", "replaced"}) | {
    f"{name}-{NODE}" for name in STATIC_KINDS if name not in ("edited", "dropped")
}
"""Names of pods that have one life, all of whose events are the same however they are told."""


@attrs.frozen
class Ending:
    """How the story ends."""

    outcome: dict[str, Any]
    events: dict[tuple[str, str], int]


async def tell_beginning(stage: Stage) -> None:
    """The first thirty seconds."""
    for name, kind in (KINDS | STATIC_KINDS).items():
        kind.install(stage, name)
    await stage.until_node_ready(within=2)
    for name in (*FIRST, "forced", "replaced"):
        stage.create_pod(name, **KINDS[name].pod(name))
    for name in ("static", "static-crasher", "static-batch", "edited", "dropped"):
        stage.add_static_pod(name, **STATIC_KINDS[name].pod(name))
    await trio.sleep_until(BEGIN - 5)
    stage.delete_pod("leaving")
    await trio.sleep_until(BEGIN)


async def tell_middle(stage: Stage, chronicle: Chronicle) -> None:
    """The minutes in which something may be wrong."""
    await trio.sleep_until(230)
    for name in ("late", "late-batch", "misplaced"):
        stage.create_pod(name, **KINDS[name].pod(name))
    chronicle.forced |= {"forced", "replaced"}
    chronicle.edited.add(f"edited-{NODE}")
    stage.delete_pod("deleted")
    for name in ("forced", "replaced"):
        stage.delete_pod(name, grace=0)
    await trio.sleep_until(250)
    stage.create_pod("replaced", **KINDS["replaced"].pod("replaced"))
    stage.source.remove(*(pod for pod in stage.source.pods.values() if pod.metadata.name.startswith("dropped")))
    stage.add_static_pod("added", **STATIC_KINDS["added"].pod("added"))
    stage.source.remove(*(pod for pod in stage.source.pods.values() if pod.metadata.name.startswith("edited")))
    stage.add_static_pod("edited", **STATIC_KINDS["edited"].pod("edited", version=2))
    await trio.sleep_until(END)


def undisturbed() -> Ending:
    """The story without trouble, told once."""

    async def tell() -> Ending:
        async with cluster_stage() as stage:
            chronicle = Chronicle(stage.server)
            await tell_beginning(stage)
            await tell_middle(stage, chronicle)
            await trio.sleep(SOON)
            chronicle.check()
            return Ending(outcome(stage), told(stage, LASTING))

    return run_deterministically(tell, seed=1)


undisturbed_once = cache(undisturbed)


@pytest.fixture(scope="module")
def ending() -> Ending:
    return undisturbed_once()


def test_the_story_ends_as_its_pods_live(ending: Ending) -> None:
    pods, runs = ending.outcome["pods"], ending.outcome["runs"]
    names = {name: name for name in KINDS} | {name: f"{name}-{NODE}" for name in STATIC_KINDS}
    for name, kind in (KINDS | STATIC_KINDS).items():
        assert pods.get(names[name], {}).get("phase", "") == kind.phase, name
        if kind.phase:
            assert sum(container == "main" for container, _, _ in runs[names[name]]) == kind.runs, name
    assert pods["misplaced"]["reason"] == "NodeAffinity"
    assert pods["expiring"]["reason"] == "DeadlineExceeded"
    assert pods[f"edited-{NODE}"]["image"] == "test/edited:2"
    assert ending.events["crasher", "Started"] == 4
    assert ending.events["crasher", "BackOff"] == 0, "it was told"


# --- Trouble ---------------------------------------------------------------------------------------------------------

Trouble = Callable[[Stage], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def away(stage: Stage) -> AsyncIterator[None]:
    """Nobody can reach the server, which after a while thinks that the node is lost."""
    stage.server.faults.unreachable()
    async with trio.open_nursery() as nursery:

        async def watch_node() -> None:
            await trio.sleep(50)
            lose_node(stage)

        nursery.start_soon(watch_node)
        yield
    stage.server.faults.back()


@asynccontextmanager
async def forgetful(stage: Stage) -> AsyncIterator[None]:
    """Every few seconds it has forgotten what watches would go on from; a minute long it is not there at all."""
    faults = stage.server.faults

    async def forget() -> None:
        while True:
            faults.expire_watches()
            await trio.sleep(20)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forget)

        async def leave() -> None:
            await trio.sleep_until(210)
            faults.unreachable()
            await trio.sleep_until(270)
            faults.back()

        nursery.start_soon(leave)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def failing(stage: Stage) -> AsyncIterator[None]:
    rule = stage.server.faults.fail(500, every=3)
    yield
    assert rule.met > 50
    stage.server.faults.clear()


@asynccontextmanager
async def slow(stage: Stage) -> AsyncIterator[None]:
    """What is asked is done at once, and answered twenty seconds later.

    In the second half it is done twenty seconds later, if anybody still waits for it.
    """
    answers = Answers(stage.server)
    answers.delay = 20
    async with trio.open_nursery() as nursery:

        async def become_worse() -> None:
            await trio.sleep_until((BEGIN + END) / 2)
            answers.delay = 0
            stage.server.faults.delay(20)

        nursery.start_soon(become_worse)
        yield
    stage.server.faults.clear()


@asynccontextmanager
async def losing_replies(stage: Stage) -> AsyncIterator[None]:
    """Every second write is done, and its connection breaks before the answer; all watches break with it."""
    rule = stage.server.faults.when(lambda call: call.writes).lose_reply(every=2)
    yield
    assert rule.met > 50
    stage.server.faults.clear()


@pytest.mark.parametrize(
    "trouble",
    [
        away,
        forgetful,
        pytest.param(failing, marks=pytest.mark.night),
        pytest.param(slow, marks=pytest.mark.night),
        pytest.param(losing_replies, marks=pytest.mark.night),
    ],
    ids=lambda trouble: trouble.__name__,
)
def test_everything_is_right_soon_after_a_long_trouble(trouble: Trouble, ending: Ending) -> None:
    async def tell() -> None:
        async with cluster_stage() as stage:
            chronicle = Chronicle(stage.server)
            await tell_beginning(stage)
            asked = len(stage.server.calls)
            async with trouble(stage):
                await tell_middle(stage, chronicle)
            assert len(stage.server.calls) - asked < MOST_CALLS, "a server in trouble is not asked all the time"
            await until_same(lambda: outcome(stage), ending.outcome, within=SOON)
            await until_same(lambda: told(stage, LASTING), ending.events, within=SOON)
            assert stage.node_is_ready()
            renewed = lease_time(stage)
            await trio.sleep(AFTERWARDS)
            assert lease_time(stage) > renewed
            assert outcome(stage) == ending.outcome, "and so it stays"
            made = {name: chronicle.created[f"{name}-{NODE}"] for name in STATIC_KINDS}
            assert made == MIRRORS_MADE, "no mirror pod is made twice"
            chronicle.check()

    run_deterministically(tell, seed=1)


def lease_time(stage: Stage) -> str:
    time: str = stage.admin.get("leases", NODE, "kube-node-lease")["spec"]["renewTime"]
    return time


# --- An agent that starts without its server, and one that must show something new ------------------------------------


async def test_an_agent_that_starts_anew_without_its_server_keeps_all_pods(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        faults = stage.server.faults
        stage.create_pod("kept")
        stage.create_pod("removed")
        stage.add_static_pod("static")
        await stage.until_ready("kept", "removed", f"static-{NODE}")
        await stage.kill_agent()
        faults.unreachable()
        stage.delete_pod("removed", grace=0)
        stage.create_pod("new")
        lose_node(stage)
        await stage.start_agent()
        stage.add_static_pod("fresh")
        before = ["kept/main", "removed/main", f"static-{NODE}/main"]
        await until_same(lambda: running(stage), sorted([*before, f"fresh-{NODE}/main"]), within=3)
        for _ in range(60):
            await trio.sleep(10)
            assert running(stage) == sorted([*before, f"fresh-{NODE}/main"])
        assert not stage.node_is_ready()
        faults.back()
        took = await stage.until_node_ready(within=SOON)
        took += await stage.until_ready("kept", "new", f"static-{NODE}", f"fresh-{NODE}", within=SOON)
        took += await stage.until(lambda: "removed/main" not in running(stage), within=SOON)
        assert took < SOON
        await trio.sleep(AFTERWARDS)
        assert {run.attempt for run in stage.sim.runs()} == {0}, "nothing was restarted"
        assert len(stage.sim.runs()) == 5


async def test_an_agent_whose_first_start_has_no_server_runs_static_pods_and_registers_later(
    autojump_clock: MockClock,
) -> None:
    async with cluster_stage(start=False) as stage:
        stage.server.faults.unreachable()
        stage.add_static_pod("static")
        await stage.start_agent()
        await until_same(lambda: running(stage), [f"static-{NODE}/main"], within=3)
        stage.create_pod("waiting")
        await trio.sleep(600)
        assert stage.admin.list("nodes") == []
        assert running(stage) == [f"static-{NODE}/main"]
        stage.server.faults.back()
        took = await stage.until_node_ready(within=SOON)
        took += await stage.until_ready("waiting", f"static-{NODE}", within=SOON)
        assert took < SOON
        assert len(stage.sim.runs()) == 2


@pytest.mark.parametrize("changes", [True, False], ids=["rotated", "not rotated"])
async def test_a_certificate_that_is_replaced_while_the_server_is_away_is_the_one_shown_when_it_is_back(
    changes: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_stage(start=False) as stage:
        server = stage.server
        short = server.identities.certificate(
            f"system:node:{NODE}", "system:nodes", end=server.clock.now() + timedelta(seconds=300)
        )
        access = ServerAccess(server, short)
        monkeypatch.setattr(ServerAccess, "node", staticmethod(lambda _server, _name: access))
        await stage.start_agent()
        stage.create_pod("old")
        await stage.until_ready("old")
        server.faults.unreachable()
        await trio.sleep(200)
        if changes:
            access.change(server.node_certificate(NODE))
        await trio.sleep(400)
        lose_node(stage)
        stage.create_pod("new")
        server.faults.back()
        await trio.sleep(SOON)
        refused = [answer for answer in server.calls if answer.code == 401]
        if changes:
            assert stage.node_is_ready()
            assert stage.condition("old", "Ready") == stage.condition("new", "Ready") == "True"
            assert not refused
        else:  # this is how it would show
            assert not stage.node_is_ready()
            assert running(stage) == ["old/main"], "what nobody may hear of still runs"
            assert refused


async def test_a_certificate_that_is_replaced_while_the_server_is_there_is_not_missed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_stage(start=False) as stage:
        server = stage.server
        short = server.identities.certificate(
            f"system:node:{NODE}", "system:nodes", end=server.clock.now() + timedelta(seconds=300)
        )
        access = ServerAccess(server, short)
        monkeypatch.setattr(ServerAccess, "node", staticmethod(lambda _server, _name: access))
        await stage.start_agent()
        stage.create_pod("old")
        await stage.until_ready("old")
        await trio.sleep(200)
        access.change(server.node_certificate(NODE))
        await trio.sleep(400)
        stage.create_pod("new")
        await stage.until_ready("new", within=2)
        assert [answer for answer in server.calls if answer.code == 401] == []
        assert len(stage.sim.runs()) == 2
