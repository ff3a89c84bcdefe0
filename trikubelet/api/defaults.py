"""The defaults that an API server fills into a pod (`pkg/apis/core/v1/defaults.go` and the `+default` markers).

Pods from files and URLs never pass an API server, so the agent does it. Defaulting a pod twice changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs

from trikubelet.api.constants import (
    DEFAULT_SCHEDULER_NAME,
    DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS,
    DNS_CLUSTER_FIRST,
    PULL_ALWAYS,
    PULL_IF_NOT_PRESENT,
    RESTART_ALWAYS,
    TERMINATION_MESSAGE_PATH,
    TERMINATION_MESSAGE_READ_FILE,
)
from trikubelet.api.container import Container, ContainerPort
from trikubelet.api.pod_resources import (
    aggregate_container_limits,
    aggregate_container_requests,
    is_huge_page_resource,
    is_pod_level_resource,
)
from trikubelet.api.security import PodSecurityContext
from trikubelet.api.volume_defaults import default_field_ref, default_volume

if TYPE_CHECKING:
    from trikubelet.api.environment import EnvVar, ObjectFieldSelector
    from trikubelet.api.objects import Pod
    from trikubelet.api.pod_spec import PodSpec
    from trikubelet.api.probes import HTTPGetAction, Lifecycle, LifecycleHandler, Probe
    from trikubelet.api.quantity import Quantity
    from trikubelet.api.resources import ResourceRequirements

_ContainerT = TypeVar("_ContainerT", bound=Container)


def set_pod_defaults(pod: Pod) -> Pod:
    """The pod with every default filled in."""
    spec = pod.spec
    spec = attrs.evolve(
        spec,
        init_containers=tuple(_requests_from_limits(container) for container in spec.init_containers),
        containers=tuple(_requests_from_limits(container) for container in spec.containers),
        enable_service_links=True if spec.enable_service_links is None else spec.enable_service_links,
    )
    if spec.resources is not None:
        spec = attrs.evolve(spec, resources=_pod_level_resources(attrs.evolve(pod, spec=spec)))
    return attrs.evolve(pod, spec=_default_spec(spec))


def image_tag(image: str) -> str:
    """The tag of an image reference; `latest` when it has neither tag nor digest, empty when it has a digest only."""
    name, at, _ = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if tag or at or not image:
        return tag
    return "latest"


def _pull_policy(image: str) -> str:
    """As the API server's, but for images that no registry has: those of `localhost` were made or imported here."""
    newest = image_tag(image) == "latest" and not image.startswith("localhost/")
    return PULL_ALWAYS if newest else PULL_IF_NOT_PRESENT


def _default_spec(spec: PodSpec) -> PodSpec:
    grace_period = spec.termination_grace_period_seconds
    return attrs.evolve(
        spec,
        dns_policy=spec.dns_policy or DNS_CLUSTER_FIRST,
        restart_policy=spec.restart_policy or RESTART_ALWAYS,
        security_context=PodSecurityContext() if spec.security_context is None else spec.security_context,
        termination_grace_period_seconds=(
            DEFAULT_TERMINATION_GRACE_PERIOD_SECONDS if grace_period is None else grace_period
        ),
        scheduler_name=spec.scheduler_name or DEFAULT_SCHEDULER_NAME,
        volumes=tuple(default_volume(volume, _pull_policy) for volume in spec.volumes),
        init_containers=tuple(_default_container(one, spec.host_network) for one in spec.init_containers),
        containers=tuple(_default_container(one, spec.host_network) for one in spec.containers),
        # Ephemeral containers have no ports that could become ports of the host.
        ephemeral_containers=tuple(_default_container(one, False) for one in spec.ephemeral_containers),
        overhead=_rounded(spec.overhead),
        resources=None if spec.resources is None else _rounded_requirements(spec.resources),
    )


def _default_container(container: _ContainerT, host_network: bool) -> _ContainerT:
    return attrs.evolve(
        container,
        image_pull_policy=container.image_pull_policy or _pull_policy(container.image),
        termination_message_path=container.termination_message_path or TERMINATION_MESSAGE_PATH,
        termination_message_policy=container.termination_message_policy or TERMINATION_MESSAGE_READ_FILE,
        ports=tuple(_default_port(port, host_network) for port in container.ports),
        env=tuple(_default_variable(variable) for variable in container.env),
        resources=_rounded_requirements(container.resources),
        liveness_probe=_default_probe(container.liveness_probe),
        readiness_probe=_default_probe(container.readiness_probe),
        startup_probe=_default_probe(container.startup_probe),
        lifecycle=_default_lifecycle(container.lifecycle),
    )


def _default_port(port: ContainerPort, host_network: bool) -> ContainerPort:
    host_port = port.host_port or (port.container_port if host_network else 0)
    return attrs.evolve(port, protocol=port.protocol or "TCP", host_port=host_port)


def _default_variable(variable: EnvVar) -> EnvVar:
    source = variable.value_from
    if source is None:
        return variable
    file_key = source.file_key_ref
    if file_key is not None and file_key.optional is None:
        source = attrs.evolve(source, file_key_ref=attrs.evolve(file_key, optional=False))
    field_ref: ObjectFieldSelector | None = default_field_ref(source.field_ref)
    return attrs.evolve(variable, value_from=attrs.evolve(source, field_ref=field_ref))


def _default_probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    grpc = probe.grpc
    if grpc is not None and grpc.service is None:
        grpc = attrs.evolve(grpc, service="")
    return attrs.evolve(
        probe,
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
        http_get=_default_http_get(probe.http_get),
        grpc=grpc,
    )


def _default_http_get(action: HTTPGetAction | None) -> HTTPGetAction | None:
    if action is None:
        return None
    return attrs.evolve(action, path=action.path or "/", scheme=action.scheme or "HTTP")


def _default_lifecycle(lifecycle: Lifecycle | None) -> Lifecycle | None:
    if lifecycle is None:
        return None
    return attrs.evolve(
        lifecycle, post_start=_default_hook(lifecycle.post_start), pre_stop=_default_hook(lifecycle.pre_stop)
    )


def _default_hook(handler: LifecycleHandler | None) -> LifecycleHandler | None:
    if handler is None:
        return None
    return attrs.evolve(handler, http_get=_default_http_get(handler.http_get))


def _requests_from_limits(container: Container) -> Container:
    """A limit without a request is a request too. Pods only: templates keep the difference."""
    resources = container.resources
    if not resources.limits:
        return container
    requests = {**resources.limits, **resources.requests}
    return attrs.evolve(container, resources=attrs.evolve(resources, requests=requests))


def _pod_level_resources(pod: Pod) -> ResourceRequirements | None:
    """Pod-level requests and limits that follow from the containers' or from each other (KEP-2837)."""
    resources = pod.spec.resources
    if resources is None or not (resources.limits or resources.requests):
        return resources
    limits = dict(resources.limits)
    for name, amount in aggregate_container_limits(pod).items():
        if is_huge_page_resource(name) and name not in resources.requests:
            limits.setdefault(name, amount)
    requests = dict(resources.requests)
    if limits:
        for name, amount in aggregate_container_requests(pod).items():
            if name in ("cpu", "memory"):
                requests.setdefault(name, amount)
        for name, amount in limits.items():
            if is_pod_level_resource(name):
                requests.setdefault(name, amount)
    return attrs.evolve(resources, limits=limits, requests=requests)


def _rounded(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    """Nothing is finer than a thousandth."""
    return {name: amount.round_up(-3) for name, amount in amounts.items()}


def _rounded_requirements(resources: ResourceRequirements) -> ResourceRequirements:
    if not (resources.limits or resources.requests):
        return resources
    return attrs.evolve(resources, limits=_rounded(resources.limits), requests=_rounded(resources.requests))
