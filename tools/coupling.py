"""Count the test functions that need no private name of the package.

    python -m tools.coupling [--files]

Public is what users and authors of plug-ins import: the package's own names, those of `extend`, `testing` and
`integrations`, the command line's `main`, and what a page of the documentation imports. A name is the same wherever it
is imported from: `errors.ConfigError` is public, since the package has it. A function needs what it names, and what
the functions, fixtures and values that it names need in turn: those of its file, and, in the second count, those of
the helper modules of the tests.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "torch_table_loader"
FRONT = ("extend", "testing", "integrations", "cli.main")
"""Modules whose names are public."""
_ON_A_PAGE = re.compile(rf"from ({PACKAGE}[\w.]*) import ([\w, ]+)")
_PATCHED = re.compile(rf"{PACKAGE}(\.\w+){{2,}}")


def is_private(name: str) -> bool:
    """Whether a dotted name is private.

    >>> [is_private(f"torch_table_loader.{name}") for name in ("errors.ConfigError", "extend.Split", "engine.sizing")]
    [False, False, True]
    """
    inside = name.removeprefix(f"{PACKAGE}.")
    if inside == name or name in public_names():
        return False
    return not any(f"{inside}.".startswith(f"{module}.") for module in FRONT)


@cache
def public_names() -> frozenset[str]:
    """Return the names that the package and its modules of the front offer, each with those of its home."""
    found = {f"{PACKAGE}.__version__"}
    for path in ("__init__.py", "extend.py", "testing/__init__.py"):
        imported = dict(_imported(ast.parse((ROOT / PACKAGE / path).read_text("utf-8"))))
        found |= {home for home in imported.values() if home.startswith(f"{PACKAGE}.")}
        if path == "__init__.py":
            found |= {f"{PACKAGE}.{name}" for name in imported}
    for page in (ROOT / "docs").glob("*.md"):
        for module, names in _ON_A_PAGE.findall(page.read_text("utf-8")):
            found |= {f"{module}.{name.strip()}" for name in names.split(",")}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class FileOfTests:
    """The imports of a file by the names that they bind, and what each of its top-level parts names."""

    imports: dict[str, str]
    parts: dict[str, frozenset[str]]

    @classmethod
    def of(cls, path: Path) -> FileOfTests:
        """Read a file."""
        tree = ast.parse(path.read_text("utf-8"), str(path))
        parts: dict[str, frozenset[str]] = {}
        for node in tree.body:
            for name in _defined(node):
                parts[name] = parts.get(name, frozenset()) | _named(node)
        patched = {name: name for names in parts.values() for name in names if "." in name}
        return cls(dict(_imported(tree)) | patched, parts)

    def tests(self) -> list[str]:
        """List the test functions, those of classes by the name of the class."""
        return [name for name in self.parts if name.startswith(("test_", "Test"))]

    def reached(self, name: str) -> frozenset[str]:
        """Return the dotted names that a part needs, other parts of the file included."""
        seen, waiting = {name}, [name]
        while waiting:
            new = self.parts[waiting.pop()] & self.parts.keys() - seen
            seen |= new
            waiting += new
        named = frozenset[str]().union(*(self.parts[part] for part in seen))
        return frozenset(self.imports[each] for each in named & self.imports.keys())


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _named(node: ast.stmt) -> frozenset[str]:
    """Return the names that a statement reads, its arguments (fixtures) and dotted names that it patches among them."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    names |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return frozenset(names | set(filter(_PATCHED.fullmatch, texts)))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def read_tests(root: Path) -> dict[str, FileOfTests]:
    """Read every Python file under ``tests`` and ``strategies/tests``, by dotted name."""
    paths = [path for folder in ("tests", "strategies/tests") for path in sorted((root / folder).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts): FileOfTests.of(path) for path in paths}


def needed(files: dict[str, FileOfTests], names: frozenset[str]) -> frozenset[str]:
    """Return the private names among some names, and those that what they name of helper modules needs."""
    waiting = [*names]
    found = frozenset(filter(is_private, waiting))
    seen: set[str] = set(names)
    while waiting:
        new = _behind(files, waiting.pop()) - seen
        seen |= new
        waiting += new
        found |= frozenset(filter(is_private, new))
    return found


def _behind(files: dict[str, FileOfTests], name: str) -> frozenset[str]:
    """Return what a name of a helper module needs; a module that is named as a whole needs what all its parts do."""
    if name in files:
        return frozenset[str]().union(*(files[name].reached(part) for part in files[name].parts))
    module, _, part = name.rpartition(".")
    helper = files.get(module)
    if helper is None:
        return frozenset()
    if part in helper.parts:
        return helper.reached(part)
    return frozenset(filter(None, [helper.imports.get(part)]))


def main() -> None:
    """Print the share of functions, counted both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files whose functions need private names")
    show = parser.parse_args().files
    files = read_tests(ROOT)
    total = alone = with_helpers = 0
    for name, file in files.items():
        reached = {test: file.reached(test) for test in file.tests()}
        needs = {test: needed(files, names) for test, names in reached.items()}
        total += len(reached)
        alone += sum(not any(map(is_private, names)) for names in reached.values())
        with_helpers += sum(not found for found in needs.values())
        private = frozenset[str]().union(*needs.values())
        if show and private:
            print(f"{sum(map(bool, needs.values())):4} of {len(reached):3} {name}: {', '.join(sorted(private))}")
    print(f"{total} test functions. {alone / total:.1%} need no private name by themselves, ", end="")
    print(f"{with_helpers / total:.1%} with what they use of helper modules.")


if __name__ == "__main__":
    main()
