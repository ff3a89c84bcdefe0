"""What surrounds an agent: its lock and its endpoints."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from tests.captured_logs import capture_logs
from tests.patience import PATIENCE
from trikubelet.agent import run as agent_run
from trikubelet.agent.console import Terminal
from trikubelet.agent.options import AgentOptions, ClusterOptions
from trikubelet.agent.root_folder import RootFolderInUseError, lock_root_folder
from trikubelet.agent.run import socket_path
from trikubelet.agent.start import StartError
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.pod_managers import PodManager
from trikubelet.node.port_holder import LOCK_FILE

KUBELET = PodManager("the Go kubelet", 7, cgroup_root="/", root_dir="/var/lib/kubelet")
PODMAN = PodManager("podman", 8)
ALONE = AgentOptions(configuration=KubeletConfiguration(), root_dir=Path("/root/folder"), node_name="n")
IN_CLUSTER = attrs.evolve(ALONE, cluster=ClusterOptions(kubeconfig=Path("/k"), cert_dir=Path("/c")))
ON_CONTAINERD = "unix:///run/containerd/containerd.sock"


def told_beside(monkeypatch: pytest.MonkeyPatch, options: AgentOptions, *others: PodManager) -> list[tuple[str, str]]:
    """Level and text of what the start of an agent says."""
    monkeypatch.setattr(agent_run, "other_pod_managers", lambda root_dir: list(others))
    with capture_logs() as lines:
        agent_run._look_for_others(options, None)
    return [(line["log_level"], line["event"]) for line in lines]


def test_the_start_names_others_that_manage_pods_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_beside(monkeypatch, ALONE) == []
    assert told_beside(monkeypatch, ALONE, KUBELET, PODMAN) == [
        (
            "info",
            "other programs manage pods on this machine, and this agent leaves their pods alone: "
            "the Go kubelet (pid 7), podman (pid 8)",
        )
    ]
    shared = attrs.evolve(ALONE, runtime_endpoint=ON_CONTAINERD)
    ((level, text),) = told_beside(monkeypatch, shared, KUBELET)
    assert level == "warning"
    assert text.startswith("a kubelet that uses the same runtime ends this agent's pods")
    assert "the Go kubelet (pid 7): use --runtime-endpoint embedded" in text
    assert told_beside(monkeypatch, shared, PODMAN)[0][0] == "info"


def test_a_person_at_a_terminal_reads_of_others_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_run, "other_pod_managers", lambda root_dir: [PODMAN])
    screen = io.StringIO()
    agent_run._look_for_others(ALONE, Terminal(screen))
    assert "this agent leaves their pods alone: podman (pid 8)" in " ".join(screen.getvalue().split())


def test_a_node_of_a_cluster_has_one_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match=r"the Go kubelet \(pid 7\) manages the same pods"):
        told_beside(monkeypatch, IN_CLUSTER, PODMAN, KUBELET)
    elsewhere = attrs.evolve(KUBELET, cgroup_root="/nodes/two")
    assert [level for level, _ in told_beside(monkeypatch, IN_CLUSTER, elsewhere)] == ["info"]


def test_a_unix_endpoint_names_a_path() -> None:
    assert socket_path("unix:///run/containerd/containerd.sock") == Path("/run/containerd/containerd.sock")


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "/run/x.sock", "unix://relative/x", "unix:", "", "npipe:x"])
def test_any_other_endpoint_is_refused_with_the_form_it_should_have(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected unix:///path/to/socket"):
        socket_path(endpoint)


def test_two_agents_do_not_share_a_root_folder(tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        lock_root_folder(tmp_path, first)
        with pytest.raises(RootFolderInUseError, match=r"an agent \(pid \d+\) already works in"):
            lock_root_folder(tmp_path, second)
    with ExitStack() as third:
        lock_root_folder(tmp_path, third)


@pytest.mark.parametrize("waited_for", [True, False], ids=["collected", "not collected"])
def test_what_a_killed_agent_was_about_to_start_keeps_the_next_one_waiting_only(
    tmp_path: Path, waited_for: bool
) -> None:
    """A process that is about to execute its program has what the agent had open."""
    killed = subprocess.Popen(["true"])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    if waited_for:
        killed.wait()
    with (tmp_path / LOCK_FILE).open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{killed.pid}\n")
        lock.flush()
        begun = subprocess.Popen(["sleep", "0.3"], pass_fds=[lock.fileno()])
    with ExitStack() as stack:
        lock_root_folder(tmp_path, stack)
        assert begun.poll() is not None or begun.wait(PATIENCE) == 0
    killed.wait()
