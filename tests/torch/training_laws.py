"""The laws of a training framework: each row once an epoch, and resumed from any checkpoint on any number of ranks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.launchers.scenes import TOTAL, Seen, values
from tests.launchers.scripts.training_scenes import BATCH_SIZE, EPOCHS

EVERY = list(range(TOTAL))


def steps_on(num_ranks: int) -> int:
    """Return the batches of an epoch."""
    return -(-TOTAL // (BATCH_SIZE * num_ranks))


def together(runs: list[Any], start: int = 0, stop: int | None = None) -> list[int]:
    """List the rows of some batches of all ranks, sorted."""
    return sorted(row for run in runs for batch in run["batches"][start:stop] for row in batch)


class TrainingLaws:
    """Needs a fixture `seen` with the training scenes of a framework."""

    every: ClassVar[int]
    """Batches from checkpoint to checkpoint; one more comes at the end of each epoch."""
    within_epochs: ClassVar[bool] = True
    """Whether each epoch begins to count anew."""

    def saved(self, num_ranks: int) -> list[int]:
        """List at how many batches checkpoints are saved."""
        steps = steps_on(num_ranks)
        starts, stop = (range(0, EPOCHS * steps, steps), steps) if self.within_epochs else ([0], EPOCHS * steps)
        inside = {start + done for start in starts for done in range(self.every, stop, self.every)}
        return sorted(inside | {epoch * steps for epoch in range(1, EPOCHS + 1)})

    @pytest.mark.parametrize("scene", ["resumed", "resumed_by_rows"])
    def test_every_row_comes_once_in_each_epoch_and_in_a_new_order(self, seen: Seen, scene: str) -> None:
        runs = [rank["whole"] for rank in values(seen[scene])]
        steps = steps_on(len(runs))
        assert together(runs, 0, steps) == together(runs, steps) == EVERY
        for run in runs:
            assert run["batches"][:steps] != run["batches"][steps:]
            assert (len(run["batches"]), run["epochs"]) == (EPOCHS * steps, EPOCHS)

    @pytest.mark.parametrize("scene", ["resumed", "resumed_by_rows"])
    def test_a_checkpoint_goes_on_at_the_next_batch(self, seen: Seen, scene: str) -> None:
        ranks = values(seen[scene])
        for rank in ranks:
            assert sorted({done for done, _ in rank["rest"]}) == self.saved(len(ranks))
            for done, rest in rank["rest"]:
                assert rest["batches"] == rank["whole"]["batches"][done:], done
                assert rest["epochs"] == EPOCHS

    @pytest.mark.parametrize("scene", ["resumed", "resumed_by_rows"])
    def test_the_framework_counts_as_the_loader_does(self, seen: Seen, scene: str) -> None:
        ranks = values(seen[scene])
        for rank in ranks:
            counts = [count for run in [rank["whole"], *(rest for _, rest in rank["rest"])] for count in run["counts"]]
            assert len(counts) > len(rank["rest"])
            for framework, loader, length in counts:
                assert (framework, length) == (loader, steps_on(len(ranks)))

    @pytest.mark.parametrize("scene", ["on_more_ranks", "on_fewer_ranks"])
    def test_an_epoch_goes_on_on_another_number_of_ranks(self, seen: Seen, scene: str) -> None:
        ranks = values(seen[scene])
        before, after = (1, len(ranks)) if scene == "on_more_ranks" else (len(ranks), 1)
        steps = steps_on(before)
        assert sorted({done for done, _ in ranks[0]["rest"]}) == self.saved(before)
        for at, (done, _) in enumerate(ranks[0]["rest"]):
            epoch = done // steps
            taken = together([rank["whole"] for rank in ranks[:before]], epoch * steps, done)
            rest = [rank["rest"][at][1] for rank in ranks[:after]]
            left = -(-(TOTAL - len(taken)) // (BATCH_SIZE * after))
            if epoch < EPOCHS:
                assert sorted(taken + together(rest, 0, left)) == EVERY, done
                assert together(rest, left) == EVERY * (EPOCHS - 1 - epoch), done
            else:
                assert together(rest) == [], done
            assert {run["epochs"] for run in rest} == {EPOCHS}
