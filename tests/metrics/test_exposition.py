"""How a scrape is answered: formats, compression, and collectors that fail."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.metrics.lives import read
from trikubelet.http.content_coding import takes_gzip
from trikubelet.metrics.exposition import AgentMetrics, prefers_openmetrics
from trikubelet.telemetry.families import counter, gauge, histogram
from trikubelet.telemetry.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trio.testing import MockClock

    from trikubelet.telemetry.families import AnyFamily

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def some() -> Iterator[AnyFamily]:
    yield counter("b_total", "Bs.", {("x",): 1}, ("label",))
    yield counter("a_count_of_old", "Named freely.", 2)
    yield gauge("c", "A gauge.", 0.5)
    yield gauge("none", "Nothing.", {}, ("label",))
    durations = Histogram((1, 2.5))
    durations.observe(2)
    yield histogram("d_seconds", "Durations.", durations)


def broken() -> Iterable[AnyFamily]:
    raise RuntimeError("a part is not what was expected")


def metrics() -> AgentMetrics:
    return AgentMetrics(metrics=[some], probes=[], slis=[])


async def test_text_is_as_go_writes_it() -> None:
    answer = await metrics().expose("metrics")
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.content_encoding == ""
    assert answer.body.decode().splitlines()[:-3] == [
        "# HELP a_count_of_old Named freely.",
        "# TYPE a_count_of_old counter",
        "a_count_of_old 2",
        "# HELP b_total Bs.",
        "# TYPE b_total counter",
        'b_total{label="x"} 1',
        "# HELP c A gauge.",
        "# TYPE c gauge",
        "c 0.5",
        "# HELP d_seconds Durations.",
        "# TYPE d_seconds histogram",
        'd_seconds_bucket{le="1"} 0',
        'd_seconds_bucket{le="2.5"} 1',
        'd_seconds_bucket{le="+Inf"} 1',
        "d_seconds_count 1",
        "d_seconds_sum 2",
    ]


async def test_openmetrics_keeps_the_kubelets_names() -> None:
    answer = await metrics().expose("metrics", accept=PROMETHEUS_2)
    assert answer.content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    parsed = parse_openmetrics(answer.body.decode())  # type: ignore[no-untyped-call]
    found = {family.name: family for family in parsed}
    assert found["a_count_of_old"].type == "unknown"
    assert [sample.name for sample in found["a_count_of_old"].samples] == ["a_count_of_old"]
    assert [sample.name for sample in found["b"].samples] == ["b_total"]
    assert [sample.labels.get("le") for sample in found["d_seconds"].samples][:2] == ["1.0", "2.5"]


async def test_a_collector_that_fails_costs_nobody_else_anything() -> None:
    exposer = AgentMetrics(metrics=[broken, some, broken], probes=[], slis=[])
    for failures in (2, 4):
        found = read((await exposer.expose("metrics")).body)
        assert found["c"].samples[0].value == 0.5
        assert found["trikubelet_metrics_failures_total"].samples[0].value == failures


async def test_who_answers_late_is_not_waited_for(autojump_clock: MockClock) -> None:
    async def never() -> list[AnyFamily]:
        await trio.sleep(1000)
        return []

    exposer = AgentMetrics(metrics=[some], probes=[], slis=[], slow_metrics=[never])
    with trio.fail_after(11):
        found = read((await exposer.expose("metrics")).body)
    assert found["trikubelet_metrics_failures_total"].samples[0].value == 1
    assert "c" in found


@pytest.mark.parametrize("number", [1, 2000])
async def test_what_is_compressed_is_the_same(number: int) -> None:
    def many() -> Iterator[AnyFamily]:
        yield gauge("many", "Many.", {(str(one),): one for one in range(number)}, ("number",))

    exposer = AgentMetrics(metrics=[], probes=[many], slis=[])
    plain = await exposer.expose("probes")
    packed = await exposer.expose("probes", accept_encoding="gzip, deflate")
    assert (packed.content_encoding, packed.content_type) == ("gzip", plain.content_type)
    assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        (PROMETHEUS_2, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text; version=1.0.0; q=0.1, text/plain; q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", False),
    ],
)
def test_openmetrics_is_for_who_prefers_it(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "taken"),
    [("", False), ("identity", False), ("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("GZIP", True)],
)
def test_gzip_is_for_who_names_it(header: str, taken: bool) -> None:
    assert takes_gzip(header) is taken


@given(st.text(st.sampled_from('aplication/openmetrics-text;=q., 0123é\x00"*²'), max_size=60))
def test_no_header_does_harm(header: str) -> None:
    prefers_openmetrics(header)
    prefers_openmetrics("application/openmetrics-text;" + header)
    takes_gzip("gzip;" + header)
