"""A filter leaves out manifests, files and row groups, and never a row."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions
from pyiceberg.transforms import parse_transform

from tests.effort import daily, examples
from tests.filtered import canonical, filters, rows
from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import ConfigError, ConfigTypeError, IcebergDataset
from torch_table_loader.iceberg.manifests import Entry, Manifest
from torch_table_loader.iceberg.metadata import SpecField, read_schema
from torch_table_loader.iceberg.pruning import Pruner, iceberg_schema
from torch_table_loader.predicates.facts import NULL, Facts, Predicate, ordinal
from torch_table_loader.predicates.filter_form import Call, Field, Literal, parse

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
@daily(3)
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
    ("wanted", "kept", "left"),
    [
        (pc.field("day") < dt.date(2020, 1, 1), dt.date(2019, 12, 31), dt.date(2020, 1, 1)),
        (pc.field("day") < pc.scalar("2020-01-01").cast(pa.date32()), dt.date(2019, 12, 31), dt.date(2020, 1, 1)),
        (pc.scalar(3) <= pc.field("o", "i"), 3, 2),
        (pc.field("at") == pa.scalar(NOON, pa.timestamp("ms", "UTC")), NOON, NOON + dt.timedelta(microseconds=1)),
        (pc.field("d") >= decimal.Decimal("1.5"), decimal.Decimal("1.50"), decimal.Decimal("1.49")),
        (pc.field("b"), True, False),
        (~pc.field("b"), False, True),
        (pc.field("h") > 0.5, 0.75, 0.5),
        (~pc.starts_with(pc.field("t"), "a"), "b", "a1"),
        (pc.starts_with(pc.field("t"), "ab"), "abc", "aa"),
        (pc.field("t").isin(["a", None]), "a", "b"),
        (~pc.field("t").isin(["a", "b"]), "c", "b"),
    ],
    ids=str,
)
def test_literals_keep_their_value(wanted: pc.Expression, kept: Any, left: Any) -> None:
    predicate = Predicate(wanted, ARROW)
    assert predicate.undecided == []
    [path] = predicate.paths
    kind = ARROW.field(path[0]).type
    kind = kind.field(path[1]).type if len(path) > 1 else kind
    for value, passes in ((kept, True), (left, False)):
        at = ordinal(pa.scalar(value, kind), kind)
        assert predicate.can_pass({path: Facts(at, at, nulls=False, nans=False)}) is passes
    if len(path) == 1:
        assert predicate.can_pass({}, {path[0]: pa.scalar(kept, kind)})
        assert not predicate.can_pass({}, {path[0]: pa.scalar(left, kind)})


def test_null_compares_to_nothing() -> None:
    predicate = Predicate(pc.field("day") == pa.scalar(None, pa.date32()), ARROW)
    assert not predicate.can_pass({})
    assert not Predicate(pc.field("day") > dt.date(2020, 1, 1), ARROW).can_pass({("day",): NULL})
    assert not Predicate(~(pc.field("day") > dt.date(2020, 1, 1)), ARROW).can_pass({("day",): NULL})


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
    predicate = Predicate(wanted, ARROW)
    assert len(predicate.undecided) == 1
    assert not predicate.paths
    assert predicate.can_pass({(field.name,): NULL for field in ARROW})


TICK = st.integers(-(10**16), 10**16)
DAYS = st.integers(-40_000, 40_000)
TEXTS = st.text("ab\ud7ff\ue000\U0010ffff", max_size=4)
TRANSFORMED: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("identity", "long"): st.integers(-3, 3),
    ("identity", "date"): DAYS,
    ("identity", "double"): st.sampled_from([-0.0, 0.0, 1.5, math.inf]),
    ("bucket[4]", "long"): st.integers(-9, 9),
    ("bucket[4]", "string"): TEXTS,
    ("bucket[3]", "timestamptz"): TICK,
    ("truncate[10]", "long"): st.integers(-40, 40),
    ("truncate[2]", "string"): TEXTS,
    ("truncate[10]", "decimal(9, 2)"): st.integers(-40, 40).map(lambda number: decimal.Decimal(number).scaleb(-2)),
    ("year", "date"): DAYS,
    ("month", "timestamptz"): TICK,
    ("day", "timestamp"): TICK,
    ("day", "date"): DAYS,
    ("hour", "timestamptz"): TICK,
    ("void", "long"): st.integers(-3, 3),
}


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    is_time = pa.types.is_temporal(kind)
    return pa.scalar(value, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind) if is_time else value


@pytest.mark.parametrize(("transform", "kind"), TRANSFORMED, ids=str)
def test_partition_values_leave_out_what_no_row_of_them_passes(transform: str, kind: str) -> None:
    schema = read_schema({"fields": [column(1, "v", kind)]})
    arrow = pa.schema([("v", schema.columns[0].type)])
    spec = {0: [SpecField.model_validate({"transform": transform, "source-id": 1})]}
    field = iceberg_schema(schema).find_field("v")
    part: Any = parse_transform(transform).transform(field.field_type)
    values = TRANSFORMED[transform, kind]
    distinct = transform != "void"

    @settings(deadline=None, max_examples=examples(60))
    @given(own=values | st.none(), other=values, compare=st.sampled_from(["__eq__", "__lt__", "__ge__"]))
    def holds(own: Any, other: Any, compare: str) -> None:
        literal = pa.scalar(scalar(other, arrow[0].type), arrow[0].type)
        pruner = Pruner(getattr(pc.field("v"), compare)(literal), schema, arrow, spec)
        value = part(own)
        is_date = (transform, kind) == ("identity", "date") and own is not None
        written = dt.date(1970, 1, 1) + dt.timedelta(value) if is_date else value
        kept = pruner.keeps(Entry("a", 0, "PARQUET", 0, (written,), 1, None, 1, 9), {"record_count": 1})
        passes = own is not None and bool(getattr(own, compare)(other))
        assert kept or not passes
        near_1970 = transform in ("year", "month", "day", "hour") and value is not None and value <= 0
        if distinct and compare == "__eq__" and not near_1970:
            assert kept == (value == part(other))

    holds()


def test_partitions_of_older_writers_keep_times_before_1970() -> None:
    schema = read_schema({"fields": [column(1, "v", "timestamp")]})
    wanted = pc.field("v") == pa.scalar(-1, pa.timestamp("us"))
    spec = {0: [SpecField.model_validate({"transform": "day", "source-id": 1})]}
    pruner = Pruner(wanted, schema, pa.schema([("v", pa.timestamp("us"))]), spec)
    kept = [
        pruner.keeps(Entry("a", 0, "PARQUET", 0, (day,), 1, None, 1, 9), {"record_count": 1}) for day in range(-2, 2)
    ]
    assert kept == [False, True, True, False]


@pytest.mark.parametrize(("transform", "kind"), [("identity", "long"), ("truncate[10]", "long"), ("bucket[8]", "long")])
def test_manifests_are_left_out_by_their_partitions(transform: str, kind: str) -> None:
    schema = read_schema({"fields": [column(1, "v", kind)]})
    spec = {0: [SpecField.model_validate({"transform": transform, "source-id": 1})]}
    arrow = pa.schema([("v", pa.int64())])
    part: Any = parse_transform(transform).transform(iceberg_schema(schema).find_field("v").field_type)
    form = "<i" if transform.startswith("bucket") else "<q"
    for value in range(0, 40, 3):
        at = struct.pack(form, part(value))
        summary = {"contains_null": False, "contains_nan": False, "lower_bound": at, "upper_bound": at}
        manifest = Manifest("m", 0, partitions=(summary,))
        for other in range(0, 40, 3):
            pruner = Pruner(pc.field("v") == other, schema, arrow, spec)
            assert pruner.keeps_manifest(manifest) == (part(other) == part(value))
    assert pruner.keeps_manifest(Manifest("m", 0))
    assert pruner.keeps_manifest(Manifest("m", 1, partitions=(summary,)))
    nulls = {"contains_null": True, "lower_bound": None, "upper_bound": None}
    assert not pruner.keeps_manifest(Manifest("m", 0, partitions=(nulls,)))
    assert Pruner(pc.field("v").is_null(), schema, arrow, spec).keeps_manifest(Manifest("m", 0, partitions=(nulls,)))
