"""Output of commands: text and tables for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch_table_loader.errors import ConfigError
from torch_table_loader.report.markup import size_text

_PLAIN_WIDTH = 80
"""Width of a pipe or a file, unless the environment gives another number."""

_LEAST_WIDTH = 40
_GAP = 2
_INDENT = 2

_UPRIGHT = {"row": "row", "column": "column", "value": "value"}
_LEAST_TEXT = 8
"""Text is folded into a column of at least this width."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header.

    Args:
        columns: the header of each column, by its key in JSON.
        rows: one value for each column; None if unknown.
        totals: lines below the rows, which JSON leaves out.
        sizes: keys of the columns that contain numbers of bytes.
        most: the most rows that are printed; JSON has all.
    """

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[object]]
    totals: Sequence[Sequence[object]] = ()
    sizes: tuple[str, ...] = ()
    most: int = sys.maxsize

    def records(self) -> list[dict[str, object]]:
        """Return the rows for JSON, with exact numbers."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def to_the_right(self) -> list[bool]:
        """Whether each column contains numbers."""
        shown = [*self.rows, *self.totals]
        columns: Any = zip(*shown, strict=True) if shown else [("",)] * len(self.columns)
        return [all(value is None or isinstance(value, int | float) for value in column) for column in columns]

    @property
    def cells(self) -> list[list[str]]:
        """The lines to print."""
        sizes = [key in self.sizes for key in self.columns]
        shown = [*self.rows[: self.most], *self.totals]
        return [[_cell(value, of_bytes) for value, of_bytes in zip(row, sizes, strict=True)] for row in shown]

    @property
    def left_out(self) -> str:
        """A line that says how many rows are not printed, or an empty string."""
        left = len(self.rows) - self.most
        return f"… and {left:,} more (--lines 0 shows all)" if left > 0 else ""

    def __str__(self) -> str:
        """Format the rows as plain text, with numbers aligned to the right.

        >>> print(Table("files", {"file": "file", "num_rows": "rows"}, [["a", 1200], ["b", None]]))
        files
          file   rows
          a     1,200
          b         ?
        """
        return self.text(sys.maxsize)

    def text(self, width: int) -> str:
        """Format the rows as plain text of a given width; longer cells are folded, and nothing is cut."""
        widths = self._widths(width)
        if widths is None:
            return "\n".join(filter(None, (self._as_records().text(width), self.left_out)))
        right, header = self.to_the_right, list(self.columns.values())
        lines = [line for row in (header, *self.cells) for line in _folded(row, widths, right)]
        lines += [self.left_out] if self.left_out else []
        return "\n".join([wrapped(self.title, width), *(f"{' ' * _INDENT}{line}" for line in lines)])

    def fits(self, width: int) -> bool:
        """Return whether all columns fit side by side."""
        return self._widths(width) is not None

    def _as_records(self) -> Table:
        """Return a table of three columns with a line for each cell, for rows that are too wide."""
        names = list(self.columns.values())
        rows: list[Sequence[object]] = []
        for number, cells in enumerate(self.cells, 1):
            rows += [
                (number if at == 0 else "", name, text)
                for at, (name, text) in enumerate(zip(names, cells, strict=True))
            ]
        return Table(self.title, _UPRIGHT, rows)

    def _widths(self, width: int) -> list[int] | None:
        """Return the width of each column; None if they do not fit."""
        header, cells = list(self.columns.values()), self.cells
        widths, least = [], []
        for name, right, *column in zip(header, self.to_the_right, *cells, strict=True):
            widths.append(max(map(len, (name, *column))))
            whole = max((len(text) for text in (*name.split(), *column)), default=0)  # numbers are not folded
            least.append(min(widths[-1], whole if right else _LEAST_TEXT))
        room = width - _INDENT - _GAP * (len(widths) - 1)
        if sum(least) > room and len(header) > len(_UPRIGHT):
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
    indent = len(label[0]) if label else len(line) - len(line.lstrip()) + _INDENT
    further = " " * indent
    return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def width_of_output() -> int:
    """Return the width of standard output; a pipe has 80 columns, unless the variable COLUMNS gives another number."""
    if sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    said = os.environ.get("COLUMNS", "")
    return max(int(said), _LEAST_WIDTH) if said.isdecimal() and int(said) else _PLAIN_WIDTH


def show(typed: argparse.Namespace, value: Any, *parts: str | Table) -> None:
    """Print one JSON object with ``--json``, else text and tables separated by empty lines.

    Args:
        value: the value for programs; types that JSON lacks become text.
    """
    if typed.json:
        sys.stdout.write(json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")
        return
    drawn, width = sys.stdout.isatty() and find_spec("rich") is not None, width_of_output()
    for number, part in enumerate(parts):
        sys.stdout.write("\n" if number else "")
        if drawn and isinstance(part, Table) and part.fits(width):
            _draw(part)
        else:
            sys.stdout.write(f"{part.text(width) if isinstance(part, Table) else wrapped(part, width)}\n")


def _draw(table: Table) -> None:
    """Print a table that fits the terminal, in color."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name, right in zip(table.columns.values(), table.to_the_right, strict=True):
        grid.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for line in table.cells:
        grid.add_row(*map(Text, line))
    console = Console(file=sys.stdout, highlight=False)
    console.print(Text(table.title, "bold"), grid, sep="\n")
    if table.left_out:
        console.print(Text(table.left_out, "dim"))


def wants_bar(typed: argparse.Namespace) -> bool:
    """Return whether to draw a progress bar: on a terminal, with tqdm, and without ``--quiet``."""
    return not getattr(typed, "quiet", False) and sys.stderr.isatty() and find_spec("tqdm") is not None


def write_page(path: str, page: str) -> None:
    """Write an HTML file, replacing an existing one.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html must name a file that can be written, got {path!r}: {error.strerror}") from error


def _cell(value: object, of_bytes: bool) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return size_text(value) if of_bytes else f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
