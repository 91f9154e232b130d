"""The loader: a torch DataLoader whose batches come from the lanes."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeAlias, cast

import pyarrow as pa
from torch.autograd import profiler
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import TypeVar

from torch_table_loader.engine.machine import threads_of_lanes
from torch_table_loader.engine.workers.choice import Servers, check_processes, executor_of
from torch_table_loader.engine.workers.lane_merger import LaneMerger
from torch_table_loader.engine.workers.pickling import twin_of
from torch_table_loader.errors import ConfigError
from torch_table_loader.fact_tables import Table, html_of
from torch_table_loader.forks import OfProcess
from torch_table_loader.messages import warn_caller
from torch_table_loader.metrics import Metrics, Progress, Watch, in_span, with_bars
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
from torch_table_loader.position import (
    EpochSampler,
    JobPosition,
    NamedColumns,
    no_single_rows,
    refuse_dividing,
    refuse_stacking,
)
from torch_table_loader.prepared import EpochOfAccelerate, PreparedForAccelerate
from torch_table_loader.sizes import sizes
from torch_table_loader.system import as_out_of_memory

if TYPE_CHECKING:
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import Position

Batch: TypeAlias = dict[str, Any]
"""A batch as ``output_format="torch"`` gives it: a tensor by column, or a list where no tensor can hold the values."""

D_co = TypeVar("D_co", bound=Dataset[Any], default=Dataset[Any], covariant=True)
B_co = TypeVar("B_co", default=Any, covariant=True)  # a `Batch`, or what `collate_fn` returns


_OVER: Any = object()


class _InSamples(IterableDataset[Any]):
    """A dataset as `TableLoader.dataset` shows it: it is that dataset, but its length counts samples, as torch's do.

    Training scripts divide by ``len(loader.dataset)``.
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

    def __len__(self) -> int:
        """Return the rows, or sequences, of an epoch on all ranks; the steps, where another DataLoader wraps this."""
        asking = sys._getframe(1)
        refuse_dividing(self._dataset, asking)
        if asking.f_code is DataLoader.__len__.__code__:
            return len(self._dataset)
        samples: int = self._dataset._position.num_samples
        return samples

    @property  # type: ignore[misc]  # isinstance asks it, and nobody sets it
    def __class__(self) -> type:
        """The dataset's class."""
        return type(self._dataset)

    def __getattr__(self, name: str) -> Any:
        """Return what the dataset has."""
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Give the dataset another value."""
        setattr(self._dataset, name, value)

    def __iter__(self) -> Iterator[Any]:
        """Iterate the dataset."""
        refuse_stacking(sys._getframe(1).f_locals)
        return iter(self._dataset)

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse single rows, as the dataset does."""
        raise no_single_rows(self._dataset, index)

    def __contains__(self, name: object) -> bool:
        """Return whether the dataset has a column."""
        return name in self._dataset

    def __repr__(self) -> str:
        """Return the dataset's own summary."""
        return repr(self._dataset)

    def __eq__(self, other: object) -> bool:
        """Return whether both are of the same dataset."""
        return self._dataset is getattr(other, "_dataset", other)

    def __hash__(self) -> int:
        """Return the dataset's own hash."""
        return hash(self._dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the dataset."""
        return _InSamples, (self._dataset,)


class TableLoader(NamedColumns, PreparedForAccelerate, DataLoader[B_co], Generic[D_co, B_co]):
    """A DataLoader of the batches of a table, in an order that depends on neither threads nor processes.

    A dataset's ``create_dataloader`` creates it. Frameworks that wrap loaders see that this one needs no wrapper.
    """

    dataset: D_co
    """The dataset whose batches these are; its ``len`` counts the rows of an epoch on all ranks, as torch's do."""

    def __init__(self, dataset: D_co, *, sampler: None = None, batch_sampler: None = None) -> None:  # noqa: ARG002
        """Serve a dataset's batches.

        Args:
            dataset: a `StructuredDataset`.
            sampler: must be None; Lightning passes it when it recreates a loader for prediction.
            batch_sampler: must be None, too.
        """
        ours: Any = dataset
        super().__init__(ours if type(ours) is _InSamples else cast("D_co", _InSamples(ours)), batch_size=None)
        self._position: JobPosition = ours._position
        self._servers = Servers()
        self._iterators: weakref.WeakSet[LoaderIterator[B_co]] = weakref.WeakSet()
        self._watch = Watch()
        object.__setattr__(self, "sampler", EpochSampler(self._position))  # torch guards it against assignment
        job = self._position.job
        if job.options.processes:
            check_processes(job)  # what cannot work is refused here, not in the first epoch
        if job.options.device is not None:
            from torch_table_loader.engine.device import check_device

            check_device(job.options.device)
        self._position.before_reading()

    @property
    def options(self) -> LoaderOptions:
        """The options: `batch_size`, `num_workers`, `drop_last` and the others.

        The DataLoader attributes of the same names tell torch, and frameworks that make new loaders from them, not to
        batch and not to start workers.
        """
        return self._position.job.options

    def __repr__(self) -> str:
        """Return a summary of what is read."""
        return f"<{type(self).__name__} of {self.dataset.__class__.__name__}: {self._position.summary}>"

    def _repr_html_(self) -> str | None:
        """Return the summary for a notebook."""
        kinds = [("loader", type(self).__name__), ("dataset", self.dataset.__class__.__name__)]
        return html_of(Table("", {"fact": "", "value": ""}, [*kinds, *self._position.facts.items()]))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the iterators, which belong to this process."""
        return {name: value for name, value in vars(self).items() if name != "_iterators"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start without iterators."""
        vars(self).update(state, _iterators=weakref.WeakSet())

    def __len__(self) -> int:
        """Return the steps of the epoch (with `epochs`, of all epochs of the iteration), taken and to come.

        Steps that were taken on other ranks count as those of these ranks. TypeError if it is unknown or endless.
        """
        return self._position.num_steps

    @property
    def remaining(self) -> int:
        """Batches of ``len(loader)`` that this rank has not taken where `state_dict` stands; raises as ``len`` does.

        They are the rest of the newest iteration or, if a place was loaded or set since, all that the next one gives.
        """
        return self._position.remaining

    def __iter__(self) -> LoaderIterator[B_co]:  # type: ignore[override]  # torch names a class of its own
        """Begin the epoch, or continue at the position of a loaded state.

        Until its first batch, the newest iterator follows `set_epoch`, which Lightning calls after ``iter()``.
        """
        start, before = self._position.begin(), self._position.newest
        if (
            before is not None
            and before.resumed
            and before.left
            and start.epoch > (left_epoch := before.leg.position.epoch)
        ):
            warn_caller(
                f"the resumed epoch {left_epoch} was left with {before.left} batches to go; a trainer that "
                "counts steps itself (Lightning, the Hugging Face Trainer) ends such an epoch too early if it was "
                "begun on fewer ranks: see the guide to frameworks for its callback or mixin"
            )
        batches: LoaderIterator[B_co] = LoaderIterator(start, self)
        self._position.newest = batches.progress
        self._iterators.add(batches)
        return batches

    def close(self) -> None:
        """End the threads and processes of all iterators now, and close the clients of stores.

        Running iterators yield no more batches. You can iterate the loader again, from its last position.
        """
        for batches in list(self._iterators):
            batches.close()
        self._servers.shut_down()
        self._position.job.close_clients()

    def __enter__(self) -> Self:
        """Return the loader, which is closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the loader."""
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the job, as plain data that is the same on every rank.

        It is the position of the newest iterator (what the trainer took, never what was read ahead). If a position was
        loaded or set since, it is that position, where the next iterator begins.

        Returns:
            Ints, strings and lists, which JSON and ``torch.load(weights_only=True)`` take.
        """
        return self._position.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, on any number of ranks and workers; takes effect at the next ``iter()``.

        Args:
            state: what `state_dict` returned on any rank.

        Raises:
            ResumeError: the state belongs to another table or other options; the error names what differs.
        """
        self._position.load(state)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator."""
        self._position.set_epoch(epoch)

    def seek(
        self,
        *,
        epoch: int | None = None,
        step: int | None = None,
        sample: int | None = None,
        fraction: float | None = None,
        file: str | int | None = None,
    ) -> int:
        """Make the next iterator begin inside an epoch, without reading; make the same call on every rank.

        Args:
            epoch: number of the epoch; None: the next one.
            step: number of batches of this rank to skip.
            sample: number of rows (with `pack`, sequences) of all ranks to skip; rounded down to whole steps.
            fraction: share of the epoch's steps to skip, from 0 to 1; rounded down.
            file: with `batch_by`="file", the name of the file to begin with, as `current_file` gives it; with several
                ranks and workers, the first to reach the file begins with it. Or a number: each rank begins with its
                own file of that number in the epoch's order, from 0, as ONNX Runtime's ``InitializeDataSetIndex`` does.

        Returns:
            The step at which the next iterator begins; 0 for the number of a file, since the files that are left are
            dealt anew.

        Raises:
            ConfigError: more than one of step, sample, fraction and file is given; the position is after the end of the
                epoch; the epoch does not deliver the file; `file` is given without `batch_by`="file", or `sample` with
                it.
            TypeError: `fraction` is given for an epoch of unknown length, or without an end.
        """
        return self._position.seek_place(epoch, file, step=step, sample=sample, fraction=fraction)

    def skip(self, batches: int) -> None:
        """Leave out the next global batches, as after a spike of the loss; make the same call on every rank.

        The job goes on as if it had taken them, which states record. A running iterator goes on after them at once.

        Args:
            batches: how many, each as large as a step of the optimizer. They may reach into the next epoch of the
                same iteration; see the option `epochs`.

        Raises:
            ConfigError: fewer are left.
        """
        for running in self._iterators:
            if running.is_of(self._position.newest):
                running.skip(batches)
                return
        self._position.skip(batches)

    def rows_of(self, step: int) -> list[RowSpan | LiveSpan | SourceRow]:
        """Return which rows batch `step` of the current epoch delivers on this rank, without reading data.

        Of packed sequences these are the documents under each; only a packed stream reads the step's row groups for it.

        Args:
            step: counted as in the state: from 0 at the epoch's start, or at the last change of topology, weights or
                sequence length; with ``shuffle="rows"``, whose states know no steps, also at a loaded state.

        Returns:
            `RowSpan` and `LiveSpan`, for a mixture `SourceRow`, in the order of delivery, without padding.

        Raises:
            ConfigError: the step does not exist, or rows are not counted.
        """
        return list(self._position.job.rows_of(self._position.now, step))

    @property
    def current_file(self) -> str | None:
        """The name of the newest batch's file, relative to the table's root; with ``batch_by="file"``.

        None before the first batch, and after loading a state of a job of another shape. ConfigError without
        ``batch_by``.
        """
        return self._position.job.files("current_file").newest(self._position.now)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export an iteration as an Arrow stream, so that DuckDB, polars, pandas and pyarrow can read it.

        Args:
            requested_schema: schema that the reader prefers; see the Arrow PyCapsule interface.

        Raises:
            ConfigError: batches are not record batches.
        """
        options = self._position.job.options
        if options.output_format != "arrow" or options.collate_fn is not None:
            raise ConfigError(
                f"an Arrow stream has record batches, and this loader gives output_format={options.output_format!r}"
                f'{"" if options.collate_fn is None else " through collate_fn"}; pass output_format="arrow" and no '
                "collate_fn"
            )
        schema = self._position.job.schema
        return pa.RecordBatchReader.from_batches(schema, iter(self)).__arrow_c_stream__(requested_schema)

    def metrics(self) -> Metrics:
        """Return the metrics of the newest iterator; see `Metrics`. Before the first one, all numbers are 0."""
        position = self._position
        if position.newest is not None:
            return position.newest.metrics()
        lanes = position.job.topology.lanes
        return Metrics.before(position.epoch, lanes, threads_of_lanes(lanes))


class LoaderIterator(Iterator[B_co]):
    """An iterator over an epoch. Leaving the loop ends its threads and processes.

    Threads may share it: each batch goes to one of them, and the end, or an error, to all of them.
    """

    def __init__(self, start: Position, loader: TableLoader[Dataset[Any], B_co]) -> None:
        """Plan the epoch and start the lanes.

        Args:
            loader: the loader; this becomes its newest iterator.
        """
        began = time.perf_counter()
        self._position = loader._position
        self._job = job = loader._position.job
        self._asked, self._changes = job.asked, job.asked.changes
        self._loader = loader
        self._entry: EpochOfAccelerate | None = None
        self._turn = OfProcess(threading.RLock)
        self._is_over = False
        self._watched_batches = sizes().watched_batches
        self._error: BaseException | None = None
        self._raised_in: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """The threads in which the error was raised."""
        work = self._start(start)
        resumed = start != job.start(start.epoch)
        self.progress = Progress(start, work, self._merger.counts, began, resumed=resumed)

    def go_on(self, position: Position) -> None:
        """Drop what was read ahead, and continue at another position; the caller holds the lock."""
        self._merger.close()
        work = self._start(position)
        self.progress.go_on(position, work, self._merger.counts)
        if self._position.newest is self.progress:
            self._loader.remainder = self._plan.real_at_end

    def is_of(self, progress: Progress | None) -> bool:
        """Whether this iterator has such a progress, and is not over, nor to be left for another epoch."""
        own = self.progress is progress and not self._is_over
        return own and self._position.epoch == self.progress.leg.position.epoch

    def skip(self, batches: int) -> None:
        """Go on after some global batches; see `TableLoader.skip`."""
        with self._turn.own:
            self._position.skip(batches)
            self._position.newest = self.progress
            self.go_on(self._position.begin())

    def _start(self, position: Position) -> LaneWork:
        job, options, start = self._job, self._job.options, position.stage.steps
        work = job.work(position)
        self._merger = LaneMerger(work, executor_of(job, work, start, self._loader._servers), start)
        self._plan = work.plan
        self._next: Iterator[Any] = self._merger.batches
        device = options.device
        if device is None:
            device = self._loader._device_of_accelerate
        if device is not None:
            from torch_table_loader.engine.device import moved

            self._next = moved(self._merger.batches, device)
        if options.show_progress:
            self._next = with_bars(self._next, work, self._merger.counts, start, options)
        self._source = self._next
        return work

    def __next__(self) -> B_co:
        """Return the next batch."""
        with self._turn.own:
            try:
                entry = self._entry or self._enter()
                if self._changes != self._asked.changes and not self._is_over:
                    self._follow_changes()
                if profiler._is_profiler_enabled:
                    batch = in_span(self._take)
                elif (batch := next(self._next, _OVER)) is _OVER:
                    batch = self._take()
                leg = self.progress.leg
                leg.batches = batches = leg.batches + 1
                if batches % self._watched_batches == 1:
                    self._loader._watch.look(self.progress)
                if entry.runs and self._was_last():
                    self._loader.end_of_dataloader = True
            except StopIteration:
                if not self._is_over:
                    self._loader._watch.epoch_ended(self.progress)
                self._is_over = True
                entry.leave()
                self._raise_again()
                raise
            except BaseException as error:
                own = not self._job.options.calls_functions  # what the caller's functions raise is raised as it is
                refused = as_out_of_memory(error, "the next batch") if own else None
                self._fail(refused or error)
                if refused is not None:
                    raise refused from error
                raise
            return batch  # type: ignore[no-any-return]

    def _take(self) -> Any:
        """Return the next batch, from the next epoch if the iteration continues with it."""
        while True:
            try:
                return next(self._next)
            except StopIteration:
                if self._is_over or not (self._begin_next_stage() or self._begin_next_epoch()):
                    raise

    def _begin_next_stage(self) -> bool:
        """Continue with sequences of the next length, if the epoch has any."""
        following = self._job.walk.following(self.progress.leg.position)
        if following is None:
            return False
        self._job.enter(self.progress.now(), following)
        self.go_on(following)
        return True

    def _begin_next_epoch(self) -> bool:
        """Continue with the next epoch, if the iteration should; otherwise the next iterator begins with it."""
        position, options, ended = self._position, self._job.options, self.progress.leg.position
        is_newest = position.newest is self.progress and position.epoch == ended.epoch
        if options.epochs is None or not is_newest:
            return False
        if options.epochs == "forever" and not self.progress.leg.batches and ended == self._job.start(ended.epoch):
            raise ConfigError(
                f'epochs="forever" never gives a batch on rank {self._job.rank}, which has no batch in an epoch; '
                "make batches or splits smaller"
            )
        behind = next(position.job.walk.starts_behind(ended.epoch), None)
        position.set_epoch(ended.epoch + 1)
        if behind is None:
            return False
        self._loader._watch.epoch_ended(self.progress)
        self.go_on(position.begin())
        position.note_first_batch(behind.epoch)
        self._follow_changes(begins=True)
        return True

    def _fail(self, error: BaseException) -> None:
        """End with an error that this thread raises now, and every other thread when it asks for a batch later."""
        self._error = twin_of(error)  # the error itself would keep the caller's frames
        self._raised_in.add(threading.current_thread())
        self.close()

    def _raise_again(self) -> None:
        """Raise the error that ended the iterator, if it was not raised in this thread yet."""
        if self._error is not None and threading.current_thread() not in self._raised_in:
            self._raised_in.add(threading.current_thread())
            raise twin_of(self._error)

    def _enter(self) -> EpochOfAccelerate:
        """Follow an epoch or weights set since ``iter()``, and tell Accelerate that the epoch begins."""
        position = self._position
        if position.newest is self.progress and position.epoch != self.progress.leg.position.epoch:
            self.go_on(position.begin())
        position.note_first_batch(self.progress.leg.position.epoch)
        self._entry = EpochOfAccelerate(self._loader, self._plan.real_at_end)
        if not self._is_over:
            self._follow_changes(begins=True)
        return self._entry

    def _follow_changes(self, *, begins: bool = False) -> None:
        """Apply the caller's changes, such as weights, and compare them with the other ranks."""
        position = self.progress.leg.position if begins else self.progress.now()
        if self._changes != self._asked.changes:
            self._changes, before = self._asked.changes, position
            if (position := self._job.current(before)) is not before:
                self.go_on(position)
        self._position.check_asked(position, begins=begins)

    def _was_last(self) -> bool:
        """Whether the last batch was yielded; if rows are not counted, one batch is read ahead to find out."""
        if next(self._position.job.walk.starts_behind(self.progress.leg.position.epoch), None) is not None:
            return False
        if self._plan.counted:
            ended = not self._plan.endless and not self.progress.left
            return ended and self._job.walk.following(self.progress.leg.position) is None
        ahead = list(islice(self._source, 1))
        self._next = chain(map(ahead.pop, repeat(0, len(ahead))), self._source)  # a list would keep what was taken
        return not ahead

    def __len__(self) -> int:
        """Return the steps of the epoch, taken and to come; TypeError if the counting pass was skipped."""
        return self._job.walk.steps_of_epoch(self.progress.leg.position)

    def close(self) -> None:
        """End threads and processes now, and drop batches on their way to a device."""
        self._is_over = True
        self._merger.close()
        self._next = iter(())
