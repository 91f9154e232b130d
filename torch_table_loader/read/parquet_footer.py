"""Reads the footer of a Parquet file, and refuses one that cannot be true.

pyarrow does not check a footer. Counts that contradict each other lose rows, and some damage ends the process:
``RowGroupMetaData.column`` lets a C++ exception out. So each footer is checked once, and nothing is touched before it
is known to be safe. Statistics are checked where those are used.

pyarrow decodes the bounds of a column chunk as soon as any of its statistics is asked for. It does not check the
chunk's type and the length of its bounds first, and its C++ exception is not caught. So the footer is walked here:
Thrift's compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), and of
parquet.thrift the fields that are named below. The walk takes no memory that the footer does not, and ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from torch_table_loader.errors import TableError
from torch_table_loader.messages import first_line
from torch_table_loader.ranges import LEAST_TAIL_BYTES
from torch_table_loader.read.failures import as_reading_error, of_unread
from torch_table_loader.read.file_ends import open_at_end
from torch_table_loader.read.wide_parquet import WideParquet

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

_CLOSED = "Operation forbidden on closed BufferReader"

_MOST_FOOTER_BYTES = 512 * 1024 * 1024
"""The longest footer, of some four million column chunks; a larger length is taken for damage."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_ROW_GROUPS, _COLUMNS, _META, _TYPE, _STATISTICS, _NULL_COUNT = 4, 1, 3, 1, 12, 3
_SIZES, _UNENCODED = 16, 1

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

_MOST_DEEP = 32
"""parquet.thrift nests to a depth of six."""

_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_INT = rb"(?:[\x14-\x16\x24-\x26\x34-\x36\x44-\x46]" + _VARINT + rb")"


def read_footer(storage: Storage, file: DataFile) -> tuple[bytes, int]:
    """Read the footer of a file, as a file of its own, and return the byte at which it begins too.

    Raises:
        TableError: the file is torn, encrypted, or not Parquet.
    """
    with open_at_end(storage, file) as source:
        size = source.size()
        if size < 12:
            lead = source.read_at(size, 0)
            raise _torn(file, f"at least 12 bytes ({MAGIC!r}, footer, its length, {MAGIC!r})", f"{size} bytes", lead)
        tail_bytes = min(size, max(8, file.tail_bytes or LEAST_TAIL_BYTES))
        tail = source.read_at(tail_bytes, size - tail_bytes)
        if tail[-4:] == b"PARE":
            raise TableError(
                f"{file.name} must be a Parquet file with a plain footer, got an encrypted one (magic b'PARE'); "
                "decrypt it first: this library reads no encrypted files"
            )
        if tail[-4:] != MAGIC:
            raise _torn(file, f"a file that ends in {MAGIC!r}", f"{tail[-4:]!r}", source.read_at(4, 0))
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
    return WideParquet(source, thrift_string_size_limit=most, thrift_container_size_limit=most).metadata


def check_footer(file: DataFile, parsed: pq.FileMetaData, data_bytes: int) -> None:
    """Refuse a footer whose counts, sizes and offsets contradict each other, or the `data_bytes` before the footer."""
    num_leaves = parsed.num_columns
    total = 0
    for number in range(parsed.num_row_groups):
        group = parsed.row_group(number)
        if group.num_rows < 0 or group.total_byte_size < 0:
            raise _untrue(
                file,
                "row groups of 0 or more rows and bytes",
                f"{group.num_rows} rows and {group.total_byte_size} bytes in row group {number}",
            )
        if group.num_columns != num_leaves:
            raise _untrue(file, f"{num_leaves} columns in each row group", f"{group.num_columns} in row group {number}")
        total += group.num_rows
    if parsed.num_rows not in (total, 0):  # some writers leave 0 there
        raise _untrue(file, f"{parsed.num_rows} rows in all, as it says", f"row groups of {total} rows")
    if num_leaves and parsed.num_row_groups:
        _check_ranges(file, parsed, data_bytes)
        _check_values(file, parsed)


def _check_ranges(file: DataFile, parsed: pq.FileMetaData, data_bytes: int) -> None:
    """Refuse column chunks outside the file, and those that pyarrow cannot look at.

    Before its first read, a pre-buffering pyarrow computes the byte range of every column chunk that is wanted, and
    there its exceptions are caught. It is given a file that was closed: if it says so, it has found no fault before.
    """
    memory = pa.py_buffer(MAGIC)
    # Of as many bytes as the file, which nobody reads: pyarrow is given the footer, and the file is closed then.
    source = pa.BufferReader(pa.foreign_buffer(memory.address, data_bytes, memory))
    error = _fault_of(parsed, source)
    if error is None or str(error) == _CLOSED or str(error) == _of_a_closed_file():
        return
    if of_unread(error):
        raise as_reading_error(error, file, is_local=True) from error
    expected = f"sound column chunks inside its {data_bytes} bytes of data"
    raise _untrue(file, expected, f"others ({first_line(error)})") from error


def _fault_of(parsed: pq.FileMetaData, source: pa.NativeFile) -> Exception | None:
    """Return what pyarrow says when it wants all column chunks of a file that is closed; None if it wants none."""
    try:
        handle = WideParquet(source, metadata=parsed, pre_buffer=True)
        source.close()
        groups = range(parsed.num_row_groups)
        next(handle.iter_batches(batch_size=1, row_groups=groups, use_threads=False), None)
    except DAMAGE as error:
        return error
    return None


@cache
def _of_a_closed_file() -> str:
    """Return what this pyarrow says of a sound file that is closed, if that is not `_CLOSED`; takes a millisecond."""
    sound = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [0]}), sound)
    source = pa.BufferReader(sound.getvalue())
    return str(_fault_of(pq.read_metadata(source), source))


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
                    file,
                    f"{num_rows} values {'' if is_flat else 'or more '}in each column of row group {number}",
                    f"{num_values} in column {parsed.schema.column(place).path!r}",
                )


def chunk_ranges(
    parsed: pq.FileMetaData, file_bytes: int, groups: Sequence[int], columns: Sequence[str]
) -> list[list[tuple[int, int]]]:
    """Return which bytes pyarrow reads to decode columns of row groups: their column chunks.

    As in pyarrow, a dotted name is that of a field inside a column.
    """
    wanted = set(columns)
    leaves = [place for place, path in enumerate(leaf_paths(parsed)) if not wanted.isdisjoint(prefixes(path))]
    padding = _DICTIONARY_HEADER_BYTES if _forgets_dictionary_headers(parsed.created_by or "") else 0
    found = []
    for number in groups:
        group = parsed.row_group(number)
        ranges = [chunk_range(group.column(leaf)) for leaf in leaves]
        found.append([(start, min(stop + padding, max(stop, file_bytes))) for start, stop in ranges if start < stop])
    return found


def leaf_paths(parsed: pq.FileMetaData) -> list[str]:
    """Return the dotted paths of the leaf columns."""
    return [parsed.schema.column(place).path for place in range(parsed.num_columns)]


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
    leaves = [place for place, path in enumerate(leaf_paths(parsed)) if column in prefixes(path)]
    if len(leaves) == 1 and parsed.schema.column(leaves[0]).max_repetition_level == 1:
        return leaves[0]
    return None


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
        if known.min > known.max:
            return None  # a writer broke the format
        low.append(known.min)
        high.append(known.max)
    if low:
        return (min(low), max(high))
    return (0, 0)


def chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where the pages of a column of a row group lie in its file."""
    start = chunk.data_page_offset
    dictionary = chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    return start, start + chunk.total_compressed_size


def prefixes(path: str) -> Iterator[str]:
    """Yield the names under which a leaf is read: its column, the fields between, and itself.

    >>> list(prefixes("a.list.element"))
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


def _torn(file: DataFile, expected: str, got: str, lead: bytes = MAGIC) -> TableError:
    """Return the error for a file without a footer, which begins with `lead`."""
    what = "torn or of another format: write it again, "
    named = file.name.lower().endswith((".parquet", ".pq"))
    if not named and lead.strip(b"\0").isascii() and not MAGIC.startswith(lead[:4]):  # text of a suffix of its own
        what = f"of another format, since it begins with {lead[:4]!r}: "
    return TableError(
        f"{file.name} must be a Parquet file, that is {expected}, got {got}; the file is {what}leave it out of the "
        "table, or pass the format that it has"
    )


def _untrue(file: DataFile, expected: str, got: str) -> TableError:
    return TableError(
        f"{file.name} must have a Parquet footer with {expected}, got {got}; the footer is damaged: restore the file, "
        "write it again, or leave it out of the table"
    )


def _list_of(item: bytes, kind: int) -> bytes:
    return rb"(?:" + b"|".join(re.escape(bytes([count << 4 | kind])) + item * count for count in range(7)) + rb")"


# Most writers write column chunks that these match, in a third of the time of a walk; others are walked.
_BEFORE_PATH = (
    rb"\x26" + _VARINT + rb"\x1c\x15(.)\x19" + _list_of(_VARINT, _I32) + rb"\x19([\x18\x28\x38\x48\x58\x68\x78])"
)
_BEFORE = rb"\x15%b\x16%b\x16%b\x16%b\x26%b(?:\x3c|\x26%b\x1c|\x16%b(?:\x2c|\x16%b\x1c))" % ((_VARINT,) * 8)
_AFTER = rb"(?:\x19%b)?%b*(?:[\x1c\x2c\x3c\x4c](?:\x16(%b))?%b*(?:[\x19\x29\x39]%b)*\x00)?\x00%b*\x00" % (
    *(_list_of(_INT + rb"{3}\x00", _STRUCT), _INT, _VARINT, _INT),
    *(_list_of(_VARINT, _I64), _INT),
)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern when it is first used: compiling them all takes as long as importing a large package."""
    return re.compile(pattern, re.DOTALL)


@cache
def _with_bounds_of(width: int) -> re.Pattern[bytes]:
    bound = re.escape(bytes([width])) + b".{%d}" % width
    nulls = rb"(?:\x36|\x18%b\x26|\x28%b\x16|\x18%b\x18%b\x16)(%b)" % (*(bound,) * 4, _VARINT)
    statistics = nulls + rb"(?:\x16%b)?[\x28\x18]%b\x18%b[\x11\x12]*\x00" % (_VARINT, bound, bound)
    return _compiled(_BEFORE + statistics + _AFTER)


_WIDTH_OF = {_TYPES.index(name): width for name, width in _WIDTHS.items()}


class ChunkStatistics(NamedTuple):
    """What a footer says of a column chunk; None for what it lacks.

    Its type, its number of nulls, the bytes of its shortest bound, and those of its texts or binaries once decoded.
    """

    kind: int
    nulls: int | None
    shortest: int | None
    unencoded: int | None = None


@lru_cache(maxsize=4)
def statistics_of(footer: bytes) -> list[list[ChunkStatistics]]:
    """Return the statistics of each column chunk of each row group, from a footer with magic bytes before it."""
    try:
        return FooterWalk(footer).row_groups()
    except IndexError as error:
        raise ValueError("it ends inside of a value") from error


def refuse_unsafe(
    name: str, footer: bytes, parsed: pq.FileMetaData, places: Iterable[int]
) -> list[list[ChunkStatistics]]:
    """Return the statistics in a footer by row group, after a check that pyarrow may touch those of some leaves.

    Raises:
        TableError: a chunk has another type than the schema, or a bound is shorter than a value.
    """
    try:
        groups = statistics_of(footer)
    except ValueError as error:
        raise damaged_footer(name, f"a footer as Thrift writes it, got one that is not: {error}") from error
    if len(groups) != parsed.num_row_groups or any(len(chunks) != parsed.num_columns for chunks in groups):
        raise damaged_footer(name, "a chunk for each column and row group, got others")
    for place in places:
        leaf = parsed.schema.column(place)
        kind = _TYPES.index(leaf.physical_type)
        width = _WIDTHS.get(leaf.physical_type, max(0, leaf.length))
        for number, chunks in enumerate(groups):
            chunk = chunks[place]
            if chunk.kind != kind:
                actual = _TYPES[chunk.kind] if 0 <= chunk.kind < len(_TYPES) else f"type {chunk.kind}"
                raise damaged_footer(
                    name, f"{leaf.physical_type} in column {leaf.path!r}, got {actual} in row group {number}"
                )
            if chunk.shortest is not None and chunk.shortest < width:
                raise damaged_footer(
                    name,
                    f"statistics of {width} bytes in column {leaf.path!r}, got {chunk.shortest} in row group {number}",
                )
    return groups


def damaged_footer(name: str, expected: str) -> TableError:
    """Return the error for a footer that is not as it must be."""
    return TableError(
        f"{name} must have a Parquet footer with {expected}; the footer is damaged: restore the file, write it again, "
        "or leave it out of the table"
    )


class FooterWalk:
    """A walk over a footer; who iterates over the fields of a struct reads or skips the value of each."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 4

    def row_groups(self) -> list[list[ChunkStatistics]]:
        """Return what each column chunk of each row group says."""
        for field, kind in self._fields():
            if field == _ROW_GROUPS:
                return [self._row_group() for _ in range(self._list_head(kind))]
            self._skip(kind)
        return []

    def _row_group(self) -> list[ChunkStatistics]:
        chunks: list[ChunkStatistics] = []
        for field, kind in self._fields():
            if field == _COLUMNS:
                chunks = [self._quick_chunk() or self._chunk() for _ in range(self._list_head(kind))]
            else:
                self._skip(kind)
        return chunks

    def _quick_chunk(self) -> ChunkStatistics | None:
        """Walk over a chunk that is written as most are; return None, without a step, for any other."""
        data, start = self._data, self._place
        if (before := _compiled(_BEFORE_PATH).match(data, start)) is None:
            return None
        physical, path_stop = before[1][0] >> 1, before.end()
        longest = 0
        for _ in range(before[2][0] >> 4):
            longest = max(longest, data[path_stop])
            path_stop += 1 + data[path_stop]
        if longest > 127 or before[1][0] & 1 or physical >= len(_TYPES):  # the lowest bit is the sign
            return None
        if physical in _WIDTH_OF and (rest := _with_bounds_of(_WIDTH_OF[physical]).match(data, path_stop)) is not None:
            self._place = rest.end()
            return ChunkStatistics(physical, _number(rest[1]), _WIDTHS[_TYPES[physical]])
        if (between := _compiled(_BEFORE).match(data, path_stop)) is None:
            return None
        self._place = between.end()
        nulls, shortest = self._statistics()
        if (after := _compiled(_AFTER).match(data, self._place)) is None:
            self._place = start
            return None
        self._place = after.end()
        return ChunkStatistics(physical, nulls, shortest, None if after[1] is None else _number(after[1]))

    def _chunk(self) -> ChunkStatistics:
        physical, nulls, shortest, unencoded = -1, None, None, None
        for field, kind in self._fields():
            if (field, kind) != (_META, _STRUCT):
                self._skip(kind)
                continue
            for inner, inner_kind in self._fields():
                if (inner, inner_kind) == (_TYPE, _I32):
                    physical = self._int()
                elif (inner, inner_kind) == (_STATISTICS, _STRUCT):
                    nulls, shortest = self._statistics()
                elif (inner, inner_kind) == (_SIZES, _STRUCT):
                    unencoded = self._unencoded()
                else:
                    self._skip(inner_kind)
        return ChunkStatistics(physical, nulls, shortest, unencoded)

    def _unencoded(self) -> int | None:
        found = None
        for field, kind in self._fields():
            if (field, kind) == (_UNENCODED, _I64):
                found = self._int()
            else:
                self._skip(kind)
        return found

    def _statistics(self) -> tuple[int | None, int | None]:
        data, place, field = self._data, self._place, 0
        nulls: int | None = None
        shortest: int | None = None
        while header := data[place]:
            place += 1
            kind = header & 15
            field += header >> 4
            if header < 16:
                raise ValueError("fields of statistics that do not ascend")
            if kind == _BINARY:
                length = data[place]
                place += 1
                if length > 127:
                    self._place = place - 1
                    length = self._varint()
                    place = self._place
                place += length
                if shortest is None or length < shortest:
                    shortest = length
            elif kind in (_I32, _I64):
                self._place = place
                value = self._int()
                place = self._place
                if field == _NULL_COUNT:
                    nulls = value
            elif kind not in (_TRUE, _FALSE):
                self._place = place
                self._skip(kind)
                place = self._place
        self._place = place + 1
        return nulls, shortest

    def _fields(self) -> Iterator[tuple[int, int]]:
        field = 0
        while header := self._byte():
            field = field + (header >> 4) if header > 15 else self._int()
            yield field, header & 15

    def _list_head(self, kind: int) -> int:
        """Step to the first element of a list of structs; returns how many there are."""
        header = self._byte()
        if kind != _LIST or (header & 15 != _STRUCT and header >> 4):
            raise ValueError(f"a list of structs was expected, got type {kind} of type {header & 15}")
        if header >> 4 == 15:
            return self._varint()
        return header >> 4

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > _MOST_DEEP:
            raise ValueError(f"values nest deeper than {_MOST_DEEP}")
        if kind == _BYTE:
            self._place += 1
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._place += 8
        elif kind == _BINARY:
            length = self._varint()
            self._place += length
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        elif kind not in (_TRUE, _FALSE):
            self._skip_elements(kind, depth + 1)

    def _skip_elements(self, kind: int, depth: int) -> None:
        if kind == _MAP:
            count = self._varint()
            header = self._byte() if count else 0
            kinds: tuple[int, ...] = (header >> 4, header & 15)
        elif kind in (_LIST, _SET):
            header = self._byte()
            count = header >> 4
            if count == 15:
                count = self._varint()
            kinds = (header & 15,)
        else:
            raise ValueError(f"type {kind} does not exist")
        for _ in range(count):
            for each in kinds:
                self._skip(_BYTE if each in (_TRUE, _FALSE) else each, depth)  # here a bool takes a byte
            if self._place > len(self._data):
                raise IndexError

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _int(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("an integer of more than 64 bits")
        return value | byte << shift


def _number(varint: bytes) -> int:
    if len(varint) == 1:
        return varint[0] >> 1
    value = sum((byte & 127) << 7 * place for place, byte in enumerate(varint))
    return (value >> 1) ^ -(value & 1)
