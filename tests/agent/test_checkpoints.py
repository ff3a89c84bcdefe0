"""`/checkpoint` of a whole agent, whose runtime needs a while for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.agent.serving import POD, served
from tests.captured_logs import capture_logs
from trikubelet.rpc.cri import v1
from trikubelet.sim.runtime_service import SimulatedRuntimeService

if TYPE_CHECKING:
    from tests.agent.serving import Answer, Caller

PATH = f"/checkpoint/default/{POD}/main"


@attrs.define
class Saving:
    """What the runtime does when it is asked for a checkpoint."""

    asked: trio.Event = attrs.field(factory=trio.Event)
    answers: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    error: GRPCError | None = None
    saved: list[str] = attrs.field(factory=list)

    async def checkpoint(self, request: v1.CheckpointContainerRequest) -> v1.CheckpointContainerResponse:
        try:
            self.asked.set()
            await self.answers.wait()
            if self.error is not None:
                raise self.error
            self.saved.append(request.location)
            return v1.CheckpointContainerResponse()
        finally:
            self.ended.set()


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> Saving:
    made = Saving()

    monkeypatch.setattr(SimulatedRuntimeService, "checkpoint_container", lambda _, request: made.checkpoint(request))
    return made


async def ask_and_leave(caller: Caller, saving: Saving) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.ask, "POST", PATH)
        await saving.asked.wait()
        nursery.cancel_scope.cancel()
    await caller.hang_up()
    await trio.testing.wait_all_tasks_blocked()


async def test_the_runtime_says_when_it_is_done(tmp_path: Path, saving: Saving) -> None:
    answers: list[Answer] = []

    async with served(tmp_path) as node, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await node.caller("socket").ask("POST", PATH))

        nursery.start_soon(ask)
        await saving.asked.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not answers
        saving.answers.set()
    (answer,) = answers
    assert (answer.status, json.loads(answer.body)) == (200, {"items": saving.saved})
    assert Path(saving.saved[0]).parent == tmp_path / "root" / "checkpoints"


async def test_what_the_runtime_says_is_passed_on(tmp_path: Path, saving: Saving) -> None:
    saving.error = GRPCError(Status.UNKNOWN, "criu failed")
    saving.answers.set()
    async with served(tmp_path) as node:
        answer = await node.caller("socket").ask("POST", PATH)
    where = f"default/{POD}/main"
    text = f"checkpointing of {where} failed (rpc error: code = Unknown desc = criu failed)\n"
    assert (answer.status, answer.text) == (500, text)


async def test_a_client_that_goes_leaves_no_container_paused(tmp_path: Path, saving: Saving) -> None:
    async with served(tmp_path) as node:
        await ask_and_leave(node.caller("socket"), saving)
        assert not saving.ended.is_set()
        saving.answers.set()
        await saving.ended.wait()
        assert len(saving.saved) == 1


async def test_what_fails_when_the_client_has_gone_is_in_the_log(tmp_path: Path, saving: Saving) -> None:
    saving.error = GRPCError(Status.UNKNOWN, "criu failed")
    async with served(tmp_path) as node:
        await ask_and_leave(node.caller("socket"), saving)
        with capture_logs() as lines:
            saving.answers.set()
            await saving.ended.wait()
            await trio.testing.wait_all_tasks_blocked()
    (told,) = (line for line in lines if line["event"] == "a container was not checkpointed")
    assert told["error"] == "rpc error: code = Unknown desc = criu failed"


async def test_what_goes_on_ends_with_the_agent(tmp_path: Path, saving: Saving) -> None:
    async with served(tmp_path) as node:
        await ask_and_leave(node.caller("socket"), saving)
        assert not saving.ended.is_set()
    assert saving.ended.is_set()
    assert saving.saved == []
