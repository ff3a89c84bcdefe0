"""`/checkpoint`: a container's memory and files as they are now, in an archive on the node (KEP-2008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trikubelet.api.timestamps import format_time
from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.node_api.handlers.pods import container_names, find_pod
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.node_api.view import NodeApiView

FOLDER: Final = "checkpoints"
"""In the root folder. It holds the container's memory, so only root may read it."""


class CheckpointHandlers:
    """`clock` names the archives."""

    def __init__(self, view: NodeApiView, root_dir: Path, clock: WallClock) -> None:
        self._view = view
        self._folder = root_dir / FOLDER
        self._clock = clock

    async def checkpoint(self, request: Request) -> Response:
        """POST `/checkpoint/{namespace}/{pod}/{container}?timeout=SECONDS`: where the archive is."""
        pod = find_pod(self._view, request.params)
        container = request.params["container"]
        if container not in container_names(pod):
            raise HTTPError(404, f"container {container} does not exist")
        timeout = _timeout(request)
        stamp = format_time(self._clock.now())
        location = self._folder / f"checkpoint-{pod.full_name}-{container}-{stamp}.tar"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            await self._write(pod, container, location, timeout)
        except (CRIError, OSError, LookupError) as error:
            where = f"{pod.metadata.namespace}/{pod.metadata.name}/{container}"
            raise HTTPError(500, f"checkpointing of {where} failed ({error})") from error
        return json_response({"items": [str(location)]})

    async def _write(self, pod: Pod, container: str, location: Path, timeout: int) -> None:
        """Raises CRIError, LookupError."""
        found = await self._view.running_container(pod, pod.metadata.uid, container)
        if found is None:
            raise LookupError(f"container {container} not found")
        await self._view.checkpoint(found, location, timeout)


def _timeout(request: Request) -> int:
    """Seconds; of several the last one, as in the kubelet, which also says 404 for what is no number."""
    texts = request.query.get("timeout", ())
    if not texts:
        return 0
    text = texts[-1]
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise HTTPError(404, "cannot parse value of timeout parameter")
    return max(0, int(text))
