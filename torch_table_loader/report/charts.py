"""Tiles, tables, bars and dots: what pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch_table_loader.report.markup import Markup, element, number

Cell: TypeAlias = str | int | None

MOST_BARS = 16
"""Lines of a chart; the others are named in a line below."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number that a page begins with."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of a chart.

    Args:
        length: of its bar, in any unit that all lines have.
        cells: what is written behind the bar.
    """

    name: str
    length: float
    cells: tuple[Cell, ...]


def tiles(shown: Iterable[Tile]) -> Markup:
    """Lay numbers out side by side, as many as the width has room for."""
    boxes = [
        element(
            "div",
            element("dt", each.name),
            element("dd", each.value),
            *([element("dd", element("small", each.note))] if each.note else []),
        )
        for each in shown
    ]
    return element("dl", *boxes, class_="tiles")


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    """Return a table of text, as wide as that is; the first cell of a line is its name.

    Args:
        header: names of the columns; empty for none.
    """
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", each) for each in others))
        for first, *others in lines
    ]
    names = [element("th", each, scope="col") for each in header]
    head = [element("thead", element("tr", *names))] if names else []
    return element("table", *head, element("tbody", *body), class_="narrow")


def bars(header: Sequence[str], lines: Sequence[Bar], longest: float | None = None) -> Markup:
    """Return a chart of horizontal bars, as a table.

    Args:
        header: the name of the lines, of the bars, and of each cell behind them.
        lines: of which the first are drawn.
        longest: the length that fills a line; without it, that of the longest bar.
    """
    most = max((line.length for line in lines), default=0) if longest is None else longest
    body = [
        element(
            "tr",
            element("th", line.name, scope="row"),
            element("td", bar(line.length / most if most else 0.0), class_="chart"),
            *(_cell(each) for each in line.cells),
        )
        for line in lines[:MOST_BARS]
    ]
    chart = element("table", _head(header), element("tbody", *body))
    if len(lines) <= MOST_BARS:
        return chart
    return Markup(chart + element("p", f"… and {len(lines) - MOST_BARS:,} more", class_="faint"))


def bar(share: float) -> Markup:
    """Draw a share from 0 to 1 as the filled part of a line."""
    drawn = element("rect", width="100", height="10", class_="track")
    filled = element("rect", width=f"{100 * share:.2f}", height="10", class_="mark")
    return element("svg", drawn, filled, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar", role="img")


def dots(places: Iterable[tuple[float, float]], label: str) -> Markup:
    """Draw points of the unit square, (0, 0) being at the bottom left.

    Args:
        places: each across and up, from 0 to 1.
        label: what a reader who does not see them is told.
    """
    drawn = [element("circle", cx=f"{2 + 196 * x:.1f}", cy=f"{198 - 196 * y:.1f}", r="1.1") for x, y in places]
    group = element("g", *drawn, class_="mark")
    return element("svg", group, viewBox="0 0 200 200", class_="dots", role="img", aria_label=label)


def section(title: str, *children: str) -> Markup:
    """Return a part of a page under its title."""
    return element("section", element("h2", title), *children)


def beside(*parts: str) -> Markup:
    """Lay parts out side by side where there is room, else below each other."""
    return element("div", *(element("div", part) for part in parts), class_="beside")


def _head(header: Sequence[str]) -> Markup:
    line, chart, *cells = header
    names = [element("th", each, scope="col") for each in (line, chart)]
    names += [element("th", each, scope="col", class_="number") for each in cells]
    return element("thead", element("tr", *names))


def _cell(value: Cell) -> Markup:
    return element("td", value if isinstance(value, str) else number(value), class_="number")
