"""Count the test functions that need no private name of the package's rooms.

    python -m tools.coupling [--files]

A function needs what it names, and what the functions and fixtures of its file need that it names. The second count
adds what the helper modules and conftest files of the tests need, each as a whole.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "torch_table_loader"
PRIVATE_ROOMS = ("batching", "engine", "planning", "read", "source", "store", "text")
PUBLIC_MODULES = (f"{PACKAGE}.text.pack",)
"""Modules of these rooms whose names users type."""


def is_private(name: str) -> bool:
    """Whether a dotted name is of a private room.

    >>> is_private("torch_table_loader.engine.sizing"), is_private("torch_table_loader.errors")
    (True, False)
    """
    parts = name.split(".")
    if any(name == module or name.startswith(f"{module}.") for module in PUBLIC_MODULES):
        return False
    return parts[0] == PACKAGE and len(parts) > 1 and parts[1] in PRIVATE_ROOMS


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
        return cls(dict(_imported(tree)), parts)

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
    """Return the names that a statement reads, its arguments (fixtures) among them."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return frozenset(names | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)})


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


def needed(files: dict[str, FileOfTests], names: Iterable[str]) -> frozenset[str]:
    """Return the private names among some names, and those that the helper modules among them import."""
    waiting = [*names]
    found = frozenset(filter(is_private, waiting))
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        for helper in {name, name.rpartition(".")[0]} & files.keys() - seen:
            seen.add(helper)
            imports = files[helper].imports.values()
            found |= frozenset(filter(is_private, imports))
            waiting += imports
    return found


def main() -> None:
    """Print the share of functions, counted both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files whose functions need private names")
    show = parser.parse_args().files
    files = read_tests(ROOT)
    total = alone = with_helpers = 0
    for name, file in files.items():
        reached = {test: file.reached(test) for test in file.tests()}
        direct = {test: frozenset(filter(is_private, names)) for test, names in reached.items()}
        total += len(reached)
        alone += sum(not found for found in direct.values())
        with_helpers += sum(not needed(files, names) for names in reached.values())
        private = frozenset[str]().union(*direct.values())
        if show and private:
            print(f"{sum(map(bool, direct.values())):4} of {len(reached):3} {name}: {', '.join(sorted(private))}")
    print(f"{total} test functions. {alone / total:.0%} need no private name by themselves, ", end="")
    print(f"{with_helpers / total:.0%} with the helper modules that they name.")


if __name__ == "__main__":
    main()
