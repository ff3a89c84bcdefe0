"""What a configuration must satisfy beyond its types (kubelet: `ValidateKubeletConfiguration`).

Pure. Rules of fields that the agent does not support yet are kept where they are simple ranges: a file that the kubelet
refuses should not pass here only because nothing reads it yet. Those about processors, memory and swap are in
`resource_rules`.
"""

from __future__ import annotations

import posixpath
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.api.quantity import Quantity
from trikubelet.config.decode import FieldProblem
from trikubelet.config.eviction_thresholds import ThresholdsError, eviction_config
from trikubelet.config.feature_gates import gate_problems
from trikubelet.config.image_rules import allowlist_problem
from trikubelet.config.kubelet_configuration import (
    EMBEDDED_RUNTIME,
    PLEG_GATES,
    SHUTDOWN_GATES,
    KubeletConfiguration,
    Tracing,
    wire_name,
)
from trikubelet.config.logging_rules import check_logging
from trikubelet.config.reservation_rules import check_reservations
from trikubelet.config.resource_rules import check_resources
from trikubelet.config.tracing_endpoint import DEFAULT_ENDPOINT, parse_endpoint
from trikubelet.formats.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANY: Final = None
_NEEDS_SECRETS: Final = "needs the feature gate KubeletEnsureSecretPulledImages"

# Field, least, most (inclusive; None is no limit).
_RANGES: Final[tuple[tuple[str, int | None, int | None], ...]] = (
    ("node_lease_duration_seconds", 1, _ANY),
    ("event_burst", 0, _ANY),
    ("eviction_max_pod_grace_period", 0, _ANY),
    ("event_record_qps", 0, _ANY),
    ("healthz_port", 0, 65535),
    ("image_gc_high_threshold_percent", 0, 100),
    ("image_gc_low_threshold_percent", 0, 100),
    ("iptables_drop_bit", 0, 31),
    ("iptables_masquerade_bit", 0, 31),
    ("kube_api_burst", 0, _ANY),
    ("kube_api_qps", 0, _ANY),
    ("node_status_max_images", -1, _ANY),
    ("max_open_files", 0, _ANY),
    ("max_pods", 0, _ANY),
    ("oom_score_adj", -1000, 1000),
    ("pods_per_core", 0, _ANY),
    ("port", 1, 65535),
    ("read_only_port", 0, 65535),
    ("registry_burst", 0, _ANY),
    ("registry_pull_qps", 0, _ANY),
    ("max_parallel_image_pulls", 1, _ANY),
    ("container_log_max_workers", 1, _ANY),
    ("container_log_max_files", 2, _ANY),
)

_CHOICES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("topology_manager_scope", ("container", "pod")),
    ("hairpin_mode", ("none", "hairpin-veth", "promiscuous-bridge")),
    ("cgroup_driver", ("cgroupfs", "systemd")),
    ("config_map_and_secret_change_detection_strategy", ("Get", "Cache", "Watch")),
    (
        "image_pull_credentials_verification_policy",
        ("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"),
    ),
)

_POSITIVE_DURATIONS: Final = (
    "sync_frequency",
    "file_check_frequency",
    "http_check_frequency",
    "runtime_request_timeout",
    "cpu_manager_reconcile_period",
)

_WIRE: Final = {attribute.name: wire_name(attribute) for attribute in attrs.fields(KubeletConfiguration)}


def check_configuration(config: KubeletConfiguration) -> list[FieldProblem]:
    """Every rule that the configuration breaks, in the order of the rules."""
    return [
        *_check_ranges(config),
        *_check_choices(config),
        *check_resources(config),
        *_check_durations(config),
        *_check_relations(config),
        *(FieldProblem("featureGates", problem) for problem in gate_problems(config.feature_gates)),
        *_check_shutdown(config),
        *_check_images_and_logs(config),
        *_check_eviction(config),
        *check_logging(config),
        *check_reservations(config),
        *_check_pod_logs_dir(config.pod_logs_dir),
        *_check_endpoints(config),
        *_check_tracing(config.tracing),
    ]


def _check_ranges(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    for name, least, most in _RANGES:
        value = getattr(config, name)
        if value is None or ((least is None or value >= least) and (most is None or value <= most)):
            continue
        expected = f"at least {least}" if most is None else f"between {least} and {most}"
        yield FieldProblem(_WIRE[name], f"must be {expected}, got {value}")


def _check_choices(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    for name, choices in _CHOICES:
        value = getattr(config, name)
        if value not in choices:
            yield FieldProblem(_WIRE[name], f'must be one of {_quoted(choices)}, got "{value}"')


def _check_durations(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    for name in _POSITIVE_DURATIONS:
        value: timedelta = getattr(config, name)
        if value <= timedelta(0):
            yield FieldProblem(_WIRE[name], f"must be longer than 0s, got {format_duration(value)}")
    period = config.cpu_cfs_quota_period
    if not config.enabled("CustomCPUCFSQuotaPeriod"):
        if period != timedelta(milliseconds=100):
            yield FieldProblem("cpuCFSQuotaPeriod", "needs the feature gate CustomCPUCFSQuotaPeriod")
    elif not timedelta(milliseconds=1) <= period <= timedelta(seconds=1):
        yield FieldProblem("cpuCFSQuotaPeriod", f"must be between 1ms and 1s, got {format_duration(period)}")
    if config.container_log_monitor_interval < timedelta(seconds=3):
        got = format_duration(config.container_log_monitor_interval)
        yield FieldProblem("containerLogMonitorInterval", f"must be at least 3s, got {got}")
    restart = config.crash_loop_back_off.max_container_restart_period
    if restart is not None and not config.enabled("KubeletCrashLoopBackOffMax"):
        needed = "needs the feature gate KubeletCrashLoopBackOffMax"
        yield FieldProblem("crashLoopBackOff.maxContainerRestartPeriod", needed)
    elif restart is not None and not timedelta(seconds=1) <= restart <= timedelta(seconds=300):
        got = format_duration(restart)
        yield FieldProblem("crashLoopBackOff.maxContainerRestartPeriod", f"must be between 1s and 300s, got {got}")


def _check_relations(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    if config.image_gc_low_threshold_percent >= config.image_gc_high_threshold_percent:
        yield FieldProblem(
            "imageGCLowThresholdPercent",
            f"must be less than imageGCHighThresholdPercent ({config.image_gc_high_threshold_percent}), "
            f"got {config.image_gc_low_threshold_percent}",
        )
    if timedelta(0) < config.image_maximum_gc_age <= config.image_minimum_gc_age:
        yield FieldProblem("imageMaximumGCAge", "must be longer than imageMinimumGCAge")
    if config.serialize_image_pulls and (config.max_parallel_image_pulls or 1) > 1:
        yield FieldProblem("maxParallelImagePulls", "must be 1 unless serializeImagePulls is false")
    if config.system_cgroups and not config.cgroup_root:
        yield FieldProblem("systemCgroups", "needs cgroupRoot")
    if ".." in config.cgroup_root.split("/"):
        yield FieldProblem("cgroupRoot", f'must be a path without "..", got "{config.cgroup_root}"')
    if config.server_tls_bootstrap and not config.enabled("RotateKubeletServerCertificate"):
        yield FieldProblem("serverTLSBootstrap", "needs the feature gate RotateKubeletServerCertificate")
    if config.run_once:
        yield FieldProblem("runOnce", "must not be set: the run-once mode was removed from the kubelet")
    if not any(map(config.enabled, PLEG_GATES)):
        yield FieldProblem("featureGates", f"at least one of {', '.join(PLEG_GATES)} must not be false")
    ids = config.user_namespaces.ids_per_pod if config.user_namespaces else None
    if ids is not None and (ids % 65536 or not 65536 <= ids <= 2**32 - 1):
        yield FieldProblem("userNamespaces.idsPerPod", f"must be a multiple of 65536 and at most 4294967295, got {ids}")


def _check_shutdown(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    all_pods, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    by_priority = config.shutdown_grace_period_by_pod_priority
    graceful, prioritized = map(config.enabled, SHUTDOWN_GATES)
    for path, grace in (("shutdownGracePeriod", all_pods), ("shutdownGracePeriodCriticalPods", critical)):
        if grace < timedelta(0) or timedelta(0) < grace < timedelta(seconds=1):
            yield FieldProblem(path, f"must be 0s or at least 1s, got {format_duration(grace)}")
        if grace > timedelta(0) and not graceful:
            yield FieldProblem(path, f"needs the feature gate {SHUTDOWN_GATES[0]}")
    if critical > all_pods:
        yield FieldProblem("shutdownGracePeriodCriticalPods", "must not be longer than shutdownGracePeriod")
    if not by_priority:
        return
    path = "shutdownGracePeriodByPodPriority"
    if not graceful or not prioritized:
        yield FieldProblem(path, f"needs the feature gates {' and '.join(SHUTDOWN_GATES)}")
    elif all_pods > timedelta(0) or critical > timedelta(0):
        yield FieldProblem(path, "cannot be set together with shutdownGracePeriod")
    for index, period in enumerate(by_priority):
        if period.shutdown_grace_period_seconds < 0:
            got = period.shutdown_grace_period_seconds
            yield FieldProblem(f"{path}[{index}].shutdownGracePeriodSeconds", f"must be at least 0, got {got}")


def _check_images_and_logs(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    try:
        Quantity(config.container_log_max_size)
    except ValueError as error:
        yield FieldProblem("containerLogMaxSize", str(error))
    patterns = config.preloaded_images_verification_allowlist
    if not config.enabled("KubeletEnsureSecretPulledImages"):
        # A policy that is the default may not have been given.
        if config.image_pull_credentials_verification_policy != "NeverVerifyPreloadedImages":
            yield FieldProblem("imagePullCredentialsVerificationPolicy", _NEEDS_SECRETS)
        if patterns:
            yield FieldProblem("preloadedImagesVerificationAllowlist", _NEEDS_SECRETS)
    elif patterns and config.image_pull_credentials_verification_policy != "NeverVerifyAllowlistedImages":
        message = 'can be set only with imagePullCredentialsVerificationPolicy "NeverVerifyAllowlistedImages"'
        yield FieldProblem("preloadedImagesVerificationAllowlist", message)
    for index, pattern in enumerate(patterns):
        problem = allowlist_problem(pattern)
        if problem is not None:
            yield FieldProblem(f"preloadedImagesVerificationAllowlist[{index}]", problem)


def _check_eviction(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    """The kubelet takes negative times: it then kills pods at once, and never reports pressure."""
    period = config.eviction_pressure_transition_period
    if period < timedelta(0):
        yield FieldProblem("evictionPressureTransitionPeriod", f"must not be negative, got {format_duration(period)}")
    try:
        eviction_config(config)
    except ThresholdsError as error:
        for problem in error.problems:
            yield FieldProblem(problem.path, problem.message)


def _check_pod_logs_dir(path: str) -> Iterator[FieldProblem]:
    if not posixpath.isabs(path):
        yield FieldProblem("podLogsDir", f'must be an absolute path, got "{path}"')
    elif posixpath.normpath(path) != path:
        yield FieldProblem("podLogsDir", f'must be normalized ("{posixpath.normpath(path)}"), got "{path}"')
    if not path.isascii():
        yield FieldProblem("podLogsDir", "must consist of ASCII characters")


def _check_endpoints(config: KubeletConfiguration) -> Iterator[FieldProblem]:
    for path, endpoint in (
        ("containerRuntimeEndpoint", config.container_runtime_endpoint),
        ("imageServiceEndpoint", config.image_service_endpoint or EMBEDDED_RUNTIME),
    ):
        problem = endpoint_problem(endpoint)
        if problem is not None:
            yield FieldProblem(path, problem)


def _check_tracing(tracing: Tracing | None) -> Iterator[FieldProblem]:
    if tracing is None:
        return
    rate = tracing.sampling_rate_per_million
    if rate is not None and not 0 <= rate <= 1_000_000:
        yield FieldProblem("tracing.samplingRatePerMillion", f"must be between 0 and 1000000, got {rate}")
    try:
        parse_endpoint(DEFAULT_ENDPOINT if tracing.endpoint is None else tracing.endpoint)
    except ValueError as error:
        yield FieldProblem("tracing.endpoint", str(error))


def endpoint_problem(endpoint: str) -> str | None:
    """Why a runtime endpoint cannot be used, or None. A bare absolute path counts as unix socket, as in the kubelet."""
    if endpoint == EMBEDDED_RUNTIME or endpoint.startswith("/"):
        return None
    if endpoint.startswith("unix:///"):
        return None
    return f'must be "embedded" or unix:///PATH, got "{endpoint}"'


def _quoted(values: tuple[str, ...]) -> str:
    return ", ".join(f'"{value}"' for value in values)
