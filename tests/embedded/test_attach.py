"""Clients attached to running containers (CRI Attach), without the wire."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.remote import OUTPUT, PLAIN, TTY, attached
from tests.embedded.runtime_node import descriptors, running_node, wait_for_descriptors, wait_until
from tests.embedded.test_survival import ending_node
from trikubelet.embedded.attachments import PIPE_SIZE
from trikubelet.http.streaming.command import Exited, Failed, TerminalSize
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

# Answers each line that it gets, and says when there are no more.
ECHO = "while read line; do echo got-$line; done; echo end"
LEFT_OUT = re.compile(rb"\r\n\[trikubelet: (\d+) bytes of output left out: they were not read in time\]\r\n")


async def wait_for_clients(node: Node, container: str, count: int) -> None:
    clients = node.lifecycle.attachments._by_container
    await wait_until(lambda: len(clients.get(container, ())) == count, f"{count} are attached")


def awaiting(folder: Path) -> str:
    """The part of a container's script that ends with `let_go_on`."""
    return f"until [ -e {folder}/go ]; do sleep 0.02; done"


async def let_go_on(node: Node, container: str, folder: Path) -> None:
    await node.exec(container, ["sh", "-c", f"mkdir -p {folder}; touch {folder}/go"])


async def test_two_clients_see_the_same_output_and_both_may_type(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", ECHO], stdin=True)
    async with attached(node, container) as first, attached(node, container) as second:
        await first.type(b"one\n")
        await second.wait_for(b"got-one\n")
        await second.type(b"two\n")
        await first.wait_for(b"got-two\n")
        await node.stop(container, 0)
    assert bytes(first.out) == bytes(second.out) == b"got-one\ngot-two\n"
    assert first.result == second.result == Exited(0)
    assert [text for _, _, text in node.log(container)] == ["got-one", "got-two"]


async def test_both_streams_come_apart_and_only_what_is_written_from_now_on(node: Node) -> None:
    script = "echo before; read; echo out; echo err >&2; sleep 1000"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True)
    await node.wait_for_output(container, "before")
    async with attached(node, container) as client:
        await client.type(b"\n")
        await client.wait_for(b"out\n")
        await wait_until(lambda: bytes(client.err) == b"err\n", "stderr arrived")
        await client.leave()
    assert bytes(client.out) == b"out\n"
    assert client.result is None


async def test_the_end_of_one_clients_stdin_detaches_it_and_leaves_the_container_its_own(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", ECHO], stdin=True)
    async with attached(node, container) as first:
        await first.type(b"one\n")
        await first.wait_for(b"got-one")
        await first.end_stdin()
    assert first.result == Exited(0)
    async with attached(node, container) as second:
        await second.type(b"two\n")
        await second.wait_for(b"got-two")
        await node.stop(container, 0)
    assert "end" not in [text for _, _, text in node.log(container)]


async def test_with_stdin_once_the_first_client_that_ends_its_stdin_ends_the_containers(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", ECHO], stdin=True, stdin_once=True)
    async with attached(node, container) as first, attached(node, container) as second:
        await first.type(b"one\n")
        await second.wait_for(b"got-one")
        await first.end_stdin()
        await second.wait_for(b"end\n")
    assert bytes(first.out) == b"got-one\nend\n"
    assert (first.result, second.result) == (Exited(0), Exited(0))
    assert (await node.ended(container)).exit_code == 0


async def test_with_stdin_once_a_client_that_goes_away_ends_the_containers_too(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", ECHO], stdin=True, stdin_once=True)
    async with attached(node, container) as client:
        await client.type(b"one\n")
        await client.wait_for(b"got-one")
        await client.leave()
    assert (await node.ended(container)).out == "got-one\nend\n"


async def test_after_stdin_has_been_closed_a_client_sees_output_only(node: Node, tmp_path: Path) -> None:
    script = f"cat; echo through; {awaiting(tmp_path)}; echo later"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True, stdin_once=True)
    async with attached(node, container) as first:
        await first.end_stdin()
        await first.wait_for(b"through")
        async with attached(node, container) as second:
            await wait_for_clients(node, container, 2)
            await second.type(b"to nobody\n")
            await second.end_stdin()
            await let_go_on(node, container, tmp_path)
    assert bytes(second.out) == b"later\n"
    assert second.result == Exited(0)


async def test_a_container_without_stdin_takes_none(node: Node, tmp_path: Path) -> None:
    script = f"{awaiting(tmp_path)}; cat; echo end"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script])
    async with attached(node, container) as client:
        await wait_for_clients(node, container, 1)
        await client.type(b"to nobody\n")
        await let_go_on(node, container, tmp_path)
    assert (bytes(client.out), client.result) == (b"end\n", Exited(0))


async def test_a_terminal_is_shared_resized_and_logged(node: Node) -> None:
    script = "trap 'stty size' WINCH; trap 'echo inter''rupted; exit 9' INT; echo ready; while :; do sleep 0.02; done"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True, tty=True)
    await node.wait_for_output(container, "ready")
    async with attached(node, container, TTY) as first, attached(node, container, TTY) as second:
        await first.sizes.send(TerminalSize(width=99, height=33))
        await second.wait_for(b"33 99")
        await second.type(b"\x03")
        await first.wait_for(b"interrupted")
    assert (first.result, second.result) == (Exited(0), Exited(0))
    ended = await node.ended(container)
    assert ended.exit_code == 9
    assert "33 99" in ended.out
    assert "interrupted" in ended.out


async def test_a_terminal_without_stdin_cannot_be_typed_into(node: Node) -> None:
    script = "until [ \"$(stty size)\" = '34 12' ]; do sleep 0.02; done; stty size; sleep 0.1"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], tty=True)
    async with attached(node, container, TTY) as client:
        await wait_for_clients(node, container, 1)
        await client.type(b"\x03\x04typed\r")
        await client.sizes.send(TerminalSize(width=12, height=34))
    assert bytes(client.out).split() == [b"34", b"12"]


async def test_a_client_that_does_not_read_slows_nobody_and_no_line_of_the_log_is_lost(node: Node) -> None:
    lines = 400_000
    script = f"read; seq 1 {lines}; echo done >&2; sleep 1000"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True)
    async with attached(node, container, reading=False) as slow, attached(node, container) as typing:
        await typing.type(b"\n")
        started = trio.current_time()
        await wait_until(lambda: bytes(typing.err) == b"done\n", "the container has written everything")
        assert trio.current_time() - started < 10
        logged = [text for stream, _, text in node.log(container) if stream == "stdout"]
        assert logged == [str(number) for number in range(1, lines + 1)]
        await node.stop(container, 0)
        await slow.read()
    # An agent without CPU reads late, too: then something is left out before the client has what it takes.
    *pieces, rest = LEFT_OUT.split(bytes(slow.out))
    everything = "".join(f"{line}\n" for line in logged).encode()
    at = 0
    for piece, left_out in zip(pieces[::2], pieces[1::2], strict=True):
        assert everything[at : at + len(piece)] == piece
        at += len(piece) + int(left_out)
    assert (at, rest) == (len(everything), b"")
    assert 0 < sum(map(len, pieces[::2])) <= 2 * PIPE_SIZE
    assert slow.result == Exited(0)


async def test_a_client_that_catches_up_is_told_what_it_missed_and_goes_on(node: Node) -> None:
    script = "read; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo full >&2; read; echo after; sleep 1000"
    container = await node.launch(await node.sandbox(), ["bash", "-c", script], stdin=True)
    async with attached(node, container, reading=False) as client:
        await client.type(b"\n")
        await node.wait_for_output(container, "full")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.read)
            await client.wait_for(b"bytes of output left out")
            await client.type(b"\n")
            await client.wait_for(b"after\n")
            await client.leave()


async def test_a_container_that_does_not_read_holds_up_its_client_only(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", "sleep 2; head -c 300000 | wc -c"], stdin=True)
    async with attached(node, container) as other, attached(node, container) as client:
        await wait_for_clients(node, container, 2)
        await other.leave()  # how it leaves its share of the container's stdin must not matter to the other
        await wait_for_clients(node, container, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.type, b"x" * 300_000)
            started = trio.current_time()
            await trio.sleep(0.05)
            assert trio.current_time() - started < 1.5
    assert bytes(client.out) == b"300000\n"


async def test_clients_that_go_away_leave_nothing_in_the_keeper(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sleep", "1000"], stdin=True)
    keeper = node.keeper_pid()
    before = descriptors(os.getpid(), keeper)
    for streams in [PLAIN, OUTPUT] * 20:
        async with attached(node, container, streams) as client:
            await client.leave()
    await wait_for_descriptors(before, os.getpid(), keeper)
    assert node.lifecycle.attachments._by_container == {}


async def test_a_container_that_has_ended_cannot_be_attached_to(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sleep", "1000"])
    await node.stop(container, 0)
    async with attached(node, container) as client:
        pass
    assert isinstance(client.result, Failed)


async def test_a_container_can_be_attached_to_after_its_agent_was_replaced(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        container = await node.launch(await node.sandbox(), ["bash", "-c", ECHO], stdin=True)
        async with attached(node, container) as client:
            await client.type(b"one\n")
            await client.wait_for(b"got-one")
            await client.leave()
    async with ending_node(tmp_path) as node:
        async with attached(node, container) as client:
            await client.type(b"two\n")
            await client.wait_for(b"got-two")
            await node.cri.stop_container(v1.StopContainerRequest(container_id=container))
    assert client.result == Exited(0)
