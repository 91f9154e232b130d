"""The formats of flat token files: Megatron's, and datatrove's, which is nanotron's too.

Megatron's ``.idx`` beside a ``.bin`` begins with magic, version and the code of the tokens' type, then the numbers of
sequences and of documents plus one; then int32 lengths of sequences in tokens, int64 places of sequences in the
``.bin`` in bytes, and int64 first sequences of documents; of multimodal data then int8 modes of sequences. Arrays are
not aligned.

datatrove's ``X.ds`` is uint16 or uint32 tokens; ``X.ds.index`` uint64 ends of documents in tokens, cumulative;
``X.ds.loss`` a byte a token, 0 or 1; ``X.ds.metadata`` lines of text: the tokenizer and, after the last ``|``, the
bytes of a token; the number of tokens; the same for people.
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

from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Sidecar
from torch_table_loader.read.list_groups import GROUP_BYTES, owned, read_exactly
from torch_table_loader.text.token_files import (
    AT_ONCE,
    MOST_TOKENS,
    Index,
    Numbers,
    TokenReader,
    check_total,
    index_of,
    open_sidecar,
    opened_whole,
    read_whole,
    sidecar_of,
)

if TYPE_CHECKING:
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile
    from torch_table_loader.text.token_files import Values


MODES = "modes"
"""The column of a multimodal file: for each token the mode of its sequence."""

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_TYPE_OF_CODE = {
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

LOSS_MASK = "loss_mask"
"""The column of the loss file: 1 for a token that is trained on."""

_INDEX, _LOSS, _METADATA = ".ds.index", ".ds.loss", ".ds.metadata"
_TYPE_OF_WIDTH = {2: pa.uint16(), 4: pa.uint32()}
_MOST_METADATA = 1 << 16


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
                return _parse_index(source, index)
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


def _parse_index(source: pa.NativeFile, file: DataFile) -> Index:
    size, name = file.version.num_bytes, file.name
    if size < _HEADER.size:
        raise ValueError(f"ends in its header of {_HEADER.size} bytes, at byte {size}")
    magic, version, code, sequences, edges = _HEADER.unpack(read_exactly(source, 0, _HEADER.size, name))
    if magic != _MAGIC:
        raise ValueError(f"begins with {magic!r}, not with {_MAGIC!r}")
    if version != 1:
        raise ValueError(f"has version {version}, and 1 is read")
    if code not in _TYPE_OF_CODE:
        raise ValueError(f"has the type code {code}, and 1 to 8 are known")
    plain = _HEADER.size + _SEQUENCE_BYTES * sequences + _DOCUMENT_BYTES * edges
    if edges < 1 or size not in (plain, plain + sequences):
        raise ValueError(
            f"says {sequences} sequences and {edges} edges of documents, which take {plain} bytes "
            f"(multimodal {plain + sequences}), and has {size}"
        )
    width = _TYPE_OF_CODE[code].bit_width // 8
    all_places = Numbers(source, name, "<i8", sequences, _HEADER.size + 4 * sequences)
    all_firsts = Numbers(source, name, "<i8", edges, _HEADER.size + _SEQUENCE_BYTES * sequences)
    lengths = _sequence_lengths(Numbers(source, name, "<i4", sequences, _HEADER.size), all_places, width)
    documents = _document_lengths(lengths, all_firsts)
    if size == plain or not sequences:
        return Index(_TYPE_OF_CODE[code], documents, {})
    modes = Numbers(source, name, "u1", sequences, plain).part(0, sequences)
    return Index(_TYPE_OF_CODE[code], documents, {MODES: pa.int8()}, (lengths, modes))


def _sequence_lengths(all_lengths: Numbers, all_places: Numbers, width: int) -> NDArray[Any]:
    """Return the lengths of sequences, of which each must begin where the one before it ends."""
    kept: NDArray[Any] = np.empty(all_lengths.count, np.uint8)
    end, room = 0, np.empty(AT_ONCE + 1, np.int64)
    for first in range(0, all_lengths.count, AT_ONCE):
        lengths = all_lengths.part(first, first + AT_ONCE)
        if lengths.min() < 0:
            wrong = int((lengths < 0).argmax())
            raise ValueError(f"says a length of {lengths[wrong]} tokens for sequence {first + wrong}")
        places = all_places.part(first, first + AT_ONCE)
        # Those that are right up to one place say where the next must begin: there is nothing to sum.
        begins = room[: len(places) + 1]
        begins[0] = end
        np.multiply(lengths, np.int64(width), out=begins[1:])
        begins[1:] += places
        if not np.array_equal(begins[:-1], places):
            wrong = int((begins[:-1] != places).argmax())
            raise ValueError(
                f"says that sequence {first + wrong} begins at byte {places[wrong]}, and those before it end at byte "
                f"{begins[wrong]}"
            )
        kept = _wide_enough(kept, first, int(lengths.max()))
        kept[first : first + len(lengths)] = lengths
        end = int(begins[-1])
    check_total("it", end // width, width)
    return kept


def _wide_enough(kept: NDArray[Any], count: int, most: int) -> NDArray[Any]:
    """Return an array for greater numbers, with the first `count` in it; narrow ones cost least to fill."""
    if most <= np.iinfo(kept.dtype).max:
        return kept
    wider = np.empty(len(kept), np.min_scalar_type(most))
    wider[:count] = kept[:count]
    return wider


def _document_lengths(lengths: NDArray[Any], all_firsts: Numbers) -> NDArray[Any]:
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
    if marks.any():
        return int(marks.argmax())
    return None


@dataclass(frozen=True, slots=True)
class DatatroveReader(TokenReader):
    """Reads datatrove's tokenised documents, which nanotron trains on: a row is a document.

    Each row group but the last has at least `group_bytes` of tokens.
    """

    name: str = "datatrove"
    group_bytes: int = GROUP_BYTES
    data_suffix = ".ds"
    sidecars = (Sidecar(_INDEX), Sidecar(_LOSS, required=False), Sidecar(_METADATA, required=False))

    @override
    def read_index(self, storage: Storage, file: DataFile) -> Index:
        index = index_of(file, _INDEX)
        if index.version.num_bytes % 8:
            raise ValueError(f"{index.name} has {index.version.num_bytes} bytes, which is not a multiple of 8")
        with opened_whole(storage, index) as source:
            lengths, tokens = _parse_ends(Numbers(source, index.name, "<u8", index.version.num_bytes // 8))
        width = _width(file.version.num_bytes, tokens, index.name)
        if (note := sidecar_of(file, _METADATA)) is not None:
            _check_note(note, storage, tokens, width)
        columns: dict[str, pa.DataType] = {}
        if (loss := sidecar_of(file, _LOSS)) is not None:
            if loss.version.num_bytes != tokens:
                raise ValueError(f"{loss.name} has {loss.version.num_bytes} bytes for {tokens} tokens")
            columns[LOSS_MASK] = pa.uint8()
        return Index(_TYPE_OF_WIDTH[width], lengths, columns)

    @override
    def column(
        self, name: str, storage: Storage, file: DataFile, more: Sequence[NDArray[Any]], opened: ExitStack
    ) -> Values:
        loss = sidecar_of(file, _LOSS)
        if loss is None:
            raise TableError(f"{file.name} had a loss mask when it was planned, and has none; build the loader again")
        source = opened.enter_context(open_sidecar(storage, loss))
        return partial(_loss_mask, source, f"{loss.name} (of {file.name})")


def _loss_mask(source: pa.NativeFile, name: str, start: int, stop: int) -> pa.Buffer:
    """Return the mask of a run of tokens, checked to be 0 or 1."""
    found = read_exactly(source, start, stop, name)
    mask = np.frombuffer(found, np.uint8)
    if len(mask) and mask.max() > 1:
        token = int((mask > 1).argmax())
        raise TableError(
            f"{name} must be 0 or 1 for each token, got {mask[token]} for token {start + token}; "
            "it is damaged: restore it, or leave loss_mask out of columns="
        )
    return found


def _parse_ends(all_ends: Numbers) -> tuple[NDArray[Any], int]:
    """Return the number of tokens of each document, and of all."""
    name = all_ends.name
    lengths: NDArray[Any] = np.empty(all_ends.count, np.uint8)
    tokens = 0
    for first in range(0, all_ends.count, AT_ONCE):
        ends = all_ends.part(first, first + AT_ONCE)
        found = np.diff(ends, prepend=np.uint64(tokens))  # more than any number of tokens where an end falls
        if int(found.max()) > MOST_TOKENS:
            at = int((found > MOST_TOKENS).argmax())
            if int(ends[at]) < (int(ends[at - 1]) if at else tokens):
                raise ValueError(f"{name} says that document {first + at} ends at {ends[at]}, before it begins")
            check_total(name, int(ends[at]), 4)
            raise ValueError(f"{name} says a document of {found[at]} tokens, and a list has at most {MOST_TOKENS}")
        lengths = _wide_enough(lengths, first, int(found.max()))
        lengths[first : first + len(found)] = found
        tokens = int(ends[-1])
    check_total(name, tokens, 4)
    return lengths, tokens


def _width(num_bytes: int, tokens: int, index: str) -> int:
    """Return the bytes of a token, from those of all the tokens that the index says."""
    width = num_bytes // tokens if tokens else 2
    if width not in _TYPE_OF_WIDTH or width * tokens != num_bytes:
        raise ValueError(f"{index} says that {tokens} tokens of 2 or 4 bytes lie in {num_bytes} bytes")
    return width


def _check_note(note: DataFile, storage: Storage, tokens: int, width: int) -> None:
    """Compare the numbers in the note with the files; anything else in their place is ignored."""
    if note.version.num_bytes > _MOST_METADATA:
        raise ValueError(f"{note.name} has {note.version.num_bytes} bytes, which is too long for a note")
    lines = [*bytes(read_whole(storage, note)).decode("utf-8", "replace").split("\n"), "", ""]
    claims = {"bytes a token": (lines[0].rpartition("|")[2], width), "tokens": (lines[1], tokens)}
    for what, (text, found) in claims.items():
        if text.strip().isdecimal() and "|" in lines[0] and int(text) != found:
            raise ValueError(f"{note.name} says {int(text)} {what} instead of {found}")
