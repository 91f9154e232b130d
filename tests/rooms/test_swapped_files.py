"""A local file that was swapped for another of equal size and time is not read as the planned file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.extend import FileStorage, PathSource
from torch_table_loader.records import FileVersion, LocalVersion
from torch_table_loader.source.local_client import unstable_devices

TIME = 1_700_000_000_000_000_000


def write(path: Path, first: int) -> None:
    """Write a file whose size and time do not depend on its values."""
    table = pa.table({"x": range(first, first + 1000)})
    pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=100)
    os.utime(path, ns=(TIME, TIME))


def swap(path: Path) -> None:
    """Put another file in its place by a rename."""
    size = path.stat().st_size
    beside = path.with_name(".beside")
    write(beside, first=5000)
    assert (beside.stat().st_size, beside.stat().st_mtime_ns) == (size, path.stat().st_mtime_ns)
    beside.rename(path)


def test_a_change_of_ctime_alone_is_refused_and_explained(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", first=0)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0)
    (tmp_path / "a.parquet").chmod(0o600)
    (tmp_path / "a.parquet").chmod(0o644)
    with pytest.raises(TableError, match=r"ctime in ns was \d+ and is \d+ \(its permissions or hard links changed"):
        list(loader)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_file_swapped_after_planning_is_refused(tmp_path: Path, worker_type: Any) -> None:
    write(tmp_path / "a.parquet", first=0)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=1, worker_type=worker_type)
    swap(tmp_path / "a.parquet")
    with pytest.raises(TableError, match=r"a\.parquet changed while it was in use: inode was \d+ and is \d+"):
        list(loader)


def test_a_file_swapped_between_check_and_open_delivers_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    write(path, first=0)
    path.with_name(".kept").hardlink_to(path)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), num_workers=0, batch_size=10)
    opens = FileStorage.open
    swapped: list[str] = []

    def open_late(storage: FileStorage, where: str) -> Any:
        """Swap just before the file is opened, and swap back after: comparing paths alone detects nothing."""
        if not swapped:
            swapped.append(where)
            swap(path)
            opened = opens(storage, where)
            path.with_name(".kept").rename(path)
            return opened
        return opens(storage, where)

    monkeypatch.setattr(FileStorage, "open", open_late)
    batches = iter(loader)
    with pytest.raises(TableError, match=r"changed while it was in use: ctime in ns was \d+ and is \d+"):
        next(batches)
    assert swapped


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_overwritten_in_mid_epoch_gives_no_row_of_the_other_one(
    tmp_path: Path, form: str, shuffle: bool
) -> None:
    """Its size, mtime and inode stay; only ctime moves."""
    path, rows = tmp_path / f"a.{form}", 300_000

    def write_rows(first: int) -> None:
        table = pa.table({"x": np.arange(first, first + rows)})
        if form == "parquet":
            pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=20_000)
        else:
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=20_000)
        os.utime(path, ns=(TIME, TIME))

    write_rows(0)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), form, num_workers=0, batch_size=1000, shuffle=shuffle
    )
    batches, size = iter(loader), path.stat().st_size
    most = [next(batches)["x"].max().item()]
    write_rows(1 << 30)
    assert path.stat().st_size == size
    with pytest.raises(TableError, match=rf"a\.{form} changed while it was in use: ctime in ns"):
        most.extend(batch["x"].max().item() for batch in batches)
    assert max(most) < rows


def test_a_plan_cache_does_not_use_the_entry_of_the_swapped_file(tmp_path: Path) -> None:
    table, cache = tmp_path / "t", str(tmp_path / "cache")
    table.mkdir()
    write(table / "a.parquet", first=0)
    options: dict[str, Any] = {"num_workers": 0, "plan_cache": cache, "output_format": "dict"}
    list(StructuredDataset.create_dataloader(str(table), **options)[0])
    beside = table / ".beside"
    pq.write_table(pa.table({"y": range(1000)}), beside, compression="none", use_dictionary=False, row_group_size=100)
    assert beside.stat().st_size == (table / "a.parquet").stat().st_size
    os.utime(beside, ns=(TIME, TIME))
    beside.rename(table / "a.parquet")
    (batch,) = StructuredDataset.create_dataloader(str(table), **options)[0]
    assert list(batch) == ["y"]


def test_a_copy_of_the_table_is_the_same_table(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.parquet", first=0)
    make = StructuredDataset.create_dataloader
    loader, _ = make(str(tmp_path / "here"), num_workers=0, batch_size=100)
    first = iter(loader)
    next(first)
    again, _ = make(str(tmp_path / "there"), num_workers=0, batch_size=100)
    again.load_state_dict(loader.state_dict())
    assert sum(len(batch["x"]) for batch in again) == 900


def test_versions_of_two_machines_compare_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (file,) = PathSource.open(tmp_path, "csv").files
    local = file.version.local
    assert local is not None
    for other, holds in (
        (local, True),
        (None, True),
        (local._replace(machine="another", inode=1, ctime_ns=1), True),
        (local._replace(inode=local.inode + 1), False),
        (local._replace(ctime_ns=local.ctime_ns + 1), False),
    ):
        assert file.version.holds(replace(file.version, local=other)) is holds
        assert file.version == replace(file.version, local=other)
    assert not file.version.holds(FileVersion(2, file.version.mtime_ns, local=local))
    assert FileVersion(1, immutable=True).holds(FileVersion(2, local=LocalVersion("m", 1, 1)))


def test_file_systems_without_stable_inodes_are_recognized() -> None:
    lines = [
        "22 27 0:21 / /proc rw,relatime - proc proc rw",
        "36 35 0:52 / /mnt/bucket rw - fuse.gcsfuse bucket rw",
        "37 35 0:53 / /mnt/share rw shared:7 master:2 - cifs //host/share rw",
        "38 35 0:54 / /mnt/nfs rw - nfs4 host:/x rw",
        "39 35 253:1 / / rw - ext4 /dev/vda1 rw",
    ]
    assert unstable_devices("\n".join(lines)) == {os.makedev(0, 52), os.makedev(0, 53)}
