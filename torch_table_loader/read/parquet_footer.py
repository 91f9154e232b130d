"""Reads the footer of a Parquet file, and refuses one that cannot be true.

pyarrow does not check a footer. Counts that contradict each other lose rows, and some damage ends the process:
``RowGroupMetaData.column`` lets a C++ exception out. So each footer is checked once, and nothing is touched before it
is known to be safe. `read/parquet_statistics.py` checks statistics where those are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line
from torch_table_loader.read.far_files import LEAST_TAIL_BYTES, open_at_end

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

MAGIC = b"PAR1"

DAMAGE = (OSError, pa.ArrowException, ValueError, OverflowError, RecursionError, SystemError)
"""What pyarrow raises where a footer is damaged: ValueError includes UnicodeDecodeError."""

_LARGEST_DICTIONARY = 5 << 18
"""A little more than the bytes at which writers stop filling a dictionary."""

_DICTIONARY_HEADER_BYTES = 100
"""Bytes that pyarrow reads beyond the column chunks of writers that do not count the header of a dictionary."""

_MOST_FOOTER_BYTES = 512 * 1024 * 1024
"""The longest footer, of some four million column chunks; a larger length is taken for damage."""


def read_footer(storage: Storage, file: DataFile) -> tuple[bytes, int]:
    """Read the footer of a file.

    Returns:
        The footer as a file of its own, and the byte of the file at which it begins.

    Raises:
        TableError: the file is torn, encrypted, or not Parquet.
    """
    with open_at_end(storage, file) as source:
        size = source.size()
        if size < 12:
            raise _torn(file, f"at least 12 bytes ({MAGIC!r}, footer, its length, {MAGIC!r})", f"{size} bytes")
        tail_bytes = min(size, max(8, file.tail_bytes or LEAST_TAIL_BYTES))
        tail = source.read_at(tail_bytes, size - tail_bytes)
        if tail[-4:] == b"PARE":
            raise TableError(
                f"{file.name} must be a Parquet file with a plain footer, got an encrypted one (magic b'PARE'); "
                "decrypt it first: this library reads no encrypted files"
            )
        if tail[-4:] != MAGIC:
            raise _torn(file, f"a file that ends in {MAGIC!r}", f"{tail[-4:]!r}")
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length == 8 or length > size - 4:
            raise _torn(file, f"a footer inside its {size} bytes", f"a footer length of {length - 8} bytes")
        if length > _MOST_FOOTER_BYTES:
            raise _torn(file, f"a footer of at most {_MOST_FOOTER_BYTES} bytes", f"a length of {length - 8} bytes")
        if length > len(tail):
            tail = source.read_at(length, size - length)
        if len(tail) < length:
            raise _torn(file, f"a footer of {length} bytes", f"{len(tail)} bytes")
        return b"".join((MAGIC, tail[-length:])), size - length


@lru_cache(maxsize=16)
def parse(footer: bytes) -> pq.FileMetaData:
    """Parse a footer that `read_footer` returned.

    No list and no string in it can be longer than the footer, so that a claimed length allocates no more than that.
    """
    most = len(footer)
    source = pa.BufferReader(footer)
    return pq.ParquetFile(source, thrift_string_size_limit=most, thrift_container_size_limit=most).metadata


def check_footer(file: DataFile, parsed: pq.FileMetaData, data_bytes: int) -> None:
    """Refuse a footer whose counts, sizes and offsets contradict each other, or the `data_bytes` before the footer.

    Raises:
        TableError: says which do.
    """
    num_leaves = parsed.num_columns
    total = 0
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        if group.num_rows < 0 or group.total_byte_size < 0:
            raise _untrue(
                file.name,
                "row groups of 0 or more rows and bytes",
                f"{group.num_rows} rows and {group.total_byte_size} bytes in row group {number}",
            )
        if group.num_columns != num_leaves:
            raise _untrue(
                file.name, f"{num_leaves} columns in each row group", f"{group.num_columns} in row group {number}"
            )
        total += group.num_rows
    if total != parsed.num_rows:
        raise _untrue(file.name, f"{parsed.num_rows} rows in all, as it says", f"row groups of {total} rows")
    if num_leaves and parsed.num_row_groups:
        _check_ranges(file, parsed, data_bytes)
        _check_values(file, parsed)


def _check_ranges(file: DataFile, parsed: pq.FileMetaData, data_bytes: int) -> None:
    """Refuse column chunks outside the file, and those that pyarrow cannot look at.

    Before its first read, a pre-buffering pyarrow computes the byte range of every column chunk that is wanted, and
    there its exceptions are caught. It is given a file without bytes: once it tries to read, it has found no fault.
    """
    unread = _Unread(data_bytes)
    try:
        with closing(pa.PythonFile(unread, mode="r")) as source:
            handle = pq.ParquetFile(source, metadata=parsed, pre_buffer=True)
            groups = range(parsed.num_row_groups)
            next(handle.iter_batches(batch_size=1, row_groups=groups, use_threads=False), None)
    except DAMAGE as error:
        if not unread.asked:
            raise _untrue(
                file.name,
                f"sound column chunks inside its {data_bytes} bytes of data",
                f"others ({first_line(error)})",
            ) from error


def _check_values(file: DataFile, parsed: pq.FileMetaData) -> None:
    """Refuse column chunks of more or fewer values than rows: values would come in other rows."""
    flat = [parsed.schema.column(place).max_repetition_level == 0 for place in range(parsed.num_columns)]
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        num_rows = group.num_rows
        for place, is_flat in enumerate(flat):
            num_values = group.column(place).num_values
            if num_values != num_rows and (is_flat or num_values < num_rows):
                raise _untrue(
                    file.name,
                    f"{num_rows} values {'' if is_flat else 'or more '}in each column of row group {number}",
                    f"{num_values} in column {parsed.schema.column(place).path!r}",
                )


def chunk_ranges(
    parsed: pq.FileMetaData, file_bytes: int, groups: Sequence[int], columns: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Return which bytes pyarrow reads to decode columns of row groups: their column chunks.

    As in pyarrow, a dotted name is that of a field inside a column.
    """
    paths = [parsed.schema.column(place).path for place in range(parsed.num_columns)]
    wanted = set(columns)
    leaves = [place for place, path in enumerate(paths) if not wanted.isdisjoint(_prefixes(path))]
    padding = _DICTIONARY_HEADER_BYTES if _forgets_dictionary_headers(parsed.created_by or "") else 0
    found = []
    for number in groups:
        group = parsed.row_group(number)
        ranges = [_chunk_range(group.column(leaf)) for leaf in leaves]
        found.append([(start, min(stop + padding, max(stop, file_bytes))) for start, stop in ranges if start < stop])
    return found


def list_values(parsed: pq.FileMetaData, leaf: int, nulls: Sequence[int | None]) -> tuple[list[int], list[int]] | None:
    """Return how many values the lists of a leaf hold in each row group, and how many lists hold any.

    A list that is null or empty is one null of the leaf. None if the writer did not count nulls.
    """
    values, lists = [], []
    for number, missing in enumerate(nulls):
        group = parsed.row_group(number)
        if missing is None or not 0 <= missing <= group.num_rows:
            return None  # of more nulls than rows some are inside lists, which no packing takes
        values.append(group.column(leaf).num_values - missing)
        lists.append(group.num_rows - missing)
    return values, lists


def leaf_of_lists(parsed: pq.FileMetaData, column: str) -> int | None:
    """Return the place of the leaf of a column of lists of single values; None for any other column."""
    paths = [parsed.schema.column(place).path for place in range(parsed.num_columns)]
    leaves = [place for place, path in enumerate(paths) if column in _prefixes(path)]
    return leaves[0] if len(leaves) == 1 and parsed.schema.column(leaves[0]).max_repetition_level == 1 else None


def bounds_of(parsed: pq.FileMetaData, leaf: int) -> tuple[int, int] | None:
    """Return the least and the greatest integer of a leaf; None if the writer did not say.

    The caller must have checked the leaf with `refuse_unsafe`.
    """
    low, high = [], []
    for number in range(parsed.num_row_groups):
        chunk = parsed.row_group(number).column(leaf)
        if not chunk.is_stats_set:
            return None
        known = chunk.statistics
        if known.has_null_count and known.null_count == chunk.num_values:
            continue
        if not known.has_min_max or not isinstance(known.min, int) or not isinstance(known.max, int):
            return None
        low.append(known.min)
        high.append(known.max)
    return (min(low), max(high)) if low else (0, 0)


def _chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = chunk.data_page_offset
    dictionary = chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return start, start + chunk.total_compressed_size


def _prefixes(path: str) -> Iterator[str]:
    """Yield the names under which a leaf is read: its column, the fields between, and itself.

    >>> list(_prefixes("a.list.element"))
    ['a', 'a.list', 'a.list.element']
    """
    return accumulate(path.split("."), "{}.{}".format)


def encoded_columns(parsed: pq.FileMetaData, columns: frozenset[str]) -> list[str]:
    """Return those of some flat columns that a file has as places in dictionaries, judged by its first row group.

    A writer continues with plain values when a dictionary has grown beyond a mebibyte, which pyarrow does not show:
    but the chunk is then larger than a dictionary and places of 20 bits.
    """
    if not columns or not parsed.num_row_groups:
        return []
    group = parsed.row_group(0)
    most = _LARGEST_DICTIONARY + 5 * group.num_rows // 2
    chunks = (group.column(place) for place in range(group.num_columns))
    return [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.path_in_schema in columns and chunk.has_dictionary_page and chunk.total_uncompressed_size <= most
    ]


def _forgets_dictionary_headers(writer: str) -> bool:
    """Return whether a writer leaves the header of a dictionary's page out of all sizes (PARQUET-816).

    >>> _forgets_dictionary_headers("parquet-mr version 1.2.8 (build 4)"), _forgets_dictionary_headers("parquet-mr")
    (True, True)
    >>> _forgets_dictionary_headers("parquet-mr version 1.10.0"), _forgets_dictionary_headers("parquet-cpp-arrow")
    (False, False)
    """
    match = re.match(r"parquet-mr(?: version (\d+)\.(\d+)\.(\d+))?", writer.lower())
    return match is not None and tuple(int(part or 0) for part in match.groups()) < (1, 2, 9)


class _Unread:
    """A file of a known size that has no bytes; it remembers whether any were asked for."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._place = 0
        self.asked = False

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, _length: int = -1) -> bytes:
        self.asked = True
        return b""

    def close(self) -> None:
        self.closed = True


def _torn(file: DataFile, expected: str, got: str) -> TableError:
    return TableError(
        f"{file.name} must be a Parquet file, that is {expected}, got {got}; the file is torn or of another "
        "format: write it again, leave it out of the table, or pass the format that it has"
    )


def _untrue(name: str, expected: str, got: str) -> TableError:
    return TableError(
        f"{name} must have a Parquet footer with {expected}, got {got}; the footer is damaged: restore the file, "
        "write it again, or leave it out of the table"
    )
