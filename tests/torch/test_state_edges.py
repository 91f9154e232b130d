"""The edges of the state: which iterator it speaks of, what serves the next one, and what `set_epoch` does to both."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.torch.jobs import STEPS, State, make, own_rows
from tests.torch.tables import Groups, meant_warnings, write_table
from torch_table_loader import ConfigError, ConfigTypeError, ResumeError, StructuredDataset, TableLoader

GROUPS: Groups = [[9, 4, 11], [1], [], [17, 5], [13, 13]]
TOTAL = sum(map(sum, GROUPS))
OPTIONS: dict[str, Any] = {"batch_size": 5, "num_workers": 2, "shuffle": True, "split_rows": 10}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table")
    assert write_table(root, GROUPS) == TOTAL
    return root


def rows(batches: Iterator[Any] | TableLoader) -> list[list[int]]:
    return [own_rows([batch]) for batch in batches]


def epochs_of(table: Path, count: int, **options: Any) -> list[list[list[int]]]:
    """Give the batches of each epoch, from a loader that is told each epoch."""
    loader = make(table, **(OPTIONS | options))
    result = []
    for epoch in range(count):
        loader.set_epoch(epoch)
        result.append(rows(loader))
    return result


def state_after(loader: TableLoader, steps: int) -> State:
    batches = iter(loader)
    list(islice(batches, steps))
    return loader.state_dict()


def test_a_state_taken_before_anything_is_the_start(table: Path) -> None:
    loader = make(table, **OPTIONS)
    state = loader.state_dict()
    assert (state["epoch"], state["history"][-1][STEPS]) == (0, 0)
    fresh = make(table, **OPTIONS)
    fresh.load_state_dict(state)
    assert rows(fresh) == epochs_of(table, 1)[0]


def test_an_iterator_that_has_given_nothing_stands_at_the_start(table: Path) -> None:
    loader = make(table, **OPTIONS)
    before = loader.state_dict()
    batches = iter(loader)
    assert loader.state_dict() == before
    next(batches)
    assert loader.state_dict()["history"][-1][STEPS] == 1


@pytest.mark.parametrize("exhausted", [False, True])
def test_the_very_end(table: Path, exhausted: bool) -> None:
    loader, [first, second] = make(table, **OPTIONS), epochs_of(table, 2)
    batches = iter(loader)
    assert rows(islice(batches, len(loader))) == first
    if exhausted:
        assert next(batches, None) is None
    state = loader.state_dict()
    fresh = make(table, **OPTIONS)
    fresh.load_state_dict(state)
    assert rows(fresh) == []
    assert fresh.state_dict() == state
    with pytest.warns(UserWarning, match="iterated again"):
        assert rows(fresh) == first, "it yields nothing once"
    fresh.set_epoch(1)
    assert rows(fresh) == second


def test_between_epochs(table: Path) -> None:
    loader, [_, second] = make(table, **OPTIONS), epochs_of(table, 2)
    rows(loader)
    loader.set_epoch(1)
    state = loader.state_dict()
    assert (state["epoch"], len(state["history"]), state["history"][0][STEPS]) == (1, 1, 0)
    fresh = make(table, **OPTIONS)
    fresh.load_state_dict(state)
    assert rows(fresh) == second


@pytest.mark.parametrize("told", [False, True])
def test_in_the_seventh_epoch_of_an_unshuffled_table(table: Path, told: bool) -> None:
    options = OPTIONS | {"shuffle": False}
    loader = make(table, **options)
    for epoch in range(7):
        if told:
            loader.set_epoch(epoch)
        whole = rows(loader)
    if told:
        loader.set_epoch(7)
    state = state_after(loader, 3)
    assert state["epoch"] == (7 if told else 0)
    fresh = make(table, **options)
    fresh.load_state_dict(state)
    assert rows(fresh) == whole[3:]
    assert rows(fresh) == whole, "an unshuffled epoch may be iterated again without a word"


def test_the_epoch_changes_only_when_it_is_told(table: Path) -> None:
    loader = make(table, **OPTIONS)
    first = rows(loader)
    with pytest.warns(UserWarning, match="epoch 0 is iterated again.*set_epoch"):
        assert rows(loader) == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(loader) == first, "it is said once"
    assert loader.state_dict()["epoch"] == 0


def test_set_epoch_of_the_restored_epoch_keeps_the_position_and_any_other_forgets_it(table: Path) -> None:
    [_, _, third, fourth] = epochs_of(table, 4)
    loader = make(table, **OPTIONS)
    loader.set_epoch(2)
    state = state_after(loader, 4)
    for told, expected in [([], third[4:]), ([2], third[4:]), ([2, 2], third[4:]), ([3], fourth), ([3, 2], third)]:
        fresh = make(table, **OPTIONS)
        fresh.load_state_dict(state)
        for epoch in told:
            fresh.set_epoch(epoch)
        assert rows(fresh) == expected


def test_the_state_after_set_epoch_is_the_start_of_that_epoch(table: Path) -> None:
    loader = make(table, **OPTIONS)
    state = state_after(loader, 4)
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["history"][-1][STEPS] == 0
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert loader.state_dict()["history"][-1][STEPS] == 0


def test_set_epoch_while_iterating_takes_effect_at_the_next_iterator(table: Path) -> None:
    [first, second] = epochs_of(table, 2)
    loader = make(table, **OPTIONS)
    batches = iter(loader)
    taken = rows(islice(batches, 2))
    loader.set_epoch(1)
    assert taken + rows(batches) == first
    assert rows(loader) == second


def test_a_second_state_replaces_the_first(table: Path) -> None:
    [first] = epochs_of(table, 1)
    early, late = (state_after(make(table, **OPTIONS), steps) for steps in (2, 6))
    loader = make(table, **OPTIONS)
    loader.load_state_dict(early)
    loader.load_state_dict(late)
    assert rows(loader) == first[6:]
    batches = iter(make(table, **OPTIONS))
    loader.load_state_dict(early)
    assert rows(islice(iter(loader), 1)) == first[2:3]
    loader.load_state_dict(late)
    assert loader.state_dict() == late, "the position that was loaded since"
    assert rows(loader) == first[6:]
    del batches


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_two_iterators_at_once(table: Path, worker_type: str) -> None:
    [first, second] = epochs_of(table, 2)
    loader = make(table, **(OPTIONS | {"worker_type": worker_type}))
    one = iter(loader)
    begun = rows(islice(one, 3))
    loader.set_epoch(1)
    two = iter(loader)
    rows(islice(two, 2))
    assert begun + rows(islice(one, 4)) == first[:7]
    state = loader.state_dict()
    assert (state["epoch"], state["history"][-1][STEPS]) == (1, 2), "it speaks of the newest"
    fresh = make(table, **OPTIONS)
    fresh.load_state_dict(state)
    assert rows(fresh) == rows(two) == second[2:]
    assert rows(one) == first[7:]


def test_the_state_outlives_its_iterator(table: Path) -> None:
    loader = make(table, **OPTIONS)
    batches = iter(loader)
    list(islice(batches, 4))
    before = loader.state_dict()
    del batches
    gc.collect()
    assert loader.state_dict() == before


def test_a_position_serves_one_iterator_and_leaving_it_does_not_bring_it_back(table: Path) -> None:
    [first] = epochs_of(table, 1)
    loader = make(table, **OPTIONS)
    loader.load_state_dict(state_after(make(table, **OPTIONS), 4))
    for batch in loader:
        assert own_rows([batch]) == first[4]
        break
    assert loader.state_dict()["history"][-1][STEPS] == 5
    with pytest.warns(UserWarning, match="iterated again"):
        assert rows(loader) == first


def test_resuming_twice_in_one_epoch(table: Path) -> None:
    [first] = epochs_of(table, 1, worker_type="process")
    state = state_after(make(table, **OPTIONS), 3)
    loader = make(table, **OPTIONS)
    loader.load_state_dict(state)
    state = state_after(loader, 3)
    assert state["history"][-1][STEPS] == 6
    again = make(table, **OPTIONS)
    again.load_state_dict(state)
    assert rows(again) == first[6:]


def test_the_sampler_forwards(table: Path) -> None:
    [_, second] = epochs_of(table, 2)
    loader = make(table, **OPTIONS)
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert loader.state_dict()["epoch"] == 1
    assert rows(loader) == second


def test_the_dataset_keeps_the_state_of_its_own_loader(table: Path) -> None:
    [first] = epochs_of(table, 1)
    with meant_warnings():
        loader, dataset = StructuredDataset.create_dataloader(str(table), row_id=True, **OPTIONS)
    state = state_after(loader, 4)
    assert dataset.state_dict() == state
    dataset.load_state_dict(state)
    assert rows(loader) == first[4:]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_persistent_workers_of_a_callers_loader_see_the_new_epoch(table: Path, context: str) -> None:
    dataset = StructuredDataset(str(table), row_id=True, **OPTIONS)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )
    expected = epochs_of(table, 3)
    for epoch in (0, 2, 1, 1):
        dataset.set_epoch(epoch)
        assert sorted(sum(rows(iter(loader)), [])) == list(range(TOTAL))
        dataset.set_epoch(epoch)
        first = own_rows([next(iter(loader))])
        assert first == expected[epoch][0]
    del loader


def test_threads_that_live_long_see_the_new_epoch(table: Path) -> None:
    expected = epochs_of(table, 3)
    loader = make(table, **OPTIONS)
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert rows(loader) == expected[epoch]


@pytest.mark.parametrize(("epoch", "error"), [(-1, ConfigError), (1.0, ConfigTypeError), (True, ConfigTypeError)])
def test_epochs_that_are_none_are_refused(table: Path, epoch: Any, error: type[Exception]) -> None:
    loader = make(table, **OPTIONS)
    with pytest.raises(error, match="epoch must be"):
        loader.set_epoch(epoch)


def test_an_empty_table_and_an_empty_rank(tmp_path: Path) -> None:
    write_table(tmp_path, [[0], []])
    loader = make(tmp_path, **OPTIONS)
    assert rows(loader) == []
    state = loader.state_dict()
    for ranks in (1, 3):
        fresh = make(tmp_path, num_ranks=ranks, rank=ranks - 1, **OPTIONS)
        fresh.load_state_dict(state)
        assert rows(fresh) == []


def test_a_refused_state_leaves_the_loader_as_it_was(table: Path) -> None:
    [first] = epochs_of(table, 1)
    loader = make(table, **OPTIONS)
    loader.load_state_dict(state_after(make(table, **OPTIONS), 4))
    other = make(table, **(OPTIONS | {"shuffle_seed": 1})).state_dict()
    with pytest.raises(ResumeError, match="shuffle_seed was 1 and is 42"):
        loader.load_state_dict(other)
    assert rows(loader) == first[4:]
