from __future__ import annotations

import attrs
import pytest
import trio

from trikubelet.api import Pod, pod_from_dict
from trikubelet.clock import TrioClock
from trikubelet.sources.mux import PodOperation, PodUpdate, SendPods, SourceMux
from trikubelet.telemetry.events import EventRecorder, EventType


def make(name: str) -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [{"name": "a", "image": "x"}]},
        }
    )


@attrs.define
class ScriptedSource:
    """Sends given sets, each `pause` seconds after the one before."""

    name: str
    sets: list[tuple[Pod, ...]]
    pause: float = 1.0
    closed: bool = False

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            for pods in self.sets:
                await trio.sleep(self.pause)
                await send(pods)
            await trio.sleep_forever()
        finally:
            self.closed = True


async def test_updates_of_all_sources_arrive_on_one_channel(autojump_clock: trio.abc.Clock) -> None:
    file = ScriptedSource("file", [(make("a"),), (make("a"), make("b"))])
    http = ScriptedSource("http", [()], pause=5)
    mux = SourceMux([file, http], clock=TrioClock())
    send, receive = trio.open_memory_channel[PodUpdate](0)
    async with trio.open_nursery() as nursery:
        await nursery.start(mux.run, send)
        assert not mux.sources_ready({"file", "http"})
        first = await receive.receive()
        assert (first.op, first.source, [pod.metadata.name for pod in first.pods]) == (PodOperation.ADD, "file", ["a"])
        second = await receive.receive()
        assert [pod.metadata.name for pod in second.pods] == ["b"]
        assert not mux.sources_ready({"file", "http"}), "http has sent nothing yet"
        third = await receive.receive()
        assert (third.op, third.source, third.pods) == (PodOperation.ADD, "http", ())
        assert not mux.sources_ready({"file"}), "the caller has not handled http yet"
        assert mux.sources_ready({"file", "http"})
        assert [mux.has_pod_named("file", "default", name) for name in ("a", "b", "c")] == [True, True, False]
        nursery.cancel_scope.cancel()
    assert file.closed
    assert http.closed
    with pytest.raises(trio.EndOfChannel):
        await receive.receive()


async def test_a_duplicate_is_told_once(autojump_clock: trio.abc.Clock) -> None:
    twin = attrs.evolve(make("a"), metadata=attrs.evolve(make("a").metadata, uid="other"))
    recorder = EventRecorder(TrioClock())
    mux = SourceMux(
        [ScriptedSource("file", [(make("a"), twin), (make("a"), twin, make("b"))])],
        clock=TrioClock(),
        recorder=recorder,
    )
    send, receive = trio.open_memory_channel[PodUpdate](0)
    async with trio.open_nursery() as nursery:
        await nursery.start(mux.run, send)
        await receive.receive()
        await receive.receive()
        nursery.cancel_scope.cancel()
    [event] = recorder.events_of("other")
    assert (event.type, event.reason, event.count) == (EventType.WARNING, "FailedValidation", 1)
    assert event.message == ('Error validating pod a_default(other) from file due to duplicate pod name "a", ignoring')


def test_without_sources_everything_is_ready() -> None:
    assert SourceMux([], clock=TrioClock()).sources_ready(set())


def test_sources_need_different_names() -> None:
    with pytest.raises(ValueError, match="different names"):
        SourceMux([ScriptedSource("file", []), ScriptedSource("file", [])], clock=TrioClock())


async def test_the_first_set_of_a_source_is_the_first_once(autojump_clock: trio.abc.Clock) -> None:
    mux = SourceMux([ScriptedSource("file", [(), (), (make("a"),)])], clock=TrioClock())
    send, receive = trio.open_memory_channel[PodUpdate](0)
    async with trio.open_nursery() as nursery:
        await nursery.start(mux.run, send)
        assert (await receive.receive()).pods == ()
        assert [pod.metadata.name for pod in (await receive.receive()).pods] == ["a"]
        nursery.cancel_scope.cancel()


async def test_no_source_is_no_end(autojump_clock: trio.abc.Clock) -> None:
    mux = SourceMux([], clock=TrioClock())
    send, receive = trio.open_memory_channel[PodUpdate](0)
    async with trio.open_nursery() as nursery:
        await nursery.start(mux.run, send)
        with trio.move_on_after(60) as patience:
            await receive.receive()
        assert patience.cancelled_caught
        nursery.cancel_scope.cancel()
