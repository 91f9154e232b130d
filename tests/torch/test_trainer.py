"""The loader under the Hugging Face Trainer, with the library's mixin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launchers.scenes import TOTAL, Seen, play, values

pytestmark = pytest.mark.slow

EVERY = list(range(TOTAL))
STEPS = -(-TOTAL // 14)
"""Batches of an epoch: two ranks with seven rows each."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of two ranks saw in each scene."""
    root = tmp_path_factory.mktemp("trainer")
    return play("trainer_scenes.py", root, 2)


def together(ranks: list[dict[str, Any]], start: int, stop: int | None = None) -> list[int]:
    """Give the rows of some batches of all ranks, sorted."""
    return sorted(row for rank in ranks for batch in rank["batches"][start:stop] for row in batch)


def test_every_row_comes_once_in_each_epoch_and_in_a_new_order(seen: Seen) -> None:
    ranks = values(seen["two_epochs"])
    assert together(ranks, 0, STEPS) == together(ranks, STEPS) == EVERY
    assert ranks[0]["batches"][:STEPS] != ranks[0]["batches"][STEPS:]
    assert [(rank["steps"], rank["place"]) for rank in ranks] == [(2 * STEPS, 2.0)] * 2


def test_max_steps_stops_inside_an_epoch(seen: Seen) -> None:
    whole = values(seen["two_epochs"])
    for rank, ends in enumerate(values(seen["some_steps"])):
        assert ends["steps"] == 13
        assert ends["batches"] == whole[rank]["batches"][:13]


@pytest.mark.parametrize("scene", ["accumulated_and_gone_on", "by_rows_and_gone_on"])
def test_a_checkpoint_goes_on_at_the_next_batch(seen: Seen, scene: str) -> None:
    for rank in values(seen[scene]):
        whole = rank["whole"]
        assert whole["steps"] == 2 * -(-STEPS // 4)
        for name, rest in rank["gone on"].items():
            epoch, updates = divmod(int(name.removeprefix("checkpoint-")), -(-STEPS // 4))
            assert rest["batches"] == whole["batches"][epoch * STEPS + updates * 4 :], name
            assert (rest["steps"], rest["place"]) == (whole["steps"], 2.0)
            for step, length, taken in [*whole["lengths"], *rest["lengths"]]:
                assert (length, taken) == (STEPS, min(((step - 1) % -(-STEPS // 4) + 1) * 4, STEPS))
        assert len(rank["gone on"]) == whole["steps"]


@pytest.mark.parametrize(("scene", "before", "after"), [("on_more_ranks", 1, 2), ("on_fewer_ranks", 2, 1)])
def test_an_epoch_goes_on_on_another_number_of_ranks(seen: Seen, scene: str, before: int, after: int) -> None:
    ranks = values(seen[scene])
    batches = {world: -(-TOTAL // (7 * world)) for world in (1, 2)}
    updates = {world: -(-count // 4) for world, count in batches.items()}
    assert len(ranks[0]["gone on"]) == 2 * updates[before]
    for name in ranks[0]["gone on"]:
        made = int(name.removeprefix("checkpoint-"))
        epoch, steps = divmod(made - 1, updates[before])
        start, stop = (
            epoch * batches[before],
            min(epoch * batches[before] + (steps + 1) * 4, (epoch + 1) * batches[before]),
        )
        taken = together([rank["whole"] for rank in ranks[:before]], start, stop)
        rest = [rank["gone on"][name] for rank in ranks[:after]]
        left = -(-(TOTAL - len(taken)) // (7 * after))
        assert sorted(taken + together(rest, 0, left)) == EVERY, name
        assert together(rest, left) == EVERY * (1 - epoch), name
        expected = made + -(-left // 4) + (1 - epoch) * updates[after]
        assert {(rank["steps"], rank["max_steps"], rank["place"]) for rank in rest} == {(expected, expected, 2.0)}, name


def test_max_steps_come_on_another_number_of_ranks(seen: Seen) -> None:
    for rank in values(seen["so_many_steps_on_fewer_ranks"]):
        assert {name: rest["steps"] for name, rest in rank["gone on"].items()} == {
            "checkpoint-6": 14,
            "checkpoint-12": 14,
            "checkpoint-14": 14,
        }


def test_tables_are_evaluated_and_predicted_with_each_row_once(seen: Seen) -> None:
    ranks = values(seen["evaluated"])
    for rank in ranks:
        few = EVERY[:10]
        assert rank["evaluated"] == [{"few_rows": few, "whole_rows": EVERY, "few_labels": 10}] * 2
        assert rank["predicted"] == few
        assert rank["loss"] == ranks[0]["loss"]
