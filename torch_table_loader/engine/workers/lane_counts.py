"""Statistics of the lanes of a caller's own DataLoader, in memory shared with its worker processes."""

from __future__ import annotations

import mmap
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.engine.work.lane_work import LaneClock
from torch_table_loader.engine.workers.shared_memory import shared_bytes
from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_MOST = 1024
"""The most workers that are counted; the memory is allocated before their number is known."""


class LaneCounts:
    """A row for each lane: the number of lanes, and the lane's clock. Each row is written by one process only."""

    def __init__(self) -> None:
        """Start without lanes, in memory that forked workers share; its pages are allocated when one writes to them."""
        self._rows: NDArray[np.float64] = np.frombuffer(mmap.mmap(-1, _MOST * 6 * 8), np.float64).reshape(_MOST, 6)
        self._shared: torch.Tensor | None = None
        """The same for a spawned worker, which inherits nothing."""

    def __getstate__(self) -> torch.Tensor | None:
        """Pass the memory to a spawned worker; any other kind of copy counts by itself."""
        if get_spawning_popen() is None:
            return None
        if self._shared is None:
            shared = shared_bytes(self._rows.nbytes)
            rows = shared.numpy().view(np.float64).reshape(_MOST, 6)
            rows[:] = self._rows
            self._rows, self._shared = rows, shared
        return self._shared

    def __setstate__(self, shared: torch.Tensor | None) -> None:
        """Use the memory that was passed."""
        LaneCounts.__init__(self)
        if shared is not None:
            self._rows, self._shared = shared.numpy().view(np.float64).reshape(_MOST, 6), shared

    def note(self, lane: int, lanes: int, clock: LaneClock) -> None:
        """Record what a lane has done since its iterator began.

        Args:
            lanes: number of lanes of the DataLoader.
        """
        if lane < _MOST:
            self._rows[lane] = lanes, clock.rows, clock.batches, clock.num_bytes, clock.working, clock.collating

    def read(self) -> list[LaneClock]:
        """Return the statistics of each lane of the newest iterator; nothing if none has begun.

        Raises:
            ConfigError: there are more lanes than can be counted.
        """
        rows = self._rows.copy()
        lanes = int(rows[0, 0])
        if lanes > _MOST:
            raise ConfigError(
                f"worker_metrics: at most {_MOST:,} workers of a DataLoader of your own are counted, and there are "
                f"{lanes:,}; make the loader with create_dataloader(...)"
            )
        known = [
            row if row[0] == lanes else [0] * 6 for row in rows[:lanes].tolist()
        ]  # others are of an older iterator
        return [
            LaneClock(int(count), int(batches), int(num_bytes), working, collating)
            for _, count, batches, num_bytes, working, collating in known
        ]
