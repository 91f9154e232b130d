"""A filter leaves out manifests, files and row groups, and never a row."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions

from tests.effort import examples
from tests.filtered import canonical, filters, rows
from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import ConfigError, ConfigTypeError, IcebergDataset
from torch_table_loader.predicates.filter_key import Call, Field, Literal, parse
from torch_table_loader.source.iceberg.pruning import iceberg_schema, translate
from torch_table_loader.source.iceberg.schema import read_schema

ice: Any = expressions

COLUMNS = (column(1, "x", "long"), column(2, "k", "int"), column(3, "f", "double"), column(4, "s", "string"))
files = st.lists(st.tuples(st.lists(rows, max_size=5), st.integers(0, 1)), min_size=1, max_size=5)


def read(location: str, **options: Any) -> tuple[list[dict[str, Any]], IcebergDataset]:
    loader, dataset = IcebergDataset.create_dataloader(
        metadata_location=location, output_format="arrow", num_workers=0, **options
    )
    return [row for batch in loader for row in batch.to_pylist()], dataset


FORMER = (column(1, "s", "int"), column(2, "q", "int"), column(3, "k", "float"), column(4, "x", "string"))
"""The columns of `COLUMNS` before they were renamed, some to what others were called, and promoted."""


@settings(deadline=None, max_examples=examples(50), suppress_health_check=list(HealthCheck))
@given(files=files, wanted=filters, partitioned=st.booleans(), evolved=st.integers(0, 5))
def test_filters_neither_lose_nor_add_rows(
    files: list[Any], wanted: pc.Expression, partitioned: bool, evolved: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = IcebergWriter(Path(folder), FORMER if evolved else COLUMNS, partition_by=2 if partitioned else None)
        for at, (own, part) in enumerate(files):
            if at == evolved and evolved:
                table.evolve(COLUMNS)
            now = [{**row, "k": part} for row in own] if partitioned else own
            renamed = {new["name"]: old["name"] for new, old in zip(COLUMNS, table.columns, strict=True)}
            table.append(
                [{renamed[name]: value for name, value in row.items()} for row in now], partition=part, group=2
            )
            table.commit()
        if evolved >= len(files):
            table.evolve(COLUMNS)
            table.commit()
        live = pa.Table.from_pylist(
            table.live(), pa.schema([("x", "int64"), ("k", "int32"), ("f", "float64"), ("s", "string")])
        )
        found, _ = read(table.metadata, filters=wanted)
        assert canonical(found) == canonical(live.filter(wanted).to_pylist())


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (pc.field("x") > 79, 3),
        (pc.field("x") == 35, 1),
        (pc.field("k").isin([3, 71]), 2),
        (pc.field("f") <= 19.5, 2),
        (~(pc.field("f") <= 19.5), 11),  # NaN passes, of which statistics say nothing
        (pc.field("s") < "s2", 2),
        (pc.field("s").is_null(), 1),
        ((pc.field("x") < 20) & (pc.field("k") > 10), 1),
    ],
    ids=str,
)
def test_row_groups_of_renamed_and_promoted_columns_are_left_out(
    tmp_path: Path, wanted: pc.Expression, kept: int
) -> None:
    table = IcebergWriter(tmp_path, FORMER)
    rows = [{"s": x, "q": x, "k": float(x), "x": None if x > 99 else f"s{x // 10}"} for x in range(101)]
    table.append(rows, group=10)
    table.evolve(COLUMNS)
    table.commit()
    found, dataset = read(table.metadata, filters=wanted)
    assert int(dataset.table.layout.group_kept.sum()) == kept
    live = pa.Table.from_pylist(table.live(), dataset.schema)
    assert canonical(found) == canonical(live.filter(wanted).to_pylist())


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize("name", ["x", "k", "f", "s"])
def test_the_least_and_the_greatest_value_of_a_row_group_are_its_own(tmp_path: Path, name: str, former: bool) -> None:
    table = IcebergWriter(tmp_path, FORMER if former else COLUMNS)
    called = dict(zip("xkfs", [c["name"] for c in FORMER] if former else "xkfs", strict=True))
    kinds: dict[str, Any] = {"x": int, "k": int, "f": float, "s": "v{}".format}
    values = {column: [kinds[column](x) for x in range(10, 22)] for column in "xkfs"}
    for start in (0, 6):
        here = range(start, start + 6)
        table.append([{called[column]: values[column][at] for column in "xkfs"} for at in here], group=3)
    table.evolve(COLUMNS)
    table.commit()
    for at in (0, 2, 3, 5, 6, 11):
        value = values[name][at]
        for wanted in (pc.field(name) == value, pc.field(name).isin([value]), ~(pc.field(name) != value)):
            found, dataset = read(table.metadata, filters=wanted)
            assert [row[name] for row in found] == [value]
            assert int(dataset.table.layout.group_kept.sum()) == 1
    assert len(read(table.metadata, filters=pc.field(name) >= values[name][11])[0]) == 1
    assert len(read(table.metadata, filters=pc.field(name) <= values[name][0])[0]) == 1


def ranges(root: Path, partition_by: int | None = None) -> IcebergWriter:
    table = IcebergWriter(root, partition_by=partition_by)
    for part in range(4):
        table.append([{"x": 10 * part + i, "k": part, "s": "ab"[part % 2]} for i in range(10)], partition=part)
    table.commit()
    return table


@pytest.mark.parametrize("partition_by", [None, 2])
def test_files_are_left_out_and_explain_reports_it(tmp_path: Path, partition_by: int | None) -> None:
    location = ranges(tmp_path, partition_by).metadata
    found, dataset = read(location, filters=(pc.field("k") == 2) & (pc.field("x") + 0 > 22))
    assert [row["x"] for row in found] == list(range(23, 30))
    told = dataset.explain()
    assert told.files == 1
    said = "\n".join(told.notes)
    assert "3 of 4 files of the others by partition values and statistics" in said
    assert "greater(add" in said
    assert "leaves no file out" in said


@pytest.mark.parametrize(
    "scan_filter",
    [
        "k = 2 and x > 22",
        ice.And(ice.EqualTo("k", 2), ice.GreaterThan("x", 22)),
        ice.And(ice.Not(ice.Not(ice.EqualTo("k", 2))), ice.GreaterThan("x", 22)),
    ],
)
def test_a_scan_filter_is_text_or_pyiceberg(tmp_path: Path, scan_filter: Any) -> None:
    location = ranges(tmp_path).metadata
    found, dataset = read(location, scan_filter=scan_filter, filters=pc.field("x") < 25)
    assert [row["x"] for row in found] == [23, 24]
    assert dataset.explain().files == 1


def test_scan_filters_that_do_not_fit(tmp_path: Path) -> None:
    location = ranges(tmp_path).metadata
    assert read(location, scan_filter=ice.IsNull("x"))[0] == []
    with pytest.raises(ConfigError, match=r"its columns are x, k, s"):
        read(location, scan_filter="y > 3")
    with pytest.raises(ConfigError, match="does not fit the table"):
        read(location, scan_filter="x >")
    with pytest.raises(ConfigTypeError, match="goes into filters="):
        read(location, scan_filter=pc.field("x") > 3)
    with pytest.raises(ConfigError, match="the nearest are 'x'"):
        read(location, filters=pc.field("xx") > 3)


def test_a_tree_is_parsed_from_a_serialized_expression() -> None:
    tree = parse(~(pc.field("a", "b") >= pc.scalar("2020-01-01").cast(pa.date32())))
    assert isinstance(tree, Call)
    assert tree.function == "invert"
    [inner] = tree.arguments
    assert isinstance(inner, Call)
    assert inner.arguments[0] == Field(("a", "b"))
    cast = inner.arguments[1]
    assert isinstance(cast, Call)
    assert cast.arguments == (Literal(pa.scalar("2020-01-01")),)
    assert cast.options is not None
    assert cast.options.type.field("to_type").type == pa.date32()


STRUCT = {
    "fields": [
        column(1, "day", "date"),
        column(2, "at", "timestamptz"),
        column(3, "d", "decimal(9, 2)"),
        column(4, "h", "float"),
        column(5, "o", {"type": "struct", "fields": [column(6, "i", "int")]}),  # type: ignore[arg-type]
        column(7, "b", "boolean"),
        column(8, "t", "string"),
    ]
}
ARROW = pa.schema(
    [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("d", pa.decimal128(9, 2)),
        ("h", pa.float32()),
        ("o", pa.struct([("i", pa.int32())])),
        ("b", pa.bool_()),
        ("t", pa.string()),
    ]
)
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("wanted", "kind", "name", "value"),
    [
        (pc.field("day") < dt.date(2020, 1, 1), ice.LessThan, "day", dt.date(2020, 1, 1)),
        (pc.field("day") < pc.scalar("2020-01-01").cast(pa.date32()), ice.LessThan, "day", dt.date(2020, 1, 1)),
        (pc.scalar(3) <= pc.field("o", "i"), ice.GreaterThanOrEqual, "o.i", 3),
        (pc.field("at") == pa.scalar(NOON, pa.timestamp("ms", "UTC")), ice.EqualTo, "at", 1577880000000000),
        (pc.field("d") >= decimal.Decimal("1.5"), ice.GreaterThanOrEqual, "d", decimal.Decimal("1.50")),
        (pc.field("b"), ice.EqualTo, "b", True),
        (~pc.field("b"), ice.EqualTo, "b", False),
        (pc.field("h") > 0.5, ice.GreaterThan, "h", 0.5),
        (~pc.starts_with(pc.field("t"), "a"), ice.NotStartsWith, "t", "a"),
    ],
    ids=str,
)
def test_literals_keep_their_value(wanted: pc.Expression, kind: Any, name: str, value: Any) -> None:
    found: Any
    found, untranslated = translate(wanted, iceberg_schema(read_schema(STRUCT)), ARROW)
    assert type(found) is kind
    assert found.term.name == name
    wanted_value = (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value
    assert found.literal.value in (value, wanted_value)
    assert untranslated == []


def test_null_compares_to_nothing() -> None:
    expression, _ = translate(
        pc.field("day") == pa.scalar(None, pa.date32()), iceberg_schema(read_schema(STRUCT)), ARROW
    )
    assert expression == ice.AlwaysFalse()


@pytest.mark.parametrize(
    "wanted",
    [
        pc.field("h") > 0.1,  # no float32 is 0.1: rounded, it would leave 0.1f out
        pc.field("d") > decimal.Decimal("1.505"),
        pc.field("at") > pa.scalar(1, pa.timestamp("ns", "UTC")),
        pc.field("h") == pa.scalar(math.nan),
        pc.field("day").cast(pa.timestamp("us")) > pa.scalar(0, pa.timestamp("us")),
        pc.starts_with(pc.field("day").cast(pa.string()), "2020"),
    ],
    ids=str,
)
def test_values_that_would_be_rounded_prune_nothing(wanted: pc.Expression) -> None:
    expression, untranslated = translate(wanted, iceberg_schema(read_schema(STRUCT)), ARROW)
    assert expression is None
    assert len(untranslated) == 1
