"""The notebooks of the documentation run from the first cell to the last, and show what they print."""

from __future__ import annotations

import ast
import doctest
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MATCHES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


def text_of(lines: str | list[str]) -> str:
    """Return a text of a notebook, which the format keeps as one string or as lines."""
    return lines if isinstance(lines, str) else "".join(lines)


def shown_by(cell: dict[str, Any]) -> str:
    """Return the text that the outputs of a code cell show."""
    kinds = {"stream": lambda output: output["text"], "execute_result": lambda output: output["data"]["text/plain"]}
    texts = [text_of(kinds[output["output_type"]](output)) for output in cell["outputs"]]
    return "\n".join(text.rstrip("\n") for text in texts)


def run_cell(source: str, names: dict[str, Any], where: str) -> tuple[str, str | None]:
    """Run a code cell as a kernel does; return what it prints, and the value of its last line as text."""
    body = ast.parse(source, where).body
    last = body[-1].value if isinstance(body[-1], ast.Expr) else None
    statements = ast.Module(body[:-1] if last else body, type_ignores=[])
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(statements, where, "exec"), names)  # noqa: S102 the notebooks are ours
        value = eval(compile(ast.Expression(last), where, "eval"), names) if last else None  # noqa: S307
    return said.getvalue(), None if value is None else repr(value)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_what_a_notebook_shows_is_what_happens(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"notebook_{notebook.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = vars(module)
    try:
        for number, cell in enumerate(cells_of(notebook)):
            if cell["cell_type"] == "code":
                where = f"{notebook.name}: cell {number}"
                printed, value = run_cell(text_of(cell["source"]), names, where)
                got = printed + (value or "")
                assert doctest.OutputChecker().check_output(shown_by(cell), got, MATCHES), f"{where} prints:\n{got}"
    finally:
        names.clear()  # loaders end with the notebook


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_one_that_every_tool_opens(notebook: Path) -> None:
    told = json.loads(notebook.read_text("utf-8"))
    assert (told["nbformat"], told["nbformat_minor"]) == (4, 5)
    assert told["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in told["cells"]]
    assert len(set(ids)) == len(ids)
    assert told["cells"][0]["cell_type"] == "markdown"
    assert text_of(told["cells"][0]["source"]).startswith("# ")
    code = [cell for cell in told["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run all cells, then save"
    assert any(shown_by(cell) for cell in code)


def test_the_pages_link_to_every_notebook() -> None:
    linked = re.findall(r"\]\(notebooks/([\w-]+\.ipynb)\)", (ROOT / "docs" / "index.md").read_text("utf-8"))
    assert sorted(linked) == sorted(notebook.name for notebook in NOTEBOOKS)
    assert {"first-steps.ipynb", "recommender.ipynb", "language-model.ipynb"} <= {*linked}


def test_links_of_notebooks_lead_to_pages() -> None:
    for notebook in NOTEBOOKS:
        prose = "".join(text_of(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "markdown")
        targets = re.findall(r"\]\(([^)#\s]+)", prose)
        assert [target for target in targets if not (FOLDER / target).is_file()] == []
        assert targets, f"{notebook.name} says nowhere how to go on"
