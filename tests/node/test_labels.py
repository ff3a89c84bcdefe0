"""`--node-labels`."""

from __future__ import annotations

import pytest

from trikubelet.node.labels import default_labels, node_labels_problem, parse_node_labels


def test_labels_are_pairs_separated_by_commas() -> None:
    assert parse_node_labels("a=b, example.com/c=d=e,f=") == {"a": "b", "example.com/c": "d=e", "f": ""}
    assert parse_node_labels("") == {}


def test_a_part_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed pair, expect string=string"):
        parse_node_labels("a=b,c")


@pytest.mark.parametrize(
    "key",
    [
        "role",
        "example.com/role",
        "kubernetes.io/hostname",
        "node.kubernetes.io/pool",
        "foo.kubelet.kubernetes.io/x",
        "topology.kubernetes.io/zone",
        "mykubernetes.io/x",
    ],
)
def test_a_node_may_label_itself_so(key: str) -> None:
    assert node_labels_problem({key: "x"}) is None


@pytest.mark.parametrize("key", ["kubernetes.io/x", "k8s.io/x", "node-role.kubernetes.io/x", "a.k8s.io/x"])
def test_labels_that_the_api_server_would_forbid_are_refused(key: str) -> None:
    assert node_labels_problem({key: "x", "fine": "y"}) == (
        f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]\n"
        "--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix "
        "(kubelet.kubernetes.io, node.kubernetes.io) or be in the specifically allowed set "
        "(beta.kubernetes.io/arch, beta.kubernetes.io/instance-type, beta.kubernetes.io/os, "
        "failure-domain.beta.kubernetes.io/region, failure-domain.beta.kubernetes.io/zone, kubernetes.io/arch, "
        "kubernetes.io/hostname, kubernetes.io/os, node.kubernetes.io/instance-type, topology.kubernetes.io/region, "
        "topology.kubernetes.io/zone)"
    )


def test_what_is_no_label_is_named_with_its_problems() -> None:
    problem = node_labels_problem({"a b": "x", "ok": "!"})
    assert problem is not None
    assert problem.startswith("invalid node labels: 'a b' - name part must consist of ")
    assert "; '!' - a valid label must be" in problem


def test_every_node_has_its_name_and_kind_as_labels() -> None:
    assert default_labels("h", "arm64") == {
        "kubernetes.io/hostname": "h",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "arm64",
    }
