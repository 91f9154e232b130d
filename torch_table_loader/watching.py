"""Reports while an epoch runs: bars, log lines, a span for profilers, and a warning if training waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch.autograd.profiler import record_function

from torch_table_loader.messages import Part, progress_bar, warn_caller

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneMetrics, LaneWork
    from torch_table_loader.engine.workers.lane_merger import Counts
    from torch_table_loader.fetch.fetcher import FetchStats
    from torch_table_loader.metrics import Progress
    from torch_table_loader.options import LoaderOptions

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SPAN = "enumerate(DataLoader)#TableLoader.__next__"
"""Profilers recognize the time of a DataLoader by this prefix."""

_SECONDS = 60.0
_WAITS = 0.25
_TRAINS = 0.1


def in_span(take: Callable[[], T]) -> T:
    """Take a batch in a span of `torch.profiler`."""
    with record_function(_SPAN):
        return take()


def with_bars(
    batches: Iterator[Any], work: LaneWork, counts: Counts, start: int, options: LoaderOptions
) -> Iterator[Any]:
    """Draw progress bars while yielding batches.

    Args:
        options: whether workers have bars, and how often they are drawn.
    """
    plan = work.plan
    known = plan.counted and not plan.endless
    parts = []
    if options.show_progress == "workers":
        begun = plan.batches_before(start) if known else [0] * work.lanes
        ends = plan.batches_before(plan.steps) if known else begun
        parts = [
            Part(
                f"worker {lane}", ends[lane] - begun[lane] if known else None, partial(_batches_of, counts.lanes, lane)
            )
            for lane in range(work.lanes)
        ]
    beside = partial(_megabytes_per_second, counts.fetched, time.perf_counter())
    label, interval = f"epoch {work.epoch}", options.progress_interval
    draw = progress_bar(label, show=True, interval=interval, beside=beside, parts=parts)
    return iter(draw(batches, plan.steps - start if known else None))


def _batches_of(lanes: Sequence[LaneMetrics], lane: int) -> int:
    return lanes[lane].batches


def _megabytes_per_second(fetched: FetchStats, began: float) -> str:
    """Return how fast compressed bytes come from the store; an empty string if none do."""
    seconds = time.perf_counter() - began
    return f"{fetched.num_bytes / 1e6 / seconds:.1f} MB/s" if fetched.num_bytes and seconds > 0 else ""


class Watch:
    """Reports the progress of a loader's iterators."""

    def __init__(self) -> None:
        self._has_warned = False

    def look(self, progress: Progress) -> None:
        """Log the first batch; at later ones check whether training waits."""
        batches = progress.leg.batches
        if batches == 1 and progress.leg.earlier is None and _log.isEnabledFor(logging.INFO):
            metrics = progress.metrics()
            _log.info("epoch %d: first batch after %.2f s", metrics.epoch, metrics.seconds_total)
        if batches > 1:
            self._warn_of_waiting(progress)

    def epoch_ended(self, progress: Progress) -> None:
        """Log statistics of the epoch, and warn if training waited."""
        if _log.isEnabledFor(logging.INFO):
            metrics = progress.metrics()
            _log.info(
                "epoch %d ends: %d rows in %d batches, %.2f s of which %.2f s waiting, %.0f rows/s",
                *(metrics.epoch, metrics.rows, metrics.batches, metrics.seconds_total, metrics.seconds_waiting),
                metrics.rows_per_second,
            )
        self._warn_of_waiting(progress)

    def _warn_of_waiting(self, progress: Progress) -> None:
        if not self._has_warned and waits_for_data(*progress.seconds):
            self._has_warned = True
            warn_caller(progress.metrics().advice())


def waits_for_data(waiting: float, total: float) -> bool:
    """Return whether training waits for data so long that a warning is due.

    A loop that does nothing with its batches waits all the time, but does not train.

    >>> waits_for_data(40.0, 100.0), waits_for_data(99.0, 100.0)
    (True, False)
    """
    return total >= _SECONDS and _WAITS * total <= waiting <= (1 - _TRAINS) * total
