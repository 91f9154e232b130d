"""The loader under Lightning: each row once an epoch on two ranks, and resumed in the middle of one."""

from __future__ import annotations

import pytest

from tests.launchers.scenes import TOTAL, Seen, play, values
from tests.torch.training_laws import EVERY, TrainingLaws, together

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of two ranks saw in each scene."""
    return play("lightning_scenes.py", tmp_path_factory.mktemp("lightning"), 2)


class TestLightning(TrainingLaws):
    """Checkpoints come after every third step, and at the end of each epoch."""

    every = 3
    within_epochs = False


def test_a_sampler_that_lightning_may_put_in_changes_nothing(seen: Seen) -> None:
    assert values(seen["with_a_sampler"]) == values(seen["without_a_sampler"])


def test_validation_inside_an_epoch_sees_every_row_and_takes_none(seen: Seen) -> None:
    ranks = values(seen["validated"])
    assert together(ranks) == EVERY
    assert sorted(row for rank in ranks for row in rank["validated"]) == sorted(2 * EVERY)


def test_a_loader_serves_one_trainer_after_another(seen: Seen) -> None:
    for first, second in values(seen["one_loader_for_two_trainers"]):
        assert first == second
    told = [text for rank in seen["one_loader_for_two_trainers"] for text in rank["warnings"]]
    assert not [text for text in told if "iterated again" in text]


def test_a_loop_under_fabric_goes_on_at_the_next_batch(seen: Seen) -> None:
    ranks = values(seen["under_fabric"])
    first, taken, rest = ([row for rank in ranks for batch in rank[part] for row in batch] for part in range(3))
    assert sorted(first) == sorted(taken + rest) == EVERY
    assert all(len(rank[1]) == 3 for rank in ranks)


def test_predictions_come_once_for_each_row(seen: Seen) -> None:
    assert sorted(row for rank in values(seen["predicted"]) for row in rank) == EVERY


def test_canary_of_the_batch_that_lightning_reads_ahead(seen: Seen) -> None:
    """Only where rows are not counted; when this fails, `docs/frameworks.md` need not warn of it."""
    assert values(seen["uncounted"]) == [{"trained": 3, "taken": 4}] * 2


def test_canary_of_an_epoch_that_goes_on_on_more_ranks(seen: Seen) -> None:
    """Lightning ends it by its own count of batches; when this fails, the callback need not count anew."""
    ranks = values(seen["on_more_ranks_without_the_callback"])
    before, after = ranks[0]["before"], together(ranks)
    assert not set(before) & set(after)
    assert 0 < TOTAL - len(before) - len(after) <= 2 * 7
