"""Where spans may be sent. The first rows are the kubelet's own (`ValidateTracingConfiguration`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.config.kubelet_configuration import KubeletConfiguration, Tracing
from trikubelet.config.rules import check_configuration
from trikubelet.config.tracing_endpoint import DEFAULT_ENDPOINT, Endpoint, TcpEndpoint, UnixEndpoint, parse_endpoint


def problems(**fields: object) -> list[str]:
    found = check_configuration(KubeletConfiguration(tracing=Tracing(**fields)))  # type: ignore[arg-type]
    return [f"{one.path}: {one.message}" for one in found]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("localhost:4317", TcpEndpoint("localhost", 4317)),
        ("dns://google.com:4317", TcpEndpoint("google.com", 4317)),
        ("unix://path/to/socket", UnixEndpoint("path/to/socket")),
        ("dns:///collector:4317", TcpEndpoint("collector", 4317)),
        ("dns://8.8.8.8/collector:4317", TcpEndpoint("collector", 4317)),
        ("dns:collector:4317", TcpEndpoint("collector", 4317)),
        ("collector", TcpEndpoint("collector", 443)),
        ("192.0.2.1:4317", TcpEndpoint("192.0.2.1", 4317)),
        ("[2001:db8::1]:4317", TcpEndpoint("2001:db8::1", 4317)),
        ("unix:///run/otel.sock", UnixEndpoint("/run/otel.sock")),
        ("unix:run/otel.sock", UnixEndpoint("run/otel.sock")),
        ("unix-abstract:otel", UnixEndpoint("@otel")),
        ("unix-abstract:///otel", UnixEndpoint("@otel")),
    ],
)
def test_where_spans_go(endpoint: str, expected: Endpoint) -> None:
    assert parse_endpoint(endpoint) == expected
    assert problems(endpoint=endpoint) == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost:4317",
        "dn%2s://localhost:4317",
        "https://collector",
        "",
        ":4317",
        "collector:port",
        "collector:65536",
        "collector:-1",
        "collector:4317/path",
        "user@collector:4317",
        "[::1",
        "unix:",
        "unix://",
        "unix:/run/\0",
        "unix-abstract:",
        "dns:",
        "dns:///",
    ],
)
def test_what_is_no_place_is_a_problem_of_the_field(endpoint: str) -> None:
    (problem,) = problems(endpoint=endpoint)
    assert problem.startswith("tracing.endpoint: expected ")


@pytest.mark.parametrize(
    ("rate", "fits"), [(None, True), (0, True), (1_000_000, True), (-1, False), (1_000_001, False)]
)
def test_how_many_of_a_million(rate: int | None, fits: bool) -> None:
    expected = [] if fits else [f"tracing.samplingRatePerMillion: must be between 0 and 1000000, got {rate}"]
    assert problems(sampling_rate_per_million=rate) == expected


def test_the_default_is_a_place() -> None:
    assert parse_endpoint(DEFAULT_ENDPOINT) == TcpEndpoint("localhost", 4317)


@given(st.text())
def test_any_text_is_a_place_or_a_problem(endpoint: str) -> None:
    try:
        place = parse_endpoint(endpoint)
    except ValueError:
        assert len(problems(endpoint=endpoint)) == 1
    else:
        assert problems(endpoint=endpoint) == []
        assert isinstance(place, UnixEndpoint) or (place.host and 0 <= place.port < 65536)
