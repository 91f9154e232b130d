"""The plan of an epoch, as a value that prints as tables and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_table_loader.planning.order_sample import OrderSample
from torch_table_loader.planning.size_counts import SizeCounts
from torch_table_loader.report.charts import MOST_BARS, Bar, Tile, bars, beside, dots, section, table, tiles
from torch_table_loader.report.markup import Markup, element, fragment, number, page, size, size_text

if TYPE_CHECKING:
    from torch_table_loader.planning.pack_counts import PackCounts


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
class Explanation:
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
        memory_bound: maximum bytes of decoded rows in flight, if values have the assumed widths.
        collated_batches: maximum number of waiting results of the caller's functions, beside those rows; 0 without
            functions. The size of a result is unknown.
        footer_bytes: bytes of footers in memory.
        notes: remarks on what was pruned and why, and what was not.
        kept_rows: rows of the row groups that are read, before deletes and filters.
        undeleted_rows: of those, rows that remain after deletes; None if finding out requires reading.
        file_sizes: sizes of the files, as stored.
        group_sizes: sizes of the row groups, before compression.
        order: a sample of this rank's rows, in the epoch's order.
        fetch: bytes and requests to an object store; None if the files are on this machine, or if footers are read with
            them.
        packing: sequences made of the epoch's documents, over all ranks and before `drop_last` and padding of ranks;
            None if rows are not packed.
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
    memory_bound: int
    collated_batches: int
    footer_bytes: int
    notes: tuple[str, ...]
    kept_rows: int
    undeleted_rows: int | None
    file_sizes: SizeCounts
    group_sizes: SizeCounts
    order: OrderSample = field(repr=False)
    fetch: FetchPlan | None = None
    packing: PackCounts | None = None

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
        """
        heading = title or f"Epoch {self.epoch}, rank {self.rank} of {self.num_ranks}"
        return page(heading, *_sections(self, heading))

    def _repr_html_(self) -> str:
        """Show the page in a notebook."""
        return fragment(*_sections(self, f"Epoch {self.epoch}, rank {self.rank} of {self.num_ranks}"))

    def __str__(self) -> str:
        """Return the plan as text."""
        live = "unknown" if self.live_rows is None else f"{self.live_rows:,}"
        steps = "unknown" if self.steps is None else f"{self.steps:,}"
        footers = f"{self.footer_bytes:,}"
        collated = f", plus up to {self.collated_batches:,} collated batches" if self.collated_batches else ""
        lines = [
            (
                f"table      {self.files:,} files, {self.row_groups:,} row groups, {self.rows:,} rows ({live} live), "
                f"{self.stored_bytes:,} bytes stored"
            ),
            f"pruned     {self.pruned_files:,} files, {self.pruned_row_groups:,} row groups",
            f"splits     {self.splits:,} by {self.strategy}",
            f"epoch {self.epoch}    rank {self.rank} of {self.num_ranks}: {steps} steps of {self.batch_size:,} rows",
            f"memory     {self.memory_bound:,} bytes of rows in flight at most{collated}; {footers} of footers",
            *self._fetch_lines(),
            *([] if self.packing is None else [f"packing    {self.packing}"]),
            f"workers    {len(self.workers)}, served by {self.servers} threads or processes",
        ]
        lines += [
            f"  worker {w.worker}: {w.splits:,} pieces, {w.rows:,} rows, {w.num_bytes:,} bytes, {w.steps:,} steps"
            for w in self.workers
        ]
        if self.steps_per_rank is not None and self.rows_per_rank is not None:
            lines += [
                f"  rank {rank}: {rows:,} rows, {count:,} steps"
                for rank, (rows, count) in enumerate(zip(self.rows_per_rank, self.steps_per_rank, strict=True))
            ]
        lines += [f"  {name}: {kind}" for name, kind in self.schema]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _fetch_lines(self) -> list[str]:
        fetch = self.fetch
        if fetch is None:
            return []
        asked = f"{fetch.num_bytes:,} bytes in {fetch.requests:,} requests, {fetch.amplification:.2f} x what is decoded"
        return [f"fetches    {asked}; up to {fetch.ahead_bytes:,} bytes ahead"]


def _sections(plan: Explanation, heading: str) -> list[Markup]:
    """Return what a page shows of a plan, from the table to the batches."""
    shape = f"Epoch {plan.epoch} as rank {plan.rank} of {plan.num_ranks} reads it"
    if plan.splits:
        shape += f": {plan.splits:,} splits by {plan.strategy}"
    parts = [
        Markup(element("h1", heading) + element("p", shape, class_="faint") + _tiles(plan)),
        section("Pruning", element("p", "What is left of the table after each step.", class_="faint"), _pruning(plan)),
        section("Files and row groups by size", _sizes(plan)),
        section("Ranks and workers", _loads(plan)),
        section("Order", _order(plan.order)),
        section("Memory", _memory(plan)),
    ]
    if plan.fetch is not None:
        parts.append(section("Object store", _fetches(plan.fetch)))
    if plan.packing is not None:
        parts.append(section("Packing", _packing(plan.packing)))
    parts.append(section("Columns", table(("column", "Arrow type"), plan.schema)))
    if plan.notes:
        parts.append(section("Notes", element("ul", *(element("li", note) for note in plan.notes))))
    return parts


def _tiles(plan: Explanation) -> Markup:
    live = Markup(f"{number(plan.live_rows)} live")
    return tiles(
        [
            Tile("rows", number(plan.rows), live),
            Tile("files", number(plan.files)),
            Tile("row groups", number(plan.row_groups)),
            Tile("stored", size(plan.stored_bytes)),
            Tile("steps of this rank", number(plan.steps), f"of {plan.batch_size:,} rows"),
            Tile("memory", size(plan.memory_bound), "of rows in flight at most"),
        ]
    )


def _pruning(plan: Explanation) -> Markup:
    lines = [
        Bar(f"after {step.name}" if at else step.name, step.rows or 0, (step.files, step.row_groups, step.rows))
        for at, step in enumerate(plan.pruning)
    ]
    return bars(("step", "rows", "files", "row groups", "rows"), lines)


def _sizes(plan: Explanation) -> Markup:
    return beside(
        _histogram("Files, as stored", plan.file_sizes), _histogram("Row groups, before compression", plan.group_sizes)
    )


def _histogram(title: str, sizes: SizeCounts) -> Markup:
    lines = [Bar(f"from {size_text(each.start)}", each.count, (each.count,)) for each in sizes.bins]
    spread = ("least", sizes.least), ("median", sizes.median), ("most", sizes.most)
    told = ", ".join(f"{name} {size(value)}" for name, value in spread)
    return Markup(
        element("h3", title) + bars(("size", "", "number"), lines) + element("p", Markup(told), class_="faint")
    )


def _loads(plan: Explanation) -> Markup:
    """Return charts of the rows of each worker of this rank, and of each rank."""
    workers = [
        Bar(f"worker {each.worker}", each.rows, (each.splits, each.rows, size_text(each.num_bytes), each.steps))
        for each in plan.workers
    ]
    own = element("h3", f"Workers of rank {plan.rank}, served by {plan.servers} threads or processes")
    own_chart = bars(("worker", "rows", "pieces", "rows", "bytes", "steps"), workers)
    title = element("h3", f"The {plan.num_ranks:,} ranks" if plan.num_ranks > 1 else "The one rank")
    if plan.rows_per_rank is None or plan.steps_per_rank is None:
        why = "A rank knows only its own rows and steps here, or an epoch has no end; see the notes."
        return beside(Markup(own + own_chart), Markup(title + element("p", why)))
    loads = list(enumerate(zip(plan.rows_per_rank, plan.steps_per_rank, strict=True)))
    lines = [Bar(f"rank {rank}", rows, (rows, steps)) for rank, (rows, steps) in loads]
    told = ""
    if len(lines) > MOST_BARS:
        rows, steps = plan.rows_per_rank, plan.steps_per_rank
        spread = f"All ranks: {min(rows):,} to {max(rows):,} rows, {min(steps):,} to {max(steps):,} steps."
        told = element("p", spread, class_="faint")
    ranks = Markup(title + bars(("rank", "rows", "rows", "steps"), lines) + told)
    return beside(Markup(own + own_chart), ranks)


def _order(order: OrderSample) -> Markup:
    """Return the sampled rows as dots, in the table's order and in the epoch's."""
    if order.unknown:
        return element("p", f"Not shown: {order.unknown}.")
    rows, steps, count = max(order.rows, 1), max(order.steps, 1), max(len(order.places), 1)
    before = [(at / count, row / rows) for at, row in enumerate(sorted(row for _, row in order.places))]
    after = [(step / steps, row / rows) for step, row in order.places]
    told = (
        f"{len(order.places):,} rows of this rank. Up: the place in the table, of {order.rows:,} rows. "
        f"Across: the place in the epoch, of {order.steps:,} steps."
    )
    rough = (
        ""
        if order.exact
        else " Rows that deletes or a filter choose are drawn where their row group has them at first."
    )
    pictures = [
        Markup(element("h3", title) + dots(places, f"{title}: {told}"))
        for title, places in (("Before: the table's order", before), ("After: the epoch's order", after))
    ]
    return Markup(element("p", told + rough, class_="faint") + beside(*pictures))


def _memory(plan: Explanation) -> Markup:
    lines = [("rows in flight at most", size(plan.memory_bound)), ("footers that are held", size(plan.footer_bytes))]
    if plan.fetch is not None:
        lines.append(("fetched ahead at most, a process", size(plan.fetch.ahead_bytes)))
    if plan.collated_batches:
        lines.append(("collated batches that wait at most", number(plan.collated_batches)))
    return table((), lines)


def _fetches(fetch: FetchPlan) -> Markup:
    lines = [
        ("requests", number(fetch.requests)),
        ("bytes asked for", size(fetch.num_bytes)),
        ("of what is decoded", f"{fetch.amplification:.2f} times"),
    ]
    return table((), lines)


def _packing(packing: PackCounts) -> Markup:
    lines = [
        ("tokens of a sequence", number(packing.seq_len) if packing.seq_len else "several lengths"),
        ("sequences", number(packing.sequences)),
        ("tokens", number(packing.tokens)),
        ("full", "unknown" if packing.fill is None else f"{100 * packing.fill:.2f} %"),
        ("documents or parts of them", number(packing.parts)),
        ("documents split", number(packing.split)),
        ("documents truncated", number(packing.truncated)),
        ("documents dropped", number(packing.dropped)),
    ]
    return table((), lines)
