"""What mixtures of rows and of streams have in common: sources by name, and weights that may change."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from torch_table_loader.engine.jobs.job import Asked, Job
from torch_table_loader.engine.jobs.mixture_form import common_columns
from torch_table_loader.engine.jobs.mixture_record import RECORD, SavedMixture, Weights
from torch_table_loader.engine.jobs.resolve import warn_of_uneven_batches
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.state_records import Written
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.mixture import NaturalShares, natural_shares
from torch_table_loader.planning.rows_of import SourceTaken
from torch_table_loader.schedules import Done

if TYPE_CHECKING:
    from torch_table_loader.engine.table import Table
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.schedules import Schedule, Stop


@dataclass(slots=True, kw_only=True)
class AskedWeights(Asked):
    """The weights that were asked for last, or the word for natural shares; epochs and steps that begin take them."""

    newest: Weights


@dataclass(frozen=True, eq=False, kw_only=True)
class MixtureJob(Job):
    """One rank's share of several tables, in shares that the caller chooses.

    Args:
        options: the caller's, with `batch_size` resolved, and the form of rows as the sources have it.
        sources: by name, in the caller's order, in which the column `source` numbers them.
        given: the weights that the loader was made with; see `AskedWeights`.
    """

    sources: Mapping[str, Any]
    given: Weights
    stop: Stop
    asked: AskedWeights
    unused: ClassVar[tuple[str, ...]]
    """Options of a source that have no effect in the mixture."""

    @property
    @override
    def tables(self) -> Mapping[str, Table]:
        return {name: source.table for name, source in self.sources.items()}

    @property
    @override
    def compared(self) -> Mapping[str, Any]:
        sources = {name: [own.table, own.options] for name, own in self.bounds.items()}
        return {
            **self.bound.options,
            "names": list(self.sources),
            "sources": sources,
            "weights": self.given,
            **self._compared_options,
        }

    @cached_property
    @override
    def bounds(self) -> Mapping[str, Bound]:
        found = {}
        for name, source in self.sources.items():
            own = source.bound
            found[name] = Bound(own.table, {key: own.options[key] for key in own.options if key not in self.unused})
        return found

    @property
    @override
    def own_records(self) -> tuple[str, ...]:
        return (RECORD.key,)

    def _record(self, position: Any, stages: Sequence[Any]) -> dict[str, Written]:
        """Return what a state says of the mixture, given how its sources share the stages."""
        mixture = SavedMixture(self.bound.options, self.given, self._weights_at(position.epoch, position))
        return {RECORD.key: Written(stages, mixture.to_state())}

    def following_schedule(self, weights: Schedule) -> Self:
        """Return the same mixture with other weights from later steps on; its first epoch can begin, and ends.

        Raises:
            ConfigError: weights are wrong, as those of `check_weights` are, or the epoch would not end.
        """
        anywhere = frozenset(self.sources)
        later = weights.mapped(lambda each: self.check_weights(each, 0, anywhere))
        if len(later.values) == 1:
            self.start(0)
            return self
        mixture = replace(self, schedules={**self.schedules, "weights": later})
        deque(mixture.stages(mixture.start(0)), maxlen=0)
        return mixture

    def _weights_at(self, epoch: int, position: Any = None) -> Weights:
        """Return the weights of the step that comes next: those that were asked for last, or those of the schedule.

        Args:
            position: where the job is; None: at the epoch's start.
        """
        if (later := self.schedules.get("weights")) is None:
            return self.asked.newest
        found: Weights = later.at(epoch, Done() if position is None else self._done(position))
        return found

    def _coming(self, epoch: int, position: Any = None) -> frozenset[str]:
        """Return the sources to which the schedule gives a weight later in an epoch than the step that comes next."""
        if (later := self.schedules.get("weights")) is None:
            return frozenset()
        ahead = later.ahead(epoch, Done() if position is None else self._done(position))
        return frozenset(name for each in ahead for name in self.sources if isinstance(each, str) or each[name])

    @cached_property
    def _cuts_anywhere(self) -> bool:
        """Whether samples are cut of rows put behind one another, so that their length may change."""
        return self.samples.cut_anywhere

    @override
    def warn_of_uneven_steps(self) -> None:
        *_, last = self.stages(self.start(0))
        warn_of_uneven_batches(last.batches(self.rank))

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Items of each source in an epoch that begins later."""

    @abstractmethod
    def had_of(self, position: Any) -> dict[str, tuple[int, int]]:
        """Return how many items of each source an epoch has had before a position, and how many a round has.

        Items are rows or sequences; tokens, where documents are cut anywhere.
        """

    def taken(self, position: Any, batches: int) -> dict[str, SourceTaken]:
        """Return what is taken of each source once a job has taken more global batches of an epoch."""
        samples, (behind, _) = self.samples, self.behind(self.current(position), batches)
        had = {name: (count, count / max(1, whole)) for name, (count, whole) in self.had_of(behind).items()}
        if samples.are_rows:
            return {name: SourceTaken(count, None, epochs) for name, (count, epochs) in had.items()}
        tokens = 1 if self._cuts_anywhere else samples.width
        return {name: SourceTaken(None, count * tokens, epochs) for name, (count, epochs) in had.items()}

    @property
    def shares(self) -> dict[str, int]:
        """The newest weights, as the smallest integers; natural ones as they are at an epoch's start."""
        newest = self.schedules["weights"].last if "weights" in self.schedules else self.asked.newest
        return natural_shares(self.sizes) if isinstance(newest, str) else newest

    def with_sources(self, sources: Mapping[str, Any]) -> Self:
        """Return the same mixture over other versions of its sources."""
        both = {**self.sources, **sources}
        return replace(self, sources=both, columns=common_columns(both, self.options))

    @abstractmethod
    def check_weights(
        self, weights: Mapping[str, float] | NaturalShares, epoch: int, coming: frozenset[str] = frozenset()
    ) -> Weights:
        """Return weights that an epoch can begin with, as the smallest integers.

        Args:
            coming: sources that may have a weight later.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """

    @abstractmethod
    def reweighted(self, position: Any, weights: Weights) -> Any:
        """Return a position with other weights for the steps that come; the position itself if it has them.

        Raises:
            ConfigError: a source with a weight has no row.
        """

    def set_weights(self, weights: Mapping[str, float] | NaturalShares, position: Position | None) -> None:
        """Ask for other weights from the next step on, or for natural shares by their word.

        Args:
            position: the position in the running epoch, which must be able to take them; None if no epoch runs.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """
        if "weights" in self.schedules:
            raise ConfigError("weights= follows a schedule, which set_weights would leave; make the loader without one")
        newest = self.check_weights(weights, 0 if position is None else position.epoch)
        if position is not None:
            self.reweighted(position, newest)
        self.asked.newest = newest
        self.asked.changes += 1

    @override
    def current(self, position: Any) -> Any:
        return self.reweighted(position, self._weights_at(position.epoch, position))

    @override
    def next_stage(self, position: Any) -> Any:
        return self.current(position)

    @override
    def refuse_nulls(self) -> None:
        for source in self.sources.values():
            source.refuse_nulls()

    @override
    def close_clients(self) -> None:
        for source in self.sources.values():
            source.close_clients()
