"""One small Iceberg table for each feature, and the rows that it must give, from a log that the test keeps itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from tests.tables.catalogs import load_catalog
from tests.tables.iceberg import COLUMNS, IcebergWriter, Row, column, deletes_in_their_partition, some


@dataclass(frozen=True)
class Case:
    """A table and what it holds.

    Args:
        location: of its metadata.
        rows: that a reader must give, in any order.
        options: for the reader.
    """

    location: str
    rows: Sequence[Row]
    options: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Callable[[Path], Case]] = {}


def case(make: Callable[[Path], Case]) -> Callable[[Path], Case]:
    """Put a case on the list, under its function's name."""
    CASES[make.__name__.removeprefix("_")] = make
    return make


# Tables as the specification says, written file by file


def of(table: IcebergWriter, **options: Any) -> Case:
    return Case(table.metadata, table.live(), options)


@case
def _plain(folder: Path) -> Case:
    table = IcebergWriter(folder)
    for start in range(0, 60, 20):
        table.append(some(start, start + 20), group=6)
        table.commit()
    return of(table)


@case
def _version_3(folder: Path) -> Case:
    table = IcebergWriter(folder, version=3)
    table.append(some(0, 20))
    table.commit()
    return of(table)


@case
def _orc(folder: Path) -> Case:
    table = IcebergWriter(folder)
    table.append(some(0, 40), "orc")
    table.commit()
    return of(table)


@case
def _avro(folder: Path) -> Case:
    table = IcebergWriter(folder)
    table.append(some(0, 40), "avro")
    table.commit()
    return of(table)


@case
def _mixed_formats_with_deletes(folder: Path) -> Case:
    table = IcebergWriter(folder)
    paths = [
        table.append(some(20 * at, 20 * at + 20), form, group=6) for at, form in enumerate(("parquet", "orc", "avro"))
    ]
    table.commit()
    for at, form in enumerate(("avro", "parquet", "orc")):
        table.delete_rows({paths[at]: [0, 7, 19]}, form)
        table.delete_keys([1], [{"x": 20 * at + 3}], form)
    table.commit()
    return of(table)


@case
def _position_deletes(folder: Path) -> Case:
    table = IcebergWriter(folder)
    first, second = table.append(some(0, 30), group=7), table.append(some(30, 60), group=7)
    table.append(some(60, 90))
    table.commit()
    table.delete_rows({first: [0, 6, 7, 29], second: range(5, 25)})
    table.commit()
    table.delete_rows({first: [7, 8]})
    table.commit()
    return of(table)


@case
def _deletion_vectors(folder: Path) -> Case:
    table = IcebergWriter(folder)
    first, second = table.append(some(0, 30), group=7), table.append(some(30, 60), group=7)
    table.delete_rows({first: [1, 2]})
    table.commit()
    table.version = 3
    table.delete_vector(first, [2, 3, 29])
    table.delete_vector(second, range(30))
    table.commit()
    return of(table)


@case
def _equality_deletes_with_null_keys(folder: Path) -> Case:
    table = IcebergWriter(folder)
    table.append(some(0, 40), group=9)
    table.commit()
    table.delete_keys([2, 3], [{"k": None, "s": "s0"}, {"k": 1, "s": "s1"}, {"k": 2, "s": None}])
    table.append(some(40, 60))
    table.commit()
    return of(table)


@case
def _equality_deletes_of_the_keys_not_read(folder: Path) -> Case:
    table = IcebergWriter(folder)
    table.append(some(0, 40))
    table.commit()
    table.delete_keys([2], [{"k": 3}, {"k": None}])
    table.commit()
    return Case(table.metadata, [{"x": row["x"]} for row in table.live()], {"columns": ["x"]})


@case
def _equality_deletes_in_their_partition(folder: Path) -> Case:
    return of(deletes_in_their_partition(folder))


@case
def _partition_values_that_files_lack(folder: Path) -> Case:
    table = IcebergWriter(folder, partition_by=2)
    for part in (3, None):
        table.append([{"x": x, "k": part, "s": f"{x}"} for x in range(12)], partition=part, names=("x", "s"))
    table.commit()
    return of(table)


@case
def _partition_values_of_doubles_that_files_lack(folder: Path) -> Case:
    table = IcebergWriter(folder, (*COLUMNS, column(4, "d", "double")), partition_by=4)
    for part in (0.1, None, 1e300):
        table.append([row | {"d": part} for row in some(0, 9)], partition=part, names=("x", "k", "s"))
    table.commit()
    return of(table)


@case
def _columns_by_id(folder: Path) -> Case:
    """A column renamed, one dropped and added anew under its name, one of another's name, the order changed."""
    table = IcebergWriter(folder)
    table.append(some(0, 20))
    table.append(some(20, 30), "orc")
    table.append(some(30, 40), "avro")
    table.commit()
    table.evolve([column(5, "x", "long"), column(1, "k", "long"), column(6, "s", "string")])
    table.append([{"x": 7, "k": 100, "s": "new"}])
    table.commit()
    return of(table)


@case
def _an_initial_default(folder: Path) -> Case:
    table = IcebergWriter(folder, version=3)
    for at, form in enumerate(("parquet", "orc", "avro")):
        table.append(some(10 * at, 10 * at + 10), form)
    table.commit()
    table.evolve([*table.columns, column(8, "d", "int", **{"initial-default": 7}), column(9, "e", "string")])
    table.append(some(30, 40, d=None, e="e"))
    table.commit()
    return of(table)


@case
def _int_to_long_in_keys_of_deletes(folder: Path) -> Case:
    table = IcebergWriter(folder)
    for form in ("parquet", "orc", "avro"):
        table.append(some(0, 20), form)
    table.commit()
    table.delete_keys([2], [{"k": 3}])
    table.commit()
    table.evolve([column(1, "x", "long"), column(2, "k", "long"), column(3, "s", "string")])
    table.append([{"x": 99, "k": 2**40, "s": None}, {"x": 98, "k": 3, "s": None}])
    table.commit()
    return of(table)


# Tables as pyiceberg writes them, and a log of the rows by the ids of their columns

CLICKS = pa.schema(
    [
        ("x", pa.int64()),
        ("n", pa.int32()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("m", pa.decimal128(9, 2)),
        ("o", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("l", pa.list_(pa.struct([("a", pa.int32())]))),
        ("p", pa.map_(pa.string(), pa.struct([("f", pa.float32())]))),
    ]
)


def clicks(start: int, stop: int, *, none: Any = ()) -> list[Row]:
    """Make rows; pyiceberg writes a NULL list or map of structs as an empty one, so `none` stands there."""
    return [
        {
            "x": x,
            "n": None if x % 7 == 0 else x % 4,
            "f": x / 4,
            "s": None if x % 11 == 0 else f"name-{x % 5}",
            "at": dt.datetime(2020, 1 + x % 3, 1 + x % 9, x % 24, tzinfo=dt.UTC),
            "m": Decimal(x).scaleb(-2),
            "o": None if x % 6 == 0 else {"a": x, "b": f"b{x}"},
            "l": none if x % 5 == 0 else [{"a": x}, None, {"a": None}][: x % 4],
            "p": none if x % 8 == 0 else [(f"p{at}", {"f": x / 2}) for at in range(x % 3)],
        }
        for x in range(start, stop)
    ]


@dataclass
class Logged:
    """A table of pyiceberg's, and its rows as they went in."""

    table: Table
    rows: list[dict[int, Any]] = field(default_factory=list)

    @classmethod
    def create(cls, folder: Path, schema: pa.Schema = CLICKS, **properties: str) -> Logged:
        folder.mkdir(parents=True)
        catalog = load_catalog(
            "matrix", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake"
        )
        catalog.create_namespace("db")
        return cls(catalog.create_table("db.clicks", schema, properties=properties))

    def append(self, rows: Iterable[Row], **how: Any) -> None:
        rows = list(rows)
        schema = self.table.schema()
        self.table.append(pa.Table.from_pylist(rows, schema.as_arrow()), **how)
        self.rows += [by_id(row, schema.as_struct()) for row in rows]

    def delete(self, text: str, gone: Callable[[Row], bool]) -> None:
        self.table.delete(text)
        self.rows = [row for row, named in zip(self.rows, self.live(), strict=True) if not gone(named)]

    def live(self, schema: Schema | None = None) -> list[Row]:
        struct = (schema or self.table.schema()).as_struct()
        return [by_name(row, struct) for row in self.rows]

    def case(self, rows: Sequence[Row] | None = None, **options: Any) -> Case:
        return Case(self.table.metadata_location, self.live() if rows is None else rows, options)


def by_id(value: Any, kind: IcebergType) -> Any:
    """Name the fields of a value by their ids, at any depth."""
    match value, kind:
        case None, _:
            return None
        case _, StructType(fields=fields):
            return {each.field_id: by_id(value.get(each.name), each.field_type) for each in fields}
        case _, ListType():
            return [by_id(each, kind.element_type) for each in value]
        case _, MapType():
            return [(by_id(key, kind.key_type), by_id(each, kind.value_type)) for key, each in value]
    return value


def by_name(value: Any, kind: IcebergType) -> Any:
    """Name the fields of a value as a later schema does; it has None where the value's own had no such field."""
    match value, kind:
        case None, _:
            return None
        case _, StructType(fields=fields):
            return {each.name: by_name(value.get(each.field_id), each.field_type) for each in fields}
        case _, ListType():
            return [by_name(each, kind.element_type) for each in value]
        case _, MapType():
            return [(by_name(key, kind.key_type), by_name(each, kind.value_type)) for key, each in value]
    return value


PARTITIONS: dict[str, tuple[str, Transform[Any, Any]]] = {
    "identity": ("s", IdentityTransform()),
    "bucket": ("x", BucketTransform(4)),
    "truncate": ("s", TruncateTransform(6)),
    "year": ("at", YearTransform()),
    "month": ("at", MonthTransform()),
    "day": ("at", DayTransform()),
    "hour": ("at", HourTransform()),
}


def _partitioned(source: str, transform: Transform[Any, Any]) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        log = Logged.create(folder)
        with log.table.update_spec() as spec:
            spec.add_field(source, transform, "part")
        log.append(clicks(0, 40))
        wanted = (pc.field("x") > 7) & ((pc.field("s") == "name-3") | (pc.field("at") > _JANUARY))
        rows = [row for row in log.live() if row["x"] > 7 and (row["s"] == "name-3" or row["at"] > _JANUARY.as_py())]
        return log.case(rows, filters=wanted)

    return make


_JANUARY = pa.scalar(dt.datetime(2020, 1, 31, tzinfo=dt.UTC), pa.timestamp("us", "UTC"))

for _name, _how in PARTITIONS.items():
    CASES[f"partitioned_by_{_name}"] = _partitioned(*_how)


@case
def _partitioned_by_void(folder: Path) -> Case:
    """A field that version 1 cannot take out of its spec becomes void."""
    log = Logged.create(folder, **{"format-version": "1"})
    with log.table.update_spec() as spec:
        spec.add_identity("s").add_field("x", BucketTransform(3), "part")
    log.append(clicks(0, 20))
    with log.table.update_spec() as spec:
        spec.remove_field("part")
    assert "void" in str(log.table.spec())
    log.append(clicks(20, 40))
    return log.case()


@case
def _a_spec_that_evolved(folder: Path) -> Case:
    log = Logged.create(folder)
    log.append(clicks(0, 12))
    with log.table.update_spec() as spec:
        spec.add_field("at", DayTransform(), "day").add_identity("s")
    log.append(clicks(12, 30))
    with log.table.update_spec() as spec:
        spec.remove_field("s").add_field("n", IdentityTransform(), "n_part")
    log.append(clicks(30, 50))
    rows = [row for row in log.live() if row["n"] is None or row["n"] > 1]
    return log.case(rows, filters=pc.field("n").is_null() | (pc.field("n") > 1))


@case
def _version_1(folder: Path) -> Case:
    log = Logged.create(folder, **{"format-version": "1"})
    log.append(clicks(0, 20))
    log.append(clicks(20, 40))
    return log.case()


@case
def _a_schema_that_evolved(folder: Path) -> Case:
    """Renamed, moved, dropped and added anew, added; wider numbers; and all of it inside struct, list and map."""
    log = Logged.create(folder)
    log.append(clicks(0, 20))
    with log.table.update_schema() as change:
        change.rename_column("s", "text").add_column("new", LongType()).delete_column("at").move_first("m")
        change.update_column("n", LongType()).update_column("f", DoubleType()).update_column("m", DecimalType(18, 2))
        change.update_column(("o", "a"), LongType()).rename_column(("o", "b"), "c").add_column(("o", "d"), LongType())
        change.update_column(("l", "a"), LongType()).add_column(("l", "b"), StringType())
        change.update_column(("p", "f"), DoubleType()).add_column(("p", "g"), LongType())
    with log.table.update_schema() as change:
        change.add_column("at", StringType()).delete_column("new").delete_column(("o", "a"))
    with log.table.update_schema() as change:
        change.add_column("new", LongType()).add_column(("o", "a"), StringType())
    log.append(
        {
            "m": Decimal("1234567890123.45"),
            "x": x,
            "n": 2**40,
            "f": 0.1,
            "text": None,
            "o": {"c": "c", "d": 2**40, "a": "text"},
            "l": [{"a": 2**40, "b": "b"}],
            "p": [("k", {"f": 0.1, "g": 2**40})],
            "at": "here",
            "new": x,
        }
        for x in range(100, 110)
    )
    return log.case()


@case
def _name_mapping(folder: Path) -> Case:
    """Files without ids, which pyiceberg adds to a table as they are; and a column renamed since."""
    log = Logged.create(folder)
    struct = log.table.schema().as_struct()
    for start in (0, 20):
        path = folder / f"foreign-{start}.parquet"
        rows = clicks(start, start + 20, none=None)
        pq.write_table(pa.Table.from_pylist(rows, CLICKS), path)
        log.table.add_files([f"file://{path}"])
        log.rows += [by_id(row, struct) for row in rows]
    assert "schema.name-mapping.default" in log.table.properties
    with log.table.update_schema() as change:
        change.rename_column("s", "text").add_column("new", LongType())
    return log.case()


@case
def _rows_deleted_by_copies(folder: Path) -> Case:
    log = Logged.create(folder)
    log.append(clicks(0, 20))
    log.append(clicks(20, 40))
    log.delete("x < 5 or x > 36", lambda row: bool(row["x"] < 5 or row["x"] > 36))
    return log.case()


def _history(folder: Path) -> Logged:
    """Two snapshots, a tag and a branch on the first, a renamed column since."""
    log = Logged.create(folder)
    log.append(clicks(0, 20))
    first = log.table.snapshots()[0].snapshot_id
    with log.table.manage_snapshots() as manage:
        manage.create_tag(first, "old").create_branch(first, "side")
    with log.table.update_schema() as change:
        change.rename_column("s", "text")
    return log


@case
def _a_tag(folder: Path) -> Case:
    log = _history(folder)
    expected = log.live(log.table.schemas()[0])  # a tag has the schema of its snapshot
    log.append([{**row, "text": row.pop("s")} for row in clicks(20, 40)])
    return log.case(expected, tag="old")


@case
def _a_branch(folder: Path) -> Case:
    log = _history(folder)
    log.append(({**row, "text": row.pop("s")} for row in clicks(20, 30)), branch="side")
    expected = log.live()  # a branch has the schema of the table
    log.append({**row, "text": row.pop("s")} for row in clicks(30, 40))
    return log.case(expected, branch="side")


@case
def _as_of(folder: Path) -> Case:
    log = _history(folder)
    expected = log.live(log.table.schemas()[0])
    log.append({**row, "text": row.pop("s")} for row in clicks(20, 40))
    return log.case(expected, as_of=log.table.snapshots()[0].timestamp_ms)


@case
def _a_snapshot(folder: Path) -> Case:
    log = _history(folder)
    expected = log.live(log.table.schemas()[0])
    log.append({**row, "text": row.pop("s")} for row in clicks(20, 40))
    return log.case(expected, snapshot_id=log.table.snapshots()[0].snapshot_id)


@case
def _a_scan_filter(folder: Path) -> Case:
    log = Logged.create(folder)
    for start in range(0, 60, 10):
        log.append(clicks(start, start + 10))
    rows = [row for row in log.live() if row["x"] >= 15 and row["n"] is not None and row["s"] != "name-2"]
    text = "x >= 15 and n is not null and s != 'name-2'"
    return log.case([row for row in rows if row["s"] is not None], scan_filter=text)


__all__ = ["CASES", "Case"]
