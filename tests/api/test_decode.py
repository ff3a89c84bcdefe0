"""Reading manifests that somebody else wrote: mistakes, YAML's traps and malice."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml

from trikubelet.api import DecodeError, Pod, PodList, Quantity, Secret, from_dict, pod_from_dict
from trikubelet.api.decode import MAX_PROBLEMS


def problems(data: object) -> list[str]:
    with pytest.raises(DecodeError) as caught:
        pod_from_dict(data)
    return [str(problem) for problem in caught.value.problems]


def manifest(text: str) -> Any:
    return yaml.safe_load(text)


def test_every_problem_is_found_with_its_path() -> None:
    text = """
    apiVersion: v1
    kind: Pod
    metadata: {name: a, labels: [x]}
    spec:
      restartPolicy: {}
      containers:
      - name: c
        ports: [{containerPort: 80}, {containerPort: x}]
        command: sh
        resources: {limits: {cpu: lots}}
      - 7
    """
    assert problems(manifest(text)) == [
        "metadata.labels: expected an object, got a list",
        "spec.restartPolicy: expected a string, got an object",
        'spec.containers[0].ports[1].containerPort: expected an integer, got "x"',
        'spec.containers[0].command: expected a list, got "sh"',
        'spec.containers[0].resources.limits[cpu]: expected a quantity such as "500m", "1.5Gi" or "1e3", got "lots": '
        "it has to be a number with an optional suffix",
        "spec.containers[1]: expected an object, got 7",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("8080", "got 8080; put quotes around it"),
        ("1.5", "got 1.5; put quotes around it"),
        ("on", "got the boolean true (YAML reads unquoted yes, no, on, off, true and false as booleans)"),
        ("2026-01-31", "got the date 2026-01-31; put quotes around it"),
        ("[a]", "got a list"),
    ],
)
def test_an_unquoted_value_of_a_variable_says_to_quote_it(value: str, said: str) -> None:
    text = f"spec: {{containers: [{{env: [{{name: A, value: {value}}}]}}]}}"
    (problem,) = problems(manifest(text))
    assert problem.startswith("spec.containers[0].env[0].value: expected a string, ")
    assert said in problem


def test_an_unquoted_boolean_key_of_a_label_or_field_says_to_quote_it() -> None:
    assert problems(manifest("metadata: {labels: {on: 'x', 5: 'y'}}")) == [
        "metadata.labels: expected strings as keys, got the boolean true; put quotes around it",
        "metadata.labels: expected strings as keys, got 5; put quotes around it",
    ]
    assert problems({"spec": {True: 1}}) == [
        "spec: expected field names as keys, got the boolean true; put quotes around it"
    ]


def test_quoted_numbers_and_booleans_say_to_remove_the_quotes() -> None:
    data = {"spec": {"hostNetwork": "true", "terminationGracePeriodSeconds": "30"}}
    assert problems(data) == [
        'spec.hostNetwork: expected true or false, got "true"; remove the quotes and write true or false',
        'spec.terminationGracePeriodSeconds: expected an integer, got "30"; remove the quotes',
    ]


NO_PORTS = {
    "boolean": True,
    "fraction": 1.5,
    "too large": 2**31,
    "too small": -(2**31) - 1,
    "huge": 1 << 20000,
    "nan": float("nan"),
    "infinity": float("inf"),
    "text": "80",
}


@pytest.mark.parametrize("value", NO_PORTS.values(), ids=NO_PORTS)
def test_what_is_no_32_bit_integer_is_no_port(value: object) -> None:
    (problem,) = problems({"spec": {"containers": [{"ports": [{"containerPort": value}]}]}})
    assert problem.startswith("spec.containers[0].ports[0].containerPort: expected an integer")


def test_whole_floats_are_integers_and_numbers_are_quantities() -> None:
    data = {
        "spec": {
            "terminationGracePeriodSeconds": 30.0,
            "overhead": {"cpu": 0.1, "memory": 5, "a": " 1Gi "},
        }
    }
    pod = pod_from_dict(data)
    assert pod.spec.termination_grace_period_seconds == 30
    assert pod.spec.overhead == {"cpu": Quantity("100m"), "memory": Quantity(5), "a": Quantity("1Gi")}


def test_null_is_absent_everywhere() -> None:
    data = {
        "metadata": None,
        "spec": {
            "containers": [None, {"name": None, "ports": None, "env": [{"value": None}]}],
            "nodeSelector": {"a": None},
        },
    }
    pod = pod_from_dict(data)
    assert pod.metadata.name == ""
    assert pod.spec.containers[0].name == ""
    assert pod.spec.containers[1].ports == ()
    assert pod.spec.node_selector == {"a": ""}
    assert pod_from_dict(None) == Pod()


@pytest.mark.parametrize("data", [[], "Pod", 3, True])
def test_what_is_no_object_is_no_pod(data: object) -> None:
    (problem,) = problems(data)
    assert problem.startswith("expected an object, got ")


def test_another_kind_is_refused() -> None:
    assert problems({"apiVersion": "apps/v1", "kind": "Deployment"}) == [
        'apiVersion: expected "v1", got "apps/v1"',
        'kind: expected "Pod", got "Deployment"',
    ]


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31T13:00:00+01:00",
        "2026-01-31T12:00:00.000000000Z",
        dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 31, 12),
    ],
)
def test_times_of_any_offset_are_read_in_utc(value: object) -> None:
    pod = pod_from_dict({"metadata": {"creationTimestamp": value}})
    assert pod.metadata.creation_timestamp == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize("value", ["yesterday", "2026-01-31", "2026-13-01T00:00:00Z", 5, "9999-12-31T23:59:59-23:00"])
def test_what_is_no_time_is_refused(value: object) -> None:
    (problem,) = problems({"metadata": {"creationTimestamp": value}})
    assert 'metadata.creationTimestamp: expected a time such as "2026-01-31T12:00:00Z"' in problem


def test_secret_data_is_base64() -> None:
    assert from_dict(Secret, {"data": {"a": "aGk=\n"}}).data == {"a": b"hi"}
    with pytest.raises(DecodeError, match=r"data\[a\]: expected base64 text"):
        from_dict(Secret, {"data": {"a": "?"}})


def test_a_port_is_a_number_or_a_name() -> None:
    def pod(port: object) -> object:
        return {"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": port}}}]}}

    for port in (80, "http"):
        probe = pod_from_dict(pod(port)).spec.containers[0].liveness_probe
        assert probe is not None
        assert probe.http_get is not None
        assert probe.http_get.port == port
    assert problems(pod(True)) == [
        "spec.containers[0].livenessProbe.httpGet.port: expected an integer or a string, got the boolean true"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "spec: &a {containers: [*a]}",
        "&a {spec: *a}",
        "unknown: &a [*a]",
        "unknown: &a {b: *a}",
        "metadata: &a {managedFields: [{fieldsV1: *a}]}",
        "spec: {containers: &a [{env: *a}]}",
    ],
)
def test_anchors_that_hold_themselves_are_problems_and_not_endless(text: str) -> None:
    assert problems(manifest(text))


def test_anchors_that_multiply_are_refused() -> None:
    lines = ["unknown:", "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (problem,) = problems(manifest("\n".join(lines)))
    assert "too many values" in problem


def test_a_shared_container_list_that_multiplies_is_refused() -> None:
    env = [{"name": "A", "value": "x"}] * 2000
    containers = [{"name": "c", "env": env}] * 2000
    (problem,) = problems({"spec": {"containers": containers}})
    assert "too many values" in problem


def test_deep_nesting_of_unknown_fields_is_refused() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    (problem,) = problems({"unknown": deep})
    assert "nested more than" in problem


def test_values_that_json_cannot_express_are_refused_in_unknown_fields() -> None:
    data = {"unknown": {"when": dt.date(2026, 1, 1), "raw": b"x", 5: 1}}
    found = problems(data)
    assert len(found) == 3
    assert "unknown.when: expected a JSON value, got the date 2026-01-01; put quotes around it" in found


def test_a_flood_of_problems_stops() -> None:
    found = problems({"spec": {"containers": [5] * 1000}})
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1] == f"stopped after {MAX_PROBLEMS} problems"


def test_the_items_of_a_list_are_decoded() -> None:
    pods = from_dict(PodList, {"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {"name": "a"}}]})
    assert [pod.metadata.name for pod in pods.items] == ["a"]
    assert pods.metadata.resource_version == "5"
