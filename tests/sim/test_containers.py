"""How simulated containers live and die, seen through the agent's own clients."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import trio

from tests.sim.building import container_config, run_pod, sandbox_config
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError
from trikubelet.sim import ExecOutcome, Life, Program, SimulatedRuntime

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.sim.conftest import Connected

RUNNING = v1.ContainerState.CONTAINER_RUNNING
EXITED = v1.ContainerState.CONTAINER_EXITED


async def status(node: Connected, container_id: str) -> v1.ContainerStatus:
    return (await node.runtime.container_status(container_id)).status


async def test_a_container_runs_until_it_is_stopped(autojump_clock: MockClock, node: Connected) -> None:
    _, (container_id,) = await run_pod(node.runtime, node.images)
    await trio.sleep(3600)
    assert (await status(node, container_id)).state == RUNNING
    await node.runtime.stop_container(container_id, 30)
    ended = await status(node, container_id)
    assert (ended.state, ended.exit_code, ended.reason) == (EXITED, 143, "Error")


async def test_a_container_that_exits_has_its_own_end_time_whenever_one_looks(
    autojump_clock: MockClock, node: Connected
) -> None:
    node.sim.program(Program.exits(10), container="main")
    begun = trio.current_time()
    _, (container_id,) = await run_pod(node.runtime, node.images)
    await trio.sleep(1000)
    ended = await status(node, container_id)
    assert (ended.state, ended.exit_code, ended.reason) == (EXITED, 0, "Completed")
    assert ended.finished_at - ended.started_at == 10_000_000_000
    (run,) = node.sim.started("main")
    assert (run.started_at - begun, run.ended_at) == (0, run.started_at + 10)


async def test_each_start_of_a_container_lives_its_next_life(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.crashes(2, exit_code=7), container="main")
    await node.images.pull_image(v1.ImageSpec(image="nginx"))
    config = sandbox_config()
    sandbox_id = await node.runtime.run_pod_sandbox(config)
    codes = []
    for attempt in range(3):
        container_id = await node.runtime.create_container(sandbox_id, container_config(attempt=attempt), config)
        await node.runtime.start_container(container_id)
        codes.append((await status(node, container_id)).exit_code)
    assert codes == [7, 7, 0]
    assert [run.attempt for run in node.sim.started("main")] == [0, 1, 2]
    assert [container.id for container in node.sim.running_containers()] == [container_id]


@pytest.mark.parametrize(
    ("program", "grace", "takes", "exit_code", "signals"),
    [
        (Program.runs_forever(), 30, 0, 143, ["SIGTERM"]),
        (Program.runs_forever(sigterm=12), 30, 12, 143, ["SIGTERM"]),
        (Program.runs_forever(sigterm=None), 30, 30, 137, ["SIGTERM", "SIGKILL"]),
        (Program.runs_forever(sigterm=None, sigkill=5), 30, 35, 137, ["SIGTERM", "SIGKILL"]),
        (Program.runs_forever(), 0, 0, 137, ["SIGKILL"]),
        (Program((Life(sigterm=1, sigterm_exit_code=0),)), 30, 1, 0, ["SIGTERM"]),
        (Program((Life(duration=4, exit_code=9, sigterm=10),)), 30, 4, 9, ["SIGTERM"]),
    ],
)
async def test_stopping_sends_the_stop_signal_and_kills_after_the_grace_period(
    autojump_clock: MockClock,
    node: Connected,
    program: Program,
    grace: int,
    takes: float,
    exit_code: int,
    signals: list[str],
) -> None:
    node.sim.program(program, container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    container = node.sim.machine.containers[container_id]
    begun = trio.current_time()
    await node.runtime.stop_container(container_id, grace)
    assert trio.current_time() - begun == takes
    assert (await status(node, container_id)).exit_code == exit_code
    assert [signal for _, signal in container.signals] == signals


async def test_a_second_shorter_stop_overtakes_the_first(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.runs_forever(sigterm=None), container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    container = node.sim.machine.containers[container_id]
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.runtime.stop_container, container_id, 100)
        await trio.sleep(1)
        nursery.start_soon(node.runtime.stop_container, container_id, 5)
    assert trio.current_time() - begun == 6
    assert [signal for _, signal in container.signals] == ["SIGTERM", "SIGKILL"]


async def test_stopping_an_ended_or_unknown_container_is_no_error(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.exits(0), container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    await node.runtime.stop_container(container_id, 30)
    await node.runtime.stop_container("unknown", 30)


async def test_the_status_of_unknown_ids_is_not_found(autojump_clock: MockClock, node: Connected) -> None:
    with pytest.raises(CRIError) as container:
        await node.runtime.container_status("unknown")
    with pytest.raises(CRIError) as sandbox:
        await node.runtime.pod_sandbox_status("unknown")
    assert container.value.not_found
    assert sandbox.value.not_found


async def test_removing_a_running_container_kills_it_first(autojump_clock: MockClock, node: Connected) -> None:
    _, (container_id,) = await run_pod(node.runtime, node.images)
    await node.runtime.remove_container(container_id)
    (run,) = node.sim.started("main")
    assert run.exit_code == 137
    assert await node.runtime.list_containers() == []
    await node.runtime.remove_container(container_id)


async def test_stopping_a_sandbox_kills_its_containers_and_frees_its_address(
    autojump_clock: MockClock, node: Connected
) -> None:
    sandbox_id, ids = await run_pod(node.runtime, node.images, "a", "b")
    before = (await node.runtime.pod_sandbox_status(sandbox_id)).status
    assert re.fullmatch(r"10\.88\.\d+\.\d+", before.network.ip)
    await node.runtime.stop_pod_sandbox(sandbox_id)
    after = (await node.runtime.pod_sandbox_status(sandbox_id)).status
    assert (after.state, after.network.ip) == (v1.PodSandboxState.SANDBOX_NOTREADY, "")
    assert [(await status(node, container_id)).exit_code for container_id in ids] == [137, 137]
    await node.runtime.stop_pod_sandbox(sandbox_id)
    await node.runtime.stop_pod_sandbox("unknown")


async def test_removing_a_sandbox_removes_its_containers_and_may_be_repeated(
    autojump_clock: MockClock, node: Connected
) -> None:
    sandbox_id, _ = await run_pod(node.runtime, node.images)
    await node.runtime.remove_pod_sandbox(sandbox_id)
    assert await node.runtime.list_pod_sandboxes() == []
    assert await node.runtime.list_containers() == []
    assert node.sim.running_containers() == []
    await node.runtime.remove_pod_sandbox(sandbox_id)


async def test_a_sandbox_on_the_host_network_has_no_address(autojump_clock: MockClock, node: Connected) -> None:
    sandbox_id = await node.runtime.run_pod_sandbox(sandbox_config(host_network=True))
    reply = await node.runtime.pod_sandbox_status(sandbox_id)
    assert reply.status.network.ip == ""
    assert reply.status.linux.namespaces.options.network == v1.NamespaceMode.NODE


async def test_names_are_reserved_per_attempt_until_removal(autojump_clock: MockClock, node: Connected) -> None:
    sandbox_id, (container_id,) = await run_pod(node.runtime, node.images)
    with pytest.raises(CRIError, match="reserved"):
        await node.runtime.run_pod_sandbox(sandbox_config())
    with pytest.raises(CRIError, match="reserved"):
        await node.runtime.create_container(sandbox_id, container_config(), sandbox_config())
    await node.runtime.remove_container(container_id)
    await node.runtime.create_container(sandbox_id, container_config(), sandbox_config())
    await node.runtime.run_pod_sandbox(sandbox_config(attempt=1))


async def test_a_container_needs_its_image_on_the_node(autojump_clock: MockClock, node: Connected) -> None:
    config = sandbox_config()
    sandbox_id = await node.runtime.run_pod_sandbox(config)
    with pytest.raises(CRIError) as error:
        await node.runtime.create_container(sandbox_id, container_config(image="absent"), config)
    assert error.value.not_found


async def test_a_container_starts_once_and_only_in_a_ready_sandbox(autojump_clock: MockClock, node: Connected) -> None:
    sandbox_id, (container_id,) = await run_pod(node.runtime, node.images)
    with pytest.raises(CRIError, match="CONTAINER_RUNNING"):
        await node.runtime.start_container(container_id)
    late = await node.runtime.create_container(sandbox_id, container_config("late"), sandbox_config())
    node.sim.fail_sandbox(node.sim.machine.sandboxes[sandbox_id])
    with pytest.raises(CRIError, match="not running"):
        await node.runtime.start_container(late)
    assert node.sim.started("late") == []


async def test_a_failed_start_leaves_an_exited_container_with_code_128(
    autojump_clock: MockClock, node: Connected
) -> None:
    node.sim.program(Program.fails_to_start("exec: no such file", times=1), container="main")
    with pytest.raises(CRIError, match="no such file"):
        await run_pod(node.runtime, node.images)
    (container,) = await node.runtime.list_containers()
    failed = await status(node, container.id)
    assert (failed.state, failed.exit_code, failed.reason) == (EXITED, 128, "StartError")
    assert failed.message == "exec: no such file"
    assert node.sim.runs() == []


async def test_a_verbose_status_has_the_pid_while_it_runs(autojump_clock: MockClock, node: Connected) -> None:
    _, (container_id,) = await run_pod(node.runtime, node.images)
    reply = await node.runtime.container_status(container_id, verbose=True)
    pid = json.loads(reply.info["info"])["pid"]
    assert pid > 4_194_304
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.sim.wait_pid_exit, pid)
        await trio.sleep(5)
        node.sim.end_container(node.sim.machine.containers[container_id], 3, "OOMKilled")
    ended = await node.runtime.container_status(container_id, verbose=True)
    assert json.loads(ended.info["info"])["pid"] == 0
    assert (ended.status.exit_code, ended.status.reason) == (3, "OOMKilled")
    with pytest.raises(ProcessLookupError):
        await node.sim.wait_pid_exit(pid)


async def test_lists_are_filtered_by_id_state_sandbox_and_labels(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.exits(0), container="b")
    blue, (a, b) = await run_pod(node.runtime, node.images, "a", "b", pod="blue")
    red, (c,) = await run_pod(node.runtime, node.images, "a", pod="red")

    async def ids(**fields: object) -> list[str]:
        chosen = v1.ContainerFilter(**fields)  # type: ignore[arg-type]
        return [container.id for container in await node.runtime.list_containers(chosen)]

    assert await ids() == [a, b, c]
    assert await ids(id=b) == [b]
    assert await ids(pod_sandbox_id=blue) == [a, b]
    assert await ids(state=v1.ContainerStateValue(state=EXITED)) == [b]
    assert await ids(state=v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_CREATED)) == []
    assert await ids(label_selector={"io.kubernetes.container.name": "a"}) == [a, c]
    sandboxes = await node.runtime.list_pod_sandboxes(
        v1.PodSandboxFilter(label_selector={"io.kubernetes.pod.uid": "uid-red"})
    )
    assert [sandbox.id for sandbox in sandboxes] == [red]
    await node.runtime.stop_pod_sandbox(red)
    ready = v1.PodSandboxFilter(state=v1.PodSandboxStateValue(state=v1.PodSandboxState.SANDBOX_READY))
    assert [sandbox.id for sandbox in await node.runtime.list_pod_sandboxes(ready)] == [blue]


async def test_commands_do_what_the_program_says(autojump_clock: MockClock, node: Connected) -> None:
    def answer(command: object) -> ExecOutcome:
        return ExecOutcome(exit_code=2, stdout=repr(command).encode(), seconds=3)

    node.sim.program(Program(exec=answer), container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    begun = trio.current_time()
    reply = await node.runtime.exec_sync(container_id, ["ls", "/"], timeout=10)
    assert (reply.exit_code, reply.stdout, trio.current_time() - begun) == (2, b"['ls', '/']", 3)
    with pytest.raises(CRIError) as error:
        await node.runtime.exec_sync(container_id, ["ls"], timeout=1)
    assert error.value.timed_out
    await node.runtime.stop_container(container_id, 1)
    with pytest.raises(CRIError, match="CONTAINER_EXITED"):
        await node.runtime.exec_sync(container_id, ["ls"], timeout=1)


async def test_a_reboot_ends_everything_without_exit_codes(autojump_clock: MockClock, node: Connected) -> None:
    sandbox_id, (container_id,) = await run_pod(node.runtime, node.images)
    node.sim.reboot()
    machine = node.sim.machine
    assert machine.containers[container_id].exit_code == 255
    assert not machine.sandboxes[sandbox_id].ready


async def test_ids_depend_on_the_seed_alone(autojump_clock: MockClock) -> None:
    def ids(seed: int, *, another_pod_first: bool) -> list[str]:
        machine = SimulatedRuntime(seed=seed).machine
        if another_pod_first:
            machine.run_sandbox(sandbox_config("other"), "")
        return [machine.run_sandbox(sandbox_config(attempt=attempt), "").id for attempt in range(2)]

    first = ids(1, another_pod_first=False)
    assert first == ids(1, another_pod_first=True)
    assert len(set(first + ids(2, another_pod_first=False))) == 4
    assert all(re.fullmatch("[0-9a-f]{64}", name) for name in first)
