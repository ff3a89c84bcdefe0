"""`/containerLogs`: what a container has written, and what it goes on writing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trikubelet.http.messages import HTTPError, Request, StreamResponse, Writer
from trikubelet.node_api.handlers.pods import container_names, find_pod
from trikubelet.node_api.log_location import LogNotAvailableError
from trikubelet.node_api.log_query import LogQuery, read_log_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.clock import WallClock
    from trikubelet.node_api.view import SharedView


class LogHandlers:
    """`clock` turns `sinceSeconds` into a time. `splits`: whether one stream of the two may be asked for."""

    def __init__(self, view: SharedView, clock: WallClock, *, splits: bool = True) -> None:
        self._splits = splits
        self._view = view
        self._clock = clock

    async def container_logs(self, request: Request) -> StreamResponse:
        """GET `/containerLogs/{namespace}/{pod}/{container}` with the query of log_query.py."""
        query = read_log_query(request, self._clock)
        if query.options.stream is not None and not self._splits:
            raise HTTPError(
                400,
                f"unable to return the given log stream: {json.dumps(request.text('stream'))}. "
                "Please enable PodLogsQuerySplitStreams feature gate in kubelet",
            )
        self._check_container(request.params)

        async def produce(writer: Writer) -> None:
            try:
                await self._copy(request.params, query, writer)
            except LogNotAvailableError as error:
                raise HTTPError(404 if error.not_found else 400, str(error)) from error

        return StreamResponse(produce)

    async def _copy(self, params: Mapping[str, str], query: LogQuery, writer: Writer) -> None:
        target = await self._view.log_files(params["namespace"], params["pod"], params["container"], query.previous)
        from trikubelet.node_api.container_logs import copy_log  # with all that reads logs, when the first is asked for

        await copy_log(target, query.options, writer.write, self._view)

    def _check_container(self, params: Mapping[str, str]) -> None:
        """Raises HTTPError 404, in the kubelet's words, for what is not there."""
        name, container = params["pod"], params["container"]
        pod = find_pod(self._view, params, f'pod "{name}" does not exist')
        if container not in container_names(pod):
            raise HTTPError(404, f'container "{container}" not found in pod "{name}"')
