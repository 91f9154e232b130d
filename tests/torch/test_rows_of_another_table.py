"""A row store on disk serves the files that it was built from, and no others that look alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import Csv, ResumeError, StructuredDataset


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


def test_text_that_is_read_with_other_options_is_another_table(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table/a.csv").write_text("id;x\n" + "".join(f"{row};7\n" for row in range(100)))
    options: dict[str, Any] = {
        "shuffle": "rows",
        "row_store": str(tmp_path / "stores"),
        "plan_cache": str(tmp_path / "plans"),
    }
    forms = [Csv(delimiter=";"), Csv(delimiter=";", types={"x": "float32"})]
    made = [StructuredDataset.create_dataloader(tmp_path / "table", form, **options)[0] for form in forms]
    for loader, kind in zip(made, ("torch.int64", "torch.float32"), strict=True):
        batches = list(loader)
        assert {str(batch["x"].dtype) for batch in batches} == {kind}
        assert sorted(row for batch in batches for row in batch["id"].tolist()) == list(range(100))
    assert len(list((tmp_path / "stores").glob("rows-*"))) == 2
    with pytest.raises(ResumeError, match="another table"):
        made[0].load_state_dict(made[1].state_dict())
    again, _ = StructuredDataset.create_dataloader(tmp_path / "table", Csv(delimiter=";"), **options)
    again.load_state_dict(made[0].state_dict())
