"""Where resources are, and what a watch's events say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trikubelet.api import KubernetesObject, ObjectMeta, Pod, Problem
from trikubelet.kube_client import types
from trikubelet.kube_client.types import (
    CSI_NODES,
    EVENTS,
    INITIAL_EVENTS_END,
    LEASES,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    SIGNING_REQUESTS,
    Resource,
    Undecodable,
    WatchEvent,
    WatchEventType,
)

RESOURCES: list[Resource[Any]] = [value for value in vars(types).values() if isinstance(value, Resource)]


@pytest.mark.parametrize(
    ("resource", "place", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("prod",), "/api/v1/namespaces/prod/pods"),
        (PODS, ("prod", "web"), "/api/v1/namespaces/prod/pods/web"),
        (PODS, ("prod", "web", "status"), "/api/v1/namespaces/prod/pods/web/status"),
        (NODES, ("", "a"), "/api/v1/nodes/a"),
        (NODES, ("", "a", "status"), "/api/v1/nodes/a/status"),
        (SERVICE_ACCOUNTS, ("prod", "bot", "token"), "/api/v1/namespaces/prod/serviceaccounts/bot/token"),
        (
            LEASES,
            ("kube-node-lease", "a"),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
        ),
        (RUNTIME_CLASSES, (), "/apis/node.k8s.io/v1/runtimeclasses"),
        (CSI_NODES, ("", "a"), "/apis/storage.k8s.io/v1/csinodes/a"),
        (SIGNING_REQUESTS, ("", "x"), "/apis/certificates.k8s.io/v1/certificatesigningrequests/x"),
        (EVENTS, ("default", "a b/c?d%"), "/api/v1/namespaces/default/events/a%20b%2Fc%3Fd%25"),
    ],
)
def test_a_resource_has_its_path(resource: Resource[Any], place: tuple[str, ...], path: str) -> None:
    assert resource.path(*place) == path


@pytest.mark.parametrize(
    ("resource", "place", "complaint"),
    [
        (PODS, ("", "web"), "pods are in namespaces; expected that of 'web'"),
        (NODES, ("prod",), "nodes are not in namespaces; got 'prod'"),
        (PODS, ("prod", "", "status"), "expected a name with the subresource 'status' of pods"),
        (PODS, ("prod", ".."), r"'\.\.' cannot be part of a path"),
        (PODS, (".", "web"), r"'\.' cannot be part of a path"),
    ],
)
def test_a_path_that_cannot_be_asked_for_is_refused(
    resource: Resource[Any], place: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        resource.path(*place)


@pytest.mark.parametrize("resource", RESOURCES, ids=str)
def test_a_resource_serves_objects_that_say_so(resource: Resource[Any]) -> None:
    obj = resource.cls()
    assert isinstance(obj, KubernetesObject)
    assert (obj.api_version, obj.kind) == (resource.api_version, resource.kind)


def test_a_resource_is_named_as_in_the_servers_messages() -> None:
    assert str(PODS) == "pods"
    assert str(LEASES) == "leases.coordination.k8s.io"


@pytest.mark.parametrize(
    ("type_", "annotations", "ends"),
    [
        ("BOOKMARK", {INITIAL_EVENTS_END: "true"}, True),
        ("BOOKMARK", {INITIAL_EVENTS_END: "false"}, False),
        ("BOOKMARK", {}, False),
        ("ADDED", {INITIAL_EVENTS_END: "true"}, False),
    ],
)
def test_only_the_servers_bookmark_ends_the_initial_events(
    type_: WatchEventType, annotations: dict[str, str], ends: bool
) -> None:
    event = WatchEvent(type_, Pod(metadata=ObjectMeta(annotations=annotations)))
    assert event.initial_events_end is ends


def test_an_event_of_an_undecodable_object_still_says_which_it_is() -> None:
    broken = Undecodable(ObjectMeta(name="web", resource_version="9"), (Problem("spec", "expected an object"),))
    event: WatchEvent[Pod] = WatchEvent("MODIFIED", broken)
    assert event.object.metadata.resource_version == "9"
    assert not event.initial_events_end


def test_the_types_bring_no_http_client() -> None:
    code = (
        "import sys, trikubelet.kube_client.types, trikubelet.kube_client.errors, trikubelet.kube_client.node_view, "
        "trikubelet.admission.types; print(*{'httpx', 'httpcore', 'cryptography', 'ssl'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert set(result.stdout.split()) <= {"ssl"}  # trio brings ssl
