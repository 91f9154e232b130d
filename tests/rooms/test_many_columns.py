"""Tables of thousands of columns: a loader takes time in proportion to them, and a batch has a stated limit."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from torch_table_loader import ConfigError, StructuredDataset
from torch_table_loader.testing import small_sizes

FEW, TIMES = 300, 8
"""So many columns, and so many times as many. Work in the square of their number takes 64 times as long."""


def wide_table(columns: int) -> pa.Table:
    """A table of whole numbers, half of the columns with a null."""
    return pa.table({f"c{n}": pa.array([1, 2, None if n % 2 else 3], pa.int64()) for n in range(columns)})


def of_parquet(table: pa.Table, root: Path) -> dict[str, Any]:
    pq.write_table(table, root / "a.parquet")
    pq.write_table(table.select(table.column_names[::-1]), root / "b.parquet")  # in another order
    return {"path": root}


def of_arrow(table: pa.Table, root: Path) -> dict[str, Any]:
    with pa.ipc.new_file(root / "a.arrow", table.schema) as file:
        file.write_table(table)
    return {"path": root, "format": "arrow"}


def of_csv(table: pa.Table, root: Path) -> dict[str, Any]:
    pa.csv.write_csv(table, root / "a.csv")
    return {"path": root, "format": "csv"}


def of_orc(table: pa.Table, root: Path) -> dict[str, Any]:
    pa.orc.write_table(table, root / "a.orc")
    return {"path": root, "format": "orc"}


def of_memory(table: pa.Table, root: Path) -> dict[str, Any]:
    return {"source": table}


def seconds_of(columns: int, write: Callable[[pa.Table, Path], dict[str, Any]], options: Any, root: Path) -> float:
    """CPU seconds until the first batch, the less of two."""
    root.mkdir()
    table = wide_table(columns)
    keywords = {"nulls": dict.fromkeys(table.column_names[1::2], 0), **write(table, root), **options(table)}
    found = []
    for _ in range(2):
        gc.collect()
        start = time.process_time()
        loader, _ = StructuredDataset.create_dataloader(num_workers=0, batch_size=2, **keywords)
        next(iter(loader))
        found.append(time.process_time() - start)
    return min(found)


SOURCES = {write.__name__: write for write in (of_parquet, of_arrow, of_csv, of_orc, of_memory)}
OPTIONS: dict[str, Callable[[pa.Table], dict[str, Any]]] = {
    "stream": lambda _: {},
    "rows": lambda _: {"shuffle": "rows"},
    "masks": lambda _: {"nulls": "mask"},
    "named": lambda table: {"columns": table.column_names[::-1]},
    "one tensor": lambda table: {"columns": {"x": table.column_names[::2]}, "nulls": None},
}


@daily(1)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_loader_takes_time_in_proportion_to_the_columns(source: str, options: str, tmp_path: Path) -> None:
    few = seconds_of(FEW, SOURCES[source], OPTIONS[options], tmp_path / "few")
    many = seconds_of(FEW * TIMES, SOURCES[source], OPTIONS[options], tmp_path / "many")
    assert many / few < 2.5 * TIMES


def test_a_batch_has_a_limit_of_columns(tmp_path: Path) -> None:
    of_parquet(wide_table(11), tmp_path)
    with small_sizes(columns=10):
        with pytest.raises(ConfigError, match="at most 10 columns, got 11; name those that are needed in columns="):
            StructuredDataset.create_dataloader(tmp_path)
        loader, _ = StructuredDataset.create_dataloader(tmp_path, columns=["c0", "c2"], num_workers=0)
        assert set(next(iter(loader))) == {"c0", "c2"}
