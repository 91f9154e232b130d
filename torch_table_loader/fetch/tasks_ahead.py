"""What many tasks need, fetched ahead of the threads that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from torch_table_loader.fetch.fetcher import ReadStorage, fetch_ahead
from torch_table_loader.fetch.planned_read import PlannedRead

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.fetch.settings import FetchSettings
    from torch_table_loader.records import FileNeeds


class TasksAhead:
    """Fetches what many tasks need ahead of the threads that run them, in the order of their numbers."""

    def __init__(
        self, storage: Storage, needs: Iterable[Callable[[], FileNeeds | None]], settings: FetchSettings
    ) -> None:
        """Start to fetch.

        Args:
            needs: for each task, a function that returns which bytes it needs.
            settings: how many bytes to fetch ahead, and what is cached.
        """
        plan = (PlannedRead(number, number, 1, find) for number, find in enumerate(needs))
        self._ahead = fetch_ahead(storage, plan, settings)

    @contextmanager
    def storage_of(self, number: int) -> Iterator[ReadStorage | None]:
        """Yield the storage for a task, and release it at the end; None for the files' own storage."""
        if self._ahead is None:
            yield None
            return
        with closing(self._ahead.next_read(number)) as storage:
            yield storage

    def close(self) -> None:
        """Stop fetching."""
        if self._ahead is not None:
            self._ahead.close()
