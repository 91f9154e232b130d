"""What the caller excluded while a job runs, and what the running epoch began with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.forks import OfProcess
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExclusionState:
    """What was excluded, and what the epoch that runs began with."""

    def __init__(self, versions: ExclusionVersions | None = None, epoch: int | None = None) -> None:
        """Begin with no exclusions, or with those of a state."""
        versions = versions or ExclusionVersions()
        self.newest = versions.newest
        self._included = np.empty(0, dtype=np.int64)
        self._running = (epoch, versions.running)
        self._lock = OfProcess(threading.Lock)

    def of(self, epoch: int) -> ExclusionVersions:
        """Return what is excluded from an epoch: what it began with if it runs, else the newest."""
        with self._lock.own:
            began, running = self._running
            return ExclusionVersions(running if began == epoch else self.newest, self.newest)

    def begin(self, epoch: int, running: Exclusions) -> None:
        """Keep what an epoch began with, until another begins."""
        with self._lock.own:
            self._running = (epoch, running)

    def change(self, newest: Exclusions) -> None:
        """Replace the newest exclusions."""
        with self._lock.own:
            back = np.setdiff1d(self.newest.ids, newest.ids, assume_unique=True)
            self._included = np.setdiff1d(np.union1d(self._included, back), newest.ids, assume_unique=True)
            self.newest = newest

    def warn_of_undone(self, loaded: ExclusionState, where: str = "") -> None:
        """Warn that a state which is loaded undoes calls of `exclude` and `include`; `where` names the table."""
        back = len(np.setdiff1d(self.newest.ids, loaded.newest.ids, assume_unique=True))
        gone = len(np.intersect1d(self._included, loaded.newest.ids, assume_unique=True))
        if not back and not gone:
            return
        changes = [f"{back} rows{where} that were excluded here come back"] if back else []
        changes += [f"{gone} rows{where} that were included again here are excluded again"] if gone else []
        warn_caller(
            f"the loaded state replaces the exclusions: {', '.join(changes)}; call exclude() and include() "
            "after load_state_dict() to change them for later epochs"
        )

    def apart(self) -> ExclusionState:
        """Return another one with what is excluded now; each is changed alone from there on."""
        return ExclusionState(ExclusionVersions(self.newest, self.newest))


def warn_of_undone(before: Mapping[str, ExclusionState], loaded: Mapping[str, ExclusionState]) -> None:
    """Warn of exclusions of some sources, by name, that a job which is loaded does not have."""
    for name, own in before.items():
        if name in loaded:
            own.warn_of_undone(loaded[name], f" of source {name!r}" if name else "")
