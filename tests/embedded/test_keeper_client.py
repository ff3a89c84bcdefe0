"""Keepers that cannot start, hang, die or are of another version: none of them ends an agent that runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.embedded.fake_keeper import (
    die,
    fake_keeper,
    greet_and_die,
    greet_and_stay,
    hang,
    of_another_version,
    of_the_first_version,
    without_features,
)
from tests.embedded.fake_network import FakeNetwork
from tests.embedded.runtime_node import Node, is_alive, running_node
from trikubelet.clock import SystemClock
from trikubelet.embedded.keeper import protocol
from trikubelet.embedded.keeper_client import TOLD_WITHIN, KeeperAbilities, KeeperClient, KeeperStartError
from trikubelet.embedded.runtime import EmbeddedRuntime
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.embedded.fake_keeper import Script


class Listener:
    """Counts the keepers that it hears of."""

    def __init__(self) -> None:
        self.keepers = 0

    def connected(self, abilities: KeeperAbilities, listing: dict[str, Any]) -> None:
        self.keepers += 1

    def event(self, message: dict[str, Any]) -> None:
        raise AssertionError("no event was sent")


@pytest.fixture
def listener() -> Listener:
    return Listener()


async def start(client: KeeperClient, nursery: trio.Nursery) -> None:
    with trio.fail_after(120):
        await nursery.start(client.run)


async def test_a_keeper_that_cannot_start_is_one_bare_error(tmp_path: Path) -> None:
    (tmp_path / "runtime" / "keeper.lock").mkdir(parents=True)
    runtime = EmbeddedRuntime(tmp_path / "runtime", clock=SystemClock())
    with pytest.raises(KeeperStartError, match="Is a directory") as failure:
        await runtime.run()
    assert failure.value.root == tmp_path / "runtime"


async def test_whoever_starts_the_runtime_gets_the_bare_error(tmp_path: Path) -> None:
    (tmp_path / "runtime" / "keeper.lock").mkdir(parents=True)
    runtime = EmbeddedRuntime(tmp_path / "runtime", clock=SystemClock())
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeeperStartError):
            await nursery.start(runtime.run)


async def test_a_keeper_that_hangs_at_the_start_is_an_error_that_says_what_to_do(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async with fake_keeper(tmp_path, hang), trio.open_nursery() as nursery:
        with pytest.raises(KeeperStartError) as failure:
            await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
    assert trio.current_time() == pytest.approx(20, abs=1)
    assert f"kill -CONT {os.getpid()}" in str(failure.value)


async def test_a_keeper_of_another_version_at_the_start_is_an_error_that_says_what_to_do(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async with fake_keeper(tmp_path, of_another_version), trio.open_nursery() as nursery:
        with pytest.raises(KeeperStartError, match="protocol version") as failure:
            await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
    assert f"kill -9 {os.getpid()}" in str(failure.value)


async def test_a_keeper_that_dies_before_it_answers_is_asked_for_again(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async with fake_keeper(tmp_path, die, die, greet_and_stay) as keeper, trio.open_nursery() as nursery:
        await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
        assert (len(keeper.accepted_at), listener.keepers) == (3, 1)
        nursery.cancel_scope.cancel()


async def test_a_keeper_that_always_dies_before_it_answers_ends_the_start_in_time(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async with fake_keeper(tmp_path, die) as keeper, trio.open_nursery() as nursery:
        with pytest.raises(KeeperStartError, match=r"keeper\.log"):
            await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
    assert trio.current_time() == pytest.approx(20, abs=1)
    assert len(keeper.accepted_at) < 30


@pytest.mark.parametrize("trouble", [die, of_another_version, hang])
async def test_trouble_with_a_later_keeper_is_retried_and_ends_nothing(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock, trouble: Any
) -> None:
    scripts = [greet_and_die, trouble, trouble, greet_and_stay]
    async with fake_keeper(tmp_path, *scripts) as keeper, trio.open_nursery() as nursery:
        await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
        with trio.fail_after(100):
            while listener.keepers < 2:
                await trio.sleep(0.01)
        assert len(keeper.accepted_at) == 4
        nursery.cancel_scope.cancel()


async def test_the_pause_grows_until_a_keeper_answers(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    scripts = [greet_and_die, *[die] * 12, greet_and_die, greet_and_stay]
    async with fake_keeper(tmp_path, *scripts) as keeper, trio.open_nursery() as nursery:
        await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
        with trio.fail_after(300):
            while listener.keepers < 3:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    pauses = [later - earlier for earlier, later in pairwise(keeper.accepted_at)]
    assert all(longer > shorter for shorter, longer in pairwise(pauses[1:8])), pauses
    assert max(pauses) <= 11
    assert pauses[-1] < 3, "an answer made it short again"


@pytest.mark.root
async def test_a_real_keeper_that_is_stopped_is_an_error_and_one_that_goes_on_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        keeper = node.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("trikubelet.embedded.keeper_client.START_DEADLINE", 1.0)
            async with trio.open_nursery() as nursery:
                with pytest.raises(KeeperStartError, match=f"kill -CONT {keeper}"):
                    await nursery.start(EmbeddedRuntime(tmp_path / "runtime", clock=SystemClock()).run)
    finally:
        os.kill(keeper, signal.SIGCONT)
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        assert node.keeper_pid() == keeper
        assert await node.runtime.shutdown()


@pytest.mark.root
async def test_the_keeper_has_ended_when_shutdown_returns(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        keeper = node.keeper_pid()
        assert is_alive(keeper)
        assert await node.runtime.shutdown()
        assert not is_alive(keeper)


ADOPTING_AGENT = """
import ctypes, os, signal, sys, trio
from pathlib import Path
from tests.embedded.runtime_node import running_node

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

async def main(folder):
    async with running_node(folder / "runtime", folder / "logs") as node:
        first = node.keeper_pid()
        assert str(first) in children(), "this agent stands for init"
        os.kill(first, signal.SIGKILL)
        with trio.fail_after(20):
            while node.keeper_pid() == first:
                await trio.sleep(0.01)
        assert str(first) not in children(), "the killed one is a zombie"
        assert await node.runtime.shutdown()
        assert children() == [], "the ended one is a zombie"
    print("reaped")

trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.root
async def test_an_agent_that_is_init_leaves_no_zombie_of_its_keepers(tmp_path: Path) -> None:
    with trio.fail_after(60):
        result = await trio.run_process(
            [sys.executable, "-c", ADOPTING_AGENT, str(tmp_path)], capture_stdout=True, capture_stderr=True, check=False
        )
    assert result.stdout.endswith(b"reaped\n"), result.stderr.decode()


@pytest.mark.root
async def test_leftovers_that_cannot_be_removed_do_not_end_the_runtime(
    tmp_path: Path,
) -> None:
    busy = [tmp_path / "runtime" / "removing" / "old", tmp_path / "runtime" / "images" / "staging" / "import-old"]
    for folder in busy:
        (folder / "mounted").mkdir(parents=True)
        await trio.run_process(["mount", "-t", "tmpfs", "none", str(folder / "mounted")])
    try:
        async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
            with trio.fail_after(10):
                await node.runtime._tidy()
            assert all(folder.exists() for folder in busy)
            assert await node.runtime.shutdown()
    finally:
        for folder in busy:
            await trio.run_process(["umount", str(folder / "mounted")])


async def test_a_keeper_that_does_not_do_what_tidying_asks_does_not_end_the_runtime(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def with_a_stranger(connection: Any) -> None:
        from tests.embedded.fake_keeper import LISTING, greeting

        await connection.answer(ok=greeting())
        await connection.answer(ok={**LISTING, "sandboxes": ["stranger"]})
        request = await connection.request()
        assert request["op"] == "sandbox_stop", json.dumps(request)
        await trio.sleep_forever()

    async with fake_keeper(tmp_path / "runtime", with_a_stranger):
        async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
            await trio.sleep(70)
            assert node.keeper_pid() == os.getpid()


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken"),
    [(1, 1, 1), (1, 2, 2), (2, 2, 2), (1, 9, 2), (2, 9, 2), (3, 9, None), (0, 0, None)],
)
def test_a_keeper_speaks_the_newest_version_that_the_agent_knows_too(
    oldest: int, newest: int, spoken: int | None
) -> None:
    assert protocol.agreed(oldest, newest) == spoken


async def test_a_keeper_of_the_release_before_is_adopted_and_its_pods_are_on_the_machines_network(
    tmp_path: Path,
) -> None:
    requests: list[dict[str, Any]] = []
    script = of_the_first_version(requests, sandboxes=["of-another-pod"])
    network = FakeNetwork()
    async with (
        fake_keeper(tmp_path / "runtime", script),
        running_node(tmp_path / "runtime", tmp_path / "logs", networks={"fake": network}) as node,
    ):
        condition = (await node.cri.status(v1.StatusRequest())).status.conditions[1]
        assert (condition.status, condition.reason) == (True, "HostNetwork")
        assert "of an earlier release" in condition.message
        sandbox = await node.sandbox()
        started = next(request for request in requests if request["op"] == "sandbox_start")
        assert started["network"] == "node"
        assert not any(name.startswith("net.") for name in started["sysctls"])
        assert (await pod_address(node, sandbox)) != ""
        assert network.specs == []


async def test_a_keeper_of_the_release_before_is_told_of_containers_at_their_start_alone(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = []
    async with (
        fake_keeper(tmp_path / "runtime", of_the_first_version(requests, sandboxes=["of-another-pod"])),
        running_node(tmp_path / "runtime", tmp_path / "logs") as node,
    ):
        await node.create(await node.sandbox(), ["true"])
        await node.sandbox("next")
        operations = [request["op"] for request in requests]
        assert operations.count("sandbox_start") == 2
        assert "create" not in operations


async def test_a_keeper_that_does_not_read_holds_up_nobody_who_only_tells_it(
    tmp_path: Path, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async with fake_keeper(tmp_path, greet_and_stay), trio.open_nursery() as nursery:
        client = KeeperClient(tmp_path, connected=listener.connected, event=listener.event)
        await start(client, nursery)
        began = trio.current_time()
        for _ in range(20):
            await client.tell("create", spec="x" * 40_000)
        assert 0 < trio.current_time() - began <= 20 * TOLD_WITHIN
        nursery.cancel_scope.cancel()


async def pod_address(node: Node, sandbox: str) -> str:
    reply = await node.cri.pod_sandbox_status(v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    return reply.status.network.ip


@pytest.mark.parametrize("keeper_before", [of_the_first_version, without_features])
async def test_an_unused_keeper_of_a_release_before_is_replaced(
    tmp_path: Path, listener: Listener, keeper_before: Callable[[list[dict[str, Any]]], Script]
) -> None:
    requests: list[dict[str, Any]] = []
    async with (
        fake_keeper(tmp_path, keeper_before(requests), greet_and_stay) as keeper,
        trio.open_nursery() as nursery,
    ):
        await start(KeeperClient(tmp_path, connected=listener.connected, event=listener.event), nursery)
        assert [request["op"] for request in requests] == ["shutdown"]
        assert (len(keeper.accepted_at), listener.keepers) == (2, 1)
        nursery.cancel_scope.cancel()
