from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from trikubelet.config.eviction_thresholds import DEFAULT_HARD, eviction_config
from trikubelet.config.flags import CONFIG_FLAGS
from trikubelet.config.kubelet_configuration import (
    RELATIVE_PATHS,
    SUPPORTED,
    KubeletConfiguration,
    wire_name,
)
from trikubelet.config.loader import ConfigurationError, load_configuration, merge_patch

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


def write(path: Path, body: str, header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + body)
    return path


def problems_of(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(*args, **kwargs)
    return [str(problem) for problem in caught.value.problems]


def test_without_any_file_every_field_has_its_default() -> None:
    loaded = load_configuration()
    assert loaded.config == KubeletConfiguration()
    assert loaded.warnings == ()
    assert loaded.config.sync_frequency == timedelta(minutes=1)
    assert loaded.config.oom_score_adj == -999
    assert loaded.config.container_runtime_endpoint == "embedded"


def test_fields_are_read_and_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    file = write(
        tmp_path / "kubelet.yaml",
        "staticPodPath: manifests\nsyncFrequency: 1m30s\ncontainerRuntimeEndpoint: unix:///run/x.sock\n",
    )
    loaded = load_configuration(file)
    assert loaded.config.static_pod_path == str(tmp_path / "manifests")
    assert loaded.config.sync_frequency == timedelta(seconds=90)
    assert loaded.config.container_runtime_endpoint == "unix:///run/x.sock"
    assert loaded.warnings == ()
    assert loaded.explicit == {"staticPodPath", "syncFrequency", "containerRuntimeEndpoint"}


def test_json_is_read_too(tmp_path: Path) -> None:
    file = write(
        tmp_path / "kubelet.json",
        '{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "fileCheckFrequency": "5s"}',
        header="",
    )
    assert load_configuration(file).config.file_check_frequency == timedelta(seconds=5)


def test_zero_means_the_default_only_where_go_has_no_pointer(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml", "port: 0\nsyncFrequency: 0s\nregistryPullQPS: 0\nhealthzPort: 0\nresolvConf: ''\n"
    )
    config = load_configuration(file).config
    assert (config.port, config.sync_frequency) == (10250, timedelta(minutes=1))
    assert (config.registry_pull_qps, config.healthz_port, config.resolv_conf) == (0, 0, "")


def test_a_zero_that_means_the_default_is_as_if_nobody_had_set_it(tmp_path: Path) -> None:
    """kubeadm writes a whole KubeletConfiguration, with a zero for every field that nobody has set."""
    zeros = "streamingConnectionIdleTimeout: 0s\nnodeStatusReportFrequency: 0s\ncontainerRuntimeEndpoint: ''\n"
    loaded = load_configuration(write(tmp_path / "k.yaml", f"{zeros}nodeStatusUpdateFrequency: 20s\nhealthzPort: 0\n"))
    assert loaded.warnings == ()
    assert loaded.explicit == {"nodeStatusUpdateFrequency", "healthzPort"}
    assert loaded.config.node_status_report_frequency == timedelta(seconds=20)
    unset = load_configuration(write(tmp_path / "z.yaml", "nodeStatusUpdateFrequency: 0s\n")).config
    assert unset.node_status_report_frequency == timedelta(minutes=5)


def test_defaults_follow_the_fields_they_depend_on(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml",
        "nodeStatusUpdateFrequency: 7s\nmaxParallelImagePulls: 3\npodPidsLimit: -5\ncgroupRoot: a/b\n",
    )
    config = load_configuration(file).config
    assert config.node_status_report_frequency == timedelta(seconds=7)
    assert config.serialize_image_pulls is False
    assert config.pod_pids_limit == -1
    assert config.cgroup_root == "/a/b"


def test_each_thing_without_effect_is_named_in_one_warning(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml",
        "hairpinMode: none\nhairpinMode: none\nstaticPodpath: /x\nnonsense: 1\n"
        "authentication:\n  x509:\n    clientCaFile: /a\n"
        "featureGates:\n  CRIListStreaming: true\n",
    )
    warnings = load_configuration(file).warnings
    assert warnings == (
        f"{file}:4: hairpinMode: the field is given twice, the last value is used",
        f"{file}:5: staticPodpath: unknown field (did you mean staticPodPath?), ignored",
        f"{file}:6: nonsense: unknown field, ignored",
        f"{file}:9: authentication.x509.clientCaFile: unknown field (did you mean clientCAFile?), ignored",
        "hairpinMode is set but not supported yet: it has no effect",
        "featureGates[CRIListStreaming]=true has no effect: this agent has not the feature",
    )


def test_all_wrong_types_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml",
        "maxPods: many\nsyncFrequency: 90\nfailSwapOn: 'no'\nclusterDNS: 10.0.0.1\n"
        "authentication:\n  webhook:\n    enabled: 3\nfeatureGates: {A: maybe}\nmaxOpenFiles: 1.5\n"
        "shutdownGracePeriodByPodPriority:\n- priority: high\n",
    )
    assert problems_of(file) == [
        f'{file}:3: maxPods: expected a whole number of 32 bits, got the string "many"',
        f'{file}:4: syncFrequency: expected a duration such as "1m30s", got the number 90',
        f'{file}:5: failSwapOn: expected true or false, got the string "no"',
        f'{file}:6: clusterDNS: expected a list, got the string "10.0.0.1"',
        f"{file}:9: authentication.webhook.enabled: expected true or false, got the number 3",
        f'{file}:10: featureGates[A]: expected true or false, got the string "maybe"',
        f"{file}:11: maxOpenFiles: expected a whole number of 64 bits, got the number 1.5",
        f"{file}:13: shutdownGracePeriodByPodPriority[0].priority: "
        'expected a whole number of 32 bits, got the string "high"',
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("memoryManagerPolicy: static", 'memoryManagerPolicy: must be one of "None", "Static", got "static"'),
        ("cpuManagerPolicy: fast", 'cpuManagerPolicy: must be one of "none", "static", got "fast"'),
        ("podLogsDir: /var/log/", 'podLogsDir: must be normalized ("/var/log")'),
        ("podLogsDir: /var/lög", "podLogsDir: must consist of ASCII characters"),
        ("containerRuntimeEndpoint: npipe://x", 'containerRuntimeEndpoint: must be "embedded" or unix:///PATH'),
        ("imageServiceEndpoint: tcp://x", "imageServiceEndpoint: must be"),
        ("syncFrequency: -1s", "syncFrequency: must be longer than 0s, got -1s"),
        ("cpuManagerReconcilePeriod: -1s", "cpuManagerReconcilePeriod: must be longer than 0s, got -1s"),
        ("imageGCLowThresholdPercent: 90", "imageGCLowThresholdPercent: must be less than imageGCHighThresholdPercent"),
        ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent: must be between 0 and 100, got 101"),
        ("maxPods: -1", "maxPods: must be at least 0, got -1"),
        ("evictionMaxPodGracePeriod: -1", "evictionMaxPodGracePeriod: must be at least 0, got -1"),
        ("evictionPressureTransitionPeriod: -1s", "evictionPressureTransitionPeriod: must not be negative, got -1s"),
        ("cgroupRoot: /pods/../other", 'cgroupRoot: must be a path without "..", got "/pods/../other"'),
        (
            "featureGates: {InPlacePodVerticalScaling: false}",
            "featureGates: cannot set feature gate InPlacePodVerticalScaling to false, feature is locked to true",
        ),
        ("port: 70000", "port: must be between 1 and 65535"),
        ("maxParallelImagePulls: 2\nserializeImagePulls: true", "maxParallelImagePulls: must be 1 unless"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 10m}", "crashLoopBackOff.maxContainerRestartPeriod: must be"),
        ("shutdownGracePeriodCriticalPods: 10s", "shutdownGracePeriodCriticalPods: must not be longer"),
        ("shutdownGracePeriod: 500ms", "shutdownGracePeriod: must be 0s or at least 1s"),
        ("shutdownGracePeriod: -1s", "shutdownGracePeriod: must be 0s or at least 1s"),
        (
            "shutdownGracePeriod: 10s\nfeatureGates: {GracefulNodeShutdown: false, "
            "GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}",
            "shutdownGracePeriod: needs the feature gate GracefulNodeShutdown",
        ),
        (
            "shutdownGracePeriod: 10s\n"
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]",
            "shutdownGracePeriodByPodPriority: cannot be set together with shutdownGracePeriod",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]\n"
            "featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}",
            "shutdownGracePeriodByPodPriority: needs the feature gates GracefulNodeShutdown and",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: -5}]",
            "shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: must be at least 0, got -5",
        ),
        ("containerLogMaxFiles: 1", "containerLogMaxFiles: must be at least 2"),
        ("containerLogMonitorInterval: 1s", "containerLogMonitorInterval: must be at least 3s"),
        ("cpuCFSQuotaPeriod: 2s", "cpuCFSQuotaPeriod: must be between 1ms and 1s, got 2s"),
        ("memoryThrottlingFactor: 0.0", "memoryThrottlingFactor: must be greater than 0"),
        (
            "featureGates: {EventedPLEG: false, GenericPLEG: false, PidfdPLEG: false}",
            "featureGates: at least one of EventedPLEG, GenericPLEG, PidfdPLEG must not be false",
        ),
        (
            "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 50ms",
            "cpuCFSQuotaPeriod: needs the feature gate CustomCPUCFSQuotaPeriod",
        ),
        (
            "featureGates: {RotateKubeletServerCertificate: false}\nserverTLSBootstrap: true",
            "serverTLSBootstrap: needs the feature gate RotateKubeletServerCertificate",
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}\n"
            "imagePullCredentialsVerificationPolicy: AlwaysVerify",
            "imagePullCredentialsVerificationPolicy: needs the feature gate KubeletEnsureSecretPulledImages",
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}\npreloadedImagesVerificationAllowlist: [a]",
            "preloadedImagesVerificationAllowlist: needs the feature gate KubeletEnsureSecretPulledImages",
        ),
        (
            "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 10s}",
            "crashLoopBackOff.maxContainerRestartPeriod: needs the feature gate KubeletCrashLoopBackOffMax",
        ),
        ("featureGates: {NoSuchGate: true}", "featureGates: unrecognized feature gate: NoSuchGate"),
        ("userNamespaces: {idsPerPod: 65537}", "userNamespaces.idsPerPod: must be a multiple"),
        ("runOnce: true", "runOnce: must not be set"),
        ("hairpinMode: x", "hairpinMode: must be one of"),
    ],
)
def test_a_value_against_the_rules_refuses_to_start(tmp_path: Path, body: str, message: str) -> None:
    found = problems_of(write(tmp_path / "k.yaml", body))
    assert any(problem.startswith(message) for problem in found), found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the file is empty"),
        ("a: [", "expected"),
        (
            "kind: Pod\napiVersion: v1\n",
            "expected apiVersion kubelet.config.k8s.io/v1beta1 and kind KubeletConfiguration",
        ),
        ("staticPodPath: x\n", "got nothing"),
        ("- a\n", "expected a KubeletConfiguration"),
        (HEADER + "---\n" + HEADER, "expected one document, got several"),
        ("a: \0", "binary"),
    ],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, body: str, message: str) -> None:
    assert message in problems_of(write(tmp_path / "k.yaml", body, header=""))[0]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none.yaml") == [f"{tmp_path}/none.yaml: no such file"]


def test_drop_ins_are_merged_in_lexical_order_and_others_ignored(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml",
        "syncFrequency: 10s\nclusterDNS: [1.1.1.1]\nevictionHard: {memory.available: 1Gi, pid.available: 5%}\n"
        "maxPods: 7\n",
    )
    drop_ins = tmp_path / "drop-ins"
    write(drop_ins / "20-b.conf", "syncFrequency: 30s\n")
    write(drop_ins / "10-a.conf", "syncFrequency: 20s\nclusterDNS: [2.2.2.2]\nevictionHard: {memory.available: 2Gi}\n")
    write(drop_ins / "15-sub" / "x.conf", "fileCheckFrequency: 3s\nmaxPods: null\n")
    write(drop_ins / "readme.txt", "syncFrequency: 99s\n")
    loaded = load_configuration(file, drop_ins)
    assert loaded.config.sync_frequency == timedelta(seconds=30)
    assert loaded.config.file_check_frequency == timedelta(seconds=3)
    assert loaded.config.cluster_dns == ("2.2.2.2",), "lists are replaced"
    assert loaded.config.eviction_hard == {"memory.available": "2Gi", "pid.available": "5%"}, "mappings are merged"
    assert loaded.config.max_pods == 110, "null takes a field back to its default"
    assert f"{drop_ins}/readme.txt: ignored, drop-ins are called *.conf" in loaded.warnings


def test_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    file = write(tmp_path / "k.yaml", "maxPods: x\n")
    write(tmp_path / "d" / "1.conf", "port: y\n")
    write(tmp_path / "d" / "2.conf", "a: 1\n", header="")
    found = problems_of(file, tmp_path / "d")
    assert [problem.split(": ")[0] for problem in found] == [
        f"{file}:3",
        f"{tmp_path}/d/1.conf:3",
        f"{tmp_path}/d/2.conf:1",
    ]


def test_a_missing_drop_in_folder_is_refused(tmp_path: Path) -> None:
    assert "--config-dir cannot be read" in problems_of(None, tmp_path / "none")[0]


def test_flags_win_over_files_and_feature_gates_are_merged(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.yaml",
        "syncFrequency: 10s\nfeatureGates: {MemoryQoS: true, PodsAPI: true}\nevictionHard: {x: y}\n",
    )
    loaded = load_configuration(
        file,
        flags={
            "sync-frequency": ["20s", "40s"],
            "feature-gates": ["PodsAPI=false,QOSReserved=true"],
            "fail-swap-on": ["false"],
            "eviction-hard": ["memory.available<5%"],
            "cluster-dns": ["1.1.1.1,2.2.2.2"],
            "anonymous-auth": ["true"],
        },
    )
    config = loaded.config
    assert config.sync_frequency == timedelta(seconds=40)
    assert config.feature_gates == {"MemoryQoS": True, "PodsAPI": False, "QOSReserved": True}
    assert config.fail_swap_on is False
    assert config.eviction_hard == {"memory.available": "5%"}
    assert config.cluster_dns == ("1.1.1.1", "2.2.2.2")
    assert config.authentication.anonymous.enabled is True
    assert "--sync-frequency is deprecated: set syncFrequency in the --config file" in loaded.warnings


@pytest.mark.parametrize(
    ("body", "flag", "expected"),
    [
        ("", None, None),
        ("evictionHard: null\n", None, None),
        ("evictionHard: {}\n", None, {}),
        ("", "", {}),
        ("evictionHard: {pid.available: 5%}\n", "", {}),
        ("mergeDefaultEvictionSettings: true\n", None, None),
        ("mergeDefaultEvictionSettings: true\nevictionHard: {}\n", None, DEFAULT_HARD),
        (
            "mergeDefaultEvictionSettings: true\nevictionHard: {pid.available: 5%}\n",
            None,
            {**DEFAULT_HARD, "pid.available": "5%"},
        ),
        ("mergeDefaultEvictionSettings: true\nevictionHard: {pid.available: 5%}\n", "", {}),
        ("mergeDefaultEvictionSettings: true\n", "pid.available<5%", {"pid.available": "5%"}),
    ],
)
def test_hard_eviction_has_the_defaults_only_where_nobody_names_it(
    tmp_path: Path, body: str, flag: str | None, expected: dict[str, str] | None
) -> None:
    file = write(tmp_path / "k.yaml", f"maxPods: 7\n{body}")
    config = load_configuration(file, flags={} if flag is None else {"eviction-hard": [flag]}).config
    assert config.eviction_hard == expected
    found = [one.signal.value for one in eviction_config(config).thresholds if one.hard]
    allocatable = "allocatableMemory.available"
    assert [name for name in found if name != allocatable] == list(DEFAULT_HARD if expected is None else expected)
    assert (allocatable in found) is ("memory.available" in found)


def test_patterns_of_a_flag_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "k.yaml", "logging: {verbosity: 2, vmodule: [{filePattern: pleg, verbosity: 4}]}\n")
    logging = load_configuration(file, flags={"vmodule": ["st*=2,pleg=1", "api=3"]}).config.logging
    found = [(one.file_pattern, one.verbosity) for one in logging.vmodule]
    assert found == [("pleg", 4), ("st*", 2), ("pleg", 1), ("api", 3)]
    assert logging.verbosity == 2


@pytest.mark.parametrize(
    ("texts", "nodes"), [([""], []), (["0:memory=1Gi", ""], [0]), (["", "0:memory=1Gi;1:memory=1Gi"], [0, 1])]
)
def test_reserved_memory_may_be_none(texts: list[str], nodes: list[int]) -> None:
    config = load_configuration(flags={"reserved-memory": texts}).config
    assert [one.numa_node for one in config.reserved_memory] == nodes


@pytest.mark.parametrize(
    ("flag", "text", "problem"),
    [
        ("reserved-memory", "0:memory=1Gi;", "--reserved-memory: reservedMemory: expected a list"),
        ("max-pods", "x", '--max-pods: maxPods: expected a whole number of 32 bits, got the string "x"'),
        ("feature-gates", "A=x", '--feature-gates: featureGates[A]: expected true or false, got the string "x"'),
        ("feature-gates", "A", '--feature-gates: featureGates: expected a mapping, got the string "A"'),
        ("fail-swap-on", "maybe", '--fail-swap-on: failSwapOn: expected true or false, got the string "maybe"'),
        ("sync-frequency", "5", "--sync-frequency: syncFrequency: expected a duration"),
    ],
)
def test_a_wrong_flag_is_named(flag: str, text: str, problem: str) -> None:
    assert problems_of(flags={flag: [text]})[0].startswith(problem)


def _wire_paths(cls: Any = KubeletConfiguration, prefix: str = "") -> set[str]:
    paths = set()
    for attribute in attrs.fields(cls):
        path = prefix + wire_name(attribute)
        paths.add(path)
        if attrs.has(type(attribute.default)):
            paths |= _wire_paths(type(attribute.default), path + ".")
    return paths


def test_every_flag_path_and_supported_field_exists() -> None:
    paths = _wire_paths()
    assert {flag.path for flag in CONFIG_FLAGS} <= paths
    assert paths >= SUPPORTED
    assert set(RELATIVE_PATHS) <= paths
    assert len({flag.name for flag in CONFIG_FLAGS}) == len(CONFIG_FLAGS)


FIELDS_OF_1_36 = """
enableServer staticPodPath podLogsDir syncFrequency fileCheckFrequency httpCheckFrequency staticPodURL
staticPodURLHeader address port readOnlyPort tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsCurvePreferences
tlsMinVersion rotateCertificates serverTLSBootstrap authentication authorization registryPullQPS registryBurst
imagePullCredentialsVerificationPolicy preloadedImagesVerificationAllowlist eventRecordQPS eventBurst
enableDebuggingHandlers enableContentionProfiling healthzPort healthzBindAddress oomScoreAdj clusterDomain clusterDNS
streamingConnectionIdleTimeout nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds
imageMinimumGCAge imageMaximumGCAge imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod
kubeletCgroups systemCgroups cgroupRoot cgroupsPerQOS cgroupDriver cpuManagerPolicy singleProcessOOMKill
cpuManagerPolicyOptions cpuManagerReconcilePeriod memoryManagerPolicy topologyManagerPolicy topologyManagerScope
topologyManagerPolicyOptions qosReserved runtimeRequestTimeout hairpinMode maxPods podCIDR podPidsLimit resolvConf
runOnce cpuCFSQuota cpuCFSQuotaPeriod nodeStatusMaxImages maxOpenFiles contentType kubeAPIQPS kubeAPIBurst
serializeImagePulls maxParallelImagePulls evictionHard evictionSoft evictionSoftGracePeriod
evictionPressureTransitionPeriod evictionMaxPodGracePeriod evictionMinimumReclaim mergeDefaultEvictionSettings
podsPerCore enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains iptablesMasqueradeBit
iptablesDropBit featureGates failSwapOn memorySwap containerLogMaxSize containerLogMaxFiles containerLogMaxWorkers
containerLogMonitorInterval configMapAndSecretChangeDetectionStrategy systemReserved kubeReserved reservedSystemCPUs
showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup enforceNodeAllocatable allowedUnsafeSysctls
volumePluginDir providerID kernelMemcgNotification logging enableSystemLogHandler enableSystemLogQuery
shutdownGracePeriod shutdownGracePeriodCriticalPods shutdownGracePeriodByPodPriority crashLoopBackOff reservedMemory
enableProfilingHandler enableDebugFlagsHandler seccompDefault memoryThrottlingFactor memoryReservationPolicy
registerWithTaints registerNode tracing localStorageCapacityIsolation containerRuntimeEndpoint imageServiceEndpoint
failCgroupV1 userNamespaces
"""


def test_every_field_of_the_published_type_is_known() -> None:
    assert [wire_name(attribute) for attribute in attrs.fields(KubeletConfiguration)] == FIELDS_OF_1_36.split()


def test_a_merge_patch_follows_its_rfc() -> None:
    assert merge_patch({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": None, "e": {"f": None}}, "d": [2]}) == {
        "a": {"c": 2, "e": {}},
        "d": [2],
    }


def test_problem_text_has_place_field_and_message(tmp_path: Path) -> None:
    text = problems_of(write(tmp_path / "k.yaml", "port: x"))[0]
    assert re.fullmatch(r".*/k\.yaml:3: port: expected a whole number .*", text)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("logging: words\n", "logging"),
        ("logging: {vmodule: words}\n", "logging.vmodule"),
        ("mergeDefaultEvictionSettings: true\nevictionHard: [words]\n", "evictionHard"),
    ],
)
def test_a_flag_is_laid_over_a_file_that_has_something_else_in_its_place(tmp_path: Path, body: str, field: str) -> None:
    file = write(tmp_path / "k.yaml", body)
    with pytest.raises(ConfigurationError, match=field):
        load_configuration(file, flags={"vmodule": ["pleg=1"]})
