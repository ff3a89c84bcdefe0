from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import run_command
from trikubelet.cli.root_dir import default_root_dir

if TYPE_CHECKING:
    from trikubelet.agent.options import AgentOptions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[AgentOptions]:
    """The options of every agent that would have been started."""
    options: list[AgentOptions] = []

    def run_agent(given: AgentOptions) -> int:
        options.append(given)
        return 7

    monkeypatch.setattr("trikubelet.agent.run.run_agent", run_agent)
    return options


def test_without_flags_the_defaults_are_taken(started: list[AgentOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIKUBELET_ROOT", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "Some-Host.example")
    assert run_command("run").code == 7, "the agent's exit code is the command's"
    (options,) = started
    assert options.node_name == "some-host.example"
    assert options.runtime_endpoint == "embedded"
    assert options.root_dir == default_root_dir()
    assert options.manifests is None
    assert options.drain_on_exit is None
    assert options.has_host_image
    assert options.registry_hosts_dirs == ()
    assert options.warnings == ()


def test_flags_say_what_to_run(started: list[AgentOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--manifests", "pods", "--root-dir", "state", "--runtime-endpoint", "unix:///run/x.sock"]
    more = ["--node-name", "Node-1", "--log-format", "json", "-v", "4", "--drain-on-exit"]
    more += ["--registry-hosts-dir", "certs.d", "--registry-hosts-dir", "/etc/certs.d"]
    run_command("run", *arguments, *more)
    (options,) = started
    assert options.manifests == tmp_path / "pods"
    assert options.root_dir == tmp_path / "state"
    assert options.runtime_endpoint == "unix:///run/x.sock"
    assert options.image_endpoint is None
    assert (options.node_name, options.log_format, options.verbosity) == ("node-1", "json", 4)
    assert options.drain_on_exit is True
    assert options.registry_hosts_dirs == (tmp_path / "certs.d", Path("/etc/certs.d"))
    assert options.warnings == ()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], True),
        (["--no-host-image"], False),
        (["--kubeconfig=none"], False),
        (["--kubeconfig=none", "--host-image"], True),
    ],
)
def test_a_node_of_a_cluster_shows_its_files_only_if_it_is_told_to(
    started: list[AgentOptions], tmp_path: Path, flags: list[str], expected: bool
) -> None:
    run_command("run", "--root-dir", tmp_path, "--cert-dir=/etc/keys", *flags)
    assert started[0].has_host_image is expected
    joins = "--kubeconfig=none" in flags
    assert started[0].secret_paths == ((tmp_path, Path("/etc/keys"), Path("none")) if joins else (tmp_path,))


@pytest.mark.parametrize("flag", [("-v=4",), ("-v4",), ("-v", "4"), ("--v=4",)])
def test_the_verbosity_is_written_as_for_the_kubelet(started: list[AgentOptions], flag: tuple[str, ...]) -> None:
    run_command("run", *flag)
    assert started[0].verbosity == 4


def test_the_file_is_read_and_flags_win(started: list[AgentOptions], tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "staticPodPath: from-file\nsyncFrequency: 10s\ncontainerRuntimeEndpoint: /run/from-file.sock\nmaxPods: 5\n"
    )
    run_command(
        "run",
        "--config",
        file,
        "--sync-frequency=20s",
        "--fail-swap-on=false",
        "--hairpin-mode=none",
        "--feature-gates",
        "A=true",
    )
    run_command("run", "--config", file, "--pod-manifest-path", tmp_path / "flag", "--runtime-endpoint", "embedded")
    first, second = started
    assert first.configuration.sync_frequency == timedelta(seconds=20)
    assert first.configuration.fail_swap_on is False
    assert first.manifests == tmp_path / "from-file"
    assert first.runtime_endpoint == "unix:///run/from-file.sock", "a bare path is a unix socket"
    assert "hairpinMode is set but not supported yet: it has no effect" in first.warnings
    assert "--sync-frequency is deprecated: set syncFrequency in the --config file" in first.warnings
    assert second.manifests == tmp_path / "flag"
    assert second.runtime_endpoint == "embedded"


def test_a_configuration_with_problems_names_them_all_and_starts_nothing(
    started: list[AgentOptions], tmp_path: Path
) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: x\nport: y\n")
    outcome = run_command("run", "--config", file)
    assert started == []
    assert outcome.code == 1
    assert f"{file}:3: maxPods: " in outcome.err
    assert f"{file}:4: port: " in outcome.err
    assert outcome.err.endswith("the configuration cannot be used: 2 problems")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runtime-endpoint", "tcp://x"], "--runtime-endpoint: containerRuntimeEndpoint: must be"),
        (["--cpu-manager-policy", "static"], 'the policy "static" is not supported by this agent'),
        (["--node-name", "not a name"], "as node name"),
        (["--log-format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["--no-such-flag"], "No such option"),
    ],
)
def test_a_wrong_flag_starts_nothing(started: list[AgentOptions], arguments: list[str], message: str) -> None:
    outcome = run_command("run", *arguments)
    assert started == []
    assert outcome.code != 0
    assert message in outcome.err


def test_logs_of_pods_go_below_the_root_folder_without_root(
    started: list[AgentOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run_command("run", "--root-dir", tmp_path)
    assert started[0].configuration.pod_logs_dir == str(tmp_path / "pod-logs")


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"XDG_STATE_HOME": "/x", "HOME": "/root"}, "/var/lib/trikubelet"),
        (1000, {"XDG_STATE_HOME": "/x", "HOME": "/home/u"}, "/x/trikubelet"),
        (1000, {"XDG_STATE_HOME": "relative", "HOME": "/home/u"}, "/home/u/.local/state/trikubelet"),
        (1000, {"HOME": "/home/u"}, "/home/u/.local/state/trikubelet"),
    ],
)
def test_the_root_folder_follows_the_user(uid: int, environ: dict[str, str], expected: str) -> None:
    assert default_root_dir(environ, uid=uid) == Path(expected)
