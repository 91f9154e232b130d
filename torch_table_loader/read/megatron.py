"""Megatron's ``.bin`` and ``.idx``: tokens, and an index of sequences and documents.

The index begins with magic, version and the code of the tokens' type, then the numbers of sequences and of documents
plus one; then int32 lengths of sequences in tokens, int64 places of sequences in the ``.bin`` in bytes, and int64 first
sequences of documents; of multimodal data then int8 modes of sequences. Arrays are not aligned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.format_contracts import Sidecar
from torch_table_loader.read.token_files import (
    GROUP_BYTES,
    Index,
    TokenReader,
    check_total,
    index_of,
    owned,
    read_whole,
)

if TYPE_CHECKING:
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.read.token_files import Values
    from torch_table_loader.records import DataFile

MODES = "modes"
"""The column of a multimodal file: for each token the mode of its sequence."""

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {
    1: pa.uint8(),
    2: pa.int8(),
    3: pa.int16(),
    4: pa.int32(),
    5: pa.int64(),
    6: pa.float64(),
    7: pa.float32(),
    8: pa.uint16(),
}
_SEQUENCE_BYTES, _DOCUMENT_BYTES = 12, 8


@dataclass(frozen=True, slots=True)
class MegatronReader(TokenReader):
    """Reads Megatron's indexed data sets: a row is a document, the tokens of its sequences one after another.

    Each row group but the last has at least `group_bytes` of tokens.
    """

    name: str = "megatron"
    group_bytes: int = GROUP_BYTES
    data_suffix = ".bin"
    sidecars = (Sidecar(".idx"),)

    @override
    def read_index(self, storage: Storage, file: DataFile) -> Index:
        index = index_of(file, ".idx")
        try:
            return _parse(read_whole(storage, index))
        except ValueError as error:
            raise ValueError(f"{index.name} {error}") from error

    @override
    def column(
        self, name: str, storage: Storage, file: DataFile, more: Sequence[NDArray[Any]], opened: ExitStack
    ) -> Values:
        lengths, modes = more
        return partial(_modes, np.cumsum(lengths, dtype=np.int64), modes)


def _modes(ends: NDArray[np.int64], modes: NDArray[np.uint8], start: int, stop: int) -> pa.Buffer:
    """Return the modes of a run of tokens, from the modes of sequences."""
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left")) + 1
    edges = np.clip(np.concatenate(([start], ends[first:last])), start, stop)
    return owned(np.repeat(modes[first:last], np.diff(edges)))


def _parse(data: pa.Buffer) -> Index:
    """Read an index.

    Raises:
        ValueError: it contradicts itself; says how.
    """
    if data.size < _HEADER.size:
        raise ValueError(f"ends in its header of {_HEADER.size} bytes, at byte {data.size}")
    magic, version, code, sequences, edges = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"begins with {magic!r}, not with {_MAGIC!r}")
    if version != 1:
        raise ValueError(f"has version {version}, and 1 is read")
    if code not in _TYPES:
        raise ValueError(f"has the type code {code}, and 1 to 8 are known")
    plain = _HEADER.size + _SEQUENCE_BYTES * sequences + _DOCUMENT_BYTES * edges
    if edges < 1 or data.size not in (plain, plain + sequences):
        raise ValueError(
            f"says {sequences} sequences and {edges} edges of documents, which take {plain} bytes "
            f"(multimodal {plain + sequences}), and has {data.size}"
        )
    width = _TYPES[code].bit_width // 8
    lengths = np.frombuffer(data, "<i4", sequences, _HEADER.size)
    places = np.frombuffer(data, "<i8", sequences, _HEADER.size + 4 * sequences)
    firsts = np.frombuffer(data, "<i8", edges, _HEADER.size + _SEQUENCE_BYTES * sequences)
    ends = _sequence_ends(lengths, places, width)
    _check_documents(firsts, sequences)
    documents = np.diff(np.concatenate(([0], ends))[firsts])
    if data.size == plain or not sequences:
        return Index(_TYPES[code], documents, {})
    modes = np.frombuffer(data, np.uint8, sequences, plain)
    return Index(_TYPES[code], documents, {MODES: pa.int8()}, (lengths, modes))


def _sequence_ends(lengths: NDArray[np.int32], places: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return where sequences end, in tokens; each must begin where the one before it ends."""
    if (wrong := _first(lengths < 0)) is not None:
        raise ValueError(f"says a length of {lengths[wrong]} tokens for sequence {wrong}")
    ends = np.cumsum(lengths, dtype=np.int64)
    check_total("it", int(ends[-1]) if len(ends) else 0, width)
    begins = (ends - lengths) * width
    if (wrong := _first(begins != places)) is not None:
        raise ValueError(
            f"says that sequence {wrong} begins at byte {places[wrong]}, and those before it end at byte "
            f"{begins[wrong]}"
        )
    return ends


def _check_documents(firsts: NDArray[np.int64], sequences: int) -> None:
    if firsts[0] != 0 or firsts[-1] != sequences:
        raise ValueError(f"says documents of sequences {firsts[0]} to {firsts[-1]}, and has sequences 0 to {sequences}")
    if (wrong := _first(firsts[1:] < firsts[:-1])) is not None:
        raise ValueError(
            f"says that document {wrong} begins at sequence {firsts[wrong]} and ends at {firsts[wrong + 1]}"
        )


def _first(marks: NDArray[np.bool_]) -> int | None:
    """Return the place of the first True; None if there is none."""
    return int(marks.argmax()) if marks.any() else None
