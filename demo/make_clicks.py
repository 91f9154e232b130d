"""Draws the demo's click log, always the same from one seed, and writes it as plain Parquet, a folder for each day.

A row has its number in the log, a label, 13 floats and 26 ids.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 7
VERSION = 2
DENSE = tuple(f"dense_{place}" for place in range(13))
CATEGORICAL = tuple(f"cat_{place}" for place in range(26))
DAYS = 8
LIVE = "live.npy"
"""The file that says which rows of the log a reader must give: bool of shape ``(rows of the log,)``."""
_FIRST_DAY = date(2026, 1, 1)
_GROUPS_PER_FILE = 4
_HOLDOUT_SHARE = 50
"""One row is held out, in a table of its own, for so many rows of the log."""


def write_tables(root: Path, num_rows: int) -> None:
    """Write the log to ``root/clicks`` and the held out day to ``root/holdout``, unless they are there.

    Args:
        root: the folder; it is written beside itself and renamed when whole.
        num_rows: rows of the log, over eight days of two files each.
    """
    stamp = root / f"seed-{SEED}-version-{VERSION}-rows-{num_rows}"
    if stamp.exists():
        return
    unfinished = root.with_name(f"{root.name}.{os.getpid()}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for day in range(DAYS):
        _write_day(unfinished / "clicks", day, num_rows)
    _write_day(unfinished / "holdout", DAYS, num_rows)
    np.save(unfinished / LIVE, np.ones(num_rows, dtype=bool))
    (unfinished / stamp.name).touch()
    shutil.rmtree(root, ignore_errors=True)
    unfinished.rename(root)


def day_name(day: int) -> str:
    """Name a day of the log, counted from 0."""
    return str(_FIRST_DAY + timedelta(days=day))


def day_of_clicks(day: int, num_rows: int) -> pa.Table:
    """Draw the rows of a day of the log; the day after the last one is held out.

    Args:
        day: counted from 0.
        num_rows: of the whole log.
    """
    bounds = np.linspace(0, num_rows, DAYS + 1).astype(int).tolist()
    bounds.append(num_rows + max(num_rows // _HOLDOUT_SHARE, 1))
    clicks = _clicks(np.random.default_rng([SEED, day]), bounds[day + 1] - bounds[day])
    return clicks.add_column(0, "click_id", pa.array(range(*bounds[day : day + 2]), pa.int64()))


def halves(table: pa.Table) -> list[pa.Table]:
    """Cut the rows of a day for its two files."""
    half = -(-table.num_rows // 2)
    return [table.slice(0, half), table.slice(half)]


def _write_day(folder: Path, day: int, num_rows: int) -> None:
    folder = folder / f"day={day_name(day)}"
    folder.mkdir(parents=True)
    for part, rows in enumerate(halves(day_of_clicks(day, num_rows))):
        group_rows = max(1, -(-rows.num_rows // _GROUPS_PER_FILE))
        pq.write_table(rows, folder / f"part-{part}.parquet", compression="zstd", row_group_size=group_rows)


def _clicks(rng: np.random.Generator, num_rows: int) -> pa.Table:
    """Draw rows whose label depends on a few floats and ids, so that there is something to learn."""
    dense = {name: rng.standard_normal(num_rows, dtype=np.float32) for name in DENSE}
    ids = {
        name: (rng.random(num_rows) ** 3 * 10 ** (2 + place % 4)).astype(np.int32)
        for place, name in enumerate(CATEGORICAL)
    }
    score = 1.2 * dense["dense_0"] - 0.9 * dense["dense_1"] + 0.6 * dense["dense_2"] * dense["dense_3"] - 1.0
    for name, weight in (("cat_0", 1.0), ("cat_4", 0.8), ("cat_8", 0.6)):
        score += weight * np.sin(ids[name] * 12.9898).astype(np.float32)
    label = (rng.random(num_rows) < 1 / (1 + np.exp(-score))).astype(np.int32)
    return pa.table({"label": label, **dense, **ids})


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo/plain"), help="folder of the two tables")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the log")
    options = parser.parse_args()
    write_tables(options.out, options.rows)
    files = list((options.out / "clicks").rglob("*.parquet"))
    size = sum(file.stat().st_size for file in files) / 1e6
    sys.stdout.write(f"{options.out / 'clicks'}: {options.rows:,} rows in {len(files)} files, {size:.0f} MB\n")


if __name__ == "__main__":
    main()
