"""Where on its node a subresource is: of pods `log`, `exec`, `attach` and `portforward`, of nodes `proxy`.

Each becomes a path and a query of the node's own API, with the node's words for what is asked: a client's `stdin=true`
is `input=1` there. Facts from `registry/core/pod/strategy.go` (`LogLocation`, `streamLocation`) and
`kubelet/client/kubelet_client.go`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import attrs

from tests.apiserver.documents import Document, dig, items, name_of, namespace_of
from tests.apiserver.errors import ApiFailure, bad_request, not_found
from tests.apiserver.resources import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.apiserver.requests import Call
    from tests.apiserver.store import Store
    from trikubelet.http.messages import Request

_ADDRESSES: Final = ("InternalIP", "Hostname", "ExternalIP")
"""Kinds of addresses, the preferred one first."""
_STREAMS: Final = (("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"))
_LOG_FLAGS: Final = ("follow", "previous", "timestamps")
_LOG_VALUES: Final = ("sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")
_TRUE: Final = ("true", "1")
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


@attrs.frozen
class NodeTarget:
    """What to ask of which node."""

    host: str
    port: int
    target: str
    """Path and query."""
    extends_websockets: bool = False
    """The node says that it takes a client's WebSocket as it is."""


def node_target(store: Store, request: Request, call: Call) -> NodeTarget:
    """Raises ApiFailure for what no node can be asked."""
    if call.info is NODES:
        path = request.path.partition(f"/nodes/{call.name}/proxy")[2]
        query = request.target.partition("?")[2] if request.target else urlencode(request.query, doseq=True)
        return on_node(store, call.name, (path or "/") + (f"?{query}" if query else ""))
    pod = store.get(PODS, call.namespace, call.name)
    if pod is None:
        raise not_found(PODS, call.name)
    node = str(dig(pod, "spec", "nodeName") or "")
    if not node:
        raise bad_request(f"pod {call.name} does not have a host assigned")
    return on_node(store, node, _of_pod(request, call, pod))


def on_node(store: Store, name: str, target: str) -> NodeTarget:
    """A path of a node's own. Raises ApiFailure for a node of which no address is known."""
    node = store.get(NODES, "", name)
    if node is None:
        raise not_found(NODES, name)
    known = {entry.get("type"): entry.get("address") for entry in reversed(items(node, "status", "addresses"))}
    host = next((known[kind] for kind in _ADDRESSES if kind in known), None)
    port = dig(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
    if not host or not port:
        raise ApiFailure(500, "InternalError", f"Internal error occurred: no address of the node {name} is known")
    features = items(node, "status", "declaredFeatures")
    return NodeTarget(str(host), int(port), target, "ExtendWebSocketsToKubelet" in features)


def _of_pod(request: Request, call: Call, pod: Document) -> str:
    place = f"{namespace_of(pod)}/{name_of(pod)}"
    if call.subresource == "portforward":
        query = [("port", ",".join(ports))] if (ports := request.query.get("ports", ())) else []
        return f"/portForward/{place}" + _query(query)
    container = _container(pod, request.text("container") or "")
    if call.subresource == "log":
        return f"/containerLogs/{place}/{container}" + _query(_log_query(request))
    streams = [(name, "1") for asked, name in _STREAMS if request.text(asked) in _TRUE]
    if call.subresource == "exec":
        streams += [("command", word) for word in request.query.get("command", ())]
    return f"/{call.subresource}/{place}/{container}" + _query(streams)


def _log_query(request: Request) -> list[tuple[str, str]]:
    query = [(name, "true") for name in _LOG_FLAGS if request.text(name) in _TRUE]
    return query + [(name, value) for name in _LOG_VALUES if (value := request.text(name))]


def _query(fields: Sequence[tuple[str, str]]) -> str:
    return f"?{urlencode(fields)}" if fields else ""


def _container(pod: Document, name: str) -> str:
    """The one that is asked for, or the only one. Raises ApiFailure 400."""
    of = {kind: [str(one.get("name")) for one in items(pod, "spec", kind)] for kind in _CONTAINERS}
    if name:
        if not any(name in names for names in of.values()):
            raise bad_request(f"container {name} is not valid for pod {name_of(pod)}")
        return name
    ordinary, initial, _ = of.values()
    if len(ordinary) == 1 and not initial:
        return ordinary[0]
    why = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(ordinary)}]"
    raise bad_request(why + (f" or one of the init containers: [{' '.join(initial)}]" if initial else ""))
