"""The live files of a version of a Delta Lake table, with their partition values and what is deleted from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.records import DataFile, DeleteFile, FileColumns, FileVersion
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.delta.delta_options import is_plain, path_of

if TYPE_CHECKING:
    from torch_table_loader.records import TableColumns
    from torch_table_loader.source.delta.log import Mask

_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")

Pairs = tuple[tuple[str, Any], ...]
"""Column and value of each partition column."""


def live_files(
    adds: pa.Table, masks: Mapping[str, Mask], columns: TableColumns, partition: Sequence[str], root: str
) -> tuple[DataFile, ...]:
    """Make the data files of a version, in the order of its adds.

    Args:
        adds: see `log.Log`; those that a filter leaves.
        masks: likewise; all.
        columns: of the table.
        partition: its partition columns, as far as they can be read.
        root: the table's folder.

    Raises:
        TableError: a file is there twice, and so would its rows be.
    """
    making = _Making(columns, root)
    values = partition_values(adds, partition)
    paths = adds["path"].to_pylist()
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise TableError(
            f"a data file must be in a version once, and the log of {root} has {making.named(twice)[1]} twice, so that "
            "its rows would come twice; mend the table, or read another version"
        )
    told = zip(paths, adds["size_bytes"].to_pylist(), adds["num_records"].to_pylist(), values, strict=True)
    return tuple(making.file(*each, masks.get(each[0])) for each in told)


def partition_values(adds: pa.Table, partition: Sequence[str]) -> list[Pairs]:
    """Return the partition values of each file, times as numbers: microseconds since 1970."""
    if not partition:
        return [()] * adds.num_rows
    lists = [_values(adds, name) for name in partition]
    return [tuple(zip(partition, row, strict=True)) for row in zip(*lists, strict=True)]


def partition_array(adds: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the values of a partition column, one for each file."""
    kind = adds.schema.field("partition").type.field(name).type
    array = pa.chunked_array([chunk.field(name) for chunk in adds["partition"].chunks], kind)
    if not pa.types.is_binary(kind):
        return array
    return pa.chunked_array([pa.array([_unescaped(value) for value in array.to_pylist()], kind)])


def _unescaped(value: bytes | None) -> bytes | None:
    r"""Return binary as it was before it was written as the protocol says, which deltalake leaves to its callers.

    >>> _unescaped(rb"\u0001\u00FF"), _unescaped(b"abc")
    (b'\x01\xff', b'abc')
    """
    if value is None or not _ESCAPED.fullmatch(value):
        return value
    return bytes.fromhex(value.replace(rb"\u00", b"").decode("ascii"))


def _values(adds: pa.Table, name: str) -> list[Any]:
    array = partition_array(adds, name)
    found: list[Any] = (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()
    return found


class _Making:
    """Makes files; those of one partition share what is the same."""

    def __init__(self, columns: TableColumns, root: str) -> None:
        self._columns = columns
        self._ids = {column.name: column.field_id for column in columns.current}
        self._root = f"{root.rstrip('/')}/"
        self._shared: dict[Pairs, FileColumns] = {}
        self._versions: dict[int, FileVersion] = {}

    def named(self, written: str) -> tuple[str, str]:
        """Return a file's path, and its name: relative to the table, or without its protocol; without secrets."""
        if is_plain(written):  # most are, of which there may be very many
            return self._root + written, written
        path = path_of(self._root, written)
        if path.startswith(self._root):
            return path, path[len(self._root) :]
        name = shown_url(path)
        return path, name.partition("://")[2].lstrip("/") if "://" in name else name.lstrip("/")

    def file(self, written: str, num_bytes: int, num_rows: int | None, pairs: Pairs, mask: Mask | None) -> DataFile:
        """Make a file of what the log says of it."""
        columns = self._shared.get(pairs)
        if columns is None:
            constants = {self._ids[name]: value for name, value in pairs}
            columns = self._shared[pairs] = FileColumns(self._columns, constants)
        path, name = self.named(written)
        version = self._versions.get(num_bytes)
        if version is None:
            version = self._versions[num_bytes] = FileVersion(num_bytes, immutable=True)
        file = DataFile(path, name, version, "parquet", pairs, columns, (), num_rows)
        if mask is None or not mask.num_rows:
            return file
        return replace(file, deletes=(DeleteFile(file, "mask", mask.num_rows, mask=mask.bits),))
