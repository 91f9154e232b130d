"""What one rank reads, epoch by epoch: the base of both kinds of job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from typing_extensions import override

from torch_table_loader.batching.codec import make_codec
from torch_table_loader.batching.policy import TypePolicy
from torch_table_loader.cached import cached_property
from torch_table_loader.engine.jobs.asked import NOTHING, Asked
from torch_table_loader.engine.jobs.batching import Batching
from torch_table_loader.engine.jobs.placed import planned_at, warn_of_uneven_stages
from torch_table_loader.engine.jobs.walk import Walked
from torch_table_loader.engine.machine import threads_of_lanes
from torch_table_loader.errors import ConfigError
from torch_table_loader.records import PADDING_COLUMN

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.engine.jobs.file_places import FilePlaces
    from torch_table_loader.engine.jobs.live_rows import LiveRows
    from torch_table_loader.engine.jobs.planner import PlannedStage
    from torch_table_loader.engine.saved_state import Bound, Kind, SavedState
    from torch_table_loader.engine.state_records import Written
    from torch_table_loader.engine.table import Table
    from torch_table_loader.engine.work.lane_work import LaneWork
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.ranks import Topology
    from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
    from torch_table_loader.planning.stages import Position
    from torch_table_loader.samples import Samples


_NO_FILES = (
    '{} needs batches that each come from one file, but shuffle="rows" and mixtures draw rows from all files; pass '
    'batch_by="file" and another shuffle='
)


class Codecs:
    """The last codec and its schema, by the width of samples: one takes microseconds a column to make."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_width: dict[int, tuple[pa.Schema, RowsCodec[Any]]] = {}

    def of(self, schema: pa.Schema, options: LoaderOptions, width: int) -> RowsCodec[Any]:
        """Return the codec of a schema, for samples of a width."""
        known, codec = self._by_width.get(width, (None, None))
        if codec is None or not schema.equals(known, check_metadata=True):
            codec = make_codec(schema, TypePolicy.of(options.of_length(width)))
            self._by_width[width] = schema, codec
        return codec


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(Walked):
    """One rank's share of a table or of several, ready to be planned and read in any epoch. It pickles.

    Args:
        row_bytes: decoded bytes of a row, with estimates for values of variable width.
        columns: the schema of what comes out, without the column `padding`.
        fork_safe: whether planning left no threads behind that a fork would break.
        codecs: what decodes rows, for any shape of the job.
    """

    row_bytes: int
    columns: pa.Schema
    fork_safe: bool
    codecs: Codecs = field(default_factory=Codecs, repr=False)

    kind: ClassVar[Kind]

    @property
    @abstractmethod
    def tables(self) -> Mapping[str, Table]:
        """The tables, by name of their source; a table alone has the name ""."""

    @property
    def asked(self) -> Asked:
        """What the caller asks of epochs that run; `next_stage` takes it up."""
        return NOTHING

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """The table and options that a state of the job is bound to; of a mixture, the options alone."""

    @property
    def compared(self) -> Mapping[str, Any]:
        """All that decides the order, by name: what ranks compare."""
        own = self.bounds[""]
        return {**own.table, **own.options, **self.by_step.compared}

    @property
    def samples(self) -> Samples:
        """What a batch counts."""
        return self.options.samples

    @property
    def counted(self) -> bool:
        """Whether live rows are known before reading."""
        return True

    @property
    def batching(self) -> Batching:
        """How large batches are, and how many are made together."""
        return Batching.of(self.options, self.topology, self.row_bytes)

    def with_lanes(self, lanes: int) -> Self:
        """Return the same job with another number of lanes."""
        if lanes == self.topology.lanes:
            return self
        return replace(self, topology=replace(self.topology, lanes=lanes))

    @property
    def live_rows(self) -> Mapping[str, LiveRows]:
        """The rows that the caller may exclude one by one, by name of their source; empty for streams."""
        return {}

    def current(self, position: Any) -> Any:
        """Return a position with what the caller asked for since; the position itself if that changes nothing."""
        if self.asked is NOTHING:
            return position
        return self.next_stage(position)

    @property
    def own_records(self) -> tuple[str, ...]:
        """The keys of what a state of this job must say beside the core's part; see `StateRecord`."""
        return ()

    def records(self, position: Any) -> dict[str, Written]:  # noqa: ARG002 a stream needs none
        """Return what a state says beside the core's part, by key."""
        return {}

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """The tables and options that a state is bound to, by name of their source."""
        return {"": self.bound}

    def bounds_before_growth(self, saved: SavedState) -> Mapping[str, Bound]:  # noqa: ARG002 see `StreamJob`
        """Return what a state of before the table grew is bound to."""
        return self.bounds

    @abstractmethod
    def resume(self, saved: SavedState) -> tuple[Self, Position]:
        """Return the job that continues from a state, written on any rank of a job of any size, and its position.

        Args:
            saved: of the tables and options of this job; see `check_state`.

        Raises:
            ResumeError: no job over these tables has such a position.
        """

    def refuse_nulls(self) -> None:
        """Refuse columns in which statistics prove a null, and the output cannot hold one.

        Raises:
            TableError: names the column, a file, and the remedies.
        """
        sensitive = self.codec_of(self.options.samples.width).null_sensitive
        for table in self.tables.values():
            table.refuse_nulls(sensitive.intersection(table.schema.names))

    def check_alone(self) -> None:
        """Refuse what a source of a mixture may be, and a job that is read itself may not.

        Raises:
            ConfigError: names the option.
        """

    @override
    def planned(self, position: Any) -> PlannedStage:
        return planned_at(self, position)

    def warn_of_uneven_steps(self) -> None:
        """Warn if ranks take different numbers of steps, which hangs a job that synchronises each step."""
        warn_of_uneven_stages(self)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return with_padding(self.columns, self.topology)

    @abstractmethod
    def work(self, position: Any) -> LaneWork:
        """Return a value that threads and processes can work on."""

    @abstractmethod
    def rows_of(self, position: Any, step: int, most: int | None = None) -> Sequence[RowSpan | LiveSpan | SourceRow]:
        """Return which rows a batch delivers, or the first `most` of them; see `TableLoader.rows_of`."""

    def files(self, asked: str) -> FilePlaces:
        """Return where files come in an epoch.

        Args:
            asked: what the caller asked for, for the message.

        Raises:
            ConfigError: batches have rows of several files.
        """
        raise ConfigError(_NO_FILES.format(asked))

    @abstractmethod
    def num_rows(self, epoch: int) -> int | None:
        """Count the rows that remain after deletes and filters, over all ranks; None if this rank does not know."""

    @abstractmethod
    def num_samples(self, epoch: int) -> int | None:
        """Count the rows, or sequences, of an epoch, over all ranks, before `drop_last` and padding.

        None if they are not known, or have no end.
        """

    @abstractmethod
    def explain(self, epoch: int) -> Explanation:
        """Return the plan of an epoch and the reasons for it."""

    def close_clients(self) -> None:
        """Close the stores' clients of this process, so that none crosses into another."""
        for table in self.tables.values():
            table.storage.close()

    def codec_of(self, width: int) -> RowsCodec[Any]:
        """Return what decodes the rows of samples of a width.

        Raises:
            ConfigError: a column that the output cannot hold.
        """
        return self.codecs.of(self.schema, self.options, width)

    def codec_at(self, position: Any) -> RowsCodec[Any]:
        """Return what decodes the rows of a stage."""
        return self.codec_of(self.width_of(position))

    def _common_work(self, position: Position, planned: PlannedStage) -> dict[str, Any]:
        """Return the fields that all work of a stage has in common."""
        batching, lanes = self.batching, self.topology.lanes
        block_batches, blocks_ahead = batching.blocks
        return {
            "plan": planned.plan,
            "longest": planned.longest,
            "rank": self.rank,
            "lanes": lanes,
            "servers": threads_of_lanes(lanes),
            "epoch": position.epoch,
            "codec": self.codec_at(position),
            "marks_padding": self.topology.marks_padding,
            "collate_fn": self.options.collate_fn,
            "drop_last": self.options.drop_last,
            "block_batches": block_batches,
            "blocks_ahead": blocks_ahead,
            "batches_at_once": batching.at_once,
        }


def with_padding(schema: pa.Schema, topology: Topology) -> pa.Schema:
    """Add the column that says which rows are padding, where batches have it.

    Raises:
        ConfigError: there is a column of that name.
    """
    if not topology.marks_padding:
        return schema
    if PADDING_COLUMN in schema.names:
        raise ConfigError(
            f"even_ranks={topology.even_ranks!r} adds a column {PADDING_COLUMN!r}, but the table has one of that name; "
            "leave it out of columns=, or pass even_ranks=False"
        )
    return schema.append(pa.field(PADDING_COLUMN, pa.bool_(), nullable=False))
