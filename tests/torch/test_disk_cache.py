"""The disk cache through loaders: what came once does not come again, whoever reads which part of it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.launchers.small_disks import ROOT, run_with_small
from tests.logs import said_by
from tests.servers.faults import BUCKET, FaultyStore, serving_faults
from tests.servers.faulty_tables import URL, loader_of, options_of, taken
from tests.torch.modes import LAKE, ROWS, SPLITS
from torch_table_loader import ConfigError, StructuredDataset, TableError, TableLoader
from torch_table_loader.testing import small_sizes

CHOSEN: dict[str, Any] = {"batch_size": 16, "columns": ["x", "y", "z"]}

FILES, GROUPS, GROUP_ROWS = 3, 6, 30
NUM_ROWS = FILES * GROUPS * GROUP_ROWS

WIDE = 1500
"""Bytes of a value that keeps columns apart: its row group is larger than what is read in vain."""
NARROW = 200
"""Bytes of a value whose row group is read in vain, where few are."""


def write_table(root: Path, first: int = 0) -> None:
    """Write files where columns that are read lie beside some that are not."""
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(first)
    for number in range(FILES):
        start = first + number * GROUPS * GROUP_ROWS
        rows = GROUPS * GROUP_ROWS
        columns = {
            "x": pa.array(range(start, start + rows), pa.int64()),
            "narrow": pa.array([rng.bytes(NARROW) for _ in range(rows)]),
            "y": pa.array(rng.random(rows)),
            "wide": pa.array([rng.bytes(WIDE) for _ in range(rows)]),
            "z": pa.array(rng.random(rows)),
        }
        pq.write_table(pa.table(columns), root / f"{number}.parquet", row_group_size=GROUP_ROWS, compression=None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    folder = tmp_path_factory.mktemp("store")
    write_table(folder / "t")
    with serving_faults(folder) as serving:
        yield serving


@pytest.fixture
def make(store: FaultyStore, tmp_path: Path) -> Callable[..., TableLoader]:
    """Give what makes loaders that share a cache."""
    return partial(loader_of, store, **CHOSEN, cache_dir=str(tmp_path / "cache"))


def whole_job(make: Callable[..., TableLoader], world: dict[str, Any]) -> tuple[int, int]:
    """Let every rank of a job take an epoch; bytes that came from the store, and from the cache."""
    loaders = [make(rank=rank, **world) for rank in range(world.get("num_ranks", 1))]
    rows = [x for loader in loaders for x in taken(loader)]
    assert set(rows) == set(range(NUM_ROWS))
    fetched = [loader.metrics().fetch for loader in loaders]
    assert sum(each.unplanned for each in fetched) == 0
    return sum(each.num_bytes for each in fetched), sum(each.cached_bytes for each in fetched)


WORLDS: dict[str, dict[str, Any]] = {
    "alone": {},
    "caller's thread": {"num_workers": 0},
    "five workers": {"num_workers": 5},
    "three ranks": {"num_ranks": 3, "even_ranks": "balance"},
    "padded ranks": {"num_ranks": 4, "even_ranks": "pad", "num_workers": 1},
    "small splits": {"split_size": 17, "shuffle": "splits", "shuffle_seed": 1},
    "another seed": {"split_size": 50, "shuffle": "splits", "shuffle_seed": 2, "num_ranks": 2, "even_ranks": "balance"},
    "window": {"split_size": 40, "shuffle": "splits", "shuffle_buffer_size": 70},
}


@pytest.mark.parametrize("second", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("first", [WORLDS["alone"], WORLDS["small splits"], WORLDS["three ranks"]], ids=str)
@daily(2)
def test_the_second_epoch_reads_no_byte_from_the_store(
    make: Callable[..., TableLoader], first: dict[str, Any], second: dict[str, Any]
) -> None:
    came, _ = whole_job(make, first)
    assert came > 0
    came, cached = whole_job(make, second)
    assert came == 0
    assert cached > 0


def test_the_store_is_not_even_asked(make: Callable[..., TableLoader], store: FaultyStore) -> None:
    loader = make()
    assert sorted(taken(loader)) == list(range(NUM_ROWS))
    store.fail()
    loader.set_epoch(1)
    assert sorted(taken(loader)) == list(range(NUM_ROWS))
    assert store.seen() == {}


@pytest.mark.parametrize(("plan_cache", "footers"), [(False, FILES), (True, 0)])
def test_footers_are_kept_by_the_plan_cache_alone(
    make: Callable[..., TableLoader], store: FaultyStore, tmp_path: Path, plan_cache: bool, footers: int
) -> None:
    options = {"plan_cache": str(tmp_path / "plans")} if plan_cache else {}
    taken(make(**options))
    store.fail()
    assert sorted(taken(make(**options))) == list(range(NUM_ROWS))
    assert store.seen().get("GET", 0) == footers


@pytest.mark.parametrize(
    "options", [{"columns": None}, {"columns": ["x"], "filters": pc.field("y") > 0.5}, {"columns": ["x", "wide"]}],
    ids=str,
)  # fmt: skip
@daily(1)
def test_other_columns_and_filters(make: Callable[..., TableLoader], options: dict[str, Any]) -> None:
    first = make(**options)
    wanted = sorted(taken(first))
    second = make(split_size=19, num_workers=3, **options)
    assert sorted(taken(second)) == wanted
    assert second.metrics().fetch.num_bytes == 0
    if "filters" in options:
        assert first.metrics().fetch.cached_bytes > 0, "the counting pass has brought some"


def test_worker_processes_share_it(make: Callable[..., TableLoader], store: FaultyStore) -> None:
    loader = make(worker_type="process")
    whole = taken(loader)
    assert sorted(whole) == list(range(NUM_ROWS))
    assert loader.metrics().fetch.num_bytes > 0
    loader.set_epoch(1)
    assert sorted(taken(loader)) == list(range(NUM_ROWS))
    fetched = loader.metrics().fetch
    assert fetched.num_bytes == 0
    assert fetched.cached_bytes > 0
    threads = make(num_workers=3)
    store.fail()
    assert sorted(taken(threads)) == list(range(NUM_ROWS))
    assert store.seen() == {}


@pytest.mark.parametrize("step", [1, 9, 20])
@pytest.mark.parametrize("options", [{}, {"shuffle": "splits", "shuffle_buffer_size": 50, "split_size": 45}], ids=str)
@daily(2)
def test_a_resumed_epoch_finds_what_the_first_part_left(
    make: Callable[..., TableLoader], step: int, options: dict[str, Any]
) -> None:
    whole = taken(make(**options))
    first = make(**options)
    batches = iter(first)
    before = [int(x) for _ in range(step) for x in next(batches)["x"]]
    state = first.state_dict()
    batches.close()
    second = make(**options)
    second.load_state_dict(state)
    assert before + taken(second) == whole
    assert second.metrics().fetch.num_bytes == 0
    another = make(num_workers=3, **options)
    another.load_state_dict(state)
    assert sorted(before + taken(another)) == sorted(whole)
    assert another.metrics().fetch.num_bytes == 0


def test_an_epoch_that_was_left_early_leaves_what_came(make: Callable[..., TableLoader]) -> None:
    first = make(read_ahead_bytes=1)
    for _ in zip(range(5), first, strict=False):
        pass
    second = make()
    assert sorted(taken(second)) == list(range(NUM_ROWS))
    assert second.metrics().fetch.cached_bytes > 0
    assert second.metrics().fetch.num_bytes > 0


def test_a_row_store_is_built_from_it(make: Callable[..., TableLoader], store: FaultyStore, tmp_path: Path) -> None:
    taken(make())
    store.fail()
    loader = make(shuffle="rows", row_store=str(tmp_path / "rows"))
    assert sorted(taken(loader)) == list(range(NUM_ROWS))
    assert store.seen()["GET"] == FILES, "one a footer"


@small_sizes(late_s=60)  # a request sent twice is another test
def test_a_file_that_changed_is_fetched_anew(make: Callable[..., TableLoader], tmp_path: Path) -> None:
    table = tmp_path / "changing"
    with serving_faults(tmp_path) as store:
        write_table(table)
        how: dict[str, Any] = {
            "storage_options": {**store.options, "cache_dir": str(tmp_path / "cache")},
            "columns": ["x", "y"],
        }

        def load() -> tuple[list[int], int]:
            loader, _ = StructuredDataset.create_dataloader(f"s3://{BUCKET}/changing", "parquet", batch_size=50, **how)
            return sorted(taken(loader)), loader.metrics().fetch.num_bytes

        rows, came = load()
        assert load() == (rows, 0)
        write_table(table, first=10_000)
        assert load() == ([x + 10_000 for x in rows], came)


def test_a_file_that_changed_after_planning_is_an_error_that_names_it(tmp_path: Path) -> None:
    with serving_faults(tmp_path) as store:
        write_table(tmp_path / "t")
        loader = loader_of(store, cache_dir=str(tmp_path / "c"))
        write_table(tmp_path / "t", first=10_000)
        with pytest.raises(TableError, match=r"0\.parquet"):
            taken(loader)


def test_a_small_cache_never_costs_a_row(make: Callable[..., TableLoader]) -> None:
    for seed in range(3):
        loader = make(cache_bytes=40_000, shuffle="splits", split_size=20, shuffle_seed=seed)
        assert sorted(taken(loader)) == list(range(NUM_ROWS))


def test_damage_is_fetched_anew(
    make: Callable[..., TableLoader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = taken(make())
    for path in (tmp_path / "cache").glob("???/*.range"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    loader = make()
    assert taken(loader) == whole
    assert loader.metrics().fetch.cached_bytes == 0
    (warning,) = said_by(caplog, "far.disk_cache")
    assert "damaged" in warning
    again = make()
    assert taken(again) == whole
    assert again.metrics().fetch.num_bytes == 0


# ---- processes -------------------------------------------------------------------------------------------


EPOCH = """
import json, sys
from torch_table_loader import StructuredDataset
given = json.loads(sys.argv[1])
for epoch in range(given.pop("epochs", 1)):
    loader, _ = StructuredDataset.create_dataloader(given.pop("path") if epoch == 0 else path, **given) \
        if epoch == 0 else (loader, None)
    loader.set_epoch(epoch)
    rows = [int(x) for batch in loader for x in batch["x"]]
fetched = loader.metrics().fetch
print(json.dumps([rows, fetched.num_bytes, fetched.cached_bytes]))
"""


def epoch_elsewhere(store: FaultyStore, cache: Path, **options: Any) -> subprocess.Popen[str]:
    """Begin an epoch in another process."""
    given = {"path": URL} | options_of(store, CHOSEN | {"cache_dir": str(cache)} | options)
    command = [sys.executable, "-c", EPOCH, json.dumps(given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def ended(process: subprocess.Popen[str]) -> tuple[list[int], int, int]:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    rows, num_bytes, cached = json.loads(said)
    return rows, num_bytes, cached


@pytest.mark.slow
def test_ranks_in_processes_of_their_own_share_it(store: FaultyStore, tmp_path: Path) -> None:
    for turn in range(2):
        ranks = [
            epoch_elsewhere(
                store, tmp_path / "cache", num_ranks=2, rank=rank, shuffle_seed=turn, shuffle="splits", split_size=40
            )
            for rank in range(2)
        ]
        done = [ended(rank) for rank in ranks]
        assert set(range(NUM_ROWS)) == {x for rows, _, _ in done for x in rows}
        assert (sum(num_bytes for _, num_bytes, _ in done) == 0) == (turn == 1)


@pytest.mark.kills
def test_ranks_that_are_killed_leave_nothing_wrong(store: FaultyStore, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        ranks = [epoch_elsewhere(store, tmp_path / "cache", cache_bytes=300_000, epochs=500) for _ in range(2)]
        cache, patience = tmp_path / "cache", time.monotonic() + 60
        while not (cache.is_dir() and any(cache.iterdir())):
            assert time.monotonic() < patience
            time.sleep(0.05)
        time.sleep(float(rng.random()))
        for rank in ranks:
            rank.kill()
            rank.communicate()
    survivor = ended(epoch_elsewhere(store, tmp_path / "cache"))
    assert sorted(survivor[0]) == list(range(NUM_ROWS))
    assert sorted(ended(epoch_elsewhere(store, tmp_path / "cache", worker_type="process"))[0]) == list(range(NUM_ROWS))


FULL = """
import json, logging, sys
from torch_table_loader import StructuredDataset
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("torch_table_loader").addHandler(handler)
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=16, num_workers=2,
    columns=["x", "wide"], storage_options=json.loads(sys.argv[3]) | {"cache_dir": sys.argv[2] + "/cache"})
rows = [sorted(int(x) for batch in loader for x in batch["x"]) for _ in range(2)]
print(json.dumps([rows, said, loader.metrics().fetch.cached_bytes]))
"""


@pytest.mark.slow
def test_the_epoch_goes_on_where_the_disk_is_full(store: FaultyStore, tmp_path: Path) -> None:
    words = [f"s3://{BUCKET}/t", str(tmp_path), json.dumps(store.options)]
    rows, said, cached = json.loads(run_with_small(str(tmp_path), "700k", FULL, *words))
    assert rows == [list(range(NUM_ROWS))] * 2
    full = [message for message in said if "the disk cache cannot be written and stays as it is" in message]
    assert len(full) == 1
    assert len(said) == 1
    assert cached > 0


# ---- tables of other kinds, and options -------------------------------------------------------------------


@pytest.mark.parametrize("mode", [SPLITS, LAKE], ids=str)
@pytest.mark.parametrize("options", [{}, {"worker_type": "process"}], ids=str)
@daily(2)
def test_tables_of_this_machine_that_play_far_ones(
    tables: Path, far: Callable[[], Any], tmp_path: Path, mode: Any, options: dict[str, Any]
) -> None:
    with far():
        kept = {"storage_options": {"cache_dir": str(tmp_path / "cache")}, "shuffle": "splits", **options}
        first = mode.make(tables, **kept)
        whole = mode.read(first)
        assert first.metrics().fetch.num_bytes > 0
        second = mode.make(tables, **kept)
        assert mode.read(second) == whole
        assert second.metrics().fetch.num_bytes == 0


def test_a_table_of_this_machine_is_not_kept(tables: Path, tmp_path: Path) -> None:
    ROWS.read(ROWS.make(tables, storage_options={"cache_dir": str(tmp_path / "cache")}))
    SPLITS.read(SPLITS.make(tables, storage_options={"cache_dir": str(tmp_path / "cache")}))
    assert not list((tmp_path / "cache").glob("???/*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_dir": "s3://bucket/cache"}, r"'cache_dir'\] must be a directory of this machine"),
        ({"cache_dir": 5}, r"'cache_dir'\] must be a directory of this machine"),
        ({"cache_bytes": 0}, r"'cache_bytes'\] must"),
        ({"cache_bytes": "many"}, r"'cache_bytes'\] must"),
        ({"cache_bytes": -5}, r"'cache_bytes'\] must"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(make: Callable[..., TableLoader], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_a_folder_that_cannot_be_used_is_refused(make: Callable[..., TableLoader], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache_dir cannot be used: .*got a file"):
        make(cache_dir=str(tmp_path / "file"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o777)
    with pytest.raises(ConfigError, match=r"cache_dir cannot be used: others may write"):
        make(cache_dir=str(tmp_path / "theirs"))


def test_nothing_that_is_secret_is_written_there(
    make: Callable[..., TableLoader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    taken(make())
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert b"faulty/secret" not in path.read_bytes()
        assert BUCKET not in str(path.relative_to(tmp_path))
    assert "faulty/secret" not in caplog.text
