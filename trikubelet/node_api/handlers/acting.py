"""What a person may do to pods by the agent's own API: apply and remove manifests, restart containers.

Only the unix socket has these routes: who may open it may do everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.http.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class ActingRefusedError(Exception):
    """It was not done. The text tells the person why, and what to do; the problems of a manifest, one a line."""


class PodActions(Protocol):
    """What the agent does. Each raises ActingRefusedError."""

    async def apply(self, raw: bytes, file: str, *, dry_run: bool) -> Mapping[str, Any]:
        """Check a manifest and put it into the folder of manifests, as `file` where it is new.

        Gives JSON values: `file` (its path), `pods` (namespace/name each), `before` (what the file held, null when it
        is new), `warnings`.
        """
        ...

    async def delete(self, namespace: str, name: str) -> Mapping[str, str]:
        """Remove the manifest of a static pod: its `file` and the pod's `uid`. The pod ends then."""
        ...

    async def restart(self, namespace: str, name: str, container: str | None) -> Sequence[str]:
        """End a container, or all, gracefully; they start again. The names of those that were ended."""
        ...


def acting_routes(actions: PodActions) -> Iterator[Route]:
    """The routes of `local_api` that change something."""
    handlers = _Handlers(actions)
    yield Route("PUT", "/manifests/{file}", handlers.apply)
    yield Route("DELETE", "/pods/{namespace}/{name}", handlers.delete)
    yield Route("POST", "/pods/{namespace}/{name}/restart", handlers.restart)


class _Handlers:
    def __init__(self, actions: PodActions) -> None:
        self._actions = actions

    async def apply(self, request: Request) -> Response:
        """The problems of a manifest are an answer, since an error has one line."""
        file, dry_run = request.params["file"], request.flag("dryRun")
        try:
            return json_response(dict(await self._actions.apply(request.body, file, dry_run=dry_run)))
        except ActingRefusedError as error:
            return json_response({"problems": str(error).splitlines()})

    async def delete(self, request: Request) -> Response:
        try:
            return json_response(dict(await self._actions.delete(request.params["namespace"], request.params["name"])))
        except ActingRefusedError as error:
            raise HTTPError(409, str(error)) from error

    async def restart(self, request: Request) -> Response:
        place = request.params["namespace"], request.params["name"]
        try:
            return json_response([*await self._actions.restart(*place, request.text("container"))])
        except ActingRefusedError as error:
            raise HTTPError(409, str(error)) from error
