"""One rank's share of a table in row mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import get_worker_info

from torch_table_loader.arrow.datatypes import width_of
from torch_table_loader.arrow.reserved import ROW_ID
from torch_table_loader.calling import warn_caller
from torch_table_loader.engine.exclusion_book import ExclusionBook
from torch_table_loader.engine.fitting import codec_of, columns_of, counter_of, topology_of, with_padding
from torch_table_loader.engine.machine import ranks_on_this_node, servers_for, usable_cpus
from torch_table_loader.engine.row_share import PlannedRows, planned_rows, schema_of, work_of
from torch_table_loader.engine.row_store import StoreKeeper
from torch_table_loader.engine.row_work import RowFeed, RowOrder, RowWork
from torch_table_loader.engine.sizes import batches_of_a_gather, rows_of_a_read
from torch_table_loader.engine.state import check_state, identity, write_state
from torch_table_loader.engine.survey import Table, survey
from torch_table_loader.errors import ConfigError
from torch_table_loader.options import LoaderOptions
from torch_table_loader.planning.chunks import whole_files
from torch_table_loader.planning.cursor import Stage
from torch_table_loader.planning.epoch import uneven_steps
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions, Remaining
from torch_table_loader.planning.global_batches import GlobalBatches, rank_batch_size, steps_of_ranks
from torch_table_loader.planning.keys import derive_key
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.row_cursor import RowCursor, RowPosition
from torch_table_loader.planning.rows_of import RowSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.ranks import RankInfo
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.source.plan_cache import PlanCache


def _nothing_said() -> torch.Tensor:
    flag: torch.Tensor = torch.zeros(1, dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
    return flag


@dataclass(frozen=True, eq=False)
class RowJob:
    """One rank's share of a table whose rows are shuffled one by one. It pickles.

    Args:
        options: the caller's, with `batch_size` resolved.
        table: surveyed.
        keeper: has the rows.
        columns: the schema of what comes out, padding left out.
        topology: the job's shape.
        rank: this rank.
        live_rows: rows of the table that deletes and filters leave.
        row_bytes: decoded bytes of a row.
        book: exclusions.
        said: bool[1], shared with worker processes: whether uneven steps were said.
    """

    options: LoaderOptions
    table: Table
    keeper: StoreKeeper
    columns: pa.Schema
    topology: Topology
    rank: int
    live_rows: int
    row_bytes: int
    book: ExclusionBook = field(default_factory=ExclusionBook)
    said: torch.Tensor = field(default_factory=_nothing_said, repr=False)
    counted = True

    @classmethod
    def open(cls, source: Source, options: LoaderOptions, ranks: RankInfo, cache: PlanCache | None) -> RowJob:
        """Survey the table, check the options against it, and count its live rows; see `Job.open`."""
        verify = options.verify_checksums
        table = survey(source, options.filters, options.schema, cache, verify_checksums=verify)
        columns = columns_of(table, options)
        schema = pa.schema([table.schema.field(name) for name in columns])
        if options.row_id and ROW_ID in columns:
            raise ConfigError(
                f"row_id=True adds a column {ROW_ID!r}, but the table has one of that name; leave one of them out"
            )
        with_ids = schema.append(pa.field(ROW_ID, pa.int64(), nullable=False)) if options.row_id else schema
        codec_of(table, with_padding(with_ids, marks=options.even_ranks == "pad"), columns, options)
        segments = whole_files(table.layout, filtered=options.filters is not None)
        if (counter := counter_of(table, options, cache)) is not None:
            segments = counter.count(segments, np.arange(len(segments.splits)))
        live_rows = int(segments.live.sum())
        row_bytes = sum(map(width_of, schema.types)) or 1
        keeps_ids = live_rows != table.layout.num_rows
        max_rows = rows_of_a_read(row_bytes, 1, int(table.layout.group_rows.max(initial=0)))
        reader = table.reader(columns, options.filters, row_ids=keeps_ids, max_rows=max_rows)
        keeper = StoreKeeper(table, options, schema, segments, reader)
        topology = topology_of(options, ranks.num_ranks)
        return cls(options, table, keeper, with_ids, topology, ranks.rank, live_rows, row_bytes)

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        return bool(getattr(self.table.storage, "fork_safe", False)) and self.keeper.fork_safe

    @property
    def servers(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        return servers_for(self.topology.lanes, usable_cpus(), ranks_on_this_node())

    @property
    def gather_batches(self) -> int:
        """Batches that a lane gathers together."""
        return batches_of_a_gather(self.row_bytes, self.options.batch_size)

    def with_lanes(self, lanes: int) -> RowJob:
        """Return the same job with another number of lanes, which decides no batch."""
        return replace(self, topology=replace(self.topology, lanes=lanes))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Of which table and options this is; ranks, lanes and batch size are no part of it."""
        said = identity(self.table, self.columns, self.options, "", "")
        kept = {name: said["options"][name] for name in ("columns", "filters", "shuffle_seed")}
        return {"table": said["table"], "options": kept | {"shuffle": "rows"}}

    def close_clients(self) -> None:
        """Close this process's clients of the table's store, and of the row store's."""
        self.table.storage.close()
        self.keeper.close_clients()

    def state(self, cursor: RowCursor) -> dict[str, Any]:
        """Write where the job stands, with what was excluded since."""
        exclusions = ExclusionVersions(cursor.exclusions.running, self.book.newest)
        return write_state(self.identity, replace(cursor, exclusions=exclusions))

    def resume(self, state: Mapping[str, Any]) -> tuple[RowJob, RowCursor]:
        """Find where a state says to go on.

        Args:
            state: of a job of any size.

        Returns:
            This job with the state's exclusions, and where it goes on.

        Raises:
            ResumeError: the state does not fit; names what differs.
        """
        check_state(self.identity, self.table, state)
        position = RowPosition.from_state(state)
        job = replace(self, book=ExclusionBook(position.exclusions, position.epoch))
        total = job._some(position.exclusions.running).num_rows
        return job, position.cursor(total, self.topology)

    def start(self, epoch: int) -> RowCursor:
        """Stand at the start of an epoch.

        Raises:
            ConfigError: every row is excluded.
        """
        versions = self.book.of(epoch)
        total = self._some(versions.running).num_rows
        return RowCursor(epoch, total, 0, Stage(self.topology), versions)

    def begin(self, cursor: RowCursor) -> None:
        """Note that an epoch runs: what is excluded from now on waits for the next."""
        self.warn_of_uneven_steps()
        self.book.begin(cursor.epoch, cursor.exclusions.running)

    def warn_of_uneven_steps(self) -> None:
        """Say once that ranks take unequally many steps; for whom takes them, since a mixture has steps of its own."""
        worker = get_worker_info()
        if not self.said and (worker is None or worker.id == 0):
            self.said.fill_(True)
            warn_of_uneven_steps(GlobalBatches(self.live_rows, 0, self.topology, self.rank))

    def exclude(self, row_ids: Any) -> None:
        """Take rows out of the epochs that begin from now on."""
        self.book.change(self.book.newest.exclude(row_ids, self.table.layout.num_rows))

    def include(self, row_ids: Any) -> None:
        """Take rows in again."""
        self.book.change(self.book.newest.include(row_ids, self.table.layout.num_rows))

    def schema(self, cursor: RowCursor) -> pa.Schema:  # noqa: ARG002 the same at every position
        """The Arrow schema of what comes out."""
        return schema_of(self)

    def planned(self, cursor: RowCursor) -> PlannedRows:
        """Plan a stage of an epoch for this rank, on the lanes of this job."""
        return planned_rows(self, cursor)

    def work(self, cursor: RowCursor) -> RowWork:
        """Make a value that threads and processes can work on; the store is built and opened if it is not."""
        self.keeper.rows()
        return work_of(self, cursor, self.feed(cursor))

    def feed(self, cursor: RowCursor) -> RowFeed:
        """Return the rows of an epoch by their place in its order."""
        remaining = self._some(cursor.exclusions.running)
        key = derive_key(self.options.shuffle_seed, cursor.epoch, "rows")
        return RowFeed(RowOrder(Permutation(remaining.num_rows, key), remaining), self.keeper, self.options.row_id)

    def rows_of(self, cursor: RowCursor, step: int) -> list[RowSpan]:
        """Return which rows a batch delivers; see `TableLoader.rows_of`."""
        places, real = self.planned(cursor).plan.step(step)
        ids = self.feed(cursor).ids(places[:real])
        layout = self.table.layout
        file = np.searchsorted(layout.file_starts, ids, side="right") - 1
        row = ids - layout.file_starts[file]
        return [
            RowSpan(layout.files[number].name, first, first + 1)
            for number, first in zip(file.tolist(), row.tolist(), strict=True)
        ]

    def remaining(self, exclusions: Exclusions) -> Remaining:
        """Find the rows of the store that are left."""
        return Remaining(self.live_rows, self._places_of(exclusions.ids))

    def _some(self, exclusions: Exclusions) -> Remaining:
        """Find the rows that are left, and refuse an epoch that has none."""
        remaining = self.remaining(exclusions)
        if self.live_rows and not remaining.num_rows:
            raise ConfigError(
                f"all {self.live_rows} rows are excluded, so that the epoch has none; include() some of them"
            )
        return remaining

    def _places_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn row ids into rows of the store; those that a filter leaves out have none."""
        if not len(ids) or not self.keeper.spec.keeps_ids:
            return ids
        kept = self.keeper.rows().row_ids
        assert kept is not None  # noqa: S101 the store keeps them
        places = np.searchsorted(kept, ids)
        present = places < len(kept)
        present[present] = kept[places[present]] == ids[present]
        return places[present]


def warn_of_uneven_steps(batches: GlobalBatches) -> None:
    """Say that ranks take unequally many steps, since that hangs a job that synchronises each step.

    An order without end has no last step.
    """
    if batches.endless:
        return
    if (shown := uneven_steps(steps_of_ranks(batches))) is not None:
        warn_caller(
            f"ranks take unequally many steps: {shown}; a job that synchronises each step (DDP) then hangs; "
            'pass even_ranks="pad", or drop_last=True'
        )


def with_batch_size(options: LoaderOptions, num_ranks: int, *, given: bool) -> LoaderOptions:
    """Divide `global_batch_size` over the ranks, where it was given.

    Args:
        options: the caller's.
        num_ranks: of the job.
        given: whether the caller named `batch_size`, which must then agree.
    """
    if options.global_batch_size is None:
        return options
    own = options.batch_size if given else None
    return replace(options, batch_size=rank_batch_size(own, options.global_batch_size, num_ranks))
