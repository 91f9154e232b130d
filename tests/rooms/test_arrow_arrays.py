"""Encodings around the values of an array are removed and restored without changing the values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.tables.row_stores import everything
from torch_table_loader.arrow.arrays import encoded, null_mask, offsets_of, plain, valid_mask
from torch_table_loader.arrow.datatypes import children_of, plain_type

ROWS = everything(60)


@pytest.mark.parametrize("name", ROWS.schema.names)
def test_removing_and_restoring_encodings_keeps_the_values(name: str) -> None:
    array = ROWS.column(name).slice(7, 40)
    bare = plain(array)
    bare.validate(full=True)
    assert bare.type == plain_type(array.type)
    assert plain(bare) is bare
    again = encoded(bare, array.type)
    again.validate(full=True)
    assert again.type == array.type
    assert bare.to_pylist() == again.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.string(), pa.large_binary()])
def test_offsets_are_those_of_a_slice(kind: pa.DataType) -> None:
    values = [b"ab", b"", b"c", b"defg", b"h"]
    array = pa.array([list(value) for value in values] if pa.types.is_nested(kind) else values, type=kind)
    offsets = offsets_of(array.slice(1, 3))
    assert (offsets - offsets[0]).tolist() == [0, 0, 1, 5]
    assert offsets_of(array.slice(5)).tolist() == [0]


@pytest.mark.parametrize("start", [0, 3, 8, 13])
def test_masks_are_those_of_a_slice(start: int) -> None:
    array = pa.array([None if i % 3 == 0 else i for i in range(30)]).slice(start, 11)
    assert null_mask(array).tolist() == [value is None for value in array.to_pylist()]
    assert valid_mask(array).tolist() == [value is not None for value in array.to_pylist()]


def test_children_of_nested_types() -> None:
    kind = pa.map_(pa.string(), pa.struct([("a", pa.int8()), ("b", pa.list_view(pa.int16()))]))
    key, item = children_of(kind)
    assert (key.name, item.name) == ("key", "value")
    assert [child.name for child in children_of(item.type)] == ["a", "b"]
    assert [child.type for child in children_of(item.type.field("b").type)] == [pa.int16()]
    assert children_of(pa.dictionary(pa.int8(), pa.string())) == children_of(pa.uuid()) == []
