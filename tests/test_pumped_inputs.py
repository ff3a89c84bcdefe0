"""What strangers write costs time in proportion to its length, whatever part of it is repeated.

Each reader has a document that it takes. Hypothesis cuts it in two places and repeats what is between them, or other
bytes, until it is far longer than any honest one. A reader that goes back and forth, a pattern that backtracks, a copy
for each piece: they would take minutes, and the event loop would wait.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.http.streaming.test_spdy_frames import VECTORS
from tests.rpc.grpc.conversations import PREFACE
from tests.watchdog import EXAMPLE, LIMIT, assert_quick
from trikubelet.api import Pod, Quantity
from trikubelet.api.timestamps import parse_time
from trikubelet.config.tracing_endpoint import parse_endpoint
from trikubelet.container.expansion import expand_known, expand_strictly
from trikubelet.embedded.network.cni.configuration import parse_list, parse_single
from trikubelet.embedded.network.cni.results import parse_problem, parse_result
from trikubelet.embedded.registry.challenge import parse_challenges
from trikubelet.embedded.registry.documents import parse_document
from trikubelet.formats.cpu_list import parse_cpu_list
from trikubelet.formats.durations import parse_duration
from trikubelet.formats.go_quote import go_quote
from trikubelet.formats.image_names import parse_image_name
from trikubelet.formats.pem import pem_blocks
from trikubelet.http.client.answer import AnswerHead
from trikubelet.http.streaming.spdy_frames import FrameDecoder
from trikubelet.kube_client.decoding import Known, decode_answer
from trikubelet.linux.netlink import links, nftables, routes
from trikubelet.linux.netlink.messages import Request, attribute, decode_messages, encode_request, nested
from trikubelet.node.oom.kernel_log import message_of
from trikubelet.node_api.node_log_query import read_node_log_query
from trikubelet.rpc.cri import v1
from trikubelet.rpc.grpc.framing import MessageReader, frame_message
from trikubelet.rpc.grpc.hpack import Decoder, Encoder
from trikubelet.rpc.grpc.http2 import MAX_HEADER_LIST_SIZE, Http2
from trikubelet.runtime.containers.environment import env_file_value
from trikubelet.runtime.images.credentials.docker_config import parse_config
from trikubelet.runtime.images.credentials.plugin_protocol import decode_response
from trikubelet.runtime.sandboxes.name_resolution import parse_resolv_conf
from trikubelet.sources.manifests import parse_manifest
from trikubelet.volumes.csi.registration import highest_version
from trikubelet.volumes.flex.answers import parse_answer

Read: TypeAlias = Callable[[bytes], object]
LENGTH: Final = 16 * 1024
"""Bytes. Time in proportion to it is a few milliseconds, in proportion to its square minutes."""
EXAMPLES: Final = int(os.environ.get("PUMPED_INPUTS", examples(40)))
"""For each reader."""
HEADERS: Final = [(b":method", b"POST"), (b":path", b"/a.Service/Method"), (b"x-long", b"value" * 20)]


def of_text(read: Callable[[str], object]) -> Read:
    return lambda data: read(data.decode(errors="replace"))


def frames_of_spdy(data: bytes) -> None:
    decoder = FrameDecoder(control_size=65536, headers_size=65536)
    decoder.feed(data)
    while decoder.next_frame() is not None:
        pass


def messages_of_netlink(data: bytes) -> None:
    for message in decode_messages(data):
        for decode in (links.decode_link, routes.decode_route, nftables.decode_chain, nftables.decode_elements):
            with suppress(ValueError):
                decode(message)


def said_to_server(data: bytes) -> None:
    server = Http2(client_side=False)
    server.receive_data(PREFACE + data)
    server.data_to_send()


def client_says() -> bytes:
    client = Http2(client_side=True)
    client.start()
    stream = client.open_stream(HEADERS)
    client.send_data(stream, frame_message(b"abc" * 30, 1000))
    client.ping(b"12345678")
    return client.data_to_send().removeprefix(PREFACE)


def containers() -> bytes:
    metadata = v1.ContainerMetadata(name="main", attempt=1)
    container = v1.Container(id="a" * 64, metadata=metadata, labels={"a": "b", "c": "d"}, created_at=2**60)
    return bytes(v1.ListContainersResponse(containers=[container, container]))


def as_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"a/b": "c"}},
    "spec": {
        "containers": [{"name": "main", "image": "test:1", "env": [{"name": "A", "value": "$(B)"}]}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]
                }
            }
        },
    },
}
MANIFEST: Final = b"""\
# a pod
apiVersion: v1
kind: Pod
metadata: {name: web, labels: &labels {app: "we\\x62"}, annotations: *labels}
spec:
  containers:
  - name: 'main'
    image: test:1
    args: [a, "b", !!str 1]
    command:
    - |
      echo
---
"""
CNI: Final = as_json(
    cniVersion="1.0.0",
    name="net",
    type="bridge",
    plugins=[{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}],
    ips=[{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
    routes=[{"dst": "0.0.0.0/0"}],
    code=7,
    msg="no address",
)
DESCRIPTOR: Final = {"mediaType": "a/b", "digest": "sha256:" + "0" * 64, "size": 7, "platform": {"os": "linux"}}

READERS: Final[dict[str, tuple[Read, bytes]]] = {
    "CRI": (v1.ListContainersResponse.FromString, containers()),
    "CRI's status": (v1.StatusResponse.FromString, bytes(v1.StatusResponse(info={"a": "b"}))),
    "SPDY": (frames_of_spdy, b"".join(data for data, *_ in VECTORS)),
    "HPACK": (lambda data: Decoder(MAX_HEADER_LIST_SIZE).decode(data), Encoder().encode(HEADERS)),
    "HTTP/2": (said_to_server, client_says()),
    "gRPC": (lambda data: MessageReader().feed(data), frame_message(b"a" * 20, 1000) * 2),
    "netlink": (
        messages_of_netlink,
        encode_request(Request(16, bytes(16) + attribute(3, b"eth0\0") + nested(18, attribute(1, b"veth\0"))), 1),
    ),
    "CNI list": (lambda data: parse_list(data, "it"), CNI),
    "CNI plugin": (lambda data: parse_single(data, "it"), CNI),
    "CNI result": (lambda data: parse_result(data, "1.0.0", "it"), CNI),
    "CNI problem": (lambda data: parse_problem(data, "it"), CNI),
    "document of a registry": (
        lambda data: parse_document(data, "it"),
        as_json(schemaVersion=2, manifests=[DESCRIPTOR], layers=[DESCRIPTOR], config=DESCRIPTOR),
    ),
    "challenge of a registry": (
        of_text(lambda text: parse_challenges([text])),
        b'Basic realm="a", Bearer realm="https://r",service="s",scope="repository:a/b:pull"',
    ),
    "object": (lambda data: decode_answer(Pod, data, "it", Known()), json.dumps(POD).encode()),
    "answer to a probe": (
        lambda data: AnswerHead().feed(data),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
    ),
    "answer of a flexVolume driver": (
        lambda data: parse_answer("init", data),
        as_json(status="Success", message="fine", capabilities={"attach": True}),
    ),
    "answer of a credential plugin": (
        lambda data: decode_response(data, "v1"),
        as_json(
            apiVersion="v1",
            kind="CredentialProviderResponse",
            cacheKeyType="Image",
            cacheDuration="1h",
            auth={"*.r.example": {"username": "a", "password": "b"}},
        ),
    ),
    "logins": (parse_config, as_json(auths={"r.example": {"auth": "YTpi"}})),
    "quantity": (of_text(Quantity), b"12345.678Mi"),
    "duration": (of_text(parse_duration), b"1h2m3.5s"),
    "time": (of_text(parse_time), b"2026-01-01T00:00:00.123456789+01:00"),
    "image name": (of_text(parse_image_name), b"r.example:5000/a/b-c/d__e.f:v1.2@sha256:" + b"0" * 64),
    "CPUs": (of_text(parse_cpu_list), b"0-3,5,7-9"),
    "PEM": (
        lambda data: list(pem_blocks(data)),
        b"x\n-----BEGIN CERTIFICATE-----\nA: b\n\nAQID\n-----END CERTIFICATE-----\n",
    ),
    "quoted": (of_text(go_quote), b'a"\\\n\x01\xc3\xa9'),
    "references": (of_text(lambda text: expand_known(text, {"A": "x"})), b"a$(A)$$(A)$(B"),
    "references that have to be": (of_text(lambda text: expand_strictly(text, {"A": "x"})), b"a$(A)$$(A)$(B"),
    "file of variables": (
        of_text(lambda text: env_file_value(text, "Z")),
        b"A='x y'\n# no\nC='1\n2'\nZ='z'\n",
    ),
    "resolv.conf": (of_text(parse_resolv_conf), b"nameserver 10.0.0.1\nsearch a.b c.d\noptions ndots:5 # x\n"),
    "kernel's log": (message_of, b"6,339,5140900,-;Memory cgroup out of memory: Killed process 1 (a) total-vm:1kB\n"),
    "query of a log": (
        of_text(lambda text: read_node_log_query({"query": [text], "pattern": [text]})),
        b"kubelet.service",
    ),
    "versions of a driver": (of_text(lambda text: highest_version([text])), b"v1.10.3-rc1"),
    "collector": (of_text(parse_endpoint), b"dns:///[::1]:4317"),
}

BESIDE_THE_LOOP: Final[dict[str, tuple[Read, bytes]]] = {
    "manifest": (lambda data: parse_manifest(data, Path("it.yaml"), "node"), MANIFEST),
}
"""What is read in a thread: it may take its time, but no more than that."""
ALL: Final = READERS | BESIDE_THE_LOOP


@pytest.mark.parametrize("reader", ALL)
def test_what_is_cut_is_read_as_a_whole(reader: str) -> None:
    read, whole = ALL[reader]
    read(whole)


@pytest.mark.parametrize("reader", ALL)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(data=st.data())
def test_what_is_repeated_costs_what_its_length_costs(reader: str, data: st.DataObject) -> None:
    read, whole = ALL[reader]
    given = pumped(data, whole)

    def work() -> None:
        with suppress(Exception):  # whether it is read or refused is for other tests to say
            read(given)

    assert_quick(work, EXAMPLE if reader in BESIDE_THE_LOOP else LIMIT)


def pumped(data: st.DataObject, whole: bytes) -> bytes:
    """With a part of it repeated, or something in the place of that part."""
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(len(whole), begin + 40)))
    unit = data.draw(st.just(whole[begin:end]) | st.binary(min_size=1, max_size=4)) or whole
    return whole[:begin] + unit * (LENGTH // len(unit)) + whole[end:]
