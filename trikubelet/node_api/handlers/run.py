"""`/run`: a command in a container, without streams and without an end in sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.http.messages import JSON, HTTPError, Request, Response
from trikubelet.node_api.handlers.pods import find_pod
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from trikubelet.node_api.view import NodeApiView


class RunHandlers:
    def __init__(self, view: NodeApiView) -> None:
        self._view = view

    async def run(self, request: Request) -> Response:
        """POST `/run/{namespace}/{pod}[/{uid}]/{container}?cmd=a+b`: what it wrote, stdout first.

        The command is split at spaces, and nothing else is a quote or a shell. It has no deadline, as in the kubelet;
        it ends with the client (the call to the runtime is cancelled). As old as Kubernetes are the type of the answer,
        which is hardly ever JSON, and the 500 for a command that fails.
        """
        pod = find_pod(self._view, request.params)
        container = request.params["container"]
        command = (request.text("cmd") or "").split(" ")
        try:
            found = await self._view.running_container(pod, request.params.get("uid", ""), container)
            if found is None:
                raise HTTPError(500, f'container not found ("{container}")')
            ran = await self._view.run_command(found, command)
        except CRIError as error:
            raise HTTPError(500, str(error)) from error
        if ran.exit_code:
            text = f"command '{' '.join(command)}' exited with {ran.exit_code}: ".encode() + ran.stderr
            return Response(text, 500)
        return Response(ran.stdout + ran.stderr, content_type=JSON)
