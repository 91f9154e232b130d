"""Draw how documents fall into sequences, as the library packs them: ``docs/images/packing.svg``.

Run it where the library can be imported: ``python tools/packing_picture.py docs/images/packing.svg``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torch_table_loader import Pack
from torch_table_loader.extend import Slices, packer_of

LENGTHS = np.array([5, 3, 7, 4])
SEQ_LEN, STRIDE = 6, 4
NAMES = "ABCD"

CELL, GAP, ROW, LEFT, TOP = 18, 14, 62, 118, 10

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; }
.cell { stroke: #ffffff; }
.token { font-weight: 600; fill: #ffffff; text-anchor: middle; }
.empty { fill: none; stroke: #8c959f; stroke-dasharray: 2 2; }
.edge { fill: none; stroke: #57606a; stroke-width: 1.5; }
.a { fill: #1f6feb; } .b { fill: #b35900; } .c { fill: #1a7f37; } .d { fill: #8250df; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .cell { stroke: #0d1117; }
  .token { fill: #ffffff; }
  .edge { stroke: #b1bac4; }
}
""".strip()


def ways() -> Sequence[tuple[str, str, Slices]]:
    """Return each strategy's name, what it does, and which parts of documents its sequences have."""
    packs = {
        "cut where a sequence ends": Pack(seq_len=SEQ_LEN),
        "one document a sequence": Pack(seq_len=SEQ_LEN, strategy="pad"),
        "whole documents, if they fit": Pack(seq_len=SEQ_LEN, strategy="best_fit"),
        f"table order, here stride={STRIDE}": Pack(seq_len=SEQ_LEN, strategy="windows", stride=STRIDE),
    }
    found = []
    for what, pack in packs.items():
        packer = packer_of(pack)
        row = packer.row(LENGTHS)
        windows = packer.windows(row.total)
        found.append((pack.strategy, what, row.cut(*windows.spans(np.arange(windows.count)))))
    return found


def drawn() -> str:
    """Return the picture."""
    rows = ways()
    most = max(len(slices.offsets) - 1 for _, _, slices in rows)
    width = LEFT + most * (SEQ_LEN * CELL + GAP)
    height = TOP + ROW * (len(rows) + 1)
    title = "Documents A to D fall into sequences of six tokens, by four strategies"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>\n{STYLE}\n</style>",
        _text(0, TOP + 13, "documents"),
    ]
    left = LEFT
    for document, length in enumerate(LENGTHS.tolist()):
        lines += _strip(left, TOP, [document] * length, length)
        left += length * CELL + GAP
    for number, (name, what, slices) in enumerate(rows, 1):
        top = TOP + number * ROW
        sequences = [
            np.repeat(slices.document[first:last], slices.length[first:last]).tolist()
            for first, last in zip(slices.offsets[:-1].tolist(), slices.offsets[1:].tolist(), strict=True)
        ]
        fill = int(slices.length.sum()) / (len(sequences) * SEQ_LEN)
        lines += [_text(0, top + 13, f"&quot;{name}&quot;"), _text(0, top + 30, f"{100 * fill:.0f} % full", small=True)]
        lines.append(_text(LEFT, top - 6, what, small=True))
        for place, sequence in enumerate(sequences):
            left = LEFT + place * (SEQ_LEN * CELL + GAP)
            lines += _strip(left, top, sequence, SEQ_LEN)
            lines.append(_box(left, top, SEQ_LEN, "edge"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _strip(left: int, top: int, documents: Sequence[int], cells: int) -> list[str]:
    """Draw tokens, each with the letter of its document; cells that are left are dashed."""
    found = []
    for place, document in enumerate(documents):
        x = left + place * CELL
        name = NAMES[document]
        found.append(
            f'<rect class="cell {name.lower()}" x="{x}" y="{top}" width="{CELL}" height="{CELL}"/>'
            f'<text class="token small" x="{x + CELL // 2}" y="{top + 13}">{name}</text>'
        )
    found += [_box(left + place * CELL, top, 1, "empty") for place in range(len(documents), cells)]
    return found


def _box(left: int, top: int, cells: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{cells * CELL}" height="{CELL}"/>'


def _text(x: int, y: int, text: str, *, small: bool = False) -> str:
    kind = ' class="small"' if small else ""
    return f'<text{kind} x="{x}" y="{y}">{text}</text>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn())
