"""What is written can be read again, whatever it was."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trikubelet.api as api
from tests.api.strategies import JSON_VALUES, objects
from tests.examples import examples
from trikubelet.api import APIObject, Pod, from_dict, pod_from_dict, to_dict
from trikubelet.api.decode import resolve_annotation, wire_name

CLASSES = [
    value
    for value in vars(api).values()
    if isinstance(value, type) and issubclass(value, APIObject) and value is not APIObject
]
WHOLE = [api.Pod, api.PodList, api.Node, api.Event, api.Lease, api.ConfigMap, api.Secret, api.PodStatus]


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@pytest.mark.parametrize("cls", [*WHOLE, api.Container, api.Volume, api.ContainerStatus], ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_an_object_survives_being_written_and_read(cls: type[APIObject], data: st.DataObject) -> None:
    obj = data.draw(objects(cls))
    wire = json.loads(json.dumps(to_dict(obj)))
    assert from_dict(cls, wire) == obj


def test_every_class_reads_its_own_empty_form() -> None:
    assert len(CLASSES) > 200
    for cls in CLASSES:
        wire = to_dict(cls())
        assert from_dict(cls, json.loads(json.dumps(wire))) == cls()
        assert from_dict(cls, dict.fromkeys(wire)) == cls()


def test_every_annotation_resolves_and_no_wire_name_is_taken_twice() -> None:
    for cls in CLASSES:
        fields = [field for field in attrs.fields(cls) if field.name != "unknown_fields"]
        for field in fields:
            assert resolve_annotation(cls, field.type) is not None, (cls, field.name)
        names = [wire_name(field) for field in fields]
        assert len(set(names)) == len(names), cls


@given(JSON_VALUES)
def test_any_json_value_is_a_pod_or_a_decode_error(value: Any) -> None:
    with contextlib.suppress(api.DecodeError):
        assert pod_from_dict(value).kind == "Pod"


def test_unknown_fields_of_every_level_come_back() -> None:
    wire = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "newMeta": {"deep": [1, None, "x"]}},
        "spec": {
            "containers": [{"name": "c", "resources": {}, "newField": True, "ports": [{"containerPort": 1, "x": 1.5}]}],
            "volumes": [{"name": "v", "quantumStorage": {"qubits": 3}}],
            "newSpec": [],
        },
        "status": {"newStatus": "yes"},
        "newTop": 1,
    }
    assert to_dict(pod_from_dict(wire)) == wire


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        ("spec.host_pid", {"spec": {"hostPID": True}}),
        ("spec.set_hostname_as_fqdn", {"spec": {"setHostnameAsFQDN": True}}),
        ("status.pod_ips", {"status": {"podIPs": [{"ip": "10.0.0.1"}]}}),
        ("status.qos_class", {"status": {"qosClass": "Guaranteed"}}),
        ("spec.dns_policy", {"spec": {"dnsPolicy": "Default"}}),
        (
            "spec.security_context.se_linux_options.level",
            {"spec": {"securityContext": {"seLinuxOptions": {"level": "s"}}}},
        ),
        ("spec.security_context.fs_group", {"spec": {"securityContext": {"fsGroup": 7}}}),
        ("metadata.uid", {"metadata": {"uid": "u"}}),
    ],
)
def test_irregular_wire_names_are_found(path: str, wire: dict[str, Any]) -> None:
    value: Any = pod_from_dict(wire)
    for name in path.split("."):
        value = getattr(value, name)
    assert value not in ((), "", None, False)


def test_fields_are_left_out_as_in_go() -> None:
    pod = Pod(spec=api.PodSpec(containers=(api.Container(name="c", resources=api.ResourceRequirements()),)))
    assert to_dict(pod) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "spec": {"containers": [{"name": "c", "resources": {}}]},
        "status": {},
    }
    probe = api.Probe(grpc=api.GRPCAction(port=5), termination_grace_period_seconds=0)
    assert to_dict(probe) == {"grpc": {"port": 5, "service": None}, "terminationGracePeriodSeconds": 0}
    status = api.ContainerStatus(name="c", started=False)
    assert to_dict(status) == {
        "name": "c",
        "state": {},
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": "",
        "imageID": "",
        "started": False,
    }


def test_times_have_seconds_and_lease_times_microseconds() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 5, 123456, tzinfo=UTC)
    assert to_dict(api.ObjectMeta(creation_timestamp=moment)) == {"creationTimestamp": "2026-01-31T12:00:05Z"}
    lease = api.LeaseSpec(renew_time=moment, lease_duration_seconds=40)
    assert to_dict(lease) == {"leaseDurationSeconds": 40, "renewTime": "2026-01-31T12:00:05.123456Z"}


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        to_dict(api.ObjectMeta(creation_timestamp=datetime(2026, 1, 1)))


def test_an_ephemeral_container_has_the_fields_of_a_container_and_its_target() -> None:
    pod = pod_from_dict({"spec": {"ephemeralContainers": [{"name": "e", "image": "i", "targetContainerName": "c"}]}})
    (container,) = pod.spec.ephemeral_containers
    assert (container.name, container.image, container.target_container_name) == ("e", "i", "c")
    assert isinstance(container, api.Container)


def test_the_representation_shows_only_what_is_set() -> None:
    pod = Pod(metadata=api.ObjectMeta(name="a", namespace="b"))
    assert repr(pod) == "Pod(metadata=ObjectMeta(name='a', namespace='b'))"
    assert pod.full_name == "a_b"
