"""A sample of an epoch's rows: where each lies in the table, and where in the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow

if TYPE_CHECKING:
    from torch_table_loader.planning.layout import TableLayout

MOST_STEPS = 64
MOST_ROWS = 384
"""Few steps, because each may cost the permutation of a shuffle window."""


@dataclass(frozen=True, slots=True)
class OrderSample:
    """Rows of one rank, in the order in which the epoch delivers them.

    Args:
        places: for each row, its place in the epoch, in steps, and in the table, in rows; the tables of a mixture
            follow one another.
        exact: whether each place in the table is exact. Which rows of a row group remain after deletes or a filter is
            not known without reading: such a row is placed at the first position that it can have, in the right row
            group.
        unknown: why the order is not known before it is read; "" if it is known.
    """

    places: tuple[tuple[float, int], ...]
    steps: int
    rows: int
    exact: bool = True
    unknown: str = ""

    @classmethod
    def missing(cls, why: str) -> OrderSample:
        """Return the sample of an order that is not known, with the reason, which the reader sees."""
        return cls((), 0, 0, unknown=why)


def sample_order(
    rows_of: Callable[[int, int], Sequence[RowSpan | LiveSpan | SourceRow]],
    steps: int,
    batch_size: int,
    layouts: Mapping[str, TableLayout],
) -> OrderSample:
    """Sample the order of an epoch: the first rows of some of its steps.

    A single table has the name "" in `layouts`.

    Args:
        rows_of: returns the rows that a step delivers, up to a maximum number.
    """
    chosen = np.unique(np.linspace(0, max(0, steps - 1), min(steps, MOST_STEPS)).astype(np.int64)).tolist()
    share = min(batch_size, MOST_ROWS // max(1, len(chosen)))
    found: list[tuple[float, RowSpan | LiveSpan | SourceRow, int]] = []
    for step in chosen:
        rows = _rows(rows_of(step, share))
        found += [(step + at / batch_size, span, row) for at, (span, row) in enumerate(rows)]
    starts = _starts(layouts, [span for _, span, _ in found])
    places = tuple((place, _place(span, at, starts)) for place, span, at in found)
    exact = not any(isinstance(span, LiveSpan) for _, span, _ in found)
    return OrderSample(places, steps, sum(layout.num_rows for layout in layouts.values()), exact)


def _rows(
    spans: Sequence[RowSpan | LiveSpan | SourceRow],
) -> Iterator[tuple[RowSpan | LiveSpan | SourceRow, int]]:
    """Yield each row of some spans: its span, and its offset in the span."""
    for span in spans:
        for row in range(_length(span)):
            yield span, row


def _length(span: RowSpan | LiveSpan | SourceRow) -> int:
    if isinstance(span, RowSpan):
        return span.row_stop - span.row_start
    if isinstance(span, LiveSpan):
        return span.last - span.first + 1
    return 1


def _starts(
    layouts: Mapping[str, TableLayout], spans: Sequence[RowSpan | LiveSpan | SourceRow]
) -> dict[tuple[str, int], int]:
    """Return the first place of each source, and of the files and row groups in the spans."""
    starts: dict[tuple[str, int], int] = {}
    named = {span.file for span in spans if not isinstance(span, SourceRow)}
    before = 0
    for name, layout in layouts.items():
        if named:
            for number, file in enumerate(layout.files):
                if file.name in named:
                    starts[file.name, -1] = before + int(layout.file_starts[number])
                    groups = layout.groups_of(number)
                    starts |= {
                        (file.name, at): before + int(layout.group_starts[each]) for at, each in enumerate(groups)
                    }
        else:
            starts[name, -1] = before
        before += layout.num_rows
    return starts


def _place(span: RowSpan | LiveSpan | SourceRow, at: int, starts: Mapping[tuple[str, int], int]) -> int:
    if isinstance(span, SourceRow):
        return starts[span.source, -1] + span.row_id
    if isinstance(span, LiveSpan):
        return starts[span.file, span.row_group] + span.first + at
    return starts[span.file, -1] + span.row_start + at
