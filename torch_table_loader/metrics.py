"""What a loader has done: counted while it runs, and as a value."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import LaneWork, Place
    from torch_table_loader.engine.turns import BatchesInTurn


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
    """

    epoch: int
    batches: int
    rows: int
    seconds_waiting: float
    seconds_total: float
    workers: tuple[LaneMetrics, ...]

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
        return "\n".join(lines)


class Progress:
    """How far an iterator has come. The loader keeps this, never the iterator, whose end must end its workers."""

    def __init__(
        self, cursor: Place, work: LaneWork, turns: BatchesInTurn, longest: int | None, began: float, *, resumed: bool
    ) -> None:
        """Begin to count.

        Args:
            cursor: where the iterator began.
            work: the rank's.
            turns: where the batches come from; only its notes are kept.
            longest: steps of the rank that takes most; None if nobody knows.
            began: when, before the lanes did; as `time.perf_counter` says it.
            resumed: whether that was inside an epoch.
        """
        self.resumed = resumed
        self._began = began
        self._earlier: Metrics | None = None
        self._count(cursor, work, turns, longest)

    def go_on(self, cursor: Place, work: LaneWork, turns: BatchesInTurn, longest: int | None) -> None:
        """Count on from a position that changed while batches were taken."""
        self._earlier = self.metrics()
        self._count(cursor, work, turns, longest)

    def _count(self, cursor: Place, work: LaneWork, turns: BatchesInTurn, longest: int | None) -> None:
        self.cursor = cursor
        self.batches = 0
        self._plan = work.plan
        self._longest = longest
        self._clocks = turns.clocks
        self._tally = turns.tally

    def now(self) -> Place:
        """Say where the job stands."""
        taken = self.cursor.stage.steps + self.batches
        plan = self._plan
        return self.cursor.after(taken, ended=plan.counted and taken >= plan.steps and self._longest != taken)

    @property
    def left(self) -> int:
        """Batches that were not taken; 0 where nobody knows, or there is no end."""
        plan = self._plan
        known = plan.counted and not plan.endless
        return max(0, plan.steps - self.cursor.stage.steps - self.batches) if known else 0

    def metrics(self) -> Metrics:
        """Say what was done so far."""
        plan = self._plan
        short = self._tally.short if self._tally.taken == self.batches else 0  # a device reads ahead
        rows = self.batches * plan.batch_size - short
        if plan.counted and self.batches and self.cursor.stage.steps + self.batches == plan.steps:
            rows = plan.num_rows - min(self.cursor.stage.steps, plan.steps) * plan.batch_size
        since = Metrics(
            epoch=self.cursor.epoch,
            batches=self.batches,
            rows=rows,
            seconds_waiting=self._tally.waited,
            seconds_total=time.perf_counter() - self._began,
            workers=tuple(
                LaneMetrics(worker, clock.rows, clock.batches, clock.num_bytes, clock.working)
                for worker, clock in enumerate(self._clocks)
            ),
        )
        return since if self._earlier is None else since.after(self._earlier)


__all__ = ["LaneMetrics", "Metrics", "Progress"]
