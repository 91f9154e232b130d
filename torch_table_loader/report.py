"""Facts as tables: records for JSON, text of any width, and HTML that needs no script and no network."""

from __future__ import annotations

import html
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from torch_table_loader.units import Size

_GAP = 2
_INDENT = 2
_LEAST_TEXT = 8
"""Text is folded into a column of at least this width."""

MOST_BARS = 16
"""Lines of a chart; a line below says how many there are more."""


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
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool | Size) else str(value)


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
        header, right = list(self.columns.values()), self._are_numbers()
        cells = [list(map(shown, row)) for row in (*self.rows[: self.most], *self.totals)]
        widths = _widths(header, cells, right, width)
        if widths is None:
            return self._upright(header, cells).text(width, strong)
        lines = [strong(wrapped(self.title, width))] if self.title else []
        if any(header):
            lines += [strong(f"{' ' * _INDENT}{line}") for line in _folded(header, widths, right)]
        lines += [f"{' ' * _INDENT}{line}" for row in cells for line in _folded(row, widths, right)]
        return "\n".join([*lines, *self._left_out(self.most, " " * _INDENT)])

    def html(self) -> Markup:
        """Return the rows as HTML; the first cell of a row is its name, and its bar, if any, comes behind it."""
        header: list[str] = list(self.columns.values())
        rows, totals, most = [*map(tuple, self.rows)], [*map(tuple, self.totals)], sys.maxsize
        kinds = ["number" if self.bar or are_numbers else None for are_numbers in self._are_numbers()]
        if self.bar:
            at, most = list(self.columns).index(self.bar), MOST_BARS
            longest = max((row[at] or 0 for row in rows), default=0) or 1
            header.insert(1, self.columns[self.bar])
            kinds.insert(1, "chart")
            rows = [(row[0], _bar((row[at] or 0) / longest), *row[1:]) for row in rows]
            totals = [(row[0], Markup(), *row[1:]) for row in totals]
        kinds[0] = None
        head = [element("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True)]
        table = element(
            "table",
            *([element("thead", element("tr", *head))] if any(header) else []),
            element("tbody", *(_line(row, kinds) for row in rows[:most])),
            *([element("tfoot", *(_line(row, kinds) for row in totals))] if totals else []),
            class_="wide" if self.bar else "narrow",
        )
        title = [element("h3", self.title)] if self.title else []
        more = [element("p", line, class_="faint") for line in self._left_out(most)]
        return Markup("".join((*title, table, *more)))

    def _are_numbers(self) -> list[bool]:
        lines = [*self.rows, *self.totals]
        columns: Any = zip(*lines, strict=True) if lines else [("",)] * len(self.columns)
        return [all(value is None or isinstance(value, int | float) for value in column) for column in columns]

    def _left_out(self, most: int, before: str = "") -> list[str]:
        left = len(self.rows) - most
        return [f"{before}… and {left:,} more"] if left > 0 else []

    def _upright(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Return a table of three columns with a line for each cell, for rows that are too wide."""
        lines = [
            (number if at == 0 else "", name, text)
            for number, row in enumerate(rows, 1)
            for at, (name, text) in enumerate(zip(names, row, strict=True))
        ]
        left = [("", "", line) for line in self._left_out(self.most)]
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
    indent = len(label[0]) if label else len(line) - len(line.lstrip()) + _INDENT
    further = " " * indent
    return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


class Markup(str):
    """Text that is markup; any other text is escaped where it enters an element."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | None) -> Markup:
    """Return an element, what is inside and its attributes escaped.

    Args:
        attributes: by name, of which None is left out; ``class_`` is ``class``.

    >>> element("td", "a & b", class_="number")
    '<td class="number">a &amp; b</td>'
    """
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    pairs = "".join(f' {name}="{_escaped(value)}"' for name, value in names.items())
    return Markup(f"<{tag}{pairs} />" if tag == "meta" else f"<{tag}{pairs}>{''.join(map(_escaped, children))}</{tag}>")


def _escaped(text: str) -> Markup:
    """Return text as markup; what cannot be printed, such as a mark that turns writing around, becomes U+FFFD."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape("".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)))


def number(value: Cell) -> Markup:
    """Return a value as markup, a number with its exact value.

    >>> number(8400), number(None)
    ('<data value="8400">8,400</data>', 'unknown')
    """
    if isinstance(value, int):
        return element("data", shown(value), value=f"{value:d}")
    return value if isinstance(value, Markup) else _escaped(shown(value))


def _line(row: Sequence[Cell], kinds: Sequence[str | None]) -> Markup:
    first, *others = map(number, row)
    cells = [element("td", value, class_=kind) for value, kind in zip(others, kinds[1:], strict=True)]
    return element("tr", element("th", first, scope="row"), *cells)


def _bar(share: float) -> Markup:
    return element("div", element("div", style=f"width: {100 * share:.2f}%"), class_="bar")


def tiles(facts: Iterable[Sequence[Cell]]) -> Markup:
    """Lay facts out side by side: each a name, a value, and what is to be said of the value."""
    boxes = []
    for name, value, *notes in facts:
        note = Markup(" ".join(map(number, notes)).strip())
        small = [element("dd", element("small", note))] if note else []
        boxes.append(element("div", element("dt", shown(name)), element("dd", number(value)), *small))
    return element("dl", *boxes, class_="tiles")


def dots(title: str, places: Iterable[tuple[float, float]], label: str) -> Markup:
    """Draw points of the unit square, (0, 0) being at the bottom left.

    Args:
        places: each across and up, from 0 to 1.
        label: what a reader who does not see them is told.
    """
    drawn = [element("circle", cx=f"{2 + 196 * x:.1f}", cy=f"{198 - 196 * y:.1f}", r="1.1") for x, y in places]
    picture = element("svg", *drawn, viewBox="0 0 200 200", role="img", aria_label=f"{title}: {label}")
    return Markup(element("h3", title) + picture)


def section(title: str, *parts: str) -> Markup:
    """Return a part of a page under its title; markup is laid out side by side where there is room."""
    text = [element("p", part, class_="faint") for part in parts if not isinstance(part, Markup)]
    side_by_side = [element("div", part) for part in parts if isinstance(part, Markup)]
    beside = [element("div", *side_by_side, class_="beside")] if side_by_side else []
    return element("section", element("h2", title), *text, *beside)


_SCOPE: Final = "torch-table-loader"
"""The class of all that is shown, so that its style touches nothing else of a notebook."""

_STYLE: Final = """
& { --ink: #1f2328; --faint: #59636e; --paper: #ffffff; --line: #d1d9e0; --mark: #2a6fdb; --track: #eef1f4;
  color: var(--ink); background: var(--paper); font: 14px/1.5 system-ui, sans-serif; padding: 1px 16px;
  text-align: left; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { & { --ink: #e6edf3; --faint: #9aa4af; --paper: #0d1117; --line: #3d444d;
  --mark: #6ea8fe; --track: #1c2128; } }
& h1 { font-size: 24px; line-height: 1.25; margin: 24px 0 4px; }
& h2 { font-size: 17px; margin: 32px 0 8px; padding-bottom: 4px; border-bottom: 1px solid var(--line); }
& h3 { font-size: 14px; margin: 8px 0 4px; }
& p { margin: 4px 0 8px; max-width: 80ch; }
& .faint { color: var(--faint); }
& section, & .beside > div { min-width: 0; overflow-x: auto; }
& .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px; margin: 16px 0; }
& .tiles > div { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
& .tiles dt, & .tiles small { color: var(--faint); font-size: 12px; font-weight: normal; display: block; }
& .tiles dd { margin: 0; font-size: 18px; font-weight: 600; }
& .beside { display: grid; gap: 8px 40px; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); }
& table { border-collapse: collapse; margin: 4px 0 8px; font-size: 13px; width: 100%; }
& table.narrow { width: auto; }
& th, & td { padding: 3px 12px 3px 0; text-align: left; vertical-align: middle; font-weight: normal; border: 0;
  background: none; color: var(--ink); }
& table.wide th { overflow-wrap: normal; }
& th[scope=col], & tfoot th, & tfoot td { color: var(--faint); }
& .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
& .chart { width: 45%; }
& .bar { min-width: 48px; background: var(--track); }
& .bar div { height: 12px; background: var(--mark); }
& svg { display: block; width: 100%; max-width: 420px; border-left: 1px solid var(--faint);
  border-bottom: 1px solid var(--faint); fill: var(--mark); }
@media (max-width: 560px) { & { padding: 1px 10px; } & .chart { width: 25%; } & .tiles {
  grid-template-columns: 1fr 1fr; } & th, & td { padding-right: 8px; font-size: 12px; } }
"""
"""Light or dark as the reader's system is; readable from 390 pixels on."""

_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head>
<meta charset="utf-8" /><meta name="viewport" content="width=device-width, initial-scale=1" />
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'" />
<meta name="color-scheme" content="light dark" />
<title>{title}</title><style>
body {{ margin: 0; background: #ffffff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #0d1117; }} }}
body > .torch-table-loader {{ max-width: 1100px; margin: 0 auto; padding-bottom: 40px; }}
</style></head><body>{body}</body></html>
"""
"""An HTML file of its own, which tells the browser to load nothing but its own style."""


def fragment(*children: str) -> Markup:
    """Return what a notebook shows: markup with its style, which holds for it alone."""
    return element("div", element("style", Markup(_STYLE.replace("&", f".{_SCOPE}"))), *children, class_=_SCOPE)


def page(title: str, *children: str) -> str:
    """Return an HTML file of its own."""
    return _PAGE.format(title=_escaped(title), body=fragment(*children))
