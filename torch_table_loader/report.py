"""Facts as HTML that needs no script and no network: tables, charts and pages."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from torch_table_loader.fact_tables import Cell, Dots, Table
from torch_table_loader.fact_tables import shown as said

MOST_BARS = 16
"""Lines of a chart; a line below says how many there are more."""


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
    if tag == "meta":
        return Markup(f"<{tag}{pairs} />")
    return Markup(f"<{tag}{pairs}>{''.join(map(_escaped, children))}</{tag}>")


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
        return element("data", said(value), value=f"{value:d}")
    if isinstance(value, Markup):
        return value
    return _escaped(said(value))


def _line(row: Sequence[Cell], kinds: Sequence[str | None]) -> Markup:
    first, *others = map(number, row)
    cells = [element("td", value, class_=kind) for value, kind in zip(others, kinds[1:], strict=True)]
    return element("tr", element("th", first, scope="row"), *cells)


def _bar(share: float) -> Markup:
    return element("div", element("div", style=f"width: {100 * share:.2f}%"), class_="bar")


def table_of(table: Table) -> Markup:
    """Return rows as HTML; the first cell of a row is its name, and its bar, if any, comes after it."""
    header: list[str] = list(table.columns.values())
    rows, totals, most = [*map(tuple, table.rows)], [*map(tuple, table.totals)], sys.maxsize
    kinds, width = ["number" if table.bar or are_numbers else None for are_numbers in table.are_numbers()], "narrow"
    if table.bar:
        width = "wide"
        at, most = list(table.columns).index(table.bar), MOST_BARS
        longest = max((row[at] or 0 for row in rows), default=0) or 1
        header.insert(1, table.columns[table.bar])
        kinds.insert(1, "chart")
        rows = [(row[0], _bar((row[at] or 0) / longest), *row[1:]) for row in rows]
        totals = [(row[0], Markup(), *row[1:]) for row in totals]
    kinds[0] = None
    head = [element("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True)]
    parts = [element("tbody", *(_line(row, kinds) for row in rows[:most]))]
    if any(header):
        parts.insert(0, element("thead", element("tr", *head)))
    if totals:
        parts.append(element("tfoot", *(_line(row, kinds) for row in totals)))
    drawn = [element("table", *parts, class_=width)]
    if table.title:
        drawn.insert(0, element("h3", table.title))
    more = [element("p", line, class_="faint") for line in table.left_out(most)]
    return Markup("".join((*drawn, *more)))


def tiles(facts: Iterable[Sequence[Cell]]) -> Markup:
    """Lay facts out side by side: each a name, a value, and what is to be said of the value."""
    boxes = []
    for name, value, *notes in facts:
        box = [element("dt", said(name)), element("dd", number(value))]
        if note := Markup(" ".join(map(number, notes)).strip()):
            box.append(element("dd", element("small", note)))
        boxes.append(element("div", *box))
    return element("dl", *boxes, class_="tiles")


def picture_of(dots: Dots) -> Markup:
    """Draw points."""
    drawn = [element("circle", cx=f"{2 + 196 * x:.1f}", cy=f"{198 - 196 * y:.1f}", r="1.1") for x, y in dots.places]
    picture = element("svg", *drawn, viewBox="0 0 200 200", role="img", aria_label=f"{dots.title}: {dots.label}")
    return Markup(element("h3", dots.title) + picture)


def section(title: str, *parts: Table | Dots | str) -> Markup:
    """Return a part of a page under its title; tables and pictures lie side by side where there is room."""
    inside = [element("p", part, class_="faint") for part in parts if isinstance(part, str)]
    if side_by_side := [element("div", _drawn(part, title)) for part in parts if not isinstance(part, str)]:
        inside.append(element("div", *side_by_side, class_="beside"))
    return element("section", element("h2", title), *inside)


def _drawn(part: Table | Dots, title: str) -> Markup:
    if isinstance(part, Dots):
        return picture_of(part)
    if part.title == title:
        part = replace(part, title="")
    return table_of(part)


def plan_of(
    heading: str,
    shape: str,
    summary: Iterable[Sequence[Cell]],
    sections: Iterable[tuple[str, *tuple[Table | Dots | str, ...]]],
    notes: Sequence[str],
) -> list[Markup]:
    """Return the parts of the page of an `Explanation`, from the table to the batches."""
    found = [Markup(element("h1", heading) + element("p", shape, class_="faint") + tiles(summary))]
    found += [section(*each) for each in sections]
    if notes:
        listed = element("ul", *(element("li", note) for note in notes))
        found.append(
            element("section", element("h2", "Notes"), element("div", element("div", listed), class_="beside"))
        )
    return found


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


def shown(*parts: Table | str) -> Markup:
    """Return what a notebook shows of a value: paragraphs and tables."""
    return fragment(*(table_of(part) if isinstance(part, Table) else element("p", part) for part in parts))


def page(title: str, *children: str) -> str:
    """Return an HTML file of its own."""
    return _PAGE.format(title=_escaped(title), body=fragment(*children))
