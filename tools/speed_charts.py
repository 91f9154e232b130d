"""Draw what was measured, from the tables of ``bench/RESULTS.md``: ``docs/images/speed.svg``.

Run it after the bench: ``python tools/speed_charts.py bench/RESULTS.md docs/images/speed.svg``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLES = {
    "A-zstd": "8 numbers a row",
    "B": "40 numbers a row",
    "D": "documents of 800 tokens",
}
READERS = {
    "floor": "decoding (pyarrow)",
    "ours": "torch-table-loader",
    "lance": "Lance",
    "polars": "polars",
    "datasets": "Hugging Face datasets",
    "torch-dataloader-utils": "torch-dataloader-utils",
}
"""What a chart calls each, in its order; of a reader with several settings its best is drawn."""

WIDTH, LEFT, BARS, STEP, TALL = 480, 172, 240, 24, 16
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; }
.name { text-anchor: end; }
.bar { fill: #8c959f; }
.ours { fill: #1f6feb; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
""".strip()


@dataclass(frozen=True, slots=True)
class Measured:
    """A ratio that was measured.

    Args:
        table: a key of `bench.tables.TABLES`.
        batch_size: rows of a batch.
        reader: what ours was compared with, without its setting.
        ratio: the speed of ours over its speed, the median of pairs.
    """

    table: str
    batch_size: int
    reader: str
    ratio: float


def measured(results: str) -> list[Measured]:
    """Return the ratios of ours, served by threads, to each reader.

    Args:
        results: the report, as Markdown.

    >>> measured("| B | 8,192 | ours:thread | polars:eager | **1.08** | 0.86 to 1.52 |")
    [Measured(table='B', batch_size=8192, reader='polars', ratio=1.08)]
    """
    found = []
    for line in results.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 4 and cells[2] == "ours:thread" and cells[0] in TABLES:
            reader = cells[3].partition(":")[0]
            if reader in READERS:
                found.append(Measured(cells[0], int(cells[1].replace(",", "")), reader, float(cells[4].strip("*"))))
    return found


def speeds(found: list[Measured], table: str) -> dict[str, float]:
    """Return the speed of each reader of a table over ours, in batches of 8,192, in the order of `READERS`."""
    best = {"ours": 1.0}
    for each in found:
        if (each.table, each.batch_size) == (table, 8192):
            best[each.reader] = max(best.get(each.reader, 0.0), 1 / each.ratio)
    return {reader: best[reader] for reader in READERS if reader in best}


def drawn(results: str) -> str:
    """Return the chart.

    Args:
        results: the report, as Markdown.
    """
    found, body, top = measured(results), list[str](), 8
    for table, title in TABLES.items():
        body.append(_text(LEFT, top + 18, title, "title"))
        top += 30
        rows = speeds(found, table)
        scale = BARS / max(rows.values())
        for reader, speed in rows.items():
            body += _bar(top, reader, speed, round(speed * scale))
            top += STEP
        top += 16
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


def _bar(top: int, reader: str, speed: float, width: int) -> Iterator[str]:
    kind = "ours" if reader == "ours" else "bar"
    yield _text(LEFT - 8, top + 13, READERS[reader], "name")
    yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{max(width, 1)}" height="{TALL}" rx="2"/>'
    yield _text(LEFT + max(width, 1) + 8, top + 13, f"{speed:.2f}" if speed >= 0.1 else f"{speed:.3f}", "value")


def _text(left: int, base: int, text: str, kind: str) -> str:
    return f'<text x="{left}" y="{base}" class="{kind}">{text}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(drawn(Path(sys.argv[1]).read_text()))
