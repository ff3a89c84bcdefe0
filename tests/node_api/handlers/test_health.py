from __future__ import annotations

import pytest

from tests.node_api.handlers.stage import FakeNode, ask
from trikubelet.http.routing import ANY_METHOD, Route, Router
from trikubelet.node_api.handlers.health import HealthHandlers, liveness

STUCK = {"ping": None, "pleg": None, "syncloop": "sync Loop took longer than expected"}
OTHERS = "[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\n"
PASSED = "healthz check passed\n"
WELL = {"ping": None, "pleg": "not our affair", "syncloop": None}


def router(problems: dict[str, str | None], observed: list[tuple[str, bool]] | None = None) -> Router:
    seen = [] if observed is None else observed
    handlers = HealthHandlers(FakeNode(problems=problems).health, observe=lambda name, well: seen.append((name, well)))
    return Router([Route(ANY_METHOD, "/healthz", handlers.root), Route(ANY_METHOD, "/healthz/{check}", handlers.check)])


@pytest.mark.parametrize(
    ("problems", "query", "status", "body"),
    [
        (WELL, "", 200, "ok"),
        (WELL, "?verbose", 200, f"[+]ping ok\n{OTHERS}{PASSED}"),
        (
            WELL,
            "?verbose=false",
            200,
            "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n",
        ),
        (WELL, "?exclude=ping", 200, "ok"),
        (
            WELL,
            "?verbose&exclude=ping",
            200,
            "[+]ping excluded: ok\n[+]log ok\n[+]syncloop ok\n[+]device-plugin ok\nhealthz check passed\n",
        ),
        (
            WELL,
            "?verbose&exclude=y&exclude=x",
            200,
            f'[+]ping ok\n{OTHERS}warn: some health checks cannot be excluded: no matches for "x","y"\n{PASSED}',
        ),
        (
            STUCK,
            "",
            500,
            "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\n[+]device-plugin ok\nhealthz check failed\n",
        ),
        (STUCK, "?exclude=syncloop", 200, "ok"),
    ],
)
async def test_health_is_ok_or_a_line_for_each_check(
    problems: dict[str, str | None], query: str, status: int, body: str
) -> None:
    answer = await ask(router(problems), f"/healthz{query}")
    assert (answer.status, answer.text) == (status, body)


@pytest.mark.parametrize(
    ("check", "status", "body"),
    [
        ("ping", 200, "ok"),
        ("log", 200, "ok"),
        ("syncloop", 500, "internal server error: sync Loop took longer than expected\n"),
        ("device-plugin", 200, "ok"),
    ],
)
async def test_one_check_tells_its_reason(check: str, status: int, body: str) -> None:
    answer = await ask(router(STUCK), f"/healthz/{check}")
    assert (answer.status, answer.text) == (status, body)


async def test_what_is_found_is_told_to_who_counts_it() -> None:
    observed: list[tuple[str, bool]] = []
    api = router(STUCK, observed)
    await ask(api, "/healthz?exclude=log")
    await ask(api, "/healthz/ping")
    assert observed == [("ping", True), ("syncloop", False), ("device-plugin", True)]


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/healthz", 200, "ok"),
        ("/healthz?verbose", 200, "[+]ping ok\nhealthz check passed\n"),
        ("/healthz/ping", 200, "ok"),
        ("/healthz/syncloop", 404, "there is no health check 'syncloop', only ping\n"),
        ("/pods", 404, "there is nothing at /pods\n"),
    ],
)
async def test_the_server_for_kubeadm_knows_that_it_is_alive_and_nothing_else(
    path: str, status: int, body: str
) -> None:
    answer = await ask(liveness(), path)
    assert (answer.status, answer.text) == (status, body)
