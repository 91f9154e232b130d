"""Draws the orders and writes the p-values of ``bench/SHUFFLE.md``.

Run: ``python -m bench.shuffle_pictures``. Each picture is the density of (position, item): position to the right,
item upwards. It takes no library: a PNG is zlib and a few headers.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.laws.shuffle_statistics import battery, rejected
from tests.laws.shuffles import feistel_of, fisher_yates, lcg, ours, shuffle_buffer, sum_of_seed_and_epoch

DOCS = Path(__file__).parents[1] / "docs"
ROWS, SIDE = 1 << 18, 192
SHOWN = 65_536


def split_shuffle(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permute 64 splits; rows inside a split stay in order."""
    width = -(-n // 64)
    order = (ours(64, seed, epoch)[:, None] * width + np.arange(width)).reshape(-1)
    return order[order < n]


def picture(order: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Shade a square by how many rows fall into each cell; white is none, black is five times the even share."""
    n = len(order)
    cells = (SIDE - 1 - order * SIDE // n) * SIDE + np.arange(n) * SIDE // n
    counts = np.bincount(cells, minlength=SIDE * SIDE).reshape(SIDE, SIDE)
    shade: NDArray[np.uint8] = (255 - np.minimum(counts / (5 * n / SIDE**2), 1) * 255).astype(np.uint8)
    return shade


def write_png(path: Path, grey: NDArray[np.uint8]) -> None:
    """Write a grey picture."""
    height, width = grey.shape
    lines = b"".join(b"\0" + row.tobytes() for row in grey)
    header = struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def table() -> str:
    """Lay the p-values of ours and of Fisher and Yates side by side, and say what rejects each of the others."""
    mine, reference = battery(ours, [SHOWN]), dict(battery(fisher_yates, [SHOWN]))
    lines = ["| statistic | p of ours | p of Fisher and Yates |", "|---|---|---|"]
    lines += [f"| {name} | {p:.3f} | {reference[name]:.3f} |" for name, p in mine]
    lines += ["", "| order that is not chance | rejected by | such as |", "|---|---|---|"]
    for name, make in (
        ("Feistel with 3 rounds", feistel_of(3)),
        ("Feistel with 4 rounds", feistel_of(4)),
        ("linear congruential generator", lcg),
        ("keys that are seed + epoch", sum_of_seed_and_epoch),
        ("shuffle buffer of 10,000 rows", shuffle_buffer),
        ("shuffle of 64 splits", split_shuffle),
    ):
        found = battery(make, [SHOWN])
        against = sorted(rejected(found), key=lambda pair: pair[1])
        lines.append(f"| {name} | {len(against)} of {len(found)} | {against[0][0]} |")
    return "\n".join(lines)


def main() -> None:
    """Write pictures and tables."""
    images = DOCS / "images"
    images.mkdir(exist_ok=True)
    for name, make in (("rows", ours), ("splits", split_shuffle), ("buffer", shuffle_buffer)):
        write_png(images / f"shuffle-{name}.png", picture(make(ROWS, 0, 0)))
    page = Path(__file__).with_name("SHUFFLE.md")
    begin, end = "<!-- p-values: begin -->", "<!-- p-values: end -->"
    text = re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{table()}\n{end}", page.read_text(), flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
