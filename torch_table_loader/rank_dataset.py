"""What all datasets share: a rank's part of a table, or of several, that a loader iterates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from torch_table_loader.column_names import NamedColumns
from torch_table_loader.engine.workers.lane_counts import LaneCounts
from torch_table_loader.engine.workers.lane_iterator import LaneIterator, Taken, WorkersLane
from torch_table_loader.errors import ConfigError
from torch_table_loader.keywords import shown_classmethod, with_options
from torch_table_loader.loader import TableLoader
from torch_table_loader.metrics import LaneMetrics, Metrics
from torch_table_loader.position import JobPosition

if TYPE_CHECKING:
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.plan_check import PlanCheck
    from torch_table_loader.explanation import Explanation
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.position import Reopen

P = ParamSpec("P")
D = TypeVar("D", bound="RankDataset")


class RankDataset(NamedColumns, IterableDataset[Any]):
    """What a loader iterates: a rank's share of a table, or of several."""

    _takes: ClassVar[frozenset[str] | None] = None
    """The options that the class takes; None for all."""

    def __init__(self, job: Job, plan_check: PlanCheck | None = None, reopen: Reopen | None = None) -> None:
        """Serve a job that is ready to be planned.

        Args:
            job: this rank's share.
            plan_check: compares with the other ranks what is excluded and mixed; None compares nothing.
            reopen: returns the job over the tables that a state was saved with; None keeps those that are open.
        """
        super().__init__()
        self._position = JobPosition(job, plan_check, reopen)
        self._loader: TableLoader | None = None
        self._taken: Taken | None = None
        """What a DataLoader of the caller's took in this process."""
        self._counts = LaneCounts()

    @shown_classmethod
    def create_dataloader(
        cls: Callable[P, D],  # noqa: N805
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[TableLoader, D]:
        """Open the table and make its loader.

        Takes what the class takes.

        Returns:
            ``(loader, dataset)``.
        """
        dataset = cls(*args, **kwargs)
        dataset._loader = TableLoader(dataset)
        return dataset._loader, dataset

    @property
    def job(self) -> Job:
        """The rank's share, for loaders and tools."""
        return self._position.job

    @property
    def options(self) -> LoaderOptions:
        """What the caller asked for."""
        return self.job.options

    def __repr__(self) -> str:
        """Say what is read, as far as it is known by now."""
        return f"<{type(self).__name__}: {self._position.told}>"

    def _repr_html_(self) -> str:
        """Show in a notebook what is read, and the columns."""
        from torch_table_loader.report import charts, markup

        told = [("dataset", type(self).__name__), *self._position.facts.items()]
        try:
            columns = charts.table(("column", "Arrow type"), [(each.name, str(each.type)) for each in self.schema])
        except ConfigError as error:  # an epoch without rows: what is shown must not fail
            columns = markup.element("p", str(error))
        return markup.fragment(charts.table((), told), columns)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator reads."""
        return self._position.epoch

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return self.job.schema(self._position.next)

    def explain(self) -> Explanation:
        """Return what an epoch will read, and why; see `Explanation`."""
        from torch_table_loader.explain import explain

        return explain(self.job, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what the job has done; see `TableLoader.state_dict`.

        Without a loader of its own: what this process has taken, or, in a worker of a StatefulDataLoader (whose
        iterator says that), where the epoch begins.
        """
        info, taken = get_worker_info(), self._taken
        if info is None and (self._loader is not None or taken is None):
            return self._own_loader("state").state_dict()
        job = self.job.with_lanes(1 if info is None else info.num_workers)
        if info is None and taken is not None and taken.position.epoch == self.epoch:
            return job.state(taken.position.after(taken.batches))
        return job.state(job.start(self.epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; see `TableLoader.load_state_dict`."""
        info = get_worker_info()
        if info is None and self._loader is not None:
            self._loader.load_state_dict(state)
        else:
            self._position.load_for_workers(state, 1 if info is None else info.num_workers)
        self._position.is_for_any_iterator = True

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator reads, here and in worker processes that exist.

        The epoch of a position that was loaded keeps that position; any other begins at its start.

        Args:
            epoch: from 0.
        """
        self._position.set_epoch(epoch)

    def metrics(self) -> Metrics:
        """Return what this rank's newest iterator has done; see `Metrics`.

        Raises:
            ConfigError: the dataset is iterated by a DataLoader of the caller's, which takes batches where the dataset
                does not see it; `worker_metrics` says what its workers made.
        """
        return self._own_loader("metrics", "; ask worker_metrics() what its workers made, or").metrics()

    def worker_metrics(self) -> tuple[LaneMetrics, ...]:
        """Return what each worker of the newest iterator has made, read ahead included.

        They are those of the loader that came with the dataset, once it is iterated; else those of a DataLoader of the
        caller's, whose worker processes write their numbers where this process reads them.

        Raises:
            ConfigError: no iterator has begun.
        """
        if self._position.newest is not None:
            return self._position.newest.metrics().workers
        if not (clocks := self._counts.read()):
            raise ConfigError("worker_metrics speaks of an iterator, and none has begun; iterate the loader first")
        return tuple(
            LaneMetrics(worker, each.rows, each.batches, each.num_bytes, each.working, each.collating)
            for worker, each in enumerate(clocks)
        )

    def _own_loader(self, what: str, instead: str = ";") -> TableLoader:
        if self._loader is None:
            raise ConfigError(
                f"{what}: the batches of a DataLoader of your own are taken where the dataset cannot see it"
                f"{instead} make the loader with create_dataloader(...)"
            )
        return self._loader

    def __len__(self) -> int:
        """Batches of this rank in the epoch.

        Raises:
            TypeError: the caller gave the counting pass up.
        """
        return self._position.num_steps

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches of the epoch; the lanes are the workers of the caller's DataLoader.

        In the process of a loader of ours, they are that loader's batches from the start of the epoch.
        """
        info = get_worker_info()
        if info is None and self._loader is not None:
            if not self._position.is_for_any_iterator:  # Accelerate's skip_first_batches, to step over the right ones
                self._position.restart()
            return iter(self._loader)
        job, position = self._position.begin_alone()
        self._taken = Taken(position, position.stage.steps)
        work = job.work(position)
        if info is None:
            return LaneIterator(work, 0, self._taken, self._counts)
        return WorkersLane(work, info.id, self._taken, self._counts)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Show the options in the signature of an ``__init__``, where help() and inspect look for them."""
        super().__init_subclass__(**keywords)
        own = cls.__dict__.get("__init__")
        if inspect.isfunction(own):
            signature = with_options(own, super(cls, cls).__init__, cls._takes)
            own.__signature__ = signature  # type: ignore[attr-defined]
