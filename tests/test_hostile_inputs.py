"""What strangers write keeps the event loop for a moment at most, however long, deep or much it is.

Each case is a function that runs in the event loop, with the worst of what may reach it. Whether it is read or refused
is for other tests to say.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeAlias

import pytest
import trio

from tests import watchdog
from tests.embedded.images.archives import digest
from tests.watchdog import LIMIT, SlowError, assert_quick, bounded, watched
from trikubelet.admission.predicates import matches_node
from trikubelet.admission.resources import any_conflict, host_ports
from trikubelet.api import (
    ClusterTrustBundle,
    ConfigMap,
    Container,
    ObjectMeta,
    Pod,
    PodCondition,
    Quantity,
    Service,
    from_dict,
    pod_from_dict,
)
from trikubelet.api.service_environment import service_variables
from trikubelet.api.timestamps import parse_time
from trikubelet.container.downward import Addresses
from trikubelet.container.expansion import expand_known, expand_words
from trikubelet.container.hashing import hash_container
from trikubelet.embedded.images.oci_layout import fittest_children
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.network.cni.results import parse_result
from trikubelet.embedded.registry.challenge import parse_challenges
from trikubelet.embedded.registry.documents import parse_document
from trikubelet.formats.durations import parse_duration
from trikubelet.formats.go_quote import go_quote
from trikubelet.formats.image_names import parse_image_name
from trikubelet.formats.pem import pem_blocks
from trikubelet.formats.yaml_documents import _steps, read_documents
from trikubelet.http.client.answer import AnswerHead
from trikubelet.http.streaming.spdy_headers import DICTIONARY, HeaderDecoder
from trikubelet.kube_client.decoding import Known, decode_answer
from trikubelet.kube_client.patches import strategic_patch
from trikubelet.kube_client.pod_certificate_state import cleaned_chain
from trikubelet.kube_client.trust_bundles import anchors, selects
from trikubelet.node.devices.endpoint import _devices
from trikubelet.node_api.node_log_query import read_node_log_query
from trikubelet.probes.grpc_health import _MOST_ANSWER
from trikubelet.rpc.cri.v1 import ContainerStatusResponse
from trikubelet.rpc.csi.v1 import NodeGetInfoResponse
from trikubelet.rpc.device_plugins.v1beta1 import Device, ListAndWatchResponse
from trikubelet.rpc.grpc import SHORT_REPLY
from trikubelet.rpc.grpc.hpack import Decoder, HpackError
from trikubelet.rpc.grpc.http2 import MAX_HEADER_LIST_SIZE
from trikubelet.rpc.grpc.metadata import decode_metadata
from trikubelet.rpc.grpc.status import failure_of_trailers
from trikubelet.rpc.health.v1 import HealthCheckResponse
from trikubelet.rpc.unread import Unread
from trikubelet.runtime.containers.environment import EnvFile, EnvironmentObjects, container_environment
from trikubelet.runtime.images.credentials.docker_config import parse_config
from trikubelet.runtime.images.credentials.keyring import Keyring
from trikubelet.runtime.images.credentials.plugin_protocol import decode_response
from trikubelet.runtime.sandboxes.name_resolution import managed_hosts_file, parse_resolv_conf
from trikubelet.scopes import LARGE, off_loop
from trikubelet.status.conditions import ready_condition
from trikubelet.volumes.csi.registration import highest_version
from trikubelet.volumes.payload.downward import downward_payload
from trikubelet.volumes.payload.files import PayloadFile
from trikubelet.volumes.payload.names import with_clean_paths

MIB: Final = 2**20
TEXT: Final = 1536 * 1024
"""Bytes of the largest object that etcd takes."""
MANY: Final = 5000
"""Entries of a list, far more than anybody has."""
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)

Case: TypeAlias = Callable[[], Callable[[], object]]
"""Prepares the input, and gives what is measured."""


def pod(**spec: Any) -> Pod:
    body = {"containers": [{"name": "main", "image": "test:1"}], **spec}
    return pod_from_dict({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": body})


def container(**fields: Any) -> Container:
    return pod(containers=[{"name": "main", "image": "test:1", **fields}]).spec.containers[0]


@contextmanager
def refusals() -> Iterator[None]:
    """What is read may be refused; but not because the test does not ask as it should."""
    try:
        yield
    except (TypeError, AttributeError, NameError):
        raise
    except Exception:  # noqa: BLE001
        pass


# --- Long ------------------------------------------------------------------------------------------------------------

TEXTS: Final[dict[str, Callable[[], str]]] = {
    "digits": lambda: "1" * TEXT,
    "a fraction": lambda: "0." + "1" * TEXT,
    "a great exponent": lambda: "1e" + "9" * TEXT,
    "a small exponent": lambda: "1e-" + "9" * TEXT,
    "begun references": lambda: "$(" * (TEXT // 2),
    "dollars": lambda: "$" * TEXT,
    "begun subscripts": lambda: "a['" * (TEXT // 3),
    "subscripts": lambda: "metadata.labels['a']" * (TEXT // 20),
    "open brackets": lambda: "[" * TEXT,
    "closed brackets": lambda: "]" * TEXT,
    "brackets": lambda: "[]" * (TEXT // 2),
    "dots": lambda: "." * TEXT,
    "words and dots": lambda: "a." * (TEXT // 2) + "!",
    "words and dashes": lambda: "a-" * (TEXT // 2) + "!",
    "dashes": lambda: "a" + "-" * TEXT + "!",
    "words and slashes": lambda: "a/" * (TEXT // 2) + "!",
    "colons": lambda: ":" * TEXT,
    "ats": lambda: "a@" * (TEXT // 2),
    "blanks": lambda: " " * TEXT + "!",
    "stars": lambda: "*." * (TEXT // 2),
    "percents": lambda: "%" * TEXT,
    "begun PEM blocks": lambda: "-----BEGIN A-----\n" * (TEXT // 18),
    "begun PEM blocks of many kinds": lambda: "".join(f"-----BEGIN {n}-----\n" for n in range(TEXT // 23)),
    "ends of PEM blocks": lambda: "-----END A-----\n" * (TEXT // 16),
    "PEM blocks in PEM blocks": lambda: "-----BEGIN A-----\n" * (TEXT // 36) + "-----END A-----\n" * (TEXT // 36),
    "quotes": lambda: 'a="' * (TEXT // 3),
    "backslashes": lambda: 'a="' + "\\" * TEXT,
    "half surrogates": lambda: "\ud800" * (TEXT // 3),
    "units": lambda: "1h" * (TEXT // 64),
}

READERS: Final[dict[str, Callable[[str], object]]] = {
    "quantity": Quantity,
    "duration": parse_duration,
    "time": parse_time,
    "image name": parse_image_name,
    "reference in a variable": lambda text: expand_known(text, {}),
    "reference in an argument": lambda text: expand_words([text], {}),
    "field path": lambda text: downward_payload((from_dict_item(text),), pod(), default_mode=0o644, allocatable={}),
    "path of a problem": lambda text: list(_steps(text[: 128 * 1024])),
    "PEM": lambda text: list(pem_blocks(text.encode(errors="replace"))),
    "trust bundle": lambda text: anchors([text], b""),
    "certificate chain": cleaned_chain,
    "hash of a container": lambda text: hash_container(container(image=text)),
    "challenge of a registry": lambda text: parse_challenges(["Bearer " + text[: 64 * 1024]]),
    "location of a login": lambda text: Keyring().add({text: object()}),  # type: ignore[dict-item]
    "versions of a driver": lambda text: highest_version([text]),
    "message of gRPC": lambda text: failure_of_trailers(
        {b"grpc-status": b"2", b"grpc-message": text.encode(errors="replace")[: 64 * 1024]}
    ),
    "metadata of gRPC": lambda text: decode_metadata([(b"a-bin", text.encode(errors="replace")[: 64 * 1024])]),
    "answer to a probe": lambda text: AnswerHead().feed(
        b"HTTP/1.1 200 OK\r\n" + text.encode(errors="replace")[: 64 * 1024]
    ),
    "query of a log": lambda text: read_node_log_query({"query": [text], "pattern": [text], "tailLines": [text]}),
    "resolv.conf": parse_resolv_conf,
    "login": lambda text: parse_config(json.dumps({"auths": {"a": {"auth": text}}}).encode()),
    "answer of a plugin": lambda text: decode_response(text.encode(errors="replace")[:MIB], "v1"),
    "result of a network plugin": lambda text: parse_result(text.encode(errors="replace")[:MIB], "1.0.0", "it"),
    "JSON of an API server": lambda text: decode_answer(Pod, text.encode(errors="replace"), "it", Known()),
}


def from_dict_item(path: str) -> Any:
    from trikubelet.api import DownwardAPIVolumeFile

    return from_dict(DownwardAPIVolumeFile, {"path": "p", "fieldRef": {"fieldPath": path}})


def read_or_refuse(read: Callable[[str], object], text: str) -> None:
    with refusals():
        read(text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_long_text(text: str) -> None:
    given = TEXTS[text]()
    problems = {}
    for reader, read in READERS.items():
        try:
            assert_quick(partial(read_or_refuse, read, given))
        except Exception as error:  # noqa: BLE001
            problems[reader] = repr(error)
    assert problems == {}


# --- Many ------------------------------------------------------------------------------------------------------------


def ports_at_addresses() -> Callable[[], object]:
    def asks(first: int) -> Pod:
        addresses = (f"10.{first}.{n // 250}.{n % 250}" for n in range(MANY))
        ports = [{"containerPort": 80, "hostPort": 80, "hostIP": address} for address in addresses]
        return pod(containers=[{"name": "main", "image": "test:1", "ports": ports}])

    one, other = host_ports(asks(1)), host_ports(asks(2))
    return lambda: any_conflict(one, other)


def environment(objects: EnvironmentObjects, **fields: Any) -> Callable[[], object]:
    of, asks = pod(), container(**fields)
    addresses = Addresses()
    return lambda: container_environment(of, asks, addresses=addresses, allocatable={}, objects=objects)


def one_config_map_again_and_again() -> Callable[[], object]:
    data = {f"KEY_{number}": "value" for number in range(MANY)}
    objects = EnvironmentObjects(config_maps={"c": ConfigMap(metadata=ObjectMeta(name="c"), data=data)})
    return environment(objects, envFrom=[{"configMapRef": {"name": "c"}}] * MANY)


def one_file_again_and_again() -> Callable[[], object]:
    text = "".join(f"KEY_{number}='value'\n" for number in range(3000))
    reference = {"volumeName": "v", "path": "f", "key": "KEY_2999"}
    variables = [{"name": f"V{number}", "valueFrom": {"fileKeyRef": reference}} for number in range(MANY)]
    return environment(EnvironmentObjects(files={("v", "f"): EnvFile("/f", text)}), env=variables)


def one_variable_again_and_again() -> Callable[[], object]:
    first = {"name": "BIG", "value": "x" * 100_000}
    return environment(EnvironmentObjects(), env=[first, *({"name": "V", "value": "$(BIG)"} for _ in range(MANY))])


def variables_of_variables() -> Callable[[], object]:
    variables = [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 100)]
    return environment(EnvironmentObjects(), env=[{"name": "V0", "value": "x" * 100}, *variables])


def deep_paths() -> Callable[[], object]:
    payload = {"/".join(["a"] * 2000 + [str(number)]): PayloadFile(b"", 0o644) for number in range(300)}
    return lambda: with_clean_paths(payload)


def logins() -> Callable[[], object]:
    auths = {f"*.registry-{number}.example.com/path": {"auth": "YTpi"} for number in range(MANY)}
    keyring = Keyring()
    keyring.add(parse_config(json.dumps({"auths": auths}).encode()))
    return lambda: keyring.lookup("a.registry-1.example.com/path/image")


def gates() -> Callable[[], object]:
    of = pod(readinessGates=[{"conditionType": f"c{number}"} for number in range(MANY)])
    conditions = [PodCondition(type=f"c{number}", status="True") for number in range(MANY)]
    return lambda: ready_condition(of, conditions, (), "Running")


def terms() -> Callable[[], object]:
    expressions = [{"key": f"k{number}", "operator": "In", "values": ["v"] * 10} for number in range(MANY // 10)]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions} for _ in range(10)]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    of, labels = pod(affinity=affinity), {f"k{number}": "v" for number in range(MANY)}
    return lambda: matches_node(of, "n", labels)


def selectors() -> Callable[[], object]:
    expressions = [{"key": f"k{number}", "operator": "NotIn", "values": ["v"] * 10} for number in range(MANY)]
    source = {"path": "p", "signerName": "a/b", "labelSelector": {"matchExpressions": expressions}}
    volume = {"name": "v", "projected": {"sources": [{"clusterTrustBundle": source}]}}
    projected = pod(volumes=[volume]).spec.volumes[0].projected
    assert projected is not None
    bundle = projected.sources[0].cluster_trust_bundle
    assert bundle is not None
    labels = from_dict(ClusterTrustBundle, {"metadata": {"name": "b"}, "spec": {"trustBundle": ""}}).metadata.labels
    return lambda: selects(bundle.label_selector, labels)


def services() -> Callable[[], object]:
    def service(number: int) -> Service:
        spec = {"clusterIP": "10.0.0.1", "ports": [{"name": "a", "port": 80}]}
        return from_dict(Service, {"metadata": {"name": f"s{number}", "namespace": "d"}, "spec": spec})

    found = [service(number) for number in range(1000)]
    return lambda: service_variables(found, "d", links=True)


def hosts() -> Callable[[], object]:
    of = pod(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a", "b"]} for _ in range(MANY)])
    return lambda: managed_hosts_file(["10.0.0.2"], "h", "", of.spec.host_aliases)


def conditions_in_a_patch() -> Callable[[], object]:
    old = {"conditions": [{"type": f"c{number}", "status": "True"} for number in range(MANY)]}
    new = {"conditions": [{"type": f"c{number}", "status": "False"} for number in reversed(range(MANY))]}
    return lambda: strategic_patch(old, new, {"conditions": "type"})


def platforms() -> Callable[[], object]:
    entry = {"digest": digest(b""), "size": 1, "platform": {"os": "linux", "architecture": "arm64"}}
    body = json.dumps({"schemaVersion": 2, "manifests": [entry] * MANY}).encode()
    return lambda: fittest_children(parse_document(body, "index"), "index", Platform("linux", "amd64"))


def headers_of_spdy() -> Callable[[], object]:
    compressor = zlib.compressobj(zdict=DICTIONARY)
    bomb = compressor.compress(bytes(64 * MIB)) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return lambda: HeaderDecoder(64 * 1024).decode(bomb)


def headers_of_http2() -> Callable[[], object]:
    """Sizes of the table without end, and the longest coded string that may still be read."""
    blocks = [b"\x20" * 2**18, b"\x00\x01a\xff\x81\xfe\x0d" + bytes(224_000)]

    def read() -> None:
        for block in blocks:
            with suppress(HpackError):
                Decoder(MAX_HEADER_LIST_SIZE).decode(block)

    return read


def deep_json() -> Callable[[], object]:
    body = b'{"spec":' + b'{"a":' * 200_000
    return lambda: decode_answer(Pod, body, "it", Known())


def quoted() -> Callable[[], object]:
    text = '\u0001"\n' * 60_000
    return lambda: go_quote(text)


def health_answers() -> Callable[[], object]:
    """Each field of it again and again, or one that it does not have."""
    answers = [piece * (_MOST_ANSWER // 2) for piece in (b"\x08\x01", b"\x18\x00")]
    return lambda: [HealthCheckResponse.FromString(answer) for answer in answers]


def answers_of_csi() -> Callable[[], object]:
    answer = b"\x78\x00" * (SHORT_REPLY // 2)
    return lambda: NodeGetInfoResponse.FromString(answer)


def parts_of_messages() -> Callable[[], object]:
    """A message that comes in thousands of parts, each with something that nobody knows."""
    answer = b"\x0a\x03\xf8\x7f\x00" * (2 * LARGE // 5)
    return lambda: ContainerStatusResponse.FromString(answer)


def merges_of_merges() -> Callable[[], object]:
    keys = ", ".join(f"k{number}: 1" for number in range(1000))
    text = f"a: &a {{{keys}}}\nb:\n" + "- <<: *a\n" * 2000
    return lambda: read_documents(text.encode())


def merges_of_nothing() -> Callable[[], object]:
    text = "a: &a [" + "{}, " * 3000 + "]\nb:\n" + "  <<: *a\n" * 1000
    return lambda: read_documents(text.encode())


def deep_duplicates() -> Callable[[], object]:
    """Keys that all have a path of a hundred kilobytes."""
    above = [f"{'k' * 1000}{number}" for number in range(90)]
    text = "".join(f"{{{key}: " for key in above) + "{" + "a: 1, " * 3000 + "}" + "}" * len(above)
    return lambda: read_documents(text.encode())


MUCH: Final[tuple[Case, ...]] = (
    ports_at_addresses,
    one_config_map_again_and_again,
    one_file_again_and_again,
    one_variable_again_and_again,
    variables_of_variables,
    deep_paths,
    logins,
    gates,
    terms,
    selectors,
    services,
    hosts,
    conditions_in_a_patch,
    platforms,
    headers_of_spdy,
    headers_of_http2,
    deep_json,
    quoted,
    health_answers,
    answers_of_csi,
    parts_of_messages,
    merges_of_merges,
    merges_of_nothing,
    deep_duplicates,
)


@pytest.mark.parametrize("case", MUCH)
def test_much_of_something(case: Case) -> None:
    measured = case()

    def work() -> None:
        with refusals():
            measured()

    assert_quick(work)


# --- Large -----------------------------------------------------------------------------------------------------------


def large_pod() -> Callable[[], object]:
    variables = [{"name": f"V{number}", "value": "x"} for number in range(TEXT // 32)]
    body = {"containers": [{"name": "main", "image": "test:1", "env": variables}]}
    text = json.dumps({"kind": "Pod", "metadata": {"name": "p"}, "spec": body}).encode()
    return partial(decode_answer, Pod, text, "it", Known())


def large_list_of_devices() -> Callable[[], object]:
    listed = [Device(id=f"device-{number}", health="Healthy") for number in range(20_000)]
    return partial(_devices, Unread(bytes(ListAndWatchResponse(devices=listed))))


@pytest.mark.parametrize("case", [large_pod, large_list_of_devices])
async def test_what_is_large_is_taken_apart_beside_the_loop(case: Case) -> None:
    work = case()
    await trio.lowlevel.checkpoint()
    with watched():
        assert await off_loop(trio.CapacityLimiter(1), LARGE, work)
        await trio.lowlevel.checkpoint()


# --- The watchdog itself ---------------------------------------------------------------------------------------------


def _work(seconds: float) -> None:
    import time

    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_long_step_is_noticed() -> None:
    watching = watched()
    watching.__enter__()
    await _step(2 * LIMIT)
    await trio.lowlevel.checkpoint()
    with pytest.raises(AssertionError, match="kept the event loop"):
        watching.__exit__(None, None, None)


async def test_short_steps_are_not() -> None:
    with watched():
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(_step, LIMIT / 4)


async def _step(seconds: float) -> None:
    await trio.lowlevel.checkpoint()
    _work(seconds)


def test_a_slow_function_is_noticed() -> None:
    with pytest.raises(AssertionError, match="it took"):
        assert_quick(lambda: _work(2 * LIMIT))


def test_an_example_that_is_too_slow_each_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "EXAMPLE", 0.02)
    took = [0.03, 0.0]
    bounded(lambda: _work(took.pop(0)))()
    assert took == [], "another program may have made the first one slow"
    with pytest.raises(SlowError, match="this example took"):
        bounded(lambda: _work(0.03))()


def test_an_example_that_keeps_the_event_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "of_package", lambda _: True)
    monkeypatch.setattr(watchdog, "EXAMPLE", 10.0)
    with pytest.raises(SlowError, match="kept the event loop"):
        bounded(lambda: trio.run(_step, 2 * LIMIT))()
