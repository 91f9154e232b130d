"""What a loader has done: counted while it runs, and as a value."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch_table_loader.fetch.fetch_stats import FetchStats
from torch_table_loader.planning.pack_counts import PackCounts, sum_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_table_loader.engine.work.lane_work import LaneClock, LaneWork
    from torch_table_loader.engine.workers.lane_merger import ConsumerStats, LaneMerger
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.planning.steps import Steps


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """One worker's part.

    Args:
        worker: its number.
        rows: rows that it decoded.
        batches: batches that it made.
        num_bytes: bytes of those rows in the output form.
        seconds_working: time spent reading, decoding and in `collate_fn`.
    """

    worker: int
    rows: int
    batches: int
    num_bytes: int
    seconds_working: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the newest iterator has done so far.

    Args:
        epoch: which.
        batches: taken by the trainer.
        rows: in those batches.
        seconds_waiting: time that the trainer waited for a batch.
        seconds_total: time since the iterator began.
        workers: one entry a worker; they run ahead of the trainer.
        fetch: what was fetched from an object store; a copy that counts no further.
        packing: what packing made the batches of, those that are copied to a device ahead of the trainer included: its
            sequences, tokens and parts of documents; None where rows are not packed.
    """

    epoch: int
    batches: int
    rows: int
    seconds_waiting: float
    seconds_total: float
    workers: tuple[LaneMetrics, ...]
    fetch: FetchStats = field(default_factory=FetchStats)
    packing: PackCounts | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes decoded by all workers."""
        return sum(worker.num_bytes for worker in self.workers)

    def after(self, earlier: Metrics) -> Metrics:
        """Add what the iterator had done before, with as many workers, when it changed its course."""
        return replace(
            self,
            batches=self.batches + earlier.batches,
            rows=self.rows + earlier.rows,
            seconds_waiting=self.seconds_waiting + earlier.seconds_waiting,
            workers=tuple(
                LaneMetrics(
                    new.worker,
                    new.rows + old.rows,
                    new.batches + old.batches,
                    new.num_bytes + old.num_bytes,
                    new.seconds_working + old.seconds_working,
                )
                for new, old in zip(self.workers, earlier.workers, strict=True)
            ),
            fetch=FetchStats.sum_of([self.fetch, earlier.fetch]),
            packing=sum_of(each for each in (self.packing, earlier.packing) if each is not None),
        )

    def __str__(self) -> str:
        """Lay the numbers out as a table."""
        lines = [
            (
                f"epoch {self.epoch}: {self.rows:,} rows in {self.batches:,} batches, {self.seconds_total:.2f} s "
                f"({self.seconds_waiting:.2f} s waiting)"
            )
        ]
        lines += [
            f"  worker {w.worker}: {w.rows:,} rows, {w.batches:,} batches, {w.num_bytes:,} bytes, "
            f"{w.seconds_working:.2f} s working"
            for w in self.workers
        ]
        if self.packing is not None:
            lines.append(f"  packed: {self.packing}")
        if (fetch := self.fetch).requests or fetch.cached_bytes:
            lines.append(
                f"  fetched: {fetch.num_bytes:,} bytes in {fetch.requests:,} requests, {fetch.retries:,} retries, "
                f"{fetch.hedges:,} hedges; {fetch.cached_bytes:,} bytes from the disk cache; "
                f"{fetch.seconds_waiting:.2f} s waiting for bytes"
            )
        return "\n".join(lines)


@dataclass(slots=True)
class Leg:
    """What was taken since the iterator began, or changed its course; one value, so that any thread may read it.

    Args:
        position: where it began.
        plan: what the rank takes.
        longest: steps of the rank that takes most; None if nobody knows.
        clocks: what each lane has done.
        stats: what the consumer did.
        fetched: what was fetched for the lanes.
        batches: taken since; the iterator counts.
        earlier: what was done before.
    """

    position: Position
    plan: Steps
    longest: int | None
    clocks: Sequence[LaneClock]
    stats: ConsumerStats
    fetched: FetchStats
    batches: int
    earlier: Metrics | None


class Progress:
    """How far an iterator has come. The loader keeps this, never the iterator, whose end must end its workers."""

    def __init__(
        self,
        position: Position,
        work: LaneWork,
        merger: LaneMerger,
        longest: int | None,
        began: float,
        *,
        resumed: bool,
    ) -> None:
        """Begin to count.

        Args:
            position: where the iterator began.
            work: the rank's.
            merger: where the batches come from; only its notes are kept.
            longest: steps of the rank that takes most; None if nobody knows.
            began: when, before the lanes did; as `time.perf_counter` says it.
            resumed: whether that was inside an epoch.
        """
        self.resumed = resumed
        self._began = began
        self.leg = Leg(position, work.plan, longest, merger.clocks, merger.stats, merger.fetched, 0, None)

    def go_on(self, position: Position, work: LaneWork, merger: LaneMerger, longest: int | None) -> None:
        """Count on from a position that changed while batches were taken."""
        self.leg = Leg(position, work.plan, longest, merger.clocks, merger.stats, merger.fetched, 0, self.metrics())

    @property
    def position(self) -> Position:
        """Where the iterator began, or changed its course."""
        return self.leg.position

    def now(self) -> Position:
        """Return where the job is."""
        leg = self.leg
        taken = leg.position.stage.steps + leg.batches
        return leg.position.after(taken, ended=leg.plan.counted and taken >= leg.plan.steps and leg.longest != taken)

    @property
    def left(self) -> int:
        """Batches that were not taken; 0 where nobody knows, or there is no end."""
        leg = self.leg
        known = leg.plan.counted and not leg.plan.endless
        return max(0, leg.plan.steps - leg.position.stage.steps - leg.batches) if known else 0

    def metrics(self) -> Metrics:
        """Return what was done so far."""
        leg = self.leg
        plan, batches, begun = leg.plan, leg.batches, leg.position.stage.steps
        short = leg.stats.short if leg.stats.taken == batches else 0  # a device reads ahead
        rows = batches * plan.batch_size - short
        if plan.counted and batches and begun + batches == plan.steps:
            rows = plan.num_rows - min(begun, plan.steps) * plan.batch_size
        since = Metrics(
            epoch=leg.position.epoch,
            batches=batches,
            rows=rows,
            seconds_waiting=leg.stats.waited,
            seconds_total=time.perf_counter() - self._began,
            workers=tuple(
                LaneMetrics(worker, clock.rows, clock.batches, clock.num_bytes, clock.working)
                for worker, clock in enumerate(leg.clocks)
            ),
            fetch=replace(leg.fetched),
            packing=leg.stats.packed,
        )
        return since if leg.earlier is None else since.after(leg.earlier)
