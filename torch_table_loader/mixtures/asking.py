"""What callers ask of a mixture: other weights, other exclusions, and how much of each source was taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from torch_table_loader.engine.jobs.modes import items_job
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.mixtures.mixed_rows import MixtureOfRows
from torch_table_loader.mixtures.mixture import NaturalShares, natural_shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.mixtures.mixed_sources import MixedSources
    from torch_table_loader.mixtures.record import Weights
    from torch_table_loader.planning.exclusion import Exclusions
    from torch_table_loader.schedules import Schedule

    Ints: TypeAlias = NDArray[np.int64]


class SourceTaken(NamedTuple):
    """What all ranks together have taken of a source of a mixture in an epoch.

    Args:
        rows: of a source that is not packed.
        tokens: of one that is; with the padding of its sequences, unless documents are cut anywhere.
        epochs: how often the source has come.
    """

    rows: int | None
    tokens: int | None
    epochs: float


class Mixture(Protocol):
    """What callers ask of a job that is a mixture; `MixedStreams` is such a job itself."""

    @property
    def mixed(self) -> MixedSources[Any]:
        """The sources, and the weights that were asked for."""
        ...

    @property
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""
        ...

    def with_sources(self, sources: Mapping[str, Any]) -> Job:
        """Return the same mixture over other versions of its sources, which are jobs."""
        ...

    def check_weights(
        self, weights: Mapping[str, float] | NaturalShares, epoch: int, coming: frozenset[str] = frozenset()
    ) -> Weights:
        """Return weights that an epoch can begin with, as the smallest integers.

        Args:
            coming: sources that may have a weight later.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """
        ...

    def reweighted(self, position: Any, weights: Weights) -> Any:
        """Return a position with other weights for the steps that come; the position itself if it has them.

        Raises:
            ConfigError: a source with a weight has no row.
        """
        ...

    def had_of(self, position: Any) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position, and how many a round has."""
        ...


def mixture_of(job: Job) -> Mixture:
    """Return what callers ask of a job of a mixture."""
    if (rows := items_job(job)) is not None:
        return MixtureOfRows(rows)
    return cast("Mixture", job)


def with_schedule(job: Job, weights: Schedule) -> Job:
    """Return the same mixture with other weights from later steps on; its first epoch can begin, and ends.

    Raises:
        ConfigError: weights are wrong, as those of `check_weights` are, or the epoch would not end.
    """
    mixture = mixture_of(job)
    anywhere = frozenset(mixture.mixed.by_name)
    later = weights.mapped(lambda each: mixture.check_weights(each, 0, anywhere))
    if len(later.values) == 1:
        job.start(0)
        return job
    mixed = replace(mixture.mixed, later=later)
    scheduled = replace(job, schedules={**job.schedules, "weights": later}, **_holding(job, mixed))
    deque(scheduled.walk.stages(scheduled.start(0)), maxlen=0)
    return scheduled


def _holding(job: Job, mixed: MixedSources[Any]) -> dict[str, Any]:
    """Return the field of a job that has its sources, with others."""
    if (rows := items_job(job)) is not None:
        items: Any = rows.items
        return {"items": replace(items, mixed=mixed)}
    return {"mixed": mixed}


def newest_shares(mixture: Mixture) -> dict[str, int]:
    """Return the newest weights, as the smallest integers; natural ones as they are at an epoch's start."""
    mixed = mixture.mixed
    newest: Weights = mixed.asked.newest if mixed.later is None else mixed.later.last
    if isinstance(newest, str):
        return natural_shares(mixture.sizes)
    return newest


def ask_for_weights(mixture: Mixture, weights: Mapping[str, float] | NaturalShares, position: Any | None) -> None:
    """Ask for other weights from the next step on, or for natural shares by their word.

    Args:
        position: the position in the running epoch, which must be able to take them; None if no epoch runs.

    Raises:
        ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
    """
    mixed = mixture.mixed
    if mixed.later is not None:
        raise ConfigError("weights= follows a schedule, which set_weights would leave; make the loader without one")
    newest = mixture.check_weights(weights, 0 if position is None else position.epoch)
    if position is not None:
        mixture.reweighted(position, newest)
    mixed.asked.newest = newest
    mixed.asked.changes += 1


def taken_of_sources(job: Job, position: Any, batches: int) -> dict[str, SourceTaken]:
    """Return what is taken of each source once a job has taken more global batches of an epoch."""
    samples, (behind, _) = job.samples, job.walk.behind(position, batches)
    had = {name: (count, count / max(1, whole)) for name, (count, whole) in mixture_of(job).had_of(behind).items()}
    if samples.are_rows:
        return {name: SourceTaken(count, None, epochs) for name, (count, epochs) in had.items()}
    tokens = 1 if samples.cut_anywhere else samples.width
    return {name: SourceTaken(None, count * tokens, epochs) for name, (count, epochs) in had.items()}


def ids_of_sources(sources: Mapping[str, LiveRows], row_ids: Mapping[str, Any]) -> dict[str, Ints]:
    """Return the ids that the caller names of each source, checked.

    Raises:
        ConfigError: a source that is not there, an id that no row has, or a mask of other rows.
    """
    if not isinstance(row_ids, Mapping):
        raise ConfigTypeError(f"row ids must be given by name of their source, got {type(row_ids).__name__}")
    if unknown := [name for name in row_ids if name not in sources]:
        raise ConfigError(f"the mixture has no source {unknown[0]!r}; it has {', '.join(sources)}")
    return {name: sources[name].ids_of(ids) for name, ids in row_ids.items()}


def change_exclusions(sources: Mapping[str, LiveRows], row_ids: Mapping[str, Ints], *, include: bool) -> None:
    """Take rows out of some sources, or in again."""
    newest: dict[str, Exclusions] = {}
    for name, ids in row_ids.items():
        rows = sources[name]
        newest[name] = rows.include(ids) if include else rows.exclude(ids)
    for name, exclusions in newest.items():
        sources[name].exclusions.change(exclusions)
