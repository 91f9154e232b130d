"""What comes of each source of a mixture of rows, by how many of its items came before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from torch_table_loader.engine.items import TableItems, TurnsOf
from torch_table_loader.mixtures.form import places_of
from torch_table_loader.mixtures.mixed_items import SourceStream
from torch_table_loader.mixtures.mixture import SourceOrder
from torch_table_loader.mixtures.record import refuse
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.engine.items import CutStream
    from torch_table_loader.mixtures.row_position import MixedRowsPosition
    from torch_table_loader.planning.orders import Selects


@dataclass(frozen=True, slots=True, eq=False)
class MixtureTurns(TurnsOf):
    """The turns of a source, which goes round as often as it is asked to."""

    @override
    def order_of(self, rows: Selects) -> SourceOrder:
        return SourceOrder(rows, self.seed, self.name, self.epoch)


@dataclass(frozen=True, slots=True)
class MixedTurns:
    """The items of the sources of a mixture in their turns.

    Args:
        columns: those of the mixture.
    """

    sources: Mapping[str, TableItems]
    columns: pa.Schema
    seed: int

    def exclusions_of(self, epoch: int) -> dict[str, ExclusionVersions]:
        """Return what is excluded of each source in an epoch, and after it."""
        return {name: own.rows.exclusions.of(epoch) for name, own in self.sources.items()}

    @property
    def newest_exclusions(self) -> dict[str, ExclusionVersions]:
        """What is excluded of each source in epochs that begin later."""
        return {name: ExclusionVersions(own.rows.exclusions.newest) for name, own in self.sources.items()}

    def count(self, versions: Mapping[str, ExclusionVersions], epoch: int, width: int) -> dict[str, int]:
        """Count what is left of each source in an epoch; where they are packed, in sequences of a width."""
        return {
            name: own.count(self._turns(name, versions[name].running, epoch, width))
            for name, own in self.sources.items()
        }

    def of(self, position: MixedRowsPosition) -> dict[str, TurnsOf]:
        """Return what decides which items of each source come, in the order of the mixture's names."""
        epoch, width, origins = position.epoch, position.width, position.origins
        return {
            name: self._turns(name, position.exclusions[name].running, epoch, width, origins.get(name, (0, 0)))
            for name in position.mixture.names
            if name in self.sources
        }

    def streams(self, position: MixedRowsPosition) -> tuple[SourceStream, ...]:
        """Return the items of each source, in the order of the mixture's names."""
        found = []
        for name, turns in self.of(position).items():
            own = self.sources[name]
            found.append(SourceStream(turns.number, own.by_turn(turns), places_of(self.columns, own.columns)))
        return tuple(found)

    def recut(
        self, position: MixedRowsPosition, width: int, rows: Mapping[str, int]
    ) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Return how many sequences of another width came of each source, and where those to come have their origin.

        Args:
            rows: sequences of that width of each source in the epoch.
        """
        mixture = position.mixture
        before, origins = dict(zip(mixture.names, mixture.rows_before(position.consumed), strict=True)), {}
        for name, own in self.of(position).items():
            if not rows[name]:
                continue
            number, tokens = self._cut(own).came_before(before[name])
            anew = self._cut(replace(own, width=width, origin=(0, 0)))
            before[name], origin = anew.turn_behind(number, tokens)
            origins[name] = (number, origin)
        return before, origins

    def tokens(self, position: MixedRowsPosition, before: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return the tokens of each source that came in some turns, and those of a round.

        Args:
            before: the turns of each source, where documents are cut anywhere.
        """
        found = {}
        for name, own in self.of(position).items():
            stream = self._cut(own)
            whole = stream.width_of_a_round
            number, tokens = stream.came_before(before[name]) if whole else (0, 0)
            found[name] = number * whole + tokens, whole
        return found

    def anchors(self, position: MixedRowsPosition) -> dict[str, list[int]]:
        """Return from where sources that are walked find their next items."""
        if not position.consumed:
            return {}
        mixture, streams = position.mixture, self.streams(position)
        turns = zip(mixture.names, mixture.rows_before(position.consumed), streams, strict=True)
        found = {name: entry.items.anchor(turn) for name, turn, entry in turns if turn or position.origins}
        return {name: anchor for name, anchor in found.items() if anchor}

    def begin_at(self, position: MixedRowsPosition, anchors: Mapping[str, Sequence[int]]) -> None:
        """Take what `anchors` returned as known."""
        for name, entry in zip(position.mixture.names, self.streams(position), strict=True):
            if name in anchors:
                entry.items.begin_at(list(anchors[name]))

    def refuse_origins(self, position: MixedRowsPosition) -> None:
        """Refuse origins of sources at which no sequence begins; documents are cut anywhere.

        Raises:
            ResumeError: names the origin.
        """
        mixture, origins = position.mixture, position.origins
        before = dict(zip(mixture.names, mixture.shares.before, strict=True))
        for name, own in self.of(position).items():
            if name in origins and not self._cut(own).has_at(before[name]):
                refuse(f"the origin {origins[name]!r} of source {name!r}, before {before[name]} of its sequences")

    def _cut(self, turns: TurnsOf) -> CutStream:
        return cast("CutStream", self.sources[turns.name].by_turn(turns))

    def _turns(
        self, name: str, exclusions: Exclusions, epoch: int, width: int, origin: tuple[int, int] = (0, 0)
    ) -> TurnsOf:
        number = list(self.sources).index(name)
        return MixtureTurns(name, number, self.columns, exclusions, self.seed, epoch, width, origin)
