"""The live files of a version of a Delta Lake table, with their partition values and what is deleted from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.errors import TableError
from torch_table_loader.planning.listed_files import ListedFiles
from torch_table_loader.records import DataFile, FileColumns, FileVersion
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.delta.delta_options import path_of
from torch_table_loader.source.table_storage import MOST_OF_A_FILE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.records import TableColumns
    from torch_table_loader.source.delta.log_files import Vector

_ESCAPED = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")
_PLAIN = re.compile("^[^/:%][^:%]*$")
"""Paths of the log that are relative to the table, and written as they are."""

Pairs = tuple[tuple[str, Any], ...]
"""Column and value of each partition column."""


def live_files(
    adds: pa.Table, vectors: Mapping[str, Vector], columns: TableColumns, partition: Sequence[str], root: str
) -> tuple[ListedFiles, list[str]]:
    """List the data files of a version, in the order of its adds, and the paths of those that lie outside the root.

    `adds` are those of `Log` that a filter leaves; `partition` has the partition columns that can be read.

    Raises:
        TableError: a file is there twice, and so would its rows be; or more rows are deleted than it has.
    """
    paths = adds["path"].to_pylist()
    sizes, rows = (_numbers(adds, name, root) for name in ("size_bytes", "num_records"))
    maker = _FileMaker(columns, root, paths, partition_values(adds, partition), vectors, sizes, rows)
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise TableError(
            f"a data file must be in a version once, and the log of {root} has {maker.named(twice)[1]} twice, so that "
            "its rows would come twice; fix the table, or read another version"
        )
    deleted = [place for place, path in enumerate(paths) if path in vectors] if vectors else []
    for place in deleted:
        if 0 <= rows[place] < (num_rows := vectors[paths[place]].num_rows):
            raise TableError(
                f"the deletion vector of {maker.named(paths[place])[1]} must delete at most its {rows[place]} rows, "
                f"as the log of {root} says, got {num_rows}; fix the table's log, or read another version"
            )
    files = ListedFiles(sizes, rows, np.array(deleted, dtype=np.int64), maker)
    others = adds["path"].filter(pc.invert(pc.match_substring_regex(adds["path"], _PLAIN.pattern))).to_pylist()
    located = (maker.named(written)[0] for written in others)
    return files, [path for path in located if not path.startswith(f"{root.rstrip('/')}/")]


def _numbers(adds: pa.Table, name: str, root: str) -> NDArray[np.int64]:
    """Return a column of counts; −1 where there is none."""
    column = adds[name].cast(pa.int64())
    least, most = pc.min_max(column).values()
    if least.is_valid and not 0 <= least.as_py() <= most.as_py() <= MOST_OF_A_FILE:
        wrong = column.to_numpy()
        place = int(np.flatnonzero((wrong < 0) | (wrong > MOST_OF_A_FILE))[0])
        raise TableError(
            f"{name} of {adds['path'][place].as_py()} must be a number from 0 to {MOST_OF_A_FILE}, "
            f"got {column[place].as_py()} in the log of {root}; fix the table's log, or read another version"
        )
    found: NDArray[np.int64] = column.fill_null(-1).to_numpy()
    return found


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


class _FileMaker:
    """Makes files by their numbers; those of one partition share objects that are equal. It pickles."""

    def __init__(
        self,
        columns: TableColumns,
        root: str,
        paths: Sequence[str],
        values: Sequence[Pairs],
        vectors: Mapping[str, Vector],
        sizes: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        self._columns = columns
        self._ids = {column.name: column.field_id for column in columns.current}
        self._root = f"{root.rstrip('/')}/"
        self._paths = paths
        self._values = values
        self._vectors = vectors
        self._sizes, self._rows = sizes, rows
        self._shared: dict[Pairs, FileColumns] = {}
        self._versions: dict[int, FileVersion] = {}

    def named(self, written: str) -> tuple[str, str]:
        """Return a file's path, and its name: relative to the table, or without its protocol; without secrets."""
        if _PLAIN.match(written):  # most are, of which there may be very many
            return self._root + written, written
        path = path_of(self._root, written)
        if path.startswith(self._root):
            return path, path[len(self._root) :]
        name = shown_url(path)
        return path, name.partition("://")[2].lstrip("/") if "://" in name else name.lstrip("/")

    def __call__(self, place: int) -> DataFile:
        """Make the file that the log describes."""
        pairs, written = self._values[place], self._paths[place]
        columns = self._shared.get(pairs)
        if columns is None:
            constants = {self._ids[name]: value for name, value in pairs}
            columns = self._shared[pairs] = FileColumns(self._columns, constants)
        path, name = self.named(written)
        num_bytes, num_rows = int(self._sizes[place]), int(self._rows[place])
        version = self._versions.get(num_bytes)
        if version is None:
            version = self._versions[num_bytes] = FileVersion(num_bytes, immutable=True)
        file = DataFile(path, name, version, "parquet", pairs, columns, (), None if num_rows < 0 else num_rows)
        if (vector := self._vectors.get(written)) is None:
            return file
        return replace(file, deletes=(vector.delete_of(file, self._root),))
