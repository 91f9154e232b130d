"""The loader under Lightning: each row once an epoch on two ranks, and resumed in the middle of one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launchers.scenes import TOTAL, Seen, play, values

pytestmark = pytest.mark.slow

EVERY = list(range(TOTAL))
STEPS = -(-TOTAL // 14)
"""Steps of an epoch: two ranks with seven rows a batch."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of two ranks saw in each scene."""
    root = tmp_path_factory.mktemp("lightning")
    return play("lightning_scenes.py", root, 2)


def together(ranks: list[Any], epoch: int | str) -> list[int]:
    """Give the rows of all ranks in an epoch, sorted."""
    return sorted(row for rank in ranks for row in rank[str(epoch)])


@pytest.mark.parametrize("scene", ["with_a_sampler", "without_a_sampler"])
def test_every_row_comes_once_in_each_epoch_and_in_a_new_order(seen: Seen, scene: str) -> None:
    ranks = values(seen[scene])
    assert together(ranks, 0) == together(ranks, 1) == EVERY
    assert ranks[0]["0"] != ranks[0]["1"]


def test_a_sampler_that_lightning_may_put_in_changes_nothing(seen: Seen) -> None:
    assert values(seen["with_a_sampler"]) == values(seen["without_a_sampler"])


def test_validation_inside_an_epoch_sees_every_row_and_takes_none(seen: Seen) -> None:
    ranks = values(seen["validated"])
    assert together([rank["rows"] for rank in ranks], 0) == EVERY
    assert sorted(row for rank in ranks for row in rank["validated"]) == sorted(2 * EVERY)


@pytest.mark.parametrize("scene", ["gone_on", "gone_on_by_rows"])
def test_a_checkpoint_goes_on_at_the_next_batch(seen: Seen, scene: str) -> None:
    for rank in values(seen[scene]):
        whole = rank["whole"]["0"] + rank["whole"]["1"]
        checkpoints = rank["gone on"]
        assert set(checkpoints) == {f"step={step}" for step in range(3, 2 * STEPS, 3)} | {"epoch=0", "epoch=1"}
        for name, rows in checkpoints.items():
            kind, number = name.split("=")
            steps = int(number) if kind == "step" else (int(number) + 1) * STEPS
            trained = steps // STEPS * len(rank["whole"]["0"]) + steps % STEPS * 7
            assert rows.get("0", []) + rows.get("1", []) == whole[trained:], name


@pytest.mark.parametrize("scene", ["gone_on", "gone_on_by_rows"])
def test_lightning_counts_as_the_loader_does(seen: Seen, scene: str) -> None:
    for rank in values(seen[scene]):
        assert len(rank["places"]) > 4 * STEPS
        for batches, taken, told, length in rank["places"]:
            assert (batches, told) == (taken, length) == (taken, STEPS)


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


@pytest.mark.parametrize(("scene", "before", "after"), [("on_more_ranks", 1, 2), ("on_fewer_ranks", 2, 1)])
def test_an_epoch_goes_on_on_another_number_of_ranks(seen: Seen, scene: str, before: int, after: int) -> None:
    ranks = values(seen[scene])
    steps = -(-TOTAL // (7 * before))
    assert len(ranks[0]["gone on"]) == 2 * steps // 3 + 2
    for name in ranks[0]["gone on"]:
        kind, number = name.split("=")
        epoch, made = divmod(int(number) if kind == "step" else (int(number) + 1) * steps, steps)
        whole = [rank["whole"].get(str(epoch), []) for rank in ranks[:before]]
        taken = [row for rows in whole for row in rows[: made * 7]]
        rest = [rank["gone on"][name] for rank in ranks[:after]]
        for later in range(2):
            came = sorted(row for rank in rest for row in rank.get(str(later), []))
            expected = [] if later < epoch else EVERY if later > epoch else sorted(set(EVERY) - set(taken))
            assert came == expected, (name, later)


def test_canary_of_an_epoch_that_goes_on_on_more_ranks(seen: Seen) -> None:
    """Lightning ends it by its own count of batches; when this fails, the callback need not count anew."""
    ranks = values(seen["on_more_ranks_without_the_callback"])
    before = ranks[0]["before"]
    after = together([rank["after"] for rank in ranks], 0)
    assert not set(before) & set(after)
    assert 0 < TOTAL - len(before) - len(after) <= 2 * 7
    for rank in seen["on_more_ranks_without_the_callback"]:
        assert any("the resumed epoch 0 was left with 1 batches to go" in text for text in rank["warnings"])
