"""Other programs that manage pods, as /proc shows them."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import attrs
import pytest

from trikubelet.node.pod_managers import conflicting_kubelet, describe, other_pod_managers

HOST = ("pid:[1]", "cgroup:[1]")
KUBELET = ("/usr/bin/kubelet", "--config=/etc/kubelet.yaml", "--node-ip=::1")


@attrs.define
class Processes:
    """A /proc."""

    folder: Path

    def __attrs_post_init__(self) -> None:
        self.add("self", "python3", ("python3",))

    def add(
        self,
        pid: int | str,
        name: str,
        words: tuple[str, ...],
        *,
        namespaces: tuple[str, str] = HOST,
        opens: str = "",
        program: str = "",
    ) -> Path:
        folder = self.folder / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "fd").mkdir()
        (folder / "exe").symlink_to(program or f"/usr/bin/{name.removesuffix('-server')}")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
        for kind, number in zip(("pid", "cgroup"), namespaces, strict=True):
            (folder / "ns" / kind).symlink_to(number)
        (folder / "fd" / "1").symlink_to("/dev/null")
        if opens:
            (folder / "fd" / "2").symlink_to(opens)
        return folder

    def found(self) -> str:
        return describe(other_pod_managers(self.folder / "own-root", self.folder))


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("kubelet", KUBELET, "the Go kubelet (pid 7)"),
        ("k3s-server", ("/usr/local/bin/k3s server", "", ""), "k3s (pid 7)"),
        ("k3s", ("k3s", "agent"), "k3s (pid 7)"),
        ("kubelite", ("/snap/microk8s/1/kubelite",), "MicroK8s (pid 7)"),
        ("podman", ("podman", "system", "service"), "podman (pid 7)"),
        ("conmon", ("/usr/bin/conmon", "--exit-command", "/usr/bin/podman", "--exit-command-arg"), "podman (pid 7)"),
        # None of these manages pods.
        ("k3s", ("k3s", "kubectl", "get"), ""),
        ("conmon", ("/usr/bin/conmon", "--exit-dir", "/var/run/crio/exits"), ""),
        ("kubelet", (), ""),
        ("bash", ("bash", "/usr/bin/kubelet"), ""),
        ("python3", ("python3", "-m", "trikubelet", "pods"), ""),
        ("sleep", ("sleep", "1"), ""),
    ],
)
def test_programs_are_known_by_their_processes(
    processes: Processes, name: str, words: tuple[str, ...], told: str
) -> None:
    processes.add(7, name, words)
    assert processes.found() == told


def test_other_agents_are_told_with_their_root_folders(processes: Processes) -> None:
    words = ("python3", "-m", "trikubelet", "run")
    processes.add(7, "python3", words, opens="/var/lib/one/trikubelet.lock")
    processes.add(8, "trikubelet", ("/usr/bin/python3", "/usr/bin/trikubelet", "run"), opens="/two/trikubelet.lock")
    processes.add(9, "python3", words, opens=f"{processes.folder}/own-root/trikubelet.lock")
    processes.add(os.getpid(), "python3", words, opens="/three/trikubelet.lock")
    assert processes.found() == (
        "another trikubelet (pid 7, root folder /var/lib/one), another trikubelet (pid 8, root folder /two)"
    )


def test_kubelets_in_containers_are_no_neighbours(processes: Processes) -> None:
    processes.add(7, "kubelet", KUBELET, namespaces=("pid:[2]", "cgroup:[2]"))
    processes.add(8, "kubelet", KUBELET, namespaces=("pid:[1]", "cgroup:[2]"))
    assert processes.found() == ""


def test_processes_that_end_or_belong_to_others_are_left_out(processes: Processes) -> None:
    gone = processes.add(7, "kubelet", KUBELET)
    (gone / "cmdline").unlink()
    hidden = processes.add(8, "kubelet", KUBELET)
    (hidden / "ns" / "pid").unlink()
    processes.add(9, "kubelet", KUBELET)
    assert processes.found() == "the Go kubelet (pid 9)"


@pytest.mark.parametrize(
    ("user", "program", "told"),
    [
        (0, "/usr/bin/kubelet", "the Go kubelet (pid 7)"),
        (0, "/usr/bin/kubelet (deleted)", "the Go kubelet (pid 7)"),
        (1234, "/usr/bin/kubelet", ""),
        (0, "/usr/bin/su", ""),
    ],
)
def test_a_kubelet_is_one_that_root_runs(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, user: int, program: str, told: str
) -> None:
    """Any user can give a program this name, and start root's programs by a link of this name."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    folder = processes.add(7, "kubelet", KUBELET, program=program)
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **how: Mock(st_uid=user) if path == folder else real(path, **how))
    assert processes.found() == told


def test_a_configuration_that_is_a_fifo_is_not_waited_for(processes: Processes) -> None:
    folder = processes.add(7, "kubelet", ("kubelet", "--config=/fifo"))
    (folder / "root").mkdir()
    os.mkfifo(folder / "root" / "fifo")
    opened = os.open(folder / "root" / "fifo", os.O_RDWR)  # so that a blocking reader waits for bytes, interruptibly
    try:
        os.write(opened, b"cgroupRoot: /lab\n")
        assert [one.cgroup_root for one in other_pod_managers(processes.folder / "own-root", processes.folder)] == ["/"]
    finally:
        os.close(opened)


def test_each_kubelet_with_a_cgroup_root_of_its_own_is_found(processes: Processes) -> None:
    processes.add(7, "kubelet", ("kubelet", "--cgroup-root=/lab"))
    processes.add(8, "kubelet", ("kubelet",))
    others = other_pod_managers(processes.folder / "own-root", processes.folder)
    found = conflicting_kubelet(others, processes.folder / "own-root", "")
    assert found is not None
    assert found.pid == 8


@pytest.mark.parametrize(
    ("words", "config", "own_root", "conflicts"),
    [
        (("kubelet",), "", "", True),
        (("kubelet",), "", "/", True),
        (("kubelet",), "", "/trikubelet", False),
        (("kubelet", "--cgroup-root=/nodes/"), "", "", False),
        (("kubelet", "--cgroup-root=/nodes/"), "", "/nodes", True),
        (("kubelet", "--cgroup-root", "/nodes"), "", "/nodes", True),
        (("k3s", "--kubelet-arg=cgroup-root=/nodes"), "", "", False),
        (("kubelet", "--config=/kubelet.yaml"), "kind: x\ncgroupRoot: '/nodes'  # ours\n", "", False),
        (("kubelet", "--config=/kubelet.yaml"), "kind: x\ncgroupRoot: /nodes\n", "/nodes", True),
        (("kubelet", "--config", "kubelet.yaml"), "cgroupRoot: /nodes\n", "/nodes", True),
        (("kubelet", "--config=/kubelet.yaml"), "kind: x\n", "", True),
        (("kubelet", "--config=/kubelet.yaml"), '{"kind":"x","cgroupRoot":"/nodes"}', "/nodes", True),
        (("kubelet", "--config=/kubelet.yaml"), '{\n  "cgroupRoot": "/nodes",\n  "kind": "x"\n}', "/nodes", True),
        (("kubelet", "--config=/kubelet.yaml"), '{"cgroupRoot": "", "kind": "x"}', "", True),
        (("kubelet", "--config=/kubelet.yaml"), "# cgroupRoot: /nodes\n", "", True),
        (("kubelet", "--config=/gone.yaml"), "", "", True),
    ],
)
def test_a_kubelet_with_the_same_cgroup_root_manages_the_same_pods(
    processes: Processes, words: tuple[str, ...], config: str, own_root: str, conflicts: bool
) -> None:
    folder = processes.add(7, "kubelet", words)
    for place in ("root", "cwd"):
        (folder / place).mkdir()
        if config:
            (folder / place / "kubelet.yaml").write_text(config)
    others = other_pod_managers(processes.folder / "own-root", processes.folder)
    found = conflicting_kubelet(others, processes.folder / "own-root", own_root)
    assert (found is not None and found.pid == 7) is conflicts
    assert conflicting_kubelet(others, processes.folder / "own-root", None) is None, (
        "without a cluster its pods are its own"
    )


@pytest.mark.parametrize(
    "words", [("kubelet", "--root-dir={folder}/link"), ("kubelet", "--root-dir", "{folder}/own-root")]
)
def test_no_agent_works_in_the_root_folder_of_a_kubelet(processes: Processes, words: tuple[str, ...]) -> None:
    """It would take the kubelet's pods for its own by their folders."""
    root = processes.folder / "own-root"
    root.mkdir()
    (processes.folder / "link").symlink_to(root)
    processes.add(7, "kubelet", tuple(word.format(folder=processes.folder) for word in words))
    others = other_pod_managers(root, processes.folder)
    found = conflicting_kubelet(others, root, None)
    assert found is not None
    assert conflicting_kubelet(others, processes.folder / "another", None) is None
