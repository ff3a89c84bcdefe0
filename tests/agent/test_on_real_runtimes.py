"""Whole agents as processes, on the embedded runtime and on containerd: the same pods, the same outcomes."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.agent.broken_manifests import write_broken_manifests
from tests.agent.real_node import NODE_NAME, numbers
from tests.patience import PATIENCE
from trikubelet.agent.ending import ONE_SIGNAL

if TYPE_CHECKING:
    from tests.agent.real_node import RealNode

UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
SHORT_SLEEP = "sleep 0.05"
FOR_EVER = f"while :; do {SHORT_SLEEP}; done"
COUNT = "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"


@pytest.mark.both
def test_an_init_container_prepares_what_two_containers_share(node: RealNode) -> None:
    mount = [{"name": "work", "mountPath": "/work"}]
    writer = "trap 'exit 0' TERM; while :; do echo written >> /work/lines; sleep 0.1; done"
    reader = "cat /work/greeting; until [ -s /work/lines ]; do sleep 0.05; done; head -n1 /work/lines; " + UNTIL_TERM
    node.run(
        "trio",
        node.container(writer, "writer", volumeMounts=mount),
        node.container(reader.replace("head -n1", "cat"), "reader", volumeMounts=mount),
        initContainers=[node.container("sleep 0.3; echo hello > /work/greeting", "greet", volumeMounts=mount)],
        volumes=[{"name": "work", "emptyDir": {}}],
    )
    node.start()
    pod = node.until_running("trio")
    assert pod.status.phase == "Running"
    init = node.status("trio", "greet").state.terminated
    assert init is not None
    assert (init.reason, init.exit_code) == ("Completed", 0)
    node.until(lambda: "written" in node.lines("trio", "reader"), "the reader sees what the writer wrote")
    assert node.logs("trio", "reader")[0] == "hello"
    assert "2/2" in node.cli("pods").stdout


def test_followed_logs_arrive_as_they_are_written_and_end_with_the_container(node: RealNode) -> None:
    node.run("count", node.container(COUNT))
    node.start()
    node.until_running("count")
    follower = node.follow("logs", "count", "-f")
    node.until(lambda: len(node.followed().splitlines()) > 30, "what is written is printed")
    assert follower.poll() is None
    node.delete("count")
    assert follower.wait(PATIENCE) == 0
    seen = numbers(node.followed().splitlines())
    assert seen == list(range(1, len(seen) + 1))
    node.until_gone("count")


@pytest.mark.both
def test_a_crashing_container_backs_off_and_is_restarted(node: RealNode) -> None:
    configuration = json.loads((node.folder / "config.json").read_text())
    configuration["crashLoopBackOff"] = {"maxContainerRestartPeriod": "1s"}
    (node.folder / "config.json").write_text(json.dumps(configuration))
    node.run("crash", node.container("echo run $(cat /shared/runs | wc -l); echo >> /shared/runs; exit 3"))
    (node.shared / "runs").touch()
    node.start()

    def waits() -> bool:
        waiting = node.status("crash").state.waiting
        return waiting is not None and waiting.reason == "CrashLoopBackOff"

    node.until(waits, "the container backs off")
    status = node.status("crash")
    assert status.restart_count >= 1
    assert status.last_state.terminated is not None
    assert (status.last_state.terminated.exit_code, status.last_state.terminated.reason) == (3, "Error")
    node.until(lambda: "CrashLoopBackOff" in node.cli("pods").stdout, "the list of pods says so too")
    node.until(lambda: node.status("crash").restart_count >= 2 and waits(), "the container was restarted again")
    described = node.cli("describe", "pod", "crash").stdout
    assert "BackOff" in described
    assert "Restart Count:" in described


@pytest.mark.both
def test_a_container_that_ignores_sigterm_is_killed_when_its_grace_is_over(node: RealNode) -> None:
    node.run(
        "stubborn",
        node.container("trap 'echo no' TERM; while :; do sleep 0.1; done"),
        terminationGracePeriodSeconds=2,
    )
    node.start()
    node.until_running("stubborn")
    node.until_process()
    asked = time.monotonic()
    node.delete("stubborn")
    node.until(lambda: node.process() is None, "the container is dead")
    assert time.monotonic() - asked > 1.8
    node.until_gone("stubborn")


@pytest.mark.both
def test_a_hook_beyond_the_grace_runs_on_until_its_container_has_ended(node: RealNode) -> None:
    story = node.shared / "story"
    container = node.container("trap 'echo TERM >> /shared/story' TERM; echo up >> /shared/story; " + FOR_EVER)
    hook = f"while :; do echo hook >> /shared/story; {SHORT_SLEEP}; done"
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", hook]}}}
    node.run("web", container, terminationGracePeriodSeconds=1)
    node.start()
    node.until_running("web")
    node.until(story.exists, "the container listens to signals")
    node.delete("web")
    node.until_gone("web")
    told = story.read_text().splitlines()
    assert told[:2] == ["up", "hook"]
    assert "hook" in told[told.index("TERM") :], "the hook went on after the signal"
    assert "PreStopHook" not in node.cli("events").stdout


def test_an_edited_manifest_replaces_the_pod_after_the_old_one_has_ended(node: RealNode) -> None:
    def version(number: int) -> str:
        return (
            f"trap 'sleep 0.5; echo {number} ended >> /shared/story; exit 0' TERM; "
            f"echo {number} started >> /shared/story; while :; do sleep 0.1; done"
        )

    story = node.shared / "story"
    node.run("web", node.container(version(1)))
    node.start()
    first = node.until_running("web").metadata.uid
    node.until(story.exists, "the old version listens to signals")
    node.run("web", node.container(version(2)))
    node.until(lambda: "2 started" in story.read_text(), "the new version runs")
    assert story.read_text().splitlines() == ["1 started", "1 ended", "2 started"]
    assert node.until_running("web").metadata.uid != first
    assert len(node.pods()) == 1
    node.delete("web")
    node.until_gone("web")
    assert story.read_text().splitlines()[-1] == "2 ended"


def test_a_container_sees_its_environment_arguments_folder_and_mounts(node: RealNode) -> None:
    script = (
        'echo "$GREETING|$POD|$(pwd)|$1|$(cat /shared/in)"; '
        "(echo x > /read-only/out) 2>/dev/null && echo written || echo refused; "
        "echo from inside > /shared/out; " + UNTIL_TERM
    )
    (node.shared / "in").write_text("from outside\n")
    container = node.container(script, workingDir="/tmp")
    container["command"].append("name")
    container["args"] = ["$(GREETING), $$(GREETING) $(OTHER)"]
    container["env"] = [
        {"name": "WHO", "value": "world"},
        {"name": "GREETING", "value": "hello $(WHO)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    container["volumeMounts"].append({"name": "shared", "mountPath": "/read-only", "readOnly": True})
    node.run("view", container, terminationGracePeriodSeconds=1)
    node.start()
    node.until_running("view")
    node.until(lambda: len(node.lines("view")) == 2, "the container wrote two lines")
    greeting = "hello world"
    assert node.lines("view") == [
        f"{greeting}|view-{NODE_NAME}|/tmp|{greeting}, $(GREETING) $(OTHER)|from outside",
        "refused",
    ]
    out = node.shared / "out"
    node.until(lambda: out.exists() and out.read_text(), "the container wrote a file")
    assert out.read_text() == "from inside\n"


@pytest.mark.both
def test_a_container_out_of_memory_is_restarted_and_its_log_before_that_can_be_read(node: RealNode) -> None:
    swell = "touch /shared/tried; echo first; exec tail /dev/zero"
    script = f"[ -e /shared/tried ] || {{ {swell}; }}; echo second; " + UNTIL_TERM
    node.run("again", node.container(script, resources={"limits": {"memory": "24Mi"}}))
    node.start()
    node.until(lambda: node.status("again").restart_count == 1, "the container was restarted")
    ended = node.status("again").last_state.terminated
    assert ended is not None
    assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)
    assert not any("SystemOOM" in line.get("reason", "") for line in node.log()), "it was not the machine's memory"
    node.until_running("again")
    node.until(lambda: node.lines("again"), "the second run wrote a line")
    assert node.logs("again") == ["second"]
    assert node.cli("logs", "again", "--previous").stdout == "first\n"


def test_pods_that_run_to_their_end_succeed_or_fail(node: RealNode) -> None:
    node.run("good", node.container("exit 0", "good"), restartPolicy="Never")
    node.run("bad", node.container("exit 7", "bad"), restartPolicy="Never")
    node.run(
        "kept",
        node.container("[ -e /shared/tried ] || { touch /shared/tried; exit 1; }", "kept"),
        restartPolicy="OnFailure",
    )
    node.start()
    node.until_phase("good", "Succeeded")
    node.until_phase("bad", "Failed")
    bad = node.status("bad", "bad").state.terminated
    assert bad is not None
    assert bad.exit_code == 7
    node.until_phase("kept", "Succeeded")
    assert node.status("kept", "kept").restart_count == 1


def test_what_runs_and_what_can_be_run_is_listed_and_described(node: RealNode) -> None:
    node.run("web", node.container("echo one; echo two; echo three; " + UNTIL_TERM), terminationGracePeriodSeconds=1)
    node.start()
    node.until_running("web")
    images = node.cli("images", "list").stdout
    assert node.image in images
    described = node.cli("describe", "pod", "web").stdout
    for part in (f"web-{NODE_NAME}", "Running", "Started", node.image, "/shared from shared (rw)"):
        assert part in described
    node.until(lambda: len(node.lines("web")) == 3, "everything is written")
    assert node.cli("logs", "web", "--tail", "1").stdout == "three\n"
    assert node.cli("logs", "web", "--since", "1h").stdout == "one\ntwo\nthree\n"
    wide = node.cli("pods", "-o", "wide").stdout
    assert NODE_NAME in wide
    ip = node.pods()[0].status.pod_ip
    assert ip
    assert ip in wide
    assert json.loads(node.cli("pods", "-o", "json").stdout)["items"][0]["metadata"]["name"] == f"web-{NODE_NAME}"
    assert f"name: web-{NODE_NAME}" in node.cli("pods", "-o", "yaml").stdout
    missing = node.cli("logs", "nobody")
    assert missing.returncode == 1
    assert "the agent has no pod nobody" in missing.stderr


def test_the_first_signal_ends_every_pod_gracefully_if_the_agent_shall_drain(node: RealNode) -> None:
    ends = "trap 'sleep 0.3; echo ended >> /shared/story; exit 0' TERM; {up}; while :; do sleep 0.1; done"
    for name in ("one", "two"):
        node.run(name, node.container(ends.format(up=f"touch /shared/{name}-listens"), name))
    node.start("--drain-on-exit")
    for name in ("one", "two"):
        # A shell that was told to end before it set its trap would not hear of it.
        node.until((node.shared / f"{name}-listens").exists, f"{name} listens to signals")
    assert node.stop(signal.SIGINT) == 0
    assert (node.shared / "story").read_text() == "ended\nended\n", node.told()
    node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")


@pytest.mark.both
def test_whose_pods_end_with_the_agent_follows_from_the_runtime(node: RealNode) -> None:
    node.run("web", node.container(UNTIL_TERM))
    node.start("--v=0")
    node.until_running("web")
    node.until(node.listens, "the container listens to signals")
    assert node.stop(signal.SIGINT) == 0
    if node.containerd is None:
        node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
    else:
        assert node.process() is not None
        node.start("--drain-on-exit")


def test_without_draining_pods_run_on_and_the_next_agent_adopts_them(node: RealNode) -> None:
    node.run("web", node.container(COUNT))
    node.start("--no-drain-on-exit")
    before = node.until_running("web").status.container_statuses[0]
    pid = node.until_process()
    assert node.stop() == 0
    assert not (node.root / "trikubelet.sock").exists()
    assert node.process() == pid
    node.start("--drain-on-exit")
    after = node.until_running("web").status.container_statuses[0]
    assert (after.container_id, after.restart_count, after.state) == (before.container_id, 0, before.state)
    assert node.process() == pid
    assert node.stop() == 0


def test_a_second_signal_ends_the_agent_at_once(node: RealNode) -> None:
    script = "trap : TERM; until [ -e /shared/end ]; do sleep 0.1; done"
    node.run("stubborn", node.container(script), terminationGracePeriodSeconds=3600)
    node.start()
    node.until_running("stubborn")
    pid = node.until_process()
    node.send(signal.SIGINT)
    node.until(lambda: "Stopping container main" in node.told(), "the pod is being ended")
    time.sleep(1.1 * ONE_SIGNAL)
    # The alarm ends an agent that takes long to clean up, on a busy machine also while Python itself ends.
    assert node.stop(signal.SIGINT) in (130, -signal.SIGALRM), "before the pod's hour is over"
    assert node.process() == pid
    (node.shared / "end").touch()
    node.start()


@pytest.mark.both
def test_an_agent_killed_and_started_again_adopts_what_runs(node: RealNode) -> None:
    node.run("count", node.container(COUNT, "count"))
    node.run(
        "ends",
        node.container("until [ -e /shared/end ]; do sleep 0.05; done; echo last words; exit 7", "ends"),
        restartPolicy="Never",
    )
    node.start()
    before = node.until_running("count").status.container_statuses[0]
    node.until_running("ends")
    pid = node.until_process("count")
    node.until_process("ends")
    node.send(signal.SIGKILL)
    assert node.ended() == -signal.SIGKILL
    (node.shared / "end").touch()
    node.until(lambda: node.process("ends") is None, "the container ended while no agent ran")
    time.sleep(0.3)
    node.start()
    after = node.until_running("count").status.container_statuses[0]
    assert (after.container_id, after.restart_count, after.state) == (before.container_id, 0, before.state)
    assert node.process("count") == pid
    node.until_phase("ends", "Failed")
    ended = node.status("ends", "ends").state.terminated
    assert ended is not None
    assert ended.exit_code == 7
    assert node.lines("ends", "ends") == ["last words"]
    so_far = len(node.lines("count", "count"))
    node.until(lambda: len(node.lines("count", "count")) > so_far + 5, "the counter's log goes on")
    counted = numbers(node.lines("count", "count"))
    assert counted == list(range(1, len(counted) + 1))


def test_a_second_agent_on_one_root_folder_is_refused(node: RealNode) -> None:
    node.run("web", node.container(UNTIL_TERM))
    node.start()
    node.until_running("web")
    pid = node.until_process()
    assert node.agent is not None
    second = node.spawn()
    assert second.wait(PATIENCE) == 2
    refused = [line for line in node.log() if "already works in" in line["event"]]
    assert len(refused) == 1
    assert f"pid {node.agent.pid}" in refused[0]["event"]
    assert node.answers()
    assert node.process() == pid


@pytest.mark.both
def test_a_runtime_that_hangs_leaves_the_agent_answering_and_is_taken_up_again(node: RealNode) -> None:
    node.run("old", node.container(COUNT, "old"))
    node.start()
    before = node.until_running("old").status.container_statuses[0]
    runtime = node.runtime_pid
    os.kill(runtime, signal.SIGSTOP)
    try:
        node.run("new", node.container(UNTIL_TERM, "new"))
        for _ in range(10):
            assert node.pods()
            time.sleep(0.2)
        new = node.pod("new")
        assert new is not None
        assert new.status.phase == "Pending"
    finally:
        os.kill(runtime, signal.SIGCONT)
    node.until_running("new")
    after = node.until_running("old").status.container_statuses[0]
    assert (after.container_id, after.restart_count) == (before.container_id, 0)


def test_broken_manifests_are_named_each_and_disturb_no_pod(node: RealNode) -> None:
    node.run("good", node.container(COUNT))
    node.start()
    before = node.until_running("good").status.container_statuses[0]
    names = write_broken_manifests(node.manifests)
    assert len(names) > 50

    def reported() -> set[str]:
        prefix = f"{node.manifests}/"
        warned = [line["event"] for line in node.log() if line.get("level") == "warning"]
        return {line.removeprefix(prefix).split(":")[0] for line in warned if line.startswith(prefix)}

    node.until(lambda: reported() == names, "every broken file is reported")
    node.run("late", node.container(UNTIL_TERM, "late"))
    node.until_running("late")
    assert {pod.metadata.name for pod in node.pods()} == {f"good-{NODE_NAME}", f"late-{NODE_NAME}"}
    after = node.until_running("good").status.container_statuses[0]
    assert (after.container_id, after.restart_count) == (before.container_id, 0)
    node.delete("late")
    node.until_gone("late")


def test_a_broken_edit_leaves_the_pod_of_the_last_good_version_running(node: RealNode) -> None:
    node.run("web", node.container(UNTIL_TERM))
    node.start()
    before = node.until_running("web").status.container_statuses[0]
    manifest = node.manifests / "web.json"
    good = manifest.read_text()
    manifest.write_text(good[:-40])
    node.until(lambda: "web.json:" in node.told(), "the broken file is reported")
    manifest.write_text(good)
    node.until(lambda: "manifest is well again" in node.told(), "the file is good again")
    assert node.until_running("web").status.container_statuses[0] == before
