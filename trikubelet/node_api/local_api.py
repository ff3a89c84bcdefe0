"""The agent's own HTTP API, on the unix socket in the root folder: what the command line asks.

    GET  /healthz, /healthz/CHECK          `ok`, or 500 and what is wrong; ?verbose lists every check, ?exclude=CHECK
    GET  /version                          versions of the agent and the runtime, and the node's name, by name
    GET  /pods[?uid=UID&uid=…]             a v1 PodList with statuses, of all pods or of these
    GET  /pods?watch=1                     one JSON line now and after every change: {"type": "SNAPSHOT", "pods": […]}
    GET  /pods/NS/NAME                     a v1 Pod with its status
    GET  /pods/NS/NAME/why                 what a pod waits for now, and since when (`agent.why.explain` has the fields)
    POST /pods/NS/NAME/restart?container=C end a container, or all, which then start again; their names
    DELETE /pods/NS/NAME                   remove the manifest of a static pod: {"file", "moved", "others", "uid"};
                                           ?removeFile=1 one of a person's, ?withOthers=1 one that holds more pods
    PUT  /manifests/FILE[?dryRun=1]        check a manifest and put it into the folder: {"file", "pods", "before",
                                           "warnings"}, or {"problems": […]}; ?mustBeNew=1 only where the pod is new
    GET  /manifests[?problems=1]           the files of manifests, or those with problems: [{"file", "pods", "names",
                                           "problems", "broken"}] (`sources.file.ManifestState` has the fields)
    GET  /manifests?watch=1                one JSON line now and after every change: those with problems
    GET  /events                           a list of what happened to all pods and to the node, oldest first
    GET  /events?watch=1                   one JSON line now for each of these, and for each that happens
    GET  /events?uid=UID                   a list of what happened to a pod, oldest first
    GET  /journal?watch=1                  what happens to pods, one JSON line each: first {"type": "SNAPSHOT",
                                           "pods": [{"uid", "pod", "stages": [{"what", "at"}, …],
                                           "entries": [ENTRY, …]}, …]}, then
                                           {"type": "ENTRY", …}; once more a snapshot for a reader that is too slow;
                                           `pods.journal` has the fields
    GET  /journal[?uid=UID]                the snapshot alone, or the entries of one pod, oldest first
    GET  /images                           a list of the runtime's images
    GET  /images/pulls                     a list of the pulls at work, and how far each is (embedded runtime)
    POST /images/import?path=PATH          import an archive of this machine; a list of the references it brought
    GET  /containerLogs/NS/POD/CONTAINER   ?follow &tailLines= &sinceSeconds= &sinceTime= &timestamps &previous
                                           &limitBytes= &stream=All|Stdout|Stderr &previousFiles=true|N
    POST /ui/link                          an address that shows the live page once: {"url"} (with --ui, on loopback)
    GET  /statistics                       the tasks of the agent, and what its parts count

Beside these it has every route of the node's API (node_api.py), with the same handlers. A client that may open the
socket needs no authentication, gets the reason why a check fails, and finds nothing switched off. Errors are one line
of text.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from trikubelet.api import to_dict
from trikubelet.api.timestamps import format_micro_time
from trikubelet.http.messages import (
    JSON,
    AnyResponse,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    Writer,
    json_response,
)
from trikubelet.http.routing import ANY_METHOD, Route, Router
from trikubelet.node_api.handlers.acting import PodActions, acting_routes
from trikubelet.node_api.handlers.health import HealthHandlers
from trikubelet.node_api.handlers.logs import LogHandlers
from trikubelet.node_api.handlers.pods import pod_list
from trikubelet.node_api.task_tree import task_tree
from trikubelet.node_api.view import SharedView
from trikubelet.telemetry.events import ObjectEvent, PodEvent

if TYPE_CHECKING:
    from trikubelet.broadcast import Subscription
    from trikubelet.clock import WallClock
    from trikubelet.pods.journal import Journal
    from trikubelet.telemetry.events import AnyEvent, NodeEvent


class ImportRefusedError(Exception):
    """The runtime takes no images from here, or not this archive. The text tells the user why, and what to do."""


class AgentView(SharedView, Protocol):
    """The agent as this API sees it. What is not `async` must not block; what is may be cancelled at any time."""

    def version(self) -> Mapping[str, str]:
        """`agent` and `node`, and once it is connected `runtime_name`, `runtime_version` and `runtime_api_version`."""
        ...

    def events(self) -> Sequence[PodEvent | NodeEvent]:
        """The events kept for all pods and for the node, the one seen longest ago first."""
        ...

    def subscribe_events(self) -> Subscription[AnyEvent]:
        """Every event from now on; of one that repeats while the reader is busy, the newest."""
        ...

    def pod_events(self, uid: str) -> Sequence[PodEvent]:
        """The events kept for a pod, the one seen longest ago first; none for an unknown pod."""
        ...

    def manifests(self) -> Sequence[Mapping[str, Any]]:
        """The files of manifests as JSON values, with their `problems`."""
        ...

    def manifests_with_problems(self) -> Sequence[Mapping[str, Any]]:
        """Those of them that have problems; quick with thousands of files."""
        ...

    def version_of_manifests(self) -> int:
        """Another one when `manifests_with_problems` may tell something else."""
        ...

    def why(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """What the newest pod of this name waits for, as JSON values; None when nothing is known of such a pod."""
        ...

    @property
    def acting(self) -> PodActions:
        """What a person may do to pods."""
        ...

    @property
    def journal(self) -> Journal:
        """What happened to the pods."""
        ...

    async def images(self) -> Sequence[Mapping[str, Any]]:
        """The runtime's images: `id`, `repo_tags`, `repo_digests`, `size` (bytes), `pinned`."""
        ...

    def pulls(self) -> Sequence[Mapping[str, Any]]:
        """The runtime's pulls at work: `reference`, `progress` (for people), `received_bytes`, `total_bytes`, `layers`,
        `layers_done`; none where the runtime does not tell."""
        ...

    async def import_images(self, path: Path) -> Sequence[str]:
        """Import an archive; returns the references it brought. Raises ImportRefusedError or OSError."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """What the agent's parts count, by part: attrs objects, mappings, lists, texts and numbers."""
        ...


def local_api(view: AgentView, clock: WallClock, node: Router | None = None) -> Router:
    """The routes. `clock` turns `sinceSeconds` into a time; `node` is the node's API with nothing switched off."""
    api = _LocalApi(view)
    health = HealthHandlers(view.health, checks=None, show_reasons=True)
    own = [
        Route(ANY_METHOD, "/healthz", health.root),
        Route(ANY_METHOD, "/healthz/{check}", health.check),
        Route("GET", "/version", api.version),
        Route("GET", "/pods", api.pods),
        Route("GET", "/pods/{namespace}/{name}", api.pod),
        Route("GET", "/pods/{namespace}/{name}/why", api.why),
        *acting_routes(view.acting),
        Route("GET", "/manifests", api.manifests),
        Route("GET", "/events", api.events),
        Route("GET", "/journal", api.journal),
        Route("GET", "/images", api.images),
        Route("GET", "/images/pulls", api.pulls),
        Route("POST", "/images/import", api.import_images),
        Route("GET", "/containerLogs/{namespace}/{pod}/{container}", LogHandlers(view, clock).container_logs),
        Route("GET", "/statistics", api.statistics),
    ]
    router = Router(own)
    known = {(route.method, route.pattern) for route in own}
    if node is not None:
        router.extend(route for route in node.routes if (route.method, route.pattern) not in known)
    return router


class _LocalApi:
    def __init__(self, view: AgentView) -> None:
        self._view = view

    async def version(self, _: Request) -> Response:
        return json_response(dict(self._view.version()))

    async def pods(self, request: Request) -> AnyResponse:
        if request.flag("watch"):
            return StreamResponse(self._watch_pods, content_type=JSON)
        pods = self._view.pods()
        if uids := frozenset(request.query.get("uid", ())):
            pods = [pod for pod in pods if pod.metadata.uid in uids]
        return pod_list(pods)

    async def _watch_pods(self, writer: Writer) -> None:
        last = b""
        with self._view.subscribe() as changed:
            while True:
                pods = [to_dict(pod) for pod in self._view.pods()]
                line = json.dumps({"type": "SNAPSHOT", "pods": pods}, separators=(",", ":")).encode() + b"\n"
                if line != last:
                    last = line
                    await writer.write(line)
                await changed.receive()

    async def manifests(self, request: Request) -> AnyResponse:
        if request.flag("watch"):
            return StreamResponse(self._watch_manifests, content_type=JSON)
        view = self._view
        found = view.manifests_with_problems() if request.flag("problems") else view.manifests()
        return json_response([dict(manifest) for manifest in found])

    async def _watch_manifests(self, writer: Writer) -> None:
        """A file that gets problems, or is mended, is an event of the node, which wakes this, as all that happens to
        pods does. Thousands of files take their time, so they are looked at only where one has changed."""
        last, version = b"", -1
        with self._view.subscribe() as changed:
            while True:
                if version != (version := self._view.version_of_manifests()):
                    broken = [dict(manifest) for manifest in self._view.manifests_with_problems()]
                    line = json.dumps(broken, separators=(",", ":")).encode() + b"\n"
                    if line != last:
                        last = line
                        await writer.write(line)
                await changed.receive()

    async def events(self, request: Request) -> AnyResponse:
        if request.flag("watch"):
            return StreamResponse(self._watch_events, content_type=JSON)
        uid = request.text("uid")
        found = self._view.pod_events(uid) if uid else self._view.events()
        return json_response([_event(event) for event in found])

    async def _watch_events(self, writer: Writer) -> None:
        with self._view.subscribe_events() as changes:
            known = self._view.events()
            await writer.write(b"".join(_event_line(event) for event in known))
            async for event in changes:
                if not isinstance(event, ObjectEvent):
                    await writer.write(_event_line(event))

    async def pod(self, request: Request) -> Response:
        namespace, name = request.params["namespace"], request.params["name"]
        pod = self._view.pod(namespace, name)
        if pod is None:
            raise _no_such_pod(namespace, name)
        return json_response(to_dict(pod))

    async def why(self, request: Request) -> Response:
        namespace, name = request.params["namespace"], request.params["name"]
        answer = self._view.why(namespace, name)
        if answer is None:
            raise _no_such_pod(namespace, name)
        return json_response(dict(answer))

    async def journal(self, request: Request) -> AnyResponse:
        if request.flag("watch"):
            return StreamResponse(self._watch_journal, content_type=JSON)
        if uid := request.text("uid"):
            return json_response([entry.as_json() for entry in self._view.journal.entries(uid)])
        return json_response(self._view.journal.snapshot())

    async def _watch_journal(self, writer: Writer) -> None:
        with self._view.journal.view() as viewer:
            while True:
                line = json.dumps(await viewer.receive(), separators=(",", ":"))
                await writer.write(f"{line}\n".encode())

    async def images(self, _: Request) -> Response:
        return json_response([dict(image) for image in await self._view.images()])

    async def pulls(self, _: Request) -> Response:
        return json_response([dict(pull) for pull in self._view.pulls()])

    async def import_images(self, request: Request) -> Response:
        path = request.text("path") or ""
        if not path.startswith("/") or "\0" in path:
            raise HTTPError(400, f"query parameter path: expected the absolute path of an archive, got {path!r}")
        try:
            references = await self._view.import_images(Path(path))
        except (ImportRefusedError, OSError) as error:
            raise HTTPError(400, f"cannot import {path}: {error}") from error
        return json_response(list(references))

    async def statistics(self, _: Request) -> Response:
        return json_response({"tasks": task_tree(), "agent": _plain(self._view.statistics())})


def _no_such_pod(namespace: str, name: str) -> HTTPError:
    return HTTPError(404, f'pods "{name}" not found in namespace "{namespace}"')


def _event_line(event: PodEvent | NodeEvent) -> bytes:
    return json.dumps(_event(event), separators=(",", ":")).encode() + b"\n"


def _event(event: PodEvent | NodeEvent) -> dict[str, Any]:
    """Those of the node have no pod's fields."""
    pod = {}
    if isinstance(event, PodEvent):
        pod = {
            "uid": event.uid,
            "namespace": event.namespace,
            "name": event.name,
            "fieldPath": event.field_path,
        }
    return pod | {
        "type": event.type.value,
        "reason": event.reason,
        "message": event.message,
        "firstSeen": format_micro_time(event.first_seen),
        "lastSeen": format_micro_time(event.last_seen),
        "count": event.count,
    }


def _plain(value: object) -> Any:
    """Statistics as JSON values; what JSON does not know becomes text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if abs(value) < float("inf") else str(value)
        case enum.Enum():
            return _plain(value.value)
        case datetime():
            return format_micro_time(value)
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case Set():
            return sorted(map(_plain, value), key=str)
        case list() | tuple():
            return [_plain(item) for item in value]
        case PurePath():
            return str(value)
    kind: Any = type(value)
    if attrs.has(kind):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(kind)}
    return repr(value)
