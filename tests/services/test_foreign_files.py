"""Files of many writers, with their right values; the data is others' and lies beside the repository."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest

from tests.services.foreign_reader import read
from torch_table_loader.errors import ConfigError, TableError, TableLoaderError

SHARED = Path(os.environ.get("TABLE_LOADER_SHARED", Path(__file__).parents[3] / "shared")) / "files"

_WRAPPED = "its digest is of nanoseconds that wrapped around; times that nanoseconds do not hold are refused"
_WIDE = "its digest is of microseconds; INT96 is nanoseconds unless schema= says otherwise, and refused beyond those"
EXCEPTIONS = {
    "a1223b28ff3b3c3d.avro": "its digest is of a text of 36 letters; a UUID is 16 bytes, on texts too",
    "976ac8d5d670c492.parquet": _WRAPPED,
    "1263acda1ecba74d.parquet": _WRAPPED,
    "04dbfc3630a60739.parquet": _WRAPPED,
    "690190d558400064.parquet": _WRAPPED,
    "456f5e26da345766.parquet": _WRAPPED,
    "1dca39c13afafd4c.parquet": _WIDE,
    "88eea3d17b8c9b72.parquet": _WIDE,
    "a1f21e88612430ba.parquet": "a column that is not compared holds INT96 of day 0, which is refused",
}
"""Files that are not read as the manifest says, with the reason. A file that is read at last leaves the list."""

DAMAGE = re.compile("damaged|torn|write it again|write .* again")

REFUSED = {
    "bytes that contradict each other or the format": (DAMAGE.pattern, "restore the file, or leave it out"),
    "encrypted Parquet": ("encrypted", "decrypt it"),
    "types that Arrow lacks": ("type that pyarrow|decimals of more bytes", "convert the file"),
    "INT96 outside of 1677 to 2262": ("INT96", "`schema=` with microseconds"),
    "ORC times outside of 1677 to 2262": ("as nanoseconds .*ORC timestamp", "leave the column out"),
    "Avro without records": ("Avro file of records", "write records"),
    "LZO": ("LZO", "convert the file"),
}
"""What is refused, by what errors say, and what to do: the table in docs/files.md."""

pytestmark = [
    pytest.mark.skipif(not (SHARED / "manifest.json").exists(), reason="the corpus is not beside the repository"),
    pytest.mark.filterwarnings("ignore"),
]


@cache
def corpus() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_files", SHARED / "check_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def entries() -> list[dict[str, Any]]:
    """Return the files of the manifest, in an order that mixes formats and sources."""
    return sorted(json.loads((SHARED / "manifest.json").read_text())["files"], key=lambda entry: str(entry["sha256"]))


def sample(every: int) -> Iterator[tuple[dict[str, Any], str]]:
    for entry in entries()[::every]:
        yield entry, str(SHARED / "data" / entry["file"])


def readable(every: int) -> Iterator[tuple[dict[str, Any], str, pa.Table]]:
    """Yield the files that a stream reads, and what it gives."""
    for entry, path in sample(every):
        if entry.get("expect") != "error":
            try:
                yield entry, path, read(path, entry["format"])
            except TableError:  # `test_streams` judges those
                assert entry.get("may_refuse") or entry["file"] in EXCEPTIONS


def canonical(table: pa.Table) -> list[str]:
    """Return the rows of a table, each as a text."""
    columns = [corpus().arrow(column) for column in table.columns]
    return [json.dumps(row) for row in zip(*columns, strict=True)]


some_and_all = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
"""154 files every day, and all 1,693 in CI."""


@some_and_all
def test_streams_give_the_values_that_readers_agree_on(every: int) -> None:
    wrong = {}
    for entry, path in sample(every):
        fine, said = corpus().check(read, path, entry)
        if not fine:
            wrong[entry["file"]] = said
    sampled = {entry["file"] for entry, _ in sample(every)}
    assert {name: said for name, said in wrong.items() if name not in EXCEPTIONS} == {}
    assert wrong.keys() == EXCEPTIONS.keys() & sampled, "take a file that is read at last out of EXCEPTIONS"


def refusal(path: str, entry: dict[str, Any]) -> str:
    """Return what an error says that must be one of the library's; an empty text if there is none."""
    try:
        read(path, entry["format"])
    except TableLoaderError as error:
        return str(error)
    return ""


@some_and_all
def test_errors_name_the_file_and_call_no_sound_one_damaged(every: int) -> None:
    for entry, path in sample(every):
        said = refusal(path, entry)
        assert not said or entry["file"] in said
        assert entry.get("expect") == "error" or not DAMAGE.search(said), said


@some_and_all
def test_rows_are_those_of_streams(every: int) -> None:
    for entry, path, table in readable(every):
        try:
            rows = read(path, entry["format"], shuffle="rows", row_store="memory")
        except ConfigError as error:
            if not re.search("cannot be gathered row by row .*leave it out with columns=", str(error)):
                raise
        else:
            assert sorted(canonical(rows)) == sorted(canonical(table)), entry["file"]


COMPARED = (
    pt.is_integer,
    pt.is_float32,
    pt.is_float64,
    pt.is_string,
    pt.is_large_string,
    pt.is_timestamp,
    pt.is_date32,
    pt.is_boolean,
)


def filtered(table: pa.Table) -> tuple[pc.Expression, list[str]] | None:
    """Compare a column with a value from the middle of it; return the filter, and the rows that it keeps."""
    for field in table.schema:
        if table.schema.names.count(field.name) == 1 and any(test(field.type) for test in COMPARED):
            values = table[field.name].drop_null()
            if len(values):
                value = values[len(values) // 2]
                kept = pc.greater_equal(table[field.name], value).to_pylist()
                rows = [row for row, keep in zip(canonical(table), kept, strict=True) if keep]
                return pc.field(field.name) >= value, rows
    return None


@some_and_all
def test_a_filter_keeps_the_rows_that_arrow_keeps(every: int) -> None:
    for entry, path, table in readable(every):
        if (case := filtered(table)) is not None:
            assert canonical(read(path, entry["format"], filters=case[0])) == case[1], (entry["file"], str(case[0]))


@pytest.mark.slow
def test_the_documentation_tells_what_is_refused() -> None:
    texts = [text for entry, path in sample(1) if (text := refusal(path, entry))]
    kinds = Counter(next(kind for kind, (words, _) in REFUSED.items() if re.search(words, text)) for text in texts)
    rows = [f"| {kind} | {kinds[kind]} | {remedy} |" for kind, (_, remedy) in REFUSED.items()]
    table = "\n".join(["| refused | files | way out |", "|---|---|---|", *rows])
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text("utf-8")
    assert f"Of {len(entries()):,} files by" in page
    assert table in page, table


def test_wide_instants_are_right_as_microseconds() -> None:
    check = corpus()
    wide = [name for name, why in EXCEPTIONS.items() if why == _WIDE]
    for entry, path in sample(1):
        if entry["file"] in wide:
            schema = pa.schema([(name, pa.timestamp("us")) for name, _ in entry["columns"] if "96" in name])
            columns = dict(check.columns_of(read(path, "parquet", schema=schema, columns=schema.names), "parquet"))
            for name, digest in entry["columns"]:
                if name in columns:
                    assert check.digest_of(columns[name]) == digest
