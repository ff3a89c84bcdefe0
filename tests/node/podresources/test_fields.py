"""The messages have the published fields (k8s.io/kubelet, podresources/v1 and v1alpha1)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import betterproto
import pytest

from trikubelet.rpc.pod_resources import v1, v1alpha1

if TYPE_CHECKING:
    from types import ModuleType

MESSAGES: Final = {
    (v1, "ListPodResourcesRequest"): "",
    (v1, "ListPodResourcesResponse"): "1 pod_resources message",
    (v1, "AllocatableResourcesRequest"): "",
    (v1, "AllocatableResourcesResponse"): "1 devices message, 2 cpu_ids int64, 3 memory message",
    (v1, "GetPodResourcesRequest"): "1 pod_name string, 2 pod_namespace string",
    (v1, "GetPodResourcesResponse"): "1 pod_resources message",
    (v1, "PodResources"): "1 name string, 2 namespace string, 3 containers message",
    (v1, "ContainerResources"): (
        "1 name string, 2 devices message, 3 cpu_ids int64, 4 memory message, 5 dynamic_resources message"
    ),
    (v1, "ContainerMemory"): "1 memory_type string, 2 size uint64, 3 topology message",
    (v1, "ContainerDevices"): "1 resource_name string, 2 device_ids string, 3 topology message",
    (v1, "TopologyInfo"): "1 nodes message",
    (v1, "NumaNode"): "1 id int64",
    (v1, "DynamicResource"): "2 claim_name string, 3 claim_namespace string, 4 claim_resources message",
    (v1, "ClaimResource"): (
        "1 cdi_devices message, 2 driver_name string, 3 pool_name string, 4 device_name string, 5 share_id string"
    ),
    (v1, "CdiDevice"): "1 name string",
    (v1alpha1, "ListPodResourcesRequest"): "",
    (v1alpha1, "ListPodResourcesResponse"): "1 pod_resources message",
    (v1alpha1, "PodResources"): "1 name string, 2 namespace string, 3 containers message",
    (v1alpha1, "ContainerResources"): "1 name string, 2 devices message",
    (v1alpha1, "ContainerDevices"): "1 resource_name string, 2 device_ids string",
}


@pytest.mark.parametrize(("module", "name"), MESSAGES, ids=lambda part: getattr(part, "__name__", part))
def test_a_message_has_the_published_fields(module: ModuleType, name: str) -> None:
    described = []
    for field in dataclasses.fields(getattr(module, name)):
        meta = betterproto.FieldMetadata.get(field)
        described.append(f"{meta.number} {field.name} {meta.proto_type}")
    assert ", ".join(described) == MESSAGES[module, name]


@pytest.mark.parametrize("module", [v1, v1alpha1], ids=lambda module: module.__name__)
def test_no_message_is_unknown_here(module: ModuleType) -> None:
    there = {
        name
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, betterproto.Message) and one.__module__ == module.__name__
    }
    assert there == {name for of, name in MESSAGES if of is module}
