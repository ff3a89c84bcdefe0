"""`/debug/`: what the agent is doing, and how much it says about it.

The kubelet shows Go's profiles here. Ours have the same places where there is something of the same meaning: the tasks
stand for goroutines, and the profile of the processor is a text of stacks for flame graphs. There is no trace, and no
profile of memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from trikubelet.http.messages import HTTPError, Request, Response, json_response
from trikubelet.node_api.handlers.secrets import masked_arguments
from trikubelet.node_api.stack_samples import SamplesInUseError, sample_stacks
from trikubelet.node_api.task_tree import pod_tree, task_tree, tree_text
from trikubelet.telemetry.logs import get_logger, set_verbosity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = get_logger("http")

USUAL_SECONDS: Final = 30
MOST_SECONDS: Final = 300
_INDEX: Final = b"""/debug/pprof/cmdline    the command line
/debug/pprof/goroutine  the running tasks, and what each waits for
/debug/pprof/profile    where the time goes, as stacks for a flame graph; ?seconds=30
"""


class DebugHandlers:
    def __init__(
        self, *, arguments: Sequence[str] | None = None, set_level: Callable[[int], None] = set_verbosity
    ) -> None:
        self._arguments = tuple(sys.argv if arguments is None else arguments)
        self._set_level = set_level

    async def tasks(self, request: Request) -> Response:
        """GET `/debug/tasks`: the tree of nurseries as text, or as JSON with `?format=json` or `Accept`; of one
        pod's life with `?pod=UID`."""
        uid = request.text("pod")
        tree = pod_tree(uid) if uid else task_tree()
        if tree is None:
            raise HTTPError(404, f"no task runs for a pod of UID {uid}: its life is over, or it has not begun")
        if request.text("format") == "json" or "application/json" in request.headers.get("accept", ""):
            return json_response(tree)
        return Response(tree_text(tree).encode())

    async def profile(self, request: Request) -> Response:
        """GET `/debug/pprof/{name:*}`."""
        match request.params["name"]:
            case "":
                return Response(_INDEX)
            case "cmdline":
                return Response("\0".join(masked_arguments(self._arguments)).encode(errors="surrogateescape"))
            case "goroutine":
                return Response(tree_text(task_tree()).encode())
            case "profile":
                return await self._samples(request)
            case _:
                raise HTTPError(404, "Unknown profile")

    async def _samples(self, request: Request) -> Response:
        seconds = request.number("seconds") or 0
        if seconds <= 0:
            seconds = USUAL_SECONDS
        if seconds > MOST_SECONDS:
            raise HTTPError(400, f"query parameter seconds: expected at most {MOST_SECONDS}, got {seconds}")
        try:
            return Response((await sample_stacks(seconds)).encode())
        except SamplesInUseError:
            raise HTTPError(500, "Could not enable CPU profiling: cpu profiling already in use") from None

    async def verbosity(self, request: Request) -> Response:
        """PUT `/debug/flags/v`, the level as body, until the agent is started anew; 406 for any other method."""
        if request.method != "PUT":
            raise HTTPError(406, "unsupported http method")
        text = request.body.decode(errors="replace").strip()
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise HTTPError(400, f"expected a level of 0 or more as body, got {text[:40]!r}")
        self._set_level(int(text))
        log.info("the log's verbosity was changed", verbosity=int(text))
        return Response(f"successfully set klog.logging.verbosity to {text}\n".encode())
