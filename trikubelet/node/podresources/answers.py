"""What the pod resources API answers, from pods and from what providers say (kubelet: apis/podresources). Pure.

v1 lists what may hold something for long: sidecars, then containers. Init containers that end, and ephemeral ones, are
left out. v1alpha1 is older than sidecars, and knows devices of plugins only.

A device comes once for each NUMA node that it is on, as from the kubelet. (That leaves out a device whose plugin sends
an empty list of nodes. Here it comes as one without topology.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api.pod_resources import is_sidecar
from trikubelet.formats.cpu_list import members
from trikubelet.rpc.pod_resources import v1, v1alpha1

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.allocation.memory.state import Block
    from trikubelet.api import Container, Pod
    from trikubelet.node.podresources.providers import Claim, Device, Providers


def list_v1(pods: Iterable[Pod], providers: Providers) -> v1.ListPodResourcesResponse:
    """`pods` are those that have not ended."""
    return v1.ListPodResourcesResponse(pod_resources=[pod_resources(pod, providers) for pod in pods])


def pod_resources(pod: Pod, providers: Providers) -> v1.PodResources:
    """What one pod has."""
    sidecars = (container for container in pod.spec.init_containers if is_sidecar(container))
    return v1.PodResources(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        containers=[_container(pod, container, providers) for container in (*sidecars, *pod.spec.containers)],
    )


def allocatable(providers: Providers) -> v1.AllocatableResourcesResponse:
    """All that containers may have here, of whatever is given to one at a time."""
    return v1.AllocatableResourcesResponse(
        devices=[*_devices(providers.devices.allocatable_devices())],
        cpu_ids=[*members(providers.cpus.allocatable_cpus)],
        memory=[*map(_memory, providers.memory.allocatable_memory)],
    )


def list_v1alpha1(pods: Iterable[Pod], providers: Providers) -> v1alpha1.ListPodResourcesResponse:
    """`pods` are all that are wanted here, also those that have ended."""
    return v1alpha1.ListPodResourcesResponse(
        pod_resources=[
            v1alpha1.PodResources(
                name=pod.metadata.name,
                namespace=pod.metadata.namespace,
                containers=[_container_v1alpha1(pod, container, providers) for container in pod.spec.containers],
            )
            for pod in pods
        ]
    )


def _container(pod: Pod, container: Container, providers: Providers) -> v1.ContainerResources:
    uid, name = pod.metadata.uid, container.name
    return v1.ContainerResources(
        name=name,
        devices=[*_devices(providers.devices.devices(uid, name))],
        cpu_ids=[*members(providers.cpus.exclusive_cpus(uid, name))],
        memory=[*map(_memory, providers.memory.memory(uid, name))],
        dynamic_resources=[*map(_claim, providers.claims.claims(pod, container))],
    )


def _container_v1alpha1(pod: Pod, container: Container, providers: Providers) -> v1alpha1.ContainerResources:
    devices = _devices(providers.devices.devices(pod.metadata.uid, container.name))
    return v1alpha1.ContainerResources(
        name=container.name,
        devices=[
            v1alpha1.ContainerDevices(resource_name=device.resource_name, device_ids=device.device_ids)
            for device in devices
        ],
    )


def _devices(devices: Iterable[Device]) -> Iterator[v1.ContainerDevices]:
    for device in devices:
        if not device.numa_nodes:
            yield v1.ContainerDevices(resource_name=device.resource, device_ids=[device.id])
        for node in device.numa_nodes:
            yield v1.ContainerDevices(
                resource_name=device.resource, device_ids=[device.id], topology=_topology((node,))
            )


def _memory(block: Block) -> v1.ContainerMemory:
    return v1.ContainerMemory(memory_type=block.type, size=block.size, topology=_topology(members(block.nodes)))


def _topology(nodes: Iterable[int]) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NumaNode(id=node) for node in nodes])


def _claim(claim: Claim) -> v1.DynamicResource:
    return v1.DynamicResource(
        claim_name=claim.name,
        claim_namespace=claim.namespace,
        claim_resources=[
            v1.ClaimResource(
                cdi_devices=[v1.CdiDevice(name=id_) for id_ in device.cdi_ids],
                driver_name=device.driver,
                pool_name=device.pool,
                device_name=device.name,
                share_id=device.share_id,
            )
            for device in claim.devices
        ],
    )
