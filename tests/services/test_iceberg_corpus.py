"""Real tables of many writers, with their right content; the data is others' and lies beside the repository."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.services.iceberg_reader import read

SHARED = Path(os.environ.get("TABLE_LOADER_SHARED", Path(__file__).parents[3] / "shared")) / "iceberg"

pytestmark = pytest.mark.skipif(
    not (SHARED / "manifest.json").exists(), reason="the corpus is not beside the repository"
)


def corpus() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_iceberg", SHARED / "check_iceberg.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries() -> list[dict[str, Any]]:
    import json

    return list(json.loads((SHARED / "manifest.json").read_text())["tables"])


def verdicts(tmp_path: Path, every: int = 1, **options: Any) -> dict[str, tuple[str, str]]:
    check = corpus()
    found: dict[str, tuple[str, str]] = {}
    for entry in entries()[::every]:
        location = check.materialise(entry, str(tmp_path))
        for label, expected in check.checks_of(entry):
            found[label] = check.run_check(entry, expected, location, partial(read, **options), {})
    return found


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_check_is_right_or_refused_where_it_may_be(tmp_path: Path, every: int) -> None:
    found = verdicts(tmp_path, every)
    assert len(found) == sum(len(entry["checks"]) for entry in entries()[::every])
    assert {label: verdict for label, verdict in found.items() if verdict[0] != "ok"} == {}


@pytest.mark.slow
def test_threads_and_cut_files_change_no_row(tmp_path: Path) -> None:
    found = verdicts(tmp_path, num_workers=2, batch_size=7, split_deletes=True, split_size=3, shuffle="splits")
    assert {label: verdict for label, verdict in found.items() if verdict[0] != "ok"} == {}
