"""`kubelet.config.k8s.io/v1beta1 KubeletConfiguration`: every field of Kubernetes 1.36 by name, type and default.

The classes are the schema: the decoder (`trikubelet.config.decode`) reads names, types and defaults from them, so a
field is known here or it is unknown. Knowing a field is not honouring it: `SUPPORTED` lists what this agent acts on
today, and every other field that a user sets is named in a warning.

Two defaults differ from the kubelet's. `containerRuntimeEndpoint` is `embedded`, the runtime in the agent's own
process. And a default that follows from another field (`serializeImagePulls`, `nodeStatusReportFrequency`) is derived
after drop-ins are merged, where the kubelet derives it before and then holds the drop-in to it.

Durations are `timedelta`; where Go has a pointer the value may be None, and where it has none, zero means "default".
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.config.feature_gates import gate_enabled
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
KIND: Final = "KubeletConfiguration"
EMBEDDED_RUNTIME: Final = "embedded"

NO_TIME: Final = timedelta(0)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def plain(
    default: Any, *, wire: str | None = None, bits: int = 32, from_number: Callable[[int], str] | None = None
) -> Any:
    """A field without pointer in Go: its zero value means the default.

    `from_number` makes the text that the field takes of a number, which it takes too.
    """
    metadata = {"wire": wire, "bits": bits, "zero_is_default": True, "from_number": from_number}
    return attrs.field(default=default, metadata=metadata)


def pointer(default: Any, *, wire: str | None = None, bits: int = 32) -> Any:
    """A field with pointer in Go: zero, false and empty are values of their own."""
    return attrs.field(default=default, metadata={"wire": wire, "bits": bits, "zero_is_default": False})


@frozen(kw_only=True)
class X509Authentication:
    client_ca_file: str = plain("", wire="clientCAFile")


@frozen(kw_only=True)
class WebhookAuthentication:
    enabled: bool = pointer(True)
    cache_ttl: timedelta = plain(seconds(120), wire="cacheTTL")


@frozen(kw_only=True)
class AnonymousAuthentication:
    enabled: bool = pointer(False)


@frozen(kw_only=True)
class Authentication:
    x509: X509Authentication = X509Authentication()
    webhook: WebhookAuthentication = WebhookAuthentication()
    anonymous: AnonymousAuthentication = AnonymousAuthentication()


@frozen(kw_only=True)
class WebhookAuthorization:
    cache_authorized_ttl: timedelta = plain(seconds(300), wire="cacheAuthorizedTTL")
    cache_unauthorized_ttl: timedelta = plain(seconds(30), wire="cacheUnauthorizedTTL")


@frozen(kw_only=True)
class Authorization:
    mode: str = plain("Webhook")
    webhook: WebhookAuthorization = WebhookAuthorization()


@frozen(kw_only=True)
class MemorySwap:
    swap_behavior: str = plain("")


@frozen(kw_only=True)
class CrashLoopBackOff:
    max_container_restart_period: timedelta | None = pointer(None)


@frozen(kw_only=True)
class UserNamespaces:
    ids_per_pod: int | None = pointer(None, wire="idsPerPod", bits=64)


@frozen(kw_only=True)
class ShutdownGracePeriod:
    """What pods of one priority and above get when the node shuts down."""

    priority: int = plain(0)
    shutdown_grace_period_seconds: int = plain(0, bits=64)


@frozen(kw_only=True)
class MemoryReservation:
    numa_node: int = plain(0)
    limits: dict[str, str] = plain({})


@frozen(kw_only=True)
class NodeTaint:
    key: str = plain("")
    value: str = plain("")
    effect: str = plain("")
    time_added: str = plain("")


@frozen(kw_only=True)
class LogOptions:
    split_stream: bool = plain(False)
    info_buffer_size: str = plain("0", from_number=str)


@frozen(kw_only=True)
class LogFormatOptions:
    text: LogOptions = LogOptions()
    json: LogOptions = LogOptions()


@frozen(kw_only=True)
class VModuleItem:
    file_pattern: str = plain("")
    verbosity: int = plain(0, bits=64)


@frozen(kw_only=True)
class Logging:
    format: str = plain("text")
    flush_frequency: timedelta = plain(seconds(5), from_number=lambda nanoseconds: f"{nanoseconds}ns")
    verbosity: int = plain(0, bits=64)
    vmodule: tuple[VModuleItem, ...] = plain(())
    options: LogFormatOptions = LogFormatOptions()


@frozen(kw_only=True)
class Tracing:
    endpoint: str | None = pointer(None)
    sampling_rate_per_million: int | None = pointer(None)


@frozen(kw_only=True)
class KubeletConfiguration:
    """The configuration of a node, with every default filled in."""

    enable_server: bool = pointer(True)
    static_pod_path: str = plain("")
    pod_logs_dir: str = plain("/var/log/pods")
    sync_frequency: timedelta = plain(seconds(60))
    file_check_frequency: timedelta = plain(seconds(20))
    http_check_frequency: timedelta = plain(seconds(20))
    static_pod_url: str = plain("", wire="staticPodURL")
    static_pod_url_header: dict[str, tuple[str, ...]] = plain({}, wire="staticPodURLHeader")
    address: str = plain("0.0.0.0")
    port: int = plain(10250)
    read_only_port: int = plain(0)
    tls_cert_file: str = plain("")
    tls_private_key_file: str = plain("")
    tls_cipher_suites: tuple[str, ...] = plain(())
    tls_curve_preferences: tuple[int, ...] = plain(())
    tls_min_version: str = plain("")
    rotate_certificates: bool = plain(False)
    server_tls_bootstrap: bool = plain(False, wire="serverTLSBootstrap")
    authentication: Authentication = Authentication()
    authorization: Authorization = Authorization()
    registry_pull_qps: int = pointer(5, wire="registryPullQPS")
    registry_burst: int = plain(10)
    image_pull_credentials_verification_policy: str = plain("NeverVerifyPreloadedImages")
    preloaded_images_verification_allowlist: tuple[str, ...] = plain(())
    event_record_qps: int = pointer(50, wire="eventRecordQPS")
    event_burst: int = plain(100)
    enable_debugging_handlers: bool = pointer(True)
    enable_contention_profiling: bool = plain(False)
    healthz_port: int = pointer(10248)
    healthz_bind_address: str = plain("127.0.0.1")
    oom_score_adj: int = pointer(-999)
    cluster_domain: str = plain("")
    cluster_dns: tuple[str, ...] = plain((), wire="clusterDNS")
    streaming_connection_idle_timeout: timedelta = plain(seconds(4 * 3600))
    node_status_update_frequency: timedelta = plain(seconds(10))
    node_status_report_frequency: timedelta = plain(seconds(300))
    node_lease_duration_seconds: int = plain(40)
    image_minimum_gc_age: timedelta = plain(seconds(120), wire="imageMinimumGCAge")
    image_maximum_gc_age: timedelta = plain(NO_TIME, wire="imageMaximumGCAge")
    image_gc_high_threshold_percent: int = pointer(85, wire="imageGCHighThresholdPercent")
    image_gc_low_threshold_percent: int = pointer(80, wire="imageGCLowThresholdPercent")
    volume_stats_agg_period: timedelta = plain(seconds(60))
    kubelet_cgroups: str = plain("")
    system_cgroups: str = plain("")
    cgroup_root: str = plain("")
    cgroups_per_qos: bool = pointer(True, wire="cgroupsPerQOS")
    cgroup_driver: str = plain("cgroupfs")
    cpu_manager_policy: str = plain("none")
    single_process_oom_kill: bool | None = pointer(None, wire="singleProcessOOMKill")
    cpu_manager_policy_options: dict[str, str] = plain({})
    cpu_manager_reconcile_period: timedelta = plain(seconds(10))
    memory_manager_policy: str = plain("None")
    topology_manager_policy: str = plain("none")
    topology_manager_scope: str = plain("container")
    topology_manager_policy_options: dict[str, str] = plain({})
    qos_reserved: dict[str, str] = plain({})
    runtime_request_timeout: timedelta = plain(seconds(120))
    hairpin_mode: str = plain("promiscuous-bridge")
    max_pods: int = plain(110)
    pod_cidr: str = plain("", wire="podCIDR")
    pod_pids_limit: int = pointer(-1, bits=64)
    resolv_conf: str = pointer("/etc/resolv.conf")
    run_once: bool = plain(False)
    cpu_cfs_quota: bool = pointer(True, wire="cpuCFSQuota")
    cpu_cfs_quota_period: timedelta = pointer(seconds(0.1), wire="cpuCFSQuotaPeriod")
    node_status_max_images: int = pointer(50)
    max_open_files: int = plain(1_000_000, bits=64)
    content_type: str = plain("application/vnd.kubernetes.protobuf")
    kube_api_qps: int = pointer(50, wire="kubeAPIQPS")
    kube_api_burst: int = plain(100, wire="kubeAPIBurst")
    serialize_image_pulls: bool = pointer(True)
    max_parallel_image_pulls: int | None = pointer(None)
    eviction_hard: dict[str, str] | None = pointer(None)
    """None: the defaults."""
    eviction_soft: dict[str, str] = plain({})
    eviction_soft_grace_period: dict[str, str] = plain({})
    eviction_pressure_transition_period: timedelta = plain(seconds(300))
    eviction_max_pod_grace_period: int = plain(0)
    eviction_minimum_reclaim: dict[str, str] = plain({})
    merge_default_eviction_settings: bool = pointer(False)
    pods_per_core: int = plain(0)
    enable_controller_attach_detach: bool = pointer(True)
    protect_kernel_defaults: bool = plain(False)
    make_iptables_util_chains: bool = pointer(True, wire="makeIPTablesUtilChains")
    iptables_masquerade_bit: int = pointer(14)
    iptables_drop_bit: int = pointer(15)
    feature_gates: dict[str, bool] = plain({})
    fail_swap_on: bool = pointer(True)
    memory_swap: MemorySwap = MemorySwap()
    container_log_max_size: str = plain("10Mi")
    container_log_max_files: int = pointer(5)
    container_log_max_workers: int = pointer(1)
    container_log_monitor_interval: timedelta = pointer(seconds(10))
    config_map_and_secret_change_detection_strategy: str = plain("Watch")
    system_reserved: dict[str, str] = plain({})
    kube_reserved: dict[str, str] = plain({})
    reserved_system_cpus: str = plain("", wire="reservedSystemCPUs")
    show_hidden_metrics_for_version: str = plain("")
    system_reserved_cgroup: str = plain("")
    kube_reserved_cgroup: str = plain("")
    enforce_node_allocatable: tuple[str, ...] = pointer(("pods",))
    allowed_unsafe_sysctls: tuple[str, ...] = plain(())
    volume_plugin_dir: str = plain("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
    provider_id: str = plain("", wire="providerID")
    kernel_memcg_notification: bool = plain(False)
    logging: Logging = Logging()
    enable_system_log_handler: bool = pointer(True)
    enable_system_log_query: bool = pointer(False)
    shutdown_grace_period: timedelta = plain(NO_TIME)
    shutdown_grace_period_critical_pods: timedelta = plain(NO_TIME)
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriod, ...] = plain(())
    crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff()
    reserved_memory: tuple[MemoryReservation, ...] = plain(())
    enable_profiling_handler: bool = pointer(True)
    enable_debug_flags_handler: bool = pointer(True)
    seccomp_default: bool = pointer(False)
    memory_throttling_factor: float = pointer(0.9)
    memory_reservation_policy: str = plain("None")
    register_with_taints: tuple[NodeTaint, ...] = plain(())
    register_node: bool = pointer(True)
    tracing: Tracing | None = pointer(None)
    local_storage_capacity_isolation: bool = pointer(True)
    container_runtime_endpoint: str = plain(EMBEDDED_RUNTIME)
    image_service_endpoint: str = plain("")
    fail_cgroup_v1: bool = pointer(True, wire="failCgroupV1")
    user_namespaces: UserNamespaces | None = pointer(None)

    def enabled(self, gate: str) -> bool:
        """Whether a feature gate is on. Raises KeyError for one that does not exist."""
        return gate_enabled(self.feature_gates, gate)


SUPPORTED: Final = frozenset(
    {
        "podCIDR",
        "enableServer",
        "address",
        "port",
        "readOnlyPort",
        "tlsCertFile",
        "tlsPrivateKeyFile",
        "tlsCipherSuites",
        "tlsCurvePreferences",
        "tlsMinVersion",
        "serverTLSBootstrap",
        "authentication",
        "authorization",
        "enableDebuggingHandlers",
        "healthzPort",
        "healthzBindAddress",
        "enableSystemLogHandler",
        "enableSystemLogQuery",
        "enableProfilingHandler",
        "enableDebugFlagsHandler",
        "staticPodPath",
        "fileCheckFrequency",
        "syncFrequency",
        "containerRuntimeEndpoint",
        "imageServiceEndpoint",
        "runtimeRequestTimeout",
        "podLogsDir",
        "featureGates",
        "clusterDNS",
        "clusterDomain",
        "resolvConf",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "singleProcessOOMKill",
        "cpuManagerPolicy",
        "cpuManagerPolicyOptions",
        "cpuManagerReconcilePeriod",
        "memoryManagerPolicy",
        "reservedMemory",
        "topologyManagerPolicy",
        "topologyManagerScope",
        "topologyManagerPolicyOptions",
        "seccompDefault",
        "serializeImagePulls",
        "maxParallelImagePulls",
        "registryPullQPS",
        "registryBurst",
        "imagePullCredentialsVerificationPolicy",
        "preloadedImagesVerificationAllowlist",
        "imageMinimumGCAge",
        "imageMaximumGCAge",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "containerLogMaxSize",
        "containerLogMaxFiles",
        "containerLogMaxWorkers",
        "containerLogMonitorInterval",
        "allowedUnsafeSysctls",
        "staticPodURL",
        "staticPodURLHeader",
        "httpCheckFrequency",
        "registerNode",
        "registerWithTaints",
        "providerID",
        "nodeStatusUpdateFrequency",
        "nodeStatusReportFrequency",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "maxPods",
        "podsPerCore",
        "kubeAPIQPS",
        "kubeAPIBurst",
        "eventRecordQPS",
        "eventBurst",
        "kubeReserved",
        "systemReserved",
        "reservedSystemCPUs",
        "cgroupRoot",
        "cgroupsPerQOS",
        "cgroupDriver",
        "failCgroupV1",
        "podPidsLimit",
        "enforceNodeAllocatable",
        "kubeReservedCgroup",
        "systemReservedCgroup",
        "qosReserved",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionPressureTransitionPeriod",
        "evictionMaxPodGracePeriod",
        "evictionMinimumReclaim",
        "mergeDefaultEvictionSettings",
        "kernelMemcgNotification",
        "localStorageCapacityIsolation",
        "rotateCertificates",
        "enableControllerAttachDetach",
        "configMapAndSecretChangeDetectionStrategy",
        "volumeStatsAggPeriod",
        "volumePluginDir",
        "userNamespaces",
        "memorySwap",
        "memoryThrottlingFactor",
        "memoryReservationPolicy",
        "failSwapOn",
        "oomScoreAdj",
        "protectKernelDefaults",
        "crashLoopBackOff",
        "logging",
        "maxOpenFiles",
        "kubeletCgroups",
        "systemCgroups",
        "shutdownGracePeriod",
        "shutdownGracePeriodCriticalPods",
        "shutdownGracePeriodByPodPriority",
        "makeIPTablesUtilChains",
        "tracing",
    }
)
"""Fields (by their names in the file) that the agent acts on."""

PLEG_GATES: Final = ("EventedPLEG", "GenericPLEG", "PidfdPLEG")
"""The sources of container events. All are used unless switched off; the kubelet knows the first only."""

SHUTDOWN_GATES: Final = ("GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority")
"""The second needs the first."""

MEMORY_QOS: Final = "MemoryQoS"

RELATIVE_PATHS: Final = (
    "staticPodPath",
    "authentication.x509.clientCAFile",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "resolvConf",
    "volumePluginDir",
    "podLogsDir",
)
"""Paths that, when relative, start at the folder of the `--config` file (kubelet: `KubeletConfigurationPathRefs`)."""


def wire_name(attribute: attrs.Attribute[Any]) -> str:
    """The field's name in the file."""
    explicit = attribute.metadata.get("wire")
    if explicit is not None:
        return str(explicit)
    head, *rest = attribute.name.split("_")
    return head + "".join(word.capitalize() for word in rest)
