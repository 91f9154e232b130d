"""What commands print: text and tables for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch_table_loader.errors import ConfigError
from torch_table_loader.report.markup import size_text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header.

    Args:
        title: the line above.
        columns: the header of each column, by its key in JSON.
        rows: one value a column; None is not known.
        totals: lines below the rows, which JSON lacks.
        sizes: keys of the columns that hold numbers of bytes.
        most: rows that are printed; JSON holds all.
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
        """Which columns hold numbers."""
        shown = [*self.rows, *self.totals]
        columns: Any = zip(*shown, strict=True) if shown else [("",)] * len(self.columns)
        return [all(value is None or isinstance(value, int | float) for value in column) for column in columns]

    @property
    def cells(self) -> list[list[str]]:
        """The lines that are printed."""
        sizes = [key in self.sizes for key in self.columns]
        shown = [*self.rows[: self.most], *self.totals]
        return [[_cell(value, of_bytes) for value, of_bytes in zip(row, sizes, strict=True)] for row in shown]

    @property
    def left_out(self) -> str:
        """A line that says how many rows are not printed, or nothing."""
        left = len(self.rows) - self.most
        return f"… and {left:,} more (--lines 0 shows all)" if left > 0 else ""

    def __str__(self) -> str:
        """Lay the rows out as plain text; numbers stand to the right.

        >>> print(Table("files", {"file": "file", "num_rows": "rows"}, [["a", 1200], ["b", None]]))
        files
          file   rows
          a     1,200
          b         ?
        """
        header, cells = list(self.columns.values()), self.cells
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        lines = [
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, self.to_the_right, strict=True)
            ).rstrip()
            for line in (header, *cells)
        ]
        lines += [self.left_out] if self.left_out else []
        return "\n".join([self.title, *(f"  {line}" for line in lines)])


def show(typed: argparse.Namespace, value: Any, *parts: str | Table) -> None:
    """Print one JSON object with ``--json``, else text and tables with a line between.

    Args:
        typed: what was typed.
        value: for programs; what JSON has no form for becomes text.
        parts: for people.
    """
    if typed.json:
        sys.stdout.write(json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")
        return
    drawn = sys.stdout.isatty() and find_spec("rich") is not None
    for number, part in enumerate(parts):
        sys.stdout.write("\n" if number else "")
        if drawn and isinstance(part, Table):
            _draw(part)
        else:
            sys.stdout.write(f"{part}\n")


def _draw(table: Table) -> None:
    """Print a table that fits the terminal, in colour."""
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
    """Return whether a progress bar is drawn: on a terminal, with tqdm, and without ``--quiet``."""
    return not getattr(typed, "quiet", False) and sys.stderr.isatty() and find_spec("tqdm") is not None


def write_page(path: str, page: str) -> None:
    """Write an HTML file, which replaces one that is there.

    Args:
        path: of the file.
        page: what it holds.

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
