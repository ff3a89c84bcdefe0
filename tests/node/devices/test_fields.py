"""The messages and services are the published ones (k8s.io/kubelet, deviceplugin/v1beta1)."""

from __future__ import annotations

import dataclasses
from typing import Final

import betterproto
import pytest

from trikubelet.rpc.device_plugins import v1beta1

MESSAGES: Final = {
    "DevicePluginOptions": "1 pre_start_required bool, 2 get_preferred_allocation_available bool",
    "RegisterRequest": "1 version string, 2 endpoint string, 3 resource_name string, 4 options message",
    "Empty": "",
    "ListAndWatchResponse": "1 devices message",
    "TopologyInfo": "1 nodes message",
    "NumaNode": "1 id int64",
    "Device": "1 id string, 2 health string, 3 topology message",
    "PreStartContainerRequest": "1 devices_ids string",
    "PreStartContainerResponse": "",
    "PreferredAllocationRequest": "1 container_requests message",
    "ContainerPreferredAllocationRequest": (
        "1 available_device_ids string, 2 must_include_device_ids string, 3 allocation_size int32"
    ),
    "PreferredAllocationResponse": "1 container_responses message",
    "ContainerPreferredAllocationResponse": "1 device_ids string",
    "AllocateRequest": "1 container_requests message",
    "ContainerAllocateRequest": "1 devices_ids string",
    "AllocateResponse": "1 container_responses message",
    "ContainerAllocateResponse": (
        "1 envs map, 2 mounts message, 3 devices message, 4 annotations map, 5 cdi_devices message"
    ),
    "CdiDevice": "1 name string",
    "Mount": "1 container_path string, 2 host_path string, 3 read_only bool",
    "DeviceSpec": "1 container_path string, 2 host_path string, 3 permissions string",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_the_published_fields(name: str) -> None:
    described = []
    for field in dataclasses.fields(getattr(v1beta1, name)):
        meta = betterproto.FieldMetadata.get(field)
        described.append(f"{meta.number} {field.name} {meta.proto_type}")
    assert ", ".join(described) == MESSAGES[name]


def test_no_message_is_unknown_here() -> None:
    there = {
        name
        for name, one in vars(v1beta1).items()
        if isinstance(one, type) and issubclass(one, betterproto.Message) and one.__module__ == v1beta1.__name__
    }
    assert there == MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_survives_the_wire(name: str) -> None:
    kind = getattr(v1beta1, name)
    assert kind.FromString(bytes(kind())) == kind()


def test_maps_survive_the_wire() -> None:
    sent = v1beta1.ContainerAllocateResponse(envs={"A": "1", "B": ""}, annotations={"x/y": "é"})
    assert v1beta1.ContainerAllocateResponse.FromString(bytes(sent)) == sent


def test_the_calls_have_the_published_names() -> None:
    paths = [*v1beta1.RegistrationBase().__mapping__(), *v1beta1.DevicePluginBase().__mapping__()]
    assert sorted(paths) == [
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
        "/v1beta1.DevicePlugin/ListAndWatch",
        "/v1beta1.DevicePlugin/PreStartContainer",
        "/v1beta1.Registration/Register",
    ]
