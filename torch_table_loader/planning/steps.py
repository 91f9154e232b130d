"""What one rank takes of an epoch, step by step: a `RankPlan` of splits, or `GlobalBatches` of items."""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.lanes import RankPlan

Steps: TypeAlias = RankPlan | GlobalBatches

UNCOUNTED = "the number of batches is not known: count_filtered=False gave the counting pass up"
ENDLESS_EPOCH = 'the number of batches has no end: stop="forever" was asked for; break after as many steps as you want'


def num_steps(plan: Steps) -> int:
    """Return a rank's number of batches.

    Raises:
        TypeError: says why it is not known.
    """
    if plan.endless or not plan.counted:
        raise TypeError(ENDLESS_EPOCH if plan.endless else UNCOUNTED)
    return plan.steps


def step_of(plan: Steps, lane: int, number: int) -> int:
    """Return the step, from 0, in which a lane delivers its batch `number`; `rows_of` counts steps in the same way."""
    return bisect_right(range(plan.steps + 1), number, key=lambda step: plan.batches_before(step)[lane]) - 1
