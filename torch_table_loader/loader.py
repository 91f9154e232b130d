"""The loader: a torch DataLoader whose batches come from the lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import DataLoader

from torch_table_loader.engine.job import progress_bar
from torch_table_loader.engine.processes import ProcessServer
from torch_table_loader.engine.threads import CallerServer, ThreadServer
from torch_table_loader.engine.turns import BatchesInTurn, LaneServer
from torch_table_loader.errors import ConfigError
from torch_table_loader.metrics import LaneMetrics, Metrics

if TYPE_CHECKING:
    from torch_table_loader.engine.job import Job
    from torch_table_loader.engine.work import EpochWork, LaneClock


UNCOUNTED = "the number of batches is not known: count_filtered=False gave the counting pass up"


class EpochDataset(Protocol):
    """What a loader needs of its dataset."""

    @property
    def job(self) -> Job:
        """The rank's share of the table."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Choose that epoch."""
        ...

    def __len__(self) -> int:
        """Batches of the epoch."""
        ...


class _EpochSampler:
    """Lightning and Accelerate call ``loader.sampler.set_epoch``; it forwards."""

    def __init__(self, dataset: EpochDataset) -> None:
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        self._dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class TableLoader(DataLoader[Any]):
    """Batches of a table, in an order that depends on neither threads nor processes.

    It is made by ``create_dataloader`` of a dataset.
    """

    def __init__(self, dataset: Any) -> None:
        """Serve a dataset's batches.

        Args:
            dataset: a `StructuredDataset`.
        """
        super().__init__(dataset, batch_size=None)
        object.__setattr__(self, "sampler", _EpochSampler(dataset))  # torch guards it against a plain assignment
        self._source: EpochDataset = dataset
        self._newest: Progress | None = None

    def __len__(self) -> int:
        """Batches of this rank in the epoch; TypeError where the caller gave the counting pass up."""
        return len(self._source)

    def __iter__(self) -> Any:
        """Begin the epoch."""
        batches = LoaderIterator(self._source)
        self._newest = batches.progress
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads."""
        self._source.set_epoch(epoch)

    def metrics(self) -> Metrics:
        """Say what the newest iterator has done."""
        if self._newest is None:
            raise ConfigError("metrics speak of an iterator, and none has begun; iterate the loader first")
        return self._newest.metrics()


class Progress:
    """How far an iterator has come. The loader keeps this, never the iterator, whose end must end its workers."""

    def __init__(self, work: EpochWork, clocks: Sequence[LaneClock]) -> None:
        """Begin to count.

        Args:
            work: the rank's.
            clocks: the server's, which go on.
        """
        self.batches = 0
        self.waited = 0.0
        self._epoch = work.epoch
        self._plan = work.plan
        self._clocks = clocks
        self._began = time.perf_counter()

    def metrics(self) -> Metrics:
        """Say what was done so far."""
        plan = self._plan
        rows = self.batches * plan.batch_size
        if plan.counted and self.batches == plan.steps:
            rows = plan.num_rows
        return Metrics(
            epoch=self._epoch,
            batches=self.batches,
            rows=rows,
            seconds_waiting=self.waited,
            seconds_total=time.perf_counter() - self._began,
            workers=tuple(
                LaneMetrics(worker, clock.rows, clock.batches, clock.num_bytes, clock.working)
                for worker, clock in enumerate(self._clocks)
            ),
        )


class LoaderIterator(Iterator[Any]):
    """One pass over an epoch. Leaving it ends its threads and processes."""

    def __init__(self, source: EpochDataset) -> None:
        """Plan the epoch and start the lanes.

        Args:
            source: the dataset.
        """
        job = source.job
        work = job.work(source.epoch)
        self._turns = BatchesInTurn(work, _server(job, work))
        self.progress = Progress(work, self._turns.clocks)
        self._steps = work.plan.steps if work.plan.counted else None
        self._next: Iterator[Any] = self._turns
        options = job.options
        if options.pin_memory or options.device is not None:
            self._next = map(_placer(options.device, pin=options.pin_memory), self._next)
        if options.show_progress:
            self._next = iter(progress_bar(f"epoch {work.epoch}", show=True)(self._next, self._steps))

    def __next__(self) -> Any:
        """Give the next batch."""
        batch = next(self._next)
        self.progress.batches += 1
        self.progress.waited = self._turns.waited
        return batch

    def __len__(self) -> int:
        """Batches of the epoch; TypeError where the caller gave the counting pass up."""
        if self._steps is None:
            raise TypeError(UNCOUNTED)
        return self._steps

    def close(self) -> None:
        """End threads and processes now."""
        self._turns.close()


def _server(job: Job, work: EpochWork) -> LaneServer:
    options = job.options
    begun = [0] * work.lanes
    if options.num_workers == 0:
        return CallerServer(work, begun)
    if options.worker_type == "thread":
        return ThreadServer(work, begun, job.servers, options.prefetch_batches)
    job.table.storage.close()
    return ProcessServer(work, begun, job.servers, _context(job))


def _context(job: Job) -> Any:
    """Choose how worker processes start: never by fork where planning started threads that a fork breaks."""
    given = job.options.multiprocessing_context
    if job.fork_safe:
        return given
    method = given if isinstance(given, str) or given is None else given.get_start_method()
    if method == "fork":
        raise ConfigError(
            'multiprocessing_context="fork" breaks the threads that this store\'s client has started; '
            'leave it out (forkserver is then used), or pass "spawn"'
        )
    return given or "forkserver"


def _placer(device: Any, *, pin: bool) -> Any:
    """Make a function that puts every tensor of a batch into page-locked memory and onto a device."""

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            placed = value.pin_memory() if pin else value
            return placed if device is None else placed.to(device, non_blocking=pin)
        if isinstance(value, dict):
            return {key: place(entry) for key, entry in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(place, value))
        if isinstance(value, list | tuple):
            return type(value)(map(place, value))
        return value

    return place


__all__ = ["LoaderIterator", "TableLoader"]
