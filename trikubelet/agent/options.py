"""What the command line and the configuration file say, and the runtime manager's options that follow from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

import attrs

from trikubelet.api import Quantity, Taint
from trikubelet.cgroups.ownership import owner_mark
from trikubelet.config.kubelet_configuration import MEMORY_QOS, KubeletConfiguration
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.formats.values import frozen
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.node.facts import DEFAULT_KUBERNETES_VERSION
from trikubelet.pleg.sources import EnabledSources
from trikubelet.runtime.backoff import CONTAINER_INITIAL, CONTAINER_MAXIMUM
from trikubelet.runtime.gc_choice import ContainerGCPolicy
from trikubelet.runtime.images.gc_choice import ImageGCPolicy
from trikubelet.runtime.logs.rotation_choice import LogRotationPolicy
from trikubelet.runtime.options import IDRange, RuntimeOptions
from trikubelet.runtime.sandboxes.name_resolution import cluster_servers
from trikubelet.sources.manifest_folder import APPLIED

EMBEDDED: Final = "embedded"
IN_CLUSTER: Final = Path("in-cluster")
"""In the place of a kubeconfig."""
LOG_SYMLINKS: Final = Path("/var/log/containers")
"""Where log collectors look for containers' logs."""
CALLS_AT_ONCE_PER_CPU: Final = 4
USUAL_POD_LOGS: Final = Path("/var/log/pods")


@frozen(kw_only=True)
class NodeOptions:
    """What flags say of the node."""

    hostname: str = ""
    """Empty: the node's name, as in the kubelet, which knows the host by no other."""
    ips: tuple[IPv4Address | IPv6Address, ...] = ()
    """`--node-ip`"""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """`--node-labels`"""
    taints: tuple[Taint, ...] = ()
    """`--register-with-taints`"""
    external_cloud: bool = False
    reported_version: str = DEFAULT_KUBERNETES_VERSION
    """The Kubernetes release that the node object names."""

    @property
    def ipv6_first(self) -> bool:
        """Whether the family that was asked for first is IPv6. Nobody asked: IPv4, whatever the machine has."""
        return bool(self.ips) and self.ips[0].version == 6


@frozen(kw_only=True)
class ClusterOptions:
    """How to reach the API server."""

    kubeconfig: Path
    """`in-cluster`: as the service account of this pod."""
    cert_dir: Path
    bootstrap_kubeconfig: Path | None = None


@frozen(kw_only=True)
class AgentOptions:
    """What the command line and the configuration file say."""

    configuration: KubeletConfiguration
    configured: bool = True
    """Whether a file says what this node is to be; without one the agent makes do with what the machine has."""
    root_dir: Path
    node_name: str
    runtime_endpoint: str = EMBEDDED
    """`embedded` or `unix:///path`."""
    cluster: ClusterOptions | None = None
    """None: an agent by itself."""
    node: NodeOptions = NodeOptions()
    image_endpoint: str | None = None
    """None: the runtime's."""
    manifests: Path | None = None
    """A person's folder or file of static pods."""
    credential_provider_config: Path | None = None
    """A CredentialProviderConfig, or a folder of them."""
    credential_provider_bin_dir: Path | None = None
    container_gc: ContainerGCPolicy = attrs.field(default=ContainerGCPolicy())
    """Which ended containers are kept."""
    user_ids: IDRange | None = None
    """Users that pods with a namespace of their own may have; None: all that the kernel has."""
    drain_on_exit: bool | None = None
    """None: only with the embedded runtime, whose containers belong to this agent, and without a cluster, whose pods
    shall live on."""
    host_image: bool | None = None
    """Whether the embedded runtime shows the machine's root filesystem as an image; None: only without a cluster,
    where whoever may create pods is no user of the machine."""
    network: NetworkOptions = attrs.field(default=NetworkOptions())
    """How pods get networks on the embedded runtime."""
    registry_hosts_dirs: tuple[Path, ...] = ()
    """Where the embedded runtime looks for registries' hosts.toml; none: where it always does."""
    console: bool = False
    """Whether a person looks at the terminal: it shows what happens to pods, and the log goes to a file."""
    warnings: tuple[str, ...] = ()
    flags: Mapping[str, str] = attrs.field(factory=dict)
    """The command line's, by name without dashes, with those that have their defaults."""
    runtime_cgroups: str = ""
    """The runtime's group, for its statistics; empty: they are not measured."""
    lock_file: Path | None = None
    """Held locked while the agent runs."""
    exit_on_lock_contention: bool = False
    """Whether the agent ends when another process opens the lock file."""
    ignores_eviction: bool = False
    """Whether what pods may have is not lessened by the hard thresholds of eviction."""

    ui_address: tuple[str, int] | None = None
    """IP address and port of the live page; None: there is none."""
    only_ends: bool = False
    """It wants no pods: it ends all that it finds, each with its own grace period, and then itself."""

    @property
    def pleg_sources(self) -> EnabledSources:
        """What the feature gates leave of them."""
        on = self.configuration.enabled
        return EnabledSources(pidfds=on("PidfdPLEG"), events=on("EventedPLEG"), relists=on("GenericPLEG"))

    @property
    def drains(self) -> bool:
        if self.drain_on_exit is not None:
            return self.drain_on_exit
        return self.runtime_endpoint == EMBEDDED and self.cluster is None

    @property
    def has_host_image(self) -> bool:
        return self.cluster is None if self.host_image is None else self.host_image

    @property
    def secret_paths(self) -> tuple[Path, ...]:
        """Where this node's credentials and its pods' files are."""
        if self.cluster is None:
            return (self.root_dir,)
        files = (self.cluster.cert_dir, self.cluster.kubeconfig, self.cluster.bootstrap_kubeconfig)
        return (self.root_dir, *(path for path in files if path is not None and path != IN_CLUSTER))

    @property
    def applied(self) -> Path | None:
        """The folder of manifests that the command line writes; None in a cluster, where it writes into `manifests`."""
        return None if self.cluster is not None or self.only_ends else self.root_dir / APPLIED

    @property
    def socket(self) -> Path:
        """Where the local API listens."""
        return self.root_dir / "trikubelet.sock"


def runtime_options(options: AgentOptions) -> RuntimeOptions:
    """The runtime manager's options. Reads facts of the machine; raises OSError where there is no /proc."""
    configuration = options.configuration
    pod_logs_dir = Path(configuration.pod_logs_dir)
    machine = MachineFacts.read()
    namespaces = configuration.user_namespaces
    told = RuntimeOptions(
        root_dir=options.root_dir,
        owner=owner_mark(options.root_dir),
        alone=options.cluster is None,
        machine=machine,
        pod_logs_dir=pod_logs_dir,
        earlier_logs_dir=USUAL_POD_LOGS if has_own_logs(options) else None,
        legacy_log_symlinks_dir=_log_symlinks(options, pod_logs_dir),
        node_name=options.node_name,
        ipv6_first=options.node.ipv6_first,
        cluster_domain=configuration.cluster_domain,
        cluster_dns=cluster_servers(configuration.cluster_dns)[0] or (None if options.cluster is None else ()),
        resolver_config=Path(configuration.resolv_conf) if configuration.resolv_conf else None,
        cpu_cfs_quota=configuration.cpu_cfs_quota,
        cpu_cfs_quota_period=round(configuration.cpu_cfs_quota_period.total_seconds() * 1e6),
        single_process_oom_kill=bool(configuration.single_process_oom_kill),
        seccomp_default=configuration.seccomp_default,
        calls_at_once=CALLS_AT_ONCE_PER_CPU * len(os.sched_getaffinity(0)),
        serialize_image_pulls=configuration.serialize_image_pulls,
        max_parallel_image_pulls=configuration.max_parallel_image_pulls,
        registry_pull_qps=configuration.registry_pull_qps,
        registry_burst=configuration.registry_burst,
        credential_verification_policy=configuration.image_pull_credentials_verification_policy,
        preloaded_images_allowlist=configuration.preloaded_images_verification_allowlist,
        allowed_unsafe_sysctls=configuration.allowed_unsafe_sysctls,
        user_ids=options.user_ids,
        max_pods=configuration.max_pods,
        swap_behavior=configuration.memory_swap.swap_behavior or "NoSwap",
        memory_qos=configuration.enabled(MEMORY_QOS),
        memory_throttling_factor=configuration.memory_throttling_factor,
        memory_reservation_policy=configuration.memory_reservation_policy,
        allocatable_memory=_unreserved_memory(configuration, machine.memory_capacity),
    )
    if namespaces is not None and namespaces.ids_per_pod is not None:
        told = attrs.evolve(told, ids_per_pod=namespaces.ids_per_pod)
    first, longest = crash_loop_waits(configuration)
    return attrs.evolve(told, min_container_restart_period=first, max_container_restart_period=longest)


def crash_loop_waits(configuration: KubeletConfiguration) -> tuple[float, float]:
    """Seconds before the first restart of a container that ends over and over, and the most there ever are (kubelet:
    `newCrashLoopBackOff`)."""
    reduced = configuration.enabled("ReduceDefaultCrashLoopBackOffDecay")
    first, longest = (1.0, 60.0) if reduced else (CONTAINER_INITIAL, CONTAINER_MAXIMUM)
    if configuration.enabled("KubeletCrashLoopBackOffMax"):
        given = configuration.crash_loop_back_off.max_container_restart_period
        longest = CONTAINER_MAXIMUM if given is None else given.total_seconds()
    return min(first, longest), longest


def _unreserved_memory(configuration: KubeletConfiguration, capacity: int) -> int:
    kept = (configuration.system_reserved, configuration.kube_reserved)
    return max(capacity - sum(Quantity(amounts.get("memory", "0")).value() for amounts in kept), 0)


def image_gc_policy(configuration: KubeletConfiguration) -> ImageGCPolicy:
    """When images are garbage."""
    return ImageGCPolicy(
        high_threshold_percent=configuration.image_gc_high_threshold_percent,
        low_threshold_percent=configuration.image_gc_low_threshold_percent,
        min_age=configuration.image_minimum_gc_age.total_seconds(),
        max_age=configuration.image_maximum_gc_age.total_seconds(),
    )


def log_rotation_policy(configuration: KubeletConfiguration) -> LogRotationPolicy:
    """When logs are cut."""
    return LogRotationPolicy(
        max_size=Quantity(configuration.container_log_max_size).value(),
        max_files=configuration.container_log_max_files,
        max_workers=configuration.container_log_max_workers,
        interval=configuration.container_log_monitor_interval.total_seconds(),
    )


def own_pod_logs(root_dir: Path) -> Path:
    """Return the default log folder of an agent without a cluster, and of one without root."""
    return root_dir / "pod-logs"


def has_own_logs(options: AgentOptions) -> bool:
    """True if the pods' logs are below the root folder: the agent has no cluster, and nobody named another folder."""
    return options.cluster is None and Path(options.configuration.pod_logs_dir) == own_pod_logs(options.root_dir)


def _log_symlinks(options: AgentOptions, pod_logs_dir: Path) -> Path | None:
    """A node whose log folder somebody named has no links: they would lie in one folder with those of the usual one."""
    if options.runtime_endpoint == EMBEDDED:
        return None
    own = has_own_logs(options) and os.geteuid() == 0
    return LOG_SYMLINKS if own or pod_logs_dir == USUAL_POD_LOGS else None
