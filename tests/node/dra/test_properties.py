"""Whatever happens to pods, drivers and the agent: a claim has one call at a time, is prepared for whoever runs, and is
undone exactly when no pod needs it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.csi_driver.faults import Fault, Faults
from tests.dra_driver import ToyDriver
from tests.dra_driver.driver import PREPARE, UNPREPARE
from tests.node.dra.situations import make_claim, make_pod
from tests.node.dra.stage import Stage, claim_stage
from trikubelet.api import Pod
from trikubelet.node.dra.checkpoint import FILE, read_claims
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError

if TYPE_CHECKING:
    from trikubelet.rpc.dra import v1

CLAIMS = {"p": ("a", "b"), "q": ("b", "c"), "r": ("c",), "s": ()}
"""Of each pod: `b` and `c` are shared."""


class WatchedDriver(ToyDriver):
    """Looks at the disk whenever it is asked."""

    root: Path
    unknown: set[str]
    """What it was to prepare that was not on the disk."""

    def prepare(self, claims: list[v1.Claim]) -> v1.NodePrepareResourcesResponse:
        known = {claim.uid for claim in read_claims(self.root / FILE) if claim.pods}
        self.unknown |= {claim.uid for claim in claims} - known
        return super().prepare(claims)


@attrs.define(eq=False)
class Life:
    """A node's pods, driven as pod workers do it: one thing at a time for each, tried again until it succeeds."""

    stage: Stage
    driver: WatchedDriver
    pods: dict[str, Pod]
    running: set[str] = attrs.field(factory=set)
    """Those whose containers may run, since they were prepared."""
    work: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    kill_at: int = 0
    """Odd: before a write; even: after it; 0: never."""
    written: int = 0

    async def start(self, uid: str) -> None:
        self.stage.needed.add(uid)
        with suppress(ResourceClaimError):
            await self.stage.manager.prepare(self.pods[uid])
            self.running.add(uid)
            self.check()

    async def end(self, uid: str) -> None:
        self.running.discard(uid)
        with suppress(ResourceClaimError):
            await self.stage.manager.unprepare(uid)
            self.stage.needed.discard(uid)
            self.check()

    def lose(self, uid: str) -> None:
        """Deleted by force: nobody ends it properly."""
        self.running.discard(uid)
        self.stage.needed.discard(uid)

    def check(self) -> None:
        needed = {f"{claim}-uid" for uid in self.running for claim in CLAIMS[uid]}
        assert self.driver.prepared >= needed
        assert self.driver.most_at_once <= 1
        assert self.driver.unknown == set(), "prepared before it was written down"

    async def restart(self) -> None:
        self.work.cancel()
        await self.stage.restart()
        await self.stage.register(self.driver)
        self.check()

    def before_write(self) -> None:
        """The agent is killed right before what it writes is there, …"""
        self.written += 1
        if self.kill_at == 2 * self.written - 1:
            self.work.cancel()

    def after_write(self) -> None:
        """… or right after."""
        if self.kill_at == 2 * self.written:
            self.work.cancel()


@attrs.frozen
class Step:
    """What happens at the same time, and what goes wrong meanwhile."""

    actions: dict[str, str]
    """By pod."""
    fault: tuple[str, str] | None = None
    """Of all calls of a method: its kind."""
    kill_at: int = 0
    """See `Life`."""


ACTIONS = [*["start"] * 3, *["end"] * 3, "lose", "kill", "die", "wait"]
steps = st.builds(
    Step,
    st.dictionaries(st.sampled_from(sorted(CLAIMS)), st.sampled_from(ACTIONS), min_size=1, max_size=4),
    st.none() | st.tuples(st.sampled_from([PREPARE, UNPREPARE]), st.sampled_from(["error", "lost", "late", "hang"])),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
)


async def live(script: list[Step], root: Path) -> None:
    async with claim_stage(root) as stage:
        stage.needed = set()
        driver = WatchedDriver(takes=0.1)
        driver.root, driver.unknown = root, set()
        pods = {uid: make_pod(uid, *claims) for uid, claims in CLAIMS.items()}
        for claim in "abc":
            stage.client.put(make_claim(claim, *(uid for uid, its in CLAIMS.items() if claim in its)))
        life = Life(stage, driver, pods)
        stage.before_write, stage.after_write = life.before_write, life.after_write
        await stage.register(driver)
        for step in script:
            driver.faults = Faults({} if step.fault is None else {step.fault[0]: Fault(step.fault[1])})  # type: ignore[arg-type]
            life.written, life.kill_at = 0, step.kill_at
            with trio.CancelScope() as life.work:
                async with trio.open_nursery() as nursery:
                    for uid, action in step.actions.items():
                        nursery.start_soon(act, life, uid, action)
            if life.work.cancel_called:
                life.kill_at = 0
                await life.restart()
        life.kill_at, driver.faults = 0, Faults()
        await trio.sleep(200)
        life.check()
        assert driver.prepared <= {claim.uid for claim in read_claims(root / FILE)}
        for uid in sorted(stage.needed):
            await life.end(uid)
        await trio.sleep(200)
        assert driver.prepared == set(), "nobody needs it"
        assert read_claims(root / FILE) == []
        life.check()


async def act(life: Life, uid: str, action: str) -> None:
    match action:
        case "start":
            await life.start(uid)
        case "end":
            await life.end(uid)
        case "lose":
            life.lose(uid)
        case "kill":
            life.work.cancel()
        case "die":
            life.stage.kill(life.driver)
            await trio.sleep(1)
            life.stage.listen(life.driver)
        case "wait":
            await trio.sleep(70)


@given(st.lists(steps, min_size=1, max_size=8))
def test_nothing_is_left_prepared_and_nothing_is_taken_away(script: list[Step]) -> None:
    run(script)


@pytest.mark.parametrize("write", range(1, 9))
@pytest.mark.parametrize("during", range(3))
def test_the_agent_is_killed_at_each_of_its_writes(write: int, during: int) -> None:
    """Of a life with two pods that share a claim."""
    script = [Step({"p": "start", "q": "start"}), Step({"p": "end"}), Step({"q": "end"})]
    script[during] = attrs.evolve(script[during], kill_at=write)
    run(script)


def test_a_driver_undoes_and_does_not_say_so() -> None:
    ends = Step({"r": "end"}, (UNPREPARE, "lost"))
    run([Step({"r": "start"}), ends, Step({"q": "start"}), Step({"r": "end"})])


def run(script: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        trio.run(live, script, Path(folder), clock=trio.testing.MockClock(autojump_threshold=0))
