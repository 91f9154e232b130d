"""What a loader has done, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace


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


__all__ = ["LaneMetrics", "Metrics"]
