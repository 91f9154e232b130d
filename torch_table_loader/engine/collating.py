"""The caller's `collate_fn` at work: one batch at a time, and an error of it says which batch it was."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import LaneWork, Steps


def collated(work: LaneWork, batch: Any, lane: int | None, number: int) -> Any:
    """Run the caller's `collate_fn`, if there is one, over a batch.

    Args:
        work: the rank's.
        batch: of the output form.
        lane: which made it; None where it is joined of what all lanes left over.
        number: batches that the lane made before.

    Raises:
        BaseException: what `collate_fn` raised, with a note of which batch it was.
        RuntimeError: `collate_fn` raised StopIteration, which would end the epoch in silence.
    """
    if work.collate_fn is None:
        return batch
    try:
        return work.collate_fn(batch)
    except StopIteration as error:
        message = f"collate_fn raised StopIteration; {_where(work, lane, number)}"
        raise RuntimeError(message) from error
    except BaseException as error:
        error.add_note(f"raised by collate_fn; {_where(work, lane, number)}")
        raise


def _where(work: LaneWork, lane: int | None, number: int) -> str:
    said = f"rank {work.rank}, epoch {work.epoch}"
    if lane is None:
        return f"{said}, batch {number} of what all workers left over"
    said += f", batch {number} of worker {lane}"
    return f"{said}, which is step {step_of(work.plan, lane, number)}" if work.plan.counted else said


def step_of(plan: Steps, lane: int, number: int) -> int:
    """Find the step in which a lane delivers its batch `number`, from 0; as `rows_of` counts steps."""
    return bisect_right(range(plan.steps + 1), number, key=lambda step: plan.batches_before(step)[lane]) - 1
