"""Stores under interference: planted links and pipes, full disks, and too little memory."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.launchers.small_disks import run_with_small
from tests.tables.row_stores import Counting, MemoryTable, everything, numbers
from tests.waiting import until
from torch_table_loader import StructuredDataset
from torch_table_loader.errors import OutOfMemoryError, StorageError, TableLoaderError
from torch_table_loader.store import gather
from torch_table_loader.store.builder import build_files, build_memory
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.record_layout import LEASES, NULLS, RECORDS
from torch_table_loader.testing import small_sizes

THEIRS = "what others wrote"


ROWS, FIRST = 300, 5


class Stored:
    """A table with columns of every kind, so that its store has every kind of file, and a folder for its store."""

    def __init__(self, root: Path) -> None:
        self.table, self.stores = root / "table", root / "stores"
        self.table.mkdir()
        columns = {
            "x": np.arange(ROWS),
            "n": pa.array([None if row % 7 == 0 else row for row in range(ROWS)]),
            "text": [f"a text {row}" for row in range(ROWS)],
            "word": [f"word {row % 9}" for row in range(ROWS)],
        }
        pq.write_table(pa.table(columns), self.table / "0.parquet", row_group_size=100)
        self.rows(root / "elsewhere")
        [elsewhere] = (root / "elsewhere").glob("rows-*")
        self.place = self.stores / elsewhere.name
        self.num_chunks = len(list(elsewhere.glob("heap-*")))

    def rows(self, stores: Path | None = None) -> list[int]:
        """Read an epoch from a store, which is built if it is not there.

        It has row ids, since a filter leaves rows out.
        """
        options: dict[str, Any] = {"shuffle": "rows", "filters": f"x >= {FIRST}", "num_workers": 0, "batch_size": 50}
        options |= {"row_id": True, "nulls": {"n": -1}, "row_store": str(stores or self.stores)}
        with small_sizes(store_chunk_bytes=1 << 12):
            loader, _ = StructuredDataset.create_dataloader(str(self.table), **options)
            return sorted(row for batch in loader for row in batch["x"].tolist())


@pytest.fixture
def made(tmp_path: Path) -> Stored:
    found = Stored(tmp_path)
    assert found.num_chunks > 1
    return found


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "key"
    path.write_text(THEIRS)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "stores").mkdir()
    return tmp_path / "stores" / "rows-1"


RECORDS_FILE, NULLS_FILE, IDS_FILE, MANIFEST_FILE = "records.bin", "nulls.bin", "row_ids.bin", "manifest.json"
HEAP_FILE, LEASES_FOLDER, PARTS_FOLDER = "heap-000001.arrow", "leases", "parts"
AHEAD = [RECORDS_FILE, NULLS_FILE, IDS_FILE, MANIFEST_FILE, f"{LEASES_FOLDER}/000001", f"{PARTS_FOLDER}/000001.json"]
"""Files that a builder opens where they are; a heap, and all temporary files, it makes anew and then names."""


def planted(place: Path, name: str, plant: Callable[[Path], None]) -> None:
    for folder in (place, place / PARTS_FOLDER, place / LEASES_FOLDER):
        folder.mkdir(parents=True)
        folder.chmod(0o700)
    plant(place / name)


@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.timeout(60)
def test_a_planted_link_is_refused_and_what_it_points_to_stays(made: Stored, victim: Path, name: str) -> None:
    before = victim.stat()
    planted(made.place, name, lambda path: path.symlink_to(victim))
    with pytest.raises(StorageError, match=rf"{Path(name).name}' must be what this library made .* a symbolic link"):
        made.rows()
    assert victim.read_text() == THEIRS
    assert victim.stat().st_mtime_ns == before.st_mtime_ns
    (made.place / name).unlink()
    assert made.rows() == list(range(FIRST, ROWS))


@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(made: Stored, name: str) -> None:
    planted(made.place, name, os.mkfifo)
    with pytest.raises(StorageError, match=rf"{Path(name).name}' must be what this library made there, got a pipe"):
        made.rows()


def test_a_planted_heap_is_replaced_and_what_it_points_to_stays(made: Stored, victim: Path) -> None:
    planted(made.place, HEAP_FILE, lambda path: path.symlink_to(victim))
    assert made.rows() == list(range(FIRST, ROWS))
    assert victim.read_text() == THEIRS
    assert not (made.place / HEAP_FILE).is_symlink()


@pytest.mark.parametrize("folder", ["", PARTS_FOLDER, LEASES_FOLDER])
def test_a_folder_that_is_a_link_is_refused(made: Stored, victim: Path, folder: str) -> None:
    made.stores.mkdir()
    if folder:
        made.place.mkdir()
    (made.place / folder).symlink_to(victim.parent)
    (victim.parent / RECORDS_FILE).write_text(THEIRS)
    with pytest.raises(StorageError, match="got a symbolic link"):
        made.rows()
    assert sorted(path.name for path in victim.parent.iterdir()) == ["key", RECORDS_FILE]
    assert (victim.parent / RECORDS_FILE).read_text() == THEIRS


@pytest.mark.parametrize("plant", ["link", "pipe"])
@pytest.mark.parametrize("name", [RECORDS_FILE, NULLS_FILE, IDS_FILE, MANIFEST_FILE, HEAP_FILE])
@pytest.mark.timeout(60)
def test_a_finished_store_with_a_link_or_pipe_is_not_read(made: Stored, plant: str, name: str) -> None:
    made.rows()
    moved = made.stores / "moved"
    (made.place / name).rename(moved)
    if plant == "link":
        (made.place / name).symlink_to(moved)
    else:
        os.mkfifo(made.place / name)
    with pytest.raises(StorageError, match=rf"{name}' must be what this library made there, got a "):
        made.rows()


def test_a_new_store_is_private_to_its_user(made: Stored) -> None:
    made.rows()
    for folder in (made.stores, made.place):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_mapping_without_address_space_names_the_file(made: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    made.rows()

    real = mmap.mmap

    def none_of_a_file(number: int, *args: Any, **options: Any) -> Any:
        if number >= 0:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(number, *args, **options)

    monkeypatch.setattr(mmap, "mmap", none_of_a_file)
    with pytest.raises(OutOfMemoryError, match=rf"{RECORDS_FILE}' of [\d,]+ bytes does not fit .*`ulimit -v`"):
        made.rows()


# ---- builders --------------------------------------------------------------------------------------------


def table() -> MemoryTable:
    """A table with columns of every kind."""
    return MemoryTable(everything(300), [0, 100, 200, 300], ids=np.arange(300) * 2)


def test_a_heartbeat_does_not_touch_what_a_planted_link_points_to(tmp_path: Path, victim: Path) -> None:
    os.utime(victim, (5, 5))
    folder = tmp_path / LEASES
    folder.mkdir()
    with small_sizes(lease_beat_s=0.01), Leases(folder) as leases:
        assert leases.claim(3)
        (folder / "000003").unlink()
        (folder / "000003").symlink_to(victim)
        before = (folder / "000003").lstat().st_mtime_ns
        until(lambda: (folder / "000003").lstat().st_mtime_ns != before)
    assert victim.stat().st_mtime == 5


# ---- full disks ------------------------------------------------------------------------------------------


def test_disk_space_is_allocated_before_the_first_row_is_read(place: Path) -> None:
    made = Counting(table())
    spec, blocks = table().spec, dict[str, int]()

    def read(chunk: int) -> Any:
        blocks.update({path.name: 512 * path.stat().st_blocks for path in place.iterdir() if path.is_file()})
        return made(chunk)

    build_files(place, spec, read, 1)
    assert blocks[RECORDS] >= spec.num_rows * spec.layout.width
    assert blocks[NULLS] >= spec.num_rows * spec.layout.null_width


FULL = """
import sys
from pathlib import Path
from tests.tables.row_stores import MemoryTable, numbers
from torch_table_loader.errors import StorageError
from torch_table_loader.store import builder
from torch_table_loader.store.builder import build_files
from torch_table_loader.store.opened import open_store
made = MemoryTable(numbers(100_000), [*range(0, 100_000, 10_000), 100_000])
place = Path(sys.argv[1]) / "rows-1"
builder._check_room = lambda *_: None  # as where another process fills the disk meanwhile
try:
    build_files(place, made.spec, made.read, 2)
except StorageError as error:
    print(error)
    assert open_store(place, made.spec, 1) is None
"""


def test_a_file_system_that_is_too_small_is_named(tmp_path: Path) -> None:
    """In a separate mount namespace, on a tmpfs of 1 MiB, where touching a page without room is a SIGBUS."""
    said = run_with_small(str(tmp_path), "1m", FULL, str(tmp_path))
    assert "the disk is full" in said
    assert "pass row_store= another folder" in said


# ---- too little memory -----------------------------------------------------------------------------------


def test_a_store_that_does_not_fit_is_refused_before_a_row_is_read() -> None:
    made = Counting(table())
    spec = table().spec
    with pytest.raises(
        OutOfMemoryError, match=rf"needs about {spec.num_bytes:,} bytes .* and 10 are free .* row_store="
    ):
        build_memory(spec, made, 1, room=10)
    assert not made.chunks
    assert build_memory(spec, made, 1, room=10 * spec.num_bytes + 100_000).num_rows == 300


def test_strings_longer_than_estimated_stop_the_build_before_memory_is_full() -> None:
    strings = [f"{number:10000}" for number in range(200)]
    made = MemoryTable(pa.record_batch({"s": strings}), [*range(0, 200, 10), 200])
    read = Counting(made)
    with pytest.raises(OutOfMemoryError, match=r"needs about [345]\d\d,\d\d\d bytes of memory, and 300,000 are free"):
        build_memory(made.spec, read, 1, room=300_000)
    assert len(read.chunks) < 6


@pytest.mark.parametrize("fault", [MemoryError("no"), pa.ArrowMemoryError("no")], ids=repr)
def test_a_failed_allocation_is_our_error_with_the_remedy(fault: MemoryError) -> None:
    def read(chunk: int) -> Any:
        raise fault

    with pytest.raises(OutOfMemoryError, match=r"which it did not get \(no\); pass row_store= a directory") as raised:
        build_memory(table().spec, read, 2)
    assert isinstance(raised.value, StorageError)
    assert isinstance(raised.value, MemoryError)
    assert isinstance(raised.value, TableLoaderError)
    assert raised.value.errno == errno.ENOMEM


@pytest.mark.parametrize("fault", [MemoryError("no"), pa.ArrowMemoryError("no")], ids=repr)
def test_rows_that_do_not_fit_in_memory_are_named(monkeypatch: pytest.MonkeyPatch, fault: MemoryError) -> None:
    def none(*_: Any) -> Any:
        raise fault

    rows = build_memory(table().spec, table().read, 1)
    monkeypatch.setattr(gather, "Arena", none)
    with pytest.raises(
        OutOfMemoryError, match=r"too little memory for 300 rows of the row store \(no\); use a smaller"
    ):
        rows.gather(np.arange(300))


LIMITED = """
import resource, sys
from pathlib import Path
from tests.tables.row_stores import MemoryTable, numbers
from torch_table_loader.errors import OutOfMemoryError
from torch_table_loader.store.builder import build_memory
from torch_table_loader.store.opened import open_store
made = MemoryTable(numbers(1_000_000), [0, 1_000_000])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
for act in (lambda: open_store(Path(sys.argv[1]), made.spec, 1), lambda: build_memory(made.spec, made.read, 1)):
    try:
        act()
    except OutOfMemoryError as error:
        print(error)
"""


def test_a_process_with_a_limit_on_its_memory_gets_our_error(place: Path) -> None:
    made = MemoryTable(numbers(1_000_000), [0, 1_000_000])
    made.read_rows = 1 << 18
    build_files(place, made.spec, made.read, 1)
    done = subprocess.run([sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mapped, built = done.stdout.splitlines()
    assert "does not fit this process's address space" in mapped
    assert "the row store needs about" in built
