"""An option is read in its room: where it is declared and checked, and where it becomes a value that others ask."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import torch_table_loader

PACKAGE = Path(torch_table_loader.__file__).parent

READERS = {
    "pack": ("options.py", "text/"),
    "filters": ("options.py", "keywords.py", "dataset.py", "table_formats.py", "engine/jobs/resolve.py"),
    "weights": ("options.py", "order/"),
    "on_growth": ("options.py",),
}
"""Files and folders that read an option; the others ask `samples`, the `Table`, or the `Draws` that it becomes."""

_HOLDERS = {"options", "asked"}
"""What variables and attributes with `LoaderOptions` are called."""


def _read_by(node: ast.AST) -> tuple[str, str] | None:
    """Return what is asked for which name: ``options.pack``, ``job.options.pack`` or ``options["pack"]``."""
    if isinstance(node, ast.Attribute):
        holder, name = node.value, node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        holder, name = node.value, str(node.slice.value)
    else:
        return None
    return getattr(holder, "attr", getattr(holder, "id", "")), name


@functools.cache
def _reads() -> list[tuple[str, str, str]]:
    """Return each read in the package: the file, the holder and the name."""
    trees = ((path, ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py"))
    reads = {(path, found) for path, tree in trees for node in ast.walk(tree) if (found := _read_by(node)) is not None}
    return [(path.relative_to(PACKAGE).as_posix(), *found) for path, found in reads if found[0] in _HOLDERS]


def _readers(option: str) -> set[str]:
    return {file for file, _, name in _reads() if name == option}


@pytest.mark.parametrize("option", READERS)
def test_an_option_is_read_in_its_room_alone(option: str) -> None:
    assert not {name for name in _readers(option) if not name.startswith(READERS[option])}


@pytest.mark.parametrize(("option", "reader"), [(option, name) for option in READERS for name in READERS[option]])
def test_who_is_named_reads_it(option: str, reader: str) -> None:
    read_by = {name for name in _readers(option) if name.startswith(reader)}
    assert read_by or reader == "options.py"  # which declares it
