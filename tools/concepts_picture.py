"""Draw how a table becomes batches on ranks, as the library deals them: ``docs/images/concepts.svg``.

Run it where the library can be imported: ``python tools/concepts_picture.py docs/images/concepts.svg``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader import StructuredDataset
from torch_table_loader.planning.lanes import longest_first

FILES, GROUPS, ROWS, BATCH, RANKS, LANES = 3, 2, 4, 3, 2, 2

CELL, WIDTH, LEFT, HALF = 21, 620, 20, 300
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; }
.note { font-size: 14px; fill: #57606a; }
.row { font-size: 12px; font-weight: 600; fill: #ffffff; text-anchor: middle; }
.cell { stroke: #ffffff; }
.card { fill: #8c959f; fill-opacity: 0.14; }
.arrow { fill: none; stroke: #8c959f; stroke-width: 2; }
.f0 { fill: #1f6feb; } .f1 { fill: #0a3f99; } .f2 { fill: #c2560b; }
.f3 { fill: #8a3403; } .f4 { fill: #1a7f37; } .f5 { fill: #0b4a1d; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .note { fill: #b1bac4; }
  .row { fill: #ffffff; }
  .cell { stroke: #1e2129; }
}
""".strip()

Rows = list[list[int]]


def delivered() -> tuple[Rows, list[Rows], list[Rows]]:
    """Return the rows of each split in the epoch's order, of each rank's lanes, and of each rank's batches."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            write_file(folder, number)
        dealt = [_batches(folder, rank, batch_size=ROWS, num_workers=1) for rank in range(RANKS)]
        batches = [_batches(folder, rank, batch_size=BATCH, num_workers=LANES) for rank in range(RANKS)]
    splits = [split for turn in zip(*dealt, strict=True) for split in turn]
    lanes = []
    for mine in dealt:
        lane_of = longest_first(np.full(len(mine), ROWS), LANES)
        parts = [[split for split, lane in zip(mine, lane_of, strict=True) if lane == each] for each in range(LANES)]
        lanes.append([[row for split in part for row in split] for part in parts])
    return splits, lanes, batches


def write_file(folder: str, number: int) -> None:
    """Write a file of the table; rows count through all files."""
    table = pa.table({"row": np.arange(GROUPS * ROWS) + number * GROUPS * ROWS})
    pq.write_table(table, Path(folder) / f"part-{number}.parquet", row_group_size=ROWS)


def _batches(folder: str, rank: int, **options: Any) -> Rows:
    """Return the rows of each batch of a rank."""
    loader, _ = StructuredDataset.create_dataloader(
        folder,
        columns=["row"],
        split_size=ROWS,
        shuffle="splits",
        num_ranks=RANKS,
        rank=rank,
        check_plan=False,
        **options,
    )
    with loader:
        return [batch["row"].tolist() for batch in loader]


def drawn() -> str:
    """Return the picture."""
    splits, lanes, batches = delivered()
    title = "A table is cut into splits, which are dealt to ranks and lanes and become batches"
    body = [text(LEFT, 26, "Table: files and their row groups", "title")]
    for number in range(FILES):
        left = LEFT + number * 200
        body += [card(left, 38, 184, 64), text(left + 8, 57, f"file {number}", "note")]
        for group in range(GROUPS):
            first = (number * GROUPS + group) * ROWS
            body += strip(left + 6 + group * (ROWS * CELL + 4), 70, range(first, first + ROWS))
    body += [arrow(WIDTH // 2, 108), text(LEFT, 160, "Splits, in the order of this epoch", "title")]
    for place, split in enumerate(splits):
        body += strip(LEFT + place * 100, 172, split)
    body += [arrow(WIDTH // 4, 202), arrow(3 * WIDTH // 4, 202)]
    for rank in range(RANKS):
        left = LEFT + rank * HALF
        body += [card(left, 232, 284, 104), text(left + 10, 254, f"Rank {rank}: every second split", "title")]
        for lane, rows in enumerate(lanes[rank]):
            top = 266 + lane * 33
            body += [text(left + 10, top + 16, f"lane {lane}", "note"), *strip(left + 76, top, rows)]
        body += [arrow(left + 142, 342), card(left, 372, 284, 164)]
        body.append(text(left + 10, 394, f"Batches of rank {rank}", "title"))
        for step, rows in enumerate(batches[rank]):
            top = 406 + step * 31
            body += [text(left + 10, top + 16, f"step {step}", "note"), *strip(left + 76, top, rows)]
    return svg(title, 548, body)


def svg(title: str, height: int, body: Sequence[str]) -> str:
    """Return a picture of what was drawn."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>\n{STYLE}\n</style>", *body, "</svg>"]) + "\n"


def strip(left: int, top: int, rows: Sequence[int]) -> list[str]:
    """Draw rows side by side, each with its ordinal and the colour of its row group."""
    return [
        f'<rect class="cell f{row // ROWS}" x="{left + place * CELL}" y="{top}" width="{CELL}" height="{CELL}" rx="3"/>'
        f'<text class="row" x="{left + place * CELL + CELL / 2}" y="{top + 15}">{row}</text>'
        for place, row in enumerate(rows)
    ]


def card(left: int, top: int, width: int, height: int) -> str:
    """Draw the ground of what belongs together."""
    return f'<rect class="card" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'


def arrow(x: int, top: int) -> str:
    """Draw an arrow downwards."""
    return f'<path class="arrow" d="M{x} {top}v22m-6 -7l6 7l6 -7"/>'


def text(x: int, y: int, words: str, kind: str) -> str:
    """Draw words at a place."""
    return f'<text class="{kind}" x="{x}" y="{y}">{words}</text>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn())
