from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader import StructuredDataset
from torch_table_loader.errors import TableError
from torch_table_loader.read.conform import (
    Conformer,
    SharedConformers,
    conform_plan,
    resolve_schema,
    unify_schemas,
    unify_types,
)

LIST = pa.list_(pa.int32())


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        (pa.int8(), pa.int16(), pa.int16()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int16(), pa.int64()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.null(), LIST, LIST),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (LIST, pa.list_(pa.int64()), pa.list_(pa.int64())),
        (LIST, pa.large_list(pa.int64()), pa.large_list(pa.int64())),
        (pa.list_(pa.float32(), 3), pa.list_(pa.float64(), 3), pa.list_(pa.float64(), 3)),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64())])),
    ],
)
def test_types_unify_to_the_narrowest_that_holds_both(
    one: pa.DataType, other: pa.DataType, merged: pa.DataType
) -> None:
    assert unify_types(one, other).equals(merged)
    assert unify_types(other, one).equals(merged)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.uint64(), pa.int8()),
        (pa.int32(), pa.string()),
        (pa.bool_(), pa.int8()),
        (pa.timestamp("s"), pa.timestamp("ms")),
        (pa.timestamp("s"), pa.timestamp("s", "UTC")),
        (pa.date32(), pa.date64()),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (LIST, pa.list_(pa.string())),
        (pa.list_(pa.int32(), 3), pa.list_(pa.int32(), 4)),
        (pa.list_(pa.int32(), 3), LIST),
        (pa.struct([("x", pa.int32())]), pa.struct([("x", pa.string())])),
        (pa.struct([("x", pa.int32()), ("y", LIST)]), pa.struct([("y", pa.int32())])),
        (pa.struct([("x", pa.int32()), ("x", pa.int32())]), pa.struct([("x", pa.int64())])),
        (pa.struct([("x", pa.int32())]), LIST),
    ],
)
def test_types_that_do_not_unify_are_refused_with_both_files_and_the_remedy(
    one: pa.DataType, other: pa.DataType
) -> None:
    first, second = pa.schema([("c", one)]), pa.schema([("c", other)])
    with pytest.raises(TableError) as caught:
        unify_schemas([("p.parquet", first), ("q.parquet", first), ("r.parquet", second)])
    for word in ("'c'", "p.parquet", "r.parquet", str(one), str(other), "schema="):
        assert word in str(caught.value)


def test_guessed_ints_and_doubles_unify_and_others_do_not() -> None:
    assert unify_types(pa.int64(), pa.float64(), inferred=True).equals(pa.float64())
    assert unify_types(pa.list_(pa.int64()), pa.list_(pa.float64()), inferred=True).equals(pa.list_(pa.float64()))
    with pytest.raises(TypeError):
        unify_types(pa.int64(), pa.string(), inferred=True)


def test_columns_keep_the_first_files_order_and_new_ones_follow() -> None:
    one = pa.schema([pa.field("b", pa.int32(), nullable=False), pa.field("a", pa.int32(), nullable=False)], {"k": "v"})
    two = pa.schema([pa.field("c", pa.int8(), nullable=False), pa.field("a", pa.int64(), nullable=False)])
    merged = unify_schemas([("one", one), ("two", two)])
    assert merged.names == ["b", "a", "c"]
    assert [field.nullable for field in merged] == [True, False, True]
    assert merged.metadata is None
    assert unify_schemas([]) == pa.schema([])


def test_partition_columns_win_over_file_columns_and_come_last() -> None:
    schema = resolve_schema(
        [("x", pa.schema([("day", pa.string()), ("a", pa.int32())]))], partition=pa.schema([("day", pa.int32())])
    )
    assert schema == pa.schema([("a", pa.int32()), ("day", pa.int32())])


def test_a_given_schema_is_taken_where_files_can_be_read_as_it() -> None:
    given = pa.schema([("a", pa.int64()), ("new", pa.string())])
    files = [("x.csv", pa.schema([("a", pa.int32()), ("rest", pa.string())]))]
    assert resolve_schema(files, given=given) is given
    with pytest.raises(TableError, match=r"'a' is list.*x.csv it is int32"):
        resolve_schema(files, given=pa.schema([("a", LIST)]))
    with pytest.raises(TableError, match=r"'new' is never null, but x.csv does not have it"):
        resolve_schema(files, given=pa.schema([pa.field("new", pa.string(), nullable=False)]))


def test_a_batch_of_the_tables_schema_passes_as_it_is() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", None]})
    assert conform_plan(batch.schema, batch.schema).apply(batch) is batch
    tagged = batch.replace_schema_metadata({"pandas": "{}"})
    passed = conform_plan(tagged.schema, batch.schema).apply(tagged)
    assert passed.schema.metadata is None
    assert passed.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def test_columns_are_cast_filled_and_ordered() -> None:
    file = pa.schema([("a", pa.int32()), ("f", pa.float32()), ("k", pa.dictionary(pa.int8(), pa.string()))])
    table = pa.schema(
        [
            ("k", pa.string()),
            ("gone", LIST),
            ("a", pa.int64()),
            ("f", pa.float32()),
            ("day", pa.date32()),
            ("p", pa.string()),
        ]
    )
    plan = conform_plan(file, table, [("day", dt.date(2024, 1, 1)), ("p", None)], ["p", "day", "a", "f", "gone", "k"])
    assert plan.reads == ("a", "f", "k")
    batch = pa.record_batch(
        [pa.array([1, None], pa.int32()), pa.array([0.5, 1.5], pa.float32()), pa.array(["x", "y"]).dictionary_encode()],
        names=["a", "f", "k"],
    )
    out = plan.apply(batch)
    assert out.schema == pa.schema([table.field(name) for name in ("p", "day", "a", "f", "gone", "k")])
    assert out.to_pydict() == {
        "p": [None, None],
        "day": [dt.date(2024, 1, 1)] * 2,
        "a": [1, None],
        "f": [0.5, 1.5],
        "gone": [None, None],
        "k": ["x", "y"],
    }
    assert out.column("f").buffers()[1].address == batch.column("f").buffers()[1].address


def test_a_batch_without_columns_keeps_its_rows() -> None:
    empty = pa.record_batch({"a": [1, 2, 3]}).select([])
    plan = conform_plan(pa.schema([("a", pa.int64())]), pa.schema([("day", pa.int32())]), [("day", 7)])
    assert plan.apply(empty)["day"].to_pylist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("kind", "value", "target"),
    [(pa.int64(), 2**40, pa.int32()), (pa.float64(), 0.5, pa.int64()), (pa.string(), "x", pa.int64())],
)
def test_a_value_that_does_not_fit_names_column_types_and_remedy(
    kind: pa.DataType, value: Any, target: pa.DataType
) -> None:
    plan = conform_plan(pa.schema([("a", kind)]), pa.schema([("a", target)]), name="x.parquet")
    with pytest.raises(TableError, match=rf"'a' must be read as {target}, but x.parquet holds it as {kind}.*schema="):
        plan.apply(pa.record_batch([pa.array([value], kind)], names=["a"]))


def test_a_null_where_the_given_schema_has_none_is_refused() -> None:
    target = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    plan = conform_plan(pa.schema([("a", pa.int64())]), target, name="x.parquet")
    assert plan.apply(pa.record_batch({"a": [1]})).schema == target
    with pytest.raises(TableError, match=r"'a' must hold no null.*got 1 among 2 rows of x.parquet"):
        plan.apply(pa.record_batch({"a": [1, None]}))


def test_a_partition_value_that_does_not_fit_names_the_file() -> None:
    with pytest.raises(TableError, match=r"'day' must be read as int32, but the path of x.parquet says 'monday'"):
        conform_plan(pa.schema([]), pa.schema([("day", pa.int32())]), [("day", "monday")], name="x.parquet")


def test_files_of_one_schema_share_a_plan_and_keep_names_and_partitions_of_their_own() -> None:
    file = pa.schema([("a", pa.int64())])
    table = pa.schema([pa.field("a", pa.int64(), nullable=False), ("p", pa.int32())])
    made: list[str] = []

    def of(shared: SharedConformers, schema: pa.Schema, name: str, value: int) -> Conformer:
        def make() -> Conformer:
            made.append(name)
            return conform_plan(schema, table, [("p", value)], name=name)

        return shared.of(schema, value, name, make)

    shared = SharedConformers()
    plans = [of(shared, file, name, value) for name, value in (("x", 1), ("y", 2), ("z", 1))]
    assert made == ["x", "y"]
    batch = pa.record_batch({"a": [5]})
    assert [plan.apply(batch)["p"].to_pylist() for plan in plans] == [[1], [2], [1]]
    with pytest.raises(TableError, match="rows of z;"):
        plans[2].apply(pa.record_batch({"a": pa.array([None], pa.int64())}))
    of(shared, pa.schema([("a", pa.int64())]), "other schema", 1)
    of(pickle.loads(pickle.dumps(shared)), file, "other process", 1)  # noqa: S301 our own
    assert made[2:] == ["other schema", "other process"]


def test_a_plan_that_converts_values_is_not_shared_since_it_may_name_its_file() -> None:
    file, table, shared = pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int32())]), SharedConformers()
    for name in ("x", "y"):
        plan = shared.of(file, (), name, lambda name=name: conform_plan(file, table, name=name))  # type: ignore[misc]
        with pytest.raises(TableError, match=f"but {name} holds it"):
            plan.apply(pa.record_batch({"a": [2**40]}))


def test_partitions_of_minus_zero_and_zero_keep_their_signs(tmp_path: Path) -> None:
    for value in ("0.0", "-0.0"):
        (tmp_path / f"p={value}").mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / f"p={value}" / "x.parquet")
    schema = pa.schema([("a", pa.int64()), ("p", pa.float64())])
    options: dict[str, Any] = {"schema": schema, "output_format": "numpy", "batch_size": 1, "num_workers": 0}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", **options)
    assert sorted(float(np.copysign(1, batch["p"][0])) for batch in loader) == [-1, 1]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


@given(
    st.lists(st.tuples(st.sampled_from(INTEGERS), st.lists(st.none() | st.integers(0, 127))), min_size=1, max_size=4)
)
def test_no_value_is_lost_in_unifying_files(files: list[tuple[pa.DataType, list[int | None]]]) -> None:
    schemas = [(str(place), pa.schema([("a", kind)])) for place, (kind, _) in enumerate(files)]
    table = unify_schemas(schemas)
    for (_, schema), (kind, values) in zip(schemas, files, strict=True):
        batch = pa.record_batch([pa.array(values, kind)], schema=schema)
        assert conform_plan(schema, table).apply(batch)["a"].to_pylist() == values
