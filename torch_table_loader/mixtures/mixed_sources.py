"""The sources of a mixture and the weights that were asked for, as a value that its job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.asked import Asked
from torch_table_loader.engine.saved_state import Bound
from torch_table_loader.engine.state_records import Written
from torch_table_loader.mixtures.record import RECORD, SavedMixture, Weights
from torch_table_loader.schedules import Done

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.mixtures.stop import Stop
    from torch_table_loader.schedules import Schedule

S = TypeVar("S", bound=Any)


@dataclass(slots=True, kw_only=True)
class AskedWeights(Asked):
    """The weights that were asked for last, or the word for natural shares; epochs and steps that begin take them."""

    newest: Weights


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedSources(Generic[S]):
    """The jobs of several tables, or their items, and the shares in which the caller wants their rows.

    Args:
        by_name: the jobs or items, in the caller's order, in which the column `source` numbers them.
        given: the weights that the loader was made with; see `AskedWeights`.
        later: the weights by step, if they follow a schedule.
        unused: options of a source that have no effect in the mixture.
    """

    by_name: Mapping[str, S]
    given: Weights
    stop: Stop
    asked: AskedWeights
    unused: tuple[str, ...]
    later: Schedule | None = None

    @classmethod
    def of(cls, sources: Mapping[str, S], given: Weights, stop: Stop, unused: tuple[str, ...]) -> Self:
        """Return sources of a loader that is made with some weights, which nobody has changed yet."""
        return cls(by_name=sources, given=given, stop=stop, asked=AskedWeights(newest=given), unused=unused)

    @cached_property
    def bounds(self) -> Mapping[str, Bound]:
        """The tables and options that a state is bound to, by name of their source."""
        found = {}
        for name, source in self.by_name.items():
            own = source.bound
            found[name] = Bound(own.table, {key: own.options[key] for key in own.options if key not in self.unused})
        return found

    def compared(self, bound: Bound) -> dict[str, Any]:
        """Return what ranks compare of a mixture that is bound to some options."""
        sources = {name: [own.table, own.options] for name, own in self.bounds.items()}
        return {**bound.options, "names": list(self.by_name), "sources": sources, "weights": self.given}

    def written(self, bound: Bound, weights: Weights, stages: Sequence[Any]) -> dict[str, Written]:
        """Return what a state says of the mixture, given how its sources share the stages."""
        mixture = SavedMixture(bound.options, self.given, weights)
        return {RECORD.key: Written(stages, mixture.to_state())}

    def resumed(self, saved: SavedState) -> Self:
        """Return the same with the weights of a state, unless the loader was made with others than that run."""
        mixture: SavedMixture = saved.records[RECORD.key]
        newest = mixture.newest if mixture.given == self.given else self.given
        return replace(self, asked=AskedWeights(newest=newest))

    def others(self, sources: Mapping[str, S]) -> Self:
        """Return the same with other versions of some sources."""
        return replace(self, by_name={**self.by_name, **sources})

    def weights_at(self, epoch: int, done: Done = Done()) -> Weights:  # noqa: B008 it is frozen
        """Return the weights of the step that comes next: those that were asked for last, or those of the schedule.

        Args:
            done: what the job has done of the epoch.
        """
        if self.later is None:
            return self.asked.newest
        found: Weights = self.later.at(epoch, done)
        return found

    def coming(self, epoch: int, done: Done = Done()) -> frozenset[str]:  # noqa: B008 it is frozen
        """Return the sources to which the schedule gives a weight later in an epoch than the step that comes next."""
        if self.later is None:
            return frozenset()
        ahead = self.later.ahead(epoch, done)
        return frozenset(name for each in ahead for name in self.by_name if isinstance(each, str) or each[name])

    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null; see `Job.refuse_nulls`."""
        for source in self.by_name.values():
            source.refuse_nulls()
