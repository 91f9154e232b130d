"""Reads the imports between modules from their source, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IMPORTERS = frozenset({"import_module", "__import__"})


@dataclass(frozen=True, slots=True)
class Import:
    """One import of one module.

    Args:
        importer: the module that imports, relative to the package, such as "planning.lanes"; "" is the package.
        target: what it imports: relative to the package where `inside`, else the full dotted name.
        inside: whether the target is of the package.
        typing_only: whether it stands under ``if TYPE_CHECKING``.
        line: where.
    """

    importer: str
    target: str
    inside: bool
    typing_only: bool
    line: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The modules of a package, parsed.

    Args:
        package: its name.
        modules: by name relative to the package: the tree and the number of lines.
    """

    package: str
    modules: dict[str, tuple[ast.Module, int]]

    @classmethod
    def of(cls, root: Path) -> Sources:
        """Parse all modules below a folder, which is the package."""
        modules = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            text = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = ast.parse(text, str(path)), len(text.splitlines())
        return cls(root.name, modules)

    def imports(self) -> Iterator[Import]:
        """Yield every import: at the top, inside functions, for type checkers, and by ``import_module``."""
        for name, (tree, _) in self.modules.items():
            for node, typing_only in _nodes(tree, typing_only=False):
                for target in self._targets(node, name):
                    inside = target.split(".")[0] == self.package
                    shown = target.partition(".")[2] if inside else target
                    yield Import(name, shown, inside, typing_only, node.lineno)

    def _targets(self, node: ast.stmt | ast.expr, importer: str) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, [self._folder(importer, node.level), base]))
            return [self._module(base, alias.name) for alias in node.names]
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in IMPORTERS:
                return [str(node.args[0].value)]
        return []

    def _folder(self, importer: str, level: int) -> str:
        """Return the folder that a relative import starts from."""
        parts = [self.package, *filter(None, importer.split("."))]
        is_folder = not importer or any(name.startswith(f"{importer}.") for name in self.modules)
        return ".".join(parts[: len(parts) - level + is_folder])

    def _module(self, base: str, name: str) -> str:
        """``from base import name`` means a module if there is one of that name."""
        full = f"{base}.{name}"
        relative = full.partition(".")[2]
        return full if base.split(".", maxsplit=1)[0] == self.package and relative in self.modules else base

    def long_files(self, most: int) -> Iterator[tuple[str, int]]:
        """Yield modules of more lines than `most`."""
        return ((name, lines) for name, (_, lines) in self.modules.items() if lines > most)

    def long_functions(self, most: int) -> Iterator[tuple[str, str, int]]:
        """Yield functions whose body, without the docstring, has more lines than `most`."""
        for name, (tree, _) in self.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
                    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                    if lines > most:
                        yield name, node.name, lines


def _nodes(node: ast.AST, *, typing_only: bool) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
    """Walk statements and expressions, noting which stand under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.expr):
            yield child, typing_only
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            negated = isinstance(child.test, ast.UnaryOp)
            for branch, marked in ((child.body, not negated), (child.orelse, negated)):
                for statement in branch:
                    yield statement, typing_only or marked
                    yield from _nodes(statement, typing_only=typing_only or marked)
        else:
            yield from _nodes(child, typing_only=typing_only)
