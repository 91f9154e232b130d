"""How jobs are made: of values that they hold, not of classes for each; and how large a class may be."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

MOST_JOBS = 5
MOST_METHODS = 30

TABLE = "engine/jobs/modes.py"
"""The one module that tells kinds of jobs, and of what they hold, apart."""

ROOT = Path(__file__).parents[2] / "torch_table_loader"


_parsed = functools.cache(ast.parse)


@functools.cache
def classes_in(root: Path) -> dict[str, ast.ClassDef]:
    trees = [_parsed(path.read_text()) for path in sorted(root.rglob("*.py"))]
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def parents_of(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]


def those_of(root: Path, base: str) -> dict[str, list[str]]:
    """Return the parents that derive from a class, or are it, of each class that does."""
    classes = classes_in(root)

    def derives(name: str) -> bool:
        return name == base or (name in classes and any(map(derives, parents_of(classes[name]))))

    return {name: [*filter(derives, parents_of(node))] for name, node in classes.items() if derives(name)}


def jobs_in(root: Path) -> dict[str, list[str]]:
    """Return the parents that are jobs of each class that is one."""
    return those_of(root, "Job")


def kinds_asked_in(root: Path) -> list[str]:
    """Return where something is asked for its class, which is that of a job or of items, or a job for its kind."""
    kinds = {*those_of(root, "Job"), *those_of(root, "Items")}
    return [
        path.relative_to(root).as_posix()
        for path in sorted(root.rglob("*.py"))
        for node in ast.walk(_parsed(path.read_text()))
        if names_of_kind(node) & kinds or compares_kind(node)
    ]


def names_of_kind(node: ast.AST) -> set[str]:
    """Return the names of classes that a call, a comparison of types or a pattern asks for."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, asked]):
            return _names(asked)
        case ast.Compare(left=left, comparators=[asked]) if "type" in _names(left) | _names(asked):
            return _names(left) | _names(asked)
        case ast.MatchClass(cls=asked):
            return _names(asked)
    return set()


def compares_kind(node: ast.AST) -> bool:
    """Return whether the kind of a job is compared with a word; those of a state and a job may be compared."""
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    kinds = [side for side in sides if isinstance(side, ast.Attribute) and side.attr == "kind"]
    jobs = [side for side in kinds if {"job", "self"} & _names(side.value)]
    return bool(jobs) and any(isinstance(side, ast.Constant) for side in sides)


def _names(node: ast.AST) -> set[str]:
    named = (getattr(part, "id", getattr(part, "attr", None)) for part in ast.walk(node))
    return {name for name in named if name is not None}


def test_jobs_are_few() -> None:
    jobs = jobs_in(ROOT)
    assert {"Job", "StreamJob"} < jobs.keys()
    assert len(jobs) <= MOST_JOBS


def test_kinds_are_told_apart_in_one_module() -> None:
    assert set(kinds_asked_in(ROOT)) == {TABLE}


@pytest.mark.parametrize(
    "asked",
    [
        "isinstance(job, StreamJob)",
        "isinstance(job.items, rooms.Rows | int)",
        "issubclass(kind, (int, Job))",
        "type(job) is StreamJob",
        "dataset.job.kind == 'items'",
        "self.kind != 'items'",
    ],
)
def test_tests_of_kinds_are_found(tmp_path: Path, asked: str) -> None:
    (tmp_path / "jobs.py").write_text("class Job: ...\nclass StreamJob(Job): ...\nclass Rows(Items): ...\n")
    allowed = "isinstance(x, int) or saved.kind != job.kind or type(x) is str or plan.kind == 'items'"
    (tmp_path / "asks.py").write_text(f"a = {allowed}\nb = {asked}\n")
    assert kinds_asked_in(tmp_path) == ["asks.py"]


def test_patterns_of_kinds_are_found(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("class Job: ...\nmatch job:\n    case Job(): ...\n    case int(): ...\n")
    assert kinds_asked_in(tmp_path) == ["asks.py"]


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
        for node in ast.walk(_parsed(path.read_text()))
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
