"""How a mixture of streams reads its sources, and what it holds of them: each as a single stream of its share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from torch_table_loader.engine.jobs.stream_memory import Reading, lane_bytes
from torch_table_loader.engine.jobs.stream_notes import notes_of_mixing
from torch_table_loader.engine.machine import threads_of_lanes
from torch_table_loader.engine.work.stream_work import StreamWork
from torch_table_loader.mixtures.mixed_stream_work import SourceWork, StreamPart
from torch_table_loader.mixtures.mixed_windows import MixingCost, rows_of_a_batch
from torch_table_loader.planning.lanes import RankPlan
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.runs import NO_RUNS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows, RowsCodec
    from torch_table_loader.engine.jobs.stream_job import StreamJob
    from torch_table_loader.mixtures.rounds import DealtStage, Rest, Rounds, RoundSection
    from torch_table_loader.mixtures.source_form import SourceForm
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.ranges import FetchSettings
    from torch_table_loader.read.tasks import TaskReader

    Ints: TypeAlias = NDArray[np.int64]


def cost_of(source: StreamJob) -> MixingCost | None:
    """Return what mixing the splits of a source costs; None if they are not mixed."""
    if source.topology.mixing is None:
        return None
    held = source.table.open_bytes(source.reader.reads, source.read_rows, source.row_bytes, decides_order=True)
    return MixingCost(source.units.num_bytes, held)


@dataclass(frozen=True, slots=True, eq=False)
class SourceReading:
    """How a rank of a mixture reads one source in a stage.

    Args:
        options: of the mixture.
        rank: of the mixture's ranks.
    """

    name: str
    source: StreamJob
    options: LoaderOptions
    stage: DealtStage
    rank: int
    fetching: FetchSettings

    @property
    def readers(self) -> int:
        """Threads that read splits side by side, of those that all sources share; 0: the lane reads them."""
        threads = threads_of(self.options, mixes=self.name in self.stage.mixed)
        return -(-threads // max(1, len(self.stage.mixed)))

    def part(self, rounds: Rounds, rest: Rest, form: SourceForm, common: Mapping[str, Any]) -> StreamPart:
        """Return what reads what is left of the source.

        Args:
            common: what all work of a stage has in common; see `Job.work`.
        """
        own = {**self._common(rounds, common), "codec": form.reads(), "whose": f"source {self.name!r}: "}
        return StreamPart(rounds, rest, SourceWork(**own, reader=self.source.reader, form=form))

    def ids(
        self, rounds: Rounds, found: RoundSection, items: Sequence[int], common: Mapping[str, Any]
    ) -> list[list[int]]:
        """Return the row ids of the documents under some items of a section; this reads the documents."""
        key, width = rounds.packs_key(common["epoch"], found.round), self.stage.deal.width
        own = self._common(rounds, common)
        read: list[Rows] = []

        def rows_of(item: int) -> Callable[[TaskReader, RowsCodec[Any]], list[Rows]]:
            def rows(reader: TaskReader, codec: RowsCodec[Any]) -> list[Rows]:
                if not read:
                    work = StreamWork(**{**own, "codec": codec, "windows": found.windows}, reader=reader)
                    read.append(codec.concat(list(work.rows_of_section(found.section, 0))))
                return [read[0].slice(item * width, min((item + 1) * width, read[0].num_rows))]

            return rows

        parts = self.source.samples.parts
        return [parts.rows_under(self.source, rows_of(item), key, width).tolist() for item in items]

    def _common(self, rounds: Rounds, common: Mapping[str, Any]) -> dict[str, Any]:
        """Return what reads the source's sections beside reader and codec; the mixture makes the batches."""
        deal = self.stage.deal
        plan = RankPlan((), NO_RUNS, rows_of_a_batch(deal, self.name), 0, deals=self.name in self.stage.mixed)
        return {
            **common,
            "plan": plan,
            "lanes": common["lanes"] * len(deal.names),
            "marks_padding": False,
            "collate_fn": None,
            "segments": rounds.segments,
            "windows": (),
            "seed": rounds.seed,
            "fetching": self.fetching,
            "readers": self.readers,
            "read_rows": self.source.units.of_rows(self.source.read_rows),
        }

    def told(self, codec: RowsCodec[Any]) -> SourceTold:
        """Return what `explain()` says of the source, as of a single stream that has its share of each batch."""
        source, deal, mixing = self.source, self.stage.deal, self.stage.mixed.get(self.name)
        rows = rows_of_a_batch(deal, self.name)
        lanes, ranks = deal.topology.lanes, deal.topology.num_ranks
        topology = Topology(ranks, lanes, rows, mixing)
        names = ("num_workers", "worker_type", "prefetch_batches")
        own = {name: getattr(self.options, name) for name in names}
        options = replace(source.options, **own, batch_size=max(1, rows // deal.width), num_ranks=None, rank=None)
        stream = replace(source, options=options, topology=topology, planner=source.planner.with_topology(topology))
        planned = stream.planner.plan(stream.planner.start(0), self.rank)
        notes = notes_of_mixing(stream.planner, options, self.rank, source.stage)
        about = source.table, source.reader.reads, source.read_rows, source.stage, self.readers, codec, source.units
        held, opened = lane_bytes(stream, Reading(*about), planned)
        return SourceTold(held, opened, [f"source {self.name!r}: {note}" for note in notes])


class SourceTold(NamedTuple):
    """What `explain()` says of a source: bytes of rows that a lane holds, bytes of files that are open, and notes."""

    lane_bytes: int
    open_bytes: int
    notes: list[str]


def threads_of(options: LoaderOptions, *, mixes: bool) -> int:
    """Return how many threads read splits side by side, where they are mixed; with no worker, the caller's does."""
    if not mixes or options.num_workers == 0:
        return 0
    return threads_of_lanes(options.lanes)
