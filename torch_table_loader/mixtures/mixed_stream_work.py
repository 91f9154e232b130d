"""The work of a rank that reads a mixture of streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.engine.work.lane_work import LaneWork
from torch_table_loader.engine.work.stream_work import StreamWork
from torch_table_loader.errors import TableError
from torch_table_loader.ranges import PlannedRead, fetch_ahead, in_order

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.contracts import RangeStorage
    from torch_table_loader.mixtures.dealing import Deal
    from torch_table_loader.mixtures.rounds import DealtStage, Rest, Rounds, RoundSection
    from torch_table_loader.mixtures.source_form import SourceForm
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.ranges import Fetcher, FetchSettings

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SourceWork(StreamWork):
    """Reads sections of one source of a mixture.

    Args:
        form: makes items of the mixture from those of the source.
        padding: whether they only fill up the rank's last batch.
    """

    form: SourceForm
    padding: bool = False

    @override
    def decode(self, batch: pa.RecordBatch) -> Rows:
        return self.form.decode(batch, padding=self.padding)


@dataclass(frozen=True, slots=True, eq=False)
class StreamPart:
    """One source of a mixture of streams: what is left of it where a stage begins, and what reads it."""

    rounds: Rounds
    rest: Rest
    work: SourceWork

    def work_of(self, found: RoundSection, *, padding: bool = False) -> SourceWork:
        """Return what reads a section of a round: what a block makes comes in another order in each round."""
        key = self.rounds.packs_key(self.work.epoch, found.round)
        reader = self.work.reader.of_epoch(key, shuffle=self.rounds.shuffle)
        return replace(self.work, reader=reader, windows=found.windows, padding=padding)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MixedStreamWork(LaneWork):
    """Everything that a thread or process needs to read its lanes of several sources; it pickles.

    Args:
        parts: the sources, in the order of the deal's names.
        joined_batches: batches that are put together at once.
        fetching: how remote files are fetched, with one budget for all sources.
        threads: that read splits side by side, where they are mixed; with 0, the lane reads them.
    """

    plan: GlobalBatches
    stage: DealtStage
    parts: tuple[StreamPart, ...]
    joined_batches: int
    fetching: FetchSettings
    threads: int = 0

    @property
    def deal(self) -> Deal:
        """Which source comes at each place."""
        return self.stage.deal

    @property
    @override
    def collated_at_once(self) -> int:
        return max(1, self.threads)  # the lane is the rank's only one, where splits are mixed

    @override
    def fetch_ahead(self, begun: Mapping[int, int], *, joins: bool) -> Fetcher | None:
        far = [number for number in self._wanted if self.fetching.applies_to(self.parts[number].work.reader.storage)]
        if not far:
            return None
        plans = [self._planned_reads(lane, start, number) for lane, start in begun.items() for number in far]
        return fetch_ahead(self.parts[far[0]].work.reader.storage, in_order(plans), self.fetching)

    @override
    def rows(self, lane: int, start: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
        with ExitStack() as stack:
            streams = {number: _Stream(self._stream(lane, start, number, ahead)) for number in self._wanted}
            for stream in streams.values():
                stack.enter_context(closing(stream))
            for block in self.plan.steps_of(lane, start, self.joined_batches):
                steps = [step for step in block if not self.plan.pads or step < self.plan.full_steps]
                if steps:
                    places, _ = self.plan.places_of(steps)
                    source = self.deal.sources(places - self.plan.start)
                    counts = np.bincount(source, minlength=len(self.parts)).tolist()
                    parts = [rows for number, stream in streams.items() for rows in stream.take(counts[number])]
                    yield self._joined(parts, source)
                if len(steps) < len(block):
                    yield self._padded_tail()

    @property
    def _wanted(self) -> list[int]:
        return [number for number, weight in enumerate(self.deal.weights) if weight]

    def _sections(self, lane: int, start: int, number: int) -> Iterator[RoundSection]:
        """Yield what a lane reads of a source."""
        part = self.parts[number]
        place = min((lane + start * self.lanes) * self.deal.step_rows, self.deal.total)
        return part.rounds.of_channel(part.rest, self.epoch, self.stage, (self.rank, lane), place)

    def _stream(self, lane: int, start: int, number: int, ahead: Fetcher | None) -> Iterator[Rows]:
        part = self.parts[number]
        if not self.fetching.applies_to(part.work.reader.storage):
            ahead = None
        for found in self._sections(lane, start, number):
            yield from _items(part.work_of(found), found, self._fetch_lane(lane, number), ahead)

    def _planned_reads(self, lane: int, start: int, number: int) -> Iterator[PlannedRead]:
        """Return what a lane reads of a source, and after how many rows of all sources it comes to it."""
        part, before = self.parts[number], 0
        storage = cast("RangeStorage", part.work.reader.storage)
        scale, weight = sum(self.deal.weights), self.deal.weights[number] * self.deal.width
        for found in self._sections(lane, start, number):
            for read in part.work_of(found).reads_of(self._fetch_lane(lane, number), [found.section]):
                at = (before + read.rows_before) * scale // weight
                yield read._replace(rows_before=at, storage=storage)
            before += found.end - found.section.skip

    def _fetch_lane(self, lane: int, number: int) -> int:
        """Return what the fetcher takes for a lane: a lane reads all its sources side by side."""
        return lane * len(self.parts) + number

    def _joined(self, parts: list[Rows], source: NDArray[np.int16]) -> Rows:
        """Bring rows that lie source by source into the order in which they come."""
        rows = parts[0] if len(parts) == 1 else self.codec.concat(parts)
        if not (source[1:] < source[:-1]).any():
            return cast("Rows", rows)
        back = np.empty(len(source), dtype=np.int64)
        back[np.argsort(source, kind="stable")] = np.arange(len(source))
        return cast("Rows", rows.take(back))

    def _padded_tail(self) -> Rows:
        """Read the last step, whose places are those of channels of other ranks too."""
        places, padding = self.plan.places_of([self.plan.full_steps])
        places -= self.plan.start
        parts: list[Rows] = []
        order: list[Ints] = []
        for number in self._wanted:
            for pads in (False, True):
                chosen = np.flatnonzero((self.deal.sources(places) == number) & (padding == pads))
                if len(chosen):
                    for rows, at in self._read_places(number, places[chosen], padding=pads):
                        parts.append(rows)
                        order.append(chosen[at])
        back = np.empty(len(places), dtype=np.int64)
        back[np.concatenate(order)] = np.arange(len(places))
        return cast("Rows", self.codec.concat(parts).take(back))

    def _read_places(self, number: int, places: Ints, *, padding: bool) -> Iterator[tuple[Rows, Ints]]:
        """Read the items at some places of one source; yield some of them, and which places these are."""
        part = self.parts[number]
        for found, items in part.rounds.at(part.rest, self.epoch, self.stage, places):
            work = part.work_of(found, padding=padding)
            read = list(work.form.items(work.rows_picked(found.section, self._fetch_lane(0, number))))
            yield self.codec.concat(read).take(items[:, 1]), items[:, 0]


def _items(work: SourceWork, found: RoundSection, lane: int, ahead: Fetcher | None = None) -> Iterator[Rows]:
    """Read items that follow one another in a round."""
    with closing(work.rows_of_section(found.section, lane, ahead)) as rows:  # type: ignore[type-var]
        yield from work.form.items(rows)


class _Stream:
    """The items of one source of a lane, of which one takes as many as one needs."""

    def __init__(self, rows: Iterator[Rows]) -> None:
        self._rows = rows
        self._rest: Rows | None = None

    def take(self, count: int) -> list[Rows]:
        """Return the next items, in parts that follow one another."""
        found = []
        while count:
            rows = self._rest or next(self._rows, None)
            if rows is None:
                raise TableError(
                    "a source of the mixture has fewer rows than its file metadata and counts promise; build the "
                    "loader again, without its plan_cache"
                )
            taken = min(count, rows.num_rows)
            found.append(rows.slice(0, taken) if taken < rows.num_rows else rows)
            self._rest = rows.slice(taken, rows.num_rows) if taken < rows.num_rows else None
            count -= taken
        return found

    def close(self) -> None:
        """Close the file that is open."""
        self._rest = None
        self._rows.close()  # type: ignore[attr-defined]
