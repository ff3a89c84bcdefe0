"""`/pods` and `/runningpods/`, and finding the pod that a path names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import Pod, PodList, to_dict
from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.node_api.view import NodeApiView, SharedView


class PodHandlers:
    def __init__(self, view: NodeApiView) -> None:
        self._view = view

    async def pods(self, _: Request) -> Response:
        """The pods that this node is to run and those that are still ending, all with their statuses.

        The kubelet fills in the statuses of static pods only.
        """
        return pod_list(self._view.pods())

    async def running_pods(self, _: Request) -> Response:
        """What runs, by the runtime's word."""
        try:
            return pod_list(await self._view.running_pods())
        except CRIError as error:
            raise HTTPError(500, str(error)) from error


def pod_list(pods: Sequence[Pod]) -> Response:
    """A v1 PodList."""
    return json_response(to_dict(PodList(items=tuple(pods))))


def find_pod(view: SharedView, params: Mapping[str, str], missing: str = "pod does not exist") -> Pod:
    """The pod that `{namespace}` and `{pod}` of a path name. Raises HTTPError 404 that says `missing`."""
    pod = view.pod(params["namespace"], params["pod"])
    if pod is None:
        raise HTTPError(404, missing)
    return pod


def container_names(pod: Pod) -> frozenset[str]:
    """Of all kinds of containers."""
    spec = pod.spec
    return frozenset(c.name for c in (*spec.containers, *spec.init_containers, *spec.ephemeral_containers))
