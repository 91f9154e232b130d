"""The loader under the Hugging Face Trainer, with the mixin that `docs/frameworks.md` shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.scenes import TOTAL, Seen, play, values

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


def test_a_checkpoint_goes_on_at_the_next_batch(seen: Seen) -> None:
    for rank in values(seen["accumulated_and_gone_on"]):
        whole = rank["whole"]
        assert whole["steps"] == 2 * -(-STEPS // 4)
        for name, rest in rank["gone on"].items():
            epoch, updates = divmod(int(name.removeprefix("checkpoint-")), -(-STEPS // 4))
            assert rest["batches"] == whole["batches"][epoch * STEPS + updates * 4 :], name
            assert (rest["steps"], rest["place"]) == (whole["steps"], 2.0)
        assert len(rank["gone on"]) == whole["steps"]
