"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


def render(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], more: str = "") -> str:
    """Lay rows out under a header; numbers stand to the right.

    Args:
        title: the line above.
        header: names of the columns.
        rows: ints with thousands apart, other values as they print, None as "?".
        more: a line below, for rows that are left out.

    >>> print(render("files", ["file", "rows"], [["a", 1200], ["b", None]]))
    files
      file   rows
      a     1,200
      b         ?
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [
        bool(rows) and all(value is None or isinstance(value, int | float) for value in column)
        for column in (zip(*rows, strict=True) if rows else [()] * len(header))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (header, *cells)
    ]
    return "\n".join([title, *(f"  {line}" for line in lines), *([f"  {more}"] if more else [])])


def _cell(value: object) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
