"""Where a job stands in a mixture: an epoch, the samples that the job has taken, and the weights since they changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_table_loader.planning.cursor import Stage
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.mixture import Mixture, StopRule
from torch_table_loader.planning.row_cursor import EpochPlace


@dataclass(frozen=True, slots=True)
class MixedCursor(EpochPlace):
    """What a job has done of an epoch of a mixture: the same on every rank, but for `ended`.

    Args:
        epoch: which.
        total: places of the epoch; `ENDLESS` where it has no end.
        start: samples that the job had taken when the stage began.
        stage: the topology since, and the steps taken under it.
        ended: see `EpochPlace`.
        mixture: of the epoch, since its weights changed last.
        rows: of each source in the epoch, those that are excluded left out, in the mixture's order of names.
        exclusions: what is taken out of each source, by name.
    """

    mixture: Mixture
    rows: tuple[int, ...]
    exclusions: Mapping[str, ExclusionVersions]

    def batches(self, rank: int) -> GlobalBatches:
        """Plan the stage for a rank; padding repeats from where the weights changed last."""
        return GlobalBatches(self.total, self.start, self.stage.topology, rank, self.mixture.shares.start)

    def reweighted(self, weights: Mapping[str, float], rows: Mapping[str, int], stop: StopRule) -> MixedCursor:
        """Go on with other weights, in a stage of its own; an epoch that is finished stays finished.

        Args:
            weights: by name; sources may come and go.
            rows: of each source in the epoch, by name.
            stop: when the epoch ends.

        Raises:
            ConfigError: a weight is wrong, or a source with a weight has no row.
        """
        at = self.consumed
        if at == self.total:
            return self
        mixture = self.mixture.reweighted(at, weights)
        if mixture is self.mixture:
            return self
        counts = tuple(rows[name] for name in mixture.names)
        return replace(
            self,
            total=mixture.length(counts, stop),
            start=at,
            stage=Stage(self.stage.topology),
            ended=False,
            mixture=mixture,
            rows=counts,
        )
