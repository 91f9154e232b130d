"""HTML as text that is escaped unless it is markup already, and sizes as people read them."""

from __future__ import annotations

import html
from typing import Final

_EMPTY = frozenset({"meta"})
"""Elements that have no end."""

_NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'"
"""What a page says to the browser of what it may load: nothing but its own style."""

SCOPE: Final = "torch-table-loader"
"""The class of all that is shown, so that its style touches nothing else of a notebook."""

STYLE: Final = """
.torch-table-loader { --ink: #1f2328; --faint: #59636e; --paper: #ffffff; --line: #d1d9e0; --mark: #2a6fdb;
  --track: #eef1f4; color: var(--ink); background: var(--paper); font: 14px/1.5 system-ui, sans-serif;
  padding: 1px 16px; text-align: left; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .torch-table-loader { --ink: #e6edf3; --faint: #9aa4af; --paper: #0d1117;
  --line: #3d444d; --mark: #6ea8fe; --track: #1c2128; } }
.torch-table-loader h1 { font-size: 24px; line-height: 1.25; margin: 24px 0 4px; }
.torch-table-loader h2 { font-size: 17px; margin: 32px 0 8px; padding-bottom: 4px;
  border-bottom: 1px solid var(--line); }
.torch-table-loader section, .torch-table-loader .beside > div { min-width: 0; overflow-x: auto; }
.torch-table-loader h3 { font-size: 14px; margin: 8px 0 4px; }
.torch-table-loader p { margin: 4px 0 8px; max-width: 80ch; }
.torch-table-loader .faint { color: var(--faint); }
.torch-table-loader .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px;
  margin: 16px 0; }
.torch-table-loader .tiles > div { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
.torch-table-loader .tiles dt, .torch-table-loader .tiles small { color: var(--faint); font-size: 12px;
  font-weight: normal; display: block; }
.torch-table-loader .tiles dd { margin: 0; font-size: 18px; font-weight: 600; }
.torch-table-loader .beside { display: grid; gap: 8px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); }
.torch-table-loader table { border-collapse: collapse; margin: 4px 0 8px; font-size: 13px; width: 100%; }
.torch-table-loader table.narrow { width: auto; }
.torch-table-loader th, .torch-table-loader td { padding: 3px 12px 3px 0; text-align: left; vertical-align: middle;
  font-weight: normal; border: 0; background: none; color: var(--ink); }
.torch-table-loader table:not(.narrow) th { overflow-wrap: normal; }
.torch-table-loader th[scope=col] { color: var(--faint); }
.torch-table-loader .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.torch-table-loader .chart { width: 45%; }
.torch-table-loader svg { display: block; width: 100%; }
.torch-table-loader svg.bar { height: 12px; min-width: 48px; }
.torch-table-loader svg.dots { max-width: 420px; border-left: 1px solid var(--faint);
  border-bottom: 1px solid var(--faint); }
.torch-table-loader .track { fill: var(--track); }
.torch-table-loader .mark { fill: var(--mark); }
@media (max-width: 560px) { .torch-table-loader { padding: 1px 10px; } .torch-table-loader .chart { width: 25%; }
  .torch-table-loader th, .torch-table-loader td { padding-right: 8px; font-size: 12px; }
  .torch-table-loader .tiles { grid-template-columns: 1fr 1fr; } }
"""
"""Light or dark as the reader's system is; readable from 390 pixels on."""

_OF_A_PAGE = """
body { margin: 0; background: #ffffff; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; } }
body > .torch-table-loader { max-width: 1100px; margin: 0 auto; padding-bottom: 40px; }
"""


class Markup(str):
    """Text that is markup; any other text is escaped where it enters an element."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Return text as markup that shows it; markup is returned as it is.

    What cannot be printed, such as characters that turn the direction of writing around, is shown as U+FFFD.

    >>> escaped("a < b"), escaped(Markup("<b>c</b>"))
    ('a &lt; b', '<b>c</b>')
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape("".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)))


def element(tag: str, /, *children: str, **attributes: str) -> Markup:
    """Return an element, what is inside and its attributes escaped.

    Args:
        attributes: by name; ``class_`` is ``class``.

    >>> element("td", "a & b", class_="number")
    '<td class="number">a &amp; b</td>'
    """
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(str(value))}"' for name, value in attributes.items()
    )
    if tag in _EMPTY:
        return Markup(f"<{tag}{pairs} />")
    return Markup(f"<{tag}{pairs}>{''.join(map(escaped, children))}</{tag}>")


def fragment(*children: str) -> Markup:
    """Return what a notebook shows: markup with its style, which holds for it alone."""
    return element("div", element("style", Markup(STYLE)), *children, class_=SCOPE)


def page(title: str, *children: str) -> str:
    """Return an HTML file of its own."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_NO_NETWORK),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_OF_A_PAGE)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', fragment(*children)), lang='en')}\n"


def number(value: int | None) -> Markup:
    """Return a number; what nobody knows is "unknown".

    >>> number(8400), number(None)
    ('<data value="8400">8,400</data>', 'unknown')
    """
    return Markup("unknown") if value is None else element("data", f"{value:,}", value=str(value))


def size(num_bytes: int) -> Markup:
    """Return a number of bytes as people read it; the exact one is its value."""
    return element("data", size_text(num_bytes), value=str(num_bytes))


def size_text(num_bytes: int) -> str:
    """Write a number of bytes in a unit that fits it.

    >>> size_text(512), size_text(1536), size_text(1 << 30)
    ('512 bytes', '1.5 KiB', '1 GiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = 0
    while power < len(units) - 1 and round(num_bytes / 1024**power, 1) >= 1024:
        power += 1
    value = f"{num_bytes / 1024**power:,.1f}".removesuffix(".0")
    return f"{value} {units[power]}"
