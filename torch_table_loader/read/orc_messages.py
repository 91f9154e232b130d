"""ORC's protocol buffers and compressed chunks (https://orc.apache.org/specification/ORCv1/, "Compression")."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa

_NONE, _ZLIB, _SNAPPY, _LZO, _LZ4, _ZSTD = range(6)
_HEADER_BYTES = 3

MOST_CHUNK_BYTES = 1 << 24
"""The largest decompressed chunk. The length of a compressed one has 23 bits."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Walk a protocol buffer's fields: varints as ints, all else as bytes.

    Raises:
        ValueError: it does not parse.
    """
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        if tag & 7 == 0:
            value, place = varint(message, place)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            length, place = varint(message, place)
        elif tag & 7 in {1, 5}:
            length = 8 if tag & 7 == 1 else 4
        else:
            raise ValueError(f"wire type {tag & 7} is unknown")
        if place + length > len(message):
            raise ValueError("a field ends after its message")
        yield tag >> 3, message[place : place + length]
        place += length


def varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends.

    Raises:
        ValueError: it does not end.
    """
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
    """Return a stream, or a message, decompressed.

    Raises:
        ValueError: it does not decompress, or a decompressed chunk has more than `chunk_bytes`.
    """
    if compression == _NONE:
        return data
    chunks, place = [], 0
    while place + _HEADER_BYTES <= len(data):
        header = int.from_bytes(data[place : place + _HEADER_BYTES], "little")
        chunk = data[place + _HEADER_BYTES : place + _HEADER_BYTES + (header >> 1)]
        chunks.append(chunk if header & 1 else _chunk(chunk, compression, chunk_bytes))
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
        found = b"" if length > most else pa.decompress(chunk, decompressed_size=length, codec="snappy", asbytes=True)
        most = most if length <= most else -1
    elif compression == _LZ4:
        found = _lz4_block(chunk, most)
    elif compression == _ZSTD:
        found = bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read(most + 1))
    else:
        raise ValueError(f"compression {compression} is not supported")
    if len(found) > most:
        raise ValueError("a chunk is longer decompressed than the postscript says")
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
