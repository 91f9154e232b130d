"""What the messages of an Arrow IPC file or stream say of their own sizes (``Message.fbs`` in Arrow's repository).

pyarrow allocates as much memory as a message says, whatever the file's length. If that fails, the sizes tell whether
the file is damaged, or memory too small.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from torch_table_loader.arrow.flatbuffers import FlatTable

_CONTINUES = -1
_HEADER, _BODY_LENGTH = 2, 3
_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
_BATCH_OF_DICTIONARY = 1
_BUFFERS, _COMPRESSION = 2, 3
_BUFFER = struct.Struct("<qq")
_MOST_GROWTH = {0: 256, 1: 1 << 15}
"""By codec, bytes that one compressed byte can become: LZ4 repeats up to 255; zstd makes 128 KiB of four."""

_SLACK = 1 << 17


@contextmanager
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
    for start in starts() if starts is not None else ():
        _check_message(source, start)
    place = 0 if starts is None else None
    while place is not None:
        place = _check_message(source, place)


def _check_message(source: pa.NativeFile, start: int) -> int | None:
    """Check the message that begins at a byte, and return where the next one does; None after the last."""
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
    message = FlatTable.root(source.read_at(length, body))
    body += length
    place = message.place(_BODY_LENGTH)
    num_bytes = struct.unpack_from("<q", message.data, place)[0] if place else 0
    if not 0 <= num_bytes <= size - body:
        raise ValueError(f"the message at byte {start} of {size} says that its body has {num_bytes} bytes")
    if batch := _record_batch(message):
        _check_buffers(source, batch, body, num_bytes)
    return int(body + num_bytes)


def _record_batch(message: FlatTable) -> FlatTable | None:
    """Return the record batch of a message, that of a dictionary's too; None if it has none."""
    kind = message.byte(_HEADER - 1)
    header = message.table(_HEADER) if kind in (_RECORD_BATCH, _DICTIONARY_BATCH) else None
    return header.table(_BATCH_OF_DICTIONARY) if header and kind == _DICTIONARY_BATCH else header


def _check_buffers(source: pa.NativeFile, batch: FlatTable, body: int, num_bytes: int) -> None:
    compression = batch.table(_COMPRESSION)
    growth = 0 if compression is None else _MOST_GROWTH.get(compression.byte(0) or 0, 0)
    start, count = batch.vector(_BUFFERS)
    for offset, length in _BUFFER.iter_unpack(batch.data[start : start + count * _BUFFER.size]):
        if not 0 <= offset <= offset + length <= num_bytes or length < 0:
            raise ValueError(f"a buffer says bytes {offset} to {offset + length} of a body of {num_bytes} bytes")
        if growth and length >= 8:
            (raw,) = struct.unpack("<q", source.read_at(8, body + offset))
            if raw > length * growth + _SLACK:
                raise ValueError(f"a buffer of {length} bytes says that it has {raw} decompressed, which it cannot")
