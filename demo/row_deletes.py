"""Commits delete files to an Iceberg table of version 2, which pyiceberg reads and has no way to write."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)
"""The two columns of a position delete file, with the ids that the specification reserves for them."""


def position_deletes(table: Table, data_file: DataFile, positions: Sequence[int]) -> DataFile:
    """Write a file that deletes rows of a data file by their places.

    Args:
        table: whose delete it is.
        data_file: the file whose rows go.
        positions: rows, counted from the start of the file, ascending.

    Returns:
        The delete file, to be committed.
    """
    rows = pa.table([[data_file.file_path] * len(positions), positions], schema=_POSITIONS)
    return _write(table, rows, data_file, DataFileContent.POSITION_DELETES)


def equality_deletes(table: Table, data_file: DataFile, column: str, values: Sequence[object]) -> DataFile:
    """Write a file that deletes all older rows of a partition that hold one of some values in a column.

    Args:
        table: whose delete it is.
        data_file: any data file of the partition.
        column: by its name now.
        values: those whose rows go.

    Returns:
        The delete file, to be committed.
    """
    key = schema_to_pyarrow(table.schema().select(column))
    rows = pa.table([values], schema=key)
    ids = [table.schema().find_field(column).field_id]
    return _write(table, rows, data_file, DataFileContent.EQUALITY_DELETES, ids)


def commit_deletes(table: Table, delete_files: Sequence[DataFile], branch: str) -> None:
    """Add delete files to a branch, in one snapshot.

    Args:
        table: of format version 2.
        delete_files: from `position_deletes` and `equality_deletes`.
        branch: whose rows go; those of other branches stay.
    """
    with table.transaction() as transaction:
        delta = _RowDelta(Operation.DELETE, transaction, table.io, branch=branch)
        for delete_file in delete_files:
            delta.append_data_file(delete_file)
        delta.commit()


def _write(
    table: Table, rows: pa.Table, data_file: DataFile, content: DataFileContent, key_ids: list[int] | None = None
) -> DataFile:
    path = f"{table.location()}/data/delete-{uuid.uuid4()}.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    partition = Record(*(data_file.partition[place] for place in range(len(data_file.partition))))
    written = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        equality_ids=key_ids,
    )
    written.spec_id = data_file.spec_id
    return written


class _DeleteManifest(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot that adds delete files to those that its parent has."""

    def _manifests(self) -> list[ManifestFile]:
        by_spec = sorted(self._added_data_files, key=lambda file: file.spec_id)
        added = [self._manifest(spec_id, list(files)) for spec_id, files in groupby(by_spec, lambda file: file.spec_id)]
        return added + self._existing_manifests()

    def _manifest(self, spec_id: int, files: Sequence[DataFile]) -> ManifestFile:
        output = self.new_manifest_output()
        entries = (
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)
            for file in files
        )
        spec = self.spec(spec_id)
        with _DeleteManifest(spec, self.schema(), output, self._snapshot_id, self._compression) as writer:
            for entry in entries:
                writer.add(entry)
        return writer.to_manifest_file()


__all__ = ["commit_deletes", "equality_deletes", "position_deletes"]
