"""What a dataset was asked to exclude, and what the epoch that runs began with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch_table_loader.planning.exclusion import ExclusionVersions

if TYPE_CHECKING:
    from torch_table_loader.planning.exclusion import Exclusions


class ExclusionBook:
    """What was excluded, and what the epoch that runs began with."""

    def __init__(self, versions: ExclusionVersions | None = None, epoch: int | None = None) -> None:
        """Begin with nothing, or with what a state says of an epoch."""
        versions = versions or ExclusionVersions()
        self.newest = versions.newest
        self._running = (epoch, versions.running)
        self._lock = threading.Lock()

    def of(self, epoch: int) -> ExclusionVersions:
        """Say what is excluded from an epoch: what it began with if it runs, else the newest."""
        with self._lock:
            began, running = self._running
            return ExclusionVersions(running if began == epoch else self.newest, self.newest)

    def begin(self, epoch: int, running: Exclusions) -> None:
        """Note that an epoch runs."""
        with self._lock:
            self._running = (epoch, running)

    def change(self, newest: Exclusions) -> None:
        """Note what was asked for."""
        with self._lock:
            self.newest = newest

    def apart(self) -> ExclusionBook:
        """Begin another book with what is excluded now; from there on each is told apart."""
        return ExclusionBook(ExclusionVersions(self.newest, self.newest))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock out."""
        return {"newest": self.newest, "_running": self._running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a lock of its own."""
        vars(self).update(state, _lock=threading.Lock())


__all__ = ["ExclusionBook"]
