"""How ORC writes: protocol buffers, compressed chunks, and runs of integers, of which bounds are computed.

https://orc.apache.org/specification/ORCv1/, "Compression" and "Run Length Encoding". Integers are bounded by the
headers of their runs alone where these say enough. What no writer makes is a ValueError.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_NONE, _ZLIB, _SNAPPY, LZO, _LZ4, _ZSTD = range(6)
_HEADER_BYTES = 3

_LONG_CHUNK = "a chunk is longer decompressed than the postscript says"

_FIXED_BYTES = {1: 8, 5: 4}
"""By the wire types of numbers of a fixed width."""

MOST_CHUNK_BYTES = 1 << 24
"""The largest decompressed chunk. The length of a compressed one has 23 bits."""

_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits of a value, by their code of five bits."""

_ROOM = [next(each for each in _WIDTHS if each >= bits) for bits in range(65)]
"""By the bits that a value needs, those in which it is stored."""

_DIRECT, _PATCHED_BASE, _DELTA = 64, 128, 192
"""The least first byte of each kind of run; below these are short repeats."""

_SHORT = 16
"""The most values of a short run."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Walk a protocol buffer's fields: varints as ints, all else as bytes."""
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        if tag & 7 == 0:
            value, place = varint(message, place)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            length, place = varint(message, place)
        elif tag & 7 in _FIXED_BYTES:
            length = _FIXED_BYTES[tag & 7]
        else:
            raise ValueError(f"wire type {tag & 7} is unknown")
        if place + length > len(message):
            raise ValueError("a field ends after its message")
        yield tag >> 3, message[place : place + length]
        place += length


def varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends."""
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("a number does not end")
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def capacity(source: pa.NativeFile, start: int, length: int, compression: int, chunk_bytes: int) -> int:
    """Return how many bytes a stored stream has decompressed, at most; `chunk_bytes` is the same of one chunk."""
    if compression == _NONE:
        return length
    total, place, stop = 0, start, start + length
    while place + _HEADER_BYTES <= stop:
        header = int.from_bytes(source.read_at(_HEADER_BYTES, place), "little")
        total += header >> 1 if header & 1 else chunk_bytes
        place += _HEADER_BYTES + (header >> 1)
    return total


def decompressed(data: bytes, compression: int, chunk_bytes: int = MOST_CHUNK_BYTES) -> bytes:
    """Return a stream, or a message, decompressed."""
    if compression == _NONE:
        return data
    chunks, place = [], 0
    while place + _HEADER_BYTES <= len(data):
        header = int.from_bytes(data[place : place + _HEADER_BYTES], "little")
        chunk = data[place + _HEADER_BYTES : place + _HEADER_BYTES + (header >> 1)]
        if not header & 1:
            chunk = _chunk(chunk, compression, chunk_bytes)
        chunks.append(chunk)
        place += _HEADER_BYTES + (header >> 1)
    return b"".join(chunks)


def _chunk(chunk: bytes, compression: int, most: int) -> bytes:
    if compression == _ZLIB:
        try:
            found = zlib.decompressobj(wbits=-15).decompress(chunk, most + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
    elif compression == _SNAPPY:
        length, _ = varint(chunk, 0)
        if length > most:
            raise ValueError(_LONG_CHUNK)
        found = pa.decompress(chunk, decompressed_size=length, codec="snappy", asbytes=True)
    elif compression == _LZ4:
        found = _lz4_block(chunk, most)
    elif compression == _ZSTD:
        found = bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read(most + 1))
    else:
        raise ValueError(f"compression {compression} is not supported")
    if len(found) > most:
        raise ValueError(_LONG_CHUNK)
    return found


def _lz4_block(chunk: bytes, most: int) -> bytes:
    """Decompress an LZ4 block; pyarrow needs its decompressed length, which is not stored."""
    out, place = bytearray(), 0
    while place < len(chunk) and len(out) <= most:
        token = chunk[place]
        literals, place = _lz4_length(chunk, place + 1, token >> 4)
        out += chunk[place : place + literals]
        place += literals
        if place >= len(chunk):
            break
        offset = int.from_bytes(chunk[place : place + 2], "little")
        length, place = _lz4_length(chunk, place + 2, token & 15)
        if not 0 < offset <= len(out):
            raise ValueError("an LZ4 match begins before its block")
        repeated = bytes(out[-offset:])
        out += (repeated * -(-(length + 4) // offset))[: length + 4]
    return bytes(out)


def _lz4_length(chunk: bytes, place: int, length: int) -> tuple[int, int]:
    more = length == 15
    while more:
        if place >= len(chunk):
            raise ValueError("an LZ4 length does not end")
        length += chunk[place]
        more = chunk[place] == 255
        place += 1
    return length, place


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
    """
    try:
        if version == 1:
            return _version_1(data, signed=signed)
        return _version_2(data, signed=signed, exact=exact)
    except IndexError:
        raise ValueError("a run of integers ends after its stream") from None


def are_within(data: bytes, most: int) -> bool:
    """Return whether all unsigned numbers of a stream of version 2 are at most `most`."""
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
        if control < 128:
            count += control + 3
            place += 2
        else:
            count += 256 - control
            place += 257 - control
    return count


def _version_1(data: bytes, *, signed: bool) -> Bounds:
    found, place = Bounds(), 0
    while place < len(data):
        control = data[place]
        if control < 128:
            count, step = control + 3, data[place + 1]
            if step > 127:
                step -= 256
            first, place = _integer(data, place + 2, signed=signed)
            last = first + step * (count - 1)
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
        if signed:
            value = _unzigzag(value)
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
        if signed:
            values = [_unzigzag(value) for value in values]
        return count, min(values), max(values), sum(values), stop
    low, high = 0, (1 << width) - 1
    if signed:
        low, high = -(1 << width - 1), (1 << width - 1) - 1
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
    if base & sign:
        base = -(base & ~sign)
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
        if step < 0:
            steps = [-each for each in steps]
        values = [first, *accumulate(steps, initial=second)]
        return length, min(values), max(values), sum(values), stop
    reach = (length - 2) * ((1 << width) - 1)
    low, high = min(first, second), second + reach
    if step < 0:
        low, high = second - reach, first
    return length, low, high, max(first, high) * length, stop


def _unpacked(data: bytes, count: int, width: int) -> list[int]:
    """Return unsigned numbers of `width` bits, the highest bit first."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width).reshape(count, width)
    weights = np.left_shift(np.uint64(1), np.arange(width - 1, -1, -1, dtype=np.uint64))
    values: list[int] = (bits * weights).sum(axis=1, dtype=np.uint64).tolist()
    return values


def _integer(data: bytes, place: int, *, signed: bool) -> tuple[int, int]:
    value, place = varint(data, place)
    if signed:
        value = _unzigzag(value)
    return value, place


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
