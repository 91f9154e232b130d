"""Every comparison of a column with a literal says what exact numbers say, whatever types both have."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from torch_table_loader import ConfigError
from torch_table_loader.predicates.expressions import check_filter, row_masks
from torch_table_loader.predicates.facts import NULL, Facts, UndecidedError, ordinal, predicate_of

TICKS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
INTS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [
    *(pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(9, 2), pa.decimal128(38, 0), pa.decimal128(20, 20)),
    *(pa.decimal128(7, -3), pa.decimal256(60, 4)),
]
NAIVE = [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in TICKS)]
ZONED = [pa.timestamp(unit, zone) for unit, zone in zip(TICKS, ("UTC", "Europe/Oslo", "UTC", "+05:30"), strict=True)]
CLOCKS = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
SPANS = [pa.duration(unit) for unit in TICKS]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
ENCODED = [
    *(pa.dictionary(pa.int8(), each) for each in (pa.int32(), pa.uint64(), pa.float32(), pa.string(), ZONED[2])),
    *(pa.run_end_encoded(pa.int32(), each) for each in (pa.int8(), pa.uint64(), pa.float64(), NAIVE[4], pa.string())),
]
FAMILIES = {
    "number": [*INTS, *FLOATS, *DECIMALS],
    "time": [*NAIVE, *ZONED],
    "clock": CLOCKS,
    "span": SPANS,
    "text": [*TEXTS, *BYTES],
    "truth": [pa.bool_()],
}
KINDS = [*(kind for kinds in FAMILIES.values() for kind in kinds), *ENCODED]


def inner(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) else kind


def family(kind: pa.DataType) -> str:
    return next(name for name, kinds in FAMILIES.items() if inner(kind) in kinds)


class Value(NamedTuple):
    """A value as a literal, and what is exact of it: a number or a time in seconds; UTF-8; or a float beside these."""

    scalar: pa.Scalar
    exact: Any


def per_unit(kind: pa.DataType) -> Fraction:
    if pa.types.is_decimal(kind):
        return Fraction(10 ** max(kind.scale, 0), 10 ** max(-kind.scale, 0))
    if pa.types.is_date(kind):
        return Fraction(1, 86_400) if kind == pa.date32() else Fraction(1000)
    return Fraction(1 if pa.types.is_integer(kind) else TICKS[kind.unit])


def limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if kind in CLOCKS:
        return 0, 86_400 * TICKS[kind.unit] - 1
    bits = kind.bit_width
    return (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def of_place(kind: pa.DataType, place: int) -> Value:
    exact = place / per_unit(kind)
    if pa.types.is_decimal(kind):
        digits = tuple(map(int, str(abs(place))))
        return Value(pa.scalar(Decimal((int(place < 0), digits, -kind.scale)), kind), exact)
    if pa.types.is_integer(kind):
        return Value(pa.scalar(place, kind), exact)
    return Value(pa.scalar(place, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind), exact)


def of_float(kind: pa.DataType, value: float) -> Value:
    value = float(np.dtype(kind.to_pandas_dtype()).type(value))
    exact = value if not math.isfinite(value) else Fraction(value)
    return Value(pa.scalar(np.float16(value) if kind == pa.float16() else value, kind), exact)


def values_of(kind: pa.DataType) -> list[Value]:
    """Return values of a type at the edges of its range, and at those of others."""
    kind = inner(kind)
    if family(kind) == "truth":
        return [Value(pa.scalar(each), each) for each in (False, True)]
    if family(kind) == "text":
        texts = ("ab", "zz") if pa.types.is_fixed_size_binary(kind) else ("", "a", "ab", "b", "æ\U0001f600", "\uffff")
        made = [pa.scalar(text if kind in TEXTS else text.encode(), kind) for text in texts]
        return [Value(scalar, text.encode()) for scalar, text in zip(made, texts, strict=True)]
    if kind in FLOATS:
        info = np.finfo(kind.to_pandas_dtype())
        edges = [float(each) for each in (info.max, info.min, info.tiny, info.smallest_subnormal)]
        more = [
            0.0,
            -0.0,
            0.1,
            0.5,
            1.5,
            -2.5,
            3.0,
            127.0,
            255.5,
            2048.0,
            1.1,
            300.25,
            2.0**24,
            2.0**53,
            2.0**63,
            2.0**64,
        ]
        with np.errstate(over="ignore"):
            return [of_float(kind, each) for each in (*edges, *more, math.inf, -math.inf, math.nan)]
    low, high = limits(kind)
    unit = per_unit(kind)
    seconds: list[int | Fraction] = [0, 1, 86_399, 86_400, 86_401, 1_768_000_000, -1, -86_400]
    numbers: list[int | Fraction] = [
        0,
        1,
        -1,
        3,
        127,
        128,
        255,
        2**24 + 1,
        2**31,
        2**53 + 1,
        2**63 - 1,
        2**63,
        Fraction(3, 2),
        Fraction(1, 10),
    ]
    near = [
        math.floor(each * unit) + more for each in (numbers if family(kind) == "number" else seconds) for more in (0, 1)
    ]
    if kind == pa.date64():
        low, high = -(2**52) // 86_400_000 * 86_400_000, 2**52 // 86_400_000 * 86_400_000
        near = [each // 86_400_000 * 86_400_000 for each in near]
    places = {each for each in (low, low + 1, high - 1, high, *near) if low <= each <= high}
    if kind == pa.date64():
        places = {each for each in places if each % 86_400_000 == 0}
    return [of_place(kind, place) for place in sorted(places)]


VALUES = {str(kind): values_of(kind) for kind in KINDS}
LITERALS = {
    name: [value for kind in kinds if not (pa.types.is_dictionary(kind)) for value in VALUES[str(kind)]]
    for name, kinds in FAMILIES.items()
}


def column(kind: pa.DataType) -> tuple[pa.Array, list[Any]]:
    """Return an array of a type, its null first, and what is exact of each value."""
    plain = inner(kind)
    values = VALUES[str(kind)]
    array = pa.concat_arrays([pa.nulls(1, plain), *(pa.repeat(each.scalar, 1) for each in values)])
    if pa.types.is_dictionary(kind):
        array = array.dictionary_encode().cast(kind)
    elif pa.types.is_run_end_encoded(kind):
        array = pc.run_end_encode(array)
    return array, [None, *(each.exact for each in values)]


def may_compare(kind: pa.DataType, literal: Value) -> bool:
    zoned = inner(kind) in ZONED or kind in (pa.date32(), pa.date64())
    return family(kind) == family(literal.scalar.type) and (zoned or literal.scalar.type not in ZONED)


def among(row: Any, members: Sequence[Value | None]) -> bool:
    """Say what is_in says: NaN is itself there, null too, and of floats one zero is not the other."""
    if row is None:
        return None in members
    exact = [each.exact for each in members if each is not None]
    if isinstance(row, float) and math.isnan(row):
        return any(isinstance(each, float) and math.isnan(each) for each in exact)
    return row in exact


class Drawn(NamedTuple):
    """A filter over the column x, and what it says of each row; None of the filter where it must be refused."""

    filters: Any
    says: list[bool | None]
    fits: bool


def leaf(rng: random.Random, kind: pa.DataType, rows: list[Any]) -> Drawn:
    near = rng.random() < 0.93
    literals = LITERALS[family(kind) if near else rng.choice(list(FAMILIES))]
    field = pc.field("x")
    if rng.random() < 0.2:
        chosen: pa.DataType = rng.choice(literals).scalar.type
        members = rng.choices(VALUES[str(chosen)], k=rng.randrange(5))
        signed = [each for each in members if each.exact != 0 or not pa.types.is_floating(chosen)]
        listed: list[Value | None] = [*signed, None] if rng.random() < 0.3 else [*signed]
        array = [pa.nulls(1, chosen) if each is None else pa.repeat(each.scalar, 1) for each in listed]
        expression = field.isin(pa.concat_arrays([pa.array([], chosen), *array]))
        fits = all(each is None or may_compare(kind, each) for each in listed)
        return Drawn(expression, [among(row, listed) for row in rows], fits)
    literal, name = rng.choice(literals), rng.choice(list(OPERATORS))
    if rng.random() < 0.03:
        null = pa.scalar(None, inner(kind))
        return Drawn(pc.Expression._call(name, [field, pc.scalar(null)]), [None] * len(rows), fits=True)
    arguments, swapped = [field, pc.scalar(literal.scalar)], rng.random() < 0.2
    filters = pc.Expression._call(name, arguments[::-1] if swapped else arguments)
    if not may_compare(kind, literal):
        return Drawn(filters, [], fits=False)
    pairs = [(literal.exact, row) if swapped else (row, literal.exact) for row in rows]
    return Drawn(filters, [None if None in pair else bool(OPERATORS[name](*pair)) for pair in pairs], fits=True)


def drawn(rng: random.Random, kind: pa.DataType, rows: list[Any], depth: int = 2) -> Drawn:
    found, how = leaf(rng, kind, rows), rng.random()
    if depth == 0 or how < 0.4:
        return found
    if how < 0.6:
        return found._replace(filters=~found.filters, says=[None if each is None else not each for each in found.says])
    other = drawn(rng, kind, rows, depth - 1)
    if not (found.fits and other.fits):
        return Drawn(found.filters & other.filters, [], fits=False)
    pairs = list(zip(found.says, other.says, strict=True))
    if how < 0.8:
        both = [False if False in pair else None if None in pair else True for pair in pairs]
        return Drawn(found.filters & other.filters, both, fits=True)
    either = [True if True in pair else None if None in pair else False for pair in pairs]
    return Drawn(found.filters | other.filters, either, fits=True)


def hold(kind: pa.DataType, seed: int, count: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    array, rows = column(kind)
    batch = pa.record_batch([array], schema=pa.schema([pa.field("x", array.type)]))
    asked: list[tuple[Drawn, Any]] = []
    for _ in range(count):
        wanted = drawn(rng, kind, rows)
        if wanted.fits:
            asked.append((wanted, check_filter(wanted.filters, batch.schema)))
        else:
            with pytest.raises(ConfigError, match=r"compare it with|without one"):
                check_filter(wanted.filters, batch.schema)
    for (wanted, _), mask in zip(asked, row_masks(batch, [fitted for _, fitted in asked]), strict=True):
        shown = [str(each) for each in array.to_pylist()] if inner(kind) in FLOATS else rows
        assert dict(zip(map(str, shown), mask.to_pylist(), strict=True)) == dict(
            zip(map(str, shown), wanted.says, strict=True)
        ), wanted.filters
        hold_in_pruning(wanted, batch, rng.randrange(len(rows)))


def hold_in_pruning(wanted: Drawn, batch: pa.RecordBatch, place: int) -> None:
    """No facts of a row that passes rule it out."""
    if wanted.says[place] is not True:
        return
    value, kind = batch.column(0)[place], batch.schema.field(0).type
    predicate = predicate_of(wanted.filters, batch.schema)
    try:
        at = ordinal(value, kind) if value.is_valid else None
    except UndecidedError:
        return
    nan = isinstance(at, float) and math.isnan(at)
    facts = NULL if at is None else Facts(nulls=False, values=False) if nan else Facts(at, at, nulls=False, nans=False)
    assert predicate.can_pass({("x",): facts}), wanted.filters
    assert nan or predicate.can_pass({}, {"x": value}), wanted.filters


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_comparison_says_what_exact_values_say(kind: pa.DataType) -> None:
    hold(kind, 0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ten_thousand_comparisons_say_what_exact_values_say(kind: pa.DataType) -> None:
    hold(kind, 1, 10_000 // len(KINDS) + 1)
