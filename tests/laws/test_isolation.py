"""What a module of tests changes while it is imported stays changed for every test of the process: none may do it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def changes_on_import(source: str) -> Iterator[int]:
    """Yield the lines at the top level of a module that assign to an attribute or an item of something else."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                yield statement.lineno
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if isinstance(called, ast.Name) and called.id in ("setattr", "delattr"):
                yield statement.lineno


def test_importing_a_test_changes_nothing_elsewhere() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in changes_on_import(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ["row_store.CHUNK_BYTES = 1", 'vars(window)["GAP_BYTES"] = 64', "sizes.ROWS += 1", 'setattr(window, "GAP", 1)'],
)
def test_a_change_is_found(source: str) -> None:
    assert list(changes_on_import(f"import window\n{source}\n")) == [2]
    assert list(changes_on_import(f"def small():\n    {source}\n")) == []
