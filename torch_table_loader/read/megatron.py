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
    AT_ONCE,
    GROUP_BYTES,
    Index,
    Numbers,
    TokenReader,
    check_total,
    index_of,
    opened_whole,
    owned,
    read_exactly,
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
            with opened_whole(storage, index) as source:
                return _parse(source, index)
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


def _parse(source: pa.NativeFile, file: DataFile) -> Index:
    """Read an index."""
    size, name = file.version.num_bytes, file.name
    if size < _HEADER.size:
        raise ValueError(f"ends in its header of {_HEADER.size} bytes, at byte {size}")
    magic, version, code, sequences, edges = _HEADER.unpack(read_exactly(source, 0, _HEADER.size, name))
    if magic != _MAGIC:
        raise ValueError(f"begins with {magic!r}, not with {_MAGIC!r}")
    if version != 1:
        raise ValueError(f"has version {version}, and 1 is read")
    if code not in _TYPES:
        raise ValueError(f"has the type code {code}, and 1 to 8 are known")
    plain = _HEADER.size + _SEQUENCE_BYTES * sequences + _DOCUMENT_BYTES * edges
    if edges < 1 or size not in (plain, plain + sequences):
        raise ValueError(
            f"says {sequences} sequences and {edges} edges of documents, which take {plain} bytes "
            f"(multimodal {plain + sequences}), and has {size}"
        )
    width = _TYPES[code].bit_width // 8
    all_places = Numbers(source, name, "<i8", sequences, _HEADER.size + 4 * sequences)
    all_firsts = Numbers(source, name, "<i8", edges, _HEADER.size + _SEQUENCE_BYTES * sequences)
    lengths = _sequence_lengths(Numbers(source, name, "<i4", sequences, _HEADER.size), all_places, width)
    documents = _document_lengths(lengths, all_firsts)
    if size == plain or not sequences:
        return Index(_TYPES[code], documents, {})
    modes = Numbers(source, name, "u1", sequences, plain).part(0, sequences)
    return Index(_TYPES[code], documents, {MODES: pa.int8()}, (lengths, modes))


def _sequence_lengths(all_lengths: Numbers, all_places: Numbers, width: int) -> NDArray[np.int32]:
    """Return the lengths of sequences, of which each must begin where the one before it ends."""
    kept, end = np.empty(all_lengths.count, np.int32), 0
    for first in range(0, all_lengths.count, AT_ONCE):
        lengths = all_lengths.part(first, first + AT_ONCE)
        if (wrong := _first(lengths < 0)) is not None:
            raise ValueError(f"says a length of {lengths[wrong]} tokens for sequence {first + wrong}")
        places = all_places.part(first, first + AT_ONCE)
        # Those that are right up to one place say where the next must begin: there is nothing to sum.
        begins = np.empty(len(places) + 1, np.int64)
        begins[0] = end
        np.add(places, lengths * np.int64(width), out=begins[1:])
        if (wrong := _first(begins[:-1] != places)) is not None:
            raise ValueError(
                f"says that sequence {first + wrong} begins at byte {places[wrong]}, and those before it end at byte "
                f"{begins[wrong]}"
            )
        kept[first : first + len(lengths)] = lengths
        end = int(begins[-1])
    check_total("it", end // width, width)
    return kept


def _document_lengths(lengths: NDArray[np.int32], all_firsts: Numbers) -> NDArray[Any]:
    """Return the tokens of each document, by the first sequence of each."""
    count, sequences = all_firsts.count, len(lengths)
    alike, begin, end, fall = count == sequences + 1, 0, 0, ""
    for first in range(0, count, AT_ONCE):
        firsts = all_firsts.part(first, first + AT_ONCE)
        begin, before = (begin, end) if first else (int(firsts[0]), 0)
        alike = alike and bool((firsts == np.arange(first, first + len(firsts))).all())
        if not (alike or fall):
            fall = _fall(np.concatenate(([before], firsts)), first)
        end = int(firsts[-1])
    if (begin, end) != (0, sequences):
        raise ValueError(f"says documents of sequences {begin} to {end}, and has sequences 0 to {sequences}")
    if fall:
        raise ValueError(fall)
    if alike:  # a document is a sequence, as most files have it
        return lengths
    ends = np.zeros(sequences + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return np.diff(ends[all_firsts.part(0, count)])


def _fall(edges: NDArray[np.int64], first: int) -> str:
    """Say which document ends before it begins, if one does; `first` is the place of `edges[1]`."""
    if (wrong := _first(edges[1:] < edges[:-1])) is None:
        return ""
    return f"says that document {first + wrong - 1} begins at sequence {edges[wrong]} and ends at {edges[wrong + 1]}"


def _first(marks: NDArray[np.bool_]) -> int | None:
    """Return the place of the first True; None if there is none."""
    return int(marks.argmax()) if marks.any() else None
