"""Draws the orders, how well they mix over memory, and writes the p-values of ``bench/SHUFFLE.md``.

Run: ``python -m bench.shuffle_pictures``, after ``python -m bench.run mixing --tables sorted``. Each grey picture is
the density of (position, item): position to the right, item upwards. It takes no library: a PNG is zlib and a few
headers.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.mixing import DEFAULT, SPLITS, WINDOW
from bench.results import Entry, days_of, machines
from tests.laws.shuffle_statistics import battery, rejected
from tests.laws.shuffles import feistel_of, fisher_yates, lcg, ours, shuffle_buffer, sum_of_seed_and_epoch
from tools.speed_lines import LEFT, RIGHT, STYLE, WIDTH, line, text

DOCS = Path(__file__).parents[1] / "docs"
ROWS, SIDE = 1 << 18, 192
SHOWN = 65_536

MIXED: Mapping[str, Sequence[str]] = {
    "shuffle=True: 10,000, 64,000 rows, default": (f"{DEFAULT}, windows of 10,000", WINDOW, DEFAULT),
    'shuffle="splits": 0, 10,000, 64,000 rows': (
        *(SPLITS, f"{SPLITS}, windows of 10,000", f"{SPLITS}, windows of a 20th of the table"),
    ),
    'shuffle="rows", with its store in memory': ('ours, shuffle="rows"',),
    "datasets: 1,000, 10,000 rows": ("datasets, buffer of 1,000", "datasets, buffer of 10,000"),
    "torch-dataloader-utils: 10,000 rows": ("torch-dataloader-utils, buffer of 10,000",),
}
"""The orders of each line, with the rows of their windows or buffers, by what `bench.mixing.READERS` calls them."""

PANELS = {
    "spread": "Spread inside a batch; of a uniform order 1",
    "near": "Near; of a uniform order 0.02",
}
TALL, FIRST_MIB, DECADES = 150, 0.02, 4


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


def orders(measured: Sequence[Entry]) -> dict[str, Entry]:
    """Return how each order mixed the table "sorted" on one rank, on the machine that measured all of them last."""
    needed = {who for each in MIXED.values() for who in each}
    complete = []
    for machine in measured:
        found = {
            entry["who"]: entry
            for entry in machine.get("orders", ())
            if (entry["table"], entry["ranks"]) == ("sorted", 1) and "spread" in entry["figures"]
        }
        if needed <= found.keys():
            complete.append({who: found[who] for who in sorted(needed)})
    return max(complete, key=lambda found: max(entry["at"] for entry in found.values()))


def mixed(measured: Sequence[Entry]) -> str:
    """Return the picture of spread and near over memory.

    Args:
        measured: what machines measured, as `bench.results.machines` gives it.
    """
    found, body = orders(measured), list[str]()
    for panel, top in zip(PANELS, count(36, TALL + 76), strict=False):
        body += _panel(found, panel, top)
    tall = 36 + 2 * (TALL + 76)
    for number, name in enumerate(MIXED):
        body += [*line(number, [(LEFT, tall - 5), (LEFT + 36, tall - 5)]), text(LEFT + 46, tall, name, "name")]
        tall += 22
    body.append(text(LEFT, tall + 8, f"A sorted table of 1,280,000 rows, {days_of(list(found.values()))}", "name"))
    title = "Spread and nearness of the rows of a batch, over the memory that an order holds"
    head = f'viewBox="0 0 {WIDTH} {tall + 20}" width="{WIDTH}" height="{tall + 20}" role="img" aria-label="{title}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {head}>'
    return "\n".join([opening, f"<title>{title}</title>", f"<style>\n{STYLE}\n</style>", *body, "</svg>", ""])


def _panel(found: Mapping[str, Entry], panel: str, top: int) -> Iterator[str]:
    """Draw one measure of all orders, from 0 to 1, over the logarithm of what they hold."""
    yield text(LEFT, top - 16, PANELS[panel], "title")
    for tenth in (0, 5, 10):
        y = top + TALL * (1 - tenth / 10)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield text(LEFT - 6, y + 5, f"{tenth / 10:g}", "left")
    for mib in (0.1, 1, 10, 100):
        yield text(_place(mib), top + TALL + 20, f"{mib:g} MiB", "middle")
    for number, orders_of_line in reversed(list(enumerate(MIXED.values()))):
        figures = [found[who]["figures"] for who in orders_of_line]
        yield from line(number, [(_place(each["held"] / 2**20), top + TALL * (1 - each[panel])) for each in figures])


def _place(mib: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log10(mib / FIRST_MIB) / DECADES


def main() -> None:
    """Write pictures and tables."""
    images = DOCS / "images"
    images.mkdir(exist_ok=True)
    for name, make in (("rows", ours), ("splits", split_shuffle), ("buffer", shuffle_buffer)):
        write_png(images / f"shuffle-{name}.png", picture(make(ROWS, 0, 0)))
    (images / "mixing.svg").write_text(mixed(machines()))
    page = Path(__file__).with_name("SHUFFLE.md")
    begin, end = "<!-- p-values: begin -->", "<!-- p-values: end -->"
    text = re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{table()}\n{end}", page.read_text(), flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
