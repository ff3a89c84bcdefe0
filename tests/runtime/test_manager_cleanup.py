"""Reading the runtime, and removing what is dead from it and from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.container.errors import GarbageCollectionError
from trikubelet.container.model import ContainerState
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.gc_choice import ContainerGCPolicy
from trikubelet.sim.machine import FAILED_TO_START
from trikubelet.sim.programs import Program

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


async def crash(node: Node, times: int) -> None:
    """A pod whose container crashed so often and then runs."""
    node.sim.program(Program.crashes(times), pod="web")
    pod = make_pod()
    while not node.sim.running_containers():
        result = await node.sync(pod)
        await trio.sleep_until(result.backoffs.get("main", trio.current_time()))


async def test_pods_are_listed_with_what_runs_or_with_everything(autojump_clock: MockClock, node: Node) -> None:
    await crash(node, 2)
    await node.sync(make_pod(name="other"))
    running = await node.manager.get_pods()
    assert {pod.full_name: len(pod.containers) for pod in running} == {"web_default": 1, "other_default": 1}
    everything = {pod.full_name: pod for pod in await node.manager.get_pods(all=True)}
    web = everything["web_default"]
    assert [one.attempt for one in web.containers] == [2, 1, 0]
    assert [one.state for one in web.containers] == [
        ContainerState.RUNNING,
        ContainerState.EXITED,
        ContainerState.EXITED,
    ]
    assert (web.uid, web.name, web.namespace) == ("uid-web", "web", "default")
    assert str(web.containers[0].id).startswith("simulated://")


async def test_a_status_has_the_newest_run_first_and_everything_known_of_it(
    autojump_clock: MockClock, node: Node
) -> None:
    await crash(node, 1)
    began = trio.current_time()
    status = await node.manager.get_pod_status("uid-web")
    assert (status.name, status.namespace, status.observed_at) == ("web", "default", began)
    newest, oldest = status.container_statuses
    assert (newest.restart_count, newest.state, newest.exit_code) == (1, ContainerState.RUNNING, 0)
    assert newest.finished_at is None
    assert (oldest.restart_count, oldest.state, oldest.exit_code, oldest.reason) == (
        0,
        ContainerState.EXITED,
        1,
        "Error",
    )
    assert oldest.finished_at is not None
    assert oldest.started_at is not None


async def test_a_runtime_that_tells_of_containers_with_their_sandbox_is_asked_twice_only(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    node.sim.calls.clear()
    carried = await node.status(pod)
    assert [call.rpc for call in node.sim.calls.of()] == ["ListPodSandbox", "PodSandboxStatus"]
    node.sim.events.supported = False
    node.sim.calls.clear()
    asked = await node.status(pod)
    assert [call.rpc for call in node.sim.calls.of()] == [
        "ListPodSandbox",
        "PodSandboxStatus",
        "ListContainers",
        "ContainerStatus",
        "ContainerStatus",
    ]
    assert attrs.evolve(asked, observed_at=carried.observed_at) == carried


async def test_an_unknown_pod_has_an_empty_status(autojump_clock: MockClock, node: Node) -> None:
    status = await node.manager.get_pod_status("nobody", "a", "b")
    assert (status.uid, status.container_statuses, status.sandbox_statuses) == ("nobody", (), ())


async def test_what_vanishes_while_looking_is_left_out(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    node.sim.events.supported = False
    node.sim.faults.fail_next("ContainerStatus", status=Status.NOT_FOUND)
    assert len((await node.status(pod)).container_statuses) == 1


async def test_any_other_error_is_the_callers(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container("a"), make_container("b"))
    await node.sync(pod)
    node.sim.events.supported = False
    node.sim.faults.fail_next("ContainerStatus", status=Status.UNAVAILABLE)
    with pytest.raises(CRIError):
        await node.status(pod)


async def test_a_containers_last_words_are_in_its_status(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(5, exit_code=3))
    pod = make_pod(make_container(termination_message_path="/dev/termination-log"), restart_policy="Never")
    await node.sync(pod)
    [running] = node.sim.running_containers()
    [mount] = [one for one in running.config.mounts if one.container_path == "/dev/termination-log"]
    await trio.Path(mount.host_path).write_text("out of ideas")
    await trio.sleep(6)
    ended = await node.seen(pod, "main")
    assert (ended.message, ended.exit_code) == ("out of ideas", 3)


async def collect(node: Node, *removed: str, policy: ContainerGCPolicy = ContainerGCPolicy()) -> None:  # noqa: B008
    await node.manager.garbage_collect(policy, all_sources_ready=True, is_pod_removed=lambda uid: uid in removed)


async def test_the_last_dead_run_of_a_container_stays(autojump_clock: MockClock, node: Node) -> None:
    await crash(node, 3)
    await collect(node)
    status = await node.manager.get_pod_status("uid-web")
    assert [one.restart_count for one in status.container_statuses] == [3, 2]


async def test_a_start_that_was_cut_off_takes_no_place_from_the_last_run_though_nobody_has_looked_at_it(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.program(Program.crashes(1), pod="web")
    await node.sync(make_pod())
    await trio.sleep(1)
    node.sim.delays["StartContainer"] = 1.0
    with trio.move_on_after(0.5):
        await node.sync(make_pod())
    await trio.sleep(5)
    node.sim.machine.settle()
    assert {one.exit_code for one in node.sim.machine.containers.values()} == {1, FAILED_TO_START}
    await collect(node)
    assert {one.exit_code for one in node.sim.machine.containers.values()} == {1, FAILED_TO_START}


async def test_all_of_a_removed_pod_goes(autojump_clock: MockClock, node: Node, tmp_path: Path) -> None:
    pod = make_pod()
    await node.sync(pod)
    await node.sync(make_pod(name="other"))
    await node.kill(pod)
    await collect(node, "uid-web")
    assert [one.pod_uid for one in node.sim.machine.containers.values()] == ["uid-other"]
    assert len(node.sim.machine.sandboxes) == 1
    assert [one.name for one in (tmp_path / "logs").iterdir()] == ["default_other_uid-other"]


async def test_how_a_container_ended_is_known_though_it_is_collected_before_anybody_looked(
    autojump_clock: MockClock, node: Node
) -> None:
    """All of an evicted pod may go at once: also what ended a moment ago."""
    node.sim.program(Program.exits(5, exit_code=3))
    await node.sync(make_pod(restart_policy="Never"))
    [ended] = node.sim.running_containers()
    await trio.sleep(6)
    await collect(node, "uid-web")
    assert not node.sim.machine.containers
    end = node.manager.seen_end(ended.id)
    assert end is not None
    assert (end.state, end.exit_code, end.pod_sandbox_id) == (ContainerState.EXITED, 3, ended.sandbox.id)


async def test_logs_of_another_agent_stay(autojump_clock: MockClock, node: Node, tmp_path: Path) -> None:
    other = node.another_manager(root_dir=tmp_path / "another root")
    await node.sync(make_pod())
    theirs = make_pod(name="theirs")
    await node.sync_with(other, theirs)
    unmarked = tmp_path / "logs" / "default_go_uid-go" / "main" / "0.log"
    unmarked.parent.mkdir(parents=True)
    unmarked.write_text("")
    await collect(node, "uid-web", "uid-theirs", "uid-go")
    assert sorted(one.name for one in (tmp_path / "logs").iterdir()) == [
        "default_go_uid-go",
        "default_theirs_uid-theirs",
    ]


async def test_logs_stay_ours_when_the_agent_starts_again(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    (tmp_path / "link to root").symlink_to(tmp_path / "root")
    await node.sync(make_pod())
    node.manager = node.another_manager(root_dir=tmp_path / "link to root")
    await collect(node, "uid-web")
    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_started_container_claims_a_folder_that_has_no_owner(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    pod = make_pod()
    await node.sync(pod)
    for entry in (tmp_path / "logs" / "default_web_uid-web").iterdir():
        if entry.is_file():
            entry.unlink()
    node.sim.end_container(node.sim.running_containers()[0], exit_code=1)
    await node.settle(pod, 2)
    await collect(node, "uid-web")
    assert list((tmp_path / "logs").iterdir()) == []


async def test_what_is_left_is_removed_when_no_sandbox_waits_to_be_stopped(
    autojump_clock: MockClock, node: Node
) -> None:
    gone, crashed = make_pod(name="gone"), make_pod(name="crashed")
    node.sim.program(Program.crashes(2), pod="crashed")
    pods = [make_pod(name=f"pod-{number}") for number in range(3 * node.options.calls_at_once)]
    for pod in (gone, *pods):
        await node.sync(pod)
    await node.settle(crashed, 60)
    await node.kill(gone)
    status = await node.status(crashed)
    node.sim.delays["StopPodSandbox"] = (1.0, 1.0)
    node.sim.calls.clear()
    async with trio.open_nursery() as nursery:
        for pod in pods:
            nursery.start_soon(node.kill, pod)
        await trio.sleep(0.5)
        nursery.start_soon(collect, node, "uid-gone")
        nursery.start_soon(node.manager.remove_pod_containers, status)
    last = max(stop.time for stop in node.sim.calls.of("StopPodSandbox"))
    removals = node.sim.calls.of("RemoveContainer", "RemovePodSandbox")
    assert len(removals) >= 3
    assert all(removal.time >= last for removal in removals)


async def test_nothing_is_taken_for_removed_before_all_sources_are_ready(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    pod = make_pod()
    await node.sync(pod)
    await node.kill(pod)
    await node.manager.garbage_collect(all_sources_ready=False, is_pod_removed=lambda uid: True)
    assert len(node.sim.machine.containers) == 1
    assert (tmp_path / "logs" / "default_web_uid-web").is_dir()


async def test_dead_sandboxes_go_but_the_newest(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    await node.sync(pod)
    node.sim.fail_sandbox(next(iter(node.sim.machine.sandboxes.values())))
    await node.settle(pod, 2)
    assert len(node.sim.machine.sandboxes) == 2
    await collect(node, policy=ContainerGCPolicy(max_per_pod_container=0))
    assert [one.ready for one in node.sim.machine.sandboxes.values()] == [True]


async def test_a_container_that_cannot_be_removed_does_not_stop_the_others(
    autojump_clock: MockClock, node: Node
) -> None:
    await crash(node, 4)
    node.sim.faults.fail_next("RemoveContainer")
    await collect(node)
    assert len(node.sim.machine.containers) == 3
    await collect(node)
    assert len(node.sim.machine.containers) == 2


async def test_a_runtime_that_cannot_be_asked_is_an_error(autojump_clock: MockClock, node: Node) -> None:
    node.sim.faults.fail_next("ListContainers", message="busy")
    with pytest.raises(GarbageCollectionError) as raised:
        await collect(node)
    assert str(raised.value) == "rpc error: code = Unknown desc = busy"


async def test_earlier_runs_are_removed_on_request(autojump_clock: MockClock, node: Node) -> None:
    await crash(node, 3)
    status = await node.manager.get_pod_status("uid-web")
    await node.manager.remove_pod_containers(status, container_id=status.container_statuses[0].id.id)
    after = await node.manager.get_pod_status("uid-web")
    assert [one.restart_count for one in after.container_statuses] == [3, 2]
    await node.manager.remove_pod_containers(after, keep=0)
    assert [one.restart_count for one in (await node.manager.get_pod_status("uid-web")).container_statuses] == [3]


async def test_logs_and_links_go_with_their_container(autojump_clock: MockClock, node: Node, tmp_path: Path) -> None:
    links = tmp_path / "containers"
    node.manager = node.another_manager(legacy_log_symlinks_dir=links)
    node.sim.program(Program.exits(1))
    pod = make_pod(restart_policy="Never")
    directory = tmp_path / "logs" / "default_web_uid-web" / "main"
    directory.mkdir(parents=True)
    await node.sync(pod)
    await trio.sleep(2)
    status = await node.status(pod)
    (directory / "0.log").write_text("")
    (directory / "0.log.20260101").write_text("")
    await node.manager.remove_pod_containers(status, keep=0)
    assert list(directory.iterdir()) == []
    assert node.sim.machine.containers == {}


async def test_a_started_container_gets_its_link_and_dangling_links_go(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    links = tmp_path / "containers"
    node.manager = node.another_manager(legacy_log_symlinks_dir=links)
    pod = make_pod()
    log = tmp_path / "logs" / "default_web_uid-web" / "main" / "1.log"
    log.parent.mkdir(parents=True)
    log.write_text("")
    (log.parent / "0.log").write_text("")
    log.rename(log.parent / "1.log")
    await node.sync(pod)
    # The simulated runtime writes no log: the link appears when there is one, as after the next restart.
    assert not links.exists()
    attempt = (await node.seen(pod, "main")).restart_count
    (log.parent / f"{attempt + 1}.log").write_text("")
    node.sim.end_container(node.sim.running_containers()[0], exit_code=1)
    await node.settle(pod, 2)
    [link] = links.iterdir()
    assert link.resolve() == log.parent / f"{attempt + 1}.log"
    (links / "old_default_main-0123456789abcdef.log").symlink_to(
        tmp_path / "logs" / "default_old_uid-old" / "main" / "0.log"
    )
    await collect(node)
    assert list(links.iterdir()) == [link]


async def test_a_link_to_a_log_that_another_agent_is_rotating_stays(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    links = tmp_path / "containers"
    links.mkdir()
    node.manager = node.another_manager(legacy_log_symlinks_dir=links)
    theirs = tmp_path / "logs" / "default_go_uid-go" / "main"
    theirs.mkdir(parents=True)
    link = links / "go_default_main-0123456789abcdef.log"
    link.symlink_to(theirs / "0.log")
    await collect(node)
    assert link.is_symlink()
    theirs.rmdir()
    theirs.parent.rmdir()
    await collect(node)
    assert not link.is_symlink()
