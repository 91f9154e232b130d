"""The loader under Accelerate: prepared in every configuration, it delivers each row once, on one rank and on three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate.state
import pyarrow.compute as pc
import pytest
import torch
from accelerate import Accelerator, skip_first_batches

from tests.launchers.scenes import GROUPS, TOTAL, Seen, play, values
from tests.launchers.scripts.accelerate_scenes import every_configuration
from tests.states import steps_of
from tests.tables.plain import write_table
from tests.torch.training_laws import EVERY, TrainingLaws
from torch_table_loader import ResumeError, StructuredDataset, TableLoader


@pytest.fixture(scope="module", params=[pytest.param("torchrun", marks=pytest.mark.slow)])
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Seen:
    """Give what each of three ranks saw in each scene."""
    root = tmp_path_factory.mktemp("accelerate")
    return play("accelerate_scenes.py", root, 3, request.param)


@pytest.mark.slow
class TestAccelerate(TrainingLaws):
    """Checkpoints come after every third batch of an epoch, and at its end."""

    every = 3


def together(ranks: list[list[int]]) -> list[int]:
    """Give the rows of all ranks, sorted."""
    return sorted(row for rows in ranks for row in rows)


def test_every_configuration_delivers_every_row_once(seen: Seen) -> None:
    ranks = values(seen["every_configuration"])
    assert len(ranks[0]) == 48
    wrong = [name for name in ranks[0] if together([rank[name] for rank in ranks]) != EVERY]
    assert wrong == []


def test_every_mode_delivers_every_row_once(seen: Seen) -> None:
    assert [together(list(rows)) for rows in zip(*values(seen["every_mode"]), strict=True)] == [EVERY] * 5


def test_auto_finds_accelerates_rank(seen: Seen) -> None:
    assert values(seen["said_ranks"]) == [[0, 3], [1, 3], [2, 3]]


def test_ranks_of_one_model_share_a_part(seen: Seen) -> None:
    assert [sorted(rows) for rows in values(seen["tensor_parallel_ranks"])] == [EVERY] * 3


@pytest.mark.parametrize("scene", ["save_and_load", "save_and_load_rows"])
def test_a_checkpoint_goes_on_at_the_next_batch(seen: Seen, scene: str) -> None:
    ranks = values(seen[scene])
    steps = -(-TOTAL // 15)
    assert [rank["lengths"] for rank in ranks] == [
        [[steps, steps - 4], [steps, steps], [steps, steps - 4], [steps, 0]]
    ] * 3
    assert together([rank["before"] + rank["after"] for rank in ranks]) == EVERY
    assert [rank["again"] for rank in ranks] == [rank["after"] for rank in ranks]
    assert [rank["epoch"] for rank in ranks] == [3] * 3


@pytest.mark.parametrize("scene", ["save_and_load", "save_and_load_rows"])
@pytest.mark.parametrize("skipped", ["skipped", "unloaded"])
def test_skipping_batches_is_not_needed_and_does_no_harm(seen: Seen, skipped: str, scene: str) -> None:
    ranks = values(seen[scene])
    assert [rank[skipped] for rank in ranks] == [rank["after"] for rank in ranks]


def test_a_metric_sees_every_row_once(seen: Seen) -> None:
    whole, dropped, two_steps, one_column = values(seen["gathered_rows"])[0]
    assert sorted(whole) == sorted(two_steps) == sorted(one_column) == EVERY
    assert len(set(dropped)) == len(dropped) == TOTAL // 21 * 21


def test_elsewhere_the_mask_leaves_padding_out(seen: Seen) -> None:
    for rank in values(seen["gathered_with_the_mask"]):
        assert sorted(rank["rows"]) == EVERY
        assert set(rank["remainders"]) == {-1}


def test_gradients_are_synchronised_with_the_last_batch(seen: Seen) -> None:
    ranks = values(seen["accumulated"])
    assert [rank["synced"] for rank in ranks] == [([False] * 3 + [True] + [False] * 2 + [True]) * 2] * 3
    first, second = ranks[0]["weights"]
    assert 1 > first > second
    assert [rank["weights"] for rank in ranks] == [ranks[0]["weights"]] * 3


def test_canary_of_what_the_wrapper_loses(seen: Seen) -> None:
    """When this fails, Accelerate has learnt of loaders that are sharded already: see whether it knows ours then."""
    dispatched, sharded = map(list, zip(*values(seen["plain_loaders"]), strict=True))
    assert len(set(together(dispatched))) == 17
    assert len(set(together(sharded))) == 24


def test_every_configuration_delivers_every_row_once_on_one_rank(tmp_path: Path) -> None:
    write_table(tmp_path / "table", GROUPS)
    seen = every_configuration(tmp_path)
    assert len(seen) == 48
    assert [name for name, rows in seen.items() if sorted(rows) != EVERY] == []


def make(root: Path, **options: Any) -> TableLoader:
    if not any(root.glob("*.parquet")):
        write_table(root, GROUPS)
    chosen: dict[str, Any] = {"batch_size": 21, "num_workers": 2, "num_ranks": "auto"} | options
    return StructuredDataset.create_dataloader(str(root), **chosen)[0]


def x_of(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("placement", "asked", "placed"),
    [(True, None, "meta"), (False, None, "cpu"), (True, [False], "cpu"), (False, [True], "meta")],
)
def test_batches_are_placed_where_the_wrapper_would_have(
    tmp_path: Path, placement: bool, asked: list[bool] | None, placed: str
) -> None:
    training = Accelerator(cpu=True, device_placement=placement)
    training.state.device = torch.device("meta")
    loader = make(tmp_path, strings="codes")
    assert training.prepare(loader, device_placement=asked) is loader
    assert {value.device.type for batch in loader for value in batch.values()} == {placed}
    unprepared = make(tmp_path)
    assert next(iter(unprepared))["x"].device.type == "cpu"


def test_a_device_of_the_caller_wins(tmp_path: Path) -> None:
    training = Accelerator(cpu=True)
    training.state.device = torch.device("meta")
    assert next(iter(training.prepare(make(tmp_path, device="cpu"))))["x"].device.type == "cpu"


def test_an_evaluation_inside_an_epoch_gives_the_epoch_back(tmp_path: Path) -> None:
    training = Accelerator(cpu=True, gradient_accumulation_steps=4)
    train, evaluation = training.prepare(make(tmp_path / "train"), make(tmp_path / "evaluation", batch_size=50))
    state = training.gradient_state
    ends = []
    for step, _ in enumerate(train):
        if step == 2:
            assert [state.end_of_dataloader for _ in evaluation] == [False, False, True]
        if step == 3:
            for _ in evaluation:
                break
        assert state.active_dataloader is train
        ends.append(state.end_of_dataloader)
    assert ends == [False] * 6 + [True]
    assert not state.in_dataloader


def test_an_iterator_that_is_left_is_forgotten_and_an_old_one_disturbs_none(tmp_path: Path) -> None:
    training = Accelerator(cpu=True)
    loader = training.prepare(make(tmp_path))
    old = iter(loader)
    next(old)
    new = iter(loader)
    next(new)
    del old
    assert training.gradient_state.active_dataloader is loader
    del new
    assert not training.gradient_state.in_dataloader


def test_the_end_is_known_where_rows_are_not_counted_and_the_state_stays_what_was_taken(tmp_path: Path) -> None:
    training = Accelerator(cpu=True)
    options: dict[str, Any] = {"filters": pc.field("k") < 5, "count_filtered": False}
    loader = training.prepare(make(tmp_path, **options))
    batches, ends = [], []
    for batch in loader:
        batches.append(batch["x"].tolist())
        ends.append(training.gradient_state.end_of_dataloader)
    assert ends == [False] * (len(ends) - 1) + [True]
    going = iter(loader)
    next(going)
    state = loader.state_dict()
    resumed = make(tmp_path, **options)
    resumed.load_state_dict(state)
    assert x_of(resumed) == batches[1:]


def test_a_checkpoint_of_another_table_is_refused(tmp_path: Path) -> None:
    training = Accelerator(cpu=True)
    training.prepare(make(tmp_path / "table"))
    training.save_state(str(tmp_path / "checkpoint"))
    training.free_memory()
    training.prepare(make(tmp_path / "table", shuffle_seed=7))
    with pytest.raises(ResumeError, match="shuffle_seed was 42 and is 7"):
        training.load_state(str(tmp_path / "checkpoint"))


def test_an_epoch_that_is_set_after_iter_is_the_one_that_comes(tmp_path: Path) -> None:
    loader = make(tmp_path, shuffle="splits")
    loader.set_epoch(1)
    wanted = x_of(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    loader.set_epoch(1)
    assert x_of(batches) == wanted
    finished = loader.state_dict()
    resumed = make(tmp_path, shuffle="splits")
    resumed.load_state_dict(finished)
    nothing = iter(resumed)
    resumed.set_epoch(2)
    rest = x_of(nothing)
    assert sorted(row for batch in rest for row in batch) == EVERY
    assert rest != wanted
    loader.set_epoch(1)
    begun = iter(loader)
    first = next(begun)["x"].tolist()
    loader.set_epoch(5)
    assert [first, *x_of(begun)] == wanted


def test_skipping_reads_the_loaders_own_batches(tmp_path: Path) -> None:
    training = Accelerator(cpu=True)
    loader = training.prepare(make(tmp_path, shuffle="splits"))
    batches = x_of(loader)
    loader.set_epoch(0)
    skipping = iter(skip_first_batches(loader, 3))
    assert next(skipping)["x"].tolist() == batches[3]
    assert steps_of(loader.state_dict()) == 4
    assert x_of(skipping) == batches[4:]


def test_nothing_of_accelerate_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.delattr(accelerate.state, "GradientState")
        assert together(x_of(make(tmp_path))) == EVERY
