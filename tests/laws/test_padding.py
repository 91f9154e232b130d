"""Padding, compared with a row-by-row implementation; and nested tensors, which torch adds if their lengths agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conversions import batches_of
from torch_table_loader import Pad, TableError

sides: st.SearchStrategy[Any] = st.sampled_from(["left", "right"])
lengths_of_lists = st.lists(st.one_of(st.integers(0, 9), st.integers(120, 300)), min_size=1, max_size=25)


@st.composite
def pads(draw: st.DrawFn) -> Pad:
    multiple = draw(st.none() | st.integers(1, 9))
    length = draw(st.none() | st.integers(1, 40).map(lambda number: number * (multiple or 1)))
    truncate = None if length is None else draw(st.none() | sides)
    value = draw(st.integers(-9, 9))
    return Pad(value=value, length=length, multiple_of=multiple, truncate=truncate, side=draw(sides))


def padded_row(row: list[Any], width: int, pad: Pad, filler: Any) -> tuple[list[Any], int]:
    """Pad a row in the simplest way."""
    kept = row[-width:] if pad.truncate == "left" else row[:width]
    missing = [filler] * (width - len(kept))
    return (missing + kept if pad.side == "left" else kept + missing), len(kept)


def width_of(rows: list[list[Any]], pad: Pad) -> int:
    if pad.length is not None:
        return pad.length
    longest = max(map(len, rows))
    while longest % (pad.multiple_of or 1):
        longest += 1
    return longest


@given(
    lengths=lengths_of_lists,
    pad=pads(),
    batch_size=st.integers(1, 9),
    grid=st.booleans(),
    numpy=st.booleans(),
    skip=st.integers(0, 5),
)
def test_rows_are_padded_and_cut_as_was_asked(
    lengths: list[int], pad: Pad, batch_size: int, grid: bool, numpy: bool, skip: int
) -> None:
    values = iter(range(100, 10**6))
    lists: list[list[Any]] = [[next(values) for _ in range(length)] for length in lengths]
    kind = pa.list_(pa.int32())
    if grid:
        lists = [[[value, -value] for value in row] for row in lists]
        kind = pa.list_(pa.list_(pa.int32(), 2))
    batch = pa.record_batch({"x": pa.array(lists, kind)}).slice(skip)
    lists = lists[skip:]
    options: dict[str, Any] = {"output_format": "numpy" if numpy else "torch", "ragged": pad, "batch_size": batch_size}
    if pad.length is not None and pad.truncate is None and max(map(len, lists), default=0) > pad.length:
        row = next(number for number, each in enumerate(lists) if len(each) > (pad.length or 0))
        with pytest.raises(TableError, match=rf"column 'x' has a list of {len(lists[row])} values at row {row} of"):
            batches_of(batch, **options)
        return
    found = batches_of(batch, **options)
    assert len(found) == -(-len(lists) // batch_size)
    filler = [pad.value] * 2 if grid else pad.value
    for start, each in zip(range(0, len(lists), batch_size), found, strict=True):
        rows = lists[start : start + batch_size]
        wanted = [padded_row(row, width_of(rows, pad), pad, filler) for row in rows]
        came = each["x"]
        assert isinstance(came.values, np.ndarray if numpy else torch.Tensor)
        assert came.values.tolist() == [row for row, _ in wanted]
        assert came.lengths.tolist() == [length for _, length in wanted]
        assert (came.values.dtype, came.lengths.dtype) == (
            (np.int32, np.int64) if numpy else (torch.int32, torch.int64)
        )


@given(lengths=lengths_of_lists, batch_size=st.integers(1, 9), other=st.data())
def test_nested_tensors_of_columns_are_added_where_their_lengths_agree(
    lengths: list[int], batch_size: int, other: st.DataObject
) -> None:
    """Three columns: two always agree; the third does in some batches."""
    changed = other.draw(st.sets(st.integers(0, len(lengths) - 1)))
    thirds = [length + (row in changed) for row, length in enumerate(lengths)]
    columns = {
        "a": pa.array([[1] * length for length in lengths], pa.list_(pa.int32())),
        "b": pa.array([[2.0] * length for length in lengths], pa.large_list(pa.float32())),
        "c": pa.array([[3] * length for length in thirds], pa.list_(pa.int64())),
        "g": pa.array([[[4, 5]] * length for length in thirds], pa.list_(pa.list_(pa.int64(), 2))),
    }
    whole = pa.record_batch(columns)
    for number, batch in enumerate(batches_of(whole, batch_size=batch_size)):
        rows = range(number * batch_size, min((number + 1) * batch_size, len(lengths)))
        both = batch["a"] + batch["b"]
        assert [row.tolist() for row in both.unbind()] == [[3.0] * lengths[row] for row in rows]
        assert batch["c"].offsets() is batch["g"].offsets()
        assert [row.tolist() for row in batch["c"].unbind()] == [[3] * thirds[row] for row in rows]
        assert [row.tolist() for row in batch["g"].unbind()] == [[[4, 5]] * thirds[row] for row in rows]
        if changed.isdisjoint(rows):
            assert (batch["a"] + batch["c"]).values().sum().item() == 4 * sum(lengths[row] for row in rows)
        else:
            assert batch["a"].offsets() is not batch["c"].offsets()
            with pytest.raises(RuntimeError, match="cannot call binary pointwise function add"):
                batch["a"] + batch["c"]
