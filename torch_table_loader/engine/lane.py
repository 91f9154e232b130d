"""How one lane of a rank's work is done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_table_loader.batching.exact import ExactBatches

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.work import EpochWork, Fetch


@dataclass(slots=True)
class LaneClock:
    """What a lane has done, for `metrics()`.

    Args:
        rows: delivered to the engine.
        batches: made.
        num_bytes: of the output form.
        working: seconds spent reading and decoding.
    """

    rows: int = 0
    batches: int = 0
    num_bytes: int = 0
    working: float = 0.0


class LaneBatches:
    """One lane at work: an iterator over blocks, each the batches that one decoded run of rows completes.

    Not safe for two threads at once; the engine sees to that.
    """

    def __init__(
        self, work: EpochWork, lane: int, start: int = 0, *, to_the_end: bool = False, fetch: Fetch | None = None
    ) -> None:
        """Begin a lane.

        Args:
            work: the rank's.
            lane: which.
            start: batches of the lane that were delivered before.
            to_the_end: leave the lane's tail in `rest`, instead of making the tail batches that fall to it.
            fetch: reads its parts; None reads one after another.
        """
        self.clock = LaneClock()
        self.rest: Rows | None = None
        self._work = work
        self._keeps_rest = to_the_end or not work.plan.counted
        self._source = work.rows_to_the_end(lane, start, fetch) if to_the_end else work.rows(lane, start, fetch)
        self._cutter = ExactBatches(work.codec, work.plan.batch_size)
        self._done = False

    def next_block(self) -> list[Any] | None:
        """Make the next batches; None when the lane is done (what is left over is then in `rest`)."""
        began = time.perf_counter()
        try:
            while not self._done:
                rows = next(self._source, None)
                if rows is None:
                    self._done = True
                    batches = self._last()
                else:
                    self.clock.rows += rows.num_rows
                    self.clock.num_bytes += rows.num_bytes
                    batches = self._cutter.push(rows)
                if batches:
                    self.clock.batches += len(batches)
                    return self._work.finish(batches)
            return None
        finally:
            self.clock.working += time.perf_counter() - began

    def _last(self) -> list[Any]:
        if not self._keeps_rest:
            return self._cutter.finish()
        self.rest = self._cutter.rest()
        return []

    def close(self) -> None:
        """Close the file that is open."""
        self._done = True
        self._source.close()  # type: ignore[attr-defined]


__all__ = ["LaneBatches", "LaneClock"]
