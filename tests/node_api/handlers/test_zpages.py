from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.node_api.handlers.stage import STARTED, FakeNode, ask, clock, fake_parts
from trikubelet.config.decode import decode_configuration
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.http.negotiation import Accepted, negotiate
from trikubelet.node_api.node_api import Switches, node_api

if TYPE_CHECKING:
    from trikubelet.http.routing import Router

STRUCTURED = "application/json;as=Statusz;g=config.k8s.io;v=v1beta1"
WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is "
    "for debugging purposes only."
)


def router(node: FakeNode) -> Router:
    return node_api(node, fake_parts(), Switches(), clock())


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        (None, Accepted("text/plain")),
        ("", Accepted("text/plain")),
        ("  ", Accepted("text/plain")),
        ("*/*", Accepted("text/plain")),
        ("text/plain", Accepted("text/plain")),
        ("TEXT/plain; charset=utf-8", Accepted("text/plain")),
        ("text/*", Accepted("text/plain")),
        ("text/html, text/plain;q=0.5", Accepted("text/plain")),
        (STRUCTURED, Accepted("application/json", "v1beta1")),
        (STRUCTURED.replace("json", "yaml"), Accepted("application/yaml", "v1beta1")),
        (STRUCTURED.replace("json", "*"), Accepted("application/json", "v1beta1")),
        (STRUCTURED.replace("v1beta1", "v1alpha1"), Accepted("application/json", "v1alpha1")),
        (f"text/plain;q=0.4, {STRUCTURED};q=0.5", Accepted("application/json", "v1beta1")),
        (f"text/plain, {STRUCTURED};q=0.5", Accepted("text/plain")),
        ("application/json", None),
        ("application/cbor;as=Statusz;g=config.k8s.io;v=v1beta1", None),
        (STRUCTURED.replace("Statusz", "Flagz"), None),
        (STRUCTURED.replace("v1beta1", "v1"), None),
        (STRUCTURED + ";stream=watch", None),
        (STRUCTURED.replace("application/json", "text/plain"), None),
        ("text/html", None),
        (",;,;=", None),
    ],
)
def test_a_structured_form_has_to_be_asked_for_by_its_name(accept: str | None, accepted: Accepted | None) -> None:
    assert negotiate(accept, "Statusz") == accepted


async def test_status_as_text() -> None:
    answer = await ask(router(FakeNode()), "/statusz")
    assert (answer.status, answer.content_type) == (200, "text/plain; charset=utf-8")
    lines = answer.text.splitlines()
    assert lines[:4] == ["", "kubelet statusz", WARNING, ""]
    patterns = [
        r"Started(:|=| |: ) Wed Dec 31 22:57:56 UTC 2025",
        r"Up\1 1 hr 02 min 04 sec",
        r"Go version\1 CPython 3\.\d+\.\d+\S*",
        r"Binary version\1 1.36",
        r"Emulation version\1 1.36",
        r"Paths\1 /attach /checkpoint /configz /containerLogs /debug /exec /flagz /healthz /logs /metrics /pods "
        r"/portForward /run /runningpods /stats /statusz",
    ]
    assert re.fullmatch("\n".join(patterns), "\n".join(lines[4:]))


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("version", ["v1beta1", "v1alpha1"])
async def test_status_in_a_structured_form(form: str, version: str) -> None:
    accept = STRUCTURED.replace("json", form).replace("v1beta1", version)
    answer = await ask(router(FakeNode()), "/statusz", headers={"accept": accept})
    assert (answer.status, answer.content_type) == (200, f"application/{form}")
    found = yaml.safe_load(answer.body)
    assert found.pop("paths")[:2] == ["/attach", "/checkpoint"]
    assert found.pop("goVersion").startswith("CPython")
    assert found == {
        "kind": "Statusz",
        "apiVersion": f"config.k8s.io/{version}",
        "metadata": {"name": "kubelet"},
        "startTime": "2025-12-31T22:57:56Z",
        "uptimeSeconds": 3724,
        "binaryVersion": "1.36",
        "emulationVersion": "1.36",
    }
    assert ("deprecated" in answer.headers.get("Warning", "")) == (version == "v1alpha1")


async def test_a_start_in_the_future_is_no_negative_time() -> None:
    answer = await ask(router(FakeNode(started_at=STARTED + timedelta(days=9))), "/statusz")
    assert "0 hr 00 min 00 sec" in answer.text


@pytest.mark.parametrize("path", ["/statusz", "/flagz"])
async def test_a_form_that_there_is_not_is_a_status(path: str) -> None:
    answer = await ask(router(FakeNode()), path, headers={"accept": "application/json"})
    assert (answer.status, answer.content_type) == (406, "application/json")
    status = json.loads(answer.body)
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 406, "NotAcceptable")
    assert "application/json, application/yaml, text/plain" in status["message"]


async def test_flags_are_shown_without_what_is_secret() -> None:
    node = FakeNode()
    node.given_flags |= {"manifest-url-header": "X:secret", "manifest-url": "https://me:hush@host/x", "a": ""}
    answer = await ask(router(node), "/flagz")
    separator = answer.text.splitlines()[3].removeprefix("a")
    assert separator in (":", ": ", "=", " ")
    assert answer.text == f"\nkubelet flagz\n{WARNING}\n" + "".join(
        f"{name}{separator}{value}\n"
        for name, value in [
            ("a", ""),
            ("config", "/etc/k.yaml"),
            ("manifest-url", "https://me:<masked>@host/x"),
            ("manifest-url-header", "CLASSIFIED"),
            ("v", "2"),
        ]
    )
    accept = STRUCTURED.replace("Statusz", "Flagz")
    found = json.loads((await ask(router(node), "/flagz", headers={"accept": accept})).body)
    assert found["flags"]["manifest-url-header"] == "CLASSIFIED"
    assert "secret" not in str(found)
    assert "hush" not in str(found)


async def test_the_configuration_is_shown_as_it_is_in_force_without_what_is_secret() -> None:
    configuration = KubeletConfiguration(
        max_pods=7,
        static_pod_url="https://me:hush@host/pods",
        static_pod_url_header={"Authorization": ("secret",), "X": ("a", "b")},
        eviction_hard={"memory.available": "5%"},
        feature_gates={"A": False},
        image_maximum_gc_age=timedelta(minutes=90),
    )
    answer = await ask(router(FakeNode(configuration=configuration)), "/configz")
    assert answer.content_type == "application/json"
    shown = json.loads(answer.body)
    assert list(shown) == ["kubeletconfig"]
    found = shown["kubeletconfig"]
    assert (found["kind"], found["apiVersion"]) == ("KubeletConfiguration", "kubelet.config.k8s.io/v1beta1")
    assert found["staticPodURLHeader"] == {"Authorization": ["<masked>"], "X": ["<masked>"]}
    assert found["staticPodURL"] == "https://me:<masked>@host/pods"
    assert (found["maxPods"], found["imageMaximumGCAge"], found["featureGates"]) == (7, "1h30m0s", {"A": False})
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert "runOnce" not in found
    assert "hush" not in answer.text
    assert "secret" not in answer.text


def test_what_is_encoded_is_decoded_to_the_same() -> None:
    from trikubelet.config.encode import encode_configuration

    configuration = KubeletConfiguration(
        max_pods=7, static_pod_url_header={"X": ("a",)}, enable_server=False, cluster_dns=("10.0.0.10",)
    )
    decoded = decode_configuration(encode_configuration(configuration))
    assert (decoded.config, decoded.problems, decoded.unknown) == (configuration, (), ())
