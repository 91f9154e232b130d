"""The metrics of a loader, counted while it runs and as a value; and what is said of them meanwhile.

That are bars, log lines, a span for profilers, and a warning if training waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from torch.autograd.profiler import record_function

from torch_table_loader.engine.work.lane_work import LaneMetrics
from torch_table_loader.fact_tables import Table, html_of
from torch_table_loader.messages import Part, progress_bar, warn_caller
from torch_table_loader.ranges import FetchStats
from torch_table_loader.samples import Counted, SampleCounts, sum_of
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.engine.workers.lane_merger import Counts
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.planning.steps import Steps
    from torch_table_loader.planning.taken_files import PlannedFiles


Limit: TypeAlias = Literal["training", "decoding", "network", "collate_fn"]

_WAITS = 0.1
"""The share of its time that training waits where something else is the limit."""

_ADVICE: dict[Limit, str] = {
    "training": "the loader keeps up, so there is nothing to change",
    "decoding": (
        "decoding is the limit, on {servers} threads or processes; read fewer columns (columns=), filter rows, or "
        "give this process more CPUs"
    ),
    "network": (
        "the object store is the limit; keep what was fetched on a local disk (cache_dir in storage_options=), read "
        "fewer columns, or fetch further ahead (read_ahead_bytes there)"
    ),
    "collate_fn": (
        "your functions (decode, transforms, collate_fn) are the limit; make them work on whole columns, or run them "
        "in processes (worker_type='process') where they hold the interpreter lock"
    ),
}

_FLAT = (
    *("epoch", "batches", "rows", "rows_per_second", "num_bytes", "files", "stored_bytes"),
    *("seconds_waiting", "seconds_total", "share_waiting", "servers"),
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SPAN = "enumerate(DataLoader)#TableLoader.__next__"
"""Profilers recognize the time of a DataLoader by this prefix."""

_LEAST_SECONDS = 60.0
_WARNED_SHARE = 0.25
_LEAST_TRAINED = 0.1


@dataclass(frozen=True, slots=True)
class Metrics(Counted):
    """The metrics of the newest iterator so far.

    Args:
        epoch: which.
        batches: batches that the trainer took.
        rows: rows in those batches.
        seconds_waiting: time that the trainer waited for a batch.
        seconds_total: time since the iterator began.
        workers: one entry per worker; workers run ahead of the trainer.
        servers: number of threads or processes that serve the workers.
        fetch: metrics of fetching from an object store; a copy that no longer changes.
        counts: what was counted of samples in the batches, including those copied to a device ahead of the trainer;
            None if rows are the samples.
        files: data files of which the trainer took rows, per epoch; None of a row store, of a mixture,
            and where rows are not counted.
    """

    epoch: int
    batches: int
    rows: int
    seconds_waiting: float
    seconds_total: float
    workers: tuple[LaneMetrics, ...]
    servers: int = 1
    fetch: FetchStats = field(default_factory=FetchStats)
    counts: SampleCounts | None = None
    files: int | None = None

    @classmethod
    def before(cls, epoch: int, lanes: int, servers: int) -> Self:
        """Return the metrics of an iterator that has not begun: zeros."""
        return cls(epoch, 0, 0, 0.0, 0.0, tuple(map(LaneMetrics, range(lanes))), servers)

    @property
    def stored_bytes(self) -> int | None:
        """The share of those files' bytes in the store, compressed, that the rows are; columns left out included."""
        if self.files is None:
            return None
        return sum(worker.stored_bytes or 0 for worker in self.workers)

    @property
    def num_bytes(self) -> int:
        """Bytes decoded by all workers."""
        return sum(worker.num_bytes for worker in self.workers)

    @property
    def rows_per_second(self) -> float:
        """Rows that the trainer took, divided by the time since the iterator began."""
        if self.seconds_total > 0:
            return self.rows / self.seconds_total
        return 0.0

    @property
    def share_waiting(self) -> float:
        """The share of the time that the trainer waited for batches, from 0 to 1."""
        if self.seconds_total > 0:
            return min(1.0, self.seconds_waiting / self.seconds_total)
        return 0.0

    @property
    def limit(self) -> Limit:
        """What limits the speed: "training" unless it waits a tenth of its time, else the workers' longest activity.

        >>> from torch_table_loader.engine.work.lane_work import LaneMetrics
        >>> lane = LaneMetrics(worker=0, rows=8, batches=1, num_bytes=64, seconds_working=5.0, seconds_collating=4.0)
        >>> Metrics(0, 1, 8, seconds_waiting=3.0, seconds_total=10.0, workers=(lane,)).limit
        'collate_fn'
        """
        if self.share_waiting < _WAITS:
            return "training"
        collating = sum(worker.seconds_collating for worker in self.workers)
        working = sum(worker.seconds_working for worker in self.workers)
        spent: dict[Limit, float] = {
            "decoding": working - collating - self.fetch.seconds_waiting,
            "network": self.fetch.seconds_waiting,
            "collate_fn": collating,
        }
        return max(spent, key=lambda limit: spent[limit])

    def advice(self) -> str:
        """Return what limits the speed, and what to change."""
        return f"training waited for data in {self.share_waiting:.0%} of the time: {_ADVICE[self.limit]}".format(
            servers=self.servers
        )

    def as_dict(self) -> dict[str, float]:
        """Return the numbers under flat names, as loggers take them; a worker's are like ``worker_0/rows``.

        Times are in seconds, sizes in bytes. What nobody knows is left out.
        """
        numbers: dict[str, float] = {name: value for name in _FLAT if (value := getattr(self, name)) is not None}
        numbers |= {f"fetch/{name}": value for name, value in asdict(self.fetch).items()}
        if (counts := self.counts) is not None:
            numbers |= {f"{counts.key}/{name}": value for name, value in asdict(counts).items() if value is not None}
        for worker in self.workers:
            own = {name: value for name, value in asdict(worker).items() if name != "worker" and value is not None}
            numbers |= {f"worker_{worker.worker}/{name}": value for name, value in own.items()}
        return numbers

    def after(self, earlier: Metrics) -> Metrics:
        """Add what the iterator had done before, with as many workers, when it changed its course."""
        return replace(
            self,
            batches=self.batches + earlier.batches,
            rows=self.rows + earlier.rows,
            seconds_waiting=self.seconds_waiting + earlier.seconds_waiting,
            workers=tuple(new + old for new, old in zip(self.workers, earlier.workers, strict=True)),
            fetch=FetchStats.sum_of([self.fetch, earlier.fetch]),
            counts=sum_of(each for each in (self.counts, earlier.counts) if each is not None),
            files=None if self.files is None or earlier.files is None else self.files + earlier.files,
        )

    def _repr_html_(self) -> str | None:
        """Show the numbers and the advice in a notebook."""
        first, *facts = self._lines()
        header = {"worker": "worker", "rows": "rows", "batches": "batches", "bytes": "decoded", "working": "working"}
        workers = [
            (f"worker {w.worker}", w.rows, w.batches, Size(w.num_bytes), f"{w.seconds_working:.2f} s")
            for w in self.workers
        ]
        return html_of(first, *facts, self.advice(), Table("", header, workers, bar="rows"))

    def __str__(self) -> str:
        """Return the numbers as a table."""
        first, *facts = self._lines()
        workers = [
            f"worker {w.worker}: {w.rows:,} rows, {w.batches:,} batches, {Size(w.num_bytes)}, "
            f"{w.seconds_working:.2f} s working"
            for w in self.workers
        ]
        return "\n  ".join((first, *workers, *facts))

    def _lines(self) -> list[str]:
        """Return lines on all workers together."""
        lines = [
            (
                f"epoch {self.epoch}: {self.rows:,} rows in {self.batches:,} batches, {self.seconds_total:.2f} s "
                f"({self.seconds_waiting:.2f} s waiting)"
            )
        ]
        if self.files is not None:
            lines.append(f"taken of {self.files:,} files: {Size(self.stored_bytes or 0)} stored")
        if self.counts is not None:
            lines.append(f"{self.counts.made}: {self.counts}")
        if (fetch := self.fetch).requests or fetch.cached_bytes:
            lines.append(
                f"fetched: {Size(fetch.num_bytes)} in {fetch.requests:,} requests, {fetch.retries:,} retries, "
                f"{fetch.hedges:,} hedges; {Size(fetch.cached_bytes)} from the disk cache; "
                f"{fetch.seconds_waiting:.2f} s waiting for bytes"
            )
        return lines


@dataclass(slots=True)
class Leg:
    """What was taken since the iterator began, or changed its course; one value, so that any thread may read it.

    Args:
        files: returns which files those rows are of, once asked.
        longest: steps of the rank that takes most; None if nobody knows.
        earlier: what the iterator had done before it changed its course.
    """

    position: Position
    plan: Steps
    files: Callable[[], PlannedFiles | None]
    counts: Counts
    longest: int | None
    earlier: Metrics | None = None
    batches: int = 0


class Progress:
    """How far an iterator has come. The loader keeps this, never the iterator, whose end must end its workers."""

    def __init__(self, position: Position, work: LaneWork, counts: Counts, began: float, *, resumed: bool) -> None:
        """Begin to count.

        Args:
            began: when, before the lanes did; as `time.perf_counter` says it.
            resumed: whether that was inside an epoch.
        """
        self.resumed = resumed
        self._servers = work.servers
        self._began = began
        self.leg = Leg(position, work.plan, cache(work.planned_files), counts, work.longest)

    def go_on(self, position: Position, work: LaneWork, counts: Counts) -> None:
        """Count on from a position that changed while batches were taken."""
        self.leg = Leg(position, work.plan, cache(work.planned_files), counts, work.longest, self.metrics())

    def now(self, ahead: int = 0) -> Position:
        """Return where the job is; where it was, if some batches were taken ahead since the leg began."""
        leg = self.leg
        taken = leg.position.stage.steps + max(0, leg.batches - ahead)
        return leg.position.after(taken, ended=leg.plan.counted and taken >= leg.plan.steps and leg.longest != taken)

    @property
    def left(self) -> int:
        """Batches that were not taken; 0 where nobody knows, or there is no end."""
        leg = self.leg
        known = leg.plan.counted and not leg.plan.endless
        if known:
            return max(0, leg.plan.steps - leg.position.stage.steps - leg.batches)
        return 0

    @property
    def seconds(self) -> tuple[float, float]:
        """How long the trainer waited for batches, and how long ago the iterator began."""
        earlier = 0.0 if self.leg.earlier is None else self.leg.earlier.seconds_waiting
        return earlier + self.leg.counts.waited, time.perf_counter() - self._began

    def metrics(self) -> Metrics:
        """Return what was done so far."""
        leg = self.leg
        plan, batches, begun = leg.plan, leg.batches, leg.position.stage.steps
        short = leg.counts.short if leg.counts.taken == batches else 0  # a device reads ahead
        rows = batches * plan.batch_size - short
        if plan.counted and not plan.endless:
            rows = plan.rows_before(begun + batches) - plan.rows_before(begun)
        held = None if leg.counts.made is None else leg.counts.made.rows_held
        rows = rows if held is None else held
        files, workers = None, [replace(lane) for lane in leg.counts.lanes]
        if (planned := leg.files()) is not None:
            files, taken = planned.taken(begun, begun + batches)
            for worker, own in zip(workers, taken, strict=True):
                worker.files, worker.stored_bytes = own
        since = Metrics(
            epoch=leg.position.epoch,
            batches=batches,
            rows=rows,
            seconds_waiting=leg.counts.waited,
            seconds_total=time.perf_counter() - self._began,
            workers=tuple(workers),
            servers=self._servers,
            fetch=replace(leg.counts.fetched),
            counts=leg.counts.made,
            files=files,
        )
        if leg.earlier is None:
            return since
        return since.after(leg.earlier)


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
    draw = progress_bar(label, show=options.show_progress, interval=interval, beside=beside, parts=parts)
    return iter(draw(batches, plan.steps - start if known else None))


def _batches_of(lanes: Sequence[LaneMetrics], lane: int) -> int:
    return lanes[lane].batches


def _megabytes_per_second(fetched: FetchStats, began: float) -> str:
    """Return how fast compressed bytes come from the store; an empty string if none do."""
    seconds = time.perf_counter() - began
    if fetched.num_bytes and seconds > 0:
        return f"{fetched.num_bytes / 1e6 / seconds:.1f} MB/s"
    return ""


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
    return total >= _LEAST_SECONDS and _WARNED_SHARE * total <= waiting <= (1 - _LEAST_TRAINED) * total
