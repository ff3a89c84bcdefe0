"""What the command line asks the agent, over the unix socket in the root folder.

    GET  /healthz, /healthz/CHECK          `ok`, or 500 and what is wrong; ?verbose lists every check
    GET  /version                          names and versions of the agent and the runtime, by name
    GET  /pods                             a v1 PodList with statuses
    GET  /pods?watch=1                     one JSON line now and after every change: {"type": "SNAPSHOT", "pods": […]}
    GET  /events?uid=UID                   a list of what happened to a pod, oldest first
    GET  /images                           a list of the runtime's images
    POST /images/import?path=PATH          import an archive of this machine; a list of the references it brought
    GET  /containerLogs/NS/POD/CONTAINER   ?follow &tailLines= &sinceSeconds= &sinceTime= &timestamps &previous
                                           &limitBytes= &stream=All|Stdout|Stderr
    GET  /statistics                       the tasks of the agent, and what its parts count

Errors are one line of text. Handlers only read, through `AgentView`; logs are asked for as of the kubelet.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from trikubelet.api import Pod, PodList, to_dict
from trikubelet.api.timestamps import format_micro_time
from trikubelet.server.container_logs import copy_log
from trikubelet.server.log_location import LogNotAvailableError, LogTarget
from trikubelet.server.log_query import LogQuery, read_log_query
from trikubelet.server.messages import (
    JSON,
    AnyResponse,
    HTTPError,
    Request,
    Response,
    StreamResponse,
    Writer,
    json_response,
)
from trikubelet.server.routing import Router
from trikubelet.server.task_tree import task_tree

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trikubelet.clock import WallClock
    from trikubelet.events import PodEvent
    from trikubelet.server.changes import Wakeup


class ImportRefusedError(Exception):
    """The runtime takes no images from here, or not this archive. The text tells the user why, and what to do."""


class AgentView(Protocol):
    """The agent as this API sees it. What is not `async` must not block; what is may be cancelled at any time."""

    def health(self) -> Mapping[str, str | None]:
        """Each check of the agent's health with its problem, None where all is well."""
        ...

    def version(self) -> Mapping[str, str]:
        """`agent`, and once it is connected `runtime_name`, `runtime_version` and `runtime_api_version`."""
        ...

    def pods(self) -> Sequence[Pod]:
        """Every pod the agent knows, with its reported status, in a stable order."""
        ...

    def pod_events(self, uid: str) -> Sequence[PodEvent]:
        """The events kept for a pod, the one seen longest ago first; none for an unknown pod."""
        ...

    def subscribe(self) -> AbstractContextManager[Wakeup]:
        """Wakes when `pods()` or `container_running()` may have another answer (`Changes.subscribe`)."""
        ...

    def container_running(self, container_id: str) -> bool:
        """Whether the container of this CRI id runs. While the runtime cannot be asked: as last seen."""
        ...

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        """Where a container's log is. Raises LogNotAvailableError.

        The pod is one of `pods()`, the container is in its spec. `log_location.container_for_logs` finds the
        container's id in the pod's status, with the kubelet's words when there is none; its CRI status has the path.
        """
        ...

    async def images(self) -> Sequence[Mapping[str, Any]]:
        """The runtime's images: `id`, `repo_tags`, `repo_digests`, `size` (bytes), `pinned`."""
        ...

    async def import_images(self, path: Path) -> Sequence[str]:
        """Import an archive; returns the references it brought. Raises ImportRefusedError or OSError."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """What the agent's parts count, by part: attrs objects, mappings, lists, texts and numbers."""
        ...


def local_api(view: AgentView, clock: WallClock) -> Router:
    """The routes. `clock` turns `sinceSeconds` into a time."""
    api = _LocalApi(view, clock)
    router = Router()
    router.add("GET", "/healthz", api.health)
    router.add("GET", "/healthz/{check}", api.health)
    router.add("GET", "/version", api.version)
    router.add("GET", "/pods", api.pods)
    router.add("GET", "/events", api.events)
    router.add("GET", "/images", api.images)
    router.add("POST", "/images/import", api.import_images)
    router.add("GET", "/containerLogs/{namespace}/{pod}/{container}", api.container_logs)
    router.add("GET", "/statistics", api.statistics)
    return router


class _LocalApi:
    def __init__(self, view: AgentView, clock: WallClock) -> None:
        self._view = view
        self._clock = clock

    async def health(self, request: Request) -> Response:
        checks = dict(self._view.health())
        asked = request.params.get("check")
        if asked is not None:
            if asked not in checks:
                raise HTTPError(404, f"there is no health check {asked!r}, only {', '.join(sorted(checks))}")
            checks = {asked: checks[asked]}
        healthy = not any(checks.values())
        if healthy and not request.flag("verbose"):
            return Response(b"ok\n")
        lines = [f"[+]{name} ok" if not problem else f"[-]{name} failed: {problem}" for name, problem in checks.items()]
        lines.append(f"healthz check {'passed' if healthy else 'failed'}")
        return Response("".join(f"{line}\n" for line in lines).encode(), 200 if healthy else 500)

    async def version(self, _: Request) -> Response:
        return json_response(dict(self._view.version()))

    async def pods(self, request: Request) -> AnyResponse:
        if request.flag("watch"):
            return StreamResponse(self._watch_pods, content_type=JSON)
        return json_response(to_dict(PodList(items=tuple(self._view.pods()))))

    async def _watch_pods(self, writer: Writer) -> None:
        last = b""
        with self._view.subscribe() as changed:
            while True:
                pods = [to_dict(pod) for pod in self._view.pods()]
                line = json.dumps({"type": "SNAPSHOT", "pods": pods}, separators=(",", ":")).encode() + b"\n"
                if line != last:
                    last = line
                    await writer.write(line)
                await changed.wait()

    async def events(self, request: Request) -> Response:
        uid = request.text("uid")
        if not uid:
            raise HTTPError(400, "query parameter uid: expected the UID of a pod")
        return json_response([_event(event) for event in self._view.pod_events(uid)])

    async def images(self, _: Request) -> Response:
        return json_response([dict(image) for image in await self._view.images()])

    async def import_images(self, request: Request) -> Response:
        path = request.text("path") or ""
        if not path.startswith("/") or "\0" in path:
            raise HTTPError(400, f"query parameter path: expected the absolute path of an archive, got {path!r}")
        try:
            references = await self._view.import_images(Path(path))
        except (ImportRefusedError, OSError) as error:
            raise HTTPError(400, f"cannot import {path}: {error}") from error
        return json_response(list(references))

    async def container_logs(self, request: Request) -> StreamResponse:
        query = read_log_query(request, self._clock)
        self._check_container(request.params)

        async def produce(writer: Writer) -> None:
            try:
                await self._copy_log(request.params, query, writer)
            except LogNotAvailableError as error:
                raise HTTPError(404 if error.not_found else 400, str(error)) from error

        return StreamResponse(produce)

    async def _copy_log(self, params: Mapping[str, str], query: LogQuery, writer: Writer) -> None:
        target = await self._view.log_files(params["namespace"], params["pod"], params["container"], query.previous)
        await copy_log(target, query.options, writer.write, self._view)

    def _check_container(self, params: Mapping[str, str]) -> None:
        """Raises HTTPError 404, in the kubelet's words, for what is not there."""
        namespace, name, container = params["namespace"], params["pod"], params["container"]
        for pod in self._view.pods():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                spec = pod.spec
                names = {c.name for c in (*spec.containers, *spec.init_containers, *spec.ephemeral_containers)}
                if container not in names:
                    raise HTTPError(404, f'container "{container}" not found in pod "{name}"')
                return
        raise HTTPError(404, f'pod "{name}" does not exist')

    async def statistics(self, _: Request) -> Response:
        return json_response({"tasks": task_tree(), "agent": _plain(self._view.statistics())})


def _event(event: PodEvent) -> dict[str, Any]:
    return {
        "uid": event.uid,
        "namespace": event.namespace,
        "name": event.name,
        "type": event.type.value,
        "reason": event.reason,
        "message": event.message,
        "fieldPath": event.field_path,
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
