from __future__ import annotations

import gzip

import attrs
import pytest
import trio

from tests.node_api.handlers.stage import ask
from trikubelet.node_api.handlers.exposition import LIMIT_SECONDS, metrics_page, summary_page, text_page

LARGE = b"metric 1\n" * 1000


async def large() -> bytes:
    await trio.lowlevel.checkpoint()
    return LARGE


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0", False),
        ("identity", False),
        ("x-gzip2", False),
        ("", False),
    ],
)
async def test_a_large_page_is_packed_for_who_takes_it(accepted: str, packed: bool) -> None:
    answer = await ask(text_page(large), "/metrics", headers={"accept-encoding": accepted})
    assert (answer.status, answer.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.headers == ({"Content-Encoding": "gzip"} if packed else {})
    assert (gzip.decompress(answer.body) if packed else answer.body) == LARGE


async def test_a_small_page_is_not_packed() -> None:
    async def small() -> bytes:
        await trio.lowlevel.checkpoint()
        return b"x 1\n"

    answer = await ask(text_page(small), "/metrics", headers={"accept-encoding": "gzip"})
    assert (answer.headers, answer.body) == ({}, b"x 1\n")


async def test_what_could_not_be_measured_is_said() -> None:
    async def broken(*_: object) -> bytes:
        await trio.lowlevel.checkpoint()
        raise OSError("no cgroups here")

    async def broken_page(_: str, __: str) -> Page:
        await broken()
        raise AssertionError

    for handler in (text_page(broken), summary_page(broken), metrics_page(broken_page)):
        answer = await ask(handler, "/stats/summary")
        assert (answer.status, answer.text) == (500, "Internal Error: no cgroups here\n")


async def test_a_page_that_takes_for_ever_ends(autojump_clock: trio.abc.Clock) -> None:
    async def hanging() -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    answer = await ask(text_page(hanging), "/metrics")
    assert trio.current_time() == LIMIT_SECONDS
    assert (answer.status, answer.text) == (500, "Internal Error: not done within 30 seconds\n")


@pytest.mark.parametrize(
    ("query", "narrow"),
    [
        ("", False),
        ("?only_cpu_and_memory=true", True),
        ("?only_cpu_and_memory=1", False),
        ("?only_cpu_and_memory=true&only_cpu_and_memory=true", False),
    ],
)
async def test_a_summary_may_be_of_processors_and_memory_only(query: str, narrow: bool) -> None:
    asked: list[bool] = []

    async def summary(only: bool) -> bytes:
        await trio.lowlevel.checkpoint()
        asked.append(only)
        return b"{}"

    answer = await ask(summary_page(summary), f"/stats/summary{query}")
    assert (answer.content_type, answer.body, asked) == ("application/json", b"{}", [narrow])


@attrs.frozen
class Page:
    body: bytes
    content_type: str
    content_encoding: str


async def test_a_page_of_metrics_is_as_its_maker_likes_it() -> None:
    async def expose(accept: str, encoding: str) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(b"x", f"for {accept}", encoding)

    resets: list[int] = []
    handler = metrics_page(expose, lambda: resets.append(1))
    answer = await ask(handler, "/metrics/slis", headers={"accept": "a", "accept-encoding": "gzip"})
    assert (answer.content_type, answer.headers) == ("for a", {"Content-Encoding": "gzip"})
    assert (await ask(handler, "/metrics/slis")).headers == {}
    assert (await ask(handler, "/metrics/slis", "DELETE")).text == "metrics reset\n"
    assert resets == [1]
