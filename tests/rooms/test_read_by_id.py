"""Columns found by id, however nested, in slices of batches and in whole batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.errors import TableError
from torch_table_loader.iceberg.metadata import read_schema
from torch_table_loader.read.by_id import plan_by_id
from torch_table_loader.records import Column, FileColumns, NamedIds, TableColumns

FIELDS = [
    {
        "id": 3,
        "name": "m",
        "required": False,
        "type": {
            "type": "map",
            "key-id": 31,
            "key": "string",
            "value-id": 32,
            "value-required": False,
            "value": {
                "type": "struct",
                "fields": [
                    {"id": 34, "name": "late", "required": False, "type": "int", "initial-default": 7},
                    {"id": 33, "name": "renamed", "required": False, "type": "long"},
                ],
            },
        },
    },
    {"id": 1, "name": "x", "required": False, "type": "long"},
    {
        "id": 2,
        "name": "l",
        "required": False,
        "type": {
            "type": "list",
            "element-id": 21,
            "element-required": False,
            "element": {
                "type": "struct",
                "fields": [
                    {"id": 23, "name": "d", "required": False, "type": "double"},
                    {"id": 22, "name": "a", "required": False, "type": "long"},
                ],
            },
        },
    },
    {"id": 4, "name": "new", "required": False, "type": "string"},
    {
        "id": 5,
        "name": "inner",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [
                {
                    "id": 51,
                    "name": "ll",
                    "required": False,
                    "type": {
                        "type": "list",
                        "element-id": 52,
                        "element-required": False,
                        "element": {"type": "list", "element-id": 53, "element-required": False, "element": "long"},
                    },
                },
            ],
        },
    },
]
CURRENT = tuple(read_schema({"fields": FIELDS}).columns)


def ids(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(field_id)})


FILE = pa.schema(
    [
        ids(pa.field("old x", pa.int32()), 1),
        ids(
            pa.field(
                "l",
                pa.list_(
                    ids(
                        pa.field(
                            "item",
                            pa.struct([ids(pa.field("a", pa.int32()), 22), ids(pa.field("d", pa.float32()), 23)]),
                        ),
                        21,
                    )
                ),
            ),
            2,
        ),
        ids(
            pa.field(
                "m",
                pa.map_(
                    ids(pa.field("key", pa.string(), nullable=False), 31),
                    ids(
                        pa.field(
                            "value",
                            pa.struct([ids(pa.field("y", pa.int32()), 33), ids(pa.field("gone", pa.int32()), 39)]),
                        ),
                        32,
                    ),
                ),
            ),
            3,
        ),
        ids(pa.field("new", pa.int32()), 9),
        ids(
            pa.field(
                "inner",
                pa.struct(
                    [
                        ids(
                            pa.field(
                                "ll", pa.list_(ids(pa.field("e", pa.list_(ids(pa.field("e", pa.int32()), 53))), 52))
                            ),
                            51,
                        )
                    ]
                ),
            ),
            5,
        ),
    ]
)

small = st.one_of(st.none(), st.integers(-9, 9))
rows = st.lists(
    st.fixed_dictionaries(
        {
            "old x": small,
            "l": st.one_of(
                st.none(),
                st.lists(
                    st.one_of(st.none(), st.fixed_dictionaries({"a": small, "d": st.sampled_from([None, 0.5])})),
                    max_size=3,
                ),
            ),
            "m": st.one_of(
                st.none(),
                st.lists(
                    st.tuples(
                        st.sampled_from("abc"), st.one_of(st.none(), st.fixed_dictionaries({"y": small, "gone": small}))
                    ),
                    max_size=3,
                ),
            ),
            "new": small,
            "inner": st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {
                        "ll": st.one_of(
                            st.none(), st.lists(st.one_of(st.none(), st.lists(small, max_size=2)), max_size=2)
                        )
                    }
                ),
            ),
        }
    ),
    max_size=8,
)


def wanted(row: dict[str, Any]) -> dict[str, Any]:
    pairs = row["m"]
    elements = row["l"]
    return {
        "m": None if pairs is None else [(k, None if v is None else {"late": 7, "renamed": v["y"]}) for k, v in pairs],
        "x": row["old x"],
        "l": None if elements is None else [None if e is None else {"d": e["d"], "a": e["a"]} for e in elements],
        "new": None,
        "inner": row["inner"],
    }


def plan(file: pa.Schema = FILE, current: tuple[Column, ...] = CURRENT, **how: Any) -> Any:
    columns = FileColumns(TableColumns(current, names=how.pop("names", None)), **how)
    return plan_by_id(file, columns, [(column.name, column) for column in current], name="f")


@given(rows=rows, start=st.integers(0, 8), stop=st.integers(0, 8))
def test_a_slice_is_converted_like_its_rows(rows: list[dict[str, Any]], start: int, stop: int) -> None:
    conformer = plan()
    batch = pa.RecordBatch.from_pylist(rows, FILE).slice(start, max(0, stop - start)).select(conformer.reads)
    found = conformer.apply(batch)
    found.validate(full=True)
    assert found.to_pylist() == [wanted(row) for row in rows[start : max(start, stop)]]


@given(rows=rows)
def test_large_lists_and_null_keys(rows: list[dict[str, Any]]) -> None:
    large = FILE.set(1, ids(pa.field("l", pa.large_list(FILE.field("l").type.value_field)), 2))
    conformer = plan(large)
    found = conformer.apply(pa.RecordBatch.from_pylist(rows, large).select(conformer.reads))
    found.validate(full=True)
    assert found.to_pylist() == [wanted(row) for row in rows]


def test_columns_that_a_file_lacks_are_filled() -> None:
    columns = tuple(
        read_schema(
            {
                "fields": [
                    {"id": 1, "name": "part", "required": True, "type": "double"},
                    {"id": 2, "name": "d", "required": False, "type": "decimal(9, 2)", "initial-default": "1.50"},
                    {
                        "id": 3,
                        "name": "u",
                        "required": False,
                        "type": "uuid",
                        "initial-default": "00000000-0000-0000-0000-000000000001",
                    },
                ]
            }
        ).columns
    )
    batch = pa.record_batch([pa.nulls(2)], names=["none"]).select([])
    empty = pa.schema([ids(pa.field("else", pa.int32()), 9)])
    found = plan(empty, columns, constants={1: 0.1}).apply(batch)
    assert found.to_pylist()[0] == {
        "part": 0.1,
        "d": pa.scalar("1.50").cast(pa.decimal128(9, 2)).as_py(),
        "u": b"\0" * 15 + b"\1",
    }
    with pytest.raises(TableError, match="f lacks the column 'part'"):
        plan(empty, columns)
    with pytest.raises(TableError, match="says 'x'; fix the table"):
        plan(empty, columns, constants={1: "x"})


def test_files_without_ids() -> None:
    plain = pa.schema([("a", pa.int32()), ("b", pa.int64())])
    columns = (Column(1, "b", pa.int64()), Column(2, "z", pa.int64()))
    batch = pa.record_batch({"a": pa.array([1], pa.int32()), "b": pa.array([2])})
    names = NamedIds({"a": (1, NamedIds({})), "b": (None, NamedIds({})), "c": (2, NamedIds({}))})
    assert plan(plain, columns, names=names).apply(batch.select(["a"])).to_pylist() == [{"b": 1, "z": None}]
    with pytest.raises(TableError, match=r"without field ids, and the table has no property schema\.name-mapping"):
        plan(plain, columns)


def test_lineage_is_computed_if_the_file_lacks_it() -> None:
    lineage = (
        Column(2147483540, "_row_id", pa.int64(), lineage="row"),
        Column(2147483539, "_last_updated_sequence_number", pa.int64(), lineage="commit"),
    )
    said = pa.schema([ids(pa.field("_row_id", pa.int64()), 2147483540)])
    conformer = plan(said, lineage, first_row_id=100, sequence_number=3)
    batch = pa.record_batch([pa.array([5, None, None], pa.int64())], names=["_row_id"])
    found = conformer.apply(batch, 10)
    assert found.to_pydict() == {"_row_id": [5, 111, 112], "_last_updated_sequence_number": [3, 3, 3]}
    assert plan(said, lineage).apply(batch).to_pydict()["_last_updated_sequence_number"] == [None] * 3


@pytest.mark.parametrize(
    ("kind", "target", "said"),
    [
        (pa.string(), "int", "value that does not fit"),
        (pa.list_(pa.int32()), "int", "cannot be promoted to it"),
        (pa.int64(), "int", "value that does not fit"),
    ],
)
def test_incompatible_types_are_refused(kind: pa.DataType, target: str, said: str) -> None:
    file = pa.schema([ids(pa.field("x", kind), 1)])
    [column] = read_schema({"fields": [{"id": 1, "name": "x", "required": False, "type": target}]}).columns
    value = {"string": "a", "int64": 1 << 40}.get(str(kind), [1])
    with pytest.raises(TableError, match=said):
        plan(file, (column,)).apply(pa.record_batch([pa.array([value], kind)], schema=file))


def test_int96_and_extension_types() -> None:
    file = pa.schema([ids(pa.field("at", pa.timestamp("ns")), 1), ids(pa.field("u", pa.uuid()), 2)])
    columns = (Column(1, "at", pa.timestamp("us", "UTC")), Column(2, "u", pa.binary(16)))
    batch = pa.record_batch(
        [pa.array([-1, 1999], pa.timestamp("ns")), pa.array([b"\1" * 16] * 2, pa.uuid())], schema=file
    )
    found = plan(file, columns).apply(batch)
    assert found.column(0).cast(pa.int64()).to_pylist() == [-1, 1]
    assert found.column(1).to_pylist() == [b"\1" * 16] * 2


def test_a_reader_that_wraps_storage_in_an_extension_type() -> None:
    file = pa.schema([ids(pa.field("u", pa.binary(16)), 1)])
    conformer = plan(file, (Column(1, "u", pa.binary(16)),))
    batch = pa.record_batch([pa.array([b"\1" * 16], pa.uuid())], names=["u"])
    assert conformer.apply(batch).schema.types == [pa.binary(16)]
    assert conformer.apply(pa.record_batch([pa.array([b"\1" * 16], pa.binary(16))], names=["u"])).num_rows == 1
