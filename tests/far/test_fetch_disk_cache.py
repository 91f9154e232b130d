"""The cache on a local disk: nothing wrong is served, processes share it, and it never causes an error."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.launchers.small_disks import ROOT, run_with_small
from tests.logs import said_by
from tests.rooms.turns import in_turns
from torch_table_loader.errors import ConfigError
from torch_table_loader.far import disk_cache
from torch_table_loader.far.disk_cache import STALE_SECONDS, DiskCache, RangeKey
from torch_table_loader.records import FileVersion

LOGGER = "far.disk_cache"
MIB = 1024 * 1024
KIB = 1024
MOST = 64 * MIB
VERSION = FileVersion(1 << 30, etag="a")


def key(number: int, num_bytes: int = 64 * KIB, version: FileVersion = VERSION) -> RangeKey:
    return RangeKey("s3://bucket", f"table/{number}.parquet", version, 4, 4 + num_bytes)


def content(number: int, num_bytes: int = 64 * KIB) -> bytes:
    return random.Random(number).randbytes(num_bytes)


def put(cache: DiskCache, number: int, num_bytes: int = 64 * KIB) -> None:
    cache.put(key(number, num_bytes), content(number, num_bytes))


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("???/*.range"))


def used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("???/*"))


def kept(cache: DiskCache, wanted: RangeKey) -> bytes | None:
    found = cache.get(wanted)
    return None if found is None else bytes(found)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "cache"


@pytest.mark.parametrize("num_bytes", [1, 4096, 64 * KIB, 8 * MIB])
def test_stored_ranges_are_returned_in_this_and_other_processes(root: Path, num_bytes: int) -> None:
    cache = DiskCache(root, MOST)
    assert cache.get(key(1, num_bytes)) is None
    put(cache, 1, num_bytes)
    assert kept(cache, key(1, num_bytes)) == content(1, num_bytes)
    there = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert kept(there, key(1, num_bytes)) == content(1, num_bytes)
    assert len(entries(root)) == 1


def test_any_buffer_of_exactly_the_ranges_size_may_be_put(root: Path) -> None:
    cache = DiskCache(root, MOST)
    cache.put(key(1, 80), np.arange(10))
    assert kept(cache, key(1, 80)) == np.arange(10).tobytes()
    with pytest.raises(ValueError, match="80 bytes long, but 79 came"):
        cache.put(key(2, 80), bytes(79))


def test_expecting_a_range_reads_it_ahead_and_a_missing_one_is_no_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, asked = DiskCache(root, MOST), list[tuple[int, int, int]]()
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *rest: asked.append((os.fstat(file).st_size, *rest[:2])))
    put(cache, 1, 1000)
    for wanted in (key(1, 1000), key(2, 1000), key(1, 1000, FileVersion(1 << 30))):
        cache.expect(wanted)
    assert asked == [(1064, 0, 0)]
    assert kept(cache, key(1, 1000)) == content(1, 1000)


def test_another_store_file_version_or_range_is_not_found(root: Path) -> None:
    cache, one = DiskCache(root, MOST), key(1)
    put(cache, 1)
    for other in (
        one._replace(place="s3://other"),
        one._replace(path="table/2.parquet"),
        one._replace(version=FileVersion(1 << 30, etag="b")),
        one._replace(version=FileVersion(1 << 29, etag="a")),
        one._replace(version=FileVersion(1 << 30, etag="a", mtime_ns=5)),
        one._replace(version=FileVersion(1 << 30, etag="a", immutable=True)),
        one._replace(start=5, stop=5 + 64 * KIB),
        one._replace(stop=one.stop + 1),
    ):
        assert cache.get(other) is None
    assert kept(cache, one) == content(1)


def test_a_range_is_found_if_others_cover_all_its_bytes(root: Path) -> None:
    cache, data, one = DiskCache(root, MOST), content(1, 1000), key(1)
    for start, stop in ((0, 100), (50, 300), (300, 301), (301, 700), (900, 1000)):
        cache.put(one._replace(start=start, stop=stop), data[start:stop])
    cache.put(key(2)._replace(start=600, stop=1000), bytes(400))
    for start, stop in ((10, 20), (90, 120), (0, 700), (299, 302), (950, 1000)):
        assert kept(cache, one._replace(start=start, stop=stop)) == data[start:stop]
    for start, stop in ((699, 701), (0, 1000), (700, 900), (899, 1000)):
        assert cache.get(one._replace(start=start, stop=stop)) is None
    (torn,) = (path for path in entries(root) if ".300-301." in path.name)
    torn.write_bytes(b"")
    assert cache.get(one._replace(start=0, stop=700)) is None


def test_a_file_of_unknown_version_is_not_cached(root: Path) -> None:
    cache = DiskCache(root, MOST)
    for version, kept in (
        (FileVersion(1 << 30), False),
        (FileVersion(1 << 30, mtime_ns=1), True),
        (FileVersion(1 << 30, immutable=True), True),
    ):
        cache.put(key(1, version=version), content(1))
        assert (cache.get(key(1, version=version)) is not None) == kept


def test_file_names_reveal_nothing_and_only_the_user_has_access(root: Path) -> None:
    put(DiskCache(root, MOST), 1)
    (path,) = entries(root)
    assert path.parent.name == path.name[:3]
    assert b"parquet" not in path.read_bytes()[:64]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (root, path.parent)] == [0o700] * 2


# ---- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "empty", "longer", "head", "first", "last", "another"])
def test_damaged_or_unrelated_files_are_removed_with_one_warning(
    root: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(root, MOST)
    put(cache, 1)
    (path,) = entries(root)
    data = bytearray(path.read_bytes())
    if fault in ("head", "first", "last"):
        data[{"head": 20, "first": 64, "last": -1}[fault]] ^= 1
    put(cache, 2)
    (other,) = set(entries(root)) - {path}
    changed: dict[str, bytes] = {
        "cut": bytes(data[:-1]),
        "empty": b"",
        "longer": bytes(data + b"x"),
        "another": other.read_bytes(),
    }
    path.write_bytes(changed.get(fault, bytes(data)))
    assert cache.get(key(1)) is None
    assert not path.exists()
    put(cache, 1)
    assert kept(cache, key(1)) == content(1)
    assert len(said_by(caplog, LOGGER)) == 1


def test_of_several_threads_that_find_damage_one_warns(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(root, MOST)
    for number in range(4):
        put(cache, number)
    for path in entries(root):
        path.write_bytes(b"torn")
    in_turns(disk_cache, lambda number: cache.get(key(number)), 4)
    assert not entries(root)
    assert len(said_by(caplog, LOGGER)) == 1


PAGE = 4096


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_range_with_any_changed_byte_is_not_served(data: st.DataObject) -> None:
    num_bytes = 4 * PAGE
    with TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder) / "cache", MOST)
        put(cache, 1, num_bytes)
        (path,) = entries(Path(folder) / "cache")
        whole = path.read_bytes()
        pages = st.integers(0, 3).map(lambda page: 64 + page * PAGE)
        bits = st.integers(0, 8 * len(whole) - 1)
        kind = data.draw(st.sampled_from(["bits", "zeros", "swap", "cut"]))
        changed = bytearray(whole)
        if kind == "bits":
            for bit in data.draw(st.lists(bits, min_size=1, max_size=4, unique=True)):
                changed[bit // 8] ^= 1 << bit % 8
        elif kind == "zeros":
            page = data.draw(pages)
            changed[page : page + PAGE] = bytes(PAGE)
        elif kind == "swap":
            one, other = data.draw(st.lists(pages, min_size=2, max_size=2, unique=True))
            changed[one : one + PAGE], changed[other : other + PAGE] = (
                whole[other : other + PAGE],
                whole[one : one + PAGE],
            )
        else:
            del changed[data.draw(st.integers(0, len(whole) - 1)) :]
        path.write_bytes(changed)
        assert cache.get(key(1, num_bytes)) is None
        assert not path.exists()


def test_a_link_in_place_of_a_range_is_neither_read_nor_followed(root: Path, tmp_path: Path) -> None:
    cache = DiskCache(root, MOST)
    put(cache, 1)
    (path,) = entries(root)
    theirs = path.rename(tmp_path / "theirs")
    path.symlink_to(theirs)
    assert cache.get(key(1)) is None
    put(cache, 1)
    assert theirs.exists()


PUTS = """
import sys
from tests.far.test_fetch_disk_cache import DiskCache, put
cache = DiskCache(sys.argv[1], 1 << 40)
print("go", flush=True)
for number in range(1 << 30):
    put(cache, number, 1 << 20)
"""


@pytest.mark.kills
@pytest.mark.slow
def test_after_kill_9_at_random_moments_nothing_damaged_is_served(root: Path) -> None:
    rng, seen = random.Random(0), 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", PUTS, str(root)], stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        cache = DiskCache(root, 1 << 40)
        for number in range(len(entries(root)) + 2):
            found = cache.get(key(number, 1 << 20))
            seen += found is not None
            assert found is None or found == content(number, 1 << 20)
    assert seen
    for path in root.glob("???/.*.tmp"):
        os.utime(path, (0, 0))
    put(DiskCache(root, 2 * MIB), -1, MIB)  # too much is there: it looks through the folder
    assert not list(root.glob("???/.*.tmp"))
    assert used(root) <= 2 * MIB + 64 * KIB


# ---- eviction --------------------------------------------------------------------------------------------


def test_the_least_recently_used_range_is_evicted(root: Path) -> None:
    cache = DiskCache(root, 20 * 68 * KIB)
    for number in range(19):
        put(cache, number)
        path = entries(root)[0] if number == 0 else max(entries(root), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (number, number))
    for number in (0, 3):
        assert cache.get(key(number)) is not None
    for number in range(100, 103):
        put(cache, number)
    here = {number for number in (*range(19), *range(100, 103)) if cache.get(key(number)) is not None}
    assert {0, 3, 100, 101, 102} <= here
    assert not {1, 2} & here
    assert 15 <= len(here) <= 20


def test_files_of_others_in_the_folder_stay(root: Path) -> None:
    cache = DiskCache(root, MIB)
    theirs = [root / "notes.txt", root / "aaa" / "notes.txt", root / "more" / f"{'a' * 64}.0-9.range"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        os.utime(path, (0, 0))
    for number in range(40):
        put(cache, number)
    assert all(path.exists() for path in theirs)


def test_a_range_as_large_as_the_cache_is_not_cached(root: Path) -> None:
    cache = DiskCache(root, MIB)
    put(cache, 1)
    put(cache, 2, MIB)
    assert cache.get(key(2, MIB)) is None
    assert cache.get(key(1)) is not None


def test_existing_files_count(root: Path) -> None:
    for number in range(40):
        put(DiskCache(root, 4 * MIB), number)
    (root / "lock").unlink()
    put(DiskCache(root, MIB), 100)
    assert used(root) <= MIB


def test_abandoned_unfinished_files_are_removed(root: Path) -> None:
    cache = DiskCache(root, MIB)
    put(cache, 1)
    (path,) = entries(root)
    old, new = (path.with_name(f".{path.name}.{digit * 32}.tmp") for digit in "01")
    for unfinished in (old, new):
        unfinished.write_bytes(b"x")
    os.utime(old, (time.time() - STALE_SECONDS - 1,) * 2)
    for number in range(40):
        put(cache, number)
    assert not old.exists()
    assert new.exists()


HAMMER = """
import random, sys
from tests.far.test_fetch_disk_cache import DiskCache, content, key, used, Path
root, most, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng, cache, hits, highest = random.Random(seed), DiskCache(root, most), 0, 0
made = [content(number) for number in range(200)]
for turn in range(1500):
    number = min(199, int(rng.expovariate(1 / 60)))
    found = cache.get(key(number))
    if found is None:
        cache.put(key(number), made[number])
    else:
        assert found == made[number], number
        hits += 1
    if turn % 50 == 0:
        try:
            highest = max(highest, used(Path(root)))
        except FileNotFoundError:
            pass
print(hits, highest)
"""


@pytest.mark.slow
def test_four_processes_share_it_while_it_evicts(root: Path) -> None:
    most = 5 * MIB
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(root), str(most), str(seed)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for seed in range(4)
    ]
    said = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(int(hits) for hits, _ in said) > 1000
    assert max(int(highest) for _, highest in said) <= 1.05 * most
    put(DiskCache(root, most), 1000)
    assert used(root) <= 1.05 * most
    assert not list(root.glob("???/.*.tmp"))


def test_threads_share_it(root: Path) -> None:
    cache, faults = DiskCache(root, 2 * MIB), list[int]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            number = rng.randrange(40)
            found = cache.get(key(number))
            if found is not None and found != content(number):
                faults.append(number)
            put(cache, number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert used(root) <= 1.05 * 2 * MIB + 4 * 68 * KIB


def test_nobody_waits_long_for_the_lock_of_another_process(root: Path) -> None:
    cache = DiskCache(root, MOST)
    put(cache, 1)
    with cache._locked() as lock:
        assert lock is not None
        for number in range(2, 6):  # 3 ranges are less than 1/256 of the cache
            put(cache, number)
        assert [cache.get(key(number)) is not None for number in range(2, 6)] == [True, True, True, False]
    put(cache, 6)
    assert int((root / "lock").read_text()) == 6 * 68 * KIB


# ---- disks that fail -------------------------------------------------------------------------------------


FULL = """
import logging, sys
from tests.far.test_fetch_disk_cache import DiskCache, content, kept, key, put
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("torch_table_loader").addHandler(handler)
cache = DiskCache(sys.argv[1] + "/cache", 1 << 30)
for number in range(40):
    put(cache, number)
here = [number for number in range(40) if kept(cache, key(number)) == content(number)]
print(len(here), here == list(range(len(here))), said)
"""


def test_a_full_disk_stops_writing_with_one_warning(tmp_path: Path) -> None:
    count, first, said = run_with_small(str(tmp_path), "1m", FULL, str(tmp_path)).split(maxsplit=2)
    assert 8 <= int(count) < 16
    assert first == "True"
    assert said.count("the disk cache cannot be written and stays as it is; reading continues") == 1
    assert "No space left" in said


def test_a_folder_that_disappears_is_not_an_error(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(root, MOST)
    put(cache, 1)
    for path in [*entries(root), *root.glob("*")]:
        path.rmdir() if path.is_dir() else path.unlink()
    root.rmdir()
    for number in range(3):
        assert cache.get(key(number)) is None
        put(cache, number)
    assert not root.exists()
    assert len(said_by(caplog, LOGGER)) == 1


def test_a_failing_disk_is_not_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(root, MOST)
    put(cache, 1)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", refuse)
        assert kept(cache, key(1)) == content(1)
        assert not said_by(caplog, LOGGER, logging.NOTSET)
        patched.setattr(disk_cache, "open_regular", refuse)
        for number in range(3):
            assert cache.get(key(number)) is None
            put(cache, number + 10)
    assert sorted(message.partition(":")[0] for message in said_by(caplog, LOGGER)) == [
        "the disk cache cannot be read, so its bytes are fetched again",
        "the disk cache cannot be written and stays as it is; reading continues",
    ]
    put(cache, 2)
    assert cache.get(key(2)) is None
    assert kept(cache, key(1)) == content(1)


def test_a_folder_that_cannot_be_created_is_not_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk_cache, "make_folder", refuse)
    cache = DiskCache(root, MOST)
    put(cache, 1)
    assert cache.get(key(1)) is None
    assert len(said_by(caplog, LOGGER)) == 1


def test_a_folder_controlled_by_others_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True)
    root.chmod(0o770)
    with pytest.raises(ConfigError, match=r"others may write to .*`chmod go-w`.*cache_dir="):
        DiskCache(root, MOST)
    root.chmod(0o755)
    DiskCache(root, MOST)
    owner = root.stat().st_uid
    if owner:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    else:
        os.chown(root, 12345, -1)
    with pytest.raises(ConfigError, match=r"belongs to user .* cache_dir="):
        DiskCache(root, MOST)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ConfigError, match="got a file"):
        DiskCache(tmp_path / "cache", MOST)


def test_a_process_that_is_forked_while_the_lock_is_held_does_not_hold_it(root: Path) -> None:
    cache, context = DiskCache(root, MOST), multiprocessing.get_context("fork")
    may_end = context.Event()
    child = context.Process(target=may_end.wait, daemon=True)
    with cache._locked() as lock:
        assert lock is not None
        child.start()
    with cache._locked() as lock:
        assert lock is not None
    may_end.set()
    child.join()
