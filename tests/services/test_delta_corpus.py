"""Golden tables that Spark wrote, with their right rows; the data is others' and lies beside the repository."""

from __future__ import annotations

import importlib.util
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.services.delta_reader import read

SHARED = Path(os.environ.get("TABLE_LOADER_SHARED", Path(__file__).parents[3] / "shared")) / "delta"

pytestmark = pytest.mark.skipif(
    not (SHARED / "check_delta.py").exists(), reason="the corpus is not beside the repository"
)


@pytest.fixture(scope="module")
def check() -> ModuleType:
    pytest.importorskip("zstandard")
    spec = importlib.util.spec_from_file_location("check_delta", SHARED / "check_delta.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(check: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("golden")
    found: dict[str, Path] = {}
    for packed in sorted(SHARED.glob("*.tar.zst")):
        name = packed.name.removesuffix(".tar.zst")
        with (
            packed.open("rb") as source,
            check.zstandard.ZstdDecompressor().stream_reader(source) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            archive.extractall(root / name, filter="data")
        found[name] = next((root / name).rglob("_delta_log")).parent
    return found


def wrong(check: ModuleType, tables: dict[str, Path], **options: Any) -> Iterator[str]:
    for name, table in tables.items():
        want, got = check.expected(table.parent / "expected"), read(str(table), **options)
        if sorted(got.column_names) != sorted(want.column_names) or check.rows(got) != check.rows(want):
            yield name


def test_every_table_gives_its_right_rows(check: ModuleType, tables: dict[str, Path]) -> None:
    assert len(tables) == 46
    assert list(wrong(check, tables)) == []


def test_footers_that_are_read_late_threads_and_cut_files_change_no_row(
    check: ModuleType, tables: dict[str, Path]
) -> None:
    uncounted = {name for name, table in tables.items() if '"stats"' not in logs(table)}
    counted = {name: table for name, table in tables.items() if name not in uncounted}
    assert len(counted) > 20
    assert list(wrong(check, counted, footers="lazy")) == []
    options: dict[str, Any] = {"num_workers": 2, "batch_size": 7, "split_deletes": True, "split_size": 3}
    assert list(wrong(check, tables, shuffle="splits", **options)) == []


def logs(table: Path) -> str:
    return "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
