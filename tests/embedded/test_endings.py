"""How containers end: on request, by force, and with everything that they started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.cgroup_folders import cgroups_with
from tests.embedded.runtime_node import is_alive, mounts_with, processes_with, wait_until
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

# Forks and starts new sessions without end; every generation carries the marker.
ESCAPER = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.002)
print("running", flush=True)
time.sleep(1000)
"""


async def test_a_process_that_ends_on_sigterm_is_not_waited_for_longer(node: Node) -> None:
    container = await node.launch(
        await node.sandbox(), ["bash", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"]
    )
    await node.wait_for_output(container, "ready")
    started = trio.current_time()
    await node.stop(container, 30)
    assert trio.current_time() - started < 5
    ended = await node.ended(container)
    assert ended.exit_code == 5
    assert ended.out == "ready\nbye\n"


async def test_a_process_that_ignores_sigterm_is_killed_after_the_timeout(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", "trap '' TERM; echo ready; sleep 1000"])
    await node.wait_for_output(container, "ready")
    started = trio.current_time()
    await node.stop(container, 1)
    assert 1.0 <= trio.current_time() - started < 5
    assert (await node.status(container)).exit_code == 137


async def test_a_shorter_timeout_overtakes_a_longer_one(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", "trap '' TERM; echo ready; sleep 1000"])
    await node.wait_for_output(container, "ready")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.stop, container, 1000)
            await trio.sleep(0.05)
            await node.stop(container, 0)


async def test_the_containers_own_stop_signal_is_sent(node: Node) -> None:
    container = await node.launch(
        await node.sandbox(),
        ["bash", "-c", "trap 'exit 6' USR1; echo ready; while :; do sleep 0.01; done"],
        stop_signal=v1.Signal.SIGUSR1,
    )
    await node.wait_for_output(container, "ready")
    await node.stop(container, 30)
    assert (await node.status(container)).exit_code == 6
    assert (await node.status(container)).stop_signal == v1.Signal.SIGUSR1


@pytest.mark.parametrize("mode", [v1.NamespaceMode.CONTAINER, v1.NamespaceMode.POD, v1.NamespaceMode.NODE])
async def test_nothing_escapes_by_forking_into_new_sessions(node: Node, mode: v1.NamespaceMode) -> None:
    marker = f"escaper-{mode.name}-{node.keeper_pid()}"
    options = v1.NamespaceOption(pid=mode)
    sandbox = await node.sandbox(options=options)
    security = v1.LinuxContainerSecurityContext(namespace_options=options)
    container = await node.create(sandbox, ["python3", "-c", ESCAPER, marker], security=security)
    node.cri._inventory.container(container).spec["pid_namespace"] = {0: "pod", 1: "container", 2: "node"}[int(mode)]
    await node.start(container)
    await node.wait_for_output(container, "running")
    assert processes_with(marker)
    await node.stop(container, 0)
    assert processes_with(marker) == []


async def test_what_a_container_leaves_behind_ends_with_it(node: Node) -> None:
    marker = f"leftover-{node.keeper_pid()}"
    options = v1.NamespaceOption(pid=v1.NamespaceMode.NODE)
    leftover = f"python3 -c 'import os,time; os.fork() or (os.setsid(), time.sleep(1000))' {marker}"
    container = await node.create(
        await node.sandbox(options=options),
        ["bash", "-c", f"{leftover} & sleep 0.3"],
        security=v1.LinuxContainerSecurityContext(namespace_options=options),
    )
    await node.start(container)
    await node.ended(container)
    await wait_until(lambda: processes_with(marker) == [], "the leftovers are gone")


async def test_a_removed_container_leaves_no_mount_no_file_and_no_process(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["sh", "-c", "echo x > /usr/y; echo ready; sleep 1000"])
    await node.wait_for_output(container, "ready")
    pid, folder = node.pid(container), node.runtime.root / "containers" / container
    assert is_alive(pid)
    assert (folder / "upper" / "usr" / "y").exists()
    assert mounts_with(container) == []
    await node.remove(container)
    assert not is_alive(pid)
    assert not folder.exists()
    assert cgroups_with(container) == []


async def test_stopping_a_sandbox_kills_its_containers(node: Node) -> None:
    sandbox = await node.sandbox()
    containers = [await node.launch(sandbox, ["sleep", "1000"]) for _ in range(3)]
    await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert [(await node.status(container)).exit_code for container in containers] == [137] * 3
    status = (await node.cri.pod_sandbox_status(v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox))).status
    assert status.state == v1.PodSandboxState.SANDBOX_NOTREADY


async def test_events_tell_the_whole_life_in_order(node: Node) -> None:
    events: list[tuple[str, str]] = []
    seen = trio.Event()
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            async for event in node.cri.get_container_events(v1.GetEventsRequest()):
                events.append((event.container_id, v1.ContainerEventType(event.container_event_type).name or ""))
                assert event.pod_sandbox_status.metadata.uid == "uid-pod"
                if len(events) == 8:
                    seen.set()

        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        sandbox = await node.sandbox()
        container = await node.launch(sandbox, ["true"])
        await node.ended(container)
        await node.remove(container)
        await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
        with trio.fail_after(PATIENCE):
            await seen.wait()
        nursery.cancel_scope.cancel()
    created, started, stopped, deleted = (
        f"CONTAINER_{word}_EVENT" for word in ["CREATED", "STARTED", "STOPPED", "DELETED"]
    )
    assert events == [
        (sandbox, created),
        (sandbox, started),
        (container, created),
        (container, started),
        (container, stopped),
        (container, deleted),
        (sandbox, stopped),
        (sandbox, deleted),
    ]
