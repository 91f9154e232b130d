"""Run notebooks from their first cell to their last, and write what they print: ``docs/notebooks/*.ipynb``.

Run it where the library can be imported: ``python tools/run_notebooks.py docs/notebooks/*.ipynb``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def executed(notebook: Notebook) -> Notebook:
    """Return a notebook with the outputs that its code cells have now, run in one namespace and an empty folder.

    Args:
        notebook: of format 4, whose cells are Python or Markdown, without magic commands.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    with _empty_folder():
        cells = [_run(cell, names) if cell["cell_type"] == "code" else cell for cell in notebook["cells"]]
    return notebook | {"cells": cells}


def _run(cell: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Run a cell; as in Jupyter, its last expression is an output unless it is None."""
    body = ast.parse("".join(cell["source"])).body
    last = body[-1] if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        statements = ast.Module(body if last is None else body[:-1], [])
        exec(compile(statements, "<cell>", "exec"), names)  # noqa: S102 the notebook is ours
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return cell | {"execution_count": None, "outputs": outputs}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def written(notebook: Notebook) -> str:
    """Return a notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(written(executed(json.loads(path.read_text()))))
