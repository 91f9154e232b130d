"""Writes the demo's click log as an Iceberg table with a past: a branch, deleted rows, and a schema that evolved.

Days 1 to 7 are on `main`. The branch `clean` was made from it: there, rows of robots are gone by position, rows of
users who asked to be forgotten are gone by their id, and day 8 was added. When days 1 to 3 were written, the column
`label` was called `clicked`, and `dense_12` did not exist.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import FloatType

from demo.make_clicks import DAYS, LIVE, SEED, VERSION, day_name, day_of_clicks, halves
from demo.row_deletes import commit_deletes, equality_deletes, position_deletes

CLICKS, HOLDOUT, BRANCH = "demo.clicks", "demo.holdout", "clean"
CATALOG = "catalog.json"
NEW_COLUMN = "dense_12"
_OLD_NAMES = {"label": "clicked"}
_OLD_DAYS = 3
_ROBOT_DAYS = (0, 2, 4)
_FORGOTTEN_DAYS = (1, 2, 5)
_USER = "cat_24"
_FORGOTTEN_USERS = range(5, 100, 7)
_PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd"}


def write_lake(root: Path, num_rows: int, catalog_config: dict[str, str] | None = None) -> None:
    """Write the tables, unless they are there.

    Args:
        root: a folder for what the trainer needs to know, ``catalog.json`` and ``live.npy``; and for catalog and
            tables, where no other place is given.
        num_rows: rows of the log.
        catalog_config: as pyiceberg takes it; a SQLite file and folders below `root` if None.
    """
    root = root.resolve()
    stamp = root / f"seed-{SEED}-version-{VERSION}-rows-{num_rows}"
    if catalog_config is None and stamp.exists() and stamp.read_text() == str(root):
        return  # Iceberg's paths are absolute: a lake that was moved is written anew
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    config = catalog_config or {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}"}
    *days, held_out = (_dated(day_of_clicks(day, num_rows), day) for day in range(DAYS + 1))
    with closing(load_catalog("demo", **config)) as catalog:
        try:
            catalog.create_namespace("demo")
        except NamespaceAlreadyExistsError:
            catalog.drop_table(CLICKS)
            catalog.drop_table(HOLDOUT)
        _write_branch(_write_main(catalog, days), days)
        catalog.create_table(HOLDOUT, held_out.schema, properties=_PROPERTIES).append(held_out)
    np.save(root / LIVE, np.concatenate([_live(rows, day) for day, rows in enumerate(days)]))
    (root / CATALOG).write_text(json.dumps({"name": "demo", **config}))
    stamp.write_text(str(root))


def _dated(rows: pa.Table, day: int) -> pa.Table:
    return rows.append_column("day", pa.array([date.fromisoformat(day_name(day))] * rows.num_rows, pa.date32()))


def _write_main(catalog: Catalog, days: list[pa.Table]) -> Table:
    """Write all days but the last, the first of them before the schema evolved."""
    first = [rows.drop_columns(NEW_COLUMN).rename_columns(_OLD_NAMES) for rows in days[:_OLD_DAYS]]
    group = {"write.parquet.row-group-limit": str(-(-days[0].num_rows // 8))}
    table = catalog.create_table(CLICKS, first[0].schema, properties=_PROPERTIES | group)
    with table.update_spec() as spec:
        spec.add_identity("day")
    for rows in first:
        _append(table, rows)
    with table.update_schema() as change:
        for new, old in _OLD_NAMES.items():
            change.rename_column(old, new)
        change.add_column(NEW_COLUMN, FloatType())
    for rows in days[_OLD_DAYS:-1]:
        _append(table, rows)
    return table


def _append(table: Table, rows: pa.Table, branch: str = "main") -> None:
    for half in halves(rows):
        table.append(half, branch=branch)


def _write_branch(table: Table, days: list[pa.Table]) -> None:
    """Branch off, delete, and add the last day."""
    now = table.current_snapshot()
    if now is None:
        raise RuntimeError("the table has no snapshot to branch from")
    with table.manage_snapshots() as manage:
        manage.create_branch(now.snapshot_id, BRANCH)
    deletes = []
    for day in {*_ROBOT_DAYS, *_FORGOTTEN_DAYS}:
        files = [task.file for task in table.scan(row_filter=f"day = '{day_name(day)}'").plan_files()]
        if day in _ROBOT_DAYS:
            deletes += [position_deletes(table, file, _robots_of(table, file)) for file in files]
        if day in _FORGOTTEN_DAYS:
            deletes.append(equality_deletes(table, files[0], _USER, list(_FORGOTTEN_USERS)))
    commit_deletes(table, deletes, BRANCH)
    _append(table, days[-1], BRANCH)


def _robots_of(table: Table, file: DataFile) -> list[int]:
    """Find the places of robots' rows in a data file."""
    with table.io.new_input(file.file_path).open() as stream:
        ids = pq.read_table(stream, columns=["click_id"])["click_id"].to_numpy()
    return [int(place) for place in np.flatnonzero(_is_robot(ids))]


def _is_robot(click_ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    robots: np.ndarray[Any, Any] = click_ids % 17 == 3
    return robots


def _live(rows: pa.Table, day: int) -> np.ndarray[Any, Any]:
    """Say which rows of a day the branch still has, by the log alone."""
    live = np.ones(rows.num_rows, dtype=bool)
    if day in _ROBOT_DAYS:
        live &= ~_is_robot(rows["click_id"].to_numpy())
    if day in _FORGOTTEN_DAYS:
        live &= ~np.isin(rows[_USER].to_numpy(), _FORGOTTEN_USERS)
    return live


def describe(root: Path) -> str:
    """Say in a few lines what the table is."""
    config = json.loads((root / CATALOG).read_text())
    with closing(load_catalog(**config)) as catalog:
        table = catalog.load_table(CLICKS)
    head = table.snapshot_by_name(BRANCH)
    if head is None or head.summary is None:
        raise RuntimeError(f"the table has no branch {BRANCH}")
    said, live = head.summary, np.load(root / LIVE)
    return (
        f"{CLICKS} in a catalog of type {config['type']}, at {table.location()}, with {len(table.schemas())} schemas\n"
        f"branch {BRANCH}: {said['total-records']} rows in {said['total-data-files']} data files, "
        f"{said['total-position-deletes']} deleted by position and {said['total-equality-deletes']} keys by equality "
        f"in {said['total-delete-files']} delete files; {int(live.sum()):,} rows live\n"
    )


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description="Write the demo's Iceberg tables.")
    parser.add_argument("--out", type=Path, default=Path("build/demo/lake"), help="folder of catalog and tables")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the log")
    parser.add_argument("--catalog", type=json.loads, help="another catalog, as JSON, as pyiceberg takes it")
    options = parser.parse_args()
    write_lake(options.out, options.rows, options.catalog)
    sys.stdout.write(describe(options.out))


if __name__ == "__main__":
    main()
