"""The registry of formats: what it lists, and that each format fulfils the contract and its description."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from tests.rooms.plug_ins import install
from tests.rooms.test_plug_ins import PLUGS
from tests.rooms.test_read_formats import WRITERS
from tests.tables.tensor_shards import tensor, write_shard
from tests.tables.token_files import LAYOUTS, some_documents
from torch_table_loader import MissingExtraError
from torch_table_loader.cli import registry
from torch_table_loader.cli.main import main
from torch_table_loader.extend import FORMATS, format_contracts, reader_for
from torch_table_loader.testing import check_format_reader, stored_files

TABLE = pa.table(
    {
        "a": pa.array([None if row % 11 == 0 else row for row in range(40)], pa.int64()),
        "s": pa.array([f"row {row}" for row in range(40)]),
        "b": pa.array([row % 2 == 0 for row in range(40)]),
    }
)


def _write(form: str, folder: Path) -> None:
    """Write a file of a format, of several pieces where it can be cut."""
    if form in LAYOUTS:
        suffix, write = LAYOUTS[form]
        write(folder / f"x{suffix}", some_documents(1, 20))
    elif form == "avro":
        fields = [
            {"name": name, "type": ["null", kind]}
            for name, kind in zip("asb", ("long", "string", "boolean"), strict=True)
        ]
        schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
        with (folder / "x.avro").open("wb") as file:
            fastavro.writer(file, schema, TABLE.to_pylist())
    elif form == "tensorproto":
        write_shard(folder / "x.pb", [[tensor("a", row), tensor("x", [row, row + 0.5])] for row in range(40)])
    elif form == "npy":
        np.save(folder / "x.npy", np.arange(40, dtype=np.int32))
    else:
        write_table = next(write for kind, (name, write) in sorted(WRITERS.items()) if name == form)
        write_table(TABLE, folder / f"x.{form}")


def format_entries() -> list[dict[str, Any]]:
    """Return what the command says of each format."""
    with redirect_stdout(io.StringIO()) as said:
        assert main(["formats", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(said.getvalue())["formats"]
    return found


def _installed() -> list[str]:
    return [entry["name"] for entry in format_entries()]


@pytest.mark.parametrize("form", [*FORMATS, "npy", "tensorproto"])
def test_every_format_fulfils_the_contract_and_its_description(tmp_path: Path, form: str) -> None:
    _write(form, tmp_path)
    storage, files = stored_files(tmp_path, form)
    reader: Any = reader_for(form)
    check_format_reader(reader, storage, files)
    entry = next(entry for entry in format_entries() if entry["name"] == form)
    meta = reader.inspect(storage, files[0], None)
    assert entry["ranges"] == isinstance(reader, format_contracts.RangedReader)
    assert entry["origin"].startswith("torch-table-")
    assert any(files[0].name.endswith(suffix) for suffix in entry["suffixes"])
    assert entry["counting"] != "?"
    assert len(meta.group_rows) == 1 or entry["cut"]
    if entry["cut"] is None:
        assert len(meta.group_rows) == 1


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    said = capsys.readouterr().out
    for form in _installed():
        assert f"\n  {form} " in said
    assert "torch-table-strategies" in said
    assert "StructuredDataset.from_arrow(data)" in said
    assert main(["formats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {entry["name"]: entry for entry in found["formats"]}
    assert [*by_name] == _installed()
    assert by_name["parquet"]["pruning"] == "statistics, partitions"
    assert (by_name["csv"]["cut"], by_name["csv"]["ranges"]) == (None, False)
    assert by_name["npy"]["pruning"] is None
    assert {source["name"] for source in found["sources"]} >= {"rows in memory", "Iceberg tables"}


def test_plug_ins_are_listed_and_those_that_cannot_be_used_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, numbers=f"{PLUGS}:numbers", broken=f"{PLUGS}:nowhere", parquet=f"{PLUGS}:numbers")
    entries = {entry["name"]: entry for entry in format_entries()}
    assert entries["numbers"]["error"] == ""
    assert entries["numbers"]["cut"] == "?"
    assert "cannot be loaded" in entries["broken"]["error"]
    assert entries["parquet"]["suffixes"] == [".parquet", ".pq"]
    main(["formats"])
    said = capsys.readouterr().out
    assert "cannot be loaded" in said
    assert len([line for line in said.splitlines() if line.startswith("  broken")]) == 1


def test_a_missing_package_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    main(["formats"])
    said = capsys.readouterr().out
    assert "needs fastavro" in said
    assert "needs pyiceberg" in said


def test_a_missing_part_of_the_library_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_orc(name: str) -> Any:
        if name == "orc":
            raise MissingExtraError("this build has no ORC: it was made without it")
        return reader_for(name)

    monkeypatch.setattr(registry, "has", lambda name: name != "iceberg")
    monkeypatch.setattr(registry, "reader_for", without_orc)
    main(["formats"])
    said = capsys.readouterr().out
    assert "needs a build with Iceberg" in said
    assert "needs a build with Delta Lake" not in said
    assert "this build has no ORC" in said


def test_the_page_writes_a_format_in_less_than_60_lines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "writing-a-format.md").read_text()
    first = page.split("```python\n")[1].split("```")[0]
    assert "class RecordsReader" in first
    assert len(first.splitlines()) < 60
