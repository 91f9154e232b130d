"""How an Arrow IPC file is laid out: its footer, its blocks and messages, and the sizes in them.

pyarrow does not say where the blocks of a file lie. A file ends in: footer, its length in 4 bytes, ``ARROW1``. The
footer is a flatbuffer (https://arrow.apache.org/docs/format/Columnar.html, "IPC File Format"; ``File.fbs`` in Arrow's
repository). And pyarrow allocates as much memory as a message says, whatever the file's length: if that fails, the
sizes in the messages (``Message.fbs``) tell whether the file is damaged, or memory too small.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from torch_table_loader.arrow.flatbuffers import FlatTable
from torch_table_loader.translating import translating

FILE_MAGIC = b"ARROW1"
STREAM_START = 8
_DICTIONARIES, _RECORD_BATCHES = 2, 3
_BLOCK = struct.Struct("<qi4xq")
_MOST_PADDING = 128
"""Bytes between blocks that some writer may leave, and the end-of-stream marker; the header of a batch needs more."""

_CONTINUES = -1
VERSION, HEADER, _BODY_LENGTH = 0, 2, 3
_SCHEMA, _DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
_MARKER = b"\xff\xff\xff\xff"
_MOST_SCHEMA_BYTES = 1 << 24
"""Of a schema without its length."""

_BATCH_OF_DICTIONARY = 1
BUFFERS, COMPRESSION, VARIADIC = 2, 3, 4
BUFFER = struct.Struct("<qq")

_MOST_RATIO = {0: 256, 1: 1 << 15}
"""By codec, bytes that one compressed byte can become: LZ4 repeats up to 255; zstd makes 128 KiB of four."""

_SLACK = 1 << 17


def message_starts(source: pa.NativeFile) -> list[int]:
    """Return where the messages of a file of the file format begin: see `sized`."""
    _, dictionaries, batches = read_footer(source)
    return [block.start for block in (*dictionaries, *batches)]


def read_footer(source: pa.NativeFile) -> Footer:
    """Read the footer of a file of the file format, with the blocks in its order."""
    size = source.size()
    footer_bytes = int.from_bytes(source.read_at(4, size - 4 - len(FILE_MAGIC)), "little")
    stop = size - 4 - len(FILE_MAGIC) - footer_bytes
    if stop < 0:
        raise ValueError(f"its footer says {footer_bytes} bytes of {size}")
    try:
        root = FlatTable.root(source.read_at(footer_bytes, stop))
        return Footer(stop, _blocks(root, _DICTIONARIES), _blocks(root, _RECORD_BATCHES))
    except struct.error as error:
        raise ValueError(f"the footer ends before its blocks ({error})") from error


def check_footer(source: pa.NativeFile, num_batches: int) -> Footer:
    """Check that the footer names everything in a file of the file format: no row is missing, or comes twice."""
    footer = read_footer(source)
    if len(footer.batches) != num_batches:
        raise ValueError(f"its footer names {len(footer.batches)} record batches, and {num_batches} are found")
    blocks = [*footer.dictionaries, *footer.batches]
    first = min((block.start for block in blocks), default=footer.start)
    check_blocks(blocks, _schema_stop(source, first), footer.start)
    return footer


def _schema_stop(source: pa.NativeFile, first: int) -> int:
    """Return where the schema ends that a file begins with, which nobody needs; `first` is where its blocks begin.

    polars writes it without its length: then no batch may lie there.
    """
    try:
        found = message_at(source, STREAM_START)
        if found is not None and found[0].byte(HEADER - 1) == _SCHEMA:
            return found[1]
    except (ValueError, struct.error):
        pass
    if first > _MOST_SCHEMA_BYTES:
        raise ValueError(f"its blocks begin at byte {first}, after no schema")
    lead = source.read_at(max(0, first - STREAM_START), STREAM_START)
    if FlatTable.root(lead).byte(HEADER - 1) != _SCHEMA:
        raise ValueError("it does not begin with a schema")
    place = lead.find(_MARKER)
    while place >= 0:
        if place % 8 == 0 and _is_batch(source, STREAM_START + place):
            raise ValueError(f"its footer does not name the batch at byte {STREAM_START + place}")
        place = lead.find(_MARKER, place + 1)
    return first


def _is_batch(source: pa.NativeFile, start: int) -> bool:
    try:
        found = message_at(source, start)
        return found is not None and found[0].byte(HEADER - 1) in (RECORD_BATCH, _DICTIONARY_BATCH)
    except (ValueError, struct.error):
        return False


class Block(NamedTuple):
    """The bytes of one dictionary or record batch."""

    start: int
    stop: int


class Footer(NamedTuple):
    """Where the footer begins, and the blocks that it names."""

    start: int
    dictionaries: list[Block]
    batches: list[Block]


def _blocks(footer: FlatTable, field: int) -> list[Block]:
    start, count = footer.vector(field)
    stop = start + count * _BLOCK.size
    if stop > len(footer.data):
        raise ValueError(f"the footer has no room for the {count} blocks that it says")
    blocks = []
    for offset, metadata, body in _BLOCK.iter_unpack(footer.data[start:stop]):
        if offset < 0 or metadata <= 0 or body < 0:
            raise ValueError(f"a block has the offset {offset} and the lengths {metadata} and {body}")
        blocks.append(Block(offset, offset + metadata + body))
    return blocks


def check_blocks(blocks: list[Block], start: int, stop: int) -> None:
    """Check that blocks fill the bytes from `start` to `stop`, so that none is missing, there twice, or elsewhere.

    >>> check_blocks([Block(120, 200), Block(100, 120)], 100, 208)
    """
    edges = [Block(start, start), *sorted(blocks), Block(stop, stop)]
    for before, after in pairwise(edges):
        if not 0 <= after.start - before.stop <= _MOST_PADDING:
            raise ValueError(
                f"its blocks must fill it, and between byte {before.stop} and byte {after.start} they do not"
            )


@translating
def sized(source: pa.NativeFile, starts: Callable[[], Sequence[int]] | None = None) -> Iterator[None]:
    """Turn an allocation that fails into an error of the file, if a message says a size that it cannot have.

    Args:
        starts: returns where the messages of a file begin; None for a stream, whose messages follow each other.

    Raises:
        ValueError: names the message whose size is impossible.
        pa.ArrowMemoryError: the sizes are possible, and memory is too small for them.
    """
    try:
        yield
    except pa.ArrowMemoryError as error:
        try:
            _check_sizes(source, starts)
        except struct.error as cut:
            raise ValueError(f"a message ends before its sizes ({cut})") from error
        except ValueError as wrong:
            raise wrong from error
        raise


def _check_sizes(source: pa.NativeFile, starts: Callable[[], Sequence[int]] | None) -> None:
    if starts is not None:
        for start in starts():
            check_message(source, start)
        return
    for _ in stream_starts(source):
        pass


def stream_starts(source: pa.NativeFile) -> Iterator[int]:
    """Yield where the messages of a stream begin, each once it is checked."""
    place = 0
    while (stop := check_message(source, place)) is not None:
        yield place
        place = stop


def decompressed_sizes(source: pa.NativeFile, start: int) -> list[int] | None:
    """Return the bytes of each buffer of the batch in the message at a byte; None if there is none, or as stored."""
    found = message_at(source, start)
    batch = None if found is None else batch_of_message(found[0])
    if found is None or batch is None or batch.table(COMPRESSION) is None:
        return None
    sizes = list[int]()
    for offset, length in _buffers(batch):
        raw = 0
        if length:
            (raw,) = struct.unpack("<q", source.read_at(8, found[1] + offset))
        sizes.append(max(raw, length))  # less than 0 if it is stored as it is
    return sizes


def _buffers(batch: FlatTable) -> Iterator[tuple[int, int]]:
    """Yield where the buffers of a batch begin in its body, and how long they are."""
    start, count = batch.vector(BUFFERS)
    yield from BUFFER.iter_unpack(batch.data[start : start + count * BUFFER.size])


def message_at(source: pa.NativeFile, start: int) -> tuple[FlatTable, int] | None:
    """Return the header of the message that begins at a byte, and where its body does; None after the last."""
    size = source.size()
    head = source.read_at(min(8, max(0, size - start)), start)
    if len(head) < 8:
        return None
    marker, length = struct.unpack("<iI", head)
    body = start + 8
    if marker != _CONTINUES:  # before Arrow 0.15 the length came alone
        body, length = start + 4, marker
    if not length:
        return None
    if not 0 < length <= size - body:
        raise ValueError(f"the message at byte {start} of {size} says that its header has {length} bytes")
    return FlatTable.root(source.read_at(length, body)), body + length


def check_message(source: pa.NativeFile, start: int) -> int | None:
    """Check the message that begins at a byte, and return where the next one does; None after the last."""
    found, size = message_at(source, start), source.size()
    if found is None:
        return None
    message, body = found
    num_bytes = 0
    if place := message.place(_BODY_LENGTH):
        (num_bytes,) = struct.unpack_from("<q", message.data, place)
    if not 0 <= num_bytes <= size - body:
        raise ValueError(f"the message at byte {start} of {size} says that its body has {num_bytes} bytes")
    if batch := batch_of_message(message):
        _check_buffers(source, batch, body, num_bytes)
    return int(body + num_bytes)


def batch_at(source: pa.NativeFile, start: int) -> FlatTable | None:
    """Return the record batch of the message that begins at a byte; None if it has none, or no message is there."""
    found = message_at(source, start)
    if found is None:
        return None
    return batch_of_message(found[0])


def batch_of_message(message: FlatTable) -> FlatTable | None:
    """Return the record batch of a message, that of a dictionary's too; None if it has none."""
    kind = message.byte(HEADER - 1)
    if kind not in (RECORD_BATCH, _DICTIONARY_BATCH):
        return None
    header = message.table(HEADER)
    if header and kind == _DICTIONARY_BATCH:
        return header.table(_BATCH_OF_DICTIONARY)
    return header


def _check_buffers(source: pa.NativeFile, batch: FlatTable, body: int, num_bytes: int) -> None:
    compression = batch.table(COMPRESSION)
    ratio = 0 if compression is None else _MOST_RATIO.get(compression.byte(0) or 0, 0)
    for offset, length in _buffers(batch):
        if not 0 <= offset <= offset + length <= num_bytes or length < 0:
            raise ValueError(f"a buffer says bytes {offset} to {offset + length} of a body of {num_bytes} bytes")
        if ratio and length >= 8:
            (raw,) = struct.unpack("<q", source.read_at(8, body + offset))
            if raw > length * ratio + _SLACK:
                raise ValueError(f"a buffer of {length} bytes says that it has {raw} decompressed, which it cannot")
