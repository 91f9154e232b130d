"""The notebooks run from their first cell to their last, and print what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.run_notebooks import executed, written

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_prints_what_it_shows(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert written(executed(notebook)) == path.read_text(), f"run: python tools/run_notebooks.py {path.name}"


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["language-model", "recommender"]


def test_a_wrong_output_is_detected() -> None:
    cell = {"cell_type": "code", "source": ["print('one')\n", "1 + 1"], "outputs": [], "metadata": {}}
    outputs = executed({"cells": [cell]})["cells"][0]["outputs"]
    assert [outputs[0]["text"], outputs[1]["data"]] == [["one\n"], {"text/plain": ["2"]}]
