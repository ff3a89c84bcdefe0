"""Quantities: the tables of Kubernetes' own tests as facts, and laws that hold for every amount."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.api import Quantity, QuantityError, QuantityFormat

DECIMAL = QuantityFormat.DECIMAL_SI
BINARY = QuantityFormat.BINARY_SI
EXPONENT = QuantityFormat.DECIMAL_EXPONENT

PARSED = [
    ("0", 0, DECIMAL),
    ("0n", 0, DECIMAL),
    ("0Ki", 0, BINARY),
    ("1", 1, DECIMAL),
    ("1Ki", 1024, BINARY),
    ("7Mi", 7 * 1024**2, BINARY),
    ("3Ei", 3 * 1024**6, BINARY),
    ("100Ti", 100 * 1024**4, BINARY),
    ("5n", "0.000000005", DECIMAL),
    ("4u", "0.000004", DECIMAL),
    ("3m", "0.003", DECIMAL),
    ("50k", 50_000, DECIMAL),
    ("7M", 7 * 10**6, DECIMAL),
    ("6G", 6 * 10**9, DECIMAL),
    ("300T", 300 * 10**12, DECIMAL),
    ("2P", 2 * 10**15, DECIMAL),
    ("1E", 10**18, DECIMAL),
    ("1E-3", "0.001", EXPONENT),
    ("1e3", 1000, EXPONENT),
    ("1.3E+6", 1_300_000, EXPONENT),
    ("1.7E18", 17 * 10**17, EXPONENT),
    ("0.5e-2", "0.005", EXPONENT),
    ("100.035k", 100_035, DECIMAL),
    ("0.0005k", "0.5", DECIMAL),
    ("6.987654321G", 6_987_654_321, DECIMAL),
    ("3.001n", "0.000000004", DECIMAL),
    ("1.1E-9", "0.000000002", EXPONENT),
    ("0.0000000001", "0.000000001", DECIMAL),
    ("0.00000012345", "0.000000124", DECIMAL),
    ("9Ei", 2**63 - 1, BINARY),
    ("9223372036854775807Ki", 2**63 - 1, BINARY),
    ("12E", 12 * 10**18, DECIMAL),
    ("100.035Ki", "102435.84", BINARY),
    ("0.5Mi", 1024**2 // 2, BINARY),
    ("0.000000000001Ki", "0.000000002", DECIMAL),
    (".001", "0.001", DECIMAL),
    ("1.", 1, DECIMAL),
    ("1.G", 10**9, DECIMAL),
]


@pytest.mark.parametrize("sign", ["", "+", "-"])
@pytest.mark.parametrize(("text", "amount", "format_"), PARSED)
def test_a_text_means_the_amount_that_kubernetes_reads(
    sign: str, text: str, amount: int | str, format_: QuantityFormat
) -> None:
    quantity = Quantity(sign + text)
    expected = int(Decimal(amount) * 10**9)
    assert quantity.nanos == (-expected if sign == "-" else expected)
    assert quantity.format is format_


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.1.M",
        "1+1.0M",
        "0.1mi",
        "0.1am",
        "aoeu",
        ".5i",
        "1i",
        "-3.01i",
        "-3.01e-",
        " 1",
        "1 ",
        "1e",
        "٣",
        "+",
        "m",
    ],
)
def test_what_is_no_quantity_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        Quantity(text)
    assert caught.value.text == text
    assert f'got "{text}"' in str(caught.value)


@pytest.mark.parametrize("text", ["1e999999999", "1e99999999999999", "1" * 200, "0." + "1" * 200])
def test_an_absurd_number_of_digits_is_refused_at_once(text: str) -> None:
    with pytest.raises(QuantityError):
        Quantity(text)


def test_an_absurdly_small_amount_is_rounded_up_to_one_nano() -> None:
    assert Quantity("1e-999999999").nanos == 1
    assert Quantity("0e-999999999").nanos == 0


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1024Mi", "1Gi"),
        ("307200Ki", "300Mi"),
        ("1025024Mi", "1001Gi"),
        ("5000m", "5"),
        ("0.5", "500m"),
        ("1000M", "1G"),
        ("0.001T", "1G"),
        ("1000u", "1m"),
        ("1.08", "1080m"),
        ("1080000000n", "1080m"),
        (".001e12", "1e9"),
        ("0.001e0", "1e-3"),
        ("1000e-12", "1e-9"),
        ("00", "0"),
        (".001Ki", "1024m"),
        (".000000000001Ki", "2n"),
        ("1025", "1025"),
        ("1e4", "10e3"),
        # Near enough to canonical: Kubernetes keeps the text.
        ("100.035k", "100.035k"),
        ("1.080", "1.080"),
        ("1E3", "1E3"),
        ("+5Ki", "+5Ki"),
        ("05", "05"),
        # The amount is not whole, so no binary suffix is left.
        ("1.0005Ki", "1024512m"),
        # Less than 1024 is written in decimal.
        ("0.5Ki", "512"),
    ],
)
def test_a_quantity_is_written_as_kubernetes_writes_it(text: str, written: str) -> None:
    assert str(Quantity(text)) == written


@pytest.mark.parametrize(
    "text", ["1Gi", "300Mi", "6Ki", "1001Gi", "500m", "1G", "80m", "1080m", "1234567M", "80e-3", "300e6", "1n", "1080u"]
)
def test_a_canonical_text_is_kept_by_its_canonical_form(text: str) -> None:
    assert Quantity(text).canonical() == text
    assert Quantity("-" + text).canonical() == "-" + text


@pytest.mark.parametrize(
    ("text", "scale", "rounded"),
    [
        ("9.01", -3, "9.01"),
        ("9.01", -1, "9.1"),
        ("9.01", 0, "10"),
        ("9.01", 2, "100"),
        ("-9.01", -1, "-9.1"),
        ("-9.01", 0, "-10"),
        ("-9.01", 1, "-10"),
    ],
)
def test_rounding_goes_away_from_zero(text: str, scale: int, rounded: str) -> None:
    assert Quantity(text).round_up(scale) == Quantity(rounded)


def test_rounding_what_needs_none_keeps_the_text() -> None:
    assert str(Quantity("1.080").round_up(-3)) == "1.080"


@pytest.mark.parametrize("text", ["100m", "1Gi"])
def test_zero_takes_the_suffix_family_of_what_is_added(text: str) -> None:
    assert str(Quantity("0") + Quantity(text)) == text
    assert str(Quantity(text) + Quantity("0")) == text
    assert str(Quantity("0") - Quantity(text)) == "-" + text


def test_a_value_is_a_whole_number_rounded_up() -> None:
    assert Quantity("1500m").value() == 2
    assert Quantity("1500m").milli_value() == 1500
    assert Quantity("1u").milli_value() == 1
    assert Quantity.from_milli(250) == Quantity("250m")
    assert str(Quantity.from_bytes_count(3 * 1024**3)) == "3Gi"


amounts = st.integers(min_value=-(10**30), max_value=10**30)
formats = st.sampled_from(QuantityFormat)


@given(amounts, formats)
def test_writing_and_reading_gives_the_same_amount(nanos: int, format_: QuantityFormat) -> None:
    quantity = Quantity.from_nanos(nanos, format_)
    again = Quantity(str(quantity))
    if format_ is BINARY:  # binary suffixes saturate
        assert again == quantity or abs(quantity.nanos) > (2**63 - 1) * 10**9
    else:
        assert again == quantity


@given(amounts, amounts)
def test_arithmetic_and_order_are_those_of_whole_numbers(left: int, right: int) -> None:
    first, second = Quantity.from_nanos(left), Quantity.from_nanos(right)
    assert (first + second).nanos == left + right
    assert (first - second).nanos == left - right
    assert (first < second, first == second, first > second) == (left < right, left == right, left > right)


@given(st.from_regex(r"\A[+-]?[0-9]{1,12}(\.[0-9]{0,12})?([numkMGTPE]|[eE][+-]?[0-9]|[KMGTPE]i)?\Z"))
def test_reading_what_was_written_changes_nothing(text: str) -> None:
    once = Quantity(text)
    again = Quantity(str(once))
    assert again == once
    assert str(again) == str(once) or again.canonical() == once.canonical()


@pytest.mark.fuzz
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(QuantityError):
        Quantity(text)
