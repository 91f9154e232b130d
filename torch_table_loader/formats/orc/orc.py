"""ORC: cut at stripes, whose row counts come from the footer, and whose sizes are checked before they are decoded.

pyarrow does not give those counts. A file ends in: metadata, footer, postscript, and one byte with the postscript's
length. Postscript and footer are protocol buffers; metadata and footer are compressed in chunks
(https://orc.apache.org/specification/ORCv1/, "File Tail").

ORC's library allocates as much memory as lengths say, without a check: a damaged length ends the process. It scales a
decimal by as many digits as the file says, one at a time. And it opens a file of the machine by the name of a time
zone. What is found to be impossible is a ValueError that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import orc
from typing_extensions import override

from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Traits
from torch_table_loader.formats.orc.orc_encodings import (
    LZO,
    MOST_CHUNK_BYTES,
    are_within,
    bounds_of,
    capacity,
    count_of_bytes,
    decompressed,
    fields,
    varint,
)
from torch_table_loader.formats.orc.orc_times import correct_seconds
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import naming, reading
from torch_table_loader.read.file_ends import open_at_end
from torch_table_loader.read.reader_base import CountedColumns, GroupedFile, WholeGroups, refuse_duplicates
from torch_table_loader.records import FileMeta
from torch_table_loader.sizes import sizes
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

_TAIL_BYTES = 64 * 1024
_MAGIC = b"ORC"
_OPENING_BYTES = 16 * 1024
"""What ORC's library reads of a file's end to open it, where its footer is not longer."""

_PRESENT, _DATA, _LENGTH, _DICTIONARY_DATA, _, _SECONDARY = range(6)
"""Kinds of streams."""

_BOOLEAN, _BYTE, _SHORT, _INT, _LONG, _FLOAT, _DOUBLE, _STRING, _BINARY, _TIMESTAMP = range(10)
_LIST, _MAP, _STRUCT, _UNION, _DECIMAL, _DATE, _VARCHAR, _CHAR, _INSTANT, _GEOMETRY, _GEOGRAPHY = range(10, 21)
_TEXTS = frozenset({_STRING, _BINARY, _VARCHAR, _CHAR, _GEOMETRY, _GEOGRAPHY})
_DICTIONARIES = frozenset({1, 3})
_DECODED_BYTES = {
    **dict.fromkeys((_BOOLEAN, _BYTE), 1),
    **dict.fromkeys((_INT, _FLOAT, _DATE, _LIST, _MAP, *_TEXTS), 4),
    **dict.fromkeys((_LONG, _DOUBLE, _TIMESTAMP, _INSTANT), 8),
    _SHORT: 2,
    _DECIMAL: 16,
}
"""Bytes of a value in Arrow, without what it has below it."""

_TEXT_SUMS = ((4, 3), (8, 1))
"""Fields of a column's statistics that are of strings and of bytes, and the sum of their lengths there."""

_VALUE_BYTES = {_FLOAT: 4, _DOUBLE: 8}

_STRIPE_COPIES = 2
"""Times that the values of a stripe are held while it is decoded."""

_SMALL_STRIPE = 1 << 24
"""Decoded bytes of a stripe of which three are less than the rows that a lane may hold anyway."""

_FEW = 1 << 22
"""This many values take little memory, whatever they are."""

_FEW_BYTES = 1 << 26
_LOOSE = 16
"""By their headers alone, lengths may add up to this many times what they should."""

_VALUES_A_BYTE = 16
"""Values that a byte may hold without a check. Runs hold up to 128, and of single bits 520."""

_MOST_DIGITS = 127
_CHUNK_BYTES = 1 << 18
"""The largest decompressed chunk, if the postscript does not say."""

_STRIPES, _TYPES, _STATISTICS = 3, 4, 7
_STREAMS, _ENCODINGS, _TIME_ZONE = 1, 2, 3
"""Fields of the file's footer, and of a stripe's."""

_ZONE = re.compile(r"([A-Za-z0-9_+:\-]+(/[A-Za-z0-9_+:\-]+)*)?")
"""The name of a time zone, which the decoder opens as a file in a folder of the machine."""


@dataclass(frozen=True, slots=True)
class OrcReader(WholeGroups, CountedColumns):
    """Reads ORC files (https://orc.apache.org/specification/ORCv1/)."""

    name: str = "orc"
    suffixes = (".orc",)
    traits = Traits(cut="stripes", pruned="partitions", counted="the footer")
    columnar = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        whole = reading(storage, file, "an ORC file")
        with naming(storage, file), whole, open_at_end(storage, file) as source:
            return _inspected(source, file)

    @override
    def held_bytes(self, meta: FileMeta, group: int, columns: Sequence[str], max_rows: int, row_bytes: int) -> int:
        # Streams are decompressed chunk by chunk.
        return max(0, meta.group_rows[group] - max_rows) * row_bytes

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OrcFile:
        # The footer is read again, since pyarrow takes none from outside.
        source = storage.open(file.path)
        try:
            return OrcFile(source, meta)
        except BaseException:
            source.close()
            raise


class OrcFile(GroupedFile):
    """An open ORC file, whose row groups are stripes."""

    def __init__(self, source: pa.NativeFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._tail = read_tail(source)  # which checks what pyarrow relies on
        self._handle = orc.ORCFile(source)

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        self._tail.check.check(self._source, self._tail.stripes[group], columns)
        # As in Parquet, a name may bring in more than it names, and the file's order is kept.
        batch = self._handle.read_stripe(group, columns=columns).select(columns)
        if self._tail.check.has_times:
            correct_seconds(batch, self._tail.check.zone_of(self._source, self._tail.stripes[group]))
        return sound_text(batch)


class Tail(NamedTuple):
    """The end of a file: its bytes, `num_bytes` of which are metadata, footer and postscript, and what these say.

    They follow the magic if the postscript lacks it.
    """

    data: bytes
    num_bytes: int
    check: StripeCheck
    stripes: list[Stripe]
    footer: bytes


def read_tail(source: pa.NativeFile, at_once: int = _OPENING_BYTES) -> Tail:
    """Read the end of a file; `at_once` bytes of it first."""
    size = source.size()
    tail = source.read_at(min(size, at_once), max(0, size - at_once))
    length = tail[-1] if tail else 0
    if not 0 < length < len(tail):
        raise ValueError(f"the postscript's length is {length} of {len(tail)} bytes")
    postscript = dict(fields(tail[-1 - length : -1]))
    lead, magic = b"", postscript.get(8000)
    if magic is None:  # the first writers put it at the start alone, where ORC's library looks
        lead = magic = source.read_at(len(_MAGIC), 0)
    if magic != _MAGIC:
        raise ValueError("the postscript does not say ORC")
    footer_length, compression, chunk_bytes, metadata_length = (_number(postscript.get(key, 0)) for key in (1, 2, 3, 5))
    if compression == LZO:
        raise TableError("it is compressed with LZO, which is not read; convert it to zlib, snappy, LZ4 or zstd")
    num_bytes = metadata_length + footer_length + length + 1
    if num_bytes > size:
        raise ValueError(f"the footer needs {num_bytes} bytes of {size}")
    _refuse_large_footer(footer_length)
    if num_bytes > len(tail):
        tail = source.read_at(num_bytes, size - num_bytes)
    stop = len(tail) - 1 - length
    start = stop - footer_length
    of_chunk = min(chunk_bytes or _CHUNK_BYTES, MOST_CHUNK_BYTES)
    _refuse_large_footer(capacity(pa.BufferReader(tail), start, footer_length, compression, of_chunk))
    footer = decompressed(tail[start:stop], compression)
    stripes = []
    for key, value in fields(footer):
        if key == _STRIPES and isinstance(value, bytes):
            numbers = {part: number for part, number in fields(value) if isinstance(number, int)}
            stripes.append(Stripe(*(numbers.get(part, 0) for part in (5, 1, 2, 3, 4))))
    return Tail(lead + tail, num_bytes, StripeCheck.of(footer, compression, chunk_bytes), stripes, footer)


def _refuse_large_footer(num_bytes: int) -> None:
    """Refuse a footer that may come to so many bytes, before it does: statistics hold texts of any length."""
    if num_bytes > sizes().orc_footer_bytes:
        raise TableError(
            f"its footer may come to {Size(num_bytes)}, and must have at most {Size(sizes().orc_footer_bytes)}; "
            "statistics of long texts take that: write such texts as Parquet, or without statistics"
        )


def _inspected(source: pa.NativeFile, file: DataFile) -> FileMeta:
    tail, size = read_tail(source, _TAIL_BYTES), source.size()
    check_stripes(tail.stripes, size - tail.num_bytes)
    try:
        parsed = orc.ORCFile(pa.BufferReader(tail.data))  # the tail alone has the schema: nothing is read twice
    except OSError as error:
        raise ValueError(first_line(error)) from error
    if parsed.nrows != sum(stripe.num_rows for stripe in tail.stripes) or parsed.nstripes != len(tail.stripes):
        raise ValueError(f"its stripes do not add up to the {parsed.nrows} rows it says")
    refuse_duplicates(parsed.schema, file)
    column_bytes = _column_bytes(tail, parsed.nrows)
    return FileMeta(
        schema=parsed.schema,
        group_rows=tuple(stripe.num_rows for stripe in tail.stripes),
        group_bytes=tuple(stripe.num_bytes for stripe in tail.stripes),
        group_ranges=tuple((stripe.start, stripe.start + stripe.num_bytes) for stripe in tail.stripes),
        opening=((max(0, size - max(tail.num_bytes, _OPENING_BYTES)), size),),
        column_bytes=column_bytes,
        at_once=_at_once(tail.stripes, column_bytes or ()),
    )


def _at_once(stripes: Sequence[Stripe], column_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return what each column takes while the largest stripe is decoded: in ORC's memory, and then in Arrow's.

    Its part of the file's values is that of the rows or of the bytes, whichever is more.
    """
    num_rows = max(1, sum(own.num_rows for own in stripes))
    num_bytes = max(1, sum(own.data_bytes for own in stripes))
    part = max([max(own.num_rows / num_rows, own.data_bytes / num_bytes) for own in stripes], default=0)
    if part * sum(column_bytes) <= _SMALL_STRIPE:
        return ()
    return tuple(int(_STRIPE_COPIES * part * each) for each in column_bytes)


def _column_bytes(tail: Tail, num_rows: int) -> tuple[int, ...] | None:
    """Return what each column decodes to, as the statistics of the file say; None where they say too little."""
    found = [
        dict(fields(value)) for key, value in fields(tail.footer) if key == _STATISTICS and isinstance(value, bytes)
    ]
    types = tail.check.types
    if len(found) != len(types):
        return None

    def decoded(at: int, count: int) -> int | None:
        kind, own = types[at].kind, found[at]
        num_bytes = count * _DECODED_BYTES.get(kind, 0)
        if kind in _TEXTS:
            sums = [dict(fields(each)).get(part) for key, part in _TEXT_SUMS if isinstance(each := own.get(key), bytes)]
            if not sums or not isinstance(sums[0], int):
                if own.get(1):
                    return None
                return num_bytes
            return num_bytes + (sums[0] >> 1)
        for child in types[at].children:
            inner = count if kind == _STRUCT else _number(found[child].get(1, 0))
            below = decoded(child, inner)
            if below is None:
                return None
            num_bytes += below
        return num_bytes

    sizes = [decoded(at, num_rows) for at in types[0].children]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return tuple(known)


def check_stripes(stripes: list[Stripe], stop: int) -> None:
    """Check that stripes lie in the file, and each at its own place."""
    end = 0
    for stripe in sorted(stripes, key=lambda each: each.start):
        if not end <= stripe.start <= stripe.start + stripe.num_bytes <= stop:
            raise ValueError(
                f"a stripe of {stripe.num_bytes} bytes begins at byte {stripe.start}, and must lie between byte {end} "
                f"and byte {stop}"
            )
        end = stripe.start + stripe.num_bytes


class Stripe(NamedTuple):
    """The rows of a stripe, its first byte in the file, and the bytes of its parts as stored."""

    num_rows: int
    start: int
    index_bytes: int
    data_bytes: int
    footer_bytes: int

    @property
    def num_bytes(self) -> int:
        """The bytes of all parts."""
        return self.index_bytes + self.data_bytes + self.footer_bytes


class _Type(NamedTuple):
    kind: int
    children: tuple[int, ...]


class _Column(NamedTuple):
    """A column of a stripe: how it is encoded, and by kind where its streams begin and how long they are."""

    encoding: int
    dictionary_size: int
    streams: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StripeCheck:
    """Checks the stripes of a file by the types of its columns, the root first, and the names of those at the top."""

    types: Sequence[_Type]
    names: Sequence[str]
    compression: int
    chunk_bytes: int

    @classmethod
    def of(cls, footer: bytes, compression: int, chunk_bytes: int) -> StripeCheck:
        """Read the types of a file from its footer."""
        if compression and chunk_bytes > MOST_CHUNK_BYTES:
            raise ValueError(f"the postscript says chunks of {chunk_bytes} bytes, and none has over {MOST_CHUNK_BYTES}")
        types, names = list[_Type](), list[str]()
        for key, value in fields(footer):
            if key != _TYPES or not isinstance(value, bytes):
                continue
            parts = list(fields(value))
            children = tuple(number for part, each in parts if part == 2 for number in _packed(each))
            types.append(_Type(_number(dict(parts).get(1, 0)), children))
            if len(types) == 1:
                names = [each.decode() for part, each in parts if part == 3 and isinstance(each, bytes)]
        below = [child for each in types for child in each.children]
        malformed = len(set(below)) < len(below) or len(names) != len(types[0].children if types else ())
        if malformed or any(not at < child < len(types) for at, each in enumerate(types) for child in each.children):
            raise ValueError("the footer's types are no tree")
        levels = [1] * len(types)
        for at, each in enumerate(types):
            for child in each.children:
                levels[child] = levels[at] + 1
        if max(levels, default=1) > sizes().type_levels + 1:  # the root is no column
            raise ValueError(f"its types nest {max(levels) - 1} levels deep, and may {sizes().type_levels}")
        return cls(types, names, compression, chunk_bytes or _CHUNK_BYTES)

    @property
    def chunks(self) -> tuple[int, int]:
        """The compression of the file, and the most bytes of a decompressed chunk."""
        return self.compression, self.chunk_bytes

    @property
    def has_times(self) -> bool:
        """Whether there are times of a zone's clock."""
        return any(each.kind == _TIMESTAMP for each in self.types)

    def zone_of(self, source: pa.NativeFile, stripe: Stripe) -> str:
        """Return the time zone that a stripe, once checked, was written in; "" if it has none."""
        found = dict(fields(self._footer(source, stripe))).get(_TIME_ZONE, b"")
        if isinstance(found, bytes):
            return found.decode("latin-1")
        return ""

    def _footer(self, source: pa.NativeFile, stripe: Stripe) -> bytes:
        start = stripe.start + stripe.index_bytes + stripe.data_bytes
        return decompressed(source.read_at(stripe.footer_bytes, start), *self.chunks)

    def check(self, source: pa.NativeFile, stripe: Stripe, columns: Iterable[str]) -> None:
        """Check the sizes that a decoder of some columns of a stripe relies on."""
        found = _StripeColumns(self, source, self.columns_of(source, stripe))
        numbers = self._numbers_of(columns)
        if stripe.num_rows > _FEW and not any(found.holds(at, stripe.num_rows) for at in numbers):
            raise ValueError(f"no column holds the {stripe.num_rows} rows that the footer says")
        for at in numbers:
            found.check(at, stripe.num_rows)

    def _numbers_of(self, columns: Iterable[str]) -> Sequence[int]:
        """Return the numbers of columns at the top; the root's where a name may mean more."""
        known = dict(zip(self.names, self.types[0].children, strict=True))
        names = list(columns)
        if any("." in name or name not in known for name in names):
            return [0]
        return [known[name] for name in names]

    def columns_of(self, source: pa.NativeFile, stripe: Stripe) -> Sequence[_Column]:
        """Read a stripe's footer: how each column is encoded, and where its streams are."""
        start, stop = stripe.start, stripe.start + stripe.index_bytes + stripe.data_bytes
        footer = self._footer(source, stripe)
        streams: list[dict[int, tuple[int, int]]] = [{} for _ in self.types]
        encodings = list[tuple[int, int]]()
        for key, value in fields(footer):
            if key == _STREAMS and isinstance(value, bytes):
                stream = dict(fields(value))
                kind, column, length = (_number(stream.get(part, 0)) for part in (1, 2, 3))
                if start + length > stop:
                    raise ValueError(
                        f"a stream of {length} bytes begins at byte {start}, and its stripe ends at {stop}"
                    )
                if column < len(streams) and 1 in stream:
                    streams[column].setdefault(kind, (start, length))
                start += length
            elif key == _ENCODINGS and isinstance(value, bytes):
                encoding = dict(fields(value))
                encodings.append((_number(encoding.get(1, 0)), _number(encoding.get(2, 0))))
            elif key == _TIME_ZONE and not (isinstance(value, bytes) and _ZONE.fullmatch(value.decode("latin-1"))):
                raise ValueError(f"the stripe's time zone is {value!r:.60}")
        if len(encodings) != len(self.types):
            raise ValueError(f"the stripe has encodings of {len(encodings)} columns, and the file {len(self.types)}")
        return [_Column(*each, found) for each, found in zip(encodings, streams, strict=True)]


@dataclass(frozen=True, slots=True)
class _StripeColumns:
    """The columns of a stripe, of which only the streams of sizes are read."""

    file: StripeCheck
    source: pa.NativeFile
    columns: Sequence[_Column]

    def check(self, at: int, num_values: int) -> None:
        """Check the sizes in a column of at most `num_values`, and below it: texts, lists, dictionaries, decimals."""
        type_ = self.file.types[at]
        if type_.kind == _DECIMAL:
            self._check_digits(at)
        elif type_.kind in _TEXTS:
            self._check_texts(at, num_values)
        elif type_.kind in (_LIST, _MAP):
            num_values = self._check_lengths(at, num_values, _FEW, lambda total: self._child_holds(at, total))
        for child in type_.children:
            self.check(child, num_values)

    def _check_digits(self, at: int) -> None:
        data, version = self._read(at, _SECONDARY), self._version(at)
        for exact in (False, True):
            found = bounds_of(data, version=version, signed=True, exact=exact)
            if found.least >= 0 and found.most <= _MOST_DIGITS:
                return
        raise ValueError(f"decimals of column {at} have {found.least} to {found.most} digits after the point")

    def _check_texts(self, at: int, num_values: int) -> None:
        column = self.columns[at]
        kind = _DATA
        if column.encoding in _DICTIONARIES:
            kind, num_values = _DICTIONARY_DATA, column.dictionary_size
            if num_values > _FEW and num_values > self._count(at, _LENGTH):
                raise ValueError(f"the dictionary of column {at} says {num_values} entries, which are not there")
        most = max(_FEW_BYTES, capacity(self.source, *column.streams.get(kind, (0, 0)), *self.file.chunks))
        self._check_lengths(at, num_values, _LOOSE * most, lambda total: total <= most)

    def _check_lengths(self, at: int, num_values: int, loose: int, fits: Callable[[int], bool]) -> int:
        """Check at most `num_values` lengths, by their headers alone if these bound the sum by `loose`.

        Returns:
            A bound of the sum.
        """
        data, version = self._read(at, _LENGTH), self._version(at)
        if version > 1 and are_within(data, most := loose // max(1, num_values)):
            return most * num_values
        for exact in (False, True):
            found = bounds_of(data, version=version, signed=False, exact=exact)
            if found.least >= 0 and (fits(found.total) or (not exact and found.total <= loose)):
                return found.total
        raise ValueError(
            f"lengths of column {at} are {found.least} to {found.most} and add up to {found.total}, which cannot be"
        )

    def _child_holds(self, at: int, num_values: int) -> bool:
        return num_values <= _FEW or any(self.holds(child, num_values) for child in self.file.types[at].children)

    def holds(self, at: int, num_values: int) -> bool:
        """Return whether a column has so many values, or so few that their memory is in proportion to its bytes."""
        column, type_ = self.columns[at], self.file.types[at]
        if type_.kind == _STRUCT and _PRESENT not in column.streams:
            return self._child_holds(at, num_values)
        kind = _PRESENT if _PRESENT in column.streams else _counting_stream(column, type_.kind)
        return num_values <= _VALUES_A_BYTE * column.streams.get(kind, (0, 0))[1] or num_values <= self._count(at, kind)

    def _count(self, at: int, kind: int) -> int:
        """Return how many values a stream of a column holds."""
        type_, data = self.file.types[at], self._read(at, kind)
        if kind == _PRESENT or (kind == _DATA and type_.kind == _BOOLEAN):
            return 8 * count_of_bytes(data)
        if kind == _DATA and type_.kind in (_BYTE, _UNION):
            return count_of_bytes(data)
        if kind == _DATA and type_.kind in _VALUE_BYTES:
            return len(data) // _VALUE_BYTES[type_.kind]
        return bounds_of(data, version=self._version(at), signed=False, exact=False).num_values

    def _read(self, at: int, kind: int) -> bytes:
        return decompressed(self._stored(at, kind), *self.file.chunks)

    def _version(self, at: int) -> int:
        if self.columns[at].encoding > 1:
            return 2
        return 1

    def _stored(self, at: int, kind: int) -> bytes:
        start, length = self.columns[at].streams.get(kind, (0, 0))
        if not length:
            return b""
        return bytes(self.source.read_at(length, start))


def _counting_stream(column: _Column, kind: int) -> int:
    """Return the stream that has an entry for each value of a column."""
    if kind in (_LIST, _MAP) or (kind in _TEXTS and column.encoding not in _DICTIONARIES):
        return _LENGTH
    if kind in (_DECIMAL, _TIMESTAMP, _INSTANT):
        return _SECONDARY
    return _DATA


def _packed(value: int | bytes) -> Iterable[int]:
    """Yield the numbers of a field, packed or single."""
    if isinstance(value, int):
        yield value
        return
    place = 0
    while place < len(value):
        number, place = varint(value, place)
        yield number


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number of the footer is none")  # noqa: TRY004 - the file's fault
    return value
