"""What plugins are told of a pod: CNI_ARGS for all of them, capabilities for those that ask."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from trikubelet.embedded.network.cni.documents import CniDataError, is_name, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.embedded.network.model import PodNetworkSpec

POD_ANNOTATIONS: Final = "io.kubernetes.cri.pod-annotations"
_BANDWIDTH: Final = {"ingress": "kubernetes.io/ingress-bandwidth", "egress": "kubernetes.io/egress-bandwidth"}
_UNLIMITED_BURST: Final = 2**32 - 1
_LEAST_BITS: Final = 10**3
_MOST_BITS: Final = 10**15
_SUFFIXES: Final = {
    **{suffix: Fraction(10) ** power for suffix, power in zip(("n", "u", "m", ""), (-9, -6, -3, 0), strict=True)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_AMOUNT: Final = re.compile(r"\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:([A-Za-z]*)|[eE]([+-]?[0-9]{1,2}))")
_BREAKS_OUT: Final = re.compile(r"[;=\x00]")


def cni_arguments(spec: PodNetworkSpec) -> tuple[tuple[str, str], ...]:
    """The pairs of CNI_ARGS. Raises CniDataError for a pod whose names would make other pairs of them."""
    if not is_name(spec.sandbox_id):
        raise CniDataError(f"expected a sandbox id of letters, digits, '_', '.' and '-', got {shown(spec.sandbox_id)}")
    pairs = (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", spec.namespace),
        ("K8S_POD_NAME", spec.name),
        ("K8S_POD_INFRA_CONTAINER_ID", spec.sandbox_id),
        ("K8S_POD_UID", spec.uid),
    )
    for key, value in pairs:
        if _BREAKS_OUT.search(value) or not value.isprintable():
            raise CniDataError(f"{key} of CNI_ARGS: expected no ';', '=' or control character, got {shown(value)}")
    return pairs


def capability_arguments(spec: PodNetworkSpec) -> dict[str, Any]:
    """Everything that a plugin may ask for by a capability. Raises CniDataError for a bandwidth that is none."""
    mappings = [
        {
            "hostPort": port.host_port,
            "containerPort": port.container_port,
            "protocol": port.protocol.lower(),
            "hostIP": port.host_ip,
        }
        for port in spec.ports
        if port.host_port > 0
    ]
    told = {
        "portMappings": mappings,
        "bandwidth": _bandwidth(spec.annotations),
        "cgroupPath": spec.cgroup_parent,
        POD_ANNOTATIONS: dict(spec.annotations),
    }
    return {name: value for name, value in told.items() if value}


def _bandwidth(annotations: Mapping[str, str]) -> dict[str, int]:
    """Bits per second. The burst is the largest there is, as containerd has it."""
    limits = {}
    for direction, annotation in _BANDWIDTH.items():
        if annotation in annotations:
            limits[f"{direction}Rate"] = _bits(annotations[annotation], annotation)
            limits[f"{direction}Burst"] = _UNLIMITED_BURST
    return limits


def _bits(text: str, annotation: str) -> int:
    match = _AMOUNT.fullmatch(text)
    scale = None
    if match is not None:
        scale = _SUFFIXES.get(match[2]) if match[3] is None else Fraction(10) ** int(match[3])
    if match is None or scale is None:
        raise CniDataError(f"annotation {annotation}: expected a quantity such as 10M, got {shown(text)}")
    bits = math.ceil(Fraction(match[1]) * scale)
    if not _LEAST_BITS <= bits <= _MOST_BITS:
        raise CniDataError(f"annotation {annotation}: expected 1k to 1P bits per second, got {shown(text)}")
    return bits
