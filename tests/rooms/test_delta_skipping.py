"""A filter leaves out files and row groups of a Delta Lake table, and never a row."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.filtered import canonical, filters, rows
from tests.tables.delta import DeltaWriter, field_of, stats_of
from torch_table_loader import DeltaDataset

COLUMNS = [field_of("x", "long"), field_of("k", "integer"), field_of("f", "double"), field_of("s", "string")]
SCHEMA = pa.schema([("x", "int64"), ("k", "int32"), ("f", "float64"), ("s", "string")])
PHYSICAL = {"x": "s", "k": "x", "f": "col-f", "s": "k"}
"""What files call the columns of a mapped table, some as others are called."""

files = st.lists(
    st.tuples(st.lists(rows, max_size=5), st.integers(0, 1), st.sampled_from(["all", "rows", None]), st.booleans()),
    min_size=1,
    max_size=5,
)


def open_table(uri: Any, **options: Any) -> tuple[list[dict[str, Any]], DeltaDataset]:
    loader, dataset = DeltaDataset.create_dataloader(uri, output_format="arrow", num_workers=0, **options)
    return [row for batch in loader for row in batch.to_pylist()], dataset


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(files=files, wanted=filters, partitioned=st.booleans(), mapped=st.booleans())
def test_no_row_is_lost_and_none_is_won(
    files: list[Any], wanted: pc.Expression, partitioned: bool, mapped: bool
) -> None:
    columns, features, settings = COLUMNS, ["deletionVectors"], {}
    called = PHYSICAL if mapped else {name: name for name in PHYSICAL}
    if mapped:
        columns = [
            field_of(c["name"], c["type"], id=at, physicalName=called[c["name"]]) for at, c in enumerate(COLUMNS)
        ]
        features, settings = [*features, "columnMapping"], {"delta.columnMapping.mode": "name"}
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaWriter(Path(folder) / "t", columns, ["k"] if partitioned else [], features, settings)
        for own, part, told, deleted in files:
            now = [{**row, "k": part} for row in own] if partitioned else own
            held = pa.Table.from_pylist(now, SCHEMA).rename_columns([called[name] for name in SCHEMA.names])
            held = held.drop_columns([called["k"]]) if partitioned else held
            stats = {"all": stats_of(held), "rows": {"numRecords": len(now)}, None: None}[told]
            path = table.append(
                now, {called["k"]: str(part)} if partitioned else None, table=held, group=2, stats=stats
            )
            if deleted and told and now:
                table.delete(path, [0])
        table.commit()
        live = pa.Table.from_pylist(table.live(), SCHEMA)
        found, _ = open_table(table.uri, filters=wanted)
        assert canonical(found) == canonical(live.filter(wanted).to_pylist())


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (pc.field("x") > 79, 2),
        (pc.field("x") == 25, 1),
        (pc.field("x").isin([5, 95]), 2),
        (~(pc.field("x") < 90), 1),
        (pc.field("s") == "file 3", 1),
        (pc.field("s").is_null(), 0),
        ((pc.field("x") < 10) | (pc.field("s") == "file 9"), 2),
        (pc.field("f") > 8.5, 1),
        (pc.field("f").isin([0.0, 9.0]), 2),
        (~(pc.field("f") > 8.5), 10),  # NaN passes, of which bounds do not tell
        (pc.field("day") > dt.date(2026, 1, 8), 2),
        (pc.field("at") >= pa.scalar(dt.datetime(2026, 1, 10, tzinfo=dt.UTC)), 1),
        (pc.field("nope_is_null").is_valid(), 0),
        (pc.field("x") + 1 > 95, 10),
    ],
)
@daily(3)
def test_files_are_left_out_before_they_are_opened(tmp_path: Path, wanted: pc.Expression, kept: int) -> None:
    for at in range(10):
        day = dt.datetime(2026, 1, 1 + at, tzinfo=dt.UTC)
        own = pa.table(
            {
                "x": list(range(10 * at, 10 * at + 10)),
                "s": [f"file {at}"] * 10,
                "f": [float(at)] * 10,
                "day": [day.date()] * 10,
                "at": pa.array([day] * 10, pa.timestamp("us", "UTC")),
                "nope_is_null": pa.nulls(10, pa.int64()),
            }
        )
        write_deltalake(str(tmp_path / "t"), own, mode="append")
    found, dataset = open_table(tmp_path / "t", filters=wanted, footers="lazy")
    everything, _ = open_table(tmp_path / "t")
    whole = pa.Table.from_pylist(everything, dataset.table.schema)
    assert len(dataset.table.files) == kept
    assert canonical(found) == canonical(whole.filter(wanted).to_pylist())
    assert f"prunes {10 - kept} of 10 files" in " ".join(dataset.table.notes)


@pytest.mark.parametrize("name", ["x", "k", "f", "s", "day"])
def test_the_least_and_the_greatest_value_of_a_file_are_its_own(tmp_path: Path, name: str) -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(at) for at in range(9)]
    every = pa.table(
        {
            "x": list(range(10, 19)),
            "k": pa.array(range(10, 19), pa.int32()),
            "f": [float(at) for at in range(10, 19)],
            "s": [f"v{at}" for at in range(10, 19)],
            "day": days,
        }
    )
    for start in (0, 3, 6):
        write_deltalake(str(tmp_path / "t"), every.slice(start, 3), mode="append")
    for at in (0, 2, 3, 5, 6, 8):
        value = every[name][at]
        found, dataset = open_table(tmp_path / "t", filters=pc.field(name) == value)
        assert [row["x"] for row in found] == [10 + at]
        assert len(dataset.table.files) == 1
    assert len(open_table(tmp_path / "t", filters=pc.field(name) >= every[name][8])[0]) == 1
    assert len(open_table(tmp_path / "t", filters=pc.field(name) <= every[name][0])[0]) == 1


def test_times_are_later_than_their_statistics_by_up_to_a_millisecond(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t", [field_of("t", "timestamp")], features=())
    when = dt.datetime(2026, 1, 1, 12, 0, 0, 123_999, tzinfo=dt.UTC)
    cut = {
        "numRecords": 1,
        "nullCount": {"t": 0},
        **{f"{end}Values": {"t": "2026-01-01T12:00:00.123Z"} for end in ("min", "max")},
    }
    table.append([{"t": when}], table=pa.table({"t": pa.array([when], pa.timestamp("us", "UTC"))}), stats=cut)
    table.commit()
    for value, expected in ((when, 1), (when + dt.timedelta(milliseconds=2), 0)):
        found, dataset = open_table(table.uri, filters=pc.field("t") >= pa.scalar(value))
        assert len(found) == len(dataset.table.files) == expected


def test_statistics_of_a_type_that_was_widened(tmp_path: Path) -> None:
    table = DeltaWriter(
        tmp_path / "t", [field_of("d", "decimal(12,3)"), field_of("l", "long")], features=("typeWidening",)
    )
    for at in range(3):
        held = pa.table({"d": pa.array([at], pa.decimal128(9, 2)), "l": pa.array([at], pa.int16())})
        numbers = {"d": float(at), "l": at}
        stats = {"numRecords": 1, "minValues": numbers, "maxValues": numbers, "nullCount": {"d": 0, "l": 0}}
        table.append([], table=held, stats=stats)
    table.commit()
    for wanted in (pc.field("d") == pa.scalar(Decimal(1), pa.decimal128(12, 3)), pc.field("l") == 1):
        found, dataset = open_table(table.uri, filters=wanted)
        assert [int(row["l"]) for row in found] == [1]
        assert len(dataset.table.files) == 1
