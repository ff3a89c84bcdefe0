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

    async def apply(self, raw: bytes, file: str, *, dry_run: bool, must_be_new: bool) -> Mapping[str, Any]:
        """Check a manifest and put it into the command line's folder, as `file` where it is new.

        Refused when a person's file holds one of its pods, and with `must_be_new` when any file does. Gives JSON
        values: `file` (its path), `pods` (namespace/name each), `before` (what the file held, null when it is new),
        `warnings`.
        """
        ...

    async def delete(self, namespace: str, name: str, *, remove_file: bool, with_others: bool) -> Mapping[str, Any]:
        """Remove the manifest of a static pod, which ends then.

        Refused for a person's file without `remove_file`, and for a file with more pods without `with_others`. Gives
        JSON values: `file` (its path, null when it is gone already), `moved` (new paths of a person's files, by their
        old ones), `others` (the file's other pods), and the pod's `uid`.
        """
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
        flags = {"dry_run": request.flag("dryRun"), "must_be_new": request.flag("mustBeNew")}
        try:
            return json_response(dict(await self._actions.apply(request.body, request.params["file"], **flags)))
        except ActingRefusedError as error:
            return json_response({"problems": str(error).splitlines()})

    async def delete(self, request: Request) -> Response:
        namespace, name = request.params["namespace"], request.params["name"]
        flags = {"remove_file": request.flag("removeFile"), "with_others": request.flag("withOthers")}
        try:
            return json_response(dict(await self._actions.delete(namespace, name, **flags)))
        except ActingRefusedError as error:
            raise HTTPError(409, str(error)) from error

    async def restart(self, request: Request) -> Response:
        place = request.params["namespace"], request.params["name"]
        try:
            return json_response([*await self._actions.restart(*place, request.text("container"))])
        except ActingRefusedError as error:
            raise HTTPError(409, str(error)) from error
