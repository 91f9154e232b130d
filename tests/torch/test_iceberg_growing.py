"""A job goes on with a table that pyiceberg wrote more to, and is refused where it rewrote files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from tests.tables.catalogs import load_catalog
from tests.tables.kinds import ICEBERG, rows_of
from torch_table_loader import ResumeError, TableLoader


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table of ten rows."""
    catalog = load_catalog("here", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("x", pa.int64())]))
    table.append(pa.table({"x": range(10)}))
    return table


def snapshot(table: Table) -> int:
    current = table.current_snapshot()
    assert current is not None
    return current.snapshot_id


def make(table: Table, **options: Any) -> TableLoader:
    chosen: dict[str, Any] = {"batch_size": 3, "on_growth": "continue", "shuffle": "splits", **options}
    return ICEBERG.loader(table.metadata_location, **chosen)


@pytest.mark.parametrize("footers", ["eager", "lazy"])
def test_an_epoch_goes_on_with_what_pyiceberg_appended_since(table: Table, footers: str) -> None:
    table.append(pa.table({"x": range(10, 20)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyiceberg's word on copy on write
        table.delete("x = 13")
    loader = make(table, footers=footers)
    seen = rows_of(loader, 2)
    table.append(pa.table({"x": range(20, 30)}))
    newer = make(table, footers=footers)
    newer.load_state_dict(loader.state_dict())
    assert ICEBERG.read(newer) == snapshot(table)
    assert sorted(seen + rows_of(newer)) == [x for x in range(30) if x != 13]


def test_rows_that_pyiceberg_deleted_by_rewriting_since_are_refused(table: Table) -> None:
    loader = make(table)
    rows_of(loader, 1)
    first = snapshot(table)
    table.delete("x = 3")
    rewritten = snapshot(table)
    with pytest.raises(
        ResumeError, match=rf"snapshot {rewritten} did not grow from it.*snapshot {rewritten}: overwrite"
    ) as found:
        make(table).load_state_dict(loader.state_dict())
    assert "1 of its files are gone" in str(found.value)
    assert f"pass snapshot_id={first} and no on_growth" in str(found.value)


def test_a_validation_table_can_have_the_snapshot_of_a_resumed_run(table: Table) -> None:
    """Opened apart it is the newest; `snapshot_id` of what was resumed opens, and derives, the state's."""
    loader, first = make(table, on_growth=None), snapshot(table)
    rows_of(loader, 1)
    table.append(pa.table({"x": range(10, 20)}))
    newer = make(table, on_growth=None)
    newer.load_state_dict(loader.state_dict())
    dataset: Any = newer.dataset
    assert dataset.snapshot_id == first != snapshot(table)
    assert ICEBERG.open(table.metadata_location).num_rows == 20
    assert ICEBERG.open(table.metadata_location, snapshot_id=dataset.snapshot_id).num_rows == 10
    assert dataset.with_options(shuffle=False, filters="x >= 5").num_rows == 5
