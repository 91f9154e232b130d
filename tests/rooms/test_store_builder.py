"""Building: shared, killed and resumed, refused if the store is damaged or lacks room."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tests.tables.row_stores import Counting, MemoryTable, everything, flip, numbers
from tests.waiting import PATIENCE_S, until
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.store import builder
from torch_table_loader.store.builder import build_files, done_chunks, write_codes
from torch_table_loader.store.leases import Leases
from torch_table_loader.store.manifest import _crc, check_store, read_manifest, write_manifest
from torch_table_loader.store.opened import open_store
from torch_table_loader.store.record_layout import (
    CODES,
    LEASES,
    MANIFEST,
    RECORDS,
    WORDS,
    StoreSpec,
    chunk_codes_file,
    heap_file,
)
from torch_table_loader.testing import small_sizes

ROWS = 2_000
BOUNDS = [*range(0, ROWS, 100), ROWS]


def table() -> MemoryTable:
    return MemoryTable(numbers(ROWS), BOUNDS)


def opened(place: Path, made: MemoryTable) -> None:
    rows = open_store(place, made.spec, 2)
    assert rows is not None
    made.check(rows, np.random.default_rng(0).integers(0, made.batch.num_rows, 300))


def test_builders_that_share_a_folder_share_the_work(tmp_path: Path) -> None:
    made = table()
    builders = [Counting(made, 0.002) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda read: build_files(tmp_path, made.spec, read, 2), builders))
    total = sum((builder.chunks for builder in builders), Counter())
    assert set(total) == set(range(20))
    assert sum(total.values()) <= 24, "hardly a chunk was built twice"
    opened(tmp_path, made)
    again = Counting(made)
    build_files(tmp_path, made.spec, again, 1)
    assert not again.chunks


@small_sizes(looks_until_warning=1)
def test_a_builder_that_waits_for_another_logs_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = table()
    (tmp_path / LEASES).mkdir()
    waiting, said = threading.Event(), list[tuple[Any, ...]]()

    def hear(*words: Any) -> None:
        said.append(words)
        waiting.set()

    monkeypatch.setattr(logging.getLogger(builder.__name__), "warning", hear)
    with ThreadPoolExecutor(1) as pool, Leases(tmp_path / LEASES) as other:
        assert other.claim(3)
        building = pool.submit(build_files, tmp_path, made.spec, made.read, 2)
        assert waiting.wait(PATIENCE_S)
        assert not building.done()
        other.release(3)
        building.result()
    [(message, *values)] = said
    assert message % tuple(values) == (
        f"the row store {tmp_path.name}: the last 1 of 20 chunks are being built by other processes; waiting for them"
    )
    opened(tmp_path, made)


@pytest.mark.parametrize("fails", [False, True])
@small_sizes(look_again_s=3600.0)
def test_a_thread_that_waits_for_another_of_its_process_continues_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    made, waits, wait = table(), threading.Event(), builder._Builder._wait

    def telling(one: builder._Builder, left: int) -> None:
        waits.set()
        wait(one, left)

    def late(chunk: int) -> Iterator[pa.RecordBatch]:
        if chunk == 0:
            assert waits.wait(PATIENCE_S)
            if fails:
                raise TableError("torn")
        return made.read(chunk)

    monkeypatch.setattr(builder._Builder, "_wait", telling)
    if fails:
        with pytest.raises(TableError, match="torn"):
            build_files(tmp_path, made.spec, late, 2)
    else:
        build_files(tmp_path, made.spec, late, 2)
        opened(tmp_path, made)


def test_a_failed_build_is_not_used_and_can_be_resumed(tmp_path: Path) -> None:
    made = table()

    def torn(chunk: int) -> Iterator[pa.RecordBatch]:
        if chunk == 7:
            raise TableError("torn")
        return made.read(chunk)

    with pytest.raises(TableError, match="torn"):
        build_files(tmp_path, made.spec, torn, 1)
    assert open_store(tmp_path, made.spec, 1) is None
    assert done_chunks(tmp_path) == set(range(7))
    assert not list((tmp_path / LEASES).iterdir())
    rest = Counting(made)
    build_files(tmp_path, made.spec, rest, 1)
    assert set(rest.chunks) == set(range(7, 20))
    opened(tmp_path, made)


@pytest.mark.parametrize("rows", [-1, 1])
def test_rows_that_differ_from_the_count_are_an_error(tmp_path: Path, rows: int) -> None:
    made = table()
    spec = MemoryTable(numbers(ROWS), [0, 100 - rows, ROWS]).spec
    with pytest.raises(TableError, match="chunk 0 of the row store must have"):
        build_files(tmp_path, spec, made.read, 1)
    assert open_store(tmp_path, spec, 1) is None


def test_too_little_disk_space_is_reported_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(StorageError, match=r"needs about .* more bytes .* and 10,000 are free"):
        build_files(tmp_path, table().spec, Counting(table()), 1)
    assert not (tmp_path / RECORDS).exists()


def test_strings_longer_than_estimated_are_noticed_with_the_first_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MemoryTable(pa.record_batch({"s": ["x" * 10_000] * 200}), [0, 50, 100, 150, 200])
    free = made.spec.num_bytes + 200_000
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    read = Counting(made)
    with pytest.raises(StorageError, match=r"needs about 1,\d\d\d,\d\d\d more bytes .* and 2\d\d,\d\d\d are free"):
        build_files(tmp_path, made.spec, read, 1)
    assert len(read.chunks) == 1


def test_a_disk_that_fills_up_is_named_and_nothing_half_built_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = table()
    real, written = os.pwrite, [0]

    def full(file: int, data: Any, at: int) -> int:
        written[0] += 1
        if written[0] > 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match=r"the disk is full .* continues from there"):
        build_files(tmp_path, made.spec, made.read, 2)
    assert open_store(tmp_path, made.spec, 1) is None
    monkeypatch.undo()
    build_files(tmp_path, made.spec, made.read, 2)
    opened(tmp_path, made)


# ---- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [RECORDS, "nulls.bin", "row_ids.bin", heap_file(1), CODES, WORDS])
def test_a_flipped_bit_is_found_before_use(tmp_path: Path, name: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300], ids=np.arange(300) * 2)
    build_files(tmp_path, made.spec, made.read, 1)
    flip(tmp_path / name)
    with pytest.raises(TableError, match=rf"is damaged: (chunk 1 of )?{name} .* prune"):
        open_store(tmp_path, made.spec, 1)


def rotten(place: Path, name: str, at: int) -> None:
    """Flip a bit beneath the file system: the file's times are those of the manifest."""
    flip(place / name, at)
    manifest = read_manifest(place)
    assert manifest is not None
    write_manifest(place, table().spec, manifest.parts, manifest.whole, manifest.codes)


def test_a_flipped_bit_with_the_mtime_set_back_is_found_before_use(tmp_path: Path) -> None:
    made = table()
    build_files(tmp_path, made.spec, made.read, 1)
    before = (tmp_path / RECORDS).stat()
    time.sleep(0.01)  # the file's clock may stand still for a few milliseconds
    flip(tmp_path / RECORDS, 5)
    os.utime(tmp_path / RECORDS, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(TableError, match=r"chunk 0 of records\.bin is not what was written"):
        open_store(tmp_path, made.spec, 1)


def test_records_that_rot_are_found_by_verify_and_on_request(tmp_path: Path) -> None:
    made = table()
    build_files(tmp_path, made.spec, made.read, 1)
    rotten(tmp_path, RECORDS, 5)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert open_store(tmp_path, made.spec, 1) is not None
    for check in (
        lambda: check_store(tmp_path, manifest, contents=True),
        lambda: open_store(tmp_path, made.spec, 1, contents=True),
    ):
        with pytest.raises(TableError, match="chunk 0 of records"):
            check()


def test_a_copied_store_is_fully_verified_once(tmp_path: Path) -> None:
    made = table()
    build_files(tmp_path / "a", made.spec, made.read, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    for expected in (True, False):
        manifest = read_manifest(tmp_path / "b")
        assert manifest is not None
        assert check_store(tmp_path / "b", manifest, contents=False) is expected
        opened(tmp_path / "b", made)


@pytest.mark.parametrize("fault", ["shorter", "gone", "torn", "another", "empty"])
def test_a_store_that_contradicts_its_manifest_is_refused(tmp_path: Path, fault: str) -> None:
    made = table()
    build_files(tmp_path, made.spec, made.read, 1)
    if fault == "shorter":
        os.truncate(tmp_path / RECORDS, 100)
    elif fault == "gone":
        (tmp_path / RECORDS).unlink()
    elif fault == "torn":
        text = (tmp_path / MANIFEST).read_text()
        (tmp_path / MANIFEST).write_text(text.replace('"flat": 0', '"flat": 1'))
    elif fault == "empty":
        (tmp_path / MANIFEST).write_text(json.dumps({}))
    spec = MemoryTable(numbers(ROWS), [0, ROWS]).spec if fault == "another" else made.spec
    with pytest.raises(TableError, match="row store"):
        open_store(tmp_path, spec, 1)


@pytest.mark.parametrize("lost", [RECORDS, heap_file(1), CODES])
def test_a_manifest_that_lacks_a_checksum_is_refused(tmp_path: Path, lost: str) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    build_files(tmp_path, made.spec, made.read, 1)
    content = json.loads((tmp_path / MANIFEST).read_text())["store"]
    for sums in (content["whole"], *(part[1] for part in content["parts"])):
        sums.pop(lost, None)
    (tmp_path / MANIFEST).write_text(json.dumps({"crc": _crc(content), "store": content}))
    with pytest.raises(TableError, match="its chunks do not fit its files"):
        open_store(tmp_path, made.spec, 1)


# ---- leases ----------------------------------------------------------------------------------------------


def test_a_lease_has_one_holder_and_is_released(tmp_path: Path) -> None:
    with Leases(tmp_path) as first, Leases(tmp_path) as second:
        assert first.claim(3)
        assert not second.claim(3)
        assert not first.claim(3)
        first.release(3)
        assert second.claim(3)
    assert not list(tmp_path.iterdir())


def test_a_dead_process_of_this_machine_is_replaced_at_once(tmp_path: Path) -> None:
    script = "from torch_table_loader.store.leases import Leases\nfrom pathlib import Path\nimport os\n"
    script += f"Leases(Path({str(tmp_path)!r})).claim(3)\nos._exit(0)\n"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert list(tmp_path.iterdir())
    with Leases(tmp_path) as leases:
        assert leases.claim(3)


def test_a_builder_elsewhere_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    elsewhere = json.dumps(["another machine", 1, "0"])
    (tmp_path / "000003").write_text(elsewhere)
    with Leases(tmp_path) as leases:
        assert not leases.claim(3)
        os.utime(tmp_path / "000003", (time.time() - 60, time.time() - 60))
        assert leases.claim(3)


def test_the_heartbeat_continues(tmp_path: Path) -> None:
    with small_sizes(lease_beat_s=0.01), Leases(tmp_path) as leases:
        leases.claim(3)
        os.utime(tmp_path / "000003", (0, 0))
        until(lambda: (tmp_path / "000003").stat().st_mtime >= 1)


def test_a_builder_that_was_presumed_dead_does_no_harm(tmp_path: Path) -> None:
    """It finishes its chunk after another builder has built the whole store."""
    made = table()
    go, started = threading.Event(), threading.Event()

    def slow(chunk: int) -> Iterator[pa.RecordBatch]:
        started.set()
        assert go.wait(PATIENCE_S)
        return made.read(chunk)

    with ThreadPoolExecutor(1) as pool:
        dead = pool.submit(build_files, tmp_path, made.spec, slow, 1)
        assert started.wait(PATIENCE_S)
        for lease in (tmp_path / LEASES).glob("0*"):
            lease.write_text(json.dumps(["another machine", 1, "0"]))
            os.utime(lease, (0, 0))
        build_files(tmp_path, made.spec, made.read, 2)
        opened(tmp_path, made)
        go.set()
        dead.result()
    opened(tmp_path, made)


BUILD = """
import sys
from pathlib import Path
from tests.tables.row_stores import Counting, MemoryTable, numbers
from torch_table_loader.store import builder
from torch_table_loader.store.builder import build_files, done_chunks
from torch_table_loader.testing import small_sizes
made = MemoryTable(numbers(2_000), [*range(0, 2_000, 100), 2_000])
print("go", flush=True)
with small_sizes(lease_beat_s=0.05, lease_s=0.5):
    build_files(Path(sys.argv[1]), made.spec, Counting(made, 0.01), 2)
"""


@pytest.mark.kills
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_at_twenty_random_moments(tmp_path: Path) -> None:
    made, rng = table(), np.random.default_rng(0)
    for number in range(20):
        place = tmp_path / str(number)
        process = subprocess.Popen([sys.executable, "-c", BUILD, str(place)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.15)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        whole = open_store(place, made.spec, 1) is not None if place.exists() else False
        done = done_chunks(place)
        rest = Counting(made)
        build_files(place, made.spec, rest, 2)
        assert whole or not done & set(rest.chunks)
        opened(place, made)
        assert not list(place.glob("*.tmp"))


def test_a_chunk_that_was_built_without_codes_leaves_the_store_without(tmp_path: Path) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])

    def lacking(place: Path, spec: StoreSpec) -> tuple[dict[str, int], Mapping[int, bool]]:
        (place / chunk_codes_file(0)).unlink()
        return write_codes(place, spec)

    with patch.object(builder, "write_codes", lacking):
        build_files(tmp_path, made.spec, made.read, 1)
    opened(tmp_path, made)
    assert not (tmp_path / CODES).exists()


def test_a_builder_that_finishes_second_leaves_the_manifest_of_the_first(tmp_path: Path) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])

    def overtaken(place: Path, spec: StoreSpec) -> tuple[dict[str, int], Mapping[int, bool]]:
        with patch.object(builder, "write_codes", write_codes):
            builder._finish(place, spec)
        return write_codes(place, spec)

    with patch.object(builder, "write_codes", overtaken):
        build_files(tmp_path, made.spec, made.read, 1)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert manifest.codes
    opened(tmp_path, made)


def test_a_builder_that_is_late_for_the_last_chunk_builds_none_again(tmp_path: Path) -> None:
    made = MemoryTable(everything(300), [0, 100, 300])
    late = Counting(made)

    def others_finish(place: Path) -> set[int]:
        with patch.object(builder, "done_chunks", done_chunks):
            build_files(place, made.spec, made.read, 1)
        (place / LEASES).mkdir(exist_ok=True)  # it stays where a builder beats in it while it is removed
        return done_chunks(place)

    with patch.object(builder, "done_chunks", others_finish):
        build_files(tmp_path, made.spec, late, 1)
    assert not late.chunks
    opened(tmp_path, made)
