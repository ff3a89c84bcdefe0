"""The kubelet's flags that set a field of the configuration: one table. A flag wins over every file.

Values are brought into the shape that the field has in a file and then decoded like one, so that a wrong value is
reported in the same words.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FlagKind(enum.Enum):
    """How a flag's text is read."""

    TEXT = "text"
    BOOL = "bool"
    INT = "int"
    LIST = "list"
    MAP = "map"
    THRESHOLDS = "thresholds"
    GATES = "gates"
    HEADERS = "headers"
    LEVELS = "levels"
    MEMORY = "memory"


_NOT_DEPRECATED: Final = frozenset(
    {"v", "vmodule", "log-flush-frequency", "logging-format", "provider-id", "fail-cgroupv1", "seccomp-default"}
)
"""`logging-format` is one in the kubelet; here it has another name that is not."""


@frozen
class ConfigFlag:
    """One flag, without its leading dashes."""

    name: str
    path: str
    """The field's path in the file."""
    kind: FlagKind = FlagKind.TEXT
    spellings: tuple[str, ...] = ()
    """Other ways to write it, with dashes."""
    help: str = ""
    """Empty: the help does not name it."""

    @property
    def deprecated(self) -> bool:
        return self.name not in _NOT_DEPRECATED


def _flags(kind: FlagKind, table: Mapping[str, str]) -> tuple[ConfigFlag, ...]:
    return tuple(ConfigFlag(name, path, kind) for name, path in table.items())


CONFIG_FLAGS: Final[tuple[ConfigFlag, ...]] = (
    *_flags(
        FlagKind.TEXT,
        {
            "pod-manifest-path": "staticPodPath",
            "sync-frequency": "syncFrequency",
            "file-check-frequency": "fileCheckFrequency",
            "http-check-frequency": "httpCheckFrequency",
            "manifest-url": "staticPodURL",
            "address": "address",
            "container-runtime-endpoint": "containerRuntimeEndpoint",
            "image-service-endpoint": "imageServiceEndpoint",
            "authentication-token-webhook-cache-ttl": "authentication.webhook.cacheTTL",
            "client-ca-file": "authentication.x509.clientCAFile",
            "authorization-mode": "authorization.mode",
            "authorization-webhook-cache-authorized-ttl": "authorization.webhook.cacheAuthorizedTTL",
            "authorization-webhook-cache-unauthorized-ttl": "authorization.webhook.cacheUnauthorizedTTL",
            "tls-cert-file": "tlsCertFile",
            "tls-private-key-file": "tlsPrivateKeyFile",
            "tls-min-version": "tlsMinVersion",
            "healthz-bind-address": "healthzBindAddress",
            "cluster-domain": "clusterDomain",
            "volume-plugin-dir": "volumePluginDir",
            "streaming-connection-idle-timeout": "streamingConnectionIdleTimeout",
            "node-status-update-frequency": "nodeStatusUpdateFrequency",
            "minimum-image-ttl-duration": "imageMinimumGCAge",
            "volume-stats-agg-period": "volumeStatsAggPeriod",
            "kubelet-cgroups": "kubeletCgroups",
            "system-cgroups": "systemCgroups",
            "provider-id": "providerID",
            "cgroup-driver": "cgroupDriver",
            "cgroup-root": "cgroupRoot",
            "cpu-manager-policy": "cpuManagerPolicy",
            "cpu-manager-reconcile-period": "cpuManagerReconcilePeriod",
            "topology-manager-policy": "topologyManagerPolicy",
            "topology-manager-scope": "topologyManagerScope",
            "memory-manager-policy": "memoryManagerPolicy",
            "runtime-request-timeout": "runtimeRequestTimeout",
            "hairpin-mode": "hairpinMode",
            "pod-cidr": "podCIDR",
            "resolv-conf": "resolvConf",
            "cpu-cfs-quota-period": "cpuCFSQuotaPeriod",
            "container-log-max-size": "containerLogMaxSize",
            "kube-api-content-type": "contentType",
            "eviction-pressure-transition-period": "evictionPressureTransitionPeriod",
            "reserved-cpus": "reservedSystemCPUs",
            "system-reserved-cgroup": "systemReservedCgroup",
            "kube-reserved-cgroup": "kubeReservedCgroup",
            "log-flush-frequency": "logging.flushFrequency",
            "log-text-info-buffer-size": "logging.options.text.infoBufferSize",
            "log-json-info-buffer-size": "logging.options.json.infoBufferSize",
        },
    ),
    *_flags(
        FlagKind.BOOL,
        {
            "enable-server": "enableServer",
            "fail-swap-on": "failSwapOn",
            "fail-cgroupv1": "failCgroupV1",
            "anonymous-auth": "authentication.anonymous.enabled",
            "authentication-token-webhook": "authentication.webhook.enabled",
            "rotate-server-certificates": "serverTLSBootstrap",
            "rotate-certificates": "rotateCertificates",
            "enable-debugging-handlers": "enableDebuggingHandlers",
            "contention-profiling": "enableContentionProfiling",
            "cgroups-per-qos": "cgroupsPerQOS",
            "runonce": "runOnce",
            "cpu-cfs-quota": "cpuCFSQuota",
            "enable-controller-attach-detach": "enableControllerAttachDetach",
            "make-iptables-util-chains": "makeIPTablesUtilChains",
            "kernel-memcg-notification": "kernelMemcgNotification",
            "local-storage-capacity-isolation": "localStorageCapacityIsolation",
            "serialize-image-pulls": "serializeImagePulls",
            "protect-kernel-defaults": "protectKernelDefaults",
            "register-node": "registerNode",
            "seccomp-default": "seccompDefault",
            "log-text-split-stream": "logging.options.text.splitStream",
            "log-json-split-stream": "logging.options.json.splitStream",
        },
    ),
    *_flags(
        FlagKind.INT,
        {
            "port": "port",
            "read-only-port": "readOnlyPort",
            "registry-qps": "registryPullQPS",
            "registry-burst": "registryBurst",
            "event-qps": "eventRecordQPS",
            "event-burst": "eventBurst",
            "healthz-port": "healthzPort",
            "oom-score-adj": "oomScoreAdj",
            "image-gc-high-threshold": "imageGCHighThresholdPercent",
            "image-gc-low-threshold": "imageGCLowThresholdPercent",
            "max-pods": "maxPods",
            "pod-max-pids": "podPidsLimit",
            "container-log-max-files": "containerLogMaxFiles",
            "node-status-max-images": "nodeStatusMaxImages",
            "max-open-files": "maxOpenFiles",
            "kube-api-qps": "kubeAPIQPS",
            "kube-api-burst": "kubeAPIBurst",
            "eviction-max-pod-grace-period": "evictionMaxPodGracePeriod",
            "pods-per-core": "podsPerCore",
        },
    ),
    *_flags(
        FlagKind.LIST,
        {
            "tls-cipher-suites": "tlsCipherSuites",
            "cluster-dns": "clusterDNS",
            "allowed-unsafe-sysctls": "allowedUnsafeSysctls",
            "enforce-node-allocatable": "enforceNodeAllocatable",
        },
    ),
    *_flags(
        FlagKind.MAP,
        {
            "qos-reserved": "qosReserved",
            "cpu-manager-policy-options": "cpuManagerPolicyOptions",
            "topology-manager-policy-options": "topologyManagerPolicyOptions",
            "eviction-soft-grace-period": "evictionSoftGracePeriod",
            "eviction-minimum-reclaim": "evictionMinimumReclaim",
            "system-reserved": "systemReserved",
            "kube-reserved": "kubeReserved",
        },
    ),
    *_flags(FlagKind.THRESHOLDS, {"eviction-hard": "evictionHard", "eviction-soft": "evictionSoft"}),
    *_flags(FlagKind.GATES, {"feature-gates": "featureGates"}),
    *_flags(FlagKind.HEADERS, {"manifest-url-header": "staticPodURLHeader"}),
    *_flags(FlagKind.LEVELS, {"vmodule": "logging.vmodule"}),
    *_flags(FlagKind.MEMORY, {"reserved-memory": "reservedMemory"}),
    ConfigFlag(
        "logging-format",
        "logging.format",
        spellings=("--log-format",),
        help="The format of the log: text or json.  [default: text]",
    ),
    ConfigFlag(
        "v", "logging.verbosity", FlagKind.INT, spellings=("-v",), help="Log verbosity, as the kubelet's.  [default: 0]"
    ),
)

FLAG_BY_NAME: Final = {flag.name: flag for flag in CONFIG_FLAGS}

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def apply_flags(data: dict[str, Any], values: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The configuration data with flags over it; `values` maps a flag's name to every text it was given.

    Text that does not fit is left as it is: the decoder then names the field and what it expected. Feature gates that
    only a file sets stay (kubelet: `kubeletConfigFlagPrecedence`), and a file's levels come before the flag's; other
    mappings and lists are replaced.
    """
    result = dict(data)
    for name, texts in values.items():
        flag = FLAG_BY_NAME[name]
        value = _parse(flag.kind, texts)
        if flag.kind is FlagKind.GATES and isinstance(value, dict):
            from_file = result.get(flag.path)
            value = {**from_file, **value} if isinstance(from_file, dict) else value
        if flag.kind is FlagKind.LEVELS and isinstance(value, list):
            logging = result.get("logging")
            from_file = logging.get("vmodule") if isinstance(logging, dict) else None
            value = [*from_file, *value] if isinstance(from_file, list) else value
        _assign(result, flag.path.split("."), value)
    return result


def _assign(data: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, last = path
    for step in parents:
        inner = data.get(step)
        data[step] = data = dict(inner) if isinstance(inner, dict) else {}
    data[last] = value


def _parse(kind: FlagKind, texts: Sequence[str]) -> Any:
    match kind:
        case FlagKind.TEXT:
            return texts[-1]
        case FlagKind.BOOL:
            return _boolean(texts[-1])
        case FlagKind.INT:
            try:
                return int(texts[-1].removeprefix("="))  # -v=4
            except ValueError:
                return texts[-1]
        case FlagKind.LIST:
            return [item for text in texts for item in text.split(",") if item]
        case FlagKind.MAP:
            return _pairs(texts, "=")
        case FlagKind.THRESHOLDS:
            return _pairs(texts, "<")
        case FlagKind.HEADERS:
            return _headers(texts)
        case FlagKind.LEVELS:
            return _levels(texts)
        case FlagKind.MEMORY:
            return _memory(texts)
        case FlagKind.GATES:
            pairs = _pairs(texts, "=")
            return {key: _boolean(text) for key, text in pairs.items()} if isinstance(pairs, dict) else pairs


def _boolean(text: str) -> bool | str:
    if text in _TRUE:
        return True
    return False if text in _FALSE else text


def _pairs(texts: Sequence[str], separator: str) -> dict[str, str] | str:
    pairs: dict[str, str] = {}
    for item in (item for text in texts for item in text.split(",") if item.strip()):
        key, found, value = item.partition(separator)
        if not found:
            return ",".join(texts)
        pairs[key.strip()] = value.strip()
    return pairs


def _headers(texts: Sequence[str]) -> dict[str, list[str]] | str:
    """`a:hello,b:again`: one that is given again is added."""
    headers: dict[str, list[str]] = {}
    for item in filter(None, (item for text in texts for item in text.split(","))):
        name, colon, value = item.partition(":")
        if not colon:
            return ",".join(texts)
        headers.setdefault(name.strip(), []).append(value.strip())
    return headers


def _levels(texts: Sequence[str]) -> list[dict[str, Any]] | str:
    """`pattern=4,other=2`."""
    levels: list[dict[str, Any]] = []
    for item in filter(None, (item for text in texts for item in text.split(","))):
        pattern, _, number = item.partition("=")
        if not pattern or not (number.isascii() and number.isdigit()):
            return ",".join(texts)
        levels.append({"filePattern": pattern, "verbosity": int(number)})
    return levels


def _memory(texts: Sequence[str]) -> list[dict[str, Any]] | str:
    """`0:memory=1Gi,hugepages-2Mi=100Mi;1:memory=1Gi`."""
    nodes: list[dict[str, Any]] = []
    for item in (item for text in texts if text for item in text.split(";")):
        node, colon, amounts = item.partition(":")
        limits = _pairs([amounts], "=")
        if not colon or not (node.isascii() and node.isdigit()) or not limits or isinstance(limits, str):
            return ";".join(texts)
        nodes.append({"numaNode": int(node), "limits": limits})
    return nodes
