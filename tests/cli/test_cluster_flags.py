"""What the flags of a node in a cluster say, and the words in which they are refused."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import pytest

from trikubelet.api import Taint
from trikubelet.cli.cluster_flags import cluster_options, node_options, parse_taints
from trikubelet.cli.failures import CommandError

ROOT = Path("/state")


def test_without_a_kubeconfig_there_is_no_cluster() -> None:
    assert cluster_options(ROOT, None, None, None) is None


def test_certificates_lie_in_the_root_folder_unless_it_is_said_where() -> None:
    joined = cluster_options(ROOT, Path("k"), None, None)
    assert joined is not None
    assert joined.cert_dir == ROOT / "pki"
    elsewhere = cluster_options(ROOT, Path("k"), Path("b"), Path("/c"))
    assert elsewhere is not None
    assert (elsewhere.cert_dir, elsewhere.bootstrap_kubeconfig) == (Path("/c"), Path("b"))


def test_a_bootstrap_needs_a_file_to_write() -> None:
    with pytest.raises(CommandError, match="--bootstrap-kubeconfig needs --kubeconfig"):
        cluster_options(ROOT, None, Path("b"), None)


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
    node, warnings = node_options("10.0.0.1,nonsense", "a=b,c=d", "", "external", "v1.35.1")
    assert node.ips == (ip_address("10.0.0.1"),)
    assert warnings == ('--node-ip: "nonsense" is no address, ignored',)
    assert node.labels == {"a": "b", "c": "d"}
    assert node.external_cloud
    assert node.reported_version == "v1.35.1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1.1.1.1,2.2.2.2", "", "", "", None), "must contain either a single IP or a dual-stack pair of IPs"),
        ((None, "a", "", "", None), '--node-labels: malformed pair, expect string=string, got "a"'),
        ((None, "kubernetes.io/x=y", "", "", None), "unknown 'kubernetes.io' or 'k8s.io' labels specified"),
        ((None, "", "", "aws", None), '--cloud-provider: expected "external" or nothing, got "aws"'),
    ],
)
def test_a_wrong_flag_refuses_to_start(arguments: tuple[str | None, str, str, str, str | None], words: str) -> None:
    with pytest.raises(CommandError, match=re.escape(words)):
        node_options(*arguments)
