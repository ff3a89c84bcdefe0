from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.cli.conftest import run_command
from trikubelet.agent.options import runtime_options
from trikubelet.agent.resources import has_own_cgroup_root
from trikubelet.cgroups.ownership import own_cgroup_root
from trikubelet.cli.kubelet_flags import MEANINGLESS
from trikubelet.cli.root_dir import default_root_dir
from trikubelet.cli.run import run
from trikubelet.config.kubelet_configuration import LogOptions

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
    assert options.manifests == default_root_dir() / "manifests"
    assert options.applied == default_root_dir() / "applied"
    assert options.drain_on_exit is None
    assert options.has_host_image
    assert options.registry_hosts_dirs == ()
    assert options.warnings == ()


@pytest.mark.parametrize("folder", ["applied", "removed", "written", "link"])
def test_a_folder_of_commands_is_no_persons(started: list[AgentOptions], tmp_path: Path, folder: str) -> None:
    (tmp_path / "link").symlink_to("applied")
    outcome = run_command("run", "--manifests", tmp_path / folder, "--root-dir", tmp_path)
    assert (outcome.code, started) == (1, [])
    assert outcome.err == (
        f"{tmp_path / folder}: commands write into this folder, give --manifests another one for your files"
    )


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
    logging = options.configuration.logging
    assert (options.node_name, logging.format, logging.verbosity) == ("node-1", "json", 4)
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


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], False),
        (["--make-iptables-util-chains"], True),
        (["--kubeconfig=none"], True),
        (["--kubeconfig=none", "--make-iptables-util-chains=false"], False),
        (["--runtime-endpoint=/run/containerd/containerd.sock"], True),
    ],
)
def test_a_node_by_itself_on_its_own_runtime_leaves_the_firewall_alone(
    started: list[AgentOptions], flags: list[str], expected: bool
) -> None:
    run_command("run", *flags)
    assert started[0].configuration.make_iptables_util_chains is expected


@pytest.mark.parametrize("flag", [("-v=4",), ("-v4",), ("-v", "4"), ("--v=4",)])
def test_the_verbosity_is_written_as_for_the_kubelet(started: list[AgentOptions], flag: tuple[str, ...]) -> None:
    run_command("run", *flag)
    assert started[0].configuration.logging.verbosity == 4
    assert started[0].warnings == ()


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
        "MemoryQoS=true",
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
        (["--cpu-manager-policy", "fast"], 'must be one of "none", "static", got "fast"'),
        (["--node-name", "not a name"], "as node name"),
        (["--log-format", "xml"], '--logging-format: logging.format: must be "text" or "json", got "xml"'),
        (["-v", "x"], "--v: logging.verbosity: expected a whole number"),
        (["--vmodule", "pleg"], '--vmodule: logging.vmodule: expected a list, got the string "pleg"'),
        (["--manifest-url-header", "x"], "--manifest-url-header: staticPodURLHeader: expected a mapping"),
        (["--feature-gates", "A=true"], "--feature-gates: featureGates: unrecognized feature gate: A"),
        (["--exit-on-lock-contention"], "cannot exit on lock file contention: no lock file specified"),
        (["--version=maybe"], "expected true, false, raw or a version"),
        (["--version=verbose"], "expected true, false, raw or a version"),
        (["--version=v9.9.9"], "expected true, false, raw or a version v1.36.2"),
        (["--version=v1.36"], "expected true, false, raw or a version"),
        (["--version=v1.36.20"], "expected true, false, raw or a version"),
        (["--version=v1.36.2.1"], "expected true, false, raw or a version"),
        (["--version=v1.36.2-01"], "expected true, false, raw or a version"),
        (["--version=v1.36.2-"], "expected true, false, raw or a version"),
        (["--logtostderr"], "No such option"),
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


@pytest.mark.parametrize("configured", [False, True])
def test_an_agent_without_a_cluster_has_cgroups_and_logs_of_its_own(
    started: list[AgentOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    file = tmp_path / "config.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
    flags = ("--config", file) if configured else ()
    run_command("run", *flags, "--root-dir", "/var/lib/trikubelet")
    run_command("run", *flags, "--root-dir", tmp_path)
    run_command("run", *flags, "--root-dir", tmp_path, "--kubeconfig", tmp_path / "kubeconfig")
    places = [(one.configuration.cgroup_root, one.configuration.pod_logs_dir) for one in started]
    assert places == [
        ("/trikubelet", "/var/lib/trikubelet/pod-logs"),
        (own_cgroup_root(tmp_path), f"{tmp_path}/pod-logs"),
        ("", "/var/log/pods"),
    ]
    assert [has_own_cgroup_root(one) for one in started] == [True, True, False]
    kept = [(one.earlier_logs_dir, one.alone, one.owner) for one in map(runtime_options, started)]
    assert kept[1:] == [(Path("/var/log/pods"), True, str(tmp_path)), (None, False, str(tmp_path))]


def test_cgroups_and_logs_that_somebody_names_stay_as_named(started: list[AgentOptions], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "podLogsDir: /var/log/pods\ncgroupRoot: /\n"
    )
    run_command("run", "--config", file, "--root-dir", tmp_path)
    run_command("run", "--cgroup-root=/nodes", "--root-dir", tmp_path)
    assert started[0].configuration.pod_logs_dir == "/var/log/pods"
    assert [one.configuration.cgroup_root for one in started] == ["/", "/nodes"]
    assert not any(map(has_own_cgroup_root, started))
    assert runtime_options(started[0]).earlier_logs_dir is None


@pytest.mark.parametrize(
    ("endpoint", "logs", "uid", "links"),
    [
        ("embedded", None, 0, None),
        ("unix:///run/c.sock", None, 0, Path("/var/log/containers")),
        ("unix:///run/c.sock", None, 1000, None),
        ("unix:///run/c.sock", "/var/log/pods", 0, Path("/var/log/containers")),
        ("unix:///run/c.sock", "/srv/logs", 0, None),
    ],
)
def test_links_for_log_collectors_lead_to_the_usual_logs_and_to_the_agents_own(
    started: list[AgentOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    logs: str | None,
    uid: int,
    links: Path | None,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        + ("" if logs is None else f"podLogsDir: {logs}\n")
    )
    run_command("run", "--config", file, "--root-dir", tmp_path, "--runtime-endpoint", endpoint)
    assert runtime_options(started[0]).legacy_log_symlinks_dir == links


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


@pytest.mark.parametrize("given", [["--version"], ["--version=true"], ["--version", "--max-pods=x"]])
def test_the_version_is_told_as_the_kubelet_tells_it(started: list[AgentOptions], given: list[str]) -> None:
    outcome = run_command("run", *given)
    assert (outcome.code, outcome.out, started) == (0, "Kubernetes v1.36.2\n", [])


def test_the_version_in_full_is_on_one_line(started: list[AgentOptions]) -> None:
    outcome = run_command("run", "--version=raw")
    assert outcome.out == 'version.Info{Major:"1", Minor:"36", GitVersion:"v1.36.2"}\n'
    assert started == []


def test_another_version_is_what_the_node_names(started: list[AgentOptions]) -> None:
    texts = ["v1.36.2-site.4", "v1.36.2", "v1.36.2+x", "v1.36.2-0.a-1+01"]
    for text in (*texts, "false"):
        run_command("run", f"--version={text}")
    assert [options.node.reported_version for options in started] == [*texts, "v1.36.2"]


@pytest.mark.parametrize("flag", sorted(MEANINGLESS))
def test_flags_that_mean_nothing_are_taken_and_said_once(started: list[AgentOptions], flag: str) -> None:
    run_command("run", f"--{flag}=1s")
    (warning,) = started[0].warnings
    assert warning.startswith(f"--{flag} means nothing to this agent: ")


# The flags of `options.go` and `globalflags_linux.go`, with `logs/api/v1/options.go`.
KUBELET_FLAGS: Final = """
address allowed-unsafe-sysctls anonymous-auth authentication-token-webhook authentication-token-webhook-cache-ttl
application-metrics-count-limit authorization-mode authorization-webhook-cache-authorized-ttl
authorization-webhook-cache-unauthorized-ttl boot-id-file bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root
cgroups-per-qos client-ca-file cloud-provider cluster-dns cluster-domain config config-dir container-hints
container-log-max-files container-log-max-size container-runtime-endpoint containerd containerd-namespace
contention-profiling cpu-cfs-quota cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options
cpu-manager-reconcile-period enable-controller-attach-detach enable-debugging-handlers enable-load-reader
enable-server enforce-node-allocatable event-burst event-qps event-storage-age-limit event-storage-event-limit
eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim eviction-pressure-transition-period
eviction-soft eviction-soft-grace-period exit-on-lock-contention experimental-allocatable-ignore-eviction
experimental-mounter-path fail-cgroupv1 fail-swap-on feature-gates file-check-frequency global-housekeeping-interval
hairpin-mode healthz-bind-address healthz-port hostname-override housekeeping-interval http-check-frequency
image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold image-gc-low-threshold
image-service-endpoint kernel-memcg-notification kube-api-burst kube-api-content-type kube-api-qps kube-reserved
kube-reserved-cgroup kubeconfig kubelet-cgroups local-storage-capacity-isolation lock-file log-cadvisor-usage
log-flush-frequency log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size log-text-split-stream
logging-format machine-id-file make-iptables-util-chains manifest-url manifest-url-header max-housekeeping-interval
max-open-files max-pods maximum-dead-containers maximum-dead-containers-per-container memory-manager-policy
minimum-container-ttl-duration minimum-image-ttl-duration node-ip node-labels node-status-max-images
node-status-update-frequency oom-score-adj pod-cidr pod-manifest-path pod-max-pids pods-per-core port
protect-kernel-defaults provider-id qos-reserved read-only-port register-node register-with-taints registry-burst
registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates rotate-server-certificates
runonce runtime-cgroups runtime-request-timeout seccomp-default serialize-image-pulls storage-driver-buffer-duration
storage-driver-db storage-driver-host storage-driver-password storage-driver-secure storage-driver-table
storage-driver-user streaming-connection-idle-timeout sync-frequency system-cgroups system-reserved
system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file topology-manager-policy
topology-manager-policy-options topology-manager-scope v version vmodule volume-plugin-dir volume-stats-agg-period
"""


@pytest.mark.parametrize("flag", KUBELET_FLAGS.split())
def test_no_flag_of_the_kubelet_is_unknown(flag: str) -> None:
    names = {name for param in run.params for name in (*param.opts, *param.secondary_opts)}
    assert f"--{flag}" in names


def test_underscores_are_hyphens(started: list[AgentOptions]) -> None:
    run_command("run", "--max_pods=5", "--hostname_override=n1")
    assert (started[0].configuration.max_pods, started[0].node_name) == (5, "n1")


def test_every_other_flag_says_what_it_says_to_the_kubelet(started: list[AgentOptions], tmp_path: Path) -> None:
    run_command(
        "run",
        *("--manifest-url-header", "a:hello,b:again,c:world", "--manifest-url-header", "b: beautiful:x"),
        *("--reserved-memory", "0:memory=1Gi,hugepages-1Gi=1Gi;1:memory=1Gi", "--reserved-memory=2:memory=2Gi"),
        *("--vmodule", "pleg=4,st*=2", "--log-flush-frequency=1s", "--logging-format=text"),
        *("--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream", "--log-text-info-buffer-size=1Ki"),
        *("--lock-file", tmp_path / "lock", "--exit-on-lock-contention", "--runtime-cgroups=/runtime"),
        "--experimental-allocatable-ignore-eviction",
    )
    (options,) = started
    configuration = options.configuration
    assert configuration.static_pod_url_header == {"a": ("hello",), "b": ("again", "beautiful:x"), "c": ("world",)}
    assert [(one.numa_node, one.limits) for one in configuration.reserved_memory] == [
        (0, {"memory": "1Gi", "hugepages-1Gi": "1Gi"}),
        (1, {"memory": "1Gi"}),
        (2, {"memory": "2Gi"}),
    ]
    logging = configuration.logging
    assert [(one.file_pattern, one.verbosity) for one in logging.vmodule] == [("pleg", 4), ("st*", 2)]
    assert logging.flush_frequency == timedelta(seconds=1)
    assert logging.options.text == LogOptions(split_stream=True, info_buffer_size="1Ki")
    assert (options.lock_file, options.exit_on_lock_contention) == (tmp_path / "lock", True)
    assert (options.runtime_cgroups, options.ignores_eviction) == ("/runtime", True)
    assert not any("log-flush" in warning or "vmodule" in warning for warning in options.warnings)


# `TestReservedMemoryVar`
@pytest.mark.parametrize("text", ["bad-input", "0:", "a:memory=1Gi", "0:memory=", "0:type=1Gi", "0:memory=1Be"])
def test_reserved_memory_that_is_none_is_refused(started: list[AgentOptions], text: str) -> None:
    outcome = run_command("run", f"--reserved-memory={text}")
    assert outcome.code == 1
    assert outcome.err.startswith("--reserved-memory: reservedMemory")
    assert started == []


@pytest.mark.parametrize(
    ("configured", "joins", "line", "endpoint"),
    [
        (True, True, "", "unix:///run/containerd/containerd.sock"),
        (True, True, "containerRuntimeEndpoint: embedded", "embedded"),
        (True, True, "containerRuntimeEndpoint: /run/x.sock", "unix:///run/x.sock"),
        (True, False, "", "embedded"),
        (False, True, "", "embedded"),
    ],
)
def test_a_kubelets_configuration_in_a_cluster_means_the_kubelets_runtime(
    configured: bool, joins: bool, line: str, endpoint: str, started: list[AgentOptions], tmp_path: Path
) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text(f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{line}\n")
    run_command("run", *(["--config", file] if configured else []), *(["--kubeconfig=k"] if joins else []))
    assert started[0].runtime_endpoint == endpoint
    run_command("run", "--config", file, "--kubeconfig=k", "--runtime-endpoint=embedded")
    assert started[1].runtime_endpoint == "embedded"
