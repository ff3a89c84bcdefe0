"""A container that is created has a process that waits for its start; whatever ends that, the start begins anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cgroup_folders import cgroups_with
from tests.embedded.escapes.attack import needs_isolation, start_fails
from tests.embedded.runtime_node import descriptors, is_alive, running_node, wait_for_descriptors, wait_until
from tests.patience import PATIENCE
from trikubelet.embedded import keeper_client
from trikubelet.embedded.keeper.server import MOST_EXPECTED
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


async def waiting(node: Node, container: str) -> int:
    """The pid of the process that is to become a container, when it has come as far as it can."""
    found: set[int] = set()

    def waits() -> bool:
        nonlocal found
        found = cgroup_processes(container)  # for a moment with a child of it
        return len(found) == 1 and all(Path(f"/proc/{pid}/wchan").read_text() != "0" for pid in found)

    await wait_until(waits, "it is alone in its cgroup and waits")
    (pid,) = found
    return pid


def cgroup_processes(container: str) -> set[int]:
    return {int(pid) for folder in cgroups_with(container) for pid in (folder / "cgroup.procs").read_text().split()}


@pytest.fixture
async def isolating(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Its keeper is told of every container that is created, however long that takes."""
    monkeypatch.setattr(keeper_client, "TOLD_WITHIN", PATIENCE)
    needs_isolation(node)
    if not node.runtime.capabilities()["limits"]:
        pytest.skip("what waits is found by its cgroup")
    return node


async def test_the_process_that_waits_becomes_the_container(isolating: Node) -> None:
    node = isolating
    container = await node.create(await node.sandbox(), ["sleep", "1000"])
    pid = await waiting(node, container)
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_CREATED
    assert b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    await node.start(container)
    assert node.pid(container) == pid
    assert b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_nobody_looks_into_the_process_that_waits(isolating: Node) -> None:
    """As another user of the machine with the container's user id could, if the kernel let it dump its memory."""
    node = isolating
    if node.cri.capabilities()["mode"] != "root":
        pytest.skip("there is one user only")
    security = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=1234))
    container = await node.create(await node.sandbox(), ["sleep", "1000"], security=security)
    pid = await waiting(node, container)
    await wait_until(lambda: "Uid:\t1234\t" in Path(f"/proc/{pid}/status").read_text(), "it is that user")
    await wait_until(lambda: Path(f"/proc/{pid}/environ").stat().st_uid == 0, "and its memory is not that user's")
    await node.start(container)


async def test_a_start_right_after_it_needs_no_waiting(isolating: Node) -> None:
    sandbox = await isolating.sandbox()
    for _ in range(20):
        assert (await isolating.run(sandbox, ["sh", "-c", "exit 7"])).exit_code == 7


async def test_one_that_is_removed_takes_its_process_and_its_groups_along(isolating: Node) -> None:
    node = isolating
    container = await node.create(await node.sandbox(), ["sleep", "1000"])
    pid = await waiting(node, container)
    await node.cri.remove_container(v1.RemoveContainerRequest(container_id=container))
    assert not is_alive(pid)
    assert cgroups_with(container) == []


async def test_a_stopped_pod_has_no_process_that_waits(isolating: Node) -> None:
    node = isolating
    sandbox = await node.sandbox()
    container = await node.create(sandbox, ["sleep", "1000"])
    pid = await waiting(node, container)
    await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert not is_alive(pid)
    assert cgroups_with(container) == []


async def test_a_container_whose_waiting_process_was_killed_starts_with_another(isolating: Node) -> None:
    node = isolating
    container = await node.create(await node.sandbox(), ["sh", "-c", "echo up; exec sleep 1000"])
    pid = await waiting(node, container)
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid), "it has ended, whether the keeper knows or not")
    await node.start(container)
    assert node.pid(container) != pid
    await node.wait_for_output(container, "up")


async def test_a_start_beside_the_death_of_what_waits_is_answered(isolating: Node) -> None:
    """Whichever the keeper hears of first."""
    node = isolating
    sandbox = await node.sandbox()
    for _ in range(20):
        container = await node.create(sandbox, ["sleep", "1000"])
        os.kill(await waiting(node, container), signal.SIGKILL)
        await node.start(container)
        await node.stop(container, 0)


async def test_what_cannot_be_prepared_is_told_by_the_start_and_no_sooner(isolating: Node) -> None:
    node = isolating
    sandbox = await node.sandbox()
    container = await node.create(sandbox, ["/no/such/program"])
    await start_fails(node, container, "no such file")
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_EXITED
    late = await node.create(sandbox, ["true"], working_dir="/run/made/later")
    await node.start(late)
    assert (await node.ended(late)).exit_code == 0


async def test_limits_changed_before_the_start_count(isolating: Node) -> None:
    node = isolating
    container = await node.create(
        await node.sandbox(), ["sleep", "1000"], resources=v1.LinuxContainerResources(memory_limit_in_bytes=1 << 26)
    )
    await waiting(node, container)
    limit = v1.LinuxContainerResources(memory_limit_in_bytes=1 << 27)
    await node.cri.update_container_resources(v1.UpdateContainerResourcesRequest(container_id=container, linux=limit))
    await node.start(container)
    limits = {
        path.read_text().strip()
        for folder in cgroups_with(container)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (path := folder / name).exists()
    }
    assert limits == {str(1 << 27)}


async def test_what_waits_longer_than_any_agent_takes_is_ended_and_starts_all_the_same(isolating: Node) -> None:
    node = isolating
    container = await node.create(await node.sandbox(), ["sleep", "1000"])
    pid = await waiting(node, container)
    await wait_until(lambda: not is_alive(pid), "ten seconds have passed")
    await node.start(container)
    assert node.pid(container) != pid


async def test_of_a_killed_keeper_nothing_that_waits_is_left(isolating: Node) -> None:
    node = isolating
    container = await node.create(await node.sandbox(), ["sleep", "1000"])
    pid, keeper = await waiting(node, container), node.keeper_pid()
    os.kill(keeper, signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid), "it has gone with the keeper")
    await wait_until(lambda: node.keeper_pid() != keeper, "there is another one")
    assert (await node.run(await node.sandbox("next"), ["true"])).exit_code == 0
    assert cgroups_with(container) == []
    folder = node.runtime.root / "containers" / container
    assert [path.name for path in folder.iterdir()] == ["container.json"]
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_CREATED


async def test_the_next_agent_starts_what_the_last_one_created(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        needs_isolation(node)
        container = await node.create(await node.sandbox(), ["sh", "-c", "echo up; exec sleep 1000"])
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        await node.start(container)
        await node.wait_for_output(container, "up")
        await node.remove_everything()
        assert await node.runtime.shutdown()


async def test_a_start_that_is_refused_leaves_no_descriptor(isolating: Node) -> None:
    node = isolating
    sandbox = await node.sandbox()
    target = await node.launch(sandbox, ["sleep", "1000"])
    options = v1.NamespaceOption(pid=v1.NamespaceMode.TARGET, target_id=target)
    security = v1.LinuxContainerSecurityContext(namespace_options=options)
    container = await node.create(sandbox, ["true"], security=security)
    await node.stop(target, 0)
    before = descriptors(node.keeper_pid())
    await start_fails(node, container, "exited")
    await wait_for_descriptors(before, node.keeper_pid())


def folders(node: Node) -> list[str]:
    return [path.name for path in (node.runtime.root / "containers").iterdir()]


async def expected(node: Node) -> tuple[str, int]:
    """The id that the first container of the only pod will have, and the process that waits for its specification."""
    (container,) = folders(node)
    return container, await waiting(node, container)


@pytest.fixture
async def expecting(isolating: Node) -> Node:
    if isolating.cri.capabilities()["mode"] != "root":
        pytest.skip("nothing is made before it is known what it is to be")
    return isolating


async def test_the_first_container_of_a_pod_becomes_a_process_that_was_there_before_it(expecting: Node) -> None:
    node = expecting
    sandbox = await node.sandbox()
    name, pid = await expected(node)
    container = await node.create(sandbox, ["sleep", "1000"])
    await node.start(container)
    assert (container, node.pid(container)) == (name, pid)
    second = await node.launch(sandbox, ["sleep", "1000"])
    assert second != name


async def test_a_first_container_that_is_another_than_expected_gets_a_process_of_its_own(expecting: Node) -> None:
    node = expecting
    sandbox = await node.sandbox()
    name, pid = await expected(node)
    security = v1.LinuxContainerSecurityContext(privileged=True)
    container = await node.create(sandbox, ["sh", "-c", "echo up; exec sleep 1000"], security=security)
    await node.start(container)
    assert container == name
    assert node.pid(container) != pid
    assert not is_alive(pid)
    await node.wait_for_output(container, "up")


async def test_a_first_container_whose_process_was_killed_gets_another(expecting: Node) -> None:
    node = expecting
    sandbox = await node.sandbox()
    _, pid = await expected(node)
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid), "it has ended, whether the keeper knows or not")
    assert (await node.run(sandbox, ["sh", "-c", "exit 7"])).exit_code == 7


async def test_of_a_pod_without_containers_nothing_is_left(expecting: Node) -> None:
    node = expecting
    sandbox = await node.sandbox()
    container, pid = await expected(node)
    await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert not is_alive(pid)
    assert cgroups_with(container) == []
    await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert folders(node) == []


async def test_of_a_killed_keeper_nothing_that_is_expected_is_left(expecting: Node) -> None:
    node = expecting
    sandbox = await node.sandbox()
    (container, pid), keeper = await expected(node), node.keeper_pid()
    os.kill(keeper, signal.SIGKILL)
    await wait_until(lambda: not is_alive(pid), "it has gone with the keeper")
    await wait_until(lambda: node.keeper_pid() != keeper, "there is another one")
    await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    assert cgroups_with(container) == []
    assert folders(node) == []


async def test_of_an_agent_that_has_gone_nothing_that_is_expected_is_left(tmp_path: Path) -> None:
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        needs_isolation(node)
        await node.sandbox()
        made = folders(node)
    async with running_node(tmp_path / "runtime", tmp_path / "logs") as node:
        await wait_until(lambda: not any(map(cgroups_with, made)), "the keeper has given it up")
        assert folders(node) == []
        await node.remove_everything()
        assert await node.runtime.shutdown()


async def test_no_more_processes_are_expected_than_a_node_has_memory_for(expecting: Node) -> None:
    node = expecting
    sandboxes = [await node.sandbox(f"pod-{number}") for number in range(MOST_EXPECTED + 2)]
    assert sum(bool(cgroup_processes(container)) for container in folders(node)) <= MOST_EXPECTED
    for sandbox in (sandboxes[-1], sandboxes[0]):
        assert (await node.run(sandbox, ["sh", "-c", "exit 7"])).exit_code == 7
