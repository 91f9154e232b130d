"""A table of very many data files, whose manifests pyiceberg's own writers write; none of the data files exists."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField

NUM_COLUMNS = 8
FILE_ROWS = 1_000_000
_SNAPSHOT = 77


def write_many(root: Path, num_files: int, num_manifests: int, location: str) -> str:
    """Write the metadata of a table; returns the location of its metadata file.

    Args:
        root: a local folder for the metadata.
        num_files: data files, each of `FILE_ROWS` rows; its manifest's number is the partition value.
        num_manifests: manifests that list them, of equal length.
        location: where the data files are said to be.
    """
    fields = [NestedField(1, "day", LongType(), required=False)]
    fields += [NestedField(i, f"x{i}", DoubleType(), required=False) for i in range(2, NUM_COLUMNS + 1)]
    schema = Schema(*fields)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    (root / "metadata").mkdir(parents=True)
    io = PyArrowFileIO()
    each = num_files // num_manifests
    manifests = []
    for day in range(num_manifests):
        target = io.new_output(f"file://{root}/metadata/m{day:05}.avro")
        with write_manifest(2, spec, schema, target, _SNAPSHOT, "deflate") as writer:
            for number in range(day * each, (day + 1) * each):
                writer.add_entry(_entry(f"{location}/data/{number:06}.parquet", day))
        manifests.append(writer.to_manifest_file())
    listed = f"file://{root}/metadata/snap.avro"
    with write_manifest_list(2, io.new_output(listed), _SNAPSHOT, None, 1, "deflate") as writer_of_list:
        writer_of_list.add_manifests(manifests)
    path = root / "metadata" / "v1.metadata.json"
    path.write_text(json.dumps(_metadata(schema, spec, location, listed)))
    return f"file://{path}"


def _entry(path: str, day: int) -> ManifestEntry:
    columns = range(1, NUM_COLUMNS + 1)
    low = {1: struct.pack("<q", day)} | {i: struct.pack("<d", day) for i in columns if i > 1}
    high = {1: struct.pack("<q", day)} | {i: struct.pack("<d", day + 0.5) for i in columns if i > 1}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=FILE_ROWS,
        file_size_in_bytes=50_000_000,
        column_sizes=dict.fromkeys(columns, 6_000_000),
        value_counts=dict.fromkeys(columns, FILE_ROWS),
        null_value_counts=dict.fromkeys(columns, 0),
        nan_value_counts=dict.fromkeys(columns, 0),
        lower_bounds=low,
        upper_bounds=high,
        key_metadata=None,
        split_offsets=[4, 25_000_004],
        equality_ids=None,
        sort_order_id=None,
    )
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=_SNAPSHOT, data_file=file)


def _metadata(schema: Schema, spec: PartitionSpec, location: str, listed: str) -> dict[str, object]:
    return {
        "format-version": 2,
        "table-uuid": "aaaaaaaa-0000-0000-0000-000000000000",
        "location": location,
        "last-sequence-number": 1,
        "last-updated-ms": 1_700_000_000_000,
        "last-column-id": NUM_COLUMNS,
        "schemas": [json.loads(schema.model_dump_json())],
        "current-schema-id": 0,
        "partition-specs": [json.loads(spec.model_dump_json())],
        "default-spec-id": 0,
        "last-partition-id": 1000,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "snapshots": [
            {
                "snapshot-id": _SNAPSHOT,
                "sequence-number": 1,
                "timestamp-ms": 1_700_000_000_000,
                "manifest-list": listed,
                "summary": {"operation": "append"},
                "schema-id": 0,
            }
        ],
        "current-snapshot-id": _SNAPSHOT,
    }


__all__ = ["FILE_ROWS", "NUM_COLUMNS", "write_many"]
