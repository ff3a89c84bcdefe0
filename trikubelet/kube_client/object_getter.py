"""Objects that pods refer to: the interface that the runtime manager uses, a read from the API server, and the answers
of a node without one.

A container's environment may come from ConfigMaps and Secrets, credentials from pull secrets, a sandbox's handler from
a RuntimeClass. They live in the API server; with one, `trikubelet.kube_client.objects` answers. Without one,
`NoObjects` says so in the kubelet's words, and whatever needs such an object does not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from trikubelet.formats.values import frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import ConfigMap, Pod, Secret
    from trikubelet.kube_client.types import ApiClient, Resource, T

ObjectProblem = Literal["no client", "not found", "unavailable"]


@frozen
class ObjectError(Exception):
    """An object could not be had."""

    message: str
    problem: ObjectProblem

    def __str__(self) -> str:
        return self.message


class ObjectGetter(Protocol):
    """Looks up objects by name. Each raises ObjectError."""

    async def secret(self, namespace: str, name: str) -> Secret: ...

    async def config_map(self, namespace: str, name: str) -> ConfigMap: ...

    async def runtime_handler(self, class_name: str) -> str:
        """The runtime handler of a RuntimeClass."""
        ...

    async def service_variables(self, pod: Pod) -> Mapping[str, str]:
        """The environment variables that tell the pod of its cluster's services."""
        ...


class NoObjects:
    """The answers of a node without an API server."""

    async def secret(self, namespace: str, name: str) -> Secret:
        raise ObjectError(f"couldn't get secret {namespace}/{name}, no kubeClient defined", "no client")

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        raise ObjectError(f"couldn't get configMap {namespace}/{name}, no kubeClient defined", "no client")

    async def runtime_handler(self, class_name: str) -> str:
        """The kubelet ignores the class here. A pod that asks for a sandboxed runtime must not run without it."""
        raise ObjectError(f'runtimeclass.node.k8s.io "{class_name}" not found', "not found")

    async def service_variables(self, pod: Pod) -> Mapping[str, str]:
        return {}


async def look_up(
    client: ApiClient, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = ""
) -> T:
    """One object, asked for now. Raises ObjectError with the server's words. Cancellable."""
    try:
        return await client.get(resource, name, namespace, resource_version=resource_version)
    except ApiError as error:
        raise object_error(error) from error


def object_error(error: ApiError) -> ObjectError:
    """The failure of a call as the caller's error."""
    if isinstance(error, ApiStatusError):
        return ObjectError(error.message, "not found" if error.not_found else "unavailable")
    return ObjectError(str(error), "unavailable")
