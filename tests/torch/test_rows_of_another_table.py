"""A row store on disk serves the files that it was built from, and no others that look alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader import StructuredDataset


def write(folder: Path, first: int) -> int:
    """Write a table whose size does not depend on its values; returns the size."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "part-0.parquet"
    table = pa.table({"id": pa.array(np.arange(first, first + 100), pa.int64())})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    return path.stat().st_size


def read(table: Path, stores: Path) -> list[int]:
    loader, _ = StructuredDataset.create_dataloader(str(table), shuffle="rows", row_store=str(stores))
    return sorted(row for batch in loader for row in batch["id"].tolist())


def test_a_table_that_was_written_anew_gets_a_store_of_its_own(tmp_path: Path) -> None:
    size = write(tmp_path / "table", 0)
    assert read(tmp_path / "table", tmp_path / "stores") == list(range(100))
    assert write(tmp_path / "table", 500) == size
    assert read(tmp_path / "table", tmp_path / "stores") == list(range(500, 600))


def test_tables_of_the_same_names_and_sizes_have_a_store_each(tmp_path: Path) -> None:
    assert write(tmp_path / "a", 0) == write(tmp_path / "b", 500)
    assert read(tmp_path / "a", tmp_path / "stores") == list(range(100))
    assert read(tmp_path / "b", tmp_path / "stores") == list(range(500, 600))


def test_a_table_that_did_not_change_keeps_its_store(tmp_path: Path) -> None:
    write(tmp_path / "table", 0)
    read(tmp_path / "table", tmp_path / "stores")
    names = sorted(path.name for path in (tmp_path / "stores").glob("rows-*"))
    assert len(names) == 1
    read(tmp_path / "table", tmp_path / "stores")
    assert sorted(path.name for path in (tmp_path / "stores").glob("rows-*")) == names
