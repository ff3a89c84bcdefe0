"""The flags with which an agent joins a cluster, spelt as the kubelet's, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trikubelet.agent.options import ClusterOptions, NodeOptions
    from trikubelet.api import Taint

F = TypeVar("F", bound="Callable[..., Any]")

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PATH = click.Path(path_type=Path)

_FLAGS: Final = (
    click.option(
        "--kubeconfig",
        type=_PATH,
        help="The kubeconfig of the node; `in-cluster` uses the account of the pod around the agent.",
    ),
    click.option(
        "--bootstrap-kubeconfig",
        type=_PATH,
        help="Credentials to get a certificate with while --kubeconfig does not exist.",
    ),
    click.option("--cert-dir", type=_PATH, help="The folder of the node's certificates.  [default: ROOT-DIR/pki]"),
    click.option("--node-ip", "node_ips", help="The node's address, or one of each family, separated by a comma."),
    click.option("--node-labels", default="", help="Labels of the node when it registers: key=value,…"),
    click.option(
        "--register-with-taints", "taints", default="", help="Taints of the node when it registers: key=value:Effect,…"
    ),
    click.option("--cloud-provider", default="", help="`external` if a cloud controller manager completes the node."),
    click.option(
        "--report-kubernetes-version", help="The Kubernetes version that the node reports.  [default: v1.36.2]"
    ),
)


def cluster_flags(command: F) -> F:
    """Adds the flags to a command."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def cluster_options(arguments: Mapping[str, Any]) -> ClusterOptions | None:
    """None for an agent by itself. Raises CommandError."""
    from trikubelet.agent.options import ClusterOptions

    kubeconfig: Path | None = arguments["kubeconfig"]
    bootstrap_kubeconfig: Path | None = arguments["bootstrap_kubeconfig"]
    if kubeconfig is None:
        if bootstrap_kubeconfig is not None:
            raise CommandError(
                "--bootstrap-kubeconfig needs --kubeconfig: the file to write once there is a certificate"
            )
        return None
    return ClusterOptions(
        kubeconfig=kubeconfig,
        bootstrap_kubeconfig=bootstrap_kubeconfig,
        cert_dir=arguments["cert_dir"] or arguments["root_dir"] / "pki",
    )


def node_options(arguments: Mapping[str, Any]) -> tuple[NodeOptions, tuple[str, ...]]:
    """And warnings. Raises CommandError."""
    from trikubelet.agent.options import NodeOptions
    from trikubelet.node.address_choice import parse_node_ips
    from trikubelet.node.facts import DEFAULT_KUBERNETES_VERSION
    from trikubelet.node.labels import node_labels_problem, parse_node_labels

    cloud_provider: str = arguments["cloud_provider"]
    if cloud_provider not in ("", "external"):
        raise CommandError(f'--cloud-provider: expected "external" or nothing, got "{cloud_provider}"')
    try:
        ips, ignored = parse_node_ips(arguments["node_ips"] or "")
    except ValueError as error:
        raise CommandError(str(error)) from None
    try:
        labels = parse_node_labels(arguments["node_labels"])
    except ValueError as error:
        raise CommandError(f"--node-labels: {error}") from None
    problem = node_labels_problem(labels)
    if problem is not None:
        raise CommandError(problem)
    options = NodeOptions(
        ips=ips,
        labels=labels,
        taints=parse_taints(arguments["taints"]),
        external_cloud=cloud_provider == "external",
        reported_version=(
            arguments["report_kubernetes_version"] or arguments["reported_version"] or DEFAULT_KUBERNETES_VERSION
        ),
    )
    return options, tuple(f'--node-ip: "{part}" is no address, ignored' for part in ignored)


def parse_taints(text: str) -> tuple[Taint, ...]:
    """What `--register-with-taints` says: `key=value:Effect` or `key:Effect`, with commas. Raises CommandError."""
    from trikubelet.api import Taint
    from trikubelet.api.name_formats import label_value, qualified_name

    taints = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pair, colon, effect = part.rpartition(":")
        key, _, value = pair.partition("=")
        if not colon or effect not in EFFECTS:
            raise CommandError(
                f"invalid taint spec: {part}, expected key=value:Effect with one of {', '.join(EFFECTS)}"
            )
        problems = [*qualified_name(key), *label_value(value)]
        if problems:
            raise CommandError(f"invalid taint spec: {part}, {'; '.join(problems)}")
        taints.append(Taint(key=key, value=value, effect=effect))
    return tuple(taints)
