"""Amounts of resources: `500m`, `1.5Gi`, `1e3` (`resource.Quantity`).

An amount is an integer number of nanos, the finest step that Kubernetes knows. Whatever is finer is rounded up when it
is read, so sums, differences and comparisons are exact and cheap, and no float is ever involved. A quantity also
remembers the family of its suffix, since `1Gi` plus `1Gi` is `2Gi` and not `2147483648`.

Reading `100.035k` and writing it again gives the same text, as it does in Kubernetes: a text that is near enough to the
canonical form is kept until the amount changes. Two quantities are equal when their amounts are.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import Final

import attrs


class QuantityFormat(enum.Enum):
    """The family of suffixes that a quantity is written with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class QuantityError(ValueError):
    """`text` is no quantity."""

    def __init__(self, text: str, problem: str) -> None:
        shown = text if len(text) <= 60 else text[:57] + "..."
        super().__init__(f'expected a quantity such as "500m", "1.5Gi" or "1e3", got "{shown}": {problem}')
        self.text = text


_NANO: Final = 10**9
_MAX_BINARY: Final = 2**63 - 1
# Kubernetes sets no limit; without one `1e999999999` would fill the memory.
_MAX_DIGITS: Final = 100

_SHORT: Final = 32
"""Characters of a text whose amount is worth to be remembered."""
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([A-Za-z]*(?:[+-]?[0-9]*))", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES: Final = {exponent: suffix for suffix, exponent in _BINARY_SUFFIXES.items()}


@attrs.frozen(init=False, eq=False, repr=False)
class Quantity:
    """An exact amount. `Quantity("1.5Gi")` reads a text, `Quantity(3)` is a whole number.

    Raises QuantityError for a text that is none, and for one with an absurd number of digits.
    """

    nanos: int
    """The amount in units of 10**-9."""
    format: QuantityFormat
    _text: str | None
    """The text to write instead of the canonical form."""

    def __init__(self, value: str | int = 0) -> None:
        if isinstance(value, int):
            self.__attrs_init__(value * _NANO, QuantityFormat.DECIMAL_SI, None)
        else:
            self.__attrs_init__(*(_parse_short if len(value) <= _SHORT else _parse)(value))

    @classmethod
    def from_nanos(cls, nanos: int, format_: QuantityFormat = QuantityFormat.DECIMAL_SI) -> Quantity:
        """The amount `nanos` * 10**-9."""
        quantity = cls.__new__(cls)
        quantity.__attrs_init__(nanos, format_, None)
        return quantity

    @classmethod
    def from_milli(cls, milli: int) -> Quantity:
        """The amount `milli` * 10**-3, written in decimal."""
        return cls.from_nanos(milli * 10**6)

    @classmethod
    def from_bytes_count(cls, count: int) -> Quantity:
        """A whole number that is written with `Ki`, `Mi`, `Gi` … where it fits."""
        return cls.from_nanos(count * _NANO, QuantityFormat.BINARY_SI)

    def value(self) -> int:
        """The amount as a whole number, a fraction rounded away from zero."""
        return _divide_away_from_zero(self.nanos, _NANO)

    def milli_value(self) -> int:
        """The amount in thousandths, finer parts rounded away from zero."""
        return _divide_away_from_zero(self.nanos, 10**6)

    def round_up(self, scale: int) -> Quantity:
        """Rounded away from zero to a multiple of 10**scale (`scale` is -3 for milli)."""
        if scale <= -9:
            return self
        step = 10 ** (scale + 9)
        if self.nanos % step == 0:
            return self
        return Quantity.from_nanos(_divide_away_from_zero(self.nanos, step) * step, self.format)

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity.from_nanos(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity.from_nanos(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __mul__(self, factor: int) -> Quantity:
        return Quantity.from_nanos(self.nanos * factor, self.format)

    def __neg__(self) -> Quantity:
        return Quantity.from_nanos(-self.nanos, self.format)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: Quantity) -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: Quantity) -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: Quantity) -> bool:
        return self.nanos >= other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __str__(self) -> str:
        """The text it was read from where that is kept, else the canonical form."""
        return self._text if self._text is not None else self.canonical()

    def __repr__(self) -> str:
        return f'Quantity("{self}")'

    def canonical(self) -> str:
        """The shortest exact form: no fraction, and the largest suffix of the family that leaves none."""
        if self.nanos == 0:
            return "0"
        if self.format is QuantityFormat.BINARY_SI and abs(self.nanos) >= 1024 * _NANO and self.nanos % _NANO == 0:
            return _canonical_binary(self.nanos // _NANO)
        exponential = self.format is QuantityFormat.DECIMAL_EXPONENT
        return _canonical_decimal(self.nanos, exponential=exponential)


def _divide_away_from_zero(dividend: int, divisor: int) -> int:
    quotient = -(-abs(dividend) // divisor)
    return quotient if dividend >= 0 else -quotient


def _canonical_binary(value: int) -> str:
    exponent = 0
    while value % 1024 == 0 and exponent < 60:
        value //= 1024
        exponent += 10
    return f"{value}{_BINARY_NAMES.get(exponent, '')}"


def _canonical_decimal(nanos: int, *, exponential: bool) -> str:
    exponent = -9
    while nanos % 1000 == 0 and (exponential or exponent < 18):
        nanos //= 1000
        exponent += 3
    if exponential:
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_NAMES[exponent]}"


def _parse(text: str) -> tuple[int, QuantityFormat, str | None]:
    """Amount in nanos, suffix family, and the text when it is kept."""
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise QuantityError(text, "it has to be a number with an optional suffix")
    negative, whole, fraction, suffix = match[1] == "-", match[2].lstrip("0"), match[3] or "", match[4]
    if len(whole) + len(fraction) > _MAX_DIGITS:
        raise QuantityError(text, f"it has more than {_MAX_DIGITS} digits")
    digits = int(whole + fraction or "0")
    kept: str | None = None
    if suffix in _BINARY_SUFFIXES:
        power = _BINARY_SUFFIXES[suffix]
        nanos, format_ = _binary_amount(digits, len(fraction), power)
        if not fraction and digits & 7 and 14 - len(whole) - power * 3 // 10 >= 0:
            kept = text
    else:
        exponent, format_ = _decimal_exponent(text, suffix)
        scale = exponent - len(fraction)
        nanos = _decimal_amount(text, digits, scale)
        if scale >= -9 and len(whole or "0") + len(fraction) <= 18 and _reads_canonical(whole + fraction, scale):
            kept = text
    return (-nanos if negative else nanos), format_, kept


_parse_short = lru_cache(maxsize=1024)(_parse)
"""Pods ask for the same few amounts again and again."""


def _reads_canonical(digits: str, scale: int) -> bool:
    """Whether Kubernetes keeps a decimal text as it is: steps of a thousand, no thousands left to shorten."""
    return scale % 3 == 0 and digits != "" and digits[0] != "0" and not digits.endswith("000")


def _decimal_exponent(text: str, suffix: str) -> tuple[int, QuantityFormat]:
    if suffix in _DECIMAL_SUFFIXES:
        return _DECIMAL_SUFFIXES[suffix], QuantityFormat.DECIMAL_SI
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise QuantityError(text, f'unknown suffix "{suffix[:20]}"; known are n u m k M G T P E Ki Mi Gi Ti Pi Ei e3')
    if len(match[1]) > 11:
        raise QuantityError(text, "the exponent is out of range")
    return int(match[1]), QuantityFormat.DECIMAL_EXPONENT


def _decimal_amount(text: str, digits: int, scale: int) -> int:
    power = scale + 9
    if power > _MAX_DIGITS and digits:
        raise QuantityError(text, "the exponent is out of range")
    if power >= 0:
        return digits * int(10 ** min(power, _MAX_DIGITS))
    if -power > _MAX_DIGITS:
        return 1 if digits else 0
    return _divide_away_from_zero(digits, 10**-power)


def _binary_amount(digits: int, fraction_length: int, power: int) -> tuple[int, QuantityFormat]:
    nanos = _divide_away_from_zero((digits << power) * _NANO, 10**fraction_length)
    nanos = min(nanos, _MAX_BINARY * _NANO)
    # Less than one byte has no binary suffix.
    format_ = QuantityFormat.DECIMAL_SI if 0 < nanos < _NANO else QuantityFormat.BINARY_SI
    return nanos, format_
