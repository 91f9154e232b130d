"""Checks whether the sizes in a stripe of ORC are possible, before the decoder relies on them.

ORC's library allocates as much memory as lengths say, without a check: a damaged length ends the process. It scales a
decimal by as many digits as the file says, one at a time. And it opens a file of the machine by the name of a time
zone. Integers are bounded by the headers of their runs alone where these say enough
(https://orc.apache.org/specification/ORCv1/, "Run Length Encoding").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from torch_table_loader.read.orc_messages import MOST_CHUNK_BYTES, capacity, decompressed, fields, varint

_PRESENT, _DATA, _LENGTH, _DICTIONARY_DATA, _, _SECONDARY = range(6)
"""Kinds of streams."""

_BOOLEAN, _BYTE, _SHORT, _INT, _LONG, _FLOAT, _DOUBLE, _STRING, _BINARY, _TIMESTAMP = range(10)
_LIST, _MAP, _STRUCT, _UNION, _DECIMAL, _DATE, _VARCHAR, _CHAR, _INSTANT, _GEOMETRY, _GEOGRAPHY = range(10, 21)
_TEXTS = frozenset({_STRING, _BINARY, _VARCHAR, _CHAR, _GEOMETRY, _GEOGRAPHY})
_DICTIONARIES = frozenset({1, 3})
_VALUE_BYTES = {_FLOAT: 4, _DOUBLE: 8}

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

_TYPES = 4
_STREAMS, _ENCODINGS, _TIME_ZONE = 1, 2, 3
"""Fields of the file's footer, and of a stripe's."""

_ZONE = re.compile(r"([A-Za-z0-9_+:\-]+(/[A-Za-z0-9_+:\-]+)*)?")
"""The name of a time zone, which the decoder opens as a file in a folder of the machine."""

_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits of a value, by their code of five bits."""

_ROOM = [next(each for each in _WIDTHS if each >= bits) for bits in range(65)]
"""By the bits that a value needs, those in which it is stored."""

_DIRECT, _PATCHED_BASE, _DELTA = 64, 128, 192
"""The least first byte of each kind of run; below these are short repeats."""

_SHORT = 16
"""The most values of a short run."""


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
        """Read the types of a file from its footer.

        Raises:
            ValueError: they are no tree, or chunks are longer than any writer makes them.
        """
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
        return cls(types, names, compression, chunk_bytes or _CHUNK_BYTES)

    @property
    def chunks(self) -> tuple[int, int]:
        """The compression of the file, and the most bytes of a decompressed chunk."""
        return self.compression, self.chunk_bytes

    def check(self, source: pa.NativeFile, stripe: Stripe, columns: Iterable[str]) -> None:
        """Check the sizes that a decoder of some columns of a stripe relies on.

        Raises:
            ValueError: says what is impossible.
        """
        found = _StripeColumns(self, source, self.columns_of(source, stripe))
        numbers = self._numbers_of(columns)
        if stripe.num_rows > _FEW and not any(found.holds(at, stripe.num_rows) for at in numbers):
            raise ValueError(f"no column holds the {stripe.num_rows} rows that the footer says")
        for at in numbers:
            found.check(at, stripe.num_rows)

    def _numbers_of(self, columns: Iterable[str]) -> Sequence[int]:
        """Return the numbers of columns at the top; the root's where a name may mean more."""
        known = dict(zip(self.names, self.types[0].children, strict=True))
        numbers = [None if "." in name else known.get(name) for name in columns]
        return [0] if None in numbers else [number for number in numbers if number is not None]

    def columns_of(self, source: pa.NativeFile, stripe: Stripe) -> Sequence[_Column]:
        """Read a stripe's footer: how each column is encoded, and where its streams are.

        Raises:
            ValueError: it does not parse, or a stream is elsewhere.
        """
        start, stop = stripe.start, stripe.start + stripe.index_bytes + stripe.data_bytes
        footer = decompressed(source.read_at(stripe.footer_bytes, stop), *self.chunks)
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
        """Check the sizes in a column of at most `num_values`, and below it: of texts, lists, dictionaries, decimals.

        Raises:
            ValueError: says what is impossible.
        """
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

        Raises:
            ValueError: a length is negative, or the sum is impossible.
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
        return 2 if self.columns[at].encoding > 1 else 1

    def _stored(self, at: int, kind: int) -> bytes:
        start, length = self.columns[at].streams.get(kind, (0, 0))
        found: bytes = self.source.read_at(length, start) if length else b""
        return found


def _counting_stream(column: _Column, kind: int) -> int:
    """Return the stream that has an entry for each value of a column."""
    if kind in (_LIST, _MAP) or (kind in _TEXTS and column.encoding not in _DICTIONARIES):
        return _LENGTH
    return _SECONDARY if kind in (_DECIMAL, _TIMESTAMP, _INSTANT) else _DATA


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


@cache
def _small_runs(most: int) -> re.Pattern[bytes]:
    """Return a pattern of short runs of values up to `most`, into which many writers cut lengths."""
    digit = rb"[\x00-\x%02x]" % most
    forms = [rb"[\x00-\x07]" + digit, rb"[\xc0\xc1]." + digit + rb"\x00"]  # repeats, and steps of none
    for code, width in enumerate(_WIDTHS):
        if (1 << width) - 1 <= most:
            sizes: dict[int, list[int]] = {}
            for length in range(1, _SHORT + 1):
                sizes.setdefault(length * width + 7 >> 3, []).append(length - 1)
            each = (rb"[\x%02x-\x%02x].{%d}" % (lengths[0], lengths[-1], size) for size, lengths in sizes.items())
            forms.append(rb"\x%02x(?:" % (_DIRECT | code << 1) + rb"|".join(each) + rb")")
    return re.compile(rb"(?:" + rb"|".join(forms) + rb")++", re.DOTALL)


class Bounds(NamedTuple):
    """How many integers a stream has, bounds of them, and a bound of their sum."""

    num_values: int = 0
    least: int = 0
    most: int = 0
    total: int = 0

    def and_run(self, count: int, least: int, most: int, total: int) -> Bounds:
        """Return the bounds of these integers and those of a run."""
        return Bounds(self.num_values + count, min(self.least, least), max(self.most, most), self.total + total)


def bounds_of(data: bytes, *, version: int, signed: bool, exact: bool) -> Bounds:
    """Return the bounds of a stream of integers in the encoding's version 1 or 2.

    `exact` decodes runs whose headers alone say less.

    Raises:
        ValueError: a run is cut off, or none that a writer makes.
    """
    try:
        return _version_1(data, signed=signed) if version == 1 else _version_2(data, signed=signed, exact=exact)
    except IndexError:
        raise ValueError("a run of integers ends after its stream") from None


def are_within(data: bytes, most: int) -> bool:
    """Return whether all unsigned numbers of a stream of version 2 are at most `most`.

    Raises:
        ValueError: as `bounds_of` does.
    """
    if most < 0:
        return False
    small, place, end = _small_runs((1 << min(7, (most + 1).bit_length() - 1)) - 1), 0, len(data)
    try:
        while place < end:
            if (found := small.match(data, place)) is not None:
                place = found.end()
                continue
            for exact in (False, True):
                _, low, high, _, stop = _run(data, place, signed=False, exact=exact)
                if low >= 0 and high <= most:
                    break
            else:
                return False
            place = stop
    except IndexError:
        return False
    return place == end


def count_of_bytes(data: bytes) -> int:
    """Return how many bytes a stream of byte runs holds.

    >>> count_of_bytes(bytes([97, 0, 254, 1, 2]))
    102
    """
    count = place = 0
    while place < len(data):
        control = data[place]
        count += control + 3 if control < 128 else 256 - control
        place += 2 if control < 128 else 257 - control
    return count


def _version_1(data: bytes, *, signed: bool) -> Bounds:
    found, place = Bounds(), 0
    while place < len(data):
        control = data[place]
        if control < 128:
            count, step = control + 3, data[place + 1]
            first, place = _integer(data, place + 2, signed=signed)
            last = first + (step - 256 if step > 127 else step) * (count - 1)
            found = found.and_run(count, min(first, last), max(first, last), (first + last) * count // 2)
        else:
            place += 1
            for _ in range(256 - control):
                value, place = _integer(data, place, signed=signed)
                found = found.and_run(1, value, value, value)
    return found


def _version_2(data: bytes, *, signed: bool, exact: bool) -> Bounds:
    found, place = Bounds(), 0
    while place < len(data):
        count, least, most, total, place = _run(data, place, signed=signed, exact=exact)
        found = found.and_run(count, least, most, total)
    if place > len(data):
        raise IndexError
    return found


def _run(data: bytes, place: int, *, signed: bool, exact: bool) -> tuple[int, int, int, int, int]:
    """Return length, bounds and end of the run of version 2 that begins at a byte."""
    head = data[place]
    if head < _DIRECT:
        stop = place + 2 + (head >> 3)
        value = int.from_bytes(data[place + 1 : stop], "big")
        value = _unzigzag(value) if signed else value
        count = (head & 7) + 3
        return count, value, value, value * count, stop
    if head >= _DELTA:
        return _delta(data, place, signed=signed, exact=exact)
    if head >= _PATCHED_BASE:
        return _patched(data, place, exact=exact)
    width, count = _WIDTHS[head >> 1 & 31], ((head & 1) << 8 | data[place + 1]) + 1
    stop = place + 2 + (count * width + 7 >> 3)
    if exact and stop <= len(data):
        values = _unpacked(data[place + 2 : stop], count, width)
        values = [_unzigzag(value) for value in values] if signed else values
        return count, min(values), max(values), sum(values), stop
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    return count, low, high, high * count, stop


def _patched(data: bytes, place: int, *, exact: bool) -> tuple[int, int, int, int, int]:
    """Return length, bounds and end of a run whose large values are patched."""
    head, third, fourth = data[place], data[place + 2], data[place + 3]
    width, length = _WIDTHS[head >> 1 & 31], ((head & 1) << 8 | data[place + 1]) + 1
    base_bytes, patch_width = (third >> 5) + 1, _WIDTHS[third & 31]
    gap_width, num_patches = (fourth >> 5) + 1, fourth & 31
    start = place + 4 + base_bytes
    patches = start + (length * width + 7 >> 3)
    if not num_patches or patch_width + gap_width > 64:
        raise ValueError("a run of integers has patches that no writer makes")
    entry = _ROOM[patch_width + gap_width]
    stop = patches + (num_patches * entry + 7 >> 3)
    if stop > len(data):
        raise IndexError
    packed = int.from_bytes(data[patches:stop], "big") >> (-num_patches * entry & 7)
    last = packed & (1 << patch_width + gap_width) - 1
    if last == 255 << patch_width:  # its gap goes on in a patch that is not there
        raise ValueError("a run of integers ends within a patch")
    base = int.from_bytes(data[place + 4 : start], "big")
    sign = 1 << 8 * base_bytes - 1
    base = -(base & ~sign) if base & sign else base
    if not exact:
        high, patched = (1 << width) - 1, (1 << width + patch_width) - 1
        return length, base, base + patched, (base + high) * length + patched * num_patches, stop
    values = _unpacked(data[start:patches], length, width)
    at = 0
    for number in range(num_patches - 1, -1, -1):
        each = packed >> number * entry
        gap, patch = each >> patch_width & (1 << gap_width) - 1, each & (1 << patch_width) - 1
        at += gap
        if (gap, patch) != (255, 0) and at < length:
            values[at] |= patch << width
    return length, base + min(values), base + max(values), base * length + sum(values), stop


def _delta(data: bytes, place: int, *, signed: bool, exact: bool) -> tuple[int, int, int, int, int]:
    """Return length, bounds and end of a run of steps."""
    head = data[place]
    code, length = head >> 1 & 31, ((head & 1) << 8 | data[place + 1]) + 1
    width = _WIDTHS[code] if code else 0
    first, start = _integer(data, place + 2, signed=signed)
    step, start = _integer(data, start, signed=True)
    if not width:
        last = first + step * (length - 1)
        return length, min(first, last), max(first, last), (first + last) * length // 2, start
    if length < 2:
        raise ValueError("a run of integers has a step and one value")
    stop = start + ((length - 2) * width + 7 >> 3)
    second = first + step
    if exact and stop <= len(data):
        steps = _unpacked(data[start:stop], length - 2, width)
        values, value = [first, second], second
        for each in steps:
            value += each if step >= 0 else -each
            values.append(value)
        return length, min(values), max(values), sum(values), stop
    reach = (length - 2) * ((1 << width) - 1)
    low, high = (min(first, second), second + reach) if step >= 0 else (second - reach, first)
    return length, low, high, max(first, high) * length, stop


def _unpacked(data: bytes, count: int, width: int) -> list[int]:
    """Return unsigned numbers of `width` bits, the highest bit first."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width).reshape(count, width)
    weights = np.left_shift(np.uint64(1), np.arange(width - 1, -1, -1, dtype=np.uint64))
    values: list[int] = (bits * weights).sum(axis=1, dtype=np.uint64).tolist()
    return values


def _integer(data: bytes, place: int, *, signed: bool) -> tuple[int, int]:
    value, place = varint(data, place)
    return (_unzigzag(value) if signed else value), place


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
