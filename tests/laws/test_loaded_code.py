"""The law of named code: every property by which the installed pyiceberg loads code is on our list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pyiceberg
import pytest

from torch_table_loader.iceberg.named_code import CODE_NAMES

ROOT = Path(pyiceberg.__file__).parent

BY_A_PROPERTY = {
    ("catalog/__init__.py", "_import_catalog"): "py-catalog-impl",
    ("catalog/rest/auth.py", "create"): "auth",
    ("io/__init__.py", "_import_file_io"): "py-io-impl",
    ("io/pyarrow.py", "_import_retry_strategy"): "s3.retry-strategy-impl",
    ("table/locations.py", "_import_location_provider"): "write.py-location-provider.impl",
}
BY_A_FIXED_NAME = {("transforms.py", "_try_import")}
"""pyiceberg_core, and nothing that a property says."""

LOADERS = {"import_module", "__import__", "resolve_name", "run_module", "run_path", "exec_module", "entry_points"}
BUILTINS = {"exec", "eval", "compile", "__import__"}
MODULES = {"importlib", "imp", "runpy", "pkgutil", "pickle", "marshal", "shelve", "dill", "cloudpickle", "code"}


@lru_cache(1)
def sources() -> Sequence[tuple[str, ast.Module]]:
    paths = sorted(ROOT.rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each node with the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        yield inside, node
        yield from functions(node, node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else inside)


def loads(tree: ast.Module) -> Iterator[str]:
    """Yield the function of each call that loads code by its name."""
    for inside, node in functions(tree):
        if isinstance(node, ast.Call):
            by_name = isinstance(node.func, ast.Name) and node.func.id in BUILTINS | LOADERS
            if by_name or (isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS):
                yield inside


def loading_modules(tree: ast.Module) -> set[str]:
    """Return the modules that load code which a module imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found & MODULES


def test_what_the_installed_pyiceberg_loads_is_known() -> None:
    found = {(name, function) for name, tree in sources() for function in loads(tree)}
    assert found == BY_A_PROPERTY.keys() | BY_A_FIXED_NAME
    assert {name for name, tree in sources() if loading_modules(tree)} == {name for name, _ in found}
    assert set(BY_A_PROPERTY.values()) <= CODE_NAMES


def test_each_property_named_after_code_is_known() -> None:
    said = {
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    found = {name for name in said if re.fullmatch(r"[\w.-]*impl", name)}
    assert found - {"impl"} == CODE_NAMES & said - {"auth"}  # "impl" is a part of "auth"
    assert "auth" in said


def test_a_table_s_properties_reach_a_file_io_through_one_method() -> None:
    others = set()
    for name, tree in sources():
        for inside, node in functions(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load_file_io":
                given = {keyword.arg: keyword.value for keyword in node.keywords}.get("properties", *node.args[:1])
                if ast.unparse(given) != "self.properties":
                    others.add((name, inside))
    static = {("table/__init__.py", "from_metadata"), ("table/__init__.py", "_metadata_location_from_version_hint")}
    assert others - static == {("catalog/__init__.py", "_load_file_io"), ("catalog/rest/__init__.py", "_load_file_io")}


@pytest.mark.parametrize(
    "line",
    [
        "importlib.import_module(name)",
        "import_module(name)",
        "__import__(name)",
        "pkgutil.resolve_name(name)",
        "eval(name)",
        "exec(name)",
        "runpy.run_path(name)",
        "metadata.entry_points(group=name)",
    ],
)
def test_a_new_import_is_found(line: str) -> None:
    assert list(loads(ast.parse(f"class A:\n    def new(self, name):\n        return {line}"))) == ["new"]
    assert loading_modules(ast.parse("from importlib import import_module as load\nimport pickle")) == {
        "importlib",
        "pickle",
    }
