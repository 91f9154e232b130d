"""The command line's stores: built once, listed, verified, pruned."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main


@pytest.fixture
def table(tmp_path: Path) -> str:
    root = tmp_path / "table"
    root.mkdir()
    pq.write_table(pa.table({"x": np.arange(500), "s": list(map(str, range(500)))}), root / "a.parquet")
    return str(root)


def test_a_store_is_built_listed_verified_and_pruned(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = str(tmp_path / "stores")
    assert main(["store", "build", table, "--filter", "x < 400", "--store", stores]) == 0
    name = capsys.readouterr().out.partition(":")[0]
    assert name.startswith("rows-")
    (made,) = Path(stores).iterdir()
    before = (made / "manifest.json").stat().st_mtime_ns
    assert main(["store", "build", table, "--filter", "x < 400", "--store", stores]) == 0
    assert "400 rows" in capsys.readouterr().out
    assert (made / "manifest.json").stat().st_mtime_ns == before, "a later run opens it"
    assert main(["store", "list", "--store", stores]) == 0
    assert name in capsys.readouterr().out
    assert main(["store", "verify", "--store", stores]) == 0
    assert f"{name}: whole" in capsys.readouterr().out
    assert main(["store", "prune", "--damaged", "--unfinished", "--older-than", "1", "--store", stores]) == 0
    assert made.exists()
    assert main(["store", "prune", "--name", name, "--store", stores]) == 0
    assert not made.exists()


def test_a_damaged_store_is_found_and_removed(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = tmp_path / "stores"
    assert main(["store", "build", table, "--columns", "x", "--store", str(stores)]) == 0
    (made,) = stores.iterdir()
    with (made / "records.bin").open("r+b") as file:
        file.write(b"\xff")
    assert main(["store", "verify", "--store", str(stores)]) == 2
    assert "damaged: the row store" in capsys.readouterr().out
    assert main(["store", "prune", "--damaged", "--store", str(stores)]) == 0
    assert not made.exists()


def test_an_unfinished_store_is_left_while_somebody_is_at_it(tmp_path: Path) -> None:
    lease = tmp_path / "rows-half" / "leases" / "000001"
    lease.parent.mkdir(parents=True)
    lease.write_text("{}")
    assert main(["store", "prune", "--unfinished", "--store", str(tmp_path)]) == 0
    assert lease.exists()
    os.utime(lease, (0, 0))
    assert main(["store", "prune", "--unfinished", "--store", str(tmp_path)]) == 0
    assert not lease.exists()


def test_prune_wants_to_know_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "prune", "--store", str(tmp_path)]) == 2
    assert "prune wants" in capsys.readouterr().err


def test_a_loader_opens_what_the_command_line_built(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    assert main(["store", "build", table]) == 0
    loader, dataset = StructuredDataset.create_dataloader(table, shuffle="rows", row_store_memory=1)
    assert sum(len(batch["x"]) for batch in loader) == 500
    assert [path.parent for path in (tmp_path / "cache" / "row-stores").glob("*/manifest.json")] == [
        dataset.job.keeper.place  # type: ignore[attr-defined]
    ]


def test_a_store_is_built_behind_a_url(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/stores"
    assert main(["store", "build", table, "--store", url]) == 0
    assert ": 500 rows" in capsys.readouterr().out
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "another"))
    assert main(["store", "build", table, "--store", url]) == 0
    assert ": is there already" in capsys.readouterr().out
    assert main(["store", "list", "--store", url]) == 2
    assert "list, verify and prune read a directory" in capsys.readouterr().err
