"""What the flags of a node in a cluster say, and the words in which they are refused."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from trikubelet.api import Taint
from trikubelet.cli.cluster_flags import cluster_options, node_options, parse_taints
from trikubelet.cli.failures import CommandError

ROOT = Path("/state")


def arguments(**given: Any) -> dict[str, Any]:
    """What the command gets from flags, of which only some are given."""
    nothing = dict.fromkeys(("kubeconfig", "bootstrap_kubeconfig", "cert_dir", "node_ips", "reported_version"))
    texts = dict.fromkeys(("node_labels", "taints", "cloud_provider"), "")
    return {"root_dir": ROOT, "report_kubernetes_version": None, **nothing, **texts, **given}


def test_without_a_kubeconfig_there_is_no_cluster() -> None:
    assert cluster_options(arguments()) is None


def test_certificates_lie_in_the_root_folder_unless_it_is_said_where() -> None:
    joined = cluster_options(arguments(kubeconfig=Path("k")))
    assert joined is not None
    assert joined.cert_dir == ROOT / "pki"
    given = arguments(kubeconfig=Path("k"), bootstrap_kubeconfig=Path("b"), cert_dir=Path("/c"))
    elsewhere = cluster_options(given)
    assert elsewhere is not None
    assert (elsewhere.cert_dir, elsewhere.bootstrap_kubeconfig) == (Path("/c"), Path("b"))


def test_a_bootstrap_needs_a_file_to_write() -> None:
    with pytest.raises(CommandError, match="--bootstrap-kubeconfig needs --kubeconfig"):
        cluster_options(arguments(bootstrap_kubeconfig=Path("b")))


def test_taints_may_have_a_value() -> None:
    assert parse_taints("a=b:NoSchedule, example.com/c:NoExecute") == (
        Taint(key="a", value="b", effect="NoSchedule"),
        Taint(key="example.com/c", effect="NoExecute"),
    )
    assert parse_taints("") == ()


@pytest.mark.parametrize("text", ["a", "a=b", "a=b:Sometimes", ":NoExecute", "a=b c:NoExecute"])
def test_what_is_no_taint_is_named(text: str) -> None:
    with pytest.raises(CommandError, match=re.escape(f"invalid taint spec: {text}")):
        parse_taints(text)


def test_a_node_is_as_its_flags_say() -> None:
    given = arguments(node_ips="10.0.0.1,nonsense", node_labels="a=b,c=d", cloud_provider="external")
    node, warnings = node_options(given | {"report_kubernetes_version": "v1.35.1"})
    assert node.ips == (ip_address("10.0.0.1"),)
    assert warnings == ('--node-ip: "nonsense" is no address, ignored',)
    assert node.labels == {"a": "b", "c": "d"}
    assert node.external_cloud
    assert node.reported_version == "v1.35.1"
    assert node_options(arguments(reported_version="v1.34.0"))[0].reported_version == "v1.34.0"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"node_ips": "1.1.1.1,2.2.2.2"}, "must contain either a single IP or a dual-stack pair of IPs"),
        ({"node_labels": "a"}, '--node-labels: malformed pair, expect string=string, got "a"'),
        ({"node_labels": "kubernetes.io/x=y"}, "unknown 'kubernetes.io' or 'k8s.io' labels specified"),
        ({"cloud_provider": "aws"}, '--cloud-provider: expected "external" or nothing, got "aws"'),
    ],
)
def test_a_wrong_flag_refuses_to_start(given: dict[str, str], words: str) -> None:
    with pytest.raises(CommandError, match=re.escape(words)):
        node_options(arguments(**given))


@pytest.mark.parametrize(
    ("node_ips", "ipv6_first"),
    [
        (None, False),
        ("10.0.0.1", False),
        ("fd00::1", True),
        ("::", True),
        ("0.0.0.0", False),
        ("fd00::1,10.0.0.1", True),
    ],
)
def test_the_first_address_that_is_given_says_which_family_pods_have_first(
    node_ips: str | None, ipv6_first: bool
) -> None:
    node, _ = node_options(arguments(node_ips=node_ips))
    assert node.ipv6_first is ipv6_first
