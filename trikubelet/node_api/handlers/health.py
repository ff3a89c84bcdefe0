"""`/healthz`: is the agent well?

The routes and texts are those of `k8s.io/apiserver/pkg/server/healthz`. Why a check fails is told only in the
log and to a request for that check alone, since the read-only port shows `/healthz` to everybody; only the agent's own
socket tells it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from trikubelet.http.messages import HTTPError, Request, Response
from trikubelet.http.routing import ANY_METHOD, Router
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


log = get_logger("http")

PING: Final = "ping"
NODE_CHECKS: Final = (PING, "log", "syncloop", "device-plugin")
"""Those that the kubelet has; the agent has more, which are its own affair (a runtime that is away is no reason to
restart it). `log` fails in the kubelet when its log is blocked: what blocks ours would keep us from answering too."""

Observe = Callable[[str, bool], None]
"""Told of each check of a root request: its name, and whether all was well (`/metrics/slis`)."""


class HealthHandlers:
    """`problems` gives the problem of each check, None where all is well.

    `checks`: which ones, in what order; None: all that the agent has.
    """

    def __init__(
        self,
        problems: Callable[[], Mapping[str, str | None]],
        *,
        checks: Collection[str] | None = NODE_CHECKS,
        show_reasons: bool = False,
        observe: Observe = lambda _name, _well: None,
    ) -> None:
        self._all_problems = problems
        self._checks = checks
        self._show_reasons = show_reasons
        self._observe = observe

    async def root(self, request: Request) -> Response:
        """All checks: `ok`, or 500 with a line for each. `?verbose` lists them always, `?exclude=NAME` leaves out."""
        excluded = set(request.query.get("exclude", ()))
        lines, failed = [], {}
        for name, problem in self._problems().items():
            if name in excluded:
                excluded.discard(name)
                lines.append(f"[+]{name} excluded: ok")
                continue
            self._observe(name, not problem)
            if problem:
                failed[name] = problem
                lines.append(f"[-]{name} failed: {problem if self._show_reasons else 'reason withheld'}")
            else:
                lines.append(f"[+]{name} ok")
        if excluded:
            names = ",".join(f'"{name}"' for name in sorted(excluded))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if failed:
            log.info("not healthy", problems=failed)
        elif "verbose" not in request.query:
            return Response(b"ok")
        lines.append(f"healthz check {'failed' if failed else 'passed'}")
        return Response("".join(f"{line}\n" for line in lines).encode(), 500 if failed else 200)

    async def check(self, request: Request) -> Response:
        """`/healthz/{check}`: `ok`, or 500 with the reason."""
        problems = self._problems()
        name = request.params["check"]
        if name not in problems:
            raise HTTPError(404, f"there is no health check {name!r}, only {', '.join(sorted(problems))}")
        if problem := problems[name]:
            return Response(f"internal server error: {problem}\n".encode(), 500)
        return Response(b"ok")

    def _problems(self) -> Mapping[str, str | None]:
        problems = self._all_problems()
        return problems if self._checks is None else {name: problems.get(name) for name in self._checks}


def liveness() -> Router:
    """The server on `healthzBindAddress` and `healthzPort`, which kubeadm and systemd ask: without authentication."""
    handlers = HealthHandlers(lambda: {PING: None}, checks=(PING,))
    router = Router()
    router.add(ANY_METHOD, "/healthz", handlers.root)
    router.add(ANY_METHOD, "/healthz/{check}", handlers.check)
    return router
