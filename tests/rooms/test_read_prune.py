from __future__ import annotations

import datetime as dt
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.tables.reading import data_file, inspect, write_parquet
from torch_table_loader.extend import reader_for
from torch_table_loader.predicates.expressions import row_mask
from torch_table_loader.read.conform import conform_plan
from torch_table_loader.read.reader_base import partition_can_pass
from torch_table_loader.records import Column, FileColumns, NamedIds, TableColumns

DAY = dt.date(2024, 1, 1)
READER = reader_for("parquet")
TABLE_SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.int64()),
        ("f", pa.float64()),
        ("g", pa.float64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("missing", pa.int64()),
        ("part", pa.int32()),
        ("text", pa.string()),
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-3, 3) | st.sampled_from([2**31 - 1, -(2**31)]),
    "u": st.integers(0, 3) | st.just(2**32 - 1),
    "f": st.sampled_from([-1.0, -0.0, 0.0, 0.1, 1.0, math.nan, math.inf, -math.inf]),
    "g": st.sampled_from([-1.0, -0.0, 0.0, 0.1, 1.0, math.nan]),
    "s": st.text("ab", max_size=3),
    "d": st.integers(0, 5).map(lambda days: DAY + dt.timedelta(days)),
}
LITERALS: dict[str, st.SearchStrategy[Any]] = {
    **VALUES,
    "i": VALUES["i"] | st.sampled_from([2**31, 2**40, -(2**40)]),
    "missing": st.integers(-1, 1),
    "part": st.integers(-1, 2),
    "text": st.text("ab", max_size=1),
}
OPERATORS = [
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a == b,
    lambda a, b: a != b,
]


@st.composite
def leaves(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(sorted(LITERALS)))
    kind = TABLE_SCHEMA.field(name).type
    column = pc.field(name)
    form = draw(st.integers(0, 9))
    if form == 0:
        return column.is_null()
    if form == 1:
        return column.is_valid()
    if form == 2:
        return column.isin(pa.array(draw(st.lists(LITERALS[name], max_size=3)), kind))
    if form == 3 and pa.types.is_floating(kind):
        return pc.is_nan(column)
    if form == 4 and pa.types.is_integer(kind):
        return (column + 1) > draw(st.integers(-3, 3))
    literal = pa.scalar(draw(LITERALS[name]), kind)
    return draw(st.sampled_from(OPERATORS))(column, literal)


def expressions() -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves(),
        lambda inner: (
            inner.map(lambda one: ~one)
            | st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
            | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        ),
        max_leaves=5,
    )


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 12))
    types = {
        "i": draw(st.sampled_from([pa.int32(), pa.int64()])),
        "u": draw(st.sampled_from([pa.uint32(), pa.int64()])),
        "f": draw(st.sampled_from([pa.float32(), pa.float64()])),
        "g": pa.float64(),
        "s": draw(st.sampled_from([pa.string(), pa.large_string()])),
        "d": pa.date32(),
    }
    return pa.table(
        {
            name: pa.array(draw(st.lists(st.none() | VALUES[name], min_size=rows, max_size=rows)), kind)
            for name, kind in types.items()
        }
    )


@settings(max_examples=examples(70), deadline=None)
@given(
    tables(), expressions(), st.integers(1, 4), st.none() | st.integers(-1, 2), st.none() | st.text("ab", max_size=1)
)
def test_pruning_never_drops_a_row_group_with_a_passing_row(
    table: pa.Table, filters: Any, rows: int, part: int | None, text: str | None
) -> None:
    partition = (("part", part), ("text", text))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        write_parquet(path, table, rows)
        file = data_file(path, partition=partition)
        meta = inspect(file)
        kept = READER.prune(file, meta, filters, TABLE_SCHEMA)
    conformer = conform_plan(meta.schema, TABLE_SCHEMA, partition)
    batch = conformer.apply(table.select(conformer.reads).combine_chunks().to_batches()[0])
    passing = row_mask(batch, filters).to_pylist()
    assert len(kept) == len(meta.group_rows)
    for group, keep in enumerate(kept):
        if any(passing[group * rows : (group + 1) * rows]):
            assert keep, f"dropped row group {group} of {filters}"
    if any(passing):
        assert partition_can_pass(file, filters, TABLE_SCHEMA)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (pc.field("i") >= 30, [False, False, False, True]),
        (pc.field("i") > 2**40, [False] * 4),
        (pc.field("i") == 15, [False, True, False, False]),
        (pc.field("f") < 10.0, [True, False, False, False]),
        (~(pc.field("f") < 10.0), [True] * 4),
        (pc.field("s") == "c", [False, False, True, False]),
        (pc.field("d") <= DAY, [True, False, False, False]),
        (pc.field("part") == 4, [False] * 4),
        ((pc.field("part") == 3) & (pc.field("i") < 10), [True, False, False, False]),
        (pc.field("text") == "b", [False] * 4),
        (pc.field("missing") > 0, [False] * 4),
        (pc.field("missing").is_null(), [True] * 4),
        (pc.field("i").isin([1, 35]), [True, False, False, True]),
    ],
)
def test_pruning_drops_clearly_disjoint_ranges(tmp_path: Path, filters: Any, kept: list[bool]) -> None:
    table = pa.table(
        {
            "i": pa.array(range(40), pa.int32()),
            "f": pa.array([float(i) for i in range(40)]),
            "s": pa.array([chr(ord("a") + i // 10) for i in range(40)]),
            "d": pa.array([DAY + dt.timedelta(i // 10) for i in range(40)]),
        }
    )
    write_parquet(tmp_path / "x.parquet", table)
    file = data_file(tmp_path / "x.parquet", partition=(("part", 3), ("text", None)))
    assert list(READER.prune(file, inspect(file), filters, TABLE_SCHEMA)) == kept


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("name", ["i", "f", "s", "d"])
def test_the_least_and_the_greatest_value_of_a_row_group_are_its_own(tmp_path: Path, name: str, by_id: bool) -> None:
    table = pa.table(
        {
            "i": pa.array(range(10, 40), pa.int32()),
            "f": pa.array(range(10, 40), pa.float64()),
            "s": [f"v{i}" for i in range(10, 40)],
            "d": [DAY + dt.timedelta(i) for i in range(10, 40)],
        }
    )
    kinds = [(column, TABLE_SCHEMA.field(column).type) for column in table.column_names]
    former = [f"former {column}" for column in table.column_names]
    file = write_parquet(tmp_path / "x.parquet", table.rename_columns(former) if by_id else table)
    if by_id:
        columns = tuple(Column(at, column, kind) for at, (column, kind) in enumerate(kinds, 1))
        names = NamedIds({column: (at, NamedIds({})) for at, column in enumerate(former, 1)})
        file = replace(file, columns=FileColumns(TableColumns(columns, names=names)))
    for group, edge in ((0, 0), (0, 9), (1, 10), (1, 19), (2, 29)):
        wanted = pc.field(name) == table[name][edge].cast(TABLE_SCHEMA.field(name).type)
        kept = READER.prune(file, inspect(file), wanted, pa.schema(kinds))
        assert list(kept) == [group == place for place in range(3)]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(2**64 - 30, 2**64), pa.uint64()),
        pa.array(range(2**31, 2**31 + 30), pa.uint32()),
        pa.array([number >= 10 for number in range(30)]),
        pa.array(range(30), pa.decimal128(9, 2)),
        pa.array(range(-15, 15), pa.timestamp("ms")),
        pa.array(range(30), pa.timestamp("ns", "Europe/Berlin")),
        pa.array(range(30), pa.time32("ms")),
        pa.array(range(30), pa.time64("us")),
        pa.array(range(-15, 15), pa.duration("s")),
        pa.array([bytes([200 + number]) for number in range(30)]),
        pa.array([bytes([200 + number, 1]) for number in range(30)], pa.binary(2)),
        pa.array([f"{number:02}" for number in range(30)], pa.large_string()),
    ],
    ids=lambda values: str(values.type),
)
def test_row_groups_are_ruled_out_by_bounds_of_any_type_and_never_one_that_has_the_value(
    tmp_path: Path, values: pa.Array
) -> None:
    file = write_parquet(tmp_path / "x.parquet", pa.table({"v": values}))
    meta = inspect(file)
    schema = meta.schema.remove_metadata()
    for row in range(30):
        kept = READER.prune(file, meta, pc.field("v") == values[row].cast(schema.field("v").type), schema)
        assert kept[row // 10]
        if not pa.types.is_boolean(values.type) and not pa.types.is_fixed_size_binary(values.type):
            assert list(kept) == [row // 10 == place for place in range(3)]


def test_row_groups_without_statistics_are_kept(tmp_path: Path) -> None:
    table = pa.table({"f": pa.array([0.1], pa.float32()), "s": [{"x": 1}], "l": [[1]], "i": [5]})
    file = write_parquet(tmp_path / "x.parquet", table)
    schema = pa.schema(
        [("f", pa.float64()), ("s", table.schema.field("s").type), ("l", pa.list_(pa.int64())), ("i", pa.int64())]
    )
    reader, meta = READER, inspect(file)
    # 0.1 as float32 is greater than 0.1 as double: the row passes.
    assert list(reader.prune(file, meta, pc.field("f") > 0.1, schema)) == [True]
    assert list(reader.prune(file, meta, pc.field("s", "x") > 3, schema)) == [True]
    assert list(reader.prune(file, meta, pc.list_value_length(pc.field("l")) > 3, schema)) == [True]
    silent = write_parquet(tmp_path / "y.parquet", table, write_statistics=False)
    assert list(reader.prune(silent, inspect(silent), pc.field("i") > 10, schema)) == [True]


def test_a_writer_whose_bounds_of_times_are_off_rules_nothing_out(tmp_path: Path) -> None:
    table = pa.table({"t": pa.array([dt.datetime(2021, 1, 1, 4)] * 5, pa.timestamp("ms")), "i": [4] * 5})  # noqa: DTZ001
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression="none", use_dictionary=False)
    writer = re.search(rb"parquet-cpp-arrow version [\d.]+", path.read_bytes())
    assert writer is not None
    for created_by, kept in ((writer[0], [False]), (b"Parquet.Net version 4.25.0".ljust(len(writer[0])), [True])):
        path.write_bytes(path.read_bytes().replace(writer[0], created_by))
        file = data_file(path, "parquet")
        meta = inspect(file)
        noon = pa.scalar(dt.datetime(2021, 1, 1, 12), pa.timestamp("ms"))  # noqa: DTZ001
        assert READER.prune(file, meta, pc.field("t") >= noon, table.schema) == kept
        assert READER.prune(file, meta, pc.field("i") > 4, table.schema) == [False]
