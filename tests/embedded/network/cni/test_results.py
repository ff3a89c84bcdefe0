"""Results of every version as one value, and as results of another version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trikubelet.embedded.network.cni.documents import CniDataError
from trikubelet.embedded.network.cni.results import (
    Address,
    Dns,
    Interface,
    Result,
    Route,
    parse_problem,
    parse_result,
    pod_addresses,
    result_to_json,
)
from trikubelet.embedded.network.cni.versions import KNOWN

OLD: dict[str, Any] = {
    "ip4": {"ip": "10.1.0.2/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
    "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "::/0"}]},
    "dns": {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["o"]},
}
MIDDLE: dict[str, Any] = {
    "interfaces": [{"name": "cni0", "mac": "00:11:22:33:44:55"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
    "ips": [
        {"version": "4", "interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
        {"version": "6", "interface": 1, "address": "fd00::2/64"},
    ],
    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0"}],
    "dns": OLD["dns"],
}
NEW: dict[str, Any] = {
    **MIDDLE,
    "interfaces": [
        {"name": "cni0", "mac": "00:11:22:33:44:55"},
        {"name": "eth0", "sandbox": "/run/netns/x", "mtu": 1400, "socketPath": "/s", "pciID": "0000:04:00.5"},
    ],
    "ips": [{name: value for name, value in ip.items() if name != "version"} for ip in MIDDLE["ips"]],
    "routes": [
        {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 0, "scope": 0},
        {"dst": "::/0"},
    ],
}
_DNS = Dns(nameservers=("10.1.0.1",), domain="d", search=("s",), options=("o",))


def of_version(version: str) -> dict[str, Any]:
    body = OLD if version < "0.3.0" else MIDDLE if version < "1.0.0" else NEW
    return {"cniVersion": version, **body}


def parsed(document: object, asked: str = "1.0.0") -> Result:
    return parse_result(json.dumps(document).encode(), asked, "plugin")


@pytest.mark.parametrize("version", KNOWN)
def test_a_result_of_each_version_is_the_same_when_written_again(version: str) -> None:
    assert _as_json(result_to_json(parsed(of_version(version)), version, "plugin")) == of_version(version)


@pytest.mark.parametrize("to", KNOWN)
@pytest.mark.parametrize("version", KNOWN)
def test_a_result_is_converted_to_each_version(version: str, to: str) -> None:
    """What both versions can say arrives."""
    document = _as_json(result_to_json(parsed(of_version(version)), to, "plugin"))
    assert document["cniVersion"] == to
    again = parsed(document)
    assert [address.address for address in again.addresses] == ["10.1.0.2/24", "fd00::2/64"]
    assert [(route.dst, route.gw) for route in again.routes] == [("0.0.0.0/0", "10.1.0.1"), ("::/0", "")]
    assert again.dns == _DNS
    if min(version, to) >= "0.3.0":
        assert pod_addresses(again, "eth0", "net") == ("10.1.0.2", "fd00::2")
        assert [interface.name for interface in again.interfaces] == ["cni0", "eth0"]
    if min(version, to) >= "1.0.0":
        assert again == parsed(of_version(version))


def test_a_result_without_a_version_has_the_one_that_was_asked_for() -> None:
    assert parsed(OLD, "0.2.0").addresses[0].address == "10.1.0.2/24"
    assert parsed(NEW, "1.1.0").addresses[0].address == "10.1.0.2/24"


def test_what_is_missing_or_null_is_empty() -> None:
    assert parsed({"ips": None, "routes": None, "interfaces": None, "dns": None}) == Result()
    assert result_to_json(Result(), "1.0.0", "p") == {"cniVersion": "1.0.0"}
    assert result_to_json(Result(), "0.4.0", "p") == {"cniVersion": "0.4.0", "dns": {}}


def test_the_oldest_versions_have_room_for_one_address_of_a_family_and_need_one() -> None:
    several = Result(addresses=(Address(address="10.0.0.1/8"), Address(address="10.0.0.2/8")))
    assert result_to_json(several, "0.2.0", "p") == {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/8"}, "dns": {}}
    with pytest.raises(CniDataError, match="needs an address"):
        result_to_json(Result(), "0.2.0", "p")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"cniVersion": "1.2.0"},
        {"cniVersion": 1},
        {"ips": {}},
        {"ips": [1]},
        {"ips": [{"address": "10.0.0.1"}]},
        {"ips": [{"address": "10.0.0.1/33"}]},
        {"ips": [{"address": "10.0.0.1/255.0.0.0"}]},
        {"ips": [{"address": "fe80::1%eth0/64"}]},
        {"ips": [{"address": ""}]},
        {"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]},
        {"ips": [{"address": "10.0.0.1/8", "interface": "0"}]},
        {"ips": [{"address": "10.0.0.1/8", "interface": True}]},
        {"routes": [{"dst": "default"}]},
        {"routes": [{"dst": "0.0.0.0/0", "mtu": 1.5}]},
        {"routes": [{"dst": "0.0.0.0/0", "mtu": 2**63}]},
        {"interfaces": [{"name": 1}]},
        {"dns": {"search": "x"}},
        {"dns": {"search": [None]}},
    ],
)
def test_what_is_no_result_is_refused(document: object) -> None:
    with pytest.raises(CniDataError, match="plugin: expected"):
        parsed(document)


@pytest.mark.parametrize(
    ("result", "addresses"),
    [
        (Result(addresses=(Address(address="10.0.0.1/8"),)), ("10.0.0.1",)),
        (Result(addresses=(Address(address="fd00::1/8"), Address(address="10.0.0.1/8"))), ("10.0.0.1", "fd00::1")),
        (Result(addresses=(Address(address="10.0.0.1/8"), Address(address="10.0.0.2/8"))), ("10.0.0.1",)),
        (
            Result(
                interfaces=(Interface(name="host"), Interface(name="eth0")),
                addresses=(Address(address="10.0.0.1/8", interface=0), Address(address="10.0.0.2/8", interface=1)),
            ),
            ("10.0.0.2",),
        ),
    ],
)
def test_a_pods_addresses_are_those_of_its_first_interface(result: Result, addresses: tuple[str, ...]) -> None:
    assert pod_addresses(result, "eth0", "net") == addresses


def test_a_pod_without_an_address_is_an_error() -> None:
    with pytest.raises(CniDataError, match="gave eth0 no address"):
        pod_addresses(Result(), "eth0", "net")
    with pytest.raises(CniDataError, match="on interface 3 of 0"):
        pod_addresses(Result(addresses=(Address(address="10.0.0.1/8", interface=3),)), "eth0", "net")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"code": 7, "msg": "no", "details": "why"}, (7, "no; why")),
        ({"msg": " "}, (0, "")),
        ({"msg": "\ud800\0\n-"}, (0, "\\ud800\ufffd\n-")),
        ({"code": 11, "msg": "x" * 5000}, (11, "x" * 1000 + " ... " + "x" * 1000)),
    ],
)
def test_a_plugin_says_what_is_wrong(document: object, said: tuple[int, str]) -> None:
    problem = parse_problem(json.dumps(document).encode(), "plugin")
    assert (problem.code, problem.message) == said


def _as_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def test_routes_keep_what_may_be_zero() -> None:
    assert parsed(of_version("1.1.0")).routes[0] == Route(
        dst="0.0.0.0/0", gw="10.1.0.1", mtu=1400, advmss=1360, priority=5, table=0, scope=0
    )
