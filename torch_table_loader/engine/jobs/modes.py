"""The orders that `shuffle=` can name, and the job of each: the only place that knows their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.engine.jobs.indexed_job import IndexedJob
from torch_table_loader.engine.jobs.stream_job import StreamJob
from torch_table_loader.engine.jobs.table_rows import TableRows

if TYPE_CHECKING:
    from torch_table_loader.contracts import Source
    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.rank_info import RankInfo
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.source.plan_cache import PlanCache


def open_job(
    source: Source,
    options: LoaderOptions,
    ranks: RankInfo,
    cache: PlanCache | None,
    *,
    split_deletes: bool = False,
    lazy: bool = False,
) -> Job:
    """Open this rank's share of a table, in the order that the caller asked for.

    Args:
        source: the table.
        options: the caller's.
        ranks: this rank, of how many.
        cache: footers and counts that are kept; or None.
        split_deletes: whether files that have deletes may be cut; items that are gathered need no cut.
        lazy: plan by the table's metadata, and read footers with the files.

    Raises:
        ConfigError: an option does not fit the table or another option.
        TableError: the table cannot be read as it was asked for.
    """
    if options.shuffle == "rows":
        return IndexedJob.of(TableRows.survey(source, options, cache), options, ranks)
    return StreamJob.open(source, options, ranks, cache, split_deletes=split_deletes, lazy=lazy)
