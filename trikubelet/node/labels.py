"""Labels that a node may be given by `--node-labels`, and the labels that every node has.

The API server's NodeRestriction lets a node set only some labels of the `kubernetes.io` and `k8s.io` namespaces. A node
that asked for others could never register, so the flag is refused instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.name_formats import label_value, qualified_name

if TYPE_CHECKING:
    from collections.abc import Mapping

HOSTNAME: Final = "kubernetes.io/hostname"
OS: Final = "kubernetes.io/os"
ARCH: Final = "kubernetes.io/arch"
BETA_OS: Final = "beta.kubernetes.io/os"
BETA_ARCH: Final = "beta.kubernetes.io/arch"
LINUX: Final = "linux"

ALLOWED_PREFIXES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
ALLOWED_LABELS: Final = (
    BETA_ARCH,
    "beta.kubernetes.io/instance-type",
    BETA_OS,
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    ARCH,
    HOSTNAME,
    OS,
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)
RECONCILED: Final = ALLOWED_LABELS
"""Those that a node that is there already is given again when it registers."""
_RESERVED: Final = ("kubernetes.io", "k8s.io")


def default_labels(hostname: str, architecture: str) -> dict[str, str]:
    """What every node is labelled with."""
    return {HOSTNAME: hostname, OS: LINUX, ARCH: architecture, BETA_OS: LINUX, BETA_ARCH: architecture}


def parse_node_labels(text: str) -> dict[str, str]:
    """What `--node-labels` says: `key=value`, separated by commas. Raises ValueError for a part without `=`."""
    labels = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f'malformed pair, expect string=string, got "{part}"')
        labels[key.strip()] = value.strip()
    return labels


def node_labels_problem(labels: Mapping[str, str]) -> str | None:
    """Why `--node-labels` cannot be these, in the kubelet's words."""
    unknown = sorted(key for key in labels if _is_reserved(key) and not _is_allowed(key))
    if unknown:
        return (
            f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{' '.join(unknown)}]\n"
            "--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix "
            f"({', '.join(ALLOWED_PREFIXES)}) or be in the specifically allowed set ({', '.join(ALLOWED_LABELS)})"
        )
    invalid: dict[str, list[str]] = {}
    for key, value in labels.items():
        for text, problems in ((key, qualified_name(key)), (value, label_value(value))):
            if problems:
                invalid.setdefault(text, []).extend(problems)
    if not invalid:
        return None
    return "invalid node labels: " + "; ".join(f"'{text}' - {', '.join(wrong)}" for text, wrong in invalid.items())


def _is_reserved(key: str) -> bool:
    return _is_below(key, _RESERVED)


def _is_allowed(key: str) -> bool:
    return key in ALLOWED_LABELS or _is_below(key, ALLOWED_PREFIXES)


def _is_below(key: str, domains: tuple[str, ...]) -> bool:
    """Whether the key's prefix is one of the domains or below one."""
    prefix, slash, _ = key.partition("/")
    return bool(slash) and any(prefix == domain or prefix.endswith(f".{domain}") for domain in domains)
