"""How jobs are made: of values that they have, not of several parents; and how large a class may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

MOST_METHODS = 30

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


def methods_of(root: Path) -> dict[tuple[str, str], int]:
    """Count the methods of each class, by its module and name."""
    return {
        (path.relative_to(root).as_posix(), node.name): sum(
            isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef) for entry in node.body
        )
        for path in sorted(root.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_no_class_has_many_methods() -> None:
    counted = methods_of(ROOT)
    assert ("engine/jobs/job.py", "Job") in counted
    assert {where: count for where, count in counted.items() if count > MOST_METHODS} == {}


def test_methods_are_counted(tmp_path: Path) -> None:
    methods = "\n".join(f"    def f{number}(self): ..." for number in range(31))
    (tmp_path / "jobs.py").write_text(f"class Job:\n    x = 1\n    async def f(self): ...\nclass A:\n{methods}\n")
    assert methods_of(tmp_path) == {("jobs.py", "Job"): 1, ("jobs.py", "A"): 31}


@pytest.mark.parametrize("second", ["B", "rooms.B[int]"])
def test_two_parents_are_found(tmp_path: Path, second: str) -> None:
    text = f"class Job: ...\nclass A(Job): ...\nclass B(Job): ...\nclass C(A, {second}): ...\nclass D(A, list): ..."
    (tmp_path / "jobs.py").write_text(text)
    assert [name for name, parents in jobs_in(tmp_path).items() if len(parents) > 1] == ["C"]
