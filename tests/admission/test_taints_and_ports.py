"""Tolerations for taints, and ports of the node."""

from __future__ import annotations

import pytest

from tests.admission.situations import make_pod, pod_with_ports
from trikubelet.admission.predicates import tolerates, untolerated
from trikubelet.admission.resources import any_conflict, host_ports
from trikubelet.api import Container, ContainerPort, Taint, Toleration

TAINT = Taint(key="foo", value="bar", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        (Toleration(key="foo", operator="Exists", effect="NoSchedule"), Taint(key="foo", effect="NoSchedule"), True),
        (Toleration(key="foo", operator="Exists", effect="NoSchedule"), TAINT, True),
        (Toleration(operator="Exists", effect="NoSchedule"), TAINT, True),
        (Toleration(operator="Exists"), TAINT, True),
        (Toleration(key="foo", operator="Equal", value="bar", effect="NoSchedule"), TAINT, True),
        (Toleration(key="foo", value="bar"), TAINT, True),
        (Toleration(key="foo"), Taint(key="foo", effect="NoExecute"), True),
        (Toleration(key="foo", operator="Equal", value="other", effect="NoSchedule"), TAINT, False),
        (Toleration(key="foo", operator="Equal", value="bar", effect="NoExecute"), TAINT, False),
        (Toleration(key="other", operator="Exists"), TAINT, False),
        (Toleration(operator="Equal"), TAINT, False),
        (Toleration(key="foo", operator="Gt", value="750"), Taint(key="foo", value="950", effect="NoSchedule"), False),
        (Toleration(key="foo", operator="Lt", value="950"), Taint(key="foo", value="750", effect="NoSchedule"), False),
        (Toleration(key="foo", operator="exists"), TAINT, False),
    ],
)
def test_a_toleration_is_for_a_taint(toleration: Toleration, taint: Taint, expected: bool) -> None:
    assert tolerates([toleration], taint) is expected
    assert tolerates([Toleration(key="never"), toleration], taint) is expected


def test_only_taints_of_the_asked_effect_have_to_be_tolerated() -> None:
    evicting = Taint(key="out", effect="NoExecute")
    assert untolerated([TAINT, evicting], [], "NoExecute") == evicting
    assert untolerated([TAINT], [], "NoExecute") is None
    assert untolerated([evicting], [Toleration(key="out", operator="Exists")], "NoExecute") is None


def port(number: int, ip: str = "", protocol: str = "") -> ContainerPort:
    return ContainerPort(host_port=number, host_ip=ip, protocol=protocol)


@pytest.mark.parametrize(
    ("wanted", "held", "expected"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="TCP"), True),
        (port(80, protocol="UDP"), port(80), False),
        (port(80, "127.0.0.1"), port(80, "127.0.0.1"), True),
        (port(80, "127.0.0.1"), port(80, "10.0.0.1"), False),
        (port(80, "127.0.0.1"), port(80), True),
        (port(80), port(80, "127.0.0.1"), True),
        (port(80, "0.0.0.0"), port(80, "127.0.0.1"), True),
        (port(0), port(0), False),
    ],
)
def test_two_pods_want_a_port(wanted: ContainerPort, held: ContainerPort, expected: bool) -> None:
    other = pod_with_ports(8080, held)
    assert any_conflict(host_ports(pod_with_ports(wanted)), host_ports(other)) is expected


def test_sidecars_hold_ports_and_other_init_containers_do_not() -> None:
    init = (
        Container(name="setup", ports=(port(1),)),
        Container(name="proxy", ports=(port(2),), restart_policy="Always"),
    )
    pod = make_pod(init=init, containers=(Container(name="main", ports=(port(3), port(0))),))
    assert sorted(held.port for held in host_ports(pod)) == [2, 3]
