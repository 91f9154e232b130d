"""What is special to the state of a stream: its history, how it was split, its files; see test_every_mode_states.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.states import is_ended, newest, steps_of
from torch_table_loader import ResumeError, StructuredDataset, TableLoader

ROWS = 2_903


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("table")
    write_files(root, [700, 1, 0, 650, 652, 900])
    return str(root)


def write_files(root: Path, sizes: list[int], first: int = 0) -> None:
    start = sum(pq.read_metadata(path).num_rows for path in root.glob("*.parquet"))
    for number, size in enumerate(sizes, start=first):
        ids = np.arange(start, start + size)
        columns = {"id": ids, "x": ids.astype("f4") / 3, "name": [f"row {i}" for i in ids]}
        pq.write_table(pa.table(columns), root / f"part-{number}.parquet", row_group_size=130)
        start += size


def make(path: str, **options: Any) -> TableLoader:
    defaults: dict[str, Any] = {"batch_size": 64, "num_workers": 3, "shuffle": "splits", "split_size": 200}
    defaults["check_plan"] = False
    return StructuredDataset.create_dataloader(path, "parquet", **(defaults | options))[0]


def ids(batches: Iterator[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.filterwarnings("ignore:ranks take different numbers of steps:UserWarning")
@pytest.mark.parametrize("window", [None, 77])
def test_state_of_rank_0_resumes_every_rank_on_other_topologies(table: str, window: int | None) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    chain = [(2, 3, 64, 4), (3, 1, 50, 3), (1, 2, 128, 2), (40, 1, 16, 1), (2, 4, 33, None)]
    for ranks, lanes, batch_size, steps in chain:
        states = []
        for rank in range(ranks):
            options = {"num_workers": lanes, "batch_size": batch_size, "shuffle_buffer_size": window}
            loader = make(table, num_ranks=ranks, rank=rank, **options)
            if state is None:
                loader.set_epoch(4)
            else:
                loader.load_state_dict(state)
            for taken, batch in enumerate(loader, start=1):
                seen += batch["id"].tolist()
                if taken == steps:
                    break
            states.append(loader.state_dict())
        running = [entry for entry in states if not is_ended(entry)]
        assert all(entry == running[0] for entry in running)
        assert len(json.dumps(states[0])) < 4096
        state = running[0] if running else states[0]
    assert sorted(seen) == list(range(ROWS))


def test_state_holds_no_secret_and_no_path(table: str) -> None:
    loader = make(table, storage_options={"secret": "hunter2"}, filters=pc.field("name") != "hunter3")
    text = json.dumps(loader.state_dict())
    assert "hunter" not in text
    assert table not in text


def _state_after(loader: TableLoader, steps: int) -> dict[str, Any]:
    loader.set_epoch(loader.state_dict()["epoch"])
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return loader.state_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"split_size": 100}, "split_size was 200 and is 100"),
        ({"split_strategy": "row_balanced"}, "split_strategy was 'TargetSizeStrategy' and is 'RowBalancedStrategy'"),
    ],
    ids=str,
)
def test_other_splits_are_refused_by_name(table: str, change: dict[str, Any], message: str) -> None:
    state = _state_after(make(table), 2)
    with pytest.raises(ResumeError, match=message):
        make(table, **change).load_state_dict(state)


def test_columns_in_another_order_are_the_same_columns(table: str) -> None:
    state = _state_after(make(table, columns=["id", "x"]), 2)
    make(table, columns=["x", "id"]).load_state_dict(state)


def test_a_table_that_grew_names_the_new_files(tmp_path: Path) -> None:
    write_files(tmp_path, [300, 200])
    old = make(str(tmp_path))
    old.dataset.save_files(str(tmp_path / "files.json"))  # type: ignore[attr-defined]
    whole = ids(iter(old))
    state = _state_after(old, 2)
    write_files(tmp_path, [100], first=2)
    files = dict.fromkeys(["part-2.parquet"])
    with pytest.raises(ResumeError, match=f"grew.*1 new files: {next(iter(files))!r}"):
        make(str(tmp_path / "*.parquet")).load_state_dict(state)
    pinned = make(str(tmp_path), files=str(tmp_path / "files.json"))
    pinned.load_state_dict(state)
    assert ids(iter(pinned)) == whole[2:]
    pq.write_table(pa.table({"id": [1], "x": [1.0], "name": ["a"]}), tmp_path / "part-0.parquet")
    with pytest.raises(ResumeError, match="rows: 500 then"):
        make(str(tmp_path / "*.parquet")).load_state_dict(state)


def test_a_state_without_its_history_is_refused(table: str) -> None:
    loader = make(table)
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="the state has no history"):
        loader.load_state_dict({key: value for key, value in state.items() if key != "history"})


def test_workers_are_those_of_the_state_where_the_caller_names_none(table: str) -> None:
    state = _state_after(make(table, num_workers=2), 3)
    whole = ids(iter(make(table, num_workers=2)))
    loader = make(table, num_workers=None)
    loader.load_state_dict(state)
    assert ids(iter(loader)) == whole[3:]


def test_a_dataset_in_a_loader_of_the_callers_says_where_state_is_kept(table: str) -> None:
    with pytest.raises(ValueError, match="create_dataloader"):
        StructuredDataset(table, "parquet").state_dict()


def test_without_counts_the_state_is_for_its_own_rank(table: str) -> None:
    options: dict[str, Any] = {"filters": pc.field("x") < 700, "count_filtered": False, "num_ranks": 2}
    with pytest.warns(UserWarning, match="steps may differ"):
        state = _state_after(make(table, rank=1, **options), 2)
    assert (steps_of(state), newest(state)["rank"]) == (2, 1)
    with pytest.warns(UserWarning, match="steps may differ"):
        other = make(table, rank=0, **options)
    with pytest.raises(ResumeError, match="only rank 1"):
        other.load_state_dict(state)
