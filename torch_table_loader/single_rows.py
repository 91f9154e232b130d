"""What a dataset in row mode can do with single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_table_loader.engine.exclusion_book import warn_of_undone
from torch_table_loader.engine.row_job import RowJob
from torch_table_loader.errors import ConfigError
from torch_table_loader.map_view import MapView

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import Place
    from torch_table_loader.engine.row_store import StoreKeeper


class SingleRows:
    """Excludes rows and looks at them, where ``shuffle="rows"``."""

    _job: Any

    def restore(self, cursor: Place, job: Any) -> None:
        """Begin the next iterator at a position; say so where rows come back that were excluded here."""
        if isinstance(job, RowJob):
            warn_of_undone(self._job.book, job.book)
        super().restore(cursor, job)  # type: ignore[misc]

    def exclude(self, row_ids: Any) -> None:
        """Take rows out of every epoch that begins from now on; the epoch that runs keeps its order.

        Every rank must be told the same, in the same epoch. A state that is loaded later brings its own exclusions, in
        place of these; a warning says so.

        Args:
            row_ids: integers as the column ``row_id`` gives them: an array, a tensor or a list.

        Raises:
            ConfigError: an id that no row has, or no ``shuffle="rows"``.
        """
        self._row_job("exclude").exclude(row_ids)

    def include(self, row_ids: Any) -> None:
        """Take rows in again that were excluded; see `exclude`."""
        self._row_job("include").include(row_ids)

    def as_map(self) -> MapView:
        """Return the table's live rows as a map-style dataset; see `MapView`."""
        return MapView(self._row_job("as_map"))

    def _row_job(self, what: str) -> RowJob:
        if not isinstance(self._job, RowJob):
            raise ConfigError(f'{what} speaks of single rows; pass shuffle="rows"')
        return self._job


def store_keeper(dataset: SingleRows) -> StoreKeeper:
    """Return the keeper of a dataset's row store, which builds and opens it.

    Args:
        dataset: with ``shuffle="rows"``.
    """
    return dataset._row_job("store_keeper").keeper
