"""Both formats of text, against prometheus_client's parsers and Go's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from trikubelet.telemetry.families import Family, Sample, counter, gauge, histogram
from trikubelet.telemetry.metrics import Histograms
from trikubelet.telemetry.text_format import TextFormat, go_float, write_text

if TYPE_CHECKING:
    from trikubelet.telemetry.families import AnyFamily


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (10.0, "10"),
        (999999.0, "999999"),
        (1000000.0, "1e+06"),
        (123456.5, "123456.5"),
        (1234567.5, "1.2345675e+06"),
        (-2500000.0, "-2.5e+06"),
        (1624396278.302, "1.624396278302e+09"),
        (1e21, "1e+21"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    assert go_float(value) == text


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_as_the_same(value: float) -> None:
    assert float(go_float(value)) == value


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_number_can_be_read_back(label: str, number: float) -> None:
    text = b"".join(write_text([gauge("g", 'Help with \\ and " and \n.', {(label, "x"): number}, ("a", "b"))])).decode()
    # The format knows lines; what else Python takes for the end of one is part of a value.
    (family,) = parse_text(text)
    if not set(label) & set("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        assert family.samples[0].labels == {"a": label, "b": "x"}
        assert family.samples[0].value == number


@pytest.mark.parametrize("form", TextFormat)
def test_what_no_utf8_can_say_breaks_no_page(form: TextFormat) -> None:
    """The name of a file may have any bytes."""
    durations = Histograms()
    durations.observe(("\udcff.sock",), 1)
    families: list[AnyFamily] = [gauge("g", "\udcff", {("/x/\udcff.sock",): 1}, ("l",))]
    families.append(histogram("h", "H.", durations, ("l",)))
    text = b"".join(write_text(families, form)).decode()
    assert 'g{l="/x/?.sock"} 1' in text
    assert 'h_count{l="?.sock"} 1' in text


def test_large_bounds_are_written_as_go_writes_them() -> None:
    histograms = Histograms((1, 3600, 16777216.0))
    histograms.observe((), 5)
    lines = b"".join(write_text([histogram("h", "H.", histograms)])).decode().splitlines()
    assert [line.split('"')[1] for line in lines if "le=" in line] == ["1", "3600", "1.6777216e+07", "+Inf"]


@given(st.floats(allow_nan=False))
def test_openmetrics_has_a_point_or_an_exponent_in_each_number(value: float) -> None:
    text = b"".join(write_text([gauge("g", "", value)], TextFormat.OPENMETRICS)).decode()
    number = text.splitlines()[2].removeprefix("g ")
    assert float(number) == value
    assert set(number) & set(".ef")


def test_a_time_is_in_the_formats_unit() -> None:
    families = [Family("c_total", "counter", "Cs.", ("l",), [Sample(("x",), 1, 1_624_396_278_302_999_999)])]
    text, openmetrics = (b"".join(write_text(families, form)).decode() for form in TextFormat)
    assert 'c_total{l="x"} 1 1624396278302\n' in text
    assert 'c_total{l="x"} 1.0 1624396278.302\n' in openmetrics
    (family,) = parse_openmetrics(openmetrics)  # type: ignore[no-untyped-call]
    assert [(sample.value, float(sample.timestamp)) for sample in family.samples] == [(1, 1_624_396_278.302)]


def test_values_have_as_many_labels_as_their_family() -> None:
    with pytest.raises(ValueError, match="expected values of the labels"):
        counter("c_total", "", {("x", "y"): 1}, ("l",))
