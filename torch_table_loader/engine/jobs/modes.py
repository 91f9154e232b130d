"""The orders that `shuffle=` can name, and the job of each: the only place that knows their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_table_loader.engine.jobs.stream_opening import open_stream

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
    """Open this rank's share of a table, in the order that the caller asked for; see `open_stream`.

    Items are gathered one by one, so `split_deletes` and `lazy` mean nothing to them.
    """
    if options.shuffle == "rows":
        from torch_table_loader.engine.jobs.indexed_job import IndexedJob
        from torch_table_loader.engine.jobs.packed_items import PackedItems
        from torch_table_loader.engine.jobs.table_rows import TableRows

        items = TableRows if options.pack is None else PackedItems
        return IndexedJob.of(items.survey(source, options, cache), options, ranks)
    return open_stream(source, options, ranks, cache, split_deletes=split_deletes, lazy=lazy)
