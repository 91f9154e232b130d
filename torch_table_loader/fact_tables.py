"""Facts as tables: records for JSON, and text of any width; and whoever makes HTML of them, if this build can."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeAlias

from torch_table_loader.installed import has, load
from torch_table_loader.units import Size

_GAP = 2
_INDENT = 2
_LEAST_TEXT = 8
"""Text is folded into a column of at least this width."""

Cell: TypeAlias = str | int | float | None
"""None is what nobody knows."""


def shown(value: Cell) -> str:
    """Format a value.

    >>> shown(8400), shown(Size(2048)), shown(0.5), shown(None)
    ('8,400', '2 KiB', '0.50', 'unknown')
    """
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int) and not isinstance(value, bool | Size):
        return f"{value:,}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header.

    Args:
        columns: the header of each column, by its key in JSON; no header is shown where all of them are empty.
        totals: lines below the rows, which JSON leaves out.
        most: the most rows that are printed as text; JSON has all.
        bar: key of a column of numbers of which HTML draws bars.
    """

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[Any]]
    totals: Sequence[Sequence[Any]] = ()
    most: int = sys.maxsize
    bar: str = ""

    def records(self) -> list[dict[str, Any]]:
        """Return the rows for JSON, with exact numbers."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __str__(self) -> str:
        """Format the rows as plain text, with numbers aligned to the right.

        >>> print(Table("files", {"file": "file", "num_rows": "rows"}, [["a", 1200], ["b", Size(2048)]]))
        files
          file   rows
          a     1,200
          b     2 KiB
        """
        return self.text(sys.maxsize)

    def text(self, width: int, strong: Callable[[str], str] = str) -> str:
        """Format the rows as plain text of a given width; longer cells are folded, and nothing is cut."""
        header, right = list(self.columns.values()), self.are_numbers()
        cells = [list(map(shown, row)) for row in (*self.rows[: self.most], *self.totals)]
        widths = _widths(header, cells, right, width)
        if widths is None:
            return self._upright(header, cells).text(width, strong)
        lines = []
        if self.title:
            lines.append(strong(wrapped(self.title, width)))
        if any(header):
            lines += [strong(f"{' ' * _INDENT}{line}") for line in _folded(header, widths, right)]
        lines += [f"{' ' * _INDENT}{line}" for row in cells for line in _folded(row, widths, right)]
        return "\n".join([*lines, *self.left_out(self.most, " " * _INDENT)])

    def are_numbers(self) -> list[bool]:
        """Return of each column whether it has nothing but numbers."""
        lines = [*self.rows, *self.totals]
        columns: Any = zip(*lines, strict=True) if lines else [("",)] * len(self.columns)
        return [all(value is None or isinstance(value, int | float) for value in column) for column in columns]

    def left_out(self, most: int, before: str = "") -> list[str]:
        """Return the line below so many rows, if there are more."""
        left = len(self.rows) - most
        if left > 0:
            return [f"{before}… and {left:,} more"]
        return []

    def _upright(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Return a table of three columns with a line for each cell, for rows that are too wide."""
        lines = [
            (number if at == 0 else "", name, text)
            for number, row in enumerate(rows, 1)
            for at, (name, text) in enumerate(zip(names, row, strict=True))
        ]
        left = [("", "", line) for line in self.left_out(self.most)]
        return Table(self.title, {"row": "row", "column": "column", "value": "value"}, [*lines, *left])


def _widths(
    header: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[bool], width: int
) -> list[int] | None:
    """Return the width of each column; None if they do not fit side by side."""
    widths, least = [], []
    for name, are_numbers, *column in zip(header, numbers, *cells, strict=True):
        widths.append(max(map(len, (name, *column))))
        whole = max((len(text) for text in (*name.split(), *column)), default=0)  # numbers are not folded
        least.append(min(widths[-1], whole if are_numbers else _LEAST_TEXT))
    room = width - _INDENT - _GAP * (len(widths) - 1)
    if sum(least) > room and len(header) > 3:
        return None
    while sum(widths) > room and widths != least:
        widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _folded(row: Sequence[str], widths: Sequence[int], to_the_right: Sequence[bool]) -> Iterator[str]:
    """Yield the lines of a row."""
    parts = [
        [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)
        for text, width in zip(row, widths, strict=True)
    ]
    for line in zip_longest(*parts, fillvalue=""):
        cells = zip(line, widths, to_the_right, strict=True)
        yield (" " * _GAP).join(text.rjust(size) if right else text.ljust(size) for text, size, right in cells).rstrip()


def wrapped(text: str, width: int) -> str:
    r"""Break lines at spaces; text without spaces, such as a path, is not broken.

    >>> print(wrapped("note: a job of many ranks\nsplits     7 by TargetSizeStrategy", 20))
    note: a job of many
      ranks
    splits     7 by
               TargetSizeStrategy
    """
    return "\n".join(map(partial(_wrapped_line, width=width), text.split("\n")))


def _wrapped_line(line: str, width: int) -> str:
    label = re.match(r"\s*\S+\s{2,}", line)
    indent = len(line) - len(line.lstrip()) + _INDENT
    if label:
        indent = len(label[0])
    further = " " * indent
    return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True, slots=True)
class Dots:
    """Points of the unit square, (0, 0) being at the bottom left. Text has no picture of them.

    Args:
        places: each across and up, from 0 to 1.
        label: what a reader who does not see them is told.
    """

    title: str
    places: Sequence[tuple[float, float]]
    label: str


def html_of(*parts: Table | str) -> str | None:
    """Return what a notebook shows; None, for which it shows text instead, if this build has no HTML pages."""
    if not has("report"):
        return None
    text: str = load("report").shown(*parts)
    return text
