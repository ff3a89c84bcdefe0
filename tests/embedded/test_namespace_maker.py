"""The process that makes pods' namespaces: what it is when it has nothing to do, and when it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.runtime_node import children_named, is_alive, wait_until
from tests.patience import SLOWER
from trikubelet.embedded.keeper.namespace_maker import AHEAD_AFTER
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

NAMESPACES = ("uts", "ipc", "net", "mnt")


def makers(node: Node) -> list[int]:
    """Children of the keeper that make namespaces."""
    return children_named("trikube-maker", node.keeper_pid())


def namespaces(pid: int) -> list[str]:
    return [str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in NAMESPACES]


@pytest.fixture
async def root_node(node: Node) -> Node:
    if node.cri.capabilities()["mode"] != "root":
        pytest.skip("a process that left its namespaces for those of a user namespace cannot go back")
    return node


async def test_one_process_makes_the_namespaces_of_all_pods_and_stays_in_none(root_node: Node) -> None:
    assert makers(root_node) == []
    hosts = []
    for name in ("first", "second"):
        hosts.append((await root_node.run(await root_node.sandbox(name, hostname=name), ["hostname"])).out)
    assert hosts == ["first\n", "second\n"]
    (maker,) = makers(root_node)
    await wait_until(lambda: namespaces(maker) == namespaces(root_node.keeper_pid()), "it is back")


async def test_a_killed_one_is_replaced(root_node: Node) -> None:
    await root_node.sandbox("before")
    (maker,) = makers(root_node)
    os.kill(maker, signal.SIGKILL)
    assert (await root_node.run(await root_node.sandbox("after"), ["true"])).exit_code == 0
    (another,) = makers(root_node)
    assert another != maker
    os.kill(another, signal.SIGKILL)
    await wait_until(lambda: not Path(f"/proc/{another}").exists(), "nobody asks for it, and it is collected")


async def test_one_that_fails_serves_the_next_pod(root_node: Node) -> None:
    await root_node.sandbox("before")
    made = makers(root_node)
    with pytest.raises(Exception, match="Invalid argument"):
        await root_node.sandbox("wrong", sysctls={"kernel.msgmax": "none"})
    assert (await root_node.run(await root_node.sandbox("after"), ["true"])).exit_code == 0
    assert makers(root_node) == made
    await root_node.lifecycle.tidy()  # the folder of the pod that could not be made


async def test_it_goes_with_the_keeper(root_node: Node) -> None:
    await root_node.sandbox("before")
    (maker,), keeper = makers(root_node), root_node.keeper_pid()
    os.kill(keeper, signal.SIGKILL)
    await wait_until(lambda: not is_alive(maker), "it has ended")
    await wait_until(lambda: root_node.keeper_pid() != keeper, "there is another keeper")
    assert (await root_node.run(await root_node.sandbox("after"), ["true"])).exit_code == 0


async def test_those_of_the_next_pod_on_the_machines_network_are_made_ahead(root_node: Node) -> None:
    node, options = root_node, v1.NamespaceOption(network=v1.NamespaceMode.NODE, pid=v1.NamespaceMode.CONTAINER)
    shown = set()

    async def start(name: str) -> None:
        sandbox = await node.sandbox(name, options=options)
        script = "readlink /proc/self/ns/ipc; ls -A /dev/shm; : > /dev/shm/mine"
        shown.add((await node.run(sandbox, ["sh", "-c", script])).out)

    await start("first")
    (maker,) = makers(node)
    await trio.sleep(60 * AHEAD_AFTER * SLOWER)
    os.kill(maker, signal.SIGSTOP)
    try:
        await start("second")  # without it
    finally:
        os.kill(maker, signal.SIGCONT)
    await start("third")
    own = await node.run(await node.sandbox("named", hostname="named"), ["hostname"])
    assert own.out == "named\n"
    await start("fourth")
    assert len(shown) == 4
    assert all("mine" not in text for text in shown)
    os.kill(maker, signal.SIGKILL)
    await start("fifth")
    assert len(shown) == 5
