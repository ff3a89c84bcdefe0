"""`/checkpoint`: a container's memory and files as they are now, in an archive on the node (KEP-2008)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.node_api.handlers.pods import container_names, find_pod
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.node_api.view import NodeApiView

FOLDER: Final = "checkpoints"
"""In the root folder. It holds the container's memory, so only root may read it."""
_NUMBER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")


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
        location = self._folder / f"checkpoint-{pod.full_name}-{container}-{_stamp(self._clock.now())}.tar"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            await self._write(pod, container, location, timeout)
        except (CRIError, OSError, LookupError, ValueError) as error:
            where = f"{pod.metadata.namespace}/{pod.metadata.name}/{container}"
            raise HTTPError(500, f"checkpointing of {where} failed ({error})") from error
        return json_response({"items": [str(location)]})

    async def _write(self, pod: Pod, container: str, location: Path, timeout: int) -> None:
        """Raises CRIError, LookupError, ValueError."""
        found = await self._view.running_container(pod, pod.metadata.uid, container)
        if found is None:
            raise LookupError(f"container {container} not found")
        if timeout < 0:
            raise ValueError("CheckpointContainer requires the timeout value to be > 0")
        await self._view.checkpoint(found, location, timeout)


def _stamp(time: datetime) -> str:
    """RFC 3339 in the machine's time zone, as in the kubelet's names."""
    return time.astimezone().isoformat(timespec="seconds").replace("+00:00", "Z")


def _timeout(request: Request) -> int:
    """Seconds; of several the last one, as in the kubelet, which also says 404 for what is no number of 64 bits."""
    texts = request.query.get("timeout", ())
    if not texts:
        return 0
    found = _NUMBER.fullmatch(texts[-1])
    seconds = 2**63 if found is None else int("".join(found.groups()))
    if not -(2**63) <= seconds < 2**63:
        raise HTTPError(404, "cannot parse value of timeout parameter")
    return seconds
