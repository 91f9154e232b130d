"""Checks the statistics of a Parquet footer before pyarrow touches them: a damaged one would end the process.

pyarrow decodes the bounds of a column chunk as soon as any of its statistics is asked for. It does not check the
chunk's type and the length of its bounds first, and its C++ exception is not caught. So the footer is walked here:
Thrift's compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), and of
parquet.thrift the fields that are named below. The walk takes no memory that the footer does not, and ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.errors import TableError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_ROW_GROUPS, _COLUMNS, _META, _TYPE, _STATISTICS, _NULL_COUNT = 4, 1, 3, 1, 12, 3

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

_MOST_DEEP = 32
"""parquet.thrift nests to a depth of six."""

_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_INT = rb"(?:[\x14-\x16\x24-\x26\x34-\x36\x44-\x46]" + _VARINT + rb")"


def _list_of(item: bytes, kind: int) -> bytes:
    return rb"(?:" + b"|".join(re.escape(bytes([count << 4 | kind])) + item * count for count in range(7)) + rb")"


# Most writers write column chunks that these match, in a third of the time of a walk; others are walked.
_BEFORE_PATH = (
    rb"\x26" + _VARINT + rb"\x1c\x15(.)\x19" + _list_of(_VARINT, _I32) + rb"\x19([\x18\x28\x38\x48\x58\x68\x78])"
)
_BEFORE = rb"\x15%b\x16%b\x16%b\x16%b\x26%b(?:\x3c|\x26%b\x1c|\x16%b(?:\x2c|\x16%b\x1c))" % ((_VARINT,) * 8)
_AFTER = rb"(?:\x19%b)?%b*(?:[\x1c\x2c\x3c\x4c]%b*(?:[\x19\x29\x39]%b)*\x00)?\x00%b*\x00" % (
    *(_list_of(_INT + rb"{3}\x00", _STRUCT), _INT, _INT),
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
    """The type of a column chunk, its number of nulls, and the bytes of its shortest bound; None for what it lacks."""

    kind: int
    nulls: int | None
    shortest: int | None


@lru_cache(maxsize=4)
def statistics_of(footer: bytes) -> list[list[ChunkStatistics]]:
    """Return the statistics of each column chunk of each row group, from a footer with magic bytes before it.

    Raises:
        ValueError: the footer is not in Thrift's compact protocol.
    """
    try:
        return _Walk(footer).row_groups()
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
        raise _damaged(name, f"a footer as Thrift writes it, got one that is not: {error}") from error
    if len(groups) != parsed.num_row_groups or any(len(chunks) != parsed.num_columns for chunks in groups):
        raise _damaged(name, "a chunk for each column and row group, got others")
    for place in places:
        leaf = parsed.schema.column(place)
        kind = _TYPES.index(leaf.physical_type)
        width = _WIDTHS.get(leaf.physical_type, max(0, leaf.length))
        for number, chunks in enumerate(groups):
            chunk = chunks[place]
            if chunk.kind != kind:
                came = _TYPES[chunk.kind] if 0 <= chunk.kind < len(_TYPES) else f"type {chunk.kind}"
                raise _damaged(name, f"{leaf.physical_type} in column {leaf.path!r}, got {came} in row group {number}")
            if chunk.shortest is not None and chunk.shortest < width:
                raise _damaged(
                    name,
                    f"statistics of {width} bytes in column {leaf.path!r}, got {chunk.shortest} in row group {number}",
                )
    return groups


def _damaged(name: str, expected: str) -> TableError:
    return TableError(
        f"{name} must have a Parquet footer with {expected}; the footer is damaged: restore the file, write it again, "
        "or leave it out of the table"
    )


class _Walk:
    """A walk over a footer; who iterates over the fields of a struct reads or skips the value of each."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 4

    def row_groups(self) -> list[list[ChunkStatistics]]:
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
        return ChunkStatistics(physical, nulls, shortest)

    def _chunk(self) -> ChunkStatistics:
        physical, nulls, shortest = -1, None, None
        for field, kind in self._fields():
            if (field, kind) != (_META, _STRUCT):
                self._skip(kind)
                continue
            for inner, inner_kind in self._fields():
                if (inner, inner_kind) == (_TYPE, _I32):
                    physical = self._int()
                elif (inner, inner_kind) == (_STATISTICS, _STRUCT):
                    nulls, shortest = self._statistics()
                else:
                    self._skip(inner_kind)
        return ChunkStatistics(physical, nulls, shortest)

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
                shortest = length if shortest is None or length < shortest else shortest
            elif kind in (_I32, _I64):
                self._place = place
                value = self._int()
                place = self._place
                nulls = value if field == _NULL_COUNT else nulls
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
        return self._varint() if header >> 4 == 15 else header >> 4

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
            count = self._varint() if header >> 4 == 15 else header >> 4
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
