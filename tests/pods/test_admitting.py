"""Pods whose verdict has to wait for something."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import attrs
import pytest
import trio

from tests.pods.factories import make_pod
from trikubelet.admission.types import Admitted, NeedsFreshNode, Preempt, Rejected, Verdict, Wait
from trikubelet.allocation.topology.admit import NothingToGive
from trikubelet.api import Node, Pod
from trikubelet.kube_client.errors import ApiUnreachable
from trikubelet.pods.admitting import FETCH_TIMEOUT, Admitting, AdmittingEvent, PodDevices

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from trio.testing import MockClock

    from trikubelet.allocation.topology.admit import ResourceManager
    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.pods.preempting import Preempting

FORBIDDEN = Rejected("NodeName", "not here")
WEB = make_pod("web")


class NoDevices:
    def lacking(self, _: Pod) -> frozenset[str]:
        return frozenset()

    def offers(self, pod: Pod) -> NothingToGive:
        return NothingToGive()

    def promise(self, pod: Pod, agreed: ResourceManager) -> None:
        """There is enough for all."""

    async def allocate(self, _: Pod, _agreed: ResourceManager | None) -> None:
        raise AssertionError("no pod lacks any")


@attrs.define
class Desk:
    """Admission, node and preemption as a test says, and a loop that hands back what it is sent."""

    verdicts: list[Verdict]
    fetch_fails: bool = False
    fetch_takes: float = 1
    pods: list[Pod] = attrs.field(factory=list)
    asked: list[tuple[str, list[str], bool]] = attrs.field(factory=list)
    final: list[tuple[str, str | None]] = attrs.field(factory=list)
    admitted: list[Pod] = attrs.field(factory=list)
    devices: PodDevices = attrs.field(factory=NoDevices)
    fetches: int = 0
    ended_for: list[tuple[str, list[str]]] = attrs.field(factory=list)
    has: dict[str, Pod] = attrs.field(factory=dict)
    """Pods as they are allocated, by UID, where that is not as they ask to be."""
    victims: list[Pod] = attrs.field(factory=list)
    judged: list[Pod] = attrs.field(factory=list)
    """Pods as admission was told of them."""
    admitting: Admitting = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.admitting = Admitting(
            self,
            cast("NodeView", self),
            cast("Preempting", self),
            allocated=lambda pod: self.has.get(pod.metadata.uid, pod),
            devices=self.devices,
        )

    def ask(self, pod: Pod) -> None:
        self.follow(pod, self.admitting.ask(pod, self.admitting.beside(self.pods)))

    def ask_those_that_wait_for_the_runtime(self) -> None:
        for held in self.admitting.waiting_for_runtime():
            self.follow(held.pod, self.admitting.judge(held, self.admitting.beside(self.pods)))

    def follow(self, pod: Pod, verdict: Admitted | Rejected | None) -> None:
        if isinstance(verdict, Admitted):
            self.final.append((pod.metadata.uid, None))
            self.admitted.append(pod)
        elif verdict is not None:
            self.final.append((pod.metadata.uid, verdict.reason))

    def admit(self, pod: Pod, others: Sequence[Pod], *, node: Node, fresh: bool) -> Verdict:
        self.asked.append((pod.metadata.uid, [other.metadata.uid for other in others], fresh))
        self.judged += [pod, *others]
        return self.verdicts.pop(0)

    def cached(self) -> Node:
        return Node()

    async def fetch(self) -> Node:
        self.fetches += 1
        await trio.sleep(self.fetch_takes)
        if self.fetch_fails:
            raise ApiUnreachable("GET /api/v1/nodes/n", "connection refused", sent=False)
        return Node()

    async def make_room(self, preemptor: Pod, victims: Sequence[Pod], resource: str = "") -> None:
        await trio.sleep(30)
        self.ended_for.append((preemptor.metadata.uid, [victim.metadata.uid for victim in victims]))
        self.victims += victims

    async def handle_done(self) -> None:
        """What the sync loop does."""
        async for event in self.admitting.done:
            await self.handle(event)

    async def handle(self, event: AdmittingEvent) -> None:
        await trio.lowlevel.checkpoint()
        self.follow(event.held.pod, self.admitting.again(event, self.admitting.beside(self.pods)))


@asynccontextmanager
async def running(*verdicts: Verdict, make: Callable[[list[Verdict]], Desk] = Desk) -> AsyncIterator[Desk]:
    desk = make(list(verdicts))
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.admitting.run)
        nursery.start_soon(desk.handle_done)
        yield desk
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("verdict", "reason"), [(Admitted(), None), (FORBIDDEN, "NodeName")])
async def test_a_final_verdict_is_told_at_once(autojump_clock: MockClock, verdict: Verdict, reason: str | None) -> None:
    async with running(verdict) as desk:
        desk.pods = [make_pod("other"), WEB]
        desk.ask(WEB)
        assert desk.final == [("web", reason)]
        assert desk.asked == [("web", ["other"], False)]
        assert not desk.admitting.held


async def test_a_pod_is_held_until_others_have_ended_and_then_not_asked_about_again(autojump_clock: MockClock) -> None:
    async with running(Preempt((make_pod("victim"),))) as desk:
        desk.ask(WEB)
        await trio.sleep(29)
        assert set(desk.admitting.held) == {"web"}
        assert not desk.final
        await trio.sleep(2)
        assert desk.ended_for == [("web", ["victim"])]
        assert desk.final == [("web", None)]
        assert not desk.admitting.held


async def test_a_held_pod_that_has_to_make_room_itself_does_not_run(autojump_clock: MockClock) -> None:
    async with running(NeedsFreshNode(), Preempt((WEB,))) as desk:
        desk.ask(WEB)
        desk.ask(make_pod("critical"))
        assert set(desk.admitting.held) == {"critical"}
        await trio.sleep(31)
        assert desk.final == [("critical", None)]


async def test_the_newest_version_of_a_held_pod_is_what_runs(autojump_clock: MockClock) -> None:
    async with running(Preempt((make_pod("victim"),))) as desk:
        desk.ask(WEB)
        newer = make_pod("web", grace=1)
        desk.admitting.update(newer)
        await trio.sleep(31)
        assert desk.admitted == [newer]


async def test_a_held_pod_that_nobody_wants_any_more_does_not_run(autojump_clock: MockClock) -> None:
    async with running(Preempt((make_pod("victim"),)), Wait("x")) as desk:
        desk.ask(WEB)
        desk.admitting.forget("web")
        assert not desk.admitting.held
        desk.ask(WEB)  # comes again, with the same UID
        await trio.sleep(31)
        assert desk.ended_for
        assert not desk.final
        assert set(desk.admitting.held) == {"web"}


@pytest.mark.parametrize("verdict", [Admitted(), FORBIDDEN])
async def test_the_node_is_looked_at_anew(autojump_clock: MockClock, verdict: Verdict) -> None:
    async with running(NeedsFreshNode(), verdict) as desk:
        desk.ask(WEB)
        assert set(desk.admitting.held) == {"web"}
        await trio.sleep(2)
        assert [fresh for _, _, fresh in desk.asked] == [False, True]
        assert len(desk.final) == 1
        assert not desk.admitting.held


async def test_a_node_that_cannot_be_fetched_has_to_do_as_it_is(autojump_clock: MockClock) -> None:
    async with running(NeedsFreshNode(), FORBIDDEN, make=lambda verdicts: Desk(verdicts, fetch_fails=True)) as desk:
        desk.ask(WEB)
        await trio.sleep(2)
        assert desk.final == [("web", "NodeName")]


async def test_an_api_server_that_does_not_answer_holds_no_pod_for_long(autojump_clock: MockClock) -> None:
    async with running(NeedsFreshNode(), FORBIDDEN, make=lambda verdicts: Desk(verdicts, fetch_takes=1000)) as desk:
        desk.ask(WEB)
        await trio.sleep(FETCH_TIMEOUT - 1)
        assert not desk.final
        await trio.sleep(2)
        assert desk.final == [("web", "NodeName")]


async def test_one_look_at_the_node_is_for_all_pods_that_want_it(autojump_clock: MockClock) -> None:
    async with running(*[NeedsFreshNode()] * 3, *[FORBIDDEN] * 3) as desk:
        desk.ask(make_pod("a"))
        desk.ask(make_pod("b"))
        await trio.sleep(0.5)
        desk.ask(make_pod("late"))  # the question was sent before this one
        await trio.sleep(1)
        assert [uid for uid, _ in desk.final] == ["a", "b"]
        await trio.sleep(1)
        assert [uid for uid, _ in desk.final] == ["a", "b", "late"]
        assert desk.fetches == 2


async def test_pods_wait_for_a_runtime_that_has_not_answered(autojump_clock: MockClock) -> None:
    async with running(Wait("x"), Preempt((make_pod("victim"),)), Wait("x"), Admitted()) as desk:
        desk.ask(WEB)
        desk.ask(make_pod("critical"))
        desk.ask_those_that_wait_for_the_runtime()
        assert not desk.final
        desk.ask_those_that_wait_for_the_runtime()
        assert desk.final == [("web", None)]
        assert [uid for uid, _, _ in desk.asked] == ["web", "critical", "web", "web"]
        desk.ask_those_that_wait_for_the_runtime()
        assert set(desk.admitting.held) == {"critical"}


async def test_pods_are_judged_by_what_they_have_and_run_and_end_as_what_they_are(autojump_clock: MockClock) -> None:
    other = make_pod("other")
    has_less = {"web": make_pod("web", grace=1), "other": make_pod("other", grace=1)}
    async with running(Preempt((has_less["other"],))) as desk:
        desk.has, desk.pods = has_less, [other]
        desk.ask(WEB)
        assert desk.judged == [has_less["web"], has_less["other"]]
        await trio.sleep(31)
        assert desk.victims == [other]
        assert desk.admitted == [WEB]
