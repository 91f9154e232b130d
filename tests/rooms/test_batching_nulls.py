"""What nulls become: errors, fills and masks."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conversions import convert, value_of
from torch_table_loader import ColumnStatistics
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.extend import ValueSums


def test_nulls_are_errors_unless_something_was_chosen() -> None:
    batch = pa.record_batch({"n": pa.array([1, 2, None]), "f": pa.array([None, 0.5, 1.0])})
    with pytest.raises(TableError, match=r"column 'n' has a null at row 2 .*nulls=\{'n': fill\}.*mask"):
        convert(batch)
    assert math.isnan(convert(batch.slice(0, 2))["f"][0])
    filled = convert(batch, nulls={"n": -7, "f": 2})
    assert (filled["n"].tolist(), filled["f"].tolist()) == ([1, 2, -7], [2.0, 0.5, 1.0])
    masked = convert(batch, nulls="mask")
    assert list(masked) == ["n", "n_valid", "f"]
    assert masked["n"].tolist() == [1, 2, 0]
    assert masked["n_valid"].tolist() == [True, True, False]


def test_masks_follow_the_schema_and_never_the_content() -> None:
    schema = pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)])
    batch = pa.record_batch([pa.array([1], pa.int8())] * 2, schema=schema)
    masked = convert(batch, nulls="mask")
    assert list(masked) == ["a", "a_valid", "b"]
    broken = pa.record_batch([pa.array([1], pa.int8()), pa.nulls(1, pa.int8())], schema=schema)
    with pytest.raises(TableError, match="column 'b' has a null at row 0"):
        convert(broken, nulls="mask")


def test_null_lists_and_null_values_in_lists() -> None:
    lists = pa.array([[1], None, [2, 3]], pa.list_(pa.int16()))
    with pytest.raises(TableError, match=r"column 'x' has a null at row 1"):
        value_of(lists)
    assert value_of(lists, ragged="offsets", nulls={"x": []}).offsets.tolist() == [0, 1, 1, 3]
    assert value_of(lists, ragged="offsets", nulls={"x": [8, 9]}).values.tolist() == [1, 8, 9, 2, 3]
    gaps = pa.array([[1, None], [2]], pa.list_(pa.int16()))
    with pytest.raises(TableError, match=r"column 'x' has a null at value 1 of the lists.*'x\.item': fill"):
        value_of(gaps, nulls="mask")
    assert value_of(gaps, ragged="offsets", nulls={"x.item": 5}).values.tolist() == [1, 5, 2]
    floats = pa.array([[0.5, None]], pa.list_(pa.float32()))
    assert math.isnan(value_of(floats, ragged="pad").values[0, 1])


def test_values_under_a_null_list_do_not_come() -> None:
    values = pa.array([1, 2, 3], pa.int16())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values, mask=pa.array([False, True, False]))
    assert value_of(lists, ragged="offsets", nulls="mask").values.tolist() == [1, 3]


def test_null_fixed_size_lists() -> None:
    pairs = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2))
    with pytest.raises(TableError, match=r"column 'x' has a null at row 1"):
        value_of(pairs)
    assert value_of(pairs, nulls={"x": 9}).tolist() == [[1, 2], [9, 9], [3, 4]]
    assert value_of(pairs, nulls={"x": [8, 9]}).tolist() == [[1, 2], [8, 9], [3, 4]]
    with pytest.raises(ConfigError, match="does not fit"):
        value_of(pairs, nulls={"x": [1, 2, 3]})
    gaps = pa.array([[1, None], [3, 4]], pa.list_(pa.int16(), 2))
    with pytest.raises(TableError, match=r"'x\.item': fill"):
        value_of(gaps, nulls="mask")
    assert value_of(gaps, nulls={"x.item": 7}).tolist() == [[1, 7], [3, 4]]


@pytest.mark.parametrize(
    ("nulls", "message"),
    [
        ({"colour": 0}, r"nulls names 'colour', which is not a column here; the nearest are 'color'"),
        ({"color": 1.5}, r"'color': 1\.5.* does not fit the column's type int8"),
        ({"color": 300}, r"does not fit the column's type int8"),
        ({"color": "red"}, r"does not fit"),
        ({"color": None}, r"fills nothing"),
        ({"tags": 0}, r"must be a list.*'tags\.item'"),
        ({"tags": [0.5]}, r"values must be int16"),
        ({"tags": [[1]]}, r"shape"),
        ({"name": 3}, r"does not fit the column's type large_string"),
        ({"words": []}, r"list of strings, where null comes as None"),
        ({"rec": {}}, r"struct, whose children are named 'rec\.<child>'"),
    ],
)
def test_fills_are_checked_at_construction(nulls: dict[str, Any], message: str) -> None:
    schema = pa.schema(
        {
            "color": pa.int8(),
            "tags": pa.list_(pa.int16()),
            "name": pa.string(),
            "words": pa.list_(pa.string()),
            "rec": pa.struct([("a", pa.int8())]),
        }
    )
    with pytest.raises(ConfigError, match=message):
        convert(pa.RecordBatch.from_pylist([], schema), nulls=nulls)


@pytest.mark.parametrize("fill", ["nan", math.nan])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.int8(), torch.float32),
        (pa.uint16(), torch.float32),
        (pa.int32(), torch.float64),
        (pa.int64(), torch.float64),
        (pa.uint64(), torch.float64),
        (pa.float16(), torch.float16),
        (pa.float32(), torch.float32),
    ],
    ids=str,
)
def test_ints_with_gaps_become_floats_whatever_a_batch_has(kind: pa.DataType, dtype: torch.dtype, fill: Any) -> None:
    for values in ([1, None, 3], [1, 2, 3], [None]):
        plain = pa.array(values, kind)
        coded = pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), plain)
        for array in (plain, coded):
            found = value_of(array, nulls={"x": fill})
            assert found.dtype == dtype
            assert [None if math.isnan(value) else value for value in found.tolist()] == values


def test_gaps_become_the_mean_of_statistics_that_were_measured_elsewhere() -> None:
    stats = ColumnStatistics.of(ValueSums.of(np.array([30, 50]), nulls=7), [0.5])
    found = value_of(pa.array([20, None, 60], pa.int32()), nulls={"x": stats})
    assert found.dtype == torch.float64
    assert stats.standardize(found).tolist() == [-2.0, 0.0, 2.0]
    floats = value_of(pa.array([20, None, math.nan], pa.float32()), nulls={"x": stats}, output_format="numpy")
    assert floats.dtype == np.float32
    assert floats[:2].tolist() == [20.0, 40.0]
    assert math.isnan(floats[2]), "a NaN is no null"
    assert value_of(pa.array([Decimal(20), None]), unsupported="float64", nulls={"x": stats}).tolist() == [
        20.0,
        40.0,
    ]
    lists = pa.array([[1, None], [2]], pa.list_(pa.int16()))
    assert value_of(lists, ragged="offsets", nulls={"x.item": stats}).values.tolist() == [1.0, 40.0, 2.0]
    pairs = pa.array([[1, None], None], pa.list_(pa.int16(), 2))
    assert np.isnan(value_of(pairs, nulls={"x.item": "nan"}).numpy()).tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.list_(pa.float32(), 1)])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_a_null_in_place_of_a_fixed_size_list_is_an_error(kind: pa.DataType, output_format: str) -> None:
    pairs = pa.nulls(2, pa.list_(kind, 2))
    with pytest.raises(TableError, match="column 'x' has a null at row 0 of this batch"):
        value_of(pairs, output_format=output_format)
    if pa.types.is_floating(kind):
        inner = pa.FixedSizeListArray.from_arrays(pa.array([1, None], kind), 2)
        assert np.isnan(np.asarray(value_of(inner, output_format=output_format))).tolist() == [[False, True]]
        filled = value_of(pairs, nulls={"x": float("nan")}, output_format=output_format)
        assert np.isnan(np.asarray(filled)).all()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.bool_(), "column 'x' of type bool with NaN, which only ints and floats take"),
        (pa.date32(), "of type date32.* with NaN, which only ints and floats take"),
        (pa.list_(pa.int16(), 2), r"which only ints and floats take; name 'x\.item'"),
        (pa.list_(pa.int16()), r"must be a list.*'x\.item'"),
    ],
    ids=str,
)
def test_gaps_that_no_float_can_be_are_refused(kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        value_of(pa.array([], kind), nulls={"x": "nan"})


@pytest.mark.parametrize(
    "stats",
    [ColumnStatistics.of(ValueSums.of(np.array([1])), None), ColumnStatistics.of(ValueSums.of(np.array([], int)), [])],
    ids=["bounds", "nothing"],
)
def test_statistics_without_a_mean_fill_nothing(stats: ColumnStatistics) -> None:
    with pytest.raises(ConfigError, match="mean of statistics that have none; measure values"):
        value_of(pa.array([], pa.int8()), nulls={"x": stats})


def test_the_word_for_nan_is_text_in_a_column_of_text() -> None:
    assert value_of(pa.array([None, "a"]), nulls={"x": "nan"}) == ["nan", "a"]


def test_fills_follow_the_column_type() -> None:
    moments = pa.array([None], pa.timestamp("s"))
    fill = dt.datetime(1970, 1, 1, 0, 0, 5)  # noqa: DTZ001 - the column has no zone
    assert value_of(moments, nulls={"x": fill}).tolist() == [5]
    assert value_of(pa.array([None], pa.date32()), nulls={"x": 3}).tolist() == [3]
    assert value_of(pa.array([None], pa.bool_()), nulls={"x": True}).tolist() == [True]
    assert value_of(pa.array([None], pa.string()), nulls={"x": ""}) == [""]
    encoded = pa.array([None, 4], pa.int8()).dictionary_encode()
    assert value_of(encoded, nulls={"x": 1}).tolist() == [1, 4]
