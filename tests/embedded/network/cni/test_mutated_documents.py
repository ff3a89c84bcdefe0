"""Many inputs from anybody to each reader: documents that were whole, and of which parts were changed.

2,500 of each by day, 100,000 new ones by night (`DOCUMENT_INPUTS`). Each is read or refused, whatever it is, and what
was read can be passed on. Each costs far less than a second, since documents are bounded.
"""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs import peak_bytes
from tests.examples import examples, seeds
from tests.mutated import changed_document
from tests.watchdog import one_example
from trikubelet.embedded.network.cni.arguments import capability_arguments
from trikubelet.embedded.network.cni.cache import attachment_from_json
from trikubelet.embedded.network.cni.configuration import parse_list, parse_single, request
from trikubelet.embedded.network.cni.documents import MOST_BYTES, CniDataError, parse_object, render
from trikubelet.embedded.network.cni.results import parse_problem, parse_result, pod_addresses, result_to_json
from trikubelet.embedded.network.cni.versions import KNOWN, choose_version, spoken_versions
from trikubelet.embedded.network.model import PodNetworkSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.embedded.network.cni.configuration import NetworkConfiguration

INPUTS: Final = int(os.environ.get("DOCUMENT_INPUTS", examples(10_000)))

_PLUGIN: Final = {
    "cniVersion": "0.4.0",
    "name": "net",
    "type": "bridge",
    "capabilities": {"portMappings": True, "bandwidth": False},
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]},
}
_ROUTE: Final = {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "priority": 5, "table": 0}
_DNS: Final = {"nameservers": ["10.1.0.1"], "domain": "d", "search": ["s"], "options": ["o"]}
_INTERFACES: Final = [{"name": "cni0"}, {"name": "eth0", "mac": "00:11:22:33:44:55", "sandbox": "/run/netns/x"}]
_ADDRESS: Final = {"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1}
_NEW: Final = {"interfaces": _INTERFACES, "ips": [_ADDRESS, {"address": "fd00::2/64"}], "routes": [_ROUTE], "dns": _DNS}
_OTHERS: Final = (
    "\ud800",
    "../x",
    "10.0.0.1",
    "fe80::1%eth0/64",
    "9.9.9",
    {"type": "x"},
    {"address": "10.0.0.1/8"},
    99,
)
_WHOLE: Final[dict[str, Any]] = {
    "list": {
        "cniVersion": "1.0.0",
        "cniVersions": ["0.3.1", "1.1.0"],
        "name": "net",
        "disableCheck": False,
        "disableGC": "true",
        "loadOnlyInlinedPlugins": True,
        "plugins": [_PLUGIN, {"type": "portmap"}],
    },
    "single": _PLUGIN,
    "new result": {"cniVersion": "1.1.0", **_NEW},
    "middle result": {"cniVersion": "0.4.0", **_NEW, "ips": [{"version": "4", **_ADDRESS}]},
    "old result": {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24", "routes": [_ROUTE]}, "dns": _DNS},
    "problem": {"cniVersion": "1.0.0", "code": 7, "msg": "no address", "details": "in range set 0"},
    "versions": {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]},
    "cached": {
        "kind": "cniCacheV1",
        "containerId": "5a",
        "config": "e30=",
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/run/netns/x",
        "cniArgs": [["IgnoreUnknown", "1"]],
        "capabilityArgs": {"portMappings": []},
        "result": {"cniVersion": "1.0.0"},
    },
}


def _use(network: NetworkConfiguration) -> None:
    assert parse_list(network.source, "again").plugins == network.plugins
    version = choose_version(network.versions, {plugin.type: frozenset(KNOWN) for plugin in network.plugins}, "net")
    for plugin in network.plugins:
        parse_object(render(request(network, plugin, version, capability_arguments={"portMappings": []})), "passed on")


def _list(body: bytes) -> None:
    _use(parse_list(body, "list"))


def _single(body: bytes) -> None:
    _use(parse_single(body, "single"))


def _result(body: bytes) -> None:
    result = parse_result(body, "1.0.0", "plugin")
    for version in ("0.2.0", "0.4.0", "1.1.0"):
        if result.addresses or version >= "0.3.0":
            again = parse_result(render(result_to_json(result, version, "plugin")), version, "again")
            assert len(again.addresses) == len(result.addresses) or version < "0.3.0"
    pod_addresses(result, "eth0", "net")


def _problem(body: bytes) -> None:
    parse_problem(body, "plugin").message.encode()


def _versions(body: bytes) -> None:
    choose_version(("1.0.0",), {"plugin": spoken_versions(parse_object(body, "answer"), "answer")}, "net")


def _cached(body: bytes) -> None:
    attachment = attachment_from_json(parse_object(body, "file"), "file")
    assert attachment_from_json(json.loads(render(attachment.to_json())), "again") == attachment
    assert "/" not in attachment.file_name


_READERS: Final[dict[str, Callable[[bytes], None]]] = {
    "list": _list,
    "single": _single,
    "new result": _result,
    "middle result": _result,
    "old result": _result,
    "problem": _problem,
    "versions": _versions,
    "cached": _cached,
}


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", _READERS)
def test_a_changed_document_is_read_or_refused(kind: str) -> None:
    refused = 0
    for seed in seeds(INPUTS):
        body = changed_document(random.Random(seed), _WHOLE[kind], _OTHERS)
        try:
            with one_example():
                _READERS[kind](body)
        except CniDataError as error:
            str(error).encode()
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {body!r}") from error
    assert 0 < refused < INPUTS


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["10.1.0.2/24", "eth0"])
_KEYS = st.sampled_from(["name", "type", "plugins", "cniVersion", "ips", "ip4", "address", "routes", "dst"]) | st.text()
_ANYTHING = st.recursive(
    _VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=20
)


@pytest.mark.fuzz
@given(st.binary() | _ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_anything_is_read_or_refused(body: bytes) -> None:
    for read in _READERS.values():
        try:
            read(body)
        except CniDataError as error:
            str(error).encode()


@pytest.mark.fuzz
@given(st.text(), st.text())
def test_any_bandwidth_is_read_or_refused(ingress: str, egress: str) -> None:
    annotations = {"kubernetes.io/ingress-bandwidth": ingress, "kubernetes.io/egress-bandwidth": egress}
    spec = PodNetworkSpec(sandbox_id="5a", namespace="n", name="p", uid="u", annotations=annotations)
    try:
        told = capability_arguments(spec)
    except CniDataError:
        return
    assert all(10**3 <= bits <= 10**15 for bits in told["bandwidth"].values())


def test_the_largest_document_takes_little_memory() -> None:
    """A list of small objects takes most for its size."""
    begin, end = '{"name":"net","plugins":[', "{}]}"
    body = (begin + "{}," * ((MOST_BYTES - len(begin + end)) // 3) + end).encode()

    def refuse() -> None:
        with pytest.raises(CniDataError, match="at most"):
            _list(body)

    assert peak_bytes(refuse) < 64 * MOST_BYTES


def test_a_list_has_a_bounded_number_of_objects() -> None:
    for key in ("ips", "routes", "interfaces"):
        with pytest.raises(CniDataError, match="at most"):
            _result(render({key: [{"address": "10.0.0.1/8", "dst": "10.0.0.1/8"}] * 5000}))
    with pytest.raises(CniDataError, match="at most"):
        _list(render({"name": "net", "plugins": [{"type": "x"}] * 5000}))
