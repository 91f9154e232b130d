"""Broken table metadata: a `TableError` that names the file, and never other rows."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.iceberg_damage import Files, decoded, edit_avro, edit_json, encoded
from torch_table_loader import IcebergDataset
from torch_table_loader.errors import TableError

Change = Callable[[Files], Any]


def written(root: Path) -> str:
    """Write a table of two data files with one deleted row; return its metadata file."""
    table = IcebergWriter(root)
    first = table.append(some(0, 10))
    table.append(some(10, 20))
    table.commit()
    table.delete_rows({first: [3]})
    table.commit()
    table.refs["main"] = {"snapshot-id": table.snapshots[-1]["snapshot-id"], "type": "branch"}
    return table.metadata


def read(location: str, **options: Any) -> list[int]:
    loader, _ = IcebergDataset.create_dataloader(metadata_location=location, output_format="arrow", **options)
    return [x for batch in loader for x in batch.column("x").to_pylist()]


def in_metadata(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda files: edit_json(files.metadata, change)


def in_snapshot(change: Callable[[dict[str, Any]], Any]) -> Change:
    return in_metadata(lambda tree: change(tree["snapshots"][-1]))


def in_list(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    return lambda files: edit_avro(files.list, change)


def in_manifest(number: int, change: Callable[[list[dict[str, Any]]], Any], **header: str) -> Change:
    said = {name.replace("_", "-"): value for name, value in header.items()}
    return lambda files: edit_avro(files.manifests[number], change, said)


def set_to(key: str, value: Any, *way: Any) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for step in way:
            tree = tree[step]
        tree[key] = value

    return change


def entry(key: str, value: Any, at: int = 0) -> Callable[[Any], None]:
    return set_to(key, value, at)


def data_file(key: str, value: Any, at: int = 0) -> Callable[[Any], None]:
    return set_to(key, value, at, "data_file")


def twice(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[0])


def nothing(rows: list[dict[str, Any]]) -> None:
    pass


def existing_without_number(rows: list[dict[str, Any]]) -> None:
    rows[0] |= {"status": 0, "sequence_number": None}


def _says_files(tree: dict[str, Any]) -> None:
    tree["snapshots"][-1]["summary"]["total-data-files"] = "2"


def _lists_nothing(files: Files) -> None:
    edit_avro(files.list, list.clear)
    edit_json(files.metadata, _says_files)


def _deep(depth: int) -> Any:
    kind: Any = "long"
    for at in range(depth):
        kind = {"type": "list", "element-id": 100 + at, "element": kind, "element-required": False}
    return kind


_IDENTITY = {"field-id": 1000, "name": "p", "transform": "identity"}


def _with_one_spec(tree: dict[str, Any]) -> None:
    tree["partition-specs"] = None
    tree["partition-spec"] = [_IDENTITY]


def _mapped(depth: int) -> str:
    names: list[Any] = []
    for _ in range(depth):
        names = [{"names": ["a"], "fields": names}]
    return json.dumps(names)


DAMAGE: dict[str, tuple[Change, str]] = {
    "no manifest list": (in_snapshot(lambda tree: tree.pop("manifest-list")), "manifest-list"),
    "a manifest list of another type": (in_snapshot(set_to("manifest-list", 7)), "manifest-list"),
    "content 7 in the list": (in_list(entry("content", 7)), "content"),
    "content 7 in a manifest": (in_manifest(0, data_file("content", 7)), "content"),
    "a data file among deletes": (in_manifest(1, data_file("content", 0)), "content"),
    "deletes among data files": (in_manifest(0, data_file("content", 1)), "content"),
    "a list that takes data for deletes": (in_list(entry("content", 1)), "lists data"),
    "a header that says deletes": (in_manifest(0, nothing, content="deletes"), "deletes"),
    "a header of another spec": (in_manifest(0, nothing, partition_spec_id="5"), "partition-spec-id"),
    "a header of a later version": (in_manifest(0, nothing, format_version="4"), "format-version"),
    "a manifest twice": (in_list(twice), "twice"),
    "a file twice": (in_manifest(0, twice), "twice"),
    "status 7": (in_manifest(0, entry("status", 7)), "status"),
    "status deleted": (in_manifest(0, entry("status", 2)), "1 added"),
    "an entry less": (in_manifest(0, lambda rows: rows.pop()), "1 added"),
    "fewer rows": (in_manifest(0, data_file("record_count", 1)), "added_rows_count"),
    "no sequence number": (in_manifest(0, existing_without_number), "sequence_number"),
    "a negative sequence number": (in_manifest(0, entry("sequence_number", -1)), "sequence_number"),
    "a later sequence number": (in_manifest(0, entry("sequence_number", 9)), "sequence_number"),
    "a negative count": (in_manifest(0, data_file("record_count", -5)), "record_count"),
    "a count beyond all": (in_manifest(0, data_file("record_count", 1 << 60)), "record_count"),
    "a negative size": (in_manifest(0, data_file("file_size_in_bytes", -1)), "file_size_in_bytes"),
    "no path": (in_manifest(0, data_file("file_path", "")), "file_path"),
    "an unknown format": (in_manifest(0, data_file("file_format", "LANCE")), "LANCE"),
    "data in Puffin": (in_manifest(0, data_file("file_format", "PUFFIN")), "PUFFIN"),
    "an unknown spec": (in_list(entry("partition_spec_id", 3)), "partition-spec-id|partition spec"),
    "fewer partition values than fields": (
        in_metadata(
            set_to(
                "fields",
                [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}],
                "partition-specs",
                0,
            )
        ),
        "partition",
    ),
    "no manifest in the list": (
        _lists_nothing,
        "total-data-files",
    ),
    "an unknown current snapshot": (in_metadata(set_to("current-snapshot-id", 5)), "current-snapshot-id"),
    "no current snapshot": (in_metadata(lambda tree: tree.pop("current-snapshot-id")), "current-snapshot-id"),
    "main is another snapshot": (in_metadata(set_to("snapshot-id", 1001, "refs", "main")), "main"),
    "an unknown current schema": (in_metadata(set_to("current-schema-id", 5)), "current-schema-id"),
    "two schemas of one id": (in_metadata(lambda tree: tree["schemas"].append(tree["schemas"][0])), "schema-id"),
    "two columns of one id": (in_metadata(set_to("id", 1, "schemas", 0, "fields", 1)), "id"),
    "two columns of one name": (in_metadata(set_to("name", "x", "schemas", 0, "fields", 1)), "name"),
    "two snapshots of one id": (
        in_metadata(lambda tree: tree["snapshots"].append(tree["snapshots"][1])),
        "snapshot-id",
    ),
    "version 4": (in_metadata(set_to("format-version", 4)), "format version 1, 2 or 3, got 4"),
    "version True": (in_metadata(set_to("format-version", True)), "format version 1, 2 or 3, got True"),
    "no schema": (in_metadata(lambda tree: tree.pop("schemas")), "schema"),
    "schemas of another type": (in_metadata(set_to("schemas", "x")), "schemas"),
    "a column without a type": (in_metadata(lambda tree: tree["schemas"][0]["fields"][0].pop("type")), "type"),
    "a type without end": (in_metadata(set_to("type", _deep(300), "schemas", 0, "fields", 0)), "deep"),
    "a decimal of 99 digits": (in_metadata(set_to("type", "decimal(99, 2)", "schemas", 0, "fields", 0)), "decimal"),
    "snapshots of another type": (in_metadata(set_to("snapshots", {"a": 1})), "snapshots"),
    "refs of another type": (in_metadata(set_to("refs", [1])), "refs"),
    "specs without fields": (in_metadata(set_to("partition-specs", [{"spec-id": 0}])), "partition-specs"),
    "an identity of no column": (in_metadata(set_to("fields", [_IDENTITY], "partition-specs", 0)), "source-id"),
    "an identity of no column in version 1": (in_metadata(_with_one_spec), "source-id"),
    "a torn name mapping": (in_metadata(set_to("schema.name-mapping.default", "[1]", "properties")), "name-mapping"),
    "a name mapping without end": (
        in_metadata(set_to("schema.name-mapping.default", _mapped(300), "properties")),
        "name-mapping",
    ),
    "a name mapping of another type": (
        in_metadata(set_to("schema.name-mapping.default", {}, "properties")),
        "name-mapping",
    ),
    "a name of half a character": (in_metadata(set_to("location", "\ud800")), "location"),
    "a default of another type": (
        in_metadata(lambda tree: tree["schemas"][0]["fields"][0].update({"type": "date", "initial-default": "x"})),
        "initial-default of the column 'x'",
    ),
    "very many snapshots of another type": (in_metadata(set_to("snapshots", [7] * 100_000)), r"snapshots\[0\]"),
    "very many refs of another type": (
        in_metadata(set_to("refs", dict.fromkeys(map(str, range(100_000)), 7))),
        r"refs\.0",
    ),
    "a count of another type": (in_snapshot(set_to("total-data-files", "many", "summary")), "total-data-files"),
    "a location of another type": (in_metadata(set_to("location", 7)), "location"),
}


def test_the_undamaged_table_can_be_read(tmp_path: Path) -> None:
    location = written(tmp_path)
    assert read(location) == [x for x in range(20) if x != 3]
    assert len(Files(location).manifests) == 2


@pytest.mark.parametrize("name", DAMAGE)
def test_broken_metadata_is_refused(tmp_path: Path, name: str) -> None:
    location = written(tmp_path)
    change, said = DAMAGE[name]
    change(Files(location))
    with pytest.raises(TableError, match=said) as caught:
        read(location)
    named = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert any(each in str(caught.value) for each in named), caught.value


@pytest.mark.parametrize("rows", [0, -1])
def test_lazy_footers_skip_no_file(tmp_path: Path, rows: int) -> None:
    location = written(tmp_path)
    files = Files(location)
    edit_avro(files.manifests[0], data_file("record_count", rows))
    edit_avro(files.list, entry("added_rows_count", rows + 10))
    with pytest.raises(TableError, match=r"data/0001\.parquet"):
        read(location, footers="lazy")
    if rows < 0:
        assert len(read(location)) == 19, "so Spark's migration writes that it does not know"


def test_an_empty_data_file_is_read_with_lazy_footers(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append([])
    table.append(some(0, 5))
    table.commit()
    assert read(table.metadata, footers="lazy") == [0, 1, 2, 3, 4]


def test_a_dangling_delete_is_harmless(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append(some(0, 5))
    table.commit()
    table.delete_rows({"file:///gone.parquet": [3]})
    table.commit()
    assert read(table.metadata) == [0, 1, 2, 3, 4]


def test_a_snapshot_of_an_unknown_schema(tmp_path: Path) -> None:
    location = written(tmp_path)
    edit_json(Files(location).metadata, lambda tree: tree["snapshots"][0].update({"schema-id": 9}))
    assert len(read(location)) == 19
    with pytest.raises(TableError, match="schema-id 9"):
        read(location, snapshot_id=1001)


def test_a_torn_manifest_that_ends_with_a_block(tmp_path: Path) -> None:
    location = written(tmp_path)
    path = Files(location).manifests[0]
    schema, header, rows = decoded(path.read_bytes())
    path.write_bytes(encoded(schema, header, rows[:1]))
    with pytest.raises(TableError, match=path.name):
        read(location)


@pytest.mark.parametrize(
    "spoil", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"\x1f\x8b\x08torn", b"null", b"[1]", b"1" * 5000]
)
def test_metadata_that_is_not_a_json_object(tmp_path: Path, spoil: bytes) -> None:
    location = written(tmp_path)
    Files(location).metadata.write_bytes(spoil)
    with pytest.raises(TableError, match=r"v2\.metadata\.json"):
        read(location)


@pytest.mark.slow
def test_a_gzip_bomb(tmp_path: Path) -> None:
    location = written(tmp_path)
    path = Files(location).metadata
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data))
    assert len(read(location)) == 19
    path.write_bytes(gzip.compress(data + b" " * (257 << 20), 1))
    with pytest.raises(TableError, match=r"v2\.metadata\.json.*256 MiB"):
        read(location)


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "xz", "snappy"])
@daily(2)
def test_a_manifest_whose_blocks_are_bombs(tmp_path: Path, codec: str) -> None:
    location = written(tmp_path)
    path = Files(location).manifests[0]
    schema, header, rows = decoded(path.read_bytes())
    path.write_bytes(encoded(schema, header, rows, codec))
    assert len(read(location)) == 19
    rows[0]["data_file"]["file_path"] += " " * (65 << 20)
    path.write_bytes(encoded(schema, header, rows, codec))
    assert path.stat().st_size < 8 << 20
    with pytest.raises(TableError, match=rf"{path.name}.*64 MiB"):
        read(location)


def test_a_manifest_of_endless_lists(tmp_path: Path) -> None:
    location = written(tmp_path)
    path = Files(location).manifests[0]
    schema = json.loads(json.dumps(decoded(path.read_bytes())[0]).replace('"items": "long"', '"items": "null"'))
    _, header, rows = decoded(path.read_bytes())
    for row in rows:
        row["data_file"]["split_offsets"] = None
    path.write_bytes(encoded(schema, header, rows))
    with pytest.raises(TableError, match=rf"{path.name}.*no bytes"):
        read(location)


@pytest.mark.parametrize("which", ["metadata", "list", "manifest"])
def test_a_pipe_or_a_giant_in_place_of_a_file(tmp_path: Path, which: str) -> None:
    location = written(tmp_path)
    files = Files(location)
    path = {"metadata": files.metadata, "list": files.list, "manifest": files.manifests[0]}[which]
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TableError, match=path.name):
        read(location)
    path.unlink()
    with path.open("wb") as target:
        target.truncate(1 << 40)
    with pytest.raises(TableError, match=rf"{path.name}.*256 MiB"):
        read(location)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(TableError, match=path.name):
        read(location)


def test_a_header_alone_is_not_a_manifest(tmp_path: Path) -> None:
    location = written(tmp_path)
    for path in (Files(location).list, Files(location).manifests[0]):
        data = path.read_bytes()
        path.write_bytes(data[:40])
        with pytest.raises(TableError, match=path.name):
            read(location)
        path.write_bytes(data)


def test_records_of_another_kind(tmp_path: Path) -> None:
    location = written(tmp_path)
    for path in (Files(location).list, Files(location).manifests[0]):
        data = path.read_bytes()
        with path.open("wb") as target:
            fastavro.writer(target, {"type": "record", "name": "r", "fields": []}, [{}])
        with pytest.raises(TableError, match=path.name):
            read(location)
        with path.open("wb") as target:
            fastavro.writer(target, "long", [1, 2])
        with pytest.raises(TableError, match=path.name):
            read(location)
        path.write_bytes(data)


def test_a_partition_value_of_another_type_prunes_nothing(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, partition_by=2)
    table.append([{"x": x, "k": 1, "s": "s"} for x in range(5)], partition=1)
    table.commit()
    path = Files(table.metadata).manifests[0]
    schema, header, rows = decoded(path.read_bytes())
    [partition] = [each for each in schema["fields"][-1]["type"]["fields"] if each["name"] == "partition"]
    partition["type"]["fields"] = [{"name": "p", "type": "string"}]
    rows[0]["data_file"]["partition"] = {"p": "one"}
    path.write_bytes(encoded(schema, header, rows))
    assert read(table.metadata, filters=pc.field("k") == 1) == [0, 1, 2, 3, 4]


def _avro(schema: str, records: bytes) -> bytes:
    def number(value: int) -> bytes:
        value, out = value << 1, bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    header = b"".join(number(len(part)) + part for part in (b"avro.schema", schema.encode(), b"avro.codec", b"null"))
    return b"Obj\x01" + number(2) + header + b"\0" + b"S" * 16 + number(1) + number(len(records)) + records + b"S" * 16


def _chain(count: int, width: int) -> str:
    """A record of records that name each other, not one inside of another."""
    record = '{{"type": "record", "name": "r{}", "fields": [{}]}}'
    field = '{{"name": "f{}", "type": "{}"}}'
    types = [record.format(0, "")] + [
        record.format(at, ", ".join(field.format(one, f"r{at - 1}") for one in range(width))) for at in range(1, count)
    ]
    fields = ", ".join(f'{{"name": "a{at}", "type": {kind}}}' for at, kind in enumerate(types))
    return f'{{"type": "record", "name": "all", "fields": [{fields}]}}'


@pytest.mark.parametrize(
    ("schema", "records"),
    [
        ('{"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "r"]}]}', b"\2" * 100_000 + b"\0"),
        (
            '{"type": "record", "name": "a.r", "fields": [{"name": "n", "type": {"type": "map", "values": "a.r"}}]}',
            b"\2\2x" * 100_000 + b"\0",
        ),
        (_chain(20_000, 1), b""),
        (_chain(50, 2), b""),
    ],
    ids=["itself", "a map of itself", "a chain", "a tree"],
)
@daily(2)
def test_records_without_end_in_a_manifest(tmp_path: Path, schema: str, records: bytes) -> None:
    location = written(tmp_path)
    path = Files(location).manifests[0]
    path.write_bytes(_avro(schema, records))
    with pytest.raises(TableError, match=path.name):
        read(location)
