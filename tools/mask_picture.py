"""Draw what a packed sequence comes with, and its mask: ``docs/images/mask.svg``.

Run it where the library can be imported: ``python -m tools.mask_picture docs/images/mask.svg``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tools.packing_picture import CELL, LENGTHS, NAMES, SEQ_LEN, STYLE
from torch_table_loader import Pack, StructuredDataset

SHOWN = 1
IGNORED = -100
TENSORS = ("input_ids", "labels", "position_ids", "doc_ids")
WIDE, LEFT, TOP, ROW = 46, 118, 32, 30


def sequence() -> dict[str, list[int]]:
    """Return the tensors of a sequence with two documents; the tokens of a document are its number and theirs."""
    documents = [[10 * number + place for place in range(length)] for number, length in enumerate(LENGTHS.tolist(), 1)]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"tokens": documents}), Path(folder) / "documents.parquet")
        loader, _ = StructuredDataset.create_dataloader(
            folder, batch_size=SHOWN + 1, num_workers=0, pack=Pack(seq_len=SEQ_LEN, output=TENSORS)
        )
        with loader:
            batch = next(iter(loader))
    return {name: batch[name][SHOWN].tolist() for name in TENSORS}


def mask(found: dict[str, list[int]]) -> NDArray[np.bool_]:
    """Return which tokens (to the right) each token (downwards) attends to: earlier ones of its document."""
    documents = np.array(found["doc_ids"])
    allowed: NDArray[np.bool_] = np.tril(documents[:, None] == documents)
    return allowed


def drawn() -> str:
    """Return the picture."""
    found = sequence()
    kinds = [NAMES[token // 10 - 1].lower() for token in found["input_ids"]]
    body = [_text(0, 16, "one sequence of two documents")]
    for place, name in enumerate(TENSORS):
        top = TOP + place * ROW
        body.append(_text(0, top + 14, name))
        for column, value in enumerate(found[name]):
            kind = kinds[column]
            if value == IGNORED:
                kind = "empty"
            body.append(_box(LEFT + column * WIDE, top, WIDE - 2, kind))
            body.append(_number(LEFT + column * WIDE + WIDE // 2 - 1, top + 13, value, kind))
    left, allowed = LEFT + SEQ_LEN * WIDE + 40, mask(found)
    body.append(_text(left, 16, "who attends to whom"))
    for row, column in np.ndindex(*allowed.shape):
        kind = "empty"
        if allowed[row, column]:
            kind = f"cell {kinds[column]}"
        body.append(_box(left + column * CELL, TOP + row * CELL, CELL, kind))
    width, height = left + 150, TOP + SEQ_LEN * CELL + 8
    title = "The tensors of a packed sequence, and the tokens of its own document to which each token attends"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>\n{STYLE}\n</style>", *body, "</svg>"]) + "\n"


def _box(left: int, top: int, width: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{CELL}"/>'


def _number(middle: int, base: int, value: int, kind: str) -> str:
    style = "token small"
    if kind == "empty":
        style = "small"
    return f'<text class="{style}" text-anchor="middle" x="{middle}" y="{base}">{value}</text>'


def _text(left: int, base: int, words: str) -> str:
    return f'<text x="{left}" y="{base}">{words}</text>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn())
