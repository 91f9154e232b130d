"""Draw speed over the size of a batch and over the number of columns, each of the newest machine that has all of it.

Run it after ``python -m bench.run batch-sizes columns``: ``python -m tools.speed_lines docs/images``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.results import Entry, duels_of, machines, newest_complete
from tools.speed_charts import measured_on

READERS = {
    "torch-table-loader": "",
    "Lance": "lance:best",
    "polars": "polars:best",
    "Hugging Face datasets": "datasets:best",
    "torch-dataloader-utils": "torch-dataloader-utils:best",
}
"""What a chart calls each reader, and what the bench does; the first is measured against the floor."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP = 480, 240, 44, 20, 34
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; }
.left { text-anchor: end; }
.middle { text-anchor: middle; }
.grid { stroke: #8c959f; stroke-opacity: 0.35; }
polyline { fill: none; stroke-width: 2; }
.r0 { stroke: #1f6feb; fill: #1f6feb; } polyline.r0 { stroke-width: 4; fill: none; }
.r1 { stroke: #bf8700; fill: #bf8700; } polyline.r1 { fill: none; }
.r2 { stroke: #1a7f37; fill: #1a7f37; } polyline.r2 { fill: none; stroke-dasharray: 8 4; }
.r3 { stroke: #8250df; fill: #8250df; } polyline.r3 { fill: none; stroke-dasharray: 2 4; }
.r4 { stroke: #cf222e; fill: #cf222e; } polyline.r4 { fill: none; stroke-dasharray: 12 4 2 4; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }
""".strip()


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn.

    Args:
        file: its name.
        title: what it says.
        places: for each place on the line what stands below it, the table, and the rows of a batch.
        below: what the places are.
    """

    file: str
    title: str
    places: tuple[tuple[str, str, int], ...]
    below: str


CHARTS = (
    Chart(
        "speed-by-batch-size.svg",
        "Speed over that of decoding, by batch size",
        tuple((f"{size:,}", "A-zstd", size) for size in (128, 1024, 8192, 65_536)),
        "rows of a batch; 8 columns",
    ),
    Chart(
        "speed-by-columns.svg",
        "Speed over that of decoding, by columns",
        tuple((str(columns), f"{columns} columns", 8192) for columns in (1, 10, 100, 500)),
        "columns of float32; 8,192 rows a batch",
    ),
)


def speeds(results: Mapping[str, Any], places: Sequence[tuple[str, str, int]]) -> dict[str, list[float | None]]:
    """Return the speed of each reader over that of decoding alone; None where it was not measured.

    Args:
        results: of a machine, as `bench.results` keeps them.
        places: of a chart.
    """
    ratios = {
        (table, size, asked): duel["ratio"]
        for (table, size, left, asked), duel in duels_of(results).items()
        if left == "ours:thread"
    }
    found: dict[str, list[float | None]] = {}
    for reader, asked in READERS.items():
        found[reader] = []
        for _, table, size in places:
            ours, theirs = ratios.get((table, size, "floor")), ratios.get((table, size, asked)) if asked else 1.0
            found[reader].append(None if ours is None or theirs is None else ours / theirs)
    return found


def needed(chart: Chart) -> list[tuple[str, int, str, str]]:
    """Return the duels that a chart shows, by the names in `bench.results.Row.KEY`."""
    return [
        (table, size, "ours:thread", asked or "floor") for _, table, size in chart.places for asked in READERS.values()
    ]


def drawn(measured: Sequence[Entry], chart: Chart) -> str:
    """Return a chart.

    Args:
        measured: what machines measured, as `bench.results.machines` gives it.
        chart: which.
    """
    newest = newest_complete(measured, needed(chart))
    found = speeds(newest, chart.places)
    most = max(speed for each in found.values() for speed in each if speed is not None)
    top = max(1.0, -(-most // 0.25) * 0.25)
    step = (WIDTH - LEFT - RIGHT - 60) / (len(chart.places) - 1)
    xs = [LEFT + 30 + place * step for place in range(len(chart.places))]
    bottom = TOP + HEIGHT
    body = [text(LEFT, 20, chart.title, "title")]
    for quarter in range(round(top / 0.25) + 1):
        y = bottom - HEIGHT * quarter * 0.25 / top
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>')
        if quarter % 2 == 0:
            body.append(text(LEFT - 6, y + 5, f"{quarter * 0.25:g}", "left"))
    body += [text(x, bottom + 20, shown, "middle") for x, (shown, _, _) in zip(xs, chart.places, strict=True)]
    body.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 42, chart.below, "middle"))
    for number, each in reversed(list(enumerate(found.values()))):
        body += line(number, [(x, bottom - HEIGHT * s / top) for x, s in zip(xs, each, strict=True) if s is not None])
    for number, reader, y in zip(count(), found, count(bottom + 70, 22)):
        body.append(f'<polyline class="r{number}" points="{LEFT},{y - 5} {LEFT + 36},{y - 5}"/>')
        body.append(text(LEFT + 46, y, reader, "name"))
    tall = bottom + 78 + 22 * len(found)
    body.append(text(LEFT, tall - 8, measured_on(newest, needed(chart)), "name"))
    tall += 4
    size = f'viewBox="0 0 {WIDTH} {tall}" width="{WIDTH}" height="{tall}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{chart.title}">'
    return "\n".join([head, f"<title>{chart.title}</title>", f"<style>\n{STYLE}\n</style>", *body, "</svg>", ""])


def line(number: int, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Draw a line, and a dot at each of its points."""
    at = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    yield f'<polyline class="r{number}" points="{at}"/>'
    for x, y in points:
        yield f'<circle class="r{number}" cx="{x:.0f}" cy="{y:.0f}" r="3"/>'


def text(x: float, y: float, words: str, kind: str) -> str:
    """Draw words at a place."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{words}</text>'


if __name__ == "__main__":
    for each in CHARTS:
        Path(sys.argv[1], each.file).write_text(drawn(machines(), each))
