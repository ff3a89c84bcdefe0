"""What a manifest leaves open gets the values that an API server would fill in."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.api import Container, Pod, Quantity, Volume, pod_from_dict, set_pod_defaults, to_dict
from trikubelet.api.defaults import image_tag


def defaulted(**spec: Any) -> Pod:
    containers = spec.pop("containers", [{"name": "c", "image": "i"}])
    return set_pod_defaults(pod_from_dict({"spec": {"containers": containers, **spec}}))


def container(**fields: Any) -> Container:
    return defaulted(containers=[{"name": "c", "image": "i", **fields}]).spec.containers[0]


def volume(**source: Any) -> Volume:
    return defaulted(volumes=[{"name": "v", **source}]).spec.volumes[0]


def test_a_minimal_pod_becomes_a_complete_one() -> None:
    assert to_dict(defaulted())["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }


def test_what_is_given_stays() -> None:
    pod = defaulted(
        restartPolicy="Never",
        terminationGracePeriodSeconds=0,
        dnsPolicy="Default",
        enableServiceLinks=False,
        schedulerName="mine",
        securityContext={"runAsUser": 0},
    )
    assert (pod.spec.restart_policy, pod.spec.termination_grace_period_seconds) == ("Never", 0)
    assert (pod.spec.dns_policy, pod.spec.enable_service_links, pod.spec.scheduler_name) == ("Default", False, "mine")
    assert pod.spec.security_context is not None
    assert pod.spec.security_context.run_as_user == 0


@pytest.mark.parametrize(
    ("image", "tag", "policy"),
    [
        ("nginx", "latest", "Always"),
        ("nginx:latest", "latest", "Always"),
        ("nginx:1.25", "1.25", "IfNotPresent"),
        ("localhost/app", "latest", "IfNotPresent"),
        ("localhost:5000/app", "latest", "Always"),
        ("registry:5000/nginx", "latest", "Always"),
        ("registry:5000/a/nginx:v1", "v1", "IfNotPresent"),
        ("nginx@sha256:" + "0" * 64, "", "IfNotPresent"),
        ("nginx:latest@sha256:" + "0" * 64, "latest", "Always"),
        ("", "", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, tag: str, policy: str) -> None:
    assert image_tag(image) == tag
    assert container(image=image).image_pull_policy == policy
    assert volume(image={"reference": image}).image.pull_policy == policy  # type: ignore[union-attr]


def test_probes_and_hooks_get_their_numbers_and_paths() -> None:
    one = container(
        livenessProbe={"httpGet": {"port": 80}},
        readinessProbe={"grpc": {"port": 80}, "periodSeconds": 3},
        lifecycle={"preStop": {"httpGet": {"port": "http"}}},
    )
    assert to_dict(one)["livenessProbe"] == {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    readiness = to_dict(one)["readinessProbe"]
    assert readiness["grpc"] == {"port": 80, "service": ""}
    assert readiness["periodSeconds"] == 3
    assert to_dict(one)["lifecycle"] == {"preStop": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTP"}}}


def test_ports_are_tcp_and_become_ports_of_the_host_in_its_network() -> None:
    assert to_dict(container(ports=[{"containerPort": 80}]))["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 90, "protocol": "UDP"}]
    spec = defaulted(
        hostNetwork=True,
        containers=[{"name": "c", "ports": ports}],
        initContainers=[{"name": "i", "ports": ports}],
    ).spec
    for one in (spec.containers[0], spec.init_containers[0]):
        assert [(port.host_port, port.protocol) for port in one.ports] == [(80, "TCP"), (90, "UDP")]


def test_requests_follow_limits_and_nothing_is_finer_than_a_thousandth() -> None:
    resources = {"limits": {"cpu": "1500u", "memory": "1Gi"}, "requests": {"cpu": "1m"}}
    one = container(resources=resources)
    assert one.resources.requests == {"cpu": Quantity("1m"), "memory": Quantity("1Gi")}
    assert one.resources.limits == {"cpu": Quantity("2m"), "memory": Quantity("1Gi")}


def test_references_to_fields_name_their_version_and_files_are_required() -> None:
    one = container(
        env=[
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}},
            {"name": "C", "value": "x"},
        ]
    )
    first, second = one.env[0].value_from, one.env[1].value_from
    assert first is not None
    assert first.field_ref is not None
    assert first.field_ref.api_version == "v1"
    assert second is not None
    assert second.file_key_ref is not None
    assert second.file_key_ref.optional is False


@pytest.mark.parametrize(
    ("source", "completed"),
    [
        ({}, {"emptyDir": {}}),
        ({"hostPath": {"path": "/x"}}, {"hostPath": {"path": "/x", "type": ""}}),
        ({"secret": {"secretName": "s"}}, {"secret": {"secretName": "s", "defaultMode": 0o644}}),
        ({"secret": {"defaultMode": 0}}, {"secret": {"defaultMode": 0}}),
        ({"configMap": {"name": "m"}}, {"configMap": {"name": "m", "defaultMode": 0o644}}),
        (
            {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
            {
                "downwardAPI": {
                    "items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}],
                    "defaultMode": 0o644,
                }
            },
        ),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 0o644,
                }
            },
        ),
        (
            {"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1500u"}}}}}},
            {
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "metadata": {},
                        "spec": {"resources": {"requests": {"storage": "2m"}}, "volumeMode": "Filesystem"},
                    }
                }
            },
        ),
        ({"rbd": {"image": "i"}}, {"rbd": {"monitors": [], "image": "i", "pool": "rbd", "user": "admin",
                                           "keyring": "/etc/ceph/keyring"}}),
        # A source that this version does not know is a source.
        ({"quantumStorage": {}}, {"quantumStorage": {}}),
    ],
)  # fmt: skip
def test_volumes_are_completed(source: dict[str, Any], completed: dict[str, Any]) -> None:
    assert to_dict(volume(**source)) == {"name": "v", **completed}


def test_pod_level_requests_are_what_the_containers_request_or_the_pods_limit() -> None:
    containers = [
        {"name": "a", "resources": {"requests": {"cpu": "1"}}},
        {"name": "b", "resources": {"requests": {"cpu": "500m"}}},
    ]
    pod = defaulted(containers=containers, resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    assert pod.spec.resources is not None
    assert pod.spec.resources.requests == {"cpu": Quantity("1500m"), "memory": Quantity("1Gi")}


def test_pod_level_huge_pages_follow_the_containers() -> None:
    containers = [
        {"name": name, "resources": {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}} for name in ("a", "b")
    ]
    pod = defaulted(containers=containers, resources={"requests": {"cpu": "1"}})
    assert pod.spec.resources is not None
    assert pod.spec.resources.limits == {"hugepages-2Mi": Quantity("8Mi")}
    assert pod.spec.resources.requests["hugepages-2Mi"] == Quantity("8Mi")


def test_defaulting_twice_changes_nothing() -> None:
    pod = defaulted(
        hostNetwork=True,
        containers=[{"name": "c", "ports": [{"containerPort": 1}], "resources": {"limits": {"cpu": "1u"}}}],
        volumes=[{"name": "v"}],
        resources={"limits": {"cpu": "1"}},
    )
    assert set_pod_defaults(pod) == pod
