"""The position of a job in a mixture of rows, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from typing_extensions import override

from torch_table_loader.mixtures.mixture import Mixture, ending
from torch_table_loader.mixtures.stop import Stop, StopWord
from torch_table_loader.planning.stages import AskedFrom, SamplePosition
from torch_table_loader.schedules import Done


@dataclass(frozen=True, slots=True)
class MixedRowsPosition(SamplePosition):
    """How much of an epoch of a mixture of rows a job has done, as a number of samples.

    Args:
        mixture: the order of the sources since the last change of weights; `origin` counts the tokens before that.
        rows: rows that each source has in the epoch.
        origins: the same of each source, with its round; see `PackedStream`. Places go on counting.
    """

    mixture: Mixture = field(kw_only=True)
    rows: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    origins: Mapping[str, tuple[int, int]] = field(default_factory=dict, kw_only=True)
    of_sources: ClassVar[bool] = True

    @classmethod
    def of(cls, position: SamplePosition, total: int, mixture: Mixture) -> MixedRowsPosition:
        """Return a position of a state in a mixture."""
        return cls.made_of(position, total=total, mixture=mixture)

    @property
    @override
    def asked(self) -> AskedFrom:
        return weights_from(self.consumed, self.mixture.weights)

    @property
    @override
    def begins(self) -> int:
        return self.mixture.shares.start

    @property
    @override
    def samples_before(self) -> int:
        return self.start

    @override
    def done(self, width: int) -> Done:
        return Done(self.steps_taken, self.consumed, self.tokens)

    @property
    @override
    def cut_at(self) -> Mapping[str, tuple[int, int]]:
        return self.origins

    def reweighted(
        self, weights: Mapping[str, float] | None, stop: Stop | StopWord, coming: frozenset[str] = frozenset()
    ) -> Self:
        """Return the position with other weights, of the sources that have `rows`, in a new stage.

        A finished epoch stays finished.

        Args:
            weights: by name. None: in proportion to what is left of each source.
            coming: sources that have a weight later; see `Mixture.length`.

        Raises:
            ConfigError: a weight is invalid, or a source with a weight has no row.
        """
        if self.mixture.has("rows" if weights is None else weights, self.rows):
            return self
        at, mixture = self.consumed, self.mixture
        if at == self.total and mixture.names == tuple(sorted(self.rows)):
            return self
        mixture = mixture.of_what_is_left(at, self.rows) if weights is None else mixture.reweighted(at, weights)
        if mixture is self.mixture:
            return self
        return self.mixed_anew(mixture, stop, coming)

    def mixed_anew(
        self, mixture: Mixture, stop: Stop | StopWord, coming: frozenset[str] = frozenset(), **changes: Any
    ) -> Self:
        """Return the position in a new stage of a mixture that begins there.

        Args:
            coming: sources that have a weight later; see `Mixture.length`.
            changes: other fields of that stage.

        Raises:
            ConfigError: a source with a weight has no row.
        """
        at, before, stage = self.consumed, self.steps_taken, replace(self.stage, steps=0)
        begun = replace(
            self,
            start=at,
            steps_before=before,
            stage=stage,
            ended=False,
            origin=self.tokens,
            mixture=mixture,
            **changes,
        )
        mixture, total = begun.ending(stop, coming)
        return replace(begun, total=at if at == self.total else total, mixture=mixture)

    def ending(self, stop: Stop | StopWord, coming: frozenset[str] = frozenset()) -> tuple[Mixture, int]:
        """Return the mixture without the sources that a rule drops, and the length of the epoch.

        Args:
            coming: sources that have a weight later; see `Mixture.length`.

        Raises:
            ConfigError: a source with a weight has no row, or nothing ends the epoch.
        """
        if isinstance(stop, Stop):
            stop = stop.in_samples(self.width, Done(0, self.mixture.shares.start, self.origin))
        return ending(self.mixture, tuple(self.rows[name] for name in self.mixture.names), stop, coming)


def weights_from(sample: int, weights: Mapping[str, int]) -> AskedFrom:
    """Return what ranks compare of weights that hold from a sample on."""
    remedy = "call set_weights() on every rank, with the same weights, after the same step"
    return AskedFrom(sample, weights, "mixes by weights", remedy)
