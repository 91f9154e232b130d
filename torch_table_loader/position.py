"""The position of a dataset and its loader: the only owner of the epoch, a loaded state, and what was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import get_worker_info, random_split

from torch_table_loader.engine.jobs.bound import check_state, state_of
from torch_table_loader.engine.jobs.exclusion_state import warn_of_undone
from torch_table_loader.engine.plan_check import digest_of
from torch_table_loader.engine.rank_info import warn_of_a_whole_table
from torch_table_loader.engine.state import read_state
from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.keywords import INSTEAD
from torch_table_loader.messages import warn_caller
from torch_table_loader.planning.steps import ENDLESS_EPOCHS, UNCOUNTED, UNKNOWN_ROWS, UNKNOWN_SAMPLES, step_at
from torch_table_loader.system import shared_bytes
from torch_table_loader.units import integer

if TYPE_CHECKING:
    from types import FrameType

    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.exclusion_state import ExclusionState
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.engine.saved_state import SavedState
    from torch_table_loader.metrics import Progress
    from torch_table_loader.planning.stages import Position

    Reopen = Callable[..., tuple[Job, SavedState]]


def as_it_is(job: Job, saved: SavedState, name: str = "") -> tuple[Job, SavedState]:  # noqa: ARG001 see `TimeTravel`
    """Return the job over the tables that are open."""
    return job, saved


def no_single_rows(asked: Any, index: Any) -> ConfigTypeError:
    """Return the error for what asks a dataset or a loader for single rows by number, as `Subset` does."""
    return _not_by_number(asked, f"has no row {index!r:.40}")


def refuse_dividing(asked: Any, asking: FrameType) -> None:
    """Refuse `random_split`, which divides numbers of rows; `asking` is the frame that asks for a length."""
    if asking.f_code is random_split.__code__:
        raise _not_by_number(asked, "cannot be divided by number")


def _not_by_number(asked: Any, what: str) -> ConfigTypeError:
    return ConfigTypeError(
        f"{type(asked).__name__} gives whole batches in an order and {what}; as_map() of a dataset "
        'with shuffle="rows" gives rows by number, also to Subset and samplers, split({"train": 0.8, "val": 0.2}, '
        "by=column) gives a dataset for each part, and a loader is iterated itself, without another DataLoader"
    )


def refuse_stacking(asking: Mapping[str, Any]) -> None:
    """Refuse a torch DataLoader that would stack whole batches; `asking` are the local names of what iterates."""
    if asking.get("auto_collation") is True:
        raise ConfigError(
            "the dataset gives whole batches, which a DataLoader with a batch_size would stack; pass the number of "
            "rows to the dataset, and write DataLoader(dataset, batch_size=None)"
        )


class NamedColumns:
    """The base of datasets and loaders: a table whose columns ``in`` asks for: ``"price" in dataset`` reads nothing."""

    _position: JobPosition

    def __contains__(self, name: object) -> bool:
        """Return whether a column of this name comes out; see `schema` of the dataset.

        Raises:
            ConfigTypeError: it is not a name. Python would read the whole epoch and compare it with each batch.
        """
        if not isinstance(name, str):
            raise ConfigTypeError(
                f"`in` asks for the name of a column, got {type(name).__name__}; iterate to look for rows or batches"
            )
        return name in self._position.job.schema.names

    def __getitem__(self, index: Any) -> NoReturn:
        """Refuse single rows, which `Subset`, samplers and another DataLoader ask for; `as_map` has them."""
        raise no_single_rows(self, index)

    if not TYPE_CHECKING:  # where it would make every name an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is instead of an attribute that datasets and loaders of others have."""
            instead = ""
            if name in INSTEAD:
                instead = f"; {INSTEAD[name]}"
            message = f"{type(self).__name__!r} object has no attribute {name!r}{instead}"
            raise AttributeError(message, name=name, obj=self)


def _shared(*dtypes: torch.dtype) -> list[torch.Tensor]:
    """Return zeros that worker processes see change: forks at once, and others once torch has pickled them."""
    return [torch.frombuffer(shared_bytes(dtype.itemsize), dtype=dtype) for dtype in dtypes]


class JobPosition:
    """The job of a rank, the next epoch, and the progress of the newest iterator.

    A dataset and its loader share one. A copy in a worker process shares only the epoch.
    """

    def __init__(self, job: Job, plan_check: PlanCheck | None = None, reopen: Reopen = as_it_is) -> None:
        """Start before epoch 0.

        Args:
            plan_check: compares exclusions and weights with the other ranks; None compares nothing.
            reopen: returns the job over the tables that a state was saved with, such as an older snapshot, and the
                state; asked only if these are not, or no longer, those of the job.
        """
        self.job = job
        self.newest: Progress | None = None
        """Progress of the loader's newest iterator, unless a state was loaded since."""
        self.is_for_any_iterator = False
        """Whether the state was loaded into the dataset, and applies to whatever iterates it."""
        self._epoch, self._may_read = _shared(torch.int64, torch.bool)
        self._loaded: Position | None = None
        self._begun: int | None = None
        """The epoch that began last, unless an epoch was set or a state loaded since."""
        self._plan_check = plan_check
        self.reopen = reopen
        self._warned_of_repetition = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the training process: its iterator, and what reopens tables."""
        return {**vars(self), "newest": None, "reopen": as_it_is}

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        if self._loaded is None:
            return int(self._epoch.item())
        return self._loaded.epoch

    @property
    def summary(self) -> str:
        """A line that says what is read, and how."""
        facts = self.facts
        tables = ""
        if facts["tables"] != "1":
            tables = f"{facts['tables']} tables, "
        share = f"rank {facts['rank']}, batch_size={facts['batch_size']}"
        return (
            f"{tables}{facts['files']} files, {facts['rows']} rows; {share}, shuffle={facts['shuffle']}, "
            f"epoch {facts['epoch']}"
        )

    @property
    def facts(self) -> dict[str, str]:
        """What is read, and how, by name."""
        job, options = self.job, self.job.options
        layouts = [table.layout for table in job.tables.values()]
        return {
            "tables": f"{len(layouts)}",
            "files": f"{sum(map(len, layouts)):,}",
            "rows": f"{sum(layout.num_rows for layout in layouts):,}",
            "rank": f"{job.rank} of {job.topology.num_ranks}",
            "batch_size": f"{job.batching.rows}",
            "shuffle": f"{options.shuffle!r}",
            "epoch": f"{self.epoch}",
        }

    @property
    def loaded_epoch(self) -> int | None:
        """The epoch of a loaded state in which no iterator has begun since; None without one."""
        if self._loaded is None:
            return None
        return self._loaded.epoch

    @property
    def next(self) -> Position:
        """Where the next iterator begins: at a loaded state, else at the start of the epoch."""
        position: Position = self.job.current(self._loaded or self.job.start(self.epoch))
        return position

    @property
    def now(self) -> Position:
        """Where the newest iterator is, with what the caller changed since, unless the next one begins elsewhere."""
        if self.newest is None or self.newest.leg.position.epoch != self.epoch:
            return self.next
        position: Position = self.job.current(self.newest.now())
        return position

    @property
    def running(self) -> Position | None:
        """Where the running epoch is, or will continue; None if no epoch is running."""
        if self.newest is not None and self.newest.leg.position.epoch == self.epoch:
            return self.newest.now()
        return self._loaded

    @property
    def num_steps(self) -> int:
        """Steps of the epoch, and of the others of the same iteration: those taken, and those to come.

        Raises:
            TypeError: the caller turned the counting pass off, or the epoch has no end.
        """
        position, job = self._counted(), self.job
        others = (job.start(epoch) for epoch in job.walk.epochs_of(position.epoch) if epoch != position.epoch)
        return job.walk.steps_of_epoch(position) + sum(map(job.walk.steps_of_epoch, others))

    @property
    def num_rows(self) -> int:
        """Rows that remain after deletes and filters, over all ranks.

        Raises:
            TypeError: the number is not known.
        """
        rows = self.job.num_rows(self.epoch)
        if rows is None:
            raise TypeError(UNKNOWN_ROWS)
        return rows

    @property
    def num_samples(self) -> int:
        """Rows, or sequences, of the epoch and of the others of the same iteration, over all ranks.

        Raises:
            TypeError: the number is not known, or has no end.
        """
        job = self.job
        found = [job.num_samples(epoch) for epoch in job.walk.epochs_of(self._counted().epoch)]
        if any(number is None for number in found):
            raise TypeError(UNKNOWN_SAMPLES)
        return sum(number for number in found if number is not None)

    @property
    def remaining(self) -> int:
        """Of those, the steps that this rank has not taken where the job is now; see `num_steps`."""
        position, job = self._counted(), self.job
        return job.walk.steps_left(position) + sum(map(job.walk.steps_of_epoch, job.walk.starts_behind(position.epoch)))

    @property
    def left(self) -> int | None:
        """The steps that remain; None where nobody knows, or there is no end."""
        try:
            return self.remaining
        except TypeError:
            return None

    def _counted(self) -> Position:
        """Return where the job is, if it knows how many steps an iteration has."""
        if not self.job.counted:
            raise TypeError(UNCOUNTED)
        if self.job.options.epochs == "forever":
            raise TypeError(ENDLESS_EPOCHS)
        return self.now

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iterator, here and in existing worker processes.

        The epoch of a loaded state keeps its position; any other begins at its start.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise ConfigTypeError(f"epoch must be an int, got {type(epoch).__name__} {epoch!r}")
        if epoch < 0:
            raise ConfigError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)
        self._begun = None
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None

    def begin(self) -> Position:
        """Return where an iterator begins, and record that it does; a loaded state is used once."""
        position, continues = self.next, self._loaded is not None
        self._loaded, self.is_for_any_iterator = None, False
        self._begin(position)
        if self._plan_check is not None:
            self._plan_check.raise_if_others_wait()
            if self._plan_check.compares:
                start: dict[str, Any] | None = None
                if continues and self.job.counted:
                    start = _compared(self.job, position)
                self._plan_check.check_begin(position.epoch, position.exclusion_digests, start)
        return position

    def seek(self, position: Position, job: Job | None = None) -> None:
        """Make the next iterator begin at a position, of another job if one is given.

        Warn if that undoes an earlier request of the caller.
        """
        if job is not None and job is not self.job:
            warn_of_undone(_exclusions_of(self.job), _exclusions_of(job))
            self.job = job
        self._epoch.fill_(position.epoch)
        self._loaded, self._begun, self.newest = position, None, None

    def seek_place(self, epoch: int | None, file: str | int | None, **place: Any) -> int:
        """Make the next iterator begin at a place of an epoch, which is named in one way; see `TableLoader.seek`."""
        if epoch is not None:
            self.set_epoch(epoch)
        epoch, job = self.epoch, self.job
        if file is not None and not isinstance(file, str):
            step_at(None, None, **place, file=lambda: 0)
            self.seek(job.files("seek(file=...)").at(epoch, integer("file", file, 0)))
            return 0
        planned = [job.planned(position) for position in job.walk.stages(job.start(epoch))]
        known = all(stage.plan.counted and not stage.plan.endless for stage in planned)
        longest = (stage.plan.steps if stage.longest is None else stage.longest for stage in planned)
        most = sum(longest) if known else None
        together: Callable[[int], int] | None = None
        first: Callable[[], int] | None = None
        if not job.options.batch_by:
            together = partial(job.walk.step_of_sample, epoch)
        if file is not None:
            first = partial(job.files("seek(file=...)").step_of, epoch, file)
        steps = step_at(most, together, **place, file=first)
        self.seek(job.walk.at(epoch, steps))
        return steps

    def skip(self, batches: int) -> None:
        """Make the next iterator begin so many global batches after where the job is; see `TableLoader.skip`."""
        wanted = integer("batches", batches, 0)
        position, missing = self.job.walk.behind(self.now, wanted)
        starts = self.job.walk.starts_behind(position.epoch)
        while missing and (start := next(starts, None)) is not None:
            before = missing
            position, missing = self.job.walk.behind(start, missing)
            if missing == before:  # an epoch without a batch
                break
        if missing:
            raise ConfigError(
                f"skip({wanted}) leaves out {missing} batches more than are left to this iteration, which has "
                f"{wanted - missing}; skip fewer, or call set_epoch() to go on with another epoch"
            )
        self.seek(position)

    def begin_alone(self) -> tuple[Job, Position]:
        """Return what this process reads for the caller's own DataLoader, whose workers are the lanes."""
        info = get_worker_info()
        if self.job.options.epochs is not None:
            raise ConfigError(
                "epochs= is for the loader that create_dataloader(...) makes; leave it out for a DataLoader of your "
                "own, and call dataset.set_epoch(epoch) before each epoch"
            )
        if changing := list(self.job.schedules):
            raise ConfigError(
                f"{changing[0]} by step is for the loader that create_dataloader(...) makes; leave it out for a "
                "DataLoader of your own"
            )
        job, position = self.job, self._loaded
        if position is None or not self.is_for_any_iterator:
            job = job.with_lanes(workers_of(info))
            position = job.start(self.epoch)
        self._loaded, self.is_for_any_iterator = None, False
        self._begin(position)
        return job, position

    def restart(self) -> None:
        """Forget a loaded state, so that the next iterator begins at the start of the epoch."""
        self._loaded = self._begun = None

    def note_first_batch(self, epoch: int) -> None:
        """Record that an iterator yields its first batch of an epoch; warn once if that repeats a shuffled epoch."""
        if self._begun == epoch and self.job.options.shuffle and not self._warned_of_repetition:
            self._warned_of_repetition = True
            again = f"epoch {epoch} is iterated again, in the same order"
            warn_caller(f"{again}; call loader.set_epoch(epoch) before each epoch, or pass epochs=1, to reshuffle")
        self._begun = epoch

    def state(self, ahead: int = 0) -> dict[str, Any]:
        """Return what the job has done as plain data; see `TableLoader.state_dict`.

        Args:
            ahead: batches that the newest iterator gave, and on which nothing was trained yet; 1 at most.
        """
        newest = self.newest
        if ahead and newest is not None and newest.leg.position.epoch == self.epoch:
            return state_of(self.job, newest.now(ahead))
        return state_of(self.job, self.now)

    def load(self, state: Mapping[str, Any], lanes: int | None = None) -> None:
        """Make the next iterator continue from a state, on any number of ranks and lanes.

        Args:
            lanes: workers of the caller's own DataLoader, which are the lanes; None for a loader of ours.

        Raises:
            ResumeError: the state belongs to another table or other options; the message names what differs.
        """
        try:
            saved, opened = read_state(state), self.job
            if lanes is not None:
                opened = opened.with_lanes(lanes)
            elif not saved.is_of(opened.bounds):
                opened, saved = self.reopen(opened, saved)
            check_state(saved, opened)
            job, position = opened.resume(saved)
        except ConfigError as error:  # such as one without rows
            raise ResumeError(f"the state is of an epoch that cannot be: {error}") from error
        if lanes not in (None, job.topology.lanes):
            raise ResumeError(
                f"the state is of {job.topology.lanes} workers, and this DataLoader reads with {lanes}; load it "
                "into a loader made by create_dataloader(...), which continues with any number"
            )
        if lanes is None and opened is not self.job:
            job.refuse_nulls()
        self.seek(position, job)

    def check_asked(self, position: Position, *, begins: bool) -> None:
        """Compare what the caller asks of epochs that run with the other ranks; see `PlanCheck.check_asked`."""
        if self._plan_check is not None:
            self._plan_check.check_asked(position, begins=begins)

    def of_all_ranks(self, own: Callable[[], dict[str, NDArray[np.int64]]]) -> dict[str, NDArray[np.int64]]:
        """Return the row ids of all ranks of the process group; see `PlanCheck.union`."""
        if self._plan_check is None:
            raise ConfigError("gather=True asks the other ranks, which this dataset does not know; leave it out")
        return self._plan_check.union(own)

    def before_reading(self) -> None:
        """Check, once for all processes of the rank, what matters only where a loader is made or an epoch begins."""
        worker = get_worker_info()
        if not self._may_read and (worker is None or worker.id == 0):
            self.job.refuse_nulls()
            self.job.check_alone()
            warn_of_a_whole_table(self.job.options)
            _warn_of_no_steps(self.job, self.epoch)
            self.job.warn_of_uneven_steps()
            self._may_read.fill_(True)

    def _begin(self, position: Any) -> None:
        self.before_reading()
        for name, rows in self.job.live_rows.items():
            rows.exclusions.begin(position.epoch, position.exclusions[name].running)


def workers_of(info: Any) -> int:
    """Return how many workers the caller's own DataLoader has, which are the lanes; 1 where it has none.

    Args:
        info: what `get_worker_info` says.
    """
    if info is None:
        return 1
    return int(info.num_workers)


def _exclusions_of(job: Job) -> dict[str, ExclusionState]:
    """Return what the caller excluded, by name of the source."""
    return {name: rows.exclusions for name, rows in job.live_rows.items()}


def _compared(job: Job, position: Position) -> dict[str, Any]:
    """Return what ranks compare of the place at which they continue: what a state says, by name."""
    state = state_of(job, replace(position, ended=False))
    parts = {name: digest_of(value) for name, value in state.items()}
    return {**parts, "epoch": position.epoch, "steps": position.steps_taken}


def _warn_of_no_steps(job: Job, epoch: int) -> None:
    """Warn if `drop_last` leaves no step in an epoch."""
    if not job.options.drop_last:
        return
    plans = [job.planned(stage).plan for stage in job.walk.stages(job.start(epoch))]
    if not any(plan.endless or not plan.counted or plan.steps for plan in plans):
        filled = job.samples.filled
        warn_caller(
            f"drop_last=True leaves rank {job.rank} no step in an epoch, since it has too few {filled} for one; "
            "pass a smaller batch_size (or seq_len), or drop_last=False for a step that is short"
        )


class EpochSampler:
    """Forwards ``loader.sampler.set_epoch``, which Lightning, Fabric and Accelerate call."""

    def __init__(self, position: JobPosition) -> None:
        self._position = position
        self._offset = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch as a framework counts it. Fabric begins at 0 in a resumed run, so a loaded state wins."""
        if (loaded := self._position.loaded_epoch) is not None:
            self._offset = loaded - epoch
        self._position.set_epoch(max(0, epoch + self._offset))

    def __iter__(self) -> Iterator[None]:
        """Give no indices, without end."""
        while True:
            yield None
