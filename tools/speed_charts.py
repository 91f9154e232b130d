"""Draw the newest complete run of the bench: ``docs/images/speed.svg``.

Run it after the bench: ``python -m tools.speed_charts docs/images/speed.svg``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.results import Entry, days_of, duels_of, machines, newest_complete

TABLES = {
    "A-zstd": "8 numbers a row",
    "B": "40 numbers a row",
    "D": "documents of 800 tokens",
}
READERS = {
    "floor": "decoding (pyarrow)",
    "ours": "torch-table-loader",
    "lance:best": "Lance",
    "polars:best": "polars",
    "datasets:best": "Hugging Face datasets",
    "torch-dataloader-utils:best": "torch-dataloader-utils",
}
"""What a chart calls each, in its order."""

WIDTH, LEFT, BARS, STEP, TALL = 480, 172, 240, 24, 16
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; }
.name { text-anchor: end; }
.bar { fill: #8c959f; }
.ours { fill: #1f6feb; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
""".strip()


def duel(table: str, reader: str) -> tuple[str, int, str, str]:
    """Return the duel that a bar shows, by the names in `bench.results.Row.KEY`."""
    return (table, 8192, "ours:thread", reader)


NEEDED = [duel(table, reader) for table in TABLES for reader in READERS if reader != "ours"]


def speeds(measured: Entry, table: str) -> dict[str, float]:
    """Return the speed of each reader of a table over ours, in the order of `READERS`."""
    duels = duels_of(measured)
    return {reader: 1.0 if reader == "ours" else 1 / duels[duel(table, reader)]["ratio"] for reader in READERS}


def drawn(measured: Sequence[Entry]) -> str:
    """Return the chart of the newest machine that raced all readers.

    Args:
        measured: what machines measured, as `bench.results.machines` gives it.
    """
    newest, body, top = newest_complete(measured, NEEDED), list[str](), 8
    for table, title in TABLES.items():
        body.append(_text(LEFT, top + 18, title, "title"))
        top += 30
        rows = speeds(newest, table)
        scale = BARS / max(rows.values())
        for reader, speed in rows.items():
            body += _bar(top, reader, speed, round(speed * scale))
            top += STEP
        top += 16
    body.append(_text(8, top + 8, measured_on(newest, NEEDED), "value"))
    top += 20
    title = "Rows a second over those of torch-table-loader, by table and reader"
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">'
    return "\n".join(
        [
            head,
            f"<title>{title}</title>",
            f"<style>\n{STYLE}\n</style>",
            *body,
            "</svg>",
            "",
        ]
    )


def measured_on(machine: Entry, duels: Sequence[tuple[str, int, str, str]]) -> str:
    """Return on what machine duels were fought, and when."""
    found = duels_of(machine)
    return f"{machine['machine'].partition(',')[0]}, {days_of([found[key] for key in duels])}"


def _bar(top: int, reader: str, speed: float, width: int) -> Iterator[str]:
    kind = "ours" if reader == "ours" else "bar"
    yield _text(LEFT - 8, top + 13, READERS[reader], "name")
    yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{max(width, 1)}" height="{TALL}" rx="2"/>'
    yield _text(LEFT + max(width, 1) + 8, top + 13, f"{speed:.2f}" if speed >= 0.1 else f"{speed:.3f}", "value")


def _text(left: int, base: int, text: str, kind: str) -> str:
    return f'<text x="{left}" y="{base}" class="{kind}">{text}</text>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(machines()))
