"""What callers ask of a mixture: other weights, other exclusions, and how much of each source was taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.mixtures.mixed_rows import MixedRows
from torch_table_loader.mixtures.mixed_streams import MixedStreams
from torch_table_loader.mixtures.mixture import NaturalShares, natural_shares
from torch_table_loader.planning.rows_of import SourceTaken

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.planning.exclusion import Exclusions
    from torch_table_loader.schedules import Schedule

    Ints: TypeAlias = NDArray[np.int64]

MixedJob: TypeAlias = MixedRows | MixedStreams


def with_schedule(job: MixedJob, weights: Schedule) -> MixedJob:
    """Return the same mixture with other weights from later steps on; its first epoch can begin, and ends.

    Raises:
        ConfigError: weights are wrong, as those of `check_weights` are, or the epoch would not end.
    """
    anywhere = frozenset(job.sources)
    later = weights.mapped(lambda each: job.check_weights(each, 0, anywhere))
    if len(later.values) == 1:
        job.start(0)
        return job
    mixed: Any = replace(job.mixed, later=later)
    scheduled = replace(job, schedules={**job.schedules, "weights": later}, mixed=mixed)
    deque(scheduled.walk.stages(scheduled.start(0)), maxlen=0)
    return scheduled


def newest_shares(job: MixedJob) -> dict[str, int]:
    """Return the newest weights, as the smallest integers; natural ones as they are at an epoch's start."""
    mixed = job.mixed
    newest = mixed.asked.newest if mixed.later is None else mixed.later.last
    if isinstance(newest, str):
        return natural_shares(job.sizes)
    return newest


def ask_for_weights(job: MixedJob, weights: Mapping[str, float] | NaturalShares, position: Any | None) -> None:
    """Ask for other weights from the next step on, or for natural shares by their word.

    Args:
        position: the position in the running epoch, which must be able to take them; None if no epoch runs.

    Raises:
        ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
    """
    if job.mixed.later is not None:
        raise ConfigError("weights= follows a schedule, which set_weights would leave; make the loader without one")
    newest = job.check_weights(weights, 0 if position is None else position.epoch)
    if position is not None:
        job.reweighted(position, newest)
    asked = job.mixed.asked
    asked.newest = newest
    asked.changes += 1


def taken_of_sources(job: MixedJob, position: Any, batches: int) -> dict[str, SourceTaken]:
    """Return what is taken of each source once a job has taken more global batches of an epoch."""
    samples, (behind, _) = job.samples, job.walk.behind(job.current(position), batches)
    had = {name: (count, count / max(1, whole)) for name, (count, whole) in job.had_of(behind).items()}
    if samples.are_rows:
        return {name: SourceTaken(count, None, epochs) for name, (count, epochs) in had.items()}
    tokens = 1 if samples.cut_anywhere else samples.width
    return {name: SourceTaken(None, count * tokens, epochs) for name, (count, epochs) in had.items()}


def ids_of_sources(job: MixedRows, row_ids: Mapping[str, Any]) -> dict[str, Ints]:
    """Return the ids that the caller names of each source, checked.

    Raises:
        ConfigError: a source that is not there, an id that no row has, or a mask of other rows.
    """
    if not isinstance(row_ids, Mapping):
        raise ConfigTypeError(f"row ids must be given by name of their source, got {type(row_ids).__name__}")
    sources = job.sources
    if unknown := [name for name in row_ids if name not in sources]:
        raise ConfigError(f"the mixture has no source {unknown[0]!r}; it has {', '.join(sources)}")
    return {name: sources[name].ids_of(ids) for name, ids in row_ids.items()}


def change_exclusions(job: MixedRows, row_ids: Mapping[str, Ints], *, include: bool) -> None:
    """Take rows out of some sources, or in again."""
    newest: dict[str, Exclusions] = {}
    for name, ids in row_ids.items():
        rows = job.sources[name]
        newest[name] = rows.include(ids) if include else rows.exclude(ids)
    for name, exclusions in newest.items():
        job.sources[name].exclusions.change(exclusions)
