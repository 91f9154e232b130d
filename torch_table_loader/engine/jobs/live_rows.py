"""The live rows of one table in its row store: what is excluded of them, and how often each comes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from torch_table_loader.engine.exclusion_record import saved_exclusions
from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
from torch_table_loader.errors import ConfigError
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions, Remaining, checked_ids
from torch_table_loader.planning.rows_of import RowSpan, spans_of_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.engine.row_store import RowStoreHandle
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.orders import Draws, Selects

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class LiveRows:
    """The live rows of one table in their store, of which some may be excluded.

    Args:
        count: how many there are, excluded or not.
        draws: how often each row comes.
        word: what several rows are called.
        refusal: why none of them can be excluded alone, after the name of what the caller asks for; empty if each can.
    """

    options: LoaderOptions
    table: Table
    store: RowStoreHandle
    count: int
    draws: Draws
    word: str = "rows"
    refusal: str = ""
    exclusions: ExclusionState = field(default_factory=ExclusionState)

    def apart(self) -> Self:
        """Return the same with exclusions of its own, which begin with what is excluded now."""
        return replace(self, exclusions=self.exclusions.apart())

    def excluding(self, versions: ExclusionVersions, epoch: int) -> Self:
        """Return the same with the exclusions of a running epoch, and of those that follow it."""
        return replace(self, exclusions=ExclusionState(versions, epoch))

    def versions(self, running: Exclusions) -> ExclusionVersions:
        """Return what is excluded now, given what the running epoch excludes."""
        return ExclusionVersions(running, self.exclusions.newest)

    def exclusions_in(self, saved: SavedState, name: str = "") -> ExclusionVersions:
        """Return what a state excludes of the table, which is the source of a mixture by a name.

        Raises:
            ResumeError: the table has no such rows.
        """
        return saved_exclusions(saved, name, self.table.layout.num_rows)

    def ids_of(self, row_ids: Any) -> Ints:
        """Return the row ids that the caller names, checked."""
        return checked_ids(row_ids, self.table.layout.num_rows)

    def exclude(self, row_ids: Any) -> Exclusions:
        """Return the exclusions with some rows more.

        Raises:
            ConfigError: an id that no row has, or items that do not follow rows.
        """
        self._check("exclude")
        return self.exclusions.newest.exclude(row_ids, self.table.layout.num_rows)

    def include(self, row_ids: Any) -> Exclusions:
        """Return the exclusions with some rows fewer."""
        self._check("include")
        return self.exclusions.newest.include(row_ids, self.table.layout.num_rows)

    def _check(self, asked: str) -> None:
        if self.refusal:
            raise ConfigError(f"{asked} {self.refusal}")

    def remaining(self, exclusions: Exclusions) -> Remaining:
        """Return the rows of the store that are left."""
        return Remaining(self.count, self._gone(exclusions))

    def _gone(self, exclusions: Exclusions) -> Ints:
        """Return the rows of the store that are excluded."""
        gone = exclusions.ids
        if len(gone) and self.store.spec.keeps_ids:  # rows that a filter leaves out have no place
            kept = self.store.rows().row_ids
            assert kept is not None  # noqa: S101 the store keeps them
            places = np.searchsorted(kept, gone)
            present = places < len(kept)
            present[present] = kept[places[present]] == gone[present]
            gone = places[present]
        return gone

    def of_epoch(self, exclusions: Exclusions, epoch: int) -> Selects:
        """Return the rows that are left, or are drawn of those.

        Raises:
            ConfigError: all are excluded.
        """
        remaining = self.remaining(exclusions)
        if self.count and not remaining.num_rows:
            raise ConfigError(f"all {self.count} rows are excluded, so the epoch has no rows; include() some of them")
        return self.draws.selected(remaining, self.options.shuffle_seed, epoch)

    def of_source(self, name: str, exclusions: Exclusions, seed: int, epoch: int) -> Selects:
        """Return the rows that are left of a source of a mixture, or are drawn of those; there may be none."""
        return self.draws.selected(self.remaining(exclusions), seed, epoch, name)

    def total(self, rows: int) -> int:
        """Return how many places of an order of some rows an epoch has."""
        if self.draws.most is None:
            return rows
        return min(rows, self.draws.most)

    def note(self, epoch_rows: int, running: Exclusions) -> str:
        """Say how many rows an epoch has, and which."""
        left, word = self.remaining(running).num_rows, self.word
        said = self.draws.in_words(f"{epoch_rows:,} {word}", f"{left:,} of {self.count:,} live {word}")
        return f"{said}; the others are excluded"

    @property
    def held_bytes(self) -> int:
        """Bytes that are held in memory."""
        return self.store.memory_bytes + self.draws.memory_bytes

    @property
    def built_bytes(self) -> int:
        """What building the store takes beside it, before the first batch."""
        return self.store.building_bytes(self.table)

    @property
    def where(self) -> str:
        """Where the rows are, for `explain()`."""
        store = self.store
        if store.in_place is not None:
            return "the table's own files"
        where = "the memory of this rank" if store.place is None else f"files, as {store.place.name}"
        where = where if store.url is None else f"{store.url.shown}, or this machine's copy of it"
        return f"a row store in {where}"

    def close_clients(self) -> None:
        """Close the stores' clients of this process, so that none crosses into another."""
        self.table.storage.close()
        self.store.close_clients()

    def spans_of(self, ids: Ints) -> list[RowSpan]:
        """Return the file and the row of each row id."""
        return spans_of_ids(self.table.layout, ids)
