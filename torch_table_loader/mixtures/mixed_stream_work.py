"""The work of a rank that reads a mixture of streams."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
from typing_extensions import override

from torch_table_loader.engine.work.lane_work import LaneWork
from torch_table_loader.errors import TableError
from torch_table_loader.mixtures.rounds import RoundRuns
from torch_table_loader.planning.runs import Runs
from torch_table_loader.ranges import PlannedRead, fetch_ahead, in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.contracts import RangeStorage, Storage
    from torch_table_loader.mixtures.dealing import Deal
    from torch_table_loader.mixtures.rounds import Rest, Rounds
    from torch_table_loader.mixtures.source_form import SourceForm
    from torch_table_loader.planning.global_batches import GlobalBatches
    from torch_table_loader.ranges import Fetcher, FetchSettings
    from torch_table_loader.read.tasks import TaskReader

    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StreamPart:
    """One source of a mixture of streams.

    Args:
        form: makes items of the mixture from those of the source.
    """

    rounds: Rounds
    rest: Rest
    reader: TaskReader
    form: SourceForm

    def reader_of(self, epoch: int, number: int) -> TaskReader:
        """Return what reads a round of an epoch: what a block makes comes in another order in each."""
        return self.reader.of_epoch(self.rounds.packs_key(epoch, number), shuffle=self.rounds.shuffle)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MixedStreamWork(LaneWork):
    """Everything that a thread or process needs to read its lanes of several sources; it pickles.

    Args:
        parts: the sources, in the order of the deal's names.
        joined_batches: batches that are put together at once.
        fetching: how remote files are fetched, with one budget for all sources.
    """

    plan: GlobalBatches
    deal: Deal
    parts: tuple[StreamPart, ...]
    joined_batches: int
    fetching: FetchSettings

    @override
    def fetch_ahead(self, begun: Mapping[int, int], *, joins: bool) -> Fetcher | None:
        far = [number for number in self._wanted if self.fetching.applies_to(self.parts[number].reader.storage)]
        if not far:
            return None
        plans = [self._planned_reads(lane, start, number) for lane, start in begun.items() for number in far]
        return fetch_ahead(self.parts[far[0]].reader.storage, in_order(plans), self.fetching)

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

    def _runs(self, lane: int, start: int, number: int) -> Iterator[RoundRuns]:
        """Yield what a lane reads of a source."""
        part = self.parts[number]
        place = min((lane + start * self.lanes) * self.deal.step_rows, self.deal.total)
        return part.rounds.of_channel(part.rest, self.epoch, self.deal, (self.rank, lane), place)

    def _stream(self, lane: int, start: int, number: int, ahead: Fetcher | None) -> Iterator[Rows]:
        if not self.fetching.applies_to(self.parts[number].reader.storage):
            ahead = None
        for runs in self._runs(lane, start, number):
            yield from self._items(number, runs, self._fetch_lane(lane, number), ahead)

    def _items(
        self, number: int, runs: RoundRuns, lane: int = 0, ahead: Fetcher | None = None, *, padding: bool = False
    ) -> Iterator[Rows]:
        """Read items that follow one another in a round."""
        part = self.parts[number]
        reader = part.reader_of(self.epoch, runs.round)

        def read() -> Generator[Rows]:
            for run in runs.runs:
                yield from self._read(number, reader, run, None if ahead is None else ahead.next_read(lane), padding)

        with closing(read()) as rows:
            yield from part.form.items(rows)

    def _planned_reads(self, lane: int, start: int, number: int) -> Iterator[PlannedRead]:
        """Return what a lane reads of a source, and after how many rows of all sources it comes to it."""
        part, before = self.parts[number], 0
        storage = cast("RangeStorage", part.reader.storage)
        scale, weight = sum(self.deal.weights), self.deal.weights[number] * self.deal.width
        for _, runs in self._runs(lane, start, number):
            for split, begin, end in runs:
                find = partial(part.reader.needs, part.rounds.segments.task(split, begin, end))
                at = before * scale // weight
                yield PlannedRead(at, self._fetch_lane(lane, number), end - begin, find, storage)
                before += end - begin

    def _fetch_lane(self, lane: int, number: int) -> int:
        """Return what the fetcher takes for a lane: a lane reads all its sources side by side."""
        return lane * len(self.parts) + number

    def _read(
        self, number: int, reader: TaskReader, run: tuple[int, int, int], storage: Storage | None, padding: bool
    ) -> Iterator[Rows]:
        part, (split, begin, end) = self.parts[number], run
        segments = part.rounds.segments
        task = segments.task(split, begin, end)
        name = segments.splits.layout.files[task.file_index].name
        for batch in reader.read(task, storage):
            try:
                yield part.form.decode(batch, padding=padding)
            except TableError as error:
                raise TableError(f"source {self.deal.names[number]!r}: {name}: {error}") from error

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
        parts, order = [], []
        for number in self._wanted:
            for pads in (False, True):
                chosen = np.flatnonzero((self.deal.sources(places) == number) & (padding == pads))
                if len(chosen):
                    parts += self._read_places(number, places[chosen], padding=pads)
                    order.append(chosen)
        back = np.empty(len(places), dtype=np.int64)
        back[np.concatenate(order)] = np.arange(len(places))
        return cast("Rows", self.codec.concat(parts).take(back))

    def _read_places(self, number: int, places: Ints, *, padding: bool) -> list[Rows]:
        """Read the items at some places of one source: rows that follow one another are read together."""
        part = self.parts[number]
        items = part.rounds.at(part.rest, self.epoch, self.deal, places)
        if self.deal.width > 1:
            return [rows for item in items for rows in self._items(number, item, padding=padding)]
        rows = [(round_, split, begin) for round_, runs in items for split, begin, _ in runs]
        found, back = np.unique(np.array(rows, dtype=np.int64), axis=0, return_inverse=True)
        fresh = (np.diff(found, axis=0) != (0, 0, 1)).any(axis=1)
        firsts = np.concatenate(([0], np.flatnonzero(fresh) + 1, [len(found)]))
        read: list[Rows] = []
        for first, stop in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
            round_, split, begin = found[first].tolist()
            runs = RoundRuns(round_, Runs.of([(split, begin, begin + stop - first)]))
            read += self._items(number, runs, padding=padding)
        return [cast("Rows", self.codec.concat(read).take(back.reshape(-1)))]


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
