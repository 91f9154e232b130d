"""Where the row store goes when memory is short: into files, or, where memory was asked for, nowhere."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.launchers.small_disks import run_with_small
from torch_table_loader import MixedDataset, OutOfMemoryError, RowStore, StorageError, StructuredDataset
from torch_table_loader.engine import row_store
from torch_table_loader.engine.workers import shared_memory

ROWS = 3_000
NOT_IN_MEMORY = "the row store is not in memory, though it is within the memory of RowStore"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    (tmp_path / "table").mkdir()
    columns = {"id": np.arange(ROWS), "word": [f"word {i}" for i in range(ROWS)]}
    pq.write_table(pa.table(columns), tmp_path / "table" / "0.parquet", row_group_size=500)
    return str(tmp_path / "table")


def make(table: str, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(table, shuffle="rows", batch_size=100, **options)


def free(monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
    """Have the system say how much memory is free: each answer once, the last from then on."""
    left = list(answers)
    monkeypatch.setattr(row_store, "available_memory", lambda: left.pop(0) if len(left) > 1 else left[0])


def rows(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["id"].tolist()]


@pytest.mark.parametrize("word", ["{:d}", "word {}", "a word that is longer than its offset: {}"])
@pytest.mark.parametrize("others", ["", "v"])
def test_a_store_of_texts_takes_what_was_planned(tmp_path: Path, word: str, others: str) -> None:
    """Texts take offsets too, which a writer does not count among their bytes."""
    words = [word.format(i) for i in range(20_000)]
    columns = {"word": words, **{name: range(20_000) for name in others}}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet", row_group_size=5_000)
    loader, dataset = make(str(tmp_path / "0.parquet"), row_store=str(tmp_path / "rows"))
    next(iter(loader))
    there = sum(file.stat().st_size for file in (tmp_path / "rows").rglob("*") if file.is_file())
    assert there <= dataset.job.live_rows[""].store.spec.num_bytes + 10_000 <= 1.3 * there + 20_000


def test_a_store_that_does_not_fit_when_the_loader_is_made_goes_to_files(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = rows(make(table)[0])
    free(monkeypatch, 50_000)
    loader, dataset = make(table)
    assert dataset.job.live_rows[""].store.place is not None
    notes = "\n".join(dataset.explain().notes)
    assert NOT_IN_MEMORY in notes
    assert "37,500 are free for it" in notes
    assert rows(loader) == wanted
    _, mixture = MixedDataset.create_dataloader({"a": dataset}, {"a": 1}, batch_size=100)
    assert any(NOT_IN_MEMORY in note for note in mixture.explain().notes)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_store_that_no_longer_fits_when_it_is_built_goes_to_files(
    table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, worker_type: str
) -> None:
    wanted = rows(make(table)[0])
    later = make(table, row_store=RowStore(memory=1))[1].job.live_rows[""].store.place
    free(monkeypatch, 1 << 30, 50_000)
    loader, dataset = make(table, worker_type=worker_type, num_workers=2)
    assert dataset.job.live_rows[""].store.place is None
    with caplog.at_level(logging.WARNING):
        assert rows(loader) == wanted
    assert NOT_IN_MEMORY in caplog.text
    assert dataset.job.live_rows[""].store.place == later, "another run, which begins with files, opens the same store"
    loader.set_epoch(1)
    assert sorted(rows(loader)) == list(range(ROWS))


def test_ranks_of_a_node_share_its_memory(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = make(table)[1].job.live_rows[""].store.spec.num_bytes
    free(monkeypatch, needed * 2)
    assert make(table)[1].job.live_rows[""].store.place is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert make(table)[1].job.live_rows[""].store.place is not None


def test_workers_of_a_callers_own_loader_share_it_too(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(table)[1]
    needed = dataset.job.live_rows[""].store.spec.num_bytes
    free(monkeypatch, needed * 2)
    del dataset
    found = DataLoader(StructuredDataset(table, shuffle="rows", batch_size=100), batch_size=None, num_workers=2)
    assert sorted(rows(found)) == list(range(ROWS))
    assert list((Path(os.environ["TORCH_TABLE_LOADER_CACHE"]) / "row-stores").glob("rows-*/manifest.json"))


def test_memory_that_was_asked_for_and_does_not_fit_is_an_error_when_the_loader_is_made(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = make(table)[1].job.live_rows[""].store.spec.num_bytes
    free(monkeypatch, needed - 1)
    said = rf"needs about {needed:,} bytes of memory, and {needed - 1:,} are free for it; pass row_store= a directory"
    with pytest.raises(OutOfMemoryError, match=said) as raised:
        make(table, row_store="memory")
    assert isinstance(raised.value, StorageError)
    assert isinstance(raised.value, MemoryError)
    assert raised.value.errno == errno.ENOMEM
    free(monkeypatch, needed, needed - 1)
    loader, _ = make(table, row_store="memory")
    with pytest.raises(OutOfMemoryError, match="pass row_store= a directory"):
        iter(loader)


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from torch_table_loader import StorageError, StructuredDataset
list(StructuredDataset.create_dataloader(sys.argv[1], shuffle="rows", num_workers=1)[0])  # loads what it needs
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (48 << 20), resource.RLIM_INFINITY))
for store in (None, "memory"):
    try:
        options = {"shuffle": "rows", "num_workers": 1, "row_store": store}
        loader, dataset = StructuredDataset.create_dataloader(sys.argv[2], **options)
        print(len(loader), dataset.job.live_rows[""].store.place is None)
    except StorageError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_limit_on_the_process_is_heeded(table: str, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    pq.write_table(pa.table({"id": np.arange(8 << 20)}), tmp_path / "large" / "0.parquet")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, table, str(tmp_path / "large")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    default, asked = done.stdout.splitlines()
    assert default == "8192 False"
    assert asked.startswith("OutOfMemoryError the row store needs about 67,108,864 bytes of memory, and ")


SMALL = """
import sys
from torch_table_loader import StorageError, StructuredDataset
options = {"batch_size": 1000, "worker_type": "process", "num_workers": 1, "shuffle": sys.argv[2] == "rows" and "rows"}
try:
    print(len(list(StructuredDataset.create_dataloader(sys.argv[1], **options)[0])))
except StorageError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("order", ["rows", "splits"])
@pytest.mark.parametrize("size", ["8k", "64k"], ids=["no room for a lock", "no room for a batch"])
@pytest.mark.slow
def test_a_tiny_dev_shm_is_named(table: str, order: str, size: str) -> None:
    said = run_with_small("/dev/shm", size, SMALL, table, order)  # noqa: S108 it is no temporary file
    assert said.startswith("OutOfMemoryError"), said
    assert "shared memory (/dev/shm)" in said
    assert "docker run --shm-size" in said


def test_shared_memory_that_is_not_there_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", none)
    with pytest.raises(OutOfMemoryError, match=r"shared memory .* No space left on device"):
        shared_memory.shared_bytes(4096)


def test_the_cache_directory_of_this_user_is_theirs_alone(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_TABLE_LOADER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    rows(make(table, row_store=RowStore(memory=1))[0])
    folder = tmp_path / "home" / "torch-table-loader"
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "row-stores")] == [0o700] * 2
    (folder / "row-stores").chmod(0o777)
    with pytest.raises(StorageError, match=r"others may write to .*row-stores' \(mode 0777\)"):
        iter(make(table, row_store=RowStore(memory=1))[0])
    assert rows(make(table, row_store=str(folder / "row-stores" / "team"))[0]), "a folder that was named may be shared"
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(folder))
    assert rows(make(table, row_store=RowStore(memory=1))[0]), "so may one that the environment names"
