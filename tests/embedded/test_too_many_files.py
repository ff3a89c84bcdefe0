"""The keeper at its limit of open files: whatever cannot be done is told, nothing stays open, and later all works."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from grpclib import GRPCError, Status

from tests.embedded.remote import TTY, executing
from tests.embedded.runtime_node import descriptors, wait_for_descriptors
from tests.patience import PATIENCE
from trikubelet.embedded.keeper import protocol
from trikubelet.embedded.keeper_client import KeeperError, KeeperLostError
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.embedded.runtime_node import Node

TOLD = "too many open files"
MOST_NEEDED = 24
"""Free numbers with which everything works."""


@contextmanager
def room_for(number: int, pid: int = 0) -> Iterator[None]:
    """A process can open so many files more, and no more."""
    folder = Path(f"/proc/{pid or os.getpid()}/fd")
    used = {int(link.name) for link in list(folder.iterdir()) if link.is_symlink()}
    limit, left = 0, number
    while left or limit in used:
        left -= limit not in used
        limit += 1
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("room", range(4))
def test_what_comes_without_all_its_descriptors_is_an_error_and_nothing_stays_open(room: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(theirs, [b"three"], [0, 1, 2])
        (before,) = descriptors(os.getpid())
        if room == 3:
            payload, received = protocol.receive(ours, 100)
            assert payload == b"three"
            for descriptor in received:
                os.close(descriptor)
        else:
            with pytest.raises(OSError, match=r"[Tt]oo many open files"), room_for(room):
                protocol.receive(ours, 100)
        assert descriptors(os.getpid()) == [before]


SHARED_PID = v1.NamespaceOption(pid=v1.NamespaceMode.POD)
NODE_NETWORK = v1.NamespaceOption(network=v1.NamespaceMode.NODE, pid=v1.NamespaceMode.CONTAINER)


async def start_pod(node: Node, options: v1.NamespaceOption) -> None:
    sandbox = await node.sandbox(options=options)
    try:
        await node.launch(sandbox, ["sleep", "1000"], tty=True, stdin=True)
        await node.launch(sandbox, ["sleep", "1000"], stdin=True)
    finally:
        await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))


async def execute(node: Node, container: str) -> None:
    assert (await node.exec(container, ["echo", "out"])).stdout == b"out\n"


async def execute_on_terminal(node: Node, container: str) -> None:
    async with executing(node, container, ["echo", "out"], TTY) as client:
        pass
    if TOLD in str(client.result).lower():
        raise GRPCError(Status.INTERNAL, str(client.result))
    assert client.out == b"out\r\n"


async def attach(node: Node, container: str) -> None:
    reader, writer = os.pipe()
    try:
        answer, descriptor = await node.lifecycle.keeper.request_descriptor(
            "attach", [writer], container=container, streams=["stdout"], stdin=True
        )
        assert answer["input"] == "stdin"
        assert descriptor is not None
        os.close(descriptor)
    finally:
        os.close(reader)
        os.close(writer)


async def open_socket(node: Node, container: str) -> None:
    sandbox = node.cri._inventory.container(container).sandbox_id
    _, descriptor = await node.lifecycle.keeper.request_descriptor("socket", sandbox=sandbox, family=4)
    assert descriptor is not None
    os.close(descriptor)


async def reopen_log(node: Node, container: str) -> None:
    await node.cri.reopen_container_log(v1.ReopenContainerLogRequest(container_id=container))


async def start_shared_pod(node: Node, _container: str) -> None:
    await start_pod(node, SHARED_PID)


async def start_pod_on_node_network(node: Node, _container: str) -> None:
    await start_pod(node, NODE_NETWORK)


@pytest.mark.root
@pytest.mark.parametrize(
    "attempt",
    [start_shared_pod, start_pod_on_node_network, execute, execute_on_terminal, attach, open_socket, reopen_log],
)
async def test_the_keeper_tells_that_it_has_too_many_open_files(
    node: Node, attempt: Callable[[Node, str], Awaitable[Any]]
) -> None:
    keeper = node.keeper_pid()
    container = await node.launch(await node.sandbox("other"), ["sleep", "1000"], stdin=True)
    await attempt(node, container)
    await trio.sleep(0.2)
    before = descriptors(keeper)
    failed = 0
    for room in range(MOST_NEEDED):
        with room_for(room, keeper), trio.fail_after(30):
            try:
                await attempt(node, container)
            except (GRPCError, KeeperError) as error:
                text = str(error.message if isinstance(error, GRPCError) else error)
                assert TOLD in text.lower(), (room, text)
                failed += 1
        await wait_for_descriptors(before, keeper)
    assert node.keeper_pid() == keeper
    assert failed
    await attempt(node, container)
    assert Path(f"/proc/{node.pid(container)}").exists()


@pytest.mark.root
async def test_the_agent_tells_that_it_has_too_many_open_files_and_keeps_its_keeper(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sleep", "1000"], stdin=True)
    keeper, before = node.keeper_pid(), descriptors(os.getpid())
    with room_for(0):
        with pytest.raises(KeeperError, match="answer: Too many open files"):
            await open_socket(node, container)
        with pytest.raises(KeeperError, match="request: Too many open files"):
            await node.lifecycle.keeper.request("kill", container=container, more="x" * protocol.LARGEST_DATAGRAM)
        await node.lifecycle.keeper.tell("create", spec="x" * protocol.LARGEST_DATAGRAM)
        assert (await node.lifecycle.keeper.request("list"))["sandboxes"]
    assert descriptors(os.getpid()) == before
    await open_socket(node, container)
    assert node.keeper_pid() == keeper


async def works_again(node: Node, container: str) -> None:
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await execute(node, container)
            except GRPCError:
                await trio.sleep(0.01)
            else:
                return


@pytest.mark.root
async def test_a_long_request_that_comes_without_its_content_ends_the_connection_alone(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sleep", "1000"])
    keeper = node.keeper_pid()
    before = descriptors(keeper)
    with room_for(0, keeper), pytest.raises(KeeperLostError):
        await node.lifecycle.keeper.request("kill", container="none", more="x" * protocol.LARGEST_DATAGRAM)
    await works_again(node, container)
    await wait_for_descriptors(before, keeper)
    assert node.keeper_pid() == keeper
