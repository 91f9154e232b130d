"""What one rank takes of an epoch, step by step: a `RankPlan` of splits, or `GlobalBatches` of items."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.units import integer

Steps: TypeAlias = RankPlan | GlobalBatches

UNCOUNTED = "the number of batches is not known: count_filtered=False gave the counting pass up"
UNKNOWN_ROWS = (
    "the number of rows is not known here: count_filtered=False gave the counting pass up, or a rank counted its own "
    "rows alone, as it does under a filter without even_ranks=, and with a split strategy that deals rows itself"
)
UNKNOWN_SAMPLES = (
    "the number of rows that an epoch gives is not known here, or has no end; ask num_rows of the dataset for the rows "
    "of the table, or count what comes"
)
ENDLESS_EPOCH = 'the number of batches has no end: stop="forever" was asked for; break after as many steps as you want'
ENDLESS_EPOCHS = 'the number of batches has no end: epochs="forever" was asked for; break after as many as you want'


def num_steps(plan: Steps) -> int:
    """Return a rank's number of batches.

    Raises:
        TypeError: the number is not known; the message says why.
    """
    if plan.endless:
        raise TypeError(ENDLESS_EPOCH)
    if not plan.counted:
        raise TypeError(UNCOUNTED)
    return plan.steps


def step_of(plan: Steps, lane: int, number: int) -> int:
    """Return the step, from 0, in which a lane delivers its batch `number`; `rows_of` counts steps in the same way."""
    return bisect_right(range(plan.steps + 1), number, key=lambda step: plan.batches_before(step)[lane]) - 1


def step_at(
    most: int | None,
    step_of_sample: Callable[[int], int] | None,
    *,
    step: int | None = None,
    sample: int | None = None,
    fraction: float | None = None,
    file: Callable[[], int] | None = None,
) -> int:
    """Return the step of an epoch that a caller asks for: its number, a sample of it, a fraction in [0, 1], or a file.

    Args:
        most: steps of the rank that takes the most; None if they are not known or have no end.
        step_of_sample: returns the step that takes a sample of all ranks; None if steps have any number of samples.

    Raises:
        ConfigError: more than one was given, or the place is past the end.
        TypeError: a fraction was given of an unknown length.

    >>> of = lambda sample: sample // 64
    >>> step_at(10, of, step=3), step_at(10, of, sample=200), step_at(10, of, fraction=0.55), step_at(10, of)
    (3, 3, 5, 0)
    """
    given = {"step": step, "sample": sample, "fraction": fraction, "file": file}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"a place in an epoch must be named in one way, got {' and '.join(named)}; pass one")
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ConfigError(f"fraction must be a number from 0 to 1, got {fraction!r}")
        if most is None:
            raise TypeError(f"{UNCOUNTED}, or has no end; pass step= or sample=")
        return int(fraction * most)
    if file is not None:
        return file()
    if sample is not None and step_of_sample is None:
        raise ConfigError(
            'with batch_by="file" steps have different numbers of samples; pass step=, fraction= or file='
        )
    chosen = integer("step", 0 if step is None else step, 0)
    if sample is not None and step_of_sample is not None:
        chosen = step_of_sample(integer("sample", sample, 0))
    if most is not None and chosen > most:
        raise ConfigError(f"the epoch has {most} steps, and {named[0]}={given[named[0]]} is after its end; pass less")
    return chosen
