"""The command line's stores: built once, listed, verified, pruned."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import RowStore, StorageError, StructuredDataset
from torch_table_loader.cli import store as command
from torch_table_loader.cli.main import main
from torch_table_loader.dataset import live_rows
from torch_table_loader.engine.ray_cluster import _build_share


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


def test_an_unfinished_store_is_kept_while_a_builder_works_on_it(tmp_path: Path) -> None:
    lease = tmp_path / "rows-half" / "leases" / "000001"
    lease.parent.mkdir(parents=True)
    lease.write_text("{}")
    assert main(["store", "prune", "--unfinished", "--store", str(tmp_path)]) == 0
    assert lease.exists()
    os.utime(lease, (0, 0))
    assert main(["store", "prune", "--unfinished", "--store", str(tmp_path)]) == 0
    assert not lease.exists()


def test_prune_requires_a_selection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "prune", "--store", str(tmp_path)]) == 2
    assert "prune needs" in capsys.readouterr().err


def test_a_loader_opens_what_the_command_line_built(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    assert main(["store", "build", table]) == 0
    loader, dataset = StructuredDataset.create_dataloader(table, shuffle="rows", row_store=RowStore(memory=1))
    assert sum(len(batch["x"]) for batch in loader) == 500
    assert [path.parent for path in (tmp_path / "cache" / "row-stores").glob("*/manifest.json")] == [
        dataset.job.live_rows[""].store.place
    ]


def test_a_store_is_built_at_a_url(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/stores"
    assert main(["store", "build", table, "--store", url]) == 0
    assert ": 500 rows" in capsys.readouterr().out
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "another"))
    assert main(["store", "build", table, "--store", url]) == 0
    assert ": already exists" in capsys.readouterr().out
    assert main(["store", "list", "--store", url]) == 2
    assert "list, verify and prune need a directory" in capsys.readouterr().err


def test_ranks_of_a_launcher_are_not_warned_that_they_plan_the_whole_table(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert main(["store", "build", table, "--store", str(tmp_path / "stores")]) == 0
    said = capsys.readouterr()
    assert "this process built 1 of 1 chunk" in said.out
    assert said.err == ""


def test_a_missing_engine_is_named_with_its_extra(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["store", "build", table, "--store", str(tmp_path / "stores"), "--engine", "ray"]) == 2
    assert "pip install 'ray[train]'" in capsys.readouterr().err


def test_the_address_of_a_cluster_requires_its_engine(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "build", table, "--address", "head:6379"]) == 2
    assert "pass --engine ray" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:one", "head"])
def test_an_address_without_a_cluster_fails_soon(
    table: str, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", fake_ray(is_initialized=lambda: False))
    stores = str(tmp_path / "stores")
    assert main(["store", "build", table, "--store", stores, "--engine", "ray", "--address", address]) == 2
    assert f"there is no Ray cluster at {address}: " in capsys.readouterr().err


def test_a_cluster_builds_in_a_folder(
    table: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", fake_ray())
    assert main(["store", "build", table, "--store", "memory://stores", "--engine", "ray"]) == 2
    assert "--engine ray builds in a folder that all nodes share, got --store 'memory://" in capsys.readouterr().err


def fake_ray(**members: Any) -> ModuleType:
    """Replace Ray by a fake that this process is connected to."""
    ray = ModuleType("ray")
    vars(ray).update({"is_initialized": lambda: True, "cluster_resources": lambda: {"CPU": 2.0}} | members)
    return ray


def test_a_node_that_does_not_see_the_folder_reports_it(table: str, tmp_path: Path) -> None:
    store = live_rows(StructuredDataset(table, shuffle="rows", row_store=str(tmp_path)), "a test").store
    assert store.place is not None
    with pytest.raises(StorageError, match=r"does not see .*elsewhere; pass a folder that all nodes share"):
        _build_share(store, str(store.place), str(tmp_path / "elsewhere" / "mark"))
    (tmp_path / "mark").touch()
    assert _build_share(store, str(store.place), str(tmp_path / "mark")) == 1


def test_each_rank_plans_its_share_of_the_files_first(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "bcd":
        pq.write_table(pa.table({"x": np.arange(10), "s": list(map(str, range(10)))}), Path(table) / f"{name}.parquet")
    shares = []
    plan = command._plan_share

    def noted(keywords: Mapping[str, Any], names: Sequence[str]) -> int:
        shares.append(list(names))
        return plan(keywords, names)

    monkeypatch.setattr(command, "_plan_share", noted)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        assert main(["store", "build", table, "--store", str(tmp_path / "s"), "--plan-cache", str(tmp_path / "p")]) == 0
        assert main(["store", "build", table, "--store", str(tmp_path / "s")]) == 0
    assert shares == [["a.parquet", "c.parquet"], [], ["b.parquet", "d.parquet"], []]
    assert len(list((tmp_path / "p").rglob("*"))) >= 4
