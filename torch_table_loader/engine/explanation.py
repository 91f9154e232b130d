"""The plan of an epoch, as a value that prints as text and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from torch_table_loader.fact_tables import Cell, Dots, Table, shown
from torch_table_loader.installed import has, load
from torch_table_loader.planning.order_sample import OrderSample
from torch_table_loader.samples import Counted, SampleCounts
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


_MOST_BINS = 16


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Sizes from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True, slots=True)
class SizeCounts:
    """How many things have which size, in bytes.

    Args:
        least: the smallest size; 0 if there are none.
        bins: from the smallest size to the largest, including empty ones between; at most 17.
    """

    least: int
    median: int
    most: int
    bins: tuple[SizeBin, ...]

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Self:
        """Count sizes: int64[n], none negative.

        >>> SizeCounts.of(np.array([0, 5, 6, 17])).bins  # doctest: +NORMALIZE_WHITESPACE
        (SizeBin(start=0, stop=1, count=1), SizeBin(start=1, stop=2, count=0), SizeBin(start=2, stop=4, count=0),
         SizeBin(start=4, stop=8, count=2), SizeBin(start=8, stop=16, count=0), SizeBin(start=16, stop=32, count=1))
        """
        if not len(sizes):
            return cls(0, 0, 0, ())
        least, most = int(sizes.min()), int(sizes.max())
        lowest, highest = max(least, 1).bit_length() - 1, max(most, 1).bit_length()
        width = -(-(highest - lowest) // _MOST_BINS)
        edges = [*([0] if least == 0 else []), *(1 << power for power in range(lowest, highest + width, width))]
        counts = np.histogram(sizes, edges)[0].tolist()
        bins = map(SizeBin, edges[:-1], edges[1:], counts)
        return cls(least, int(np.median(sizes)), most, tuple(bins))


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load of one worker of this rank in the epoch.

    Args:
        num_bytes: their share of the splits' bytes, before compression.
    """

    worker: int
    splits: int
    rows: int
    num_bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The bytes and requests of this rank to an object store in the epoch.

    Args:
        requests: number of requests, if none fails.
        num_bytes: compressed bytes that they fetch.
        amplification: these bytes divided by the bytes that are decoded.
        ahead_bytes: maximum compressed bytes that each process fetches ahead of decoding.
    """

    requests: int
    num_bytes: int
    amplification: float
    ahead_bytes: int

    @classmethod
    def of(cls, requests: int, num_bytes: int, needed_bytes: int, ahead_bytes: int) -> Self:
        """Return the plan where so many bytes are needed of those that are fetched."""
        return cls(requests, num_bytes, num_bytes / max(1, needed_bytes), ahead_bytes)


@dataclass(frozen=True, slots=True)
class PruningStep:
    """The rest of the table after one step of pruning.

    Args:
        files: number of files of which something is left.
        rows: number of rows left; None if unknown.
    """

    name: str
    files: int
    row_groups: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class Explanation(Counted):
    """The plan of an epoch.

    Args:
        files: number of data files of the table.
        row_groups: number of row groups of all files.
        pruned_files: number of files of which no row group is read.
        pruned_row_groups: number of row groups that statistics or partition values rule out.
        rows: physical rows of the table.
        live_rows: rows that remain after deletes and filters, over all ranks; None if this rank does not know.
        stored_bytes: bytes of the files, compressed.
        splits: number of splits of the table.
        strategy: the strategy that cut them.
        epoch: number of the epoch.
        rank: this rank.
        num_ranks: number of ranks.
        batch_size: rows per batch.
        rows_per_rank: rows of each rank; None if a rank knows only its own.
        steps_per_rank: steps of each rank; None likewise.
        steps: steps of this rank; None if rows are not counted.
        workers: the workers of this rank.
        servers: number of threads or processes that serve them here.
        schema: schema of the output.
        memory_expected: bytes of decoded rows in flight that this rank comes to, if values have the assumed widths: the
            bound, or all of its rows if they are fewer.
        memory_bound: maximum of these bytes, however long the table is.
        ranks_on_node: ranks that the launcher started on this machine, each of which may hold as much.
        collated_batches: maximum number of waiting results of the caller's functions, beside those rows; 0 without
            functions. The size of a result is unknown.
        footer_bytes: bytes of footers in memory.
        notes: remarks on what was pruned and why, and what was not.
        kept_rows: rows of the row groups that are read, before deletes and filters.
        undeleted_rows: of those, rows that remain after deletes; None if finding out requires reading.
        file_sizes: sizes of the files, as stored.
        group_sizes: sizes of the row groups, before compression.
        order: a sample of this rank's rows, in the epoch's order.
        fetch: bytes and requests that are fetched ahead; None if none are, or if footers are read with them.
        counts: what is counted of the epoch's samples, over all ranks and before `drop_last` and padding of ranks; None
            if rows are the samples.
    """

    files: int
    row_groups: int
    pruned_files: int
    pruned_row_groups: int
    rows: int
    live_rows: int | None
    stored_bytes: int
    splits: int
    strategy: str
    epoch: int
    rank: int
    num_ranks: int
    batch_size: int
    rows_per_rank: tuple[int, ...] | None
    steps_per_rank: tuple[int, ...] | None
    steps: int | None
    workers: tuple[WorkerLoad, ...]
    servers: int
    schema: tuple[tuple[str, str], ...]
    memory_expected: int
    memory_bound: int
    ranks_on_node: int
    collated_batches: int
    footer_bytes: int
    notes: tuple[str, ...]
    kept_rows: int
    undeleted_rows: int | None
    file_sizes: SizeCounts
    group_sizes: SizeCounts
    order: OrderSample = field(repr=False)
    fetch: FetchPlan | None = None
    counts: SampleCounts | None = None

    @property
    def node_bound(self) -> int:
        """Maximum of the bytes in flight on this machine: of all its ranks, of which each has windows of its own."""
        return self.ranks_on_node * self.memory_bound

    @property
    def pruning(self) -> tuple[PruningStep, ...]:
        """The rest of the table after each step of pruning."""
        files, groups = self.files - self.pruned_files, self.row_groups - self.pruned_row_groups
        return (
            PruningStep("the table", self.files, self.row_groups, self.rows),
            PruningStep("partition values and statistics", files, groups, self.kept_rows),
            PruningStep("deletes", files, groups, self.undeleted_rows),
            PruningStep("the filter", files, groups, self.live_rows),
        )

    def to_html(self, title: str = "") -> str:
        """Return the plan as one HTML file that needs no script and no network.

        Args:
            title: title of the page, such as the table's name; "" for the epoch and the rank.

        Raises:
            MissingExtraError: this build has no HTML pages.
        """
        heading = title or self._heading
        text: str = load("report").page(heading, *self._markup(heading))
        return text

    def _repr_html_(self) -> str | None:
        """Show the page in a notebook; None, for which it shows text instead, if this build has no HTML pages."""
        if not has("report"):
            return None
        text: str = load("report").fragment(*self._markup(self._heading))
        return text

    def __str__(self) -> str:
        """Return the plan as text."""
        return "\n\n".join(map(str, self.parts()))

    def parts(self) -> list[Table | str]:
        """Return what the text consists of."""
        summary = Table(self._shape, {"fact": "", "value": "", "note": ""}, [_in_line(*fact) for fact in self._summary])
        tables = [part for _, *parts in self._sections() for part in parts if isinstance(part, Table)]
        parts: list[Table | str] = [summary, *tables]
        if self.notes:
            parts.append("\n".join(f"note: {note}" for note in self.notes))
        return parts

    def _markup(self, heading: str) -> list[str]:
        """Return what a page shows, from the table to the batches."""
        found: list[str] = load("report").plan_of(heading, self._shape, self._summary, self._sections(), self.notes)
        return found

    @property
    def _heading(self) -> str:
        return f"Epoch {self.epoch}, rank {self.rank} of {self.num_ranks}"

    @property
    def _shape(self) -> str:
        cut = self.strategy
        if self.splits:
            cut = f"{self.splits:,} splits by {cut}"
        return f"Epoch {self.epoch} as rank {self.rank} of {self.num_ranks} reads it: {cut}"

    @property
    def _summary(self) -> list[tuple[Cell, ...]]:
        return [
            ("rows", self.rows, self.live_rows, "live"),
            ("files", self.files),
            ("row groups", self.row_groups),
            ("stored", Size(self.stored_bytes)),
            ("steps of this rank", self.steps, f"of {self.batch_size:,} rows"),
            ("memory", Size(self.memory_expected), "of rows in flight; the bound is", Size(self.memory_bound)),
            *self._of_the_node(),
        ]

    def _sections(self) -> Iterator[tuple[str, *tuple[Table | Dots | str, ...]]]:
        """Yield what is told of the plan: titles with tables, words and pictures. Text has the tables alone."""
        yield "Pruning", "What is left of the table after each step.", self._pruning()
        yield (
            "Files and row groups by size",
            _histogram("Files, as stored", self.file_sizes),
            _histogram("Row groups, before compression", self.group_sizes),
        )
        yield "Ranks and workers", *self._loads()
        yield "Order", *_order(self.order)
        yield "Memory", _facts("Memory", self._memory())
        if (fetch := self.fetch) is not None:
            asked = [("requests", fetch.requests), ("bytes asked for", Size(fetch.num_bytes))]
            more = ("of what is decoded", f"{fetch.amplification:.2f} times")
            yield "Object store", _facts("Object store", [*asked, more])
        if (counts := self.counts) is not None:
            title = counts.key.capitalize()
            yield title, _facts(title, counts.facts)
        yield "Columns", Table("Columns", {"column": "column", "type": "Arrow type"}, self.schema)

    def _pruning(self) -> Table:
        header = {"step": "step", "files": "files", "row_groups": "row groups", "rows": "rows"}
        rows = [
            (f"after {step.name}" if at else step.name, step.files, step.row_groups, step.rows)
            for at, step in enumerate(self.pruning)
        ]
        return Table("Pruning", header, rows, bar="rows")

    def _loads(self) -> Iterator[Table | str]:
        """Yield the load of each worker of this rank, and of each rank."""
        header = {"worker": "worker", "pieces": "pieces", "rows": "rows", "num_bytes": "bytes", "steps": "steps"}
        workers = [
            (f"worker {each.worker}", each.splits, each.rows, Size(each.num_bytes), each.steps) for each in self.workers
        ]
        title = f"Workers of rank {self.rank}, served by {self.servers} threads or processes"
        yield Table(title, header, workers, bar="rows")
        if self.rows_per_rank is None or self.steps_per_rank is None:
            yield "A rank knows only its own rows and steps here, or an epoch has no end; see the notes."
            return
        each = list(zip(self.rows_per_rank, self.steps_per_rank, strict=True))
        loads = [(f"rank {rank}", *load) for rank, load in enumerate(each)]
        totals = [(how, *map(fold, zip(*each, strict=True))) for how, fold in (("least", min), ("most", max))]
        title = "The one rank"
        if self.num_ranks > 1:
            title = f"The {self.num_ranks:,} ranks"
        header = {"rank": "rank", "rows": "rows", "steps": "steps"}
        yield Table(title, header, loads, totals if len(each) > 1 else (), bar="rows")

    def _memory(self) -> Iterator[tuple[Cell, ...]]:
        yield "rows in flight", Size(self.memory_expected)
        yield "rows in flight at most", Size(self.memory_bound)
        yield from self._of_the_node()
        yield "footers that are held", Size(self.footer_bytes)
        if self.fetch is not None:
            yield "fetched ahead at most, a process", Size(self.fetch.ahead_bytes)
        if self.collated_batches:
            yield "collated batches that wait at most", self.collated_batches

    def _of_the_node(self) -> Iterator[tuple[Cell, ...]]:
        if self.ranks_on_node > 1:
            yield f"memory of the {self.ranks_on_node:,} ranks of this node at most", Size(self.node_bound)


def _in_line(name: Cell, value: Cell, *notes: Cell) -> tuple[Cell, ...]:
    return name, value, " ".join(map(shown, notes))


def _facts(title: str, facts: Iterable[tuple[Cell, ...]]) -> Table:
    return Table(title, {"fact": "", "value": ""}, list(facts))


def _histogram(title: str, sizes: SizeCounts) -> Table:
    rows = [(f"from {Size(each.start)}", each.count) for each in sizes.bins]
    spread = f"{Size(sizes.least)} to {Size(sizes.most)}, median {Size(sizes.median)}"
    return Table(f"{title}: {spread}", {"size": "size", "number": "number"}, rows, bar="number")


def _order(order: OrderSample) -> Iterator[Dots | str]:
    """Yield the sampled rows as dots, in the table's order and in the epoch's."""
    if order.unknown:
        yield f"Not shown: {order.unknown}."
        return
    rows, steps, count = max(order.rows, 1), max(order.steps, 1), max(len(order.places), 1)
    before = [(at / count, row / rows) for at, row in enumerate(sorted(row for _, row in order.places))]
    after = [(step / steps, row / rows) for step, row in order.places]
    told = (
        f"{len(order.places):,} rows of this rank. Up: the place in the table, of {order.rows:,} rows. "
        f"Across: the place in the epoch, of {order.steps:,} steps."
    )
    rough = ""
    if not order.exact:
        rough = " Rows that deletes or a filter choose are drawn where their row group has them at first."
    yield told + rough
    yield Dots("Before: the table's order", before, told)
    yield Dots("After: the epoch's order", after, told)
