"""The base of all datasets: a rank's share of one table or of several."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, Unpack, overload

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info
from typing_extensions import TypeVar

from torch_table_loader.engine.calls import making
from torch_table_loader.engine.jobs.bound import state_of
from torch_table_loader.engine.plan_check import refuse_call
from torch_table_loader.engine.rank_info import asks_for_a_part
from torch_table_loader.engine.workers.lane_iterator import LaneCounts, LaneIterator, Taken, WorkersLane
from torch_table_loader.errors import ConfigError
from torch_table_loader.fact_tables import Table, html_of
from torch_table_loader.keywords import OtherKeywords, shown_classmethod, with_options
from torch_table_loader.loader import Batch, TableLoader
from torch_table_loader.metrics import Metrics
from torch_table_loader.position import (
    JobPosition,
    NamedColumns,
    as_it_is,
    refuse_dividing,
    refuse_stacking,
    workers_of,
)
from torch_table_loader.system import as_out_of_memory

if TYPE_CHECKING:
    from torch_table_loader.engine.calls import Call
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.engine.work.lane_work import LaneMetrics
    from torch_table_loader.options import DictFormat, LoaderOptions
    from torch_table_loader.position import Reopen

P = ParamSpec("P")
D = TypeVar("D", bound="RankDataset")
B = TypeVar("B", default=Batch)


class RankDataset(NamedColumns, IterableDataset[Any]):
    """The base of all datasets. A dataset is a rank's share of one table or of several; a loader iterates it."""

    _takes: ClassVar[frozenset[str] | None] = None
    """Names of the options that the class takes; None for all options."""

    def __init__(self, job: Job, plan_check: PlanCheck | None = None, reopen: Reopen = as_it_is) -> None:
        """Make the dataset of a job; the arguments are those of `JobPosition`."""
        super().__init__()
        self._position = JobPosition(job, plan_check, reopen)
        self._loader: TableLoader[Self] | None = None
        self._taken: Taken | None = None
        """The batches that the caller's own DataLoader took in this process."""
        self._counts = LaneCounts()

    @overload
    @classmethod
    def create_dataloader(
        cls,
        table: Any = None,
        how: Any = None,
        /,
        *,
        output_format: DictFormat = "torch",
        collate_fn: Callable[[Any], B] | None = None,
        **options: Unpack[OtherKeywords],
    ) -> tuple[TableLoader[Self, B], Self]: ...

    @overload
    @classmethod
    def create_dataloader(
        cls: Callable[P, D],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[TableLoader[D], D]: ...

    @shown_classmethod
    def create_dataloader(
        cls,  # noqa: N805
        *args: Any,
        **options: Any,
    ) -> tuple[TableLoader[Any, Any], Any]:
        """Open the table and make its loader.

        ```python
        loader, dataset = StructuredDataset.create_dataloader(
            "s3://bucket/clicks", batch_size=1024, columns=["price", "label"], shuffle=True
        )
        ```

        The arguments are those of the class.

        Most calls need a few of these options:

        * `batch_size`: Rows per batch on this rank; or a `Budget` of tokens; see
          docs/language-models.md#batches-by-tokens.
        * `columns`: Names to deliver, in this order; None for all. A dict gives the keys of a batch: a column each, or
          a list of columns of numbers that become one float32 tensor [batch, k]: `{"x": ["age", "income"], "y":
          "churn"}`.
        * `filters`: A pyarrow compute Expression, text or tuples; leaves out rows for which it is false or null; see
          docs/filters.md.
        * `shuffle`: False: table order. True: rows of up to 16 splits mixed in windows, where nothing keeps them from
          it. "mixed": the same, or an error. "splits": splits permuted in each epoch. "rows": all rows permuted; see
          docs/order.md.
        * `drop_last`: Drop the last batch of a rank if it is short.
        * `num_workers`: Lanes of this rank, part of the order. None is 4; 0 is one lane in the caller's thread.
        * `device`: Device to which batches are moved; to CUDA each is copied ahead, from page-locked memory.
        * `even_ranks`: "balance", "drop" or "pad": how to make ranks take equally many steps; without `num_ranks` and
          `rank`, it finds the ranks as num_ranks="auto" does. None: "balance" where rows are counted. False: not; see
          docs/order.md.
        * `nulls`: `{column: fill}` or "mask"; None: nulls in ints and bools are errors. The fills "nan" and the
          column's statistics (their mean) turn ints into floats.
        * `strings`: "list", "codes", `Vocabulary` or `Hash`, or `{column: one of these}`.
        * `collate_fn`: Function called with each batch, in the worker, one batch at a time.
        * `storage_options`: Options of the file system, as fsspec takes them, and how its files are read: retries,
          read-ahead, a cache on a local disk, and whether checksums are compared; see docs/object-stores.md.

        ``help(LoaderOptions)`` explains the others, too:

        * Batches and their order: `global_batch_size`, `shuffle_seed`, `epochs`, `output_format`, `row_id`, `pack`
        * Workers and progress: `worker_type`, `prefetch_batches`, `show_progress`
        * Ranks: `num_ranks`, `rank`, `check_plan`
        * Rows in any order: `row_store`, `weights`
        * Splits: `split_size`, `split_strategy`, `shuffle_buffer_size`, `count_filtered`, `batch_by`
        * Types of columns: `ragged`, `unsupported`, `transforms`, `decode`
        * Files and stores: `schema`, `files`, `plan_cache`, `on_error`, `on_growth`

        Returns:
            ``(loader, dataset)``.
        """
        dataset = cls(*args, **options)
        return dataset.loader(), dataset

    def loader(self) -> TableLoader[Self]:
        """Return the dataset's loader, which is made by the first call."""
        if self._loader is None:
            self._loader = TableLoader(self)
        return self._loader

    @property
    def job(self) -> Job:
        """The job: this rank's share. Loaders and tools use it."""
        return self._position.job

    @property
    def options(self) -> LoaderOptions:
        """The options that the caller passed."""
        return self.job.options

    def __repr__(self) -> str:
        """Describe the table, as far as it is known."""
        return f"<{type(self).__name__}: {self._position.summary}>"

    def _repr_html_(self) -> str | None:
        """Show the table and its columns in a notebook."""
        facts = [("dataset", type(self).__name__), *self._position.facts.items()]
        try:
            types = [(each.name, str(each.type)) for each in self.schema]
            columns: Table | str = Table("", {"column": "column", "type": "Arrow type"}, types)
        except ConfigError as error:  # the epoch has no rows, and showing a dataset must not fail
            columns = str(error)
        return html_of(Table("", {"fact": "", "value": ""}, facts), columns)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        return self._position.epoch

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return self.job.schema

    @property
    def num_rows(self) -> int:
        """The rows of the whole table, of a mixture those of all its tables, that remain after deletes and filters.

        It is the same on every rank and in every epoch, whatever the order, `pack` and excluded rows.

        Raises:
            TypeError: the number is not known, since the caller turned counting off, or a split strategy deals rows.
        """
        return self._position.num_rows

    def explain(self) -> Explanation:
        """Return the plan of the epoch and the reasons for it; see `Explanation`."""
        return self.job.explain(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the job's state; see `TableLoader.state_dict`.

        If the caller's own DataLoader iterates the dataset, the state contains the batches that this process took. In a
        worker of a StatefulDataLoader it is the start of the epoch, since the worker's iterator has the rest.
        """
        info, taken = get_worker_info(), self._taken
        if info is None and (self._loader is not None or taken is None):
            return self._own_loader("state").state_dict()
        job = self.job.with_lanes(workers_of(info))
        if info is None and taken is not None and taken.position.epoch == self.epoch:
            return state_of(job, taken.position.after(taken.batches))
        return state_of(job, job.start(self.epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; see `TableLoader.load_state_dict`."""
        info = get_worker_info()
        if info is None and self._loader is not None:
            self._loader.load_state_dict(state)
        else:
            self._position.load(state, workers_of(info))
        self._position.is_for_any_iterator = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads, also in worker processes that are already running.

        If a state of this epoch was loaded, the iterator continues there. Any other epoch begins at its start.
        """
        self._position.set_epoch(epoch)

    def metrics(self) -> Metrics:
        """Return the metrics of this rank's newest iterator; see `TableLoader.metrics`.

        Raises:
            ConfigError: the caller's own DataLoader iterates the dataset. The dataset does not see which batches it
                takes; `worker_metrics` returns what its workers made.
        """
        return self._own_loader("metrics", "; ask worker_metrics() what its workers made, or").metrics()

    def worker_metrics(self) -> tuple[LaneMetrics, ...]:
        """Return what each worker of the newest iterator has made, including what was read ahead.

        These are the workers of the dataset's own loader if it was iterated. Otherwise they are the workers of the
        caller's own DataLoader, which share their counts with this process.

        Raises:
            ConfigError: no iterator has begun, and the dataset has no loader, which would know its workers.
        """
        if self._position.newest is not None:
            return self._position.newest.metrics().workers
        made = self._counts.read()
        if not made and self._loader is not None:
            return self._loader.metrics().workers
        if not made:
            raise ConfigError(
                "worker_metrics describes the newest iterator, and none has begun; iterate the loader first"
            )
        return made

    def _own_loader(self, what: str, instead: str = ";") -> TableLoader:
        if self._loader is None:
            raise ConfigError(
                f"{what}: the dataset cannot see which batches your own DataLoader takes"
                f"{instead} make the loader with create_dataloader(...)"
            )
        return self._loader

    def __len__(self) -> int:
        """Return the steps of the epoch on this rank, taken and to come; see `TableLoader`.

        A ``DataLoader(dataset, batch_size=None)`` has this length. `num_rows` counts rows.

        Raises:
            TypeError: the number is unknown, since the caller turned counting off, or there is no end; or
                `random_split` asks, which would divide batches.
        """
        refuse_dividing(self, sys._getframe(1))
        return self._position.num_steps

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches of the epoch. Each worker of the caller's DataLoader is a lane.

        If the dataset has a loader in this process, yield that loader's batches from the start of the epoch.

        Raises:
            ConfigError: a DataLoader with a `batch_size` asks, which would stack whole batches.
        """
        refuse_stacking(sys._getframe(1).f_locals)
        info = get_worker_info()
        if info is None and self._loader is not None:
            if not self._position.is_for_any_iterator:  # Accelerate's skip_first_batches skips from here
                self._position.restart()
            return iter(self._loader)
        job, position = self._position.begin_alone()
        self._taken = Taken(position, position.stage.steps)
        work = job.work(position)
        if info is None:
            return LaneIterator(work, 0, self._taken, self._counts)
        return WorkersLane(work, info.id, self._taken, self._counts)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Let all ranks hear of errors of the subclass's ``__init__``, and put the options into its signature."""
        super().__init_subclass__(**keywords)
        own = cls.__dict__.get("__init__")
        if inspect.isfunction(own):
            signature = with_options(own, super(cls, cls).__init__, cls._takes)
            cls.__init__ = _heard_by_all(own)  # type: ignore[method-assign]
            cls.__init__.__signature__ = signature  # type: ignore[attr-defined]

    @classmethod
    def _is_compared(cls, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:  # noqa: ARG003 see MixedDataset
        """Return whether ranks compare a dataset of these arguments, which need not be right."""
        return asks_for_a_part(keywords)


def _heard_by_all(init: Callable[..., None]) -> Callable[..., None]:
    """Let the other ranks hear of errors of an ``__init__``, also of those that come before plans are compared."""

    @functools.wraps(init)
    def heard(self: RankDataset, *args: Any, **keywords: Any) -> None:
        def refused(call: Call, error: BaseException) -> None:
            refuse_call(call, error, compared=type(self)._is_compared(args, keywords))

        with making(self, refused):
            try:
                init(self, *args, **keywords)
            except (MemoryError, RuntimeError) as error:
                if (short := as_out_of_memory(error, "the plan of the table")) is not None:
                    raise short from error
                raise

    return heard
