"""Documents of several sources, of which mixtures make sequences."""

from __future__ import annotations

from pathlib import Path

from tests.text.packing_reference import write_documents

SOURCES: dict[str, list[list[int | None]]] = {
    "a": [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [1], [12, 33, 4, 6], [20] * 9],
    "b": [[7, 8, 9], [3, 3, 3, 50], [16, 16]],
    "c": [[11, 2]],
}
NAMES = tuple(SOURCES)
FIRST = {"a": 0, "b": 100, "c": 200}
"""Sources number their documents apart, so that a token says which it is of."""


def write_sources(root: Path) -> dict[str, str]:
    """Write the documents of each source of `SOURCES` as a table; return their paths by name."""
    for name, groups in SOURCES.items():
        write_documents(root / name, groups, first=FIRST[name])
    return {name: str(root / name) for name in SOURCES}
