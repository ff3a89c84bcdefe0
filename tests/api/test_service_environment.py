"""What containers are told of services."""

from __future__ import annotations

import pytest

from trikubelet.api import ObjectMeta, Service, ServicePort, ServiceSpec
from trikubelet.api.service_environment import service_variables


def service(namespace: str, name: str, address: str, *ports: ServicePort) -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=ServiceSpec(address, ports=ports))


def port(number: int, name: str = "", protocol: str = "TCP") -> ServicePort:
    return ServicePort(name=name, protocol=protocol, port=number)


API = service("default", "kubernetes", "10.0.0.1", port(443, "https"))
DATABASE = service("shop", "my-db", "10.0.0.9", port(5432))


def test_a_service_is_told_by_host_port_and_links() -> None:
    assert service_variables([DATABASE], "shop", links=True) == {
        "MY_DB_SERVICE_HOST": "10.0.0.9",
        "MY_DB_SERVICE_PORT": "5432",
        "MY_DB_PORT": "tcp://10.0.0.9:5432",
        "MY_DB_PORT_5432_TCP": "tcp://10.0.0.9:5432",
        "MY_DB_PORT_5432_TCP_PROTO": "tcp",
        "MY_DB_PORT_5432_TCP_PORT": "5432",
        "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.9",
    }


def test_each_port_has_its_variables_and_the_first_is_the_services() -> None:
    ports = (port(8081, "u-d-p", "UDP"), port(8081, "t-c-p", "TCP"))
    made = service_variables([service("shop", "abc-123", "5.6.7.8", *ports)], "shop", links=True)
    assert list(made.items()) == [
        ("ABC_123_SERVICE_HOST", "5.6.7.8"),
        ("ABC_123_SERVICE_PORT", "8081"),
        ("ABC_123_SERVICE_PORT_U_D_P", "8081"),
        ("ABC_123_SERVICE_PORT_T_C_P", "8081"),
        ("ABC_123_PORT", "udp://5.6.7.8:8081"),
        ("ABC_123_PORT_8081_UDP", "udp://5.6.7.8:8081"),
        ("ABC_123_PORT_8081_UDP_PROTO", "udp"),
        ("ABC_123_PORT_8081_UDP_PORT", "8081"),
        ("ABC_123_PORT_8081_UDP_ADDR", "5.6.7.8"),
        ("ABC_123_PORT_8081_TCP", "tcp://5.6.7.8:8081"),
        ("ABC_123_PORT_8081_TCP_PROTO", "tcp"),
        ("ABC_123_PORT_8081_TCP_PORT", "8081"),
        ("ABC_123_PORT_8081_TCP_ADDR", "5.6.7.8"),
    ]


def test_an_ipv6_address_is_in_brackets_where_a_port_follows() -> None:
    made = service_variables([service("shop", "six", "2001:DB8::", port(80))], "shop", links=True)
    assert made["SIX_PORT"] == "tcp://[2001:DB8::]:80"
    assert made["SIX_SERVICE_HOST"] == made["SIX_PORT_80_TCP_ADDR"] == "2001:DB8::"


@pytest.mark.parametrize("address", ["", "None"])
def test_a_service_without_an_address_is_not_told_of(address: str) -> None:
    assert service_variables([service("shop", "headless", address, port(80))], "shop", links=True) == {}


@pytest.mark.parametrize(
    ("namespace", "links", "hosts"),
    [
        ("shop", True, {"KUBERNETES_SERVICE_HOST", "MY_DB_SERVICE_HOST"}),
        ("shop", False, {"KUBERNETES_SERVICE_HOST"}),
        ("elsewhere", True, {"KUBERNETES_SERVICE_HOST"}),
        ("default", False, {"KUBERNETES_SERVICE_HOST"}),
    ],
)
def test_pods_are_told_of_the_api_server_and_with_links_of_their_namespace(
    namespace: str, links: bool, hosts: set[str]
) -> None:
    made = service_variables([DATABASE, API], namespace, links=links)
    assert {name for name in made if name.endswith("_SERVICE_HOST")} == hosts


@pytest.mark.parametrize("api_first", [True, False])
def test_a_service_of_the_namespace_hides_the_api_server_when_it_has_its_name(api_first: bool) -> None:
    own = service("shop", "kubernetes", "10.9.9.9", port(1))
    services = [API, own] if api_first else [own, API]
    assert service_variables(services, "shop", links=True)["KUBERNETES_SERVICE_HOST"] == "10.9.9.9"
    assert service_variables(services, "shop", links=False)["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"


def test_a_port_without_a_protocol_is_tcp() -> None:
    made = service_variables([service("shop", "web", "10.0.0.2", port(80, protocol=""))], "shop", links=True)
    assert made["WEB_PORT"] == made["WEB_PORT_80_TCP"] == "tcp://10.0.0.2:80"
