from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.agent_process import write_configuration
from benchmarks.termination.kubelets import ServedRuntime, other_kubelet, standalone_configuration
from benchmarks.termination.watch import deleted_task, network_namespace
from trikubelet.config.loader import load_configuration

if TYPE_CHECKING:
    from pathlib import Path

EVENT = "2026-01-02 03:04:05.678901234 +0000 UTC k8s.io {topic} {body}"


def event(topic: str, **body: object) -> str:
    return EVENT.format(topic=topic, body=json.dumps(body))


def test_a_deleted_task_is_read_from_containerds_events() -> None:
    line = event("/tasks/delete", container_id="abc", pid=12, exited_at="2026-01-02T03:04:05Z")
    assert deleted_task(line) == "abc"


@pytest.mark.parametrize(
    "line",
    [event("/tasks/exit", container_id="abc"), event("/containers/delete", id="abc"), event("/tasks/delete"), ""],
)
def test_other_events_delete_no_task(line: str) -> None:
    assert deleted_task(line) is None


def test_the_network_of_a_sandbox_is_the_file_that_holds_its_namespace() -> None:
    namespaces = [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}]
    found = network_namespace({"runtimeSpec": {"linux": {"namespaces": namespaces}}})
    assert str(found) == "/var/run/netns/cni-1"


def test_a_sandbox_in_the_nodes_network_cannot_be_watched() -> None:
    with pytest.raises(RuntimeError, match="network namespace of its own"):
        network_namespace({"runtimeSpec": {"linux": {"namespaces": [{"type": "network"}]}}})


def test_a_kubelets_settings_are_all_known_and_valid(tmp_path: Path) -> None:
    file = write_configuration(tmp_path, **standalone_configuration(tmp_path, "unix:///run/cri.sock"))
    loaded = load_configuration(file)
    assert loaded.config.static_pod_path == str(tmp_path / "manifests")
    assert loaded.config.container_runtime_endpoint == "unix:///run/cri.sock"
    assert loaded.config.pod_logs_dir == str(tmp_path / "logs")


def test_a_kubelet_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    program = tmp_path / "kubelet"
    program.write_text("#!/bin/sh\necho it cannot be\nexit 1\n")
    program.chmod(0o755)
    runtime = ServedRuntime(tmp_path / "runtime")
    with pytest.raises(RuntimeError, match="it cannot be"), other_kubelet(tmp_path / "folder", program, runtime):
        pass
