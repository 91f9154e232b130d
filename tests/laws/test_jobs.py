"""How jobs are made: of values that they have, not of several parents."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "torch_table_loader"


def classes_in(root: Path) -> dict[str, ast.ClassDef]:
    trees = [ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))]
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def parents_of(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def jobs_in(root: Path) -> dict[str, list[str]]:
    """Return the parents that are jobs of each class that is one."""
    classes = classes_in(root)

    def is_job(name: str) -> bool:
        return name == "Job" or (name in classes and any(map(is_job, parents_of(classes[name]))))

    return {name: [*filter(is_job, parents_of(node))] for name, node in classes.items() if is_job(name)}


def test_no_job_has_two_parents_that_are_jobs() -> None:
    jobs = jobs_in(ROOT)
    assert len(jobs) > 1
    assert [name for name, parents in jobs.items() if len(parents) > 1] == []


@pytest.mark.parametrize("second", ["B", "rooms.B[int]"])
def test_two_parents_are_found(tmp_path: Path, second: str) -> None:
    text = f"class Job: ...\nclass A(Job): ...\nclass B(Job): ...\nclass C(A, {second}): ...\nclass D(A, list): ..."
    (tmp_path / "jobs.py").write_text(text)
    assert [name for name, parents in jobs_in(tmp_path).items() if len(parents) > 1] == ["C"]
