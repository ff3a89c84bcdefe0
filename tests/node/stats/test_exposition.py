"""The pages of what was measured, against prometheus_client's parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trikubelet.node.stats.exposition import text_of
from trikubelet.telemetry.families import Family, Sample

MILLISECOND = 1_000_000


def test_families_and_series_are_sorted_and_empty_families_left_out() -> None:
    families = [
        Family("b", "counter", "Second.", ("y", "x"), [Sample(("2", "b"), 2, 7_999_999), Sample(("1", "a"), 1)]),
        Family("a", "gauge", 'First, with a \\ and a\nnew line and a "', (), [Sample((), 1.5)]),
        Family("c", "gauge", "Nothing."),
    ]
    assert text_of(families).decode() == (
        '# HELP a First, with a \\\\ and a\\nnew line and a "\n'
        "# TYPE a gauge\n"
        "a 1.5\n"
        "# HELP b Second.\n"
        "# TYPE b counter\n"
        'b{x="a",y="1"} 1\n'
        'b{x="b",y="2"} 2 7\n'
    )


def test_counts_are_numbers_as_go_has_them() -> None:
    assert text_of([Family("a", "gauge", "", (), [Sample((), 123_456_789)])]).endswith(b"\na 1.23456789e+08\n")


def test_of_two_series_with_the_same_labels_the_first_counts() -> None:
    family = Family("a", "gauge", "", ("l",), [Sample(("x",), 1), Sample(("x",), 2)])
    assert text_of([family]).count(b'a{l="x"}') == 1


@given(
    st.lists(st.tuples(st.text(), st.floats(allow_nan=False)), min_size=1, unique_by=lambda one: one[0]),
    st.integers(0, 2**40),
)
def test_prometheus_reads_what_was_written(values: list[tuple[str, float]], at: int) -> None:
    family = Family(
        "metric", "gauge", "Help.", ("label",), [Sample((text,), value, at * MILLISECOND) for text, value in values]
    )
    (found,) = text_string_to_metric_families(text_of([family]).decode())
    read = {sample.labels["label"]: (sample.value, sample.timestamp) for sample in found.samples}
    assert read == {text: (value, at / 1000) for text, value in values}
