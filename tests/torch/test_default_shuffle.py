"""`shuffle=True` mixes rows of splits where it can, and permutes splits where another option keeps it from that."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.simulated import GROUP_ROWS, GROUPS, SimulatedTable
from tests.effort import daily
from torch_table_loader import ConfigError, StructuredDataset
from torch_table_loader.batching.codec import TensorCodec
from torch_table_loader.engine.jobs import resolve
from torch_table_loader.engine.jobs.stream_job import MIXED_ORDER
from torch_table_loader.engine.sizing import mixing_of
from torch_table_loader.planning.ranks import Mixing

FILES, ROWS = 12, 400

KEPT_FROM_IT: dict[str, tuple[dict[str, Any], str]] = {
    "file": ({"batch_by": "file"}, "batches end with files"),
    "uncounted": ({"filters": "x >= 0", "count_filtered": False}, "are not counted"),
    "dealt": ({"split_strategy": "round_robin"}, "RoundRobinStrategy deals splits itself"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files that lie sorted by `x`."""
    root = tmp_path_factory.mktemp("sorted")
    for number in range(FILES):
        x = np.arange(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"x": x}), root / f"{number:02}.parquet", row_group_size=100)
    return str(root)


def batches(path: str, **options: Any) -> list[list[Any]]:
    loader, _ = StructuredDataset.create_dataloader(path, **({"batch_size": 64, "num_workers": 1} | options))
    return [np.asarray(next(iter(batch.values()))).tolist() for batch in loader]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_true_is_mixed(table: str, worker_type: str) -> None:
    assert batches(table, shuffle=True, worker_type=worker_type) == batches(table, shuffle="mixed")


def test_every_batch_draws_on_all_of_a_sorted_table(table: str) -> None:
    spread = np.std(np.arange(FILES * ROWS))
    mixed = [batch for batch in batches(table, shuffle=True) if len(batch) == 64]
    assert min(np.std(batch) for batch in mixed) > 0.8 * spread
    assert sorted(row for batch in batches(table, shuffle=True) for row in batch) == list(range(FILES * ROWS))
    assert min(np.std(batch) for batch in batches(table, shuffle="splits")) < 0.1 * spread


def test_the_first_batch_of_a_table_of_many_row_groups_reads_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, decode = [0], TensorCodec.decode

    def counting(self: TensorCodec, batch: pa.RecordBatch) -> Any:
        rows[0] += batch.num_rows
        return decode(self, batch)

    loader, job = SimulatedTable.write(tmp_path, 20).open(shuffle=True, split_size=1, num_workers=0, batch_size=512)
    monkeypatch.setattr(TensorCodec, "decode", counting)
    next(iter(loader))
    mixing = job.topology.mixing
    assert mixing is not None
    assert (mixing.first, mixing.rows) == (16 * 512, 20 * GROUPS * GROUP_ROWS // 20)
    assert rows[0] <= 16 * 512 + 16 * GROUP_ROWS


def test_a_state_of_windows_that_do_not_grow_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state without a first window is of windows that are all alike."""
    table = SimulatedTable.write(tmp_path, 4)
    options: dict[str, Any] = {"shuffle": True, "split_size": 1, "num_workers": 0, "batch_size": 64}

    def alike(*args: Any) -> Mixing:
        return replace(mixing_of(*args), first=None)

    with monkeypatch.context() as patched:
        patched.setattr(resolve, "mixing_of", alike)
        old, _ = table.open(**options)
        taken = [row for batch in islice(old, 100) for row in batch["id"].tolist()]
        state = old.state_dict()
    assert "first" not in str(state["history"])
    new, _ = table.open(**options)
    new.load_state_dict(state)
    left = [row for batch in new for row in batch["id"].tolist()]
    assert "first" in str(new.state_dict()["history"])
    assert len(taken) == 6400
    assert sorted(taken + left) == sorted(4 * list(range(GROUPS * GROUP_ROWS)))  # one real file stands for four


def test_the_order_is_frozen(table: str) -> None:
    """States name the order's version; another order needs another."""
    found = batches(table, shuffle=True)
    assert [found[0][:8], found[20][:4], found[-1][-4:]] == [
        [3508, 3529, 3532, 3559, 1305, 1317, 1339, 1355],
        [1361, 1382, 1396, 1219],
        [1040, 1055, 1084, 1097],
    ]
    assert MIXED_ORDER == "mixed, version 2"


@pytest.mark.parametrize("which", KEPT_FROM_IT)
@daily(1)
def test_splits_are_permuted_where_they_cannot_be_mixed(table: str, which: str) -> None:
    options, reason = KEPT_FROM_IT[which]
    common: dict[str, Any] = {"batch_size": 64, "num_workers": 1, **options}
    if which == "uncounted":
        common["split_size"] = 100  # else a table that may be mixed is cut into more splits
    loader, dataset = StructuredDataset.create_dataloader(table, shuffle=True, **common)
    plain, _ = StructuredDataset.create_dataloader(table, shuffle="splits", **common)
    assert [str(batch) for batch in loader] == [str(batch) for batch in plain]
    assert any(reason in note for note in dataset.explain().notes)
    with pytest.raises(ConfigError, match=reason):
        StructuredDataset.create_dataloader(table, shuffle="mixed", **common)


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"split_size": 200}, "most batches have rows of one file alone"),
        ({"split_size": 200, "batch_size": 300}, "a batch has rows of few of them"),
        ({"split_size": 200, "shuffle_buffer_size": 300}, "a batch has rows of few of them"),
    ],
)
def test_splits_that_could_be_mixed_are_told_of(table: str, options: dict[str, Any], drawn: str) -> None:
    note = f"splits are permuted, and {drawn}; shuffle=True mixes their rows"
    assert note in StructuredDataset(table, shuffle="splits", **({"batch_size": 64} | options)).explain().notes
    for shuffle in (False, True):
        notes = StructuredDataset(table, shuffle=shuffle, batch_size=64, split_size=200).explain().notes
        assert not any("permuted" in note for note in notes)


def test_a_shuffle_that_leaves_batches_of_one_file_says_so(table: str) -> None:
    notes = StructuredDataset(table, shuffle=True, batch_size=64, batch_by="file").explain().notes
    assert any("most batches have rows of one file alone, since batches end with files" in note for note in notes)


def test_processes_that_stay_idle_are_told_of(table: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "worker_type": "process"}
    _, dataset = StructuredDataset.create_dataloader(table, num_workers=2, **options)
    assert any(
        'one process mixes them: pass shuffle="splits" to use num_workers=2' in x for x in dataset.explain().notes
    )
    _, dataset = StructuredDataset.create_dataloader(table, num_workers=1, **options)
    assert not any("one process" in note for note in dataset.explain().notes)
