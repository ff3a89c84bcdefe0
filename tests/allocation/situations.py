"""Pods with resources, in few words."""

from __future__ import annotations

from typing import Any

import attrs

from trikubelet.api import Container, ObjectMeta, Pod, PodSpec, PodStatus, Quantity, ResourceRequirements

Amounts = dict[str, str]


def quantities(amounts: Amounts) -> dict[str, Quantity]:
    return {name: Quantity(amount) for name, amount in amounts.items()}


def requirements(requests: Amounts | None = None, limits: Amounts | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=quantities(requests or {}), limits=quantities(limits or {}))


def amounts(cpu: str = "", memory: str = "") -> Amounts:
    """Those that are not empty."""
    return {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}


def container(name: str, requests: Amounts | None = None, limits: Amounts | None = None, **fields: Any) -> Container:
    return Container(name=name, image=f"image-of-{name}", resources=requirements(requests, limits), **fields)


def sidecar(name: str, requests: Amounts | None = None, limits: Amounts | None = None) -> Container:
    return container(name, requests, limits, restart_policy="Always")


def make_pod(
    uid: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    pod_level: ResourceRequirements | None = None,
    generation: int = 0,
    status: PodStatus | None = None,
    **spec: Any,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=f"pod-{uid}", namespace="ns", uid=uid, generation=generation),
        spec=PodSpec(containers=containers, init_containers=init, resources=pod_level, **spec),
        status=status or PodStatus(phase="Running"),
    )


def simple_pod(uid: str, cpu: str = "1", memory: str = "1Gi", **fields: Any) -> Pod:
    """A pod with one container that requests this."""
    return make_pod(uid, container("c1", amounts(cpu, memory)), **fields)


def resized(before: Pod, /, **changes: ResourceRequirements) -> Pod:
    """The pod with other resources of containers, by name; `pod` stands for those of the pod as a whole."""
    whole = changes.pop("pod", before.spec.resources)

    def changed(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(attrs.evolve(one, resources=changes.get(one.name, one.resources)) for one in containers)

    spec = attrs.evolve(
        before.spec,
        containers=changed(before.spec.containers),
        init_containers=changed(before.spec.init_containers),
        resources=whole,
    )
    return attrs.evolve(before, spec=spec)


def of_generation(generation: int, pod: Pod) -> Pod:
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, generation=generation))
