"""What requests cost: a handshake, a token that nobody has seen yet, and the pages that collectors ask for.

The agent has joined a cluster, whose API server says whose a token is and what they may do. It has a hundred pods on a
simulated runtime. A new token costs two questions to the API server, which a bare client asks beside.
"""

from __future__ import annotations

import http.client
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs
import trio

from benchmarks.agent_process import NODE_NAME
from benchmarks.cluster.api_server import node_kubeconfig
from benchmarks.cluster.arena import running_api_server
from benchmarks.server.agents import ServingAgent, serving_agent
from benchmarks.server.logs import start_pods
from benchmarks.server.sockets import cat, read_all
from trikubelet.kube_client.client import open_client
from trikubelet.kube_client.dialing import open_access
from trikubelet.node_api.auth.reviews import (
    ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    ResourceAttributes,
    Reviewer,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.detect.processes import RuntimeProcess
    from benchmarks.server.sockets import Place

PAGES: Final = ("/healthz", "/pods", "/stats/summary", "/metrics", "/metrics/resource", "/metrics/cadvisor")
UNLIMITED: Final = 10_000
"""Questions to the API server a second: their limit is not what is measured."""
SETTLE: Final = 5.0
"""Seconds in which the agent reports what it has started."""
WARM_UP: Final = 3
SHARE_OF_PAGES: Final = 4
"""Pages are asked for so many times less often than the rest."""


@attrs.frozen
class Request:
    """Of one request, in milliseconds: medians, but for the CPU, which is the mean."""

    name: str
    seconds: float
    cpu: float
    """The agent's."""
    size: int
    """Bytes of the answer."""
    floor: float | None = None


def measure_requests(
    runtime: RuntimeProcess, folder: Path, pods: int, count: int, told: Callable[[str], None]
) -> list[Request]:
    """`count` of each kind, one at a time; fewer of large pages."""
    folder.mkdir()
    tokens = count + WARM_UP
    settings = {"kubeAPIQPS": UNLIMITED, "kubeAPIBurst": UNLIMITED}
    with running_api_server(folder / "api", tokens=2 * tokens + 1) as kubeconfigs:
        node = node_kubeconfig(kubeconfigs, NODE_NAME)
        flags = [f"--kubeconfig={node}", "--max-pods=10000"]
        with serving_agent(folder / "agent", runtime.endpoint, settings, flags) as agent:
            told(f"starting {pods} pods")
            start_pods(agent, [f"pod-{number}" for number in range(pods)], runtime.image)
            told("requests")
            time.sleep(SETTLE)
            place = agent.place("TLS")
            warm = f"token-{2 * tokens}"
            return [
                _new_tokens(agent, place, range(tokens), trio.run(_floor, node, range(tokens, 2 * tokens))),
                *(
                    _page(agent, place, page, warm, count if page == "/healthz" else max(5, count // SHARE_OF_PAGES))
                    for page in PAGES
                ),
                _handshake(agent, place, warm, count, folder),
            ]


@attrs.define
class _Timed:
    """Times one request after the other; the first few do not count."""

    agent: ServingAgent
    seconds: list[float] = attrs.field(factory=list)
    size: int = 0
    _cpu: float = 0.0
    _cpu_after: float = 0.0

    def time(self, ask: Callable[[], int]) -> None:
        if len(self.seconds) == WARM_UP:
            self._cpu = self.agent.cpu()
        began = time.monotonic()
        self.size = ask()
        self.seconds.append(time.monotonic() - began)
        self._cpu_after = self.agent.cpu()

    def request(self, name: str, floor: float | None = None) -> Request:
        counted = self.seconds[WARM_UP:]
        cpu = 1000 * (self._cpu_after - self._cpu) / len(counted)
        return Request(name, 1000 * median(counted), cpu, self.size, floor)


def _handshake(agent: ServingAgent, place: Place, token: str, count: int, folder: Path) -> Request:
    timed = _Timed(agent)
    for _ in range(WARM_UP + count):
        timed.time(lambda: _once(place, token))
    small = folder / "small"
    small.write_bytes(b"ok")
    bare = []
    with cat("TLS", small, folder) as floor:
        for _ in range(WARM_UP + count):
            began = time.monotonic()
            read_all(floor, "/")
            bare.append(time.monotonic() - began)
    return timed.request("TLS handshake and /healthz", 1000 * median(bare[WARM_UP:]))


def _once(place: Place, token: str) -> int:
    client = _client(place)
    try:
        return _ask(client, "/healthz", token)
    finally:
        client.close()


def _new_tokens(agent: ServingAgent, place: Place, tokens: Sequence[int], floor: float) -> Request:
    timed, client = _Timed(agent), _client(place)
    for number in tokens:
        timed.time(lambda number=number: _ask(client, "/healthz", f"token-{number}"))  # type: ignore[misc]
    client.close()
    return timed.request("/healthz with a new token", floor)


def _page(agent: ServingAgent, place: Place, page: str, token: str, count: int) -> Request:
    timed, client = _Timed(agent), _client(place)
    for _ in range(WARM_UP + count):
        timed.time(lambda: _ask(client, page, token))
    client.close()
    return timed.request(page)


def _client(place: Place) -> http.client.HTTPConnection:
    client = http.client.HTTPConnection("node")
    client.sock = place.connect()
    return client


def _ask(client: http.client.HTTPConnection, page: str, token: str) -> int:
    client.request("GET", page, headers={"Authorization": f"Bearer {token}"})
    answer = client.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{page}: {answer.status} {body[:200]!r}")
    return len(body)


async def _floor(kubeconfig: Path, tokens: Sequence[int]) -> float:
    """Milliseconds of both questions about somebody new, by a client that does nothing else."""
    seconds = []
    async with open_client(open_access(kubeconfig, environment={})) as client:
        reviewer, codes = Reviewer(client, limit=None), Counter[str]()
        for number in tokens:
            began = time.monotonic()
            review = await reviewer.ask(TOKEN_REVIEWS, TokenReview(spec=TokenReviewSpec(f"token-{number}")), codes)
            what = ResourceAttributes("get", "v1", "nodes", "healthz", "benchmark")
            user = review.status.user
            spec = SubjectAccessReviewSpec(what, user.username, user.groups)
            await reviewer.ask(ACCESS_REVIEWS, SubjectAccessReview(spec=spec), codes)
            seconds.append(time.monotonic() - began)
    return 1000 * median(seconds[WARM_UP:])
