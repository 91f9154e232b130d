"""Write the table of all machines, from the bench's results as JSON: ``docs/speed.md``.

Run it after the bench: ``python -m tools.machines_table docs/speed.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results import FOLDER, days_of, duels_of
from bench.results import machines as measured

BEGIN, END = "<!-- made by tools/machines_table.py -->", "<!-- made until here -->"

Key = tuple[str, int, str, str]

LINES: dict[str, Key] = {
    "8 numbers, in batches of 8,192, over decoding": ("A-zstd", 8192, "ours:thread", "floor"),
    "8 numbers, in batches of 1,024, over decoding": ("A-zstd", 1024, "ours:thread", "floor"),
    "8 numbers, in batches of 128, over decoding": ("A-zstd", 128, "ours:thread", "floor"),
    "40 numbers, over decoding": ("B", 8192, "ours:thread", "floor"),
    "500 numbers, over decoding": ("C", 8192, "ours:thread", "floor"),
    "documents of 800 tokens, over decoding": ("D", 8192, "ours:thread", "floor"),
    "8 strings a row as codes, over decoding": ("strings", 8192, "ours:thread", "floor"),
    "documents packed into sequences, over decoding their tokens": ("D", 8, "packed:concat", "tokens"),
    "the same, `input_ids` alone": ("D", 8, "packed:concat, ids", "tokens"),
    'windows of tokens, `shuffle="rows"` in memory, over decoding their tokens': ("D", 8, "packed:windows", "tokens"),
    "8 numbers, over torch-dataloader-utils": ("A-zstd", 8192, "ours:thread", "torch-dataloader-utils:best"),
    "8 numbers, over Hugging Face datasets": ("A-zstd", 8192, "ours:thread", "datasets:best"),
    "8 numbers, over polars": ("A-zstd", 8192, "ours:thread", "polars:best"),
    "8 numbers, over Lance": ("A-zstd", 8192, "ours:thread", "lance:best"),
    "40 numbers, Iceberg over plain files": ("B", 8192, "iceberg:plain", "ours:thread"),
    "40 numbers, 5 % deleted by position": ("B", 8192, "iceberg:position", "iceberg:plain"),
    "40 numbers, 5 % deleted by deletion vectors": ("B", 8192, "iceberg:vector", "iceberg:plain"),
    "40 numbers, 5 % deleted by equality": ("B", 8192, "iceberg:equality", "iceberg:plain"),
    '8 numbers, `shuffle="rows"` in memory, over decoding': ("A-zstd", 8192, "rows:memory", "floor"),
    '40 numbers, `shuffle="rows"` in memory, over decoding': ("B", 8192, "rows:memory", "floor"),
    '8 strings a row as codes, `shuffle="rows"` in memory, over decoding': ("strings", 8192, "rows:memory", "floor"),
    '8 strings a row as codes, `shuffle="rows"` in files, over decoding': ("strings", 8192, "rows:files", "floor"),
}
"""What a line says, and the duel that it shows: its table, the rows of a batch, the left and what the left was asked
to meet."""


def table(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table: a line for each duel, a column for each machine that fought one.

    Args:
        machines: their results, as `bench.results` keeps them.
    """
    machines = [machine for machine in machines if _duels(machine)]
    raced = [_duels(machine) for machine in machines]
    names = [
        f"{machine['machine'].partition(',')[0]}, {days_of(list(duels.values()))}"
        for machine, duels in zip(machines, raced, strict=True)
    ]
    head = (f"| speed | {' | '.join(names)} |", f"|---|{'---|' * len(names)}")
    return "\n".join((BEGIN, *head, *_lines(raced), END))


def _duels(machine: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    """Return the races of a machine that the table shows."""
    found = duels_of(machine)
    return {key: found[key] for key in LINES.values() if key in found}


def _lines(raced: Sequence[Mapping[Key, Mapping[str, Any]]]) -> Iterator[str]:
    for said, key in LINES.items():
        if any(key in duels for duels in raced):
            yield f"| {said} | {' | '.join(_cell(duels[key]) if key in duels else '–' for duels in raced)} |"


def _cell(duel: Mapping[str, Any]) -> str:
    """Return the median and the range.

    >>> _cell({"ratio": 0.994, "range": [0.8, 1.26]})
    '0.99 (0.80–1.26)'
    """
    least, most = duel["range"]
    return f"{duel['ratio']:.2f} ({least:.2f}–{most:.2f})"


def written(page: str, folder: Path = FOLDER) -> str:
    """Return a page with its table as it should be.

    Args:
        page: Markdown, with the two marks between which the table stands.
        folder: of the results, a file a machine.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r}")
    return before + table(measured(folder)) + after


def main() -> None:
    """Write the table into the page that is named."""
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text()))


if __name__ == "__main__":
    main()
