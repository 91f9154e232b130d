"""The loader: a torch DataLoader whose batches come from the lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import islice
from multiprocessing import get_all_start_methods, get_start_method
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from torch.utils.data import DataLoader

from torch_table_loader.accelerated import EpochOfAccelerate, PreparedForAccelerate
from torch_table_loader.calling import warn_caller
from torch_table_loader.engine.carrying import twin_of
from torch_table_loader.engine.crew import Crew
from torch_table_loader.engine.device import check_placing, moved
from torch_table_loader.engine.lengths import steps_of
from torch_table_loader.engine.processes import ProcessServer
from torch_table_loader.engine.progress import progress_bar
from torch_table_loader.engine.row_job import RowJob
from torch_table_loader.engine.threads import CallerServer, ThreadServer
from torch_table_loader.engine.turns import BatchesInTurn, LaneServer
from torch_table_loader.errors import ConfigError
from torch_table_loader.metrics import Metrics, Progress
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import LaneWork, Place, RankShare


class EpochDataset(Protocol):
    """What a loader needs of its dataset."""

    @property
    def job(self) -> RankShare[Any]:
        """The rank's share of the table."""
        ...

    @property
    def cursor(self) -> Place:
        """Where the next iterator begins."""
        ...

    def begin(self) -> Place:
        """Take that position; one that was loaded serves once."""
        ...

    def note_begun(self, epoch: int) -> None:
        """Note that an iterator gives its first batch of an epoch."""
        ...

    def resume(self, state: Mapping[str, Any]) -> tuple[RankShare[Any], Any]:
        """Find the job that goes on from a state, and where."""
        ...

    def restore(self, cursor: Any, job: Any) -> None:
        """Begin the next iterator at a position."""
        ...

    def iterate(self, cursor: Any, loader: TableLoader) -> LoaderIterator:
        """Begin an iterator for a loader."""
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
        self._crew = Crew()
        if self._source.job.options.worker_type == "process":
            _check_processes(self._source.job)  # what cannot be is refused here, not in the first epoch
        check_placing(self._source.job.options.device, pin=self._source.job.options.pin_memory)
        if isinstance(self._source.job, RowJob):  # which may have been made for a mixture alone, until now
            self._source.job.warn_of_uneven_steps()

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
        batches = self._source.iterate(cursor, self)
        self._newest = batches.progress
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Return what the job has done, as plain data that is the same on every rank.

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

    def _cursor(self) -> Place:
        """Where the newest iterator stands, unless the next one was told to begin elsewhere."""
        ahead = self._source.cursor
        if self._newest is None or ahead.epoch != self._newest.cursor.epoch:
            return ahead
        return self._newest.now()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads."""
        self._source.set_epoch(epoch)

    def rows_of(self, step: int) -> list[RowSpan | LiveSpan | SourceRow]:
        """Return which rows batch `step` of the current epoch delivers on this rank, without reading data.

        Args:
            step: counted as the state counts: from 0 at the epoch's start, or where topology or weights last changed.

        Returns:
            `RowSpan` and `LiveSpan`, of a mixture `SourceRow`, in delivery order, padding left out.

        Raises:
            ConfigError: there is no such step, or rows are not counted.
        """
        return list(self._source.job.rows_of(self._cursor(), step))

    def metrics(self) -> Metrics:
        """Return what the newest iterator has done."""
        if self._newest is None:
            raise ConfigError("metrics speak of an iterator, and none has begun; iterate the loader first")
        return self._newest.metrics()


class LoaderIterator(Iterator[Any]):
    """One pass over an epoch. Leaving it ends its threads and processes.

    Threads may share it: each batch goes to one of them, the end to all, and so does an error.
    """

    def __init__(self, job: RankShare[Any], cursor: Place, loader: TableLoader) -> None:
        """Plan the epoch and start the lanes.

        Args:
            job: the rank's share of the table.
            cursor: where to begin.
            loader: whose newest iterator this is.
        """
        began = time.perf_counter()
        self._job = job
        self._loader = loader
        self._entry: EpochOfAccelerate | None = None
        self._turn = threading.RLock()
        self._error: BaseException | None = None
        self._told: WeakSet[threading.Thread] = WeakSet()
        """The threads to which the error was raised."""
        work, longest = self._start(cursor)
        resumed = cursor != job.start(cursor.epoch)
        self.progress = Progress(cursor, work, self._turns, longest, began, resumed=resumed)

    def go_on(self, cursor: Place) -> None:
        """Leave what was read ahead, and go on at another position; the caller has the turn."""
        self._turns.close()
        work, longest = self._start(cursor)
        self.progress.go_on(cursor, work, self._turns, longest)
        if self._loader._newest is self.progress:
            self._loader.remainder = _remainder(self._plan)

    def _start(self, cursor: Place) -> tuple[LaneWork, int | None]:
        job, options, start = self._job, self._job.options, cursor.stage.steps
        work = job.work(cursor)
        self._turns = BatchesInTurn(work, _server(job, work, start, self._loader._crew), start)
        self._plan = work.plan
        self._ahead: list[Any] = []
        self._next: Iterator[Any] = self._turns
        device = self._loader._device_of_accelerate if options.device is None else options.device
        if options.pin_memory or device is not None:
            self._next = moved(self._turns, device, pin=options.pin_memory)
        if options.show_progress:
            left = work.plan.steps - start if work.plan.counted and not work.plan.endless else None
            self._next = iter(progress_bar(f"epoch {work.epoch}", show=True)(self._next, left))
        return work, job.planned(cursor).longest

    def __next__(self) -> Any:
        """Return the next batch."""
        with self._turn:
            try:
                entry = self._entry or self._enter()
                batch = self._ahead.pop() if self._ahead else next(self._next)
                self.progress.leg.batches += 1
                if entry.runs and self._is_over():
                    self._loader.end_of_dataloader = True
            except StopIteration:
                entry.leave()
                self._raise_again()
                raise
            except BaseException as error:
                self._fail(error)
                raise
            return batch

    def _fail(self, error: BaseException) -> None:
        """End with an error that this thread raises now, and each other that asks for a batch later."""
        self._error = twin_of(error)  # the error itself would keep the caller's frames
        self._told.add(threading.current_thread())
        self.close()

    def _raise_again(self) -> None:
        """Raise the error that ended the iterator, where this thread was not told it."""
        if self._error is not None and threading.current_thread() not in self._told:
            self._told.add(threading.current_thread())
            raise twin_of(self._error)

    def _enter(self) -> EpochOfAccelerate:
        """Follow an epoch that was set since ``iter()``, and say to Accelerate that the epoch begins."""
        source = self._loader._source
        if self._loader._newest is self.progress and source.cursor.epoch != self.progress.cursor.epoch:
            self.go_on(source.begin())
        source.note_begun(self.progress.cursor.epoch)
        self._entry = EpochOfAccelerate(self._loader, _remainder(self._plan))
        return self._entry

    def _is_over(self) -> bool:
        """Look whether the last batch was given; where rows are not counted one is read ahead for it."""
        if self._plan.counted:
            return not self._plan.endless and not self.progress.left
        self._ahead.extend(islice(self._next, 1))
        return not self._ahead

    def __len__(self) -> int:
        """Batches of the epoch; TypeError where the caller gave the counting pass up."""
        return steps_of(self._plan)

    def close(self) -> None:
        """End threads and processes now, and let go of batches on their way to a device."""
        self._turns.close()
        self._next = iter(())


def _remainder(plan: object) -> int:
    """Count the real rows of the tail step, where gathering the ranks' batches puts its padding at the end; else −1."""
    return plan.remainder if isinstance(plan, GlobalBatches) and plan.topology.even_ranks == "pad" else -1


def _server(job: RankShare[Any], work: LaneWork, start: int, crew: Crew) -> LaneServer:
    options = job.options
    if options.num_workers == 0:
        return CallerServer(work, start, options.prefetch_batches)
    if options.worker_type == "thread":
        return ThreadServer(work, start, crew, job.servers, options.prefetch_batches)
    job.close_clients()
    return ProcessServer(work, start, job.servers, _context(job))


def _context(job: RankShare[Any]) -> Any:
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


def _check_processes(job: RankShare[Any]) -> None:
    """Refuse a start method that the store cannot bear, and a `collate_fn` that cannot cross to a new process."""
    given, collate_fn = _context(job), job.options.collate_fn
    given = given if given is not None else get_start_method(allow_none=True) or get_all_start_methods()[0]
    method = given if isinstance(given, str) else given.get_start_method()
    if job.options.num_workers == 0 or collate_fn is None or method == "fork":
        return
    try:
        ForkingPickler(BytesIO()).dump(collate_fn)
    except RuntimeError:  # a lock or queue of multiprocessing, which pickles only while a process starts
        return
    except (PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"collate_fn must pickle to reach worker processes that start by {method}, and {collate_fn!r} does not: "
            f'{error}; make it a function of a module, or pass worker_type="thread"'
        ) from error
