"""The results of ``torch-table-loader bench``, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_table_loader.report.charts import Bar, Tile, bars, section, tiles
from torch_table_loader.report.markup import element, number, page


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one batch size; medians over the rounds, except for the best ones.

    Args:
        loader_rows_per_second: rows per second of the loader.
        bare_rows_per_second: rows per second of pyarrow, which only decodes.
        ratio: the loader's speed over pyarrow's in one round.
        share_waiting: the share of the loader's time that its caller waited for batches.
    """

    batch_size: int
    loader_rows_per_second: int
    loader_best: int
    bare_rows_per_second: int
    bare_best: int
    ratio: float
    ratio_best: float
    share_waiting: float


def bench_page(title: str, told: str, results: Sequence[Result]) -> str:
    """Return the page: rows per second by batch size beside bare decoding, and the share of time spent waiting."""
    fastest = max(results, key=lambda each: each.loader_rows_per_second)
    boxes = [
        Tile("fastest", number(fastest.loader_rows_per_second), f"rows a second, {fastest.batch_size:,} a batch"),
        Tile("beside bare decoding", f"{fastest.ratio:.0%}", "of its speed, in the same round"),
        Tile("waiting", f"{fastest.share_waiting:.0%}", "of the time, by a loop that does nothing else"),
    ]
    speeds = [
        Bar(f"{each.batch_size:,} rows: {name}", rate, (rate, best))
        for each in results
        for name, rate, best in (
            ("loader", each.loader_rows_per_second, each.loader_best),
            ("pyarrow", each.bare_rows_per_second, each.bare_best),
        )
    ]
    waits = [
        Bar(f"{each.batch_size:,} rows", each.share_waiting, (f"{each.share_waiting:.0%}", f"{each.ratio:.2f}"))
        for each in results
    ]
    return page(
        title,
        element("h1", title),
        *(element("p", line, class_="faint") for line in told.splitlines()),
        tiles(boxes),
        section("Rows a second by batch size", bars(("batch", "median", "rows/s", "best"), speeds)),
        section(
            "Share of time waited",
            element(
                "p",
                "The measuring loop takes batches and does nothing else. It waits where the workers are slower than it "
                "is; the rest of the time goes into handing batches over. In training, a step hides waiting for as "
                "long as the step takes.",
            ),
            bars(("batch", "waited", "share", "loader/pyarrow"), waits, longest=1.0),
        ),
    )
