"""What is answered for which pods: the kubelet's tables, as facts."""

from __future__ import annotations

from typing import Any, Final

import attrs
import pytest

from tests.node.podresources.stage import GIB, Managers, as_dict, make_pod
from trikubelet.node.podresources.answers import allocatable, list_v1, list_v1alpha1, pod_resources
from trikubelet.node.podresources.providers import NO_PROVIDERS, Device, Providers


def _on(*nodes: int) -> dict[str, Any]:
    return {"nodes": [{"id": str(node)} if node else {} for node in nodes]}


DEVICES: Final = [
    {"resource_name": "example.com/gpu", "device_ids": ["gpu-0"], "topology": _on(1)},
    {"resource_name": "example.com/key", "device_ids": ["key-7"]},
]
CPUS: Final = ["12", "23", "30"]
MEMORY: Final = [
    {"memory_type": "memory", "size": str(GIB), "topology": _on(1)},
    {"memory_type": "hugepages-1Gi", "size": str(GIB), "topology": _on(0, 1)},
]
CLAIM: Final = {
    "claim_name": "claim",
    "claim_namespace": "team",
    "claim_resources": [
        {
            "cdi_devices": [{"name": "example.com/gpu=a"}, {"name": "example.com/gpu=b"}],
            "driver_name": "dra.example.com",
            "pool_name": "pool-1",
            "device_name": "gpu-1",
            "share_id": "share-1",
        }
    ],
}
ALL: Final = {"devices": DEVICES, "cpu_ids": CPUS, "memory": MEMORY, "dynamic_resources": [CLAIM]}


def _holding(*containers: str) -> Managers:
    return Managers(frozenset(("uid-web", container) for container in containers))


def test_no_pods_are_an_empty_list() -> None:
    assert bytes(list_v1((), NO_PROVIDERS)) == b""
    assert bytes(list_v1alpha1((), NO_PROVIDERS)) == b""


def test_containers_are_listed_although_nobody_gives_them_anything() -> None:
    answer = as_dict(list_v1([make_pod("web", "main")], NO_PROVIDERS))
    assert answer == {"pod_resources": [{"name": "web", "namespace": "default", "containers": [{"name": "main"}]}]}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), {}),
        (("devices", "cpus", "memory"), {"devices": DEVICES, "cpu_ids": CPUS, "memory": MEMORY}),
        (("cpus", "memory", "claims"), {"cpu_ids": CPUS, "memory": MEMORY, "dynamic_resources": [CLAIM]}),
        (("devices", "cpus", "memory", "claims"), ALL),
    ],
)
def test_a_container_has_what_the_managers_that_there_are_gave_it(
    kinds: tuple[str, ...], expected: dict[str, Any]
) -> None:
    managers = _holding("main")
    providers = attrs.evolve(NO_PROVIDERS, **dict.fromkeys(kinds, managers))
    answer = as_dict(pod_resources(make_pod("web", "main"), providers))
    assert answer == {"name": "web", "namespace": "default", "containers": [{"name": "main", **expected}]}


def test_each_container_has_its_own() -> None:
    answer = as_dict(pod_resources(make_pod("web", "one", "two"), _holding("two").providers()))
    assert answer["containers"] == [{"name": "one"}, {"name": "two", **ALL}]


def test_sidecars_come_first_and_what_ends_or_is_ephemeral_not_at_all() -> None:
    pod = make_pod("web", "main", init=["setup"], sidecars=["proxy"], ephemeral=["debug"])
    answer = as_dict(pod_resources(pod, _holding("main", "setup", "proxy", "debug").providers()))
    assert answer["containers"] == [{"name": "proxy", **ALL}, {"name": "main", **ALL}]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("r/d", "x"), [{"resource_name": "r/d", "device_ids": ["x"]}]),
        (Device("r/d", "x", (0,)), [{"resource_name": "r/d", "device_ids": ["x"], "topology": _on(0)}]),
        (
            Device("r/d", "x", (0, 1)),
            [
                {"resource_name": "r/d", "device_ids": ["x"], "topology": _on(0)},
                {"resource_name": "r/d", "device_ids": ["x"], "topology": _on(1)},
            ],
        ),
    ],
)
def test_a_device_is_listed_once_for_each_numa_node(device: Device, expected: list[dict[str, Any]]) -> None:
    class One(Managers):
        def allocatable_devices(self) -> tuple[Device, ...]:
            return (device,)

    assert as_dict(allocatable(Providers(devices=One()))) == {"devices": expected}


def test_numa_node_0_is_on_the_wire() -> None:
    class One(Managers):
        def allocatable_devices(self) -> tuple[Device, ...]:
            return (Device("r/d", "dev", (0,)),)

    device = b"\x0a\x03r/d" + b"\x12\x03dev" + b"\x1a\x02\x0a\x00"
    assert bytes(allocatable(Providers(devices=One()))) == b"\x0a\x0e" + device


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), {}),
        (("cpus",), {"cpu_ids": [*CPUS, "31"]}),
        (("memory",), {"memory": [*MEMORY, {"memory_type": "memory", "size": str(64 * GIB), "topology": _on(0)}]}),
        (
            ("devices", "cpus"),
            {
                "devices": [
                    *DEVICES,
                    {"resource_name": "example.com/gpu", "device_ids": ["gpu-9"], "topology": _on(0)},
                    {"resource_name": "example.com/gpu", "device_ids": ["gpu-9"], "topology": _on(1)},
                ],
                "cpu_ids": [*CPUS, "31"],
            },
        ),
    ],
)
def test_allocatable_is_what_the_managers_could_give(kinds: tuple[str, ...], expected: dict[str, Any]) -> None:
    providers = attrs.evolve(NO_PROVIDERS, **dict.fromkeys(kinds, Managers()))
    assert as_dict(allocatable(providers)) == expected


def test_the_old_version_knows_devices_of_containers_that_are_no_init_containers() -> None:
    pod = make_pod("web", "main", "other", sidecars=["proxy"])
    answer = as_dict(list_v1alpha1([pod], _holding("main", "proxy").providers()))
    devices = [
        {"resource_name": "example.com/gpu", "device_ids": ["gpu-0"]},
        {"resource_name": "example.com/key", "device_ids": ["key-7"]},
    ]
    containers = [{"name": "main", "devices": devices}, {"name": "other"}]
    assert answer == {"pod_resources": [{"name": "web", "namespace": "default", "containers": containers}]}
