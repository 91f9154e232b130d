"""The edges of the state: which iterator it speaks of, what serves the next one, and what `set_epoch` does to both."""

from __future__ import annotations

import gc
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.states import State, stages_of
from tests.torch.all_modes import MODES
from tests.torch.modes import MIXED, ROWS, SPLITS, Mode, write_rows
from torch_table_loader import ConfigError, ConfigTypeError, ResumeError, StructuredDataset, TableLoader


def epochs_of(mode: Mode, tables: Path, count: int, **options: Any) -> list[list[list[int]]]:
    """Give the batches of each epoch, from a loader that is told each epoch."""
    loader = mode.make(tables, **options)
    result = []
    for epoch in range(count):
        loader.set_epoch(epoch)
        result.append(mode.read(loader))
    return result


def state_after(loader: TableLoader, steps: int) -> State:
    batches = iter(loader)
    list(islice(batches, steps))
    return loader.state_dict()


def test_a_state_taken_before_anything_is_the_start(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    state = loader.state_dict()
    assert (state["epoch"], mode.steps(state)) == (0, 0)
    fresh = mode.make(tables)
    fresh.load_state_dict(state)
    assert mode.read(fresh) == epochs_of(mode, tables, 1)[0]


def test_an_iterator_that_has_given_nothing_stands_at_the_start(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    before = loader.state_dict()
    batches = iter(loader)
    assert loader.state_dict() == before
    next(batches)
    assert mode.steps(loader.state_dict()) == 1


@pytest.mark.parametrize("exhausted", [False, True])
def test_the_very_end(mode: Mode, tables: Path, exhausted: bool) -> None:
    loader, [first, second] = mode.make(tables), epochs_of(mode, tables, 2)
    batches = iter(loader)
    assert mode.read(islice(batches, len(loader))) == first
    if exhausted:
        assert next(batches, None) is None
    state = loader.state_dict()
    fresh = mode.make(tables)
    fresh.load_state_dict(state)
    assert mode.read(fresh) == []
    assert fresh.state_dict() == state
    with pytest.warns(UserWarning, match="iterated again"):
        assert mode.read(fresh) == first, "it yields nothing once"
    fresh.set_epoch(1)
    assert mode.read(fresh) == second


def test_a_finished_epoch_yields_nothing_on_any_number_of_ranks(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables, drop_last=True)
    state = state_after(loader, len(loader))
    even = {"even_ranks": "balance" if mode is SPLITS else "pad", "drop_last": True, "num_ranks": 3}
    for rank in range(3):
        fresh = mode.make(tables, rank=rank, **even)
        fresh.load_state_dict(state)
        assert mode.read(fresh) == []
        fresh.set_epoch(1)
        assert 0 < len(mode.read(fresh)) == len(fresh)


def test_between_epochs(mode: Mode, tables: Path) -> None:
    loader, [_, second] = mode.make(tables), epochs_of(mode, tables, 2)
    mode.read(loader)
    loader.set_epoch(1)
    state = loader.state_dict()
    assert (state["epoch"], mode.steps(state), len(stages_of(state))) == (1, 0, 1)
    fresh = mode.make(tables)
    fresh.load_state_dict(state)
    assert mode.read(fresh) == second


@pytest.mark.parametrize("told", [False, True])
def test_in_the_seventh_epoch_of_an_unshuffled_table(tables: Path, told: bool) -> None:
    loader = SPLITS.make(tables, shuffle=False)
    for epoch in range(7):
        if told:
            loader.set_epoch(epoch)
        whole = SPLITS.read(loader)
    if told:
        loader.set_epoch(7)
    state = state_after(loader, 3)
    assert state["epoch"] == (7 if told else 0)
    fresh = SPLITS.make(tables, shuffle=False)
    fresh.load_state_dict(state)
    assert SPLITS.read(fresh) == whole[3:]
    assert SPLITS.read(fresh) == whole, "an unshuffled epoch may be iterated again without a word"


def test_the_epoch_changes_only_when_it_is_told(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    first = mode.read(loader)
    with pytest.warns(UserWarning, match="epoch 0 is iterated again.*set_epoch"):
        assert mode.read(loader) == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mode.read(loader) == first, "it is said once"
    assert loader.state_dict()["epoch"] == 0


def test_set_epoch_of_the_restored_epoch_keeps_the_position_and_any_other_forgets_it(mode: Mode, tables: Path) -> None:
    [_, _, third, fourth] = epochs_of(mode, tables, 4)
    loader = mode.make(tables)
    loader.set_epoch(2)
    state = state_after(loader, 4)
    for told, expected in [([], third[4:]), ([2], third[4:]), ([2, 2], third[4:]), ([3], fourth), ([3, 2], third)]:
        fresh = mode.make(tables)
        fresh.load_state_dict(state)
        for epoch in told:
            fresh.set_epoch(epoch)
        assert mode.read(fresh) == expected


def test_the_state_after_set_epoch_is_the_start_of_that_epoch(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    state = state_after(loader, 4)
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1
    assert mode.steps(loader.state_dict()) == 0
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert mode.steps(loader.state_dict()) == 0


def test_set_epoch_while_iterating_takes_effect_at_the_next_iterator(mode: Mode, tables: Path) -> None:
    [first, second] = epochs_of(mode, tables, 2)
    loader = mode.make(tables)
    batches = iter(loader)
    taken = mode.read(islice(batches, 2))
    loader.set_epoch(1)
    assert taken + mode.read(batches) == first
    assert mode.read(loader) == second


def test_loading_while_iterating_takes_effect_at_the_next_iterator(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1)
    loader = mode.make(tables)
    batches = iter(loader)
    taken = mode.read(islice(batches, 2))
    loader.load_state_dict(state_after(mode.make(tables), 3))
    assert taken + mode.read(batches) == first
    assert mode.read(loader) == first[3:]


def test_a_second_state_replaces_the_first(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1)
    early, late = (state_after(mode.make(tables), steps) for steps in (2, 6))
    loader = mode.make(tables)
    loader.load_state_dict(early)
    loader.load_state_dict(late)
    assert mode.read(loader) == first[6:]
    batches = iter(mode.make(tables))
    loader.load_state_dict(early)
    assert mode.read(islice(iter(loader), 1)) == first[2:3]
    loader.load_state_dict(late)
    assert loader.state_dict() == late, "the position that was loaded since"
    assert mode.read(loader) == first[6:]
    del batches


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_two_iterators_at_once(mode: Mode, tables: Path, worker_type: str) -> None:
    [first, second] = epochs_of(mode, tables, 2)
    loader = mode.make(tables, worker_type=worker_type)
    one = iter(loader)
    begun = mode.read(islice(one, 3))
    loader.set_epoch(1)
    two = iter(loader)
    mode.read(islice(two, 2))
    assert begun + mode.read(islice(one, 4)) == first[:7]
    state = loader.state_dict()
    assert (state["epoch"], mode.steps(state)) == (1, 2), "it speaks of the newest"
    fresh = mode.make(tables)
    fresh.load_state_dict(state)
    assert mode.read(fresh) == mode.read(two) == second[2:]
    assert mode.read(one) == first[7:]


def test_the_state_outlives_its_iterator(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    batches = iter(loader)
    list(islice(batches, 4))
    before = loader.state_dict()
    del batches
    gc.collect()
    assert loader.state_dict() == before


def test_a_position_serves_one_iterator_and_leaving_it_does_not_bring_it_back(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1)
    loader = mode.make(tables)
    loader.load_state_dict(state_after(mode.make(tables), 4))
    for batch in loader:
        assert mode.rows(batch) == first[4]
        break
    assert mode.steps(loader.state_dict()) == 5
    with pytest.warns(UserWarning, match="iterated again"):
        assert mode.read(loader) == first


def test_resuming_twice_in_one_epoch(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1, worker_type="process")
    state = state_after(mode.make(tables), 3)
    loader = mode.make(tables)
    loader.load_state_dict(state)
    state = state_after(loader, 3)
    assert mode.steps(state) == 6
    again = mode.make(tables)
    again.load_state_dict(state)
    assert mode.read(again) == first[6:]


def test_the_sampler_forwards(mode: Mode, tables: Path) -> None:
    [_, second] = epochs_of(mode, tables, 2)
    loader = mode.make(tables)
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert loader.state_dict()["epoch"] == 1
    assert mode.read(loader) == second


def test_the_dataset_keeps_the_state_of_its_own_loader(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1)
    loader = mode.make(tables)
    dataset: Any = loader.dataset
    state = state_after(loader, 4)
    assert dataset.state_dict() == state
    dataset.load_state_dict(state)
    assert mode.read(loader) == first[4:]


@pytest.mark.parametrize(
    ("mode", "context"), [*((mode, "fork") for mode in MODES), (SPLITS, "spawn")], ids=str, scope="session"
)
@daily(1)
def test_persistent_workers_of_a_callers_loader_see_the_new_epoch(mode: Mode, tables: Path, context: str) -> None:
    """Where rows are in memory, workers that do not fork cannot see them."""
    dataset: Any = mode.make(tables).dataset
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )
    expected = epochs_of(mode, tables, 3)
    for epoch in (0, 2, 1, 1):
        dataset.set_epoch(epoch)
        mode.check_whole(sum(mode.read(loader), []), mode.live(tables))
        dataset.set_epoch(epoch)
        first = mode.rows(next(iter(loader)))
        # The lanes of its workers mix splits each by itself, where a loader of ours has one lane.
        assert (first == expected[epoch][0]) == (mode is not MIXED)
    del loader


def test_threads_that_live_long_see_the_new_epoch(mode: Mode, tables: Path) -> None:
    expected = epochs_of(mode, tables, 3)
    loader = mode.make(tables)
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert mode.read(loader) == expected[epoch]


@pytest.mark.parametrize(("epoch", "error"), [(-1, ConfigError), (1.0, ConfigTypeError), (True, ConfigTypeError)])
def test_epochs_that_are_none_are_refused(mode: Mode, tables: Path, epoch: Any, error: type[Exception]) -> None:
    loader = mode.make(tables)
    with pytest.raises(error, match="epoch must be"):
        loader.set_epoch(epoch)


@pytest.mark.parametrize("mode", [SPLITS, ROWS], ids=str)
def test_an_empty_table_and_an_empty_rank(mode: Mode, tmp_path: Path) -> None:
    write_rows(tmp_path / "a", [[0], []])
    loader = mode.make(tmp_path)
    assert mode.read(loader) == []
    state = loader.state_dict()
    for ranks in (1, 3):
        fresh = mode.make(tmp_path, num_ranks=ranks, rank=ranks - 1)
        fresh.load_state_dict(state)
        assert mode.read(fresh) == []


def test_a_refused_state_leaves_the_loader_as_it_was(mode: Mode, tables: Path) -> None:
    [first] = epochs_of(mode, tables, 1)
    loader = mode.make(tables)
    loader.load_state_dict(state_after(mode.make(tables), 4))
    other = mode.make(tables, shuffle_seed=1).state_dict()
    with pytest.raises(ResumeError, match="shuffle_seed was 1 and is 42"):
        loader.load_state_dict(other)
    assert mode.read(loader) == first[4:]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("key", ["version", "kind", "tables", "mixture", "epoch", "history"])
@pytest.mark.parametrize("kind", [list, dict])
def test_a_state_that_nests_too_deep_is_refused(key: str, kind: type, version: int) -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep] if kind is list else {"a": deep}
    state = {"version": version, "kind": "splits", "tables": [], "mixture": [], "epoch": 0, "history": []}
    loader, _ = StructuredDataset.create_dataloader(source=pa.table({"x": [1]}), num_workers=0)
    with pytest.raises(ResumeError):
        loader.load_state_dict(state | {key: deep})
