"""`$(NAME)`, environment variables, and a pod's own fields as text."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trikubelet.api import (
    ConfigMapEnvSource,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    ObjectFieldSelector,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceFieldSelector,
    ResourceRequirements,
    SecretKeySelector,
)
from trikubelet.runtime.downward import Addresses, field_value, resource_value
from trikubelet.runtime.environment import container_environment
from trikubelet.runtime.errors import ContainerConfigError
from trikubelet.runtime.expansion import expand_known, expand_strictly

VALUES = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("foo-$(VAR_A)-$(VAR_B)-bar", "foo-A-B-bar"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("$(VAR_EMPTY)|", "|"),
        ("$(VAR_UNKNOWN)", "$(VAR_UNKNOWN)"),
        ("$$(VAR_A)", "$(VAR_A)"),
        ("$$$(VAR_A)", "$A"),
        ("$$$$(VAR_A)", "$$(VAR_A)"),
        ("$VAR_A", "$VAR_A"),
        ("$(VAR_A", "$(VAR_A"),
        ("$()", "$()"),
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("foo$", "foo$"),
        ("$$", "$"),
        ("\n\\$(VAR_A)", "\n\\A"),
    ],
)
def test_references_are_expanded_once(text: str, expanded: str) -> None:
    assert expand_known(text, VALUES) == expanded


def test_the_first_source_that_has_a_name_wins() -> None:
    assert expand_known("$(A)$(B)", {"A": "1"}, {"A": "2", "B": "3"}) == "13"


def test_strict_expansion_names_what_is_missing_or_empty() -> None:
    assert expand_strictly("a/$(VAR_A)", VALUES) == "a/A"
    with pytest.raises(KeyError, match="ODD, VAR_EMPTY"):
        expand_strictly("$(VAR_EMPTY)/$(ODD)/$(VAR_A)", VALUES)


POD = Pod(
    metadata=ObjectMeta(
        name="web",
        namespace="default",
        uid="uid-1",
        labels={"app": "web", "b": 'quote "'},
        annotations={"example.org/note": "hello"},
    ),
    spec=PodSpec(node_name="node-1", service_account_name="robot"),
)
ADDRESSES = Addresses(("10.0.0.7", "fd00::7"), ("192.168.0.1", "fd01::1"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "uid-1"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['example.org/note']", "hello"),
        ("metadata.annotations['missing']", ""),
        ("metadata.labels", 'app="web"\nb="quote \\""'),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "10.0.0.7"),
        ("status.podIPs", "10.0.0.7,fd00::7"),
        ("status.hostIP", "192.168.0.1"),
        ("status.hostIPs", "192.168.0.1,fd01::1"),
    ],
)
def test_a_pods_fields_are_known_by_path(path: str, value: str) -> None:
    assert field_value(POD, path, ADDRESSES) == value


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match=r"unsupported fieldPath: spec\.containers"):
        field_value(POD, "spec.containers", ADDRESSES)


RESOURCES = ResourceRequirements(
    requests={"cpu": Quantity("10m"), "memory": Quantity("10Ki"), "hugepages-2Mi": Quantity("4Mi")},
    limits={"memory": Quantity("1Gi")},
)


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("requests.cpu", None, "1"),
        ("requests.cpu", "1m", "10"),
        ("requests.memory", None, "10240"),
        ("requests.memory", "1Mi", "1"),
        ("limits.memory", "1Mi", "1024"),
        ("limits.cpu", None, "8"),
        ("requests.hugepages-2Mi", None, "4194304"),
        ("requests.ephemeral-storage", None, "0"),
    ],
)
def test_amounts_are_divided_and_rounded_up(resource: str, divisor: str | None, value: str) -> None:
    container = Container(name="c", resources=RESOURCES)
    selector = ResourceFieldSelector(resource=resource)
    if divisor is not None:
        selector = attrs.evolve(selector, divisor=Quantity(divisor))
    assert resource_value(selector, POD, container, {"cpu": Quantity("7500m")}) == value


def test_amounts_of_another_container_are_found_by_its_name() -> None:
    other = Container(name="other", resources=RESOURCES)
    pod = attrs.evolve(POD, spec=PodSpec(containers=(other,)))
    selector = ResourceFieldSelector(container_name="other", resource="requests.cpu", divisor=Quantity("1m"))
    assert resource_value(selector, pod, Container(name="c"), {}) == "10"
    with pytest.raises(ContainerConfigError, match="container nobody not found"):
        resource_value(attrs.evolve(selector, container_name="nobody"), pod, other, {})


def environment(container: Container, **more: Any) -> dict[str, str]:
    return container_environment(POD, container, addresses=ADDRESSES, allocatable={}, **more)


def from_field(path: str) -> EnvVarSource:
    return EnvVarSource(field_ref=ObjectFieldSelector(field_path=path))


def test_variables_see_those_before_them() -> None:
    container = Container(
        name="c",
        env=(
            EnvVar("IP", value_from=from_field("status.podIP")),
            EnvVar("URL", "http://$(IP)/$(LATER)$$(IP)"),
            EnvVar("LATER", "x"),
            EnvVar("EMPTY"),
        ),
    )
    assert environment(container) == {
        "IP": "10.0.0.7",
        "URL": "http://10.0.0.7/$(LATER)$(IP)",
        "LATER": "x",
        "EMPTY": "",
    }


def test_services_are_seen_but_the_pods_own_variables_win() -> None:
    container = Container(name="c", env=(EnvVar("A_PORT", "mine"), EnvVar("COPY", "$(B_HOST)")))
    services = {"A_PORT": "80", "B_HOST": "10.1.0.1"}
    assert environment(container, services=services) == {"A_PORT": "mine", "COPY": "10.1.0.1", "B_HOST": "10.1.0.1"}


def test_config_maps_and_secrets_need_an_api_server() -> None:
    everything = Container(name="c", env_from=(EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings")),))
    with pytest.raises(ContainerConfigError, match="couldn't get configMap default/settings, no kubeClient defined"):
        environment(everything)
    one = EnvVar("A", value_from=EnvVarSource(secret_key_ref=SecretKeySelector(name="keys", key="a")))
    with pytest.raises(ContainerConfigError, match="couldn't get secret default/keys"):
        environment(Container(name="c", env=(one,)))
