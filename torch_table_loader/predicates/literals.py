"""What of a type is next to a literal: numbers, times and texts as values of another type, exactly."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import whole_type
from torch_table_loader.predicates.filter_text import is_written

_TICKS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400

_NUMBER, _TRUTH, _TEXT, _BYTES = "a number such as 3", "true or false", "text such as 'Oslo'", "bytes such as b'Oslo'"
_TIME, _CLOCK, _SPAN = (
    "a date or time such as 2026-01-03 or 2026-01-03 10:30, without quotes (in Python datetime.date(2026, 1, 3))",
    "a datetime.time",
    "a datetime.timedelta",
)

_Number = Fraction | float
"""An exact number; a float only if it is infinite or NaN."""


class MisfitError(ValueError):
    """A value cannot be compared with those of a type; the message says why, and what to write."""

    def __init__(self, value: pa.Scalar, remedy: str) -> None:
        super().__init__(f"does not compare to {pc.scalar(value)!s:.100} ({value.type}); {remedy}")


class Fit(NamedTuple):
    """The greatest value of a type that is at most a literal, and the least that is at least it; None for no such."""

    low: pa.Scalar | None
    high: pa.Scalar | None


def _family(kind: pa.DataType) -> str | None:
    """Return what values of a type are compared with; None for types of which pyarrow decides."""
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return _NUMBER
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return _TIME
    for family, tests in (
        (_TRUTH, (pt.is_boolean,)),
        (_TEXT, (pt.is_string, pt.is_large_string, pt.is_string_view)),
        (_BYTES, (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)),
        (_CLOCK, (pt.is_time,)),
        (_SPAN, (pt.is_duration,)),
    ):
        if any(test(kind) for test in tests):
            return family
    return None


def fit(value: pa.Scalar, kind: pa.DataType) -> Fit | None:
    """Return what of a type is next to a literal; None if pyarrow compares both as they are.

    Raises:
        MisfitError: they cannot be compared.
    """
    own, wanted = _family(value.type), _family(kind)
    if own is None or wanted is None:
        return None
    if wanted in (_TEXT, _BYTES) and own in (_TEXT, _BYTES):
        return _fit_text(value, kind)
    if own != wanted:
        raise MisfitError(value, f"compare it with {wanted}, or cast the column")
    if pt.is_timestamp(kind) and kind.tz is None and getattr(value.type, "tz", None) is not None:
        raise MisfitError(value, "its times have no zone: write the time without one, or cast the column")
    if own == _TRUTH:
        return None
    number = _number(value)
    if is_written(value.type) and pt.is_floating(kind):
        number = Fraction(float(number))
    if isinstance(number, float) and math.isnan(number):
        if not pt.is_floating(kind):
            return Fit(None, None)
        nan = pa.scalar(math.nan, kind)
        return Fit(nan, nan)
    return _fit_float(number, kind) if pt.is_floating(kind) else _fit_whole(number, kind)


def _fit_text(value: pa.Scalar, kind: pa.DataType) -> Fit | None:
    """Return a text as UTF-8 for a column of bytes, and the other way round; None for bytes that are no text."""
    found: str | bytes = value.as_py()
    if isinstance(found, bytes) and _family(kind) == _TEXT:
        try:
            found = found.decode()
        except UnicodeDecodeError:
            return None
    elif isinstance(found, str) and _family(kind) == _BYTES:
        found = found.encode()
    if pt.is_fixed_size_binary(kind) and len(found) != kind.byte_width:
        kind = pa.binary()
    same = pa.scalar(found, kind)
    return Fit(same, same)


def _number(value: pa.Scalar) -> _Number:
    """Return a number; or a time, of a day or since 1970, or a duration, in seconds.

    >>> _number(pa.scalar(1.5)), _number(pa.scalar(1, pa.timestamp("ms")))
    (Fraction(3, 2), Fraction(1, 1000))
    """
    if _family(value.type) == _NUMBER:
        found = value.as_py()
        if isinstance(found, float) and not math.isfinite(found):
            return float(found)
        return Fraction(found)
    return Fraction(value.value) / _grid(value.type).per_unit


class _Grid(NamedTuple):
    """The values of a type: whole numbers from `low` to `high`, of which `per_unit` make one, or a second."""

    per_unit: Fraction
    low: int
    high: int


def _grid(kind: pa.DataType) -> _Grid:
    """Return the values of a type of integers, decimals or times.

    >>> _grid(pa.decimal128(3, 2))
    _Grid(per_unit=Fraction(100, 1), low=-999, high=999)
    """
    if pt.is_decimal(kind):
        most = 10**kind.precision - 1
        return _Grid(Fraction(10) ** kind.scale, -most, most)
    if pt.is_date32(kind):
        per_unit = Fraction(1, _DAY)
    elif pt.is_date64(kind):
        per_unit = Fraction(_TICKS["ms"])
    elif pt.is_integer(kind):
        per_unit = Fraction(1)
    else:
        per_unit = Fraction(_TICKS[kind.unit])
    if pt.is_unsigned_integer(kind):
        return _Grid(per_unit, 0, (1 << kind.bit_width) - 1)
    return _Grid(per_unit, -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)


def _fit_whole(number: _Number, kind: pa.DataType) -> Fit:
    grid = _grid(kind)
    if isinstance(number, float):
        ends = _scalar(grid.low, kind), _scalar(grid.high, kind)
        if number > 0:
            return Fit(ends[1], None)
        return Fit(None, ends[0])
    place = number * grid.per_unit
    low, high = math.floor(place), math.ceil(place)
    if low == high and grid.low <= low <= grid.high:
        same = _scalar(low, kind)
        return Fit(same, same)
    below = above = None
    if low >= grid.low:
        below = _scalar(min(low, grid.high), kind)
    if high <= grid.high:
        above = _scalar(max(high, grid.low), kind)
    return Fit(below, above)


def _scalar(place: int, kind: pa.DataType) -> pa.Scalar:
    if pt.is_integer(kind):
        return pa.scalar(place, kind)
    if pt.is_decimal(kind):
        digits = tuple(map(int, str(abs(place))))
        return pa.scalar(Decimal((int(place < 0), digits, -kind.scale)), kind)
    return pa.scalar(place, whole_type(kind)).cast(kind)


def _fit_float(number: _Number, kind: pa.DataType) -> Fit:
    make = np.float64 if pt.is_float64(kind) else np.float32
    try:
        near = float(number)
    except OverflowError:
        near = math.inf if number > 0 else -math.inf
    with np.errstate(over="ignore"):
        low = high = make(near)
        while float(low) > number:
            low = np.nextafter(low, make(-np.inf))
        while float(high) < number:
            high = np.nextafter(high, make(np.inf))
    if low == high:
        same = pa.scalar(float(low), kind)
        return Fit(same, same)
    return Fit(pa.scalar(float(low), kind), pa.scalar(float(high), kind))


def members_of(members: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return those members of a list that a type can have, in this type; null stays.

    The list itself is returned if pyarrow compares its members as they are.

    Raises:
        MisfitError: a member cannot be compared.
    """
    own = members.type
    if pt.is_dictionary(own):
        own = own.value_type
    if members.type == kind or _family(kind) is None or (_family(own) is None and not pt.is_null(own)):
        return members
    with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if (at_once := _members_at_once(members, own, kind)) is not None:
            return at_once
    found: list[pa.Scalar] = []
    for member in members.dictionary_decode() if pt.is_dictionary(members.type) else members:
        same = _as(member, kind) if member.is_valid else pa.scalar(None, kind)
        if same is not None:
            found.append(same)
            if pt.is_floating(kind) and not pt.is_floating(own) and same.as_py() == 0:
                found.append(pa.scalar(-0.0, kind))  # is_in tells -0 from 0
    return pa.concat_arrays([pa.array([], kind), *(pa.repeat(each, 1) for each in found)])


def _members_at_once(members: pa.Array, own: pa.DataType, kind: pa.DataType) -> pa.Array | None:
    """Return what `members_of` does of a type that Arrow casts exactly; None of any other."""
    if (pt.is_integer(own) and pt.is_integer(kind)) or _family(own) == _family(kind) == _TEXT:
        return members.cast(kind)
    if pt.is_floating(own) and pt.is_integer(kind):
        few = pc.all(pc.less(pc.abs(members), float(1 << 53))).as_py()
        if few:
            return members.cast(kind)
        return None
    if not (pt.is_floating(own) and pt.is_floating(kind)):
        return None
    rounded = members.cast(kind, safe=False)
    return rounded.filter(pc.or_(pc.equal(rounded.cast(pa.float64()), members), pc.is_nan(members)).fill_null(True))


def _as(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """Return a value as one of a type that equals it; None if there is none."""
    if value.type == kind:
        return value
    near = fit(value, kind)
    same = None if near is None or near.low is not near.high else near.low
    if same is not None and same.type == kind:
        return same
    return None
