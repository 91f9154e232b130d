"""The loader: a torch DataLoader whose batches come from the lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import DataLoader

from torch_table_loader.accelerated import EpochOfAccelerate, PreparedForAccelerate
from torch_table_loader.engine.calling import warn_caller
from torch_table_loader.engine.processes import ProcessServer
from torch_table_loader.engine.progress import progress_bar
from torch_table_loader.engine.threads import CallerServer, ThreadServer
from torch_table_loader.engine.turns import BatchesInTurn, LaneServer
from torch_table_loader.errors import ConfigError
from torch_table_loader.metrics import Metrics, Progress
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan

if TYPE_CHECKING:
    from torch_table_loader.engine.job import Job
    from torch_table_loader.engine.work import EpochWork
    from torch_table_loader.planning.cursor import Cursor


UNCOUNTED = "the number of batches is not known: count_filtered=False gave the counting pass up"


class EpochDataset(Protocol):
    """What a loader needs of its dataset."""

    @property
    def job(self) -> Job:
        """The rank's share of the table."""
        ...

    @property
    def cursor(self) -> Cursor:
        """Where the next iterator begins."""
        ...

    def begin(self) -> Cursor:
        """Take that position; one that was loaded serves once."""
        ...

    def note_begun(self, epoch: int) -> None:
        """Note that an iterator gives its first batch of an epoch."""
        ...

    def resume(self, state: Mapping[str, Any]) -> tuple[Job, Cursor]:
        """Find the job that goes on from a state, and where."""
        ...

    def restore(self, cursor: Cursor, job: Job) -> None:
        """Begin the next iterator at a position."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator."""
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


class TableLoader(PreparedForAccelerate, DataLoader[Any]):
    """Batches of a table, in an order that depends on neither threads nor processes.

    It is made by ``create_dataloader`` of a dataset. Frameworks that wrap loaders find that this one needs no wrapper.
    """

    def __init__(self, dataset: Any, *, sampler: None = None, batch_sampler: None = None) -> None:  # noqa: ARG002
        """Serve a dataset's batches.

        Args:
            dataset: a `StructuredDataset`.
            sampler: nothing; Lightning says so when it makes the loader of a prediction anew.
            batch_sampler: nothing, too.
        """
        super().__init__(dataset, batch_size=None)
        object.__setattr__(self, "sampler", _EpochSampler(dataset))  # torch guards it against a plain assignment
        self._source: EpochDataset = dataset
        self._newest: Progress | None = None
        if self._source.job.options.worker_type == "process":
            _context(self._source.job)  # what the store cannot bear is refused here, not in the first epoch

    def __len__(self) -> int:
        """Batches of this rank in the epoch; TypeError where the caller gave the counting pass up."""
        return len(self._source)

    def __iter__(self) -> Any:
        """Begin the epoch, or go on where a state that was loaded stands.

        Until it gives its first batch, the newest iterator follows `set_epoch`, which Lightning calls after ``iter()``.
        """
        cursor, before = self._source.begin(), self._newest
        if before is not None and before.resumed and before.left and cursor.epoch > before.cursor.epoch:
            warn_caller(
                f"epoch {before.cursor.epoch}, which was resumed, was left with {before.left} batches to go; a trainer "
                "that counts steps itself (Lightning, the Hugging Face Trainer) ends it too early where fewer ranks "
                "had begun it"
            )
        return LoaderIterator(self, cursor)

    def state_dict(self) -> dict[str, Any]:
        """Say what the job has done, as plain data that is the same on every rank.

        It speaks of the newest iterator (what the trainer took, never what was read ahead), or of the position at
        which the next one begins, where that was loaded or set since.

        Returns:
            Ints, strings and lists: JSON-able, and loadable under ``torch.load(weights_only=True)``.
        """
        return self._source.job.state(self._cursor())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a job stood, on any number of ranks and workers; takes effect at the next ``iter()``.

        Args:
            state: what `state_dict` returned on any rank.

        Raises:
            ResumeError: it speaks of another table or other options; names what differs.
        """
        job, cursor = self._source.resume(state)
        self._source.restore(cursor, job)
        self._newest = None

    def _cursor(self) -> Cursor:
        """Where the newest iterator stands, unless the next one was told to begin elsewhere."""
        ahead = self._source.cursor
        if self._newest is None or ahead.epoch != self._newest.cursor.epoch:
            return ahead
        return self._newest.now()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads."""
        self._source.set_epoch(epoch)

    def rows_of(self, step: int) -> list[RowSpan | LiveSpan]:
        """Say which rows batch `step` of the current epoch delivers on this rank, without reading data.

        Args:
            step: counted as the state counts: from 0 at the epoch's start, or where the topology last changed.

        Returns:
            `RowSpan` and `LiveSpan` in delivery order, padding left out.

        Raises:
            ConfigError: there is no such step, or rows are not counted.
        """
        return list(self._source.job.rows_of(self._cursor(), step))

    def metrics(self) -> Metrics:
        """Say what the newest iterator has done."""
        if self._newest is None:
            raise ConfigError("metrics speak of an iterator, and none has begun; iterate the loader first")
        return self._newest.metrics()


class LoaderIterator(Iterator[Any]):
    """One pass over an epoch. Leaving it ends its threads and processes."""

    def __init__(self, loader: TableLoader, cursor: Cursor) -> None:
        """Plan the epoch and start the lanes.

        Args:
            loader: whose newest iterator this becomes.
            cursor: where to begin.
        """
        self._loader = loader
        self._entry: EpochOfAccelerate | None = None
        self._ahead: list[Any] = []
        self._start(cursor)

    def _start(self, cursor: Cursor) -> None:
        began = time.perf_counter()
        job = self._loader._source.job
        work = job.work(cursor)
        start = cursor.stage.steps
        self._turns = BatchesInTurn(work, _server(job, work, start), start)
        resumed = cursor != job.start(cursor.epoch)
        self.progress = Progress(cursor, work, self._turns, job.planned(cursor).longest, began, resumed=resumed)
        self._steps = work.plan.steps if work.plan.counted else None
        self._remainder = _remainder(work.plan)
        self._next: Iterator[Any] = self._turns
        options = job.options
        device = self._loader._device_of_accelerate if options.device is None else options.device
        if options.pin_memory or device is not None:
            self._next = map(_placer(device, pin=options.pin_memory), self._next)
        if options.show_progress:
            left = None if self._steps is None else self._steps - start
            self._next = iter(progress_bar(f"epoch {work.epoch}", show=True)(self._next, left))
        self._loader._newest = self.progress

    def __next__(self) -> Any:
        """Give the next batch."""
        entry = self._enter() if self._entry is None else self._entry
        try:
            batch = self._ahead.pop() if self._ahead else next(self._next)
        except StopIteration:
            entry.leave()
            raise
        if entry.runs and self._steps is None:
            self._ahead.extend(islice(self._next, 1))
        self.progress.batches += 1
        if self._has_given_all(peeked=entry.runs):
            self._loader.end_of_dataloader = True
        return batch

    def _enter(self) -> EpochOfAccelerate:
        """Follow an epoch that was set since ``iter()``, and say to Accelerate that the epoch begins."""
        source = self._loader._source
        if self._loader._newest is self.progress and source.cursor.epoch != self.progress.cursor.epoch:
            self.close()
            self._start(source.begin())
        source.note_begun(self.progress.cursor.epoch)
        self._entry = EpochOfAccelerate(self._loader, self._remainder)
        return self._entry

    def _has_given_all(self, *, peeked: bool) -> bool:
        if self._steps is None:
            return peeked and not self._ahead
        return self.progress.cursor.stage.steps + self.progress.batches >= self._steps

    def __len__(self) -> int:
        """Batches of the epoch; TypeError where the caller gave the counting pass up."""
        if self._steps is None:
            raise TypeError(UNCOUNTED)
        return self._steps

    def close(self) -> None:
        """End threads and processes now."""
        self._turns.close()


def _remainder(plan: object) -> int:
    """Count the real rows of the tail step, where gathering the ranks' batches puts its padding at the end; else −1."""
    return plan.remainder if isinstance(plan, GlobalBatches) and plan.topology.even_ranks == "pad" else -1


def _server(job: Job, work: EpochWork, start: int) -> LaneServer:
    options = job.options
    if options.num_workers == 0:
        return CallerServer(work, start)
    if options.worker_type == "thread":
        return ThreadServer(work, start, job.servers, options.prefetch_batches)
    job.table.storage.close()
    return ProcessServer(work, start, job.servers, _context(job))


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
