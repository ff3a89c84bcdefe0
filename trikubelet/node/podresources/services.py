"""The two versions of the service, each with its own view of which pods there are.

v1 lists pods that have not ended (with the gate KubeletPodResourcesListUseActivePods): what others held is free again.
v1alpha1 lists all that are wanted here, and `Get`
finds them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib import GRPCError, Status

from trikubelet.node.podresources import answers
from trikubelet.node.podresources.metrics import V1ALPHA1
from trikubelet.rpc.pod_resources import v1, v1alpha1

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.api import Pod
    from trikubelet.node.podresources.metrics import PodResourcesMetrics
    from trikubelet.node.podresources.providers import Providers
    from trikubelet.pods.manager import PodManager


class ListerV1(v1.PodResourcesListerBase):
    """Serves `v1.PodResourcesLister`."""

    def __init__(
        self,
        pods: PodManager,
        active_pods: Callable[[], Sequence[Pod]],
        providers: Providers,
        metrics: PodResourcesMetrics,
    ) -> None:
        self._pods = pods
        self._active_pods = active_pods
        self._providers = providers
        self._metrics = metrics

    async def list(self, request: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        with self._metrics.v1_request(self._metrics.lists, self._metrics.failed_lists):
            self._providers.devices.forget_ended()
            return answers.list_v1(self._active_pods(), self._providers)

    async def get_allocatable_resources(
        self, request: v1.AllocatableResourcesRequest
    ) -> v1.AllocatableResourcesResponse:
        with self._metrics.v1_request(self._metrics.allocatables, self._metrics.failed_allocatables):
            return answers.allocatable(self._providers)

    async def get(self, request: v1.GetPodResourcesRequest) -> v1.GetPodResourcesResponse:
        """A pod that is not there is UNKNOWN, not NOT_FOUND: so the kubelet's clients know it."""
        with self._metrics.v1_request(self._metrics.gets, self._metrics.failed_gets):
            name, namespace = request.pod_name, request.pod_namespace
            pod = self._pods.pod_by_full_name(f"{name}_{namespace}")
            if pod is None:
                raise GRPCError(Status.UNKNOWN, f"pod {name} in namespace {namespace} not found")
            return v1.GetPodResourcesResponse(pod_resources=answers.pod_resources(pod, self._providers))


class ListerV1Alpha1(v1alpha1.PodResourcesListerBase):
    """Serves `v1alpha1.PodResourcesLister`."""

    def __init__(self, pods: PodManager, providers: Providers, metrics: PodResourcesMetrics) -> None:
        self._pods = pods
        self._providers = providers
        self._metrics = metrics

    async def list(self, request: v1alpha1.ListPodResourcesRequest) -> v1alpha1.ListPodResourcesResponse:
        self._metrics.requests[V1ALPHA1] += 1
        self._providers.devices.forget_ended()
        return answers.list_v1alpha1(self._pods.pods(), self._providers)
