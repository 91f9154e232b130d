"""`len(loader)` is all steps of the epoch, and `loader.remaining` what is left of them, in every mode at any time."""

from __future__ import annotations

from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

from tests.effort import daily
from tests.states import State
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import write_documents
from tests.torch.modes import MIXTURE, ROWS, SOME, SPLITS, STREAMS, TABLE_MODES, Mode, write_rows
from torch_table_loader import Pack, StructuredDataset, TableLoader

pytestmark = pytest.mark.usefixtures("small_gathers")

SHAPES: list[dict[str, Any]] = [
    {},
    {"num_ranks": 2, "rank": 1, "batch_size": 3},
    {"num_workers": 0, "batch_size": 7, "drop_last": True},
]


def lengths(loader: TableLoader) -> tuple[int, int]:
    return len(loader), loader.remaining


def check_counts_down(loader: TableLoader, taken: int, steps: int) -> None:
    """Iterate to the end, and look before the iteration, after ``iter()``, at each step, and at the end."""
    assert lengths(loader) == (steps, steps - taken)
    batches = iter(loader)
    assert (*lengths(loader), len(batches)) == (steps, steps - taken, steps)
    for _ in batches:
        taken += 1
        assert lengths(loader) == (steps, steps - taken)
    assert (taken, *lengths(loader)) == (steps, steps, 0)


def state_after(loader: TableLoader, steps: int) -> State:
    batches = iter(loader)
    assert len(list(islice(batches, steps))) == steps
    return loader.state_dict()


@pytest.mark.parametrize("options", [*SHAPES, {"filters": SOME}], ids=str)
@daily(4)
def test_it_is_the_same_before_in_and_after_an_epoch_and_after_resuming(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    even = {"even_ranks": "balance" if mode is SPLITS else "pad"} if "num_ranks" in options else {}
    loader = mode.make(tables, **options, **even)
    steps = len(loader)
    check_counts_down(loader, 0, steps)
    for taken in (0, 3, steps - 1, steps):
        loader.set_epoch(0)
        state = state_after(loader, taken)
        fresh = mode.make(tables, **options, **even)
        fresh.load_state_dict(state)
        check_counts_down(fresh, taken, steps)
        fresh.set_epoch(1)
        assert len(fresh) == fresh.remaining == len(list(fresh))


def test_steps_on_other_ranks_count_as_those_of_these_ranks(mode: Mode, tables: Path) -> None:
    """Frameworks keep the length for later epochs: it must not be that of one epoch in which ranks changed."""
    state = None
    for options, steps in (({"num_ranks": 3, "rank": 0}, 2), ({"batch_size": 4}, 3), ({"num_workers": 3}, 1)):
        loader = mode.make(tables, **options)
        whole = len(loader)
        if state is not None:
            loader.load_state_dict(state)
        left = loader.remaining
        assert len(loader) == whole > left or state is None
        state = state_after(loader, steps)
        assert lengths(loader) == (whole, left - steps)
    fresh = mode.make(tables, num_workers=1, batch_size=9)
    whole = len(fresh)
    fresh.load_state_dict(state or {})
    assert 0 < fresh.remaining < whole
    check_counts_down(fresh, whole - fresh.remaining, whole)


def test_an_epoch_that_other_ranks_have_finished_has_nothing_left(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    state = state_after(loader, len(loader))
    fresh = mode.make(tables, batch_size=3, num_workers=1)
    whole = len(fresh)
    fresh.load_state_dict(state)
    check_counts_down(fresh, whole, whole)


def test_all_epochs_of_an_iteration_count(mode: Mode, tables: Path) -> None:
    steps = []
    for epoch in range(4):
        single = mode.make(tables)
        single.set_epoch(epoch)
        steps.append(len(single))
    both = steps[0] + steps[1]
    assert lengths(mode.make(tables, epochs=2)) == (both, both)
    for taken in (2, steps[0], steps[0] + 3):
        loader = mode.make(tables, epochs=2)
        state = state_after(loader, taken)
        assert lengths(loader) == (both, both - taken)
        fresh = mode.make(tables, epochs=2)
        fresh.load_state_dict(state)
        assert lengths(fresh) == (both, both - taken)
        assert len(list(fresh)) == both - taken
        following = steps[2] + steps[3]
        assert lengths(fresh) == (following, following), "the next iteration has the epochs that follow"


@pytest.mark.parametrize("mode", [MIXTURE, STREAMS], ids=str, scope="session")
def test_weights_that_change_leave_what_was_taken(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    batches = iter(loader)
    list(islice(batches, 4))
    dataset: Any = loader.dataset
    dataset.set_weights({"a": 1, "b": 3})
    fresh = mode.make(tables)
    fresh.load_state_dict(loader.state_dict())
    rest = len(list(batches))
    assert lengths(loader) == (4 + rest, 0)
    check_counts_down(fresh, 4, 4 + rest)


def test_a_place_that_was_sought_counts_as_taken(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    steps = len(loader)
    loader.seek(step=5)
    check_counts_down(loader, 5, steps)


def test_the_ranks_of_unequal_length_each_know_their_own(tables: Path) -> None:
    for mode in (SPLITS, ROWS):
        for rank in range(3):
            options = {"num_ranks": 3, "rank": rank, "batch_size": 6}
            check_counts_down(mode.make(tables, **options), 0, len(list(mode.make(tables, **options))))


@pytest.mark.parametrize("mode", [SPLITS, ROWS], ids=str, scope="session")
def test_a_table_that_grew_has_more_steps_left(mode: Mode, tmp_path: Path) -> None:
    write_rows(tmp_path / "a", [[9, 4, 11], [7, 7]])
    loader = mode.make(tmp_path)
    state = state_after(loader, 3)
    assert lengths(loader) == (8, 5)
    write_rows(tmp_path / "more", [[0], [0], [10, 10]])
    (tmp_path / "more" / "002.parquet").rename(tmp_path / "a" / "002.parquet")
    fresh = mode.make(tmp_path, on_growth="continue")
    fresh.load_state_dict(state)
    steps = 3 + -(-(58 - 15) // 5)
    check_counts_down(fresh, 3, steps)


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_sequences_of_several_lengths(tmp_path: Path, shuffle: Any) -> None:
    write_documents(tmp_path, [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [12, 33, 4, 6]])

    def make(**options: Any) -> TableLoader:
        pack = Pack(seq_len={0: 6, 2: 9, 5: 12})
        chosen: dict[str, Any] = {"shuffle": shuffle, "num_workers": 1, "check_plan": False, "batch_size": 2} | options
        with meant_warnings():
            return StructuredDataset.create_dataloader(str(tmp_path), pack=pack, **chosen)[0]

    steps = len(make())
    check_counts_down(make(), 0, steps)
    for taken in (1, 2, 4, 5, steps):
        fresh = make()
        fresh.load_state_dict(state_after(make(), taken))
        check_counts_down(fresh, taken, steps)
        other = make(batch_size=1)
        whole = len(other)
        other.load_state_dict(state_after(make(), taken))
        assert len(other) == whole
        assert other.remaining == len(list(other))


def test_what_has_no_length_has_nothing_remaining_to_tell(tables: Path) -> None:
    for mode, options in ((SPLITS, {"filters": SOME, "count_filtered": False}), (MIXTURE, {"stop": "forever"})):
        loader = mode.make(tables, **options)
        for count in (len, lambda loader: loader.remaining):
            with pytest.raises(TypeError, match="number of batches"):
                count(loader)


def test_an_epoch_without_a_full_step_is_empty_and_said_to_be(mode: Mode, tables: Path) -> None:
    with pytest.warns(UserWarning, match="drop_last=True leaves rank 0 no step in an epoch, since it has too few rows"):
        loader = mode.make(tables, drop_last=True, batch_size=1000)
    assert lengths(loader) == (0, 0)
    assert list(loader) == []
    check_counts_down(mode.make(tables, batch_size=1000), 0, 1)


@pytest.mark.parametrize("shuffle", [False, True, "rows"])
def test_fewer_tokens_than_two_sequences_give_no_full_step(tmp_path: Path, shuffle: Any) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4, 5]]}), tmp_path / "a.parquet")

    def make(**options: Any) -> TableLoader:
        given: dict[str, Any] = {"batch_size": 2, "shuffle": shuffle, "num_workers": 0, "check_plan": False}
        return StructuredDataset.create_dataloader(str(tmp_path), pack=Pack(seq_len=8), **given | options)[0]

    assert [batch["input_ids"].shape for batch in make()] == [(1, 8)]
    with pytest.warns(UserWarning, match="too few rows or tokens for one; pass a smaller batch_size .or seq_len."):
        assert list(make(drop_last=True)) == []


def test_a_bar_of_tqdm_ends_at_its_end(mode: Mode, tables: Path) -> None:
    fresh = mode.make(tables)
    fresh.load_state_dict(state_after(mode.make(tables), 3))
    bar = tqdm(fresh, initial=len(fresh) - fresh.remaining, disable=False, file=StringIO())
    list(bar)
    assert bar.n == bar.total == len(fresh)


@pytest.mark.parametrize("mode", TABLE_MODES, ids=str, scope="session")
@daily(2)
def test_a_schedule_of_learning_rates_ends_with_the_last_step_of_a_resumed_job(mode: Mode, tables: Path) -> None:
    def schedule(loader: TableLoader) -> tuple[torch.optim.SGD, OneCycleLR]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return optimizer, OneCycleLR(optimizer, max_lr=0.1, total_steps=2 * len(loader))

    def train(loader: TableLoader, optimizer: torch.optim.SGD, rates: OneCycleLR, most: int | None = None) -> None:
        for _ in islice(loader, most):
            optimizer.step()
            rates.step()

    loader = mode.make(tables)
    optimizer, rates = schedule(loader)
    train(loader, optimizer, rates, 3)
    saved, at = loader.state_dict(), rates.state_dict()
    fresh = mode.make(tables)
    fresh.load_state_dict(saved)
    optimizer, rates = schedule(fresh)  # made after the state was loaded, as many programs do
    rates.load_state_dict(at)
    train(fresh, optimizer, rates)
    fresh.set_epoch(1)
    train(fresh, optimizer, rates)
    assert rates.last_epoch == rates.total_steps
    with pytest.raises(ValueError, match="Tried to step"):
        rates.step()
