"""What a person types to act on pods, with real containers: an image is run, looked at, restarted, and stopped."""

from __future__ import annotations

import json
import signal
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.agent.random_acting import NAMES, PersonsFolder, some_manifest
from tests.cli.conftest import run_command

if TYPE_CHECKING:
    from tests.agent.real_node import RealNode

STUBBORN = 'trap "" TERM; while :; do sleep 0.1; done'
HEARS = "trap exit TERM; sleep 1000 & wait"


@pytest.mark.root
def test_an_image_is_run_restarted_and_deleted_and_why_tells_how_it_went(embedded_node: RealNode) -> None:
    node = embedded_node
    node.start()
    ran = node.cli(
        "run", f"--root-dir={node.root}", node.image, "--name", "typed", "--", "sh", "-c", f"echo here; {HEARS}"
    )
    assert ran.stdout == "pod/default/typed-node-1 created\n", ran.stderr
    assert list(node.manifests.iterdir()) == [], "the folder of --manifests is a person's"
    waited = node.cli("wait", "typed", "--for=condition=Ready", "--timeout=60s")
    assert waited.stdout == "pod/default/typed-node-1 condition met\n", waited.stderr
    pod = node.pod("typed")
    assert pod is not None
    manifest = (node.root / "applied/typed.yaml").read_text()
    assert HEARS in manifest
    manifest = manifest.replace(HEARS, "exec sleep 1000")
    (node.folder / "typed.yaml").write_text(f"{manifest}  terminationGracePeriodSeconds: 2\n")
    applied = node.cli("apply", "-f", str(node.folder / "typed.yaml"))
    assert "+  terminationGracePeriodSeconds: 2" in applied.stdout, applied.stderr
    node.until(lambda: (now := node.pod("typed")) and now.metadata.uid != pod.metadata.uid, "the pod is replaced")
    node.until_running("typed")
    restarted = node.cli("restart", "typed")
    assert restarted.stdout == "pod/default/typed-node-1 restarted: main\n", restarted.stderr
    node.until(lambda: node.status("typed").restart_count == 1, "it was restarted")
    node.until_running("typed")
    why = node.cli("why", "typed").stdout
    assert why.startswith("default/typed-node-1: nothing: the pod is Running and ready\n")
    assert ": signal 9 (exit code 137)" in why, "process 1 does not hear SIGTERM"
    assert "Log of main:\n  here\n" in why
    reasons = [event["reason"] for event in json.loads(node.cli("events", "typed", "-o", "json").stdout)]
    assert {"Started", "Killing"} <= set(reasons)
    deleted = node.cli("delete", "typed")
    assert deleted.stdout == "pod/default/typed-node-1 deleted\n", deleted.stderr
    assert node.pod("typed") is None
    assert node.cli("why", "typed").stdout.startswith("default/typed-node-1: nothing: the pod is gone\n")


@pytest.mark.root
def test_random_commands_leave_a_persons_folder_alone(embedded_node: RealNode) -> None:
    node, rng = embedded_node, Random(1)
    node.start()
    mine = PersonsFolder(node.manifests, node.root / "removed")
    given = node.folder / "given"
    given.mkdir()
    inputs = (
        given,
        given / "web.yaml",
        node.manifests,
        node.manifests / "web.yaml",
        node.root / "applied",
        "/none",
        "-",
    )
    codes: Counter[int] = Counter()
    for _ in range(80):
        if rng.random() < 0.3:
            mine.edit(rng)
        (given / "web.yaml").write_text(some_manifest(rng))
        mine.remember()
        name = rng.choice(NAMES)
        flags = [flag for flag in ("--remove-file", "--with-others") if rng.random() < 0.5]
        replace = ["--replace"] if rng.random() < 0.5 else []
        command = rng.choice(
            (
                ["apply", "-f", rng.choice(inputs)],
                ["apply", "--dry-run", "-f", rng.choice(inputs)],
                ["run", node.image, "--name", rng.choice((name, "../x", "X y")), *replace, "--", "sh", "-c", HEARS],
                ["delete", name, "--no-wait", *flags],
                ["delete", name, "--no-wait", *flags],
                ["delete", *NAMES, "--no-wait", *flags],
                ["restart", name],
                ["why", name],
            )
        )
        outcome = run_command(command[0], f"--root-dir={node.root}", *command[1:])
        codes[outcome.code] += 1
        mine.check(f"{command}: {outcome}", may_move="--remove-file" in command)
    assert mine.moved > 0
    assert min(codes[0], codes[1]) > 10, codes


@pytest.mark.root
def test_what_runs_on_after_an_agent_is_stopped_in_its_own_time(embedded_node: RealNode) -> None:
    node = embedded_node
    node.run("left", node.container(STUBBORN), terminationGracePeriodSeconds=3)
    node.start()
    node.until_running("left")
    node.stop(signal.SIGKILL)
    assert node.process(), "it runs on"
    stopped = node.cli("stop", f"--config={node.folder / 'config.json'}")
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout == "No pod runs any more.\n"
    assert not node.process()
    assert "grace=3.0" in stopped.stderr, "it had its own grace period"
    assert (node.manifests / "left.json").exists()


@pytest.mark.root
def test_a_stop_ends_an_agent_that_runs_and_its_pods(embedded_node: RealNode) -> None:
    node = embedded_node
    node.run("left", node.container("exec sleep 1000"), terminationGracePeriodSeconds=1)
    node.start("--no-drain-on-exit")
    node.until_running("left")
    stopped = node.cli("stop", f"--config={node.folder / 'config.json'}")
    assert stopped.returncode == 0, stopped.stderr
    assert node.ended() == 0
    assert not node.process()


@pytest.mark.root
def test_a_broken_manifest_is_told_wherever_a_person_looks(embedded_node: RealNode) -> None:
    node = embedded_node
    node.run("web", node.container(HEARS))
    node.start()
    before = node.until_running("web").status.container_statuses[0]
    file = node.manifests / "web.json"
    good = file.read_text()
    file.write_text(good.replace('"image"', '"imge"'))
    never = node.manifests / "never.yaml"
    never.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: never}\nspec: {containers: [{name: A}]}\n")
    node.until(lambda: "InvalidManifest" in node.cli("events").stdout, "the node has an event")
    node.until(lambda: "never.yaml" in node.cli("pods").stderr, "both are told")
    shown = node.cli("pods")
    assert "Running" in shown.stdout
    assert f"manifest {file} has a problem; of its last good version default/web-node-1 runs on" in shown.stderr
    assert "spec.containers[0].image: Required value" in shown.stderr
    why = node.cli("why", "web").stdout.splitlines()
    assert why[0] == "default/web-node-1: nothing: the pod is Running and ready"
    assert why[1].strip().startswith(f"manifest {file} has a problem")
    for name in ("never", str(never)):
        told = node.cli("why", name).stdout.splitlines()
        assert told[0] == f"manifest {never} has 2 problems"
        assert "Invalid value" in told[1] + told[2]
    assert "has 2 problems" in node.cli("delete", "never").stderr
    file.write_text(good)
    never.unlink()
    node.until(lambda: node.cli("pods").stderr == "", "nothing is broken any more")
    messages = [event["message"] for event in json.loads(node.cli("events", "-o", "json").stdout)]
    assert {f"manifest is well again: {file}", f"manifest with problems is gone: {never}"} <= set(messages)
    assert node.until_running("web").status.container_statuses[0] == before
