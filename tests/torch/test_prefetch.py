"""No more batches are finished ahead than `prefetch_batches` says, and no more rows are held than `explain()` says."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from tests.effort import daily
from tests.torch.modes import MIXTURE, ROWS, SPLITS, Mode, RowMode, write_rows
from tests.waiting import PATIENCE_S
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.batching.codec import TensorCodec, TensorRows

pytestmark = [
    pytest.mark.usefixtures("earlier_loaders_gone"),
    pytest.mark.filterwarnings("ignore:epoch . is iterated again"),
]

ENGINES = ["thread", "process"]
LANES = 3
UNCOUNTED: dict[str, Any] = {"filters": pc.field("k") < 9, "count_filtered": False}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name in "ab":
        write_rows(root / name, [[200, 130, 7]] * LANES)
    return root


class Counting:
    """A collate_fn that counts its calls, in whatever process they are made."""

    def __init__(self) -> None:
        self._calls = torch.zeros(16, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_calls": self._calls}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __call__(self, batch: Any) -> Any:
        info = get_worker_info()
        with self._lock:
            self._calls[0 if info is None else 1 + info.id] += 1
        return batch

    @property
    def calls(self) -> int:
        return int(self._calls.sum())


def made_ahead(batches: Iterator[Any], count: Any) -> Iterator[int]:
    """Take batches, and say each time how many more were made, once the workers have come to rest."""
    for taken, _ in enumerate(batches, 1):
        if taken in (1, 2, 30):
            before = -1
            while before != (before := count()):
                time.sleep(0.03)
        yield count() - taken


def make(mode: Mode, table: Path, **options: Any) -> TableLoader:
    store = {"row_store": "memory"} if isinstance(mode, RowMode) else {}
    stop = {"stop": "first_exhausted"} if mode is MIXTURE else {}
    return mode.make(table, **{"batch_size": 8, "num_workers": LANES} | store | stop | options)


in_each_mode = pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE], ids=str)


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@pytest.mark.parametrize(("mode", "options"), [(SPLITS, {}), (SPLITS, UNCOUNTED), (ROWS, {}), (MIXTURE, {})], ids=str)
@pytest.mark.parametrize("prefetch", [None, 1])
@daily(3)
def test_a_collate_fn_runs_no_further_ahead_than_was_asked_for(
    table: Path, mode: Mode, options: dict[str, Any], worker_type: str, prefetch: int | None
) -> None:
    counting = Counting()
    workers = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    loader = make(mode, table, collate_fn=counting, prefetch_batches=prefetch, **workers, **options)
    # Each lane may have so many that wait, and one in the making; without workers none is made ahead.
    most = 0 if worker_type == "caller" else LANES * ((prefetch or 2) + 1)
    ahead = list(made_ahead(iter(loader), lambda: counting.calls))
    assert max(ahead) <= most
    assert ahead[-1] == 0, "each batch was collated once"
    assert len(ahead) > 30


@pytest.mark.parametrize("worker_type", ENGINES)
@pytest.mark.parametrize("mode", [SPLITS, ROWS], ids=str)
@pytest.mark.parametrize("prefetch", [1, 5])
@daily(lambda worker_type, prefetch: worker_type == "thread" or prefetch == 1)
def test_no_more_batches_are_finished_than_was_asked_for(
    table: Path, mode: Mode, worker_type: str, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = [0]
    batches_of = TensorRows.batches

    def counting(rows: TensorRows, batch_size: int) -> list[Any]:
        batches = batches_of(rows, batch_size)
        with lock:
            finished[0] += len(batches)
        return batches

    lock = threading.Lock()
    monkeypatch.setattr(TensorRows, "batches", counting)
    loader = make(mode, table, worker_type=worker_type, prefetch_batches=prefetch)
    assert max(made_ahead(iter(loader), lambda: finished[0])) <= LANES * prefetch


@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@in_each_mode
@daily(3)
def test_the_first_batch_waits_for_no_other_batch_of_its_block(mode: Mode, table: Path, worker_type: str) -> None:
    counting = Counting()
    options = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type, "num_workers": 1}
    batches = iter(make(mode, table, collate_fn=counting, prefetch_batches=1, **options))
    next(batches)
    assert counting.calls <= 3


@in_each_mode
@daily(1)
def test_a_dataloader_of_the_callers_own_collates_one_batch_at_a_time(mode: Mode, table: Path) -> None:
    counting = Counting()
    dataset = mode.open(table, batch_size=8, collate_fn=counting)
    for taken, _ in enumerate(DataLoader(dataset, batch_size=None), 1):
        assert counting.calls == taken


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (SPLITS, {}),
        (SPLITS, {"drop_last": True}),
        (SPLITS, {"shuffle_buffer_size": 50}),
        (SPLITS, {"even_ranks": "pad"}),
        (MIXTURE, {"even_ranks": "pad"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("worker_type", [*ENGINES, "caller"])
@daily(2)
def test_collated_one_by_one_each_batch_is_what_it_was(
    mode: Mode, table: Path, worker_type: str, options: dict[str, Any]
) -> None:
    workers = {"num_workers": 0} if worker_type == "caller" else {"worker_type": worker_type}
    chosen = {"batch_size": 9, **workers, **options}
    plain = [(mode.ids(batch), mode.rows(batch)) for batch in make(mode, table, **chosen)]
    for prefetch in (None, 1):
        found = make(mode, table, prefetch_batches=prefetch, **chosen)
        assert [(mode.ids(batch), mode.rows(batch)) for batch in found] == plain
        collated = make(mode, table, prefetch_batches=prefetch, collate_fn=dict, **chosen)
        assert [(mode.ids(batch), mode.rows(batch)) for batch in collated] == plain
        assert sum(worker.batches for worker in collated.metrics().workers) == len(plain)


def test_a_rank_that_mixes_splits_collates_batches_side_by_side(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one lane, whose batches threads collate; they come in order."""
    monkeypatch.setattr("torch_table_loader.engine.machine.usable_cpus", lambda: 2)
    meeting, calls = threading.Barrier(2, timeout=PATIENCE_S), itertools.count()

    def collate(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if next(calls) < 2:  # later, there may be room for one batch alone
            meeting.wait()
        return batch["x"]

    options: dict[str, Any] = {"batch_size": 84, "shuffle": "mixed", "num_workers": 2, "drop_last": True}
    wanted, _ = StructuredDataset.create_dataloader(str(table / "a"), **options)
    loader, _ = StructuredDataset.create_dataloader(str(table / "a"), collate_fn=collate, **options)
    assert [batch.tolist() for batch in loader] == [batch["x"].tolist() for batch in wanted]


@in_each_mode
@daily(1)
def test_explain_counts_the_collated_batches_apart(table: Path, mode: Mode) -> None:
    dataset: Any = make(mode, table, collate_fn=dict, prefetch_batches=4).dataset
    assert dataset.explain().collated_batches == LANES * 4
    assert re.search(f"collated batches that wait at most +{LANES * 4}\n", str(dataset.explain()))
    dataset = make(mode, table, collate_fn=dict).dataset
    assert dataset.explain().collated_batches == LANES * 2
    dataset = make(mode, table).dataset
    assert dataset.explain().collated_batches == 0
    assert "collated" not in str(dataset.explain())


@in_each_mode
@pytest.mark.parametrize("options", [{}, {"prefetch_batches": 1}, {"prefetch_batches": 40}, {"collate_fn": dict}])
@daily(2)
def test_no_more_rows_are_decoded_ahead_than_explained(
    tmp_path: Path, mode: Mode, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in mode.tables:
        write_rows(tmp_path / name, [[100] * 20] * LANES)
    monkeypatch.setattr("torch_table_loader.engine.jobs.modes.rows_of_a_read", lambda *_: 100)
    monkeypatch.setattr("torch_table_loader.engine.jobs.gathering.batches_of_a_gather", lambda *_: 10)
    decoded = [0]
    decode = TensorCodec.decode

    def counting(codec: TensorCodec, batch: Any) -> TensorRows:
        with lock:
            decoded[0] += batch.num_rows
        return decode(codec, batch)

    lock = threading.Lock()
    monkeypatch.setattr(TensorCodec, "decode", counting)
    loader = make(mode, tmp_path, batch_size=10, **options)
    dataset: Any = loader.dataset
    held = dataset.explain().memory_bound
    if mode in (ROWS, MIXTURE):  # whose stores take more while they are built
        held = LANES * dataset.job.gathering.lane_bytes
    bound = held // dataset.job.row_bytes // (2 if mode is MIXTURE else 1)
    ahead = list(made_ahead(iter(loader), lambda: decoded[0] // 10))
    assert max(ahead) * 10 <= bound < 6000
