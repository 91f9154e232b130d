"""One rank's share of a mixture of tables whose rows are shuffled one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.engine.fitting import topology_of
from torch_table_loader.engine.machine import ranks_on_this_node, servers_for, usable_cpus
from torch_table_loader.engine.mixed_state import MixedPosition, check_mixture, resumed, write_mixed_state
from torch_table_loader.engine.mixed_work import MixedFeed, SourceFeed, check_names, common_columns, places_of
from torch_table_loader.engine.row_job import RowJob, warn_of_uneven_steps
from torch_table_loader.engine.row_share import PlannedRows, planned_rows, schema_of, work_of
from torch_table_loader.engine.row_store import crosses_by_fork
from torch_table_loader.engine.row_work import RowFeed, RowWork
from torch_table_loader.engine.sizes import batches_of_a_gather
from torch_table_loader.errors import ConfigError, ResumeError
from torch_table_loader.planning.cursor import Stage
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.mixed_cursor import MixedCursor
from torch_table_loader.planning.mixture import Mixture, SourceOrder, StopRule, smallest
from torch_table_loader.planning.rows_of import SourceRow

if TYPE_CHECKING:
    from torch_table_loader.engine.ranks import RankInfo
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology


@dataclass(slots=True)
class WeightBook:
    """The weights that were asked for last; epochs and steps that begin take them."""

    newest: dict[str, int]


@dataclass(frozen=True, eq=False)
class MixedJob:
    """One rank's share of a mixture. It pickles.

    Args:
        options: the caller's, with `batch_size` resolved, and the form of rows as the sources have it.
        sources: by name, in the caller's order, which the column `source` counts.
        columns: the schema of what comes out, padding left out.
        topology: the job's shape.
        rank: this rank.
        given: the weights that the loader was made with.
        stop: when an epoch ends.
        block: the least rows of a block.
        book: the newest weights.
    """

    options: LoaderOptions
    sources: Mapping[str, RowJob]
    columns: pa.Schema
    topology: Topology
    rank: int
    given: Mapping[str, int]
    stop: StopRule
    block: int
    book: WeightBook = field(init=False)
    counted = True

    def __post_init__(self) -> None:
        """Begin with the weights that were given."""
        object.__setattr__(self, "book", WeightBook(dict(self.given)))

    @classmethod
    def open(
        cls,
        sources: Mapping[str, RowJob],
        options: LoaderOptions,
        ranks: RankInfo,
        weights: Mapping[str, float],
        stop: StopRule,
        block: int,
    ) -> MixedJob:
        """Check that the sources fit each other and the options, and plan the first epoch.

        Raises:
            ConfigError: they do not; names what differs.
        """
        check_names(weights, sources)
        topology = topology_of(options, ranks.num_ranks)
        own = {name: replace(job, book=job.book.apart()) for name, job in sources.items()}
        given = smallest(weights)
        job = cls(options, own, common_columns(own, options), topology, ranks.rank, given, stop, block)
        make_codec(job.schema(None), TypePolicy.of(options))
        for name, source in own.items():
            if source.keeper.place is None and not crosses_by_fork(options, fork_safe=job.fork_safe):
                raise ConfigError(
                    f"source {name!r} keeps its rows in memory, which worker processes that are not forked cannot "
                    'share; pass row_store= a directory to it, or worker_type="thread" to the mixture'
                )
        warn_of_uneven_steps(job.start(0).batches(ranks.rank))
        return job

    @property
    def fork_safe(self) -> bool:
        """Whether planning left no threads behind that a fork would break."""
        return all(job.fork_safe for job in self.sources.values())

    @property
    def servers(self) -> int:
        """Threads or processes that serve the lanes on this machine."""
        return servers_for(self.topology.lanes, usable_cpus(), ranks_on_this_node())

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a row."""
        return max(job.row_bytes for job in self.sources.values())

    @property
    def gather_batches(self) -> int:
        """Batches that a lane gathers together."""
        return batches_of_a_gather(self.row_bytes, self.options.batch_size)

    @property
    def identity(self) -> dict[str, Any]:
        """Of which tables and options this is; weights, ranks, lanes and batch size are no part of it."""
        said = {name: job.identity for name, job in self.sources.items()}
        sources = {
            name: {
                "table": entry["table"],
                "options": {option: entry["options"][option] for option in ("columns", "filters")},
            }
            for name, entry in said.items()
        }
        options = {"shuffle_seed": self.options.shuffle_seed, "stop": self.stop, "block": self.block}
        return {"sources": sources, "options": options}

    @property
    def said(self) -> dict[str, Any]:
        """All that decides the order, by name: what ranks compare."""
        excluded = {name: job.book.newest.digest for name, job in self.sources.items()}
        said = self.identity
        tables = {"names": list(self.sources), "sources": said["sources"], "exclusions": excluded}
        return {**said["options"], **tables, "weights": dict(self.given)}

    def with_lanes(self, lanes: int) -> MixedJob:
        """Return the same job with another number of lanes, which decides no batch."""
        return self._changed(topology=replace(self.topology, lanes=lanes))

    def with_sources(self, sources: Mapping[str, RowJob]) -> MixedJob:
        """Return the same job over other versions of its sources."""
        both = {**self.sources, **sources}
        return self._changed(sources=both, columns=common_columns(both, self.options))

    def _changed(self, **changes: Any) -> MixedJob:
        job = replace(self, **changes)
        job.book.newest = self.book.newest
        return job

    def close_clients(self) -> None:
        """Close this process's clients of the tables' stores."""
        for job in self.sources.values():
            job.close_clients()

    def state(self, cursor: MixedCursor) -> dict[str, Any]:
        """Write where the job stands, with what was excluded and which weights were asked for since."""
        exclusions = {
            name: ExclusionVersions(cursor.exclusions[name].running, job.book.newest)
            for name, job in self.sources.items()
        }
        now = self.current(cursor)
        return write_mixed_state(self.identity, now, dict(self.given), self.book.newest, exclusions)

    def resume(self, state: Mapping[str, Any]) -> tuple[MixedJob, MixedCursor]:
        """Find where a state says to go on.

        Sources may have come and gone since, and the loader may have been made with other weights: they hold from
        there on. Otherwise the state's weights go on.

        Args:
            state: of a job of any size.

        Raises:
            ResumeError: the state does not fit; names what differs.
        """
        check_mixture(self.identity["options"], state)
        position = MixedPosition.from_state(state)
        sources = {
            name: resumed(name, job, position) if name in position.names else job for name, job in self.sources.items()
        }
        job = self.with_sources(sources)
        job.book.newest = position.newest if position.given == self.given else dict(self.given)
        consumed = position.consumed
        if position.ended and consumed < position.total:
            raise ResumeError(
                f"the state was taken on a rank that had ended after {consumed} samples, while others take "
                f"{position.total - consumed} more; load the state of a rank that was still running, or the start of "
                "the next epoch"
            )
        versions = {name: source.book.of(position.epoch) for name, source in sources.items()}
        mixture = Mixture(position.names, position.shares, self.options.shuffle_seed, position.epoch, self.block)
        mixture = mixture.reweighted(consumed, job.book.newest)
        rows = job._rows(versions)
        counts = tuple(rows[name] for name in mixture.names)
        total = position.total if consumed == position.total else mixture.length(counts, self.stop)
        return job, MixedCursor(
            position.epoch,
            total,
            consumed,
            Stage(self.topology),
            mixture=mixture,
            rows=counts,
            exclusions=versions,
        )

    def start(self, epoch: int) -> MixedCursor:
        """Stand at the start of an epoch.

        Raises:
            ConfigError: a source that has a weight has no row.
        """
        versions = {name: job.book.of(epoch) for name, job in self.sources.items()}
        mixture = Mixture.of(self.book.newest, self.options.shuffle_seed, epoch, self.block)
        rows = self._rows(versions)
        counts = tuple(rows[name] for name in mixture.names)
        total = mixture.length(counts, self.stop)
        return MixedCursor(epoch, total, 0, Stage(self.topology), mixture=mixture, rows=counts, exclusions=versions)

    def begin(self, cursor: MixedCursor) -> None:
        """Note that an epoch runs: what is excluded from now on waits for the next."""
        for name, job in self.sources.items():
            job.book.begin(cursor.epoch, cursor.exclusions[name].running)

    def current(self, cursor: MixedCursor) -> MixedCursor:
        """Go on with the newest weights."""
        rows = dict(zip(cursor.mixture.names, cursor.rows, strict=True))
        return cursor.reweighted(self.book.newest, rows, self.stop)

    def set_weights(self, weights: Mapping[str, float], stands: MixedCursor | None) -> None:
        """Ask for other weights from the next step on.

        Args:
            weights: by name.
            stands: where the epoch that runs is, which must be able to take them; None if none does.

        Raises:
            ConfigError: a weight is wrong, a source is missing or unknown, or one with a weight has no row.
        """
        check_names(weights, self.sources)
        newest = Mixture.of(weights, self.options.shuffle_seed, 0, self.block)
        rows = self._rows({name: ExclusionVersions(job.book.newest) for name, job in self.sources.items()})
        newest.length([rows[name] for name in newest.names], self.stop)
        if stands is not None:
            stands.reweighted(newest.weights, dict(zip(stands.mixture.names, stands.rows, strict=True)), self.stop)
        self.book.newest = newest.weights

    def schema(self, cursor: MixedCursor | None) -> pa.Schema:  # noqa: ARG002 the same at every position
        """The Arrow schema of what comes out."""
        return schema_of(self)

    def planned(self, cursor: MixedCursor) -> PlannedRows:
        """Plan a stage of an epoch for this rank, on the lanes of this job."""
        return planned_rows(self, cursor)

    def work(self, cursor: MixedCursor) -> RowWork:
        """Make a value that threads and processes can work on; stores of sources that have a weight are opened."""
        for name, weight in cursor.mixture.weights.items():
            if weight:
                self.sources[name].keeper.rows()
        return work_of(self, cursor, self.feed(cursor))

    def feed(self, cursor: MixedCursor) -> MixedFeed:
        """Return the rows of an epoch by their place in the mixture's order."""
        numbers = {name: number for number, name in enumerate(self.sources)}
        feeds = []
        for name in cursor.mixture.names:
            job = self.sources[name]
            remaining = job.remaining(cursor.exclusions[name].running)
            order = SourceOrder(remaining, self.options.shuffle_seed, name, cursor.epoch)
            feed = RowFeed(order, job.keeper, job.options.row_id)
            feeds.append(SourceFeed(numbers[name], feed, places_of(self.columns, job.columns)))
        return MixedFeed(cursor.mixture, tuple(feeds))

    def rows_of(self, cursor: MixedCursor, step: int) -> list[SourceRow]:
        """Return which rows a batch delivers; see `TableLoader.rows_of`."""
        cursor = self.current(cursor)
        places, real = self.planned(cursor).plan.step(step)
        source, turn = cursor.mixture.take(places[:real])
        ids = np.empty_like(turn)
        feeds = self.feed(cursor).sources
        for number in distinct(source).tolist():
            entry = feeds[number]
            ids[source == number] = entry.feed.ids(turn[source == number])
        names = [cursor.mixture.names[number] for number in source.tolist()]
        return list(map(SourceRow, names, ids.tolist()))

    def _rows(self, versions: Mapping[str, ExclusionVersions]) -> dict[str, int]:
        """Count what is left of each source in an epoch."""
        return {name: job.remaining(versions[name].running).num_rows for name, job in self.sources.items()}
