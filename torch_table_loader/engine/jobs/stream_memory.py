"""How many bytes a job that reads splits may hold: of rows, of open files, and of what was fetched for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch_table_loader.engine.sizing import (
    CHUNK_BYTES,
    batches_in_flight,
    mixed_rows_in_flight,
    reads_ahead,
    rows_in_flight,
)
from torch_table_loader.errors import ConfigError
from torch_table_loader.ranges import far
from torch_table_loader.sizes import sizes
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_table_loader.batching.rows import RowsCodec
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.jobs.planner import PlannedStream
    from torch_table_loader.engine.jobs.resolve import Units
    from torch_table_loader.engine.table import Table
    from torch_table_loader.engine.work.stream_work import StreamWork
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.read.row_stage import RowStage


class Reading(NamedTuple):
    """How a lane reads its table.

    Args:
        rows: that it reads at a time, of these columns.
        threads: that read splits side by side, where they are mixed; else 0.
        codec: of the rows.
        units: what batches count.
    """

    table: Table
    columns: Sequence[str]
    rows: int
    stage: RowStage | None
    threads: int
    codec: RowsCodec[Any]
    units: Units


def lane_bytes(job: Job, reading: Reading, planned: PlannedStream) -> tuple[int, int]:
    """Return what a lane may hold of its rows, and what the files that it has open hold beside them."""
    options, batching, window, opened = job.options, job.batching, planned.plan.most_of_window, 1
    largest = int(reading.table.layout.group_rows.max(initial=0))
    reading = reading._replace(rows=min(reading.rows, int(planned.segments.metadata_rows.max(initial=1))))
    # Of windows, those that wait are as large as they are; another one fills from a read, and counts twice as it turns.
    most = max(window, reading.rows, options.most_rows)
    rows = rows_in_flight(options, most, batching.blocks) + 2 * window + min(window, reading.rows)
    held = rows * job.row_bytes
    if (mixing := job.topology.mixing) is not None:
        opened = min(mixing.splits, len(planned.segments.splits))
        held = _mixed_bytes(job, reading, planned, opened)
    if largest <= reading.rows < 2 * largest:
        opened = min(opened, max(1, reading.threads))  # what is decoded as one is held while it is decoded
    # A part that is decoded as one lives until its last rows are taken; meanwhile, each reader decodes another.
    table, columns, readers = reading.table, reading.columns, max(1, reading.threads)
    lanes = max(1, sum(runs.num_rows > 0 for runs in planned.plan.lanes))
    decoded, lived = (-(-table.part_bytes(columns, lanes * some) // lanes) for some in (readers, opened + readers))
    open_bytes = max(opened * table.open_bytes(columns, reading.rows, job.row_bytes) + decoded, lived)
    open_bytes += table.beyond_bytes(columns, job.row_bytes, options.most_rows, 2)  # a batch is joined of both
    if window:  # it may have all rows that are large, whichever lane's it is
        open_bytes += -(-2 * table.beyond_bytes(columns, job.row_bytes, window, opened) // lanes)
    if reading.stage is None or batching.at_once is None:
        return held, open_bytes
    block = min(reading.stage.block_rows or 0, largest)
    # Rows are here as they were read, as they are joined, and some as the stage makes others of them.
    table_rows = max(reading.rows, block) * job.row_bytes
    table_rows = 2 * table_rows + min(table_rows, CHUNK_BYTES // 2)
    dealt = None if mixing is None else -(-window // options.batch_rows)
    batches = batches_in_flight(options, batching.at_once, batching.blocks, dealt)
    made = batches * options.batch_rows * batching.unit_bytes
    if mixing is not None:  # each split that is open, or read ahead, has a block of its own
        blocks = (opened + 1 + reads_ahead(reading.threads)) * block
        rows = min(blocks, reading.units.in_rows(planned.plan.own_rows))
        return held + made, open_bytes + table_rows + 2 * rows * job.row_bytes
    return window * batching.unit_bytes + made, open_bytes + table_rows


def _mixed_bytes(job: Job, reading: Reading, planned: PlannedStream, opened: int) -> int:
    """Return what a lane may hold of its rows where it mixes splits, of which so many are open: windows, and reads.

    A piece of a window keeps the whole read that it views. Two reads are in use beside those of the open splits, others
    wait, and a piece may span several. Decoded rows have a null bit for each column.
    """
    window, units = planned.plan.most_of_window, reading.units
    rows = mixed_rows_in_flight(job.options, window, reading.codec.dealing_copies(window), job.batching.blocks)
    read = (opened + 2 + reads_ahead(reading.threads)) * reading.rows + units.in_rows(window // max(1, opened))
    kept = units.num_bytes * min(units.of_rows(read), planned.plan.own_rows)
    if reading.stage is None:
        kept = read * (job.row_bytes + -(-len(reading.columns) // 8))
    return rows * units.num_bytes + kept


def refuse_beyond_memory(job: Job) -> None:
    """Refuse to hold more than the caller allows, if the caller limits it.

    Raises:
        ConfigError: says what would be held, of what, and what holds less.
    """
    options = job.options
    if not options.limits_memory or (told := job.explain(0)).memory_bound <= options.memory:
        return
    unit_bytes = Size(job.batching.unit_bytes)
    raise ConfigError(
        f"shuffle_buffer_size={options.shuffle_buffer_size!r} is the memory of a rank, which may come to "
        f"{Size(told.memory_bound)} with {options.lanes} workers, rows of {unit_bytes} in batches of "
        f"{options.most_rows:,}, and row groups of up to {Size(told.group_sizes.most)}; pass a smaller "
        "batch_size, fewer num_workers, fewer columns=, or more memory"
    )


def cost_of_fetching(work: StreamWork) -> tuple[int, int, int]:
    """Add up what a rank fetches in a stage: requests, bytes, and those of them that are decoded."""
    requests = num_bytes = needed = 0
    for needs in work.needs():
        more, bytes_of = far().cost_of(needs)
        requests, num_bytes = requests + more, num_bytes + bytes_of
        needed += sum(stop - start for group in needs.groups for start, stop in group)
    return requests, num_bytes, needed


def fetched_at_once(
    layout: TableLayout, ahead_bytes: int, lanes: int, fetched: tuple[int, int, int] | None, *, keeps: bool = False
) -> int:
    """Return the most fetched bytes that are here: those ahead, and the row groups that lanes wait for.

    Args:
        fetched: requests, bytes, and needed bytes of an epoch; None if they are unknown.
        keeps: whether files are here that came whole while planning, as a part of `ahead_bytes`.
    """
    request = min(sizes().far_request_bytes, int(layout.file_bytes.max(initial=0)))
    group = max(request, int(layout.group_bytes.max(initial=0)))
    most = ahead_bytes + lanes * group
    if fetched is None:
        return most
    if keeps:
        return min(most, max(fetched[1], int(layout.file_bytes.sum())))
    return min(most, fetched[1])
