"""datatrove's and nanotron's ``.ds``: tokens, with the ends of documents, loss masks and a note beside them.

``X.ds`` is uint16 or uint32 tokens; ``X.ds.index`` uint64 ends of documents in tokens, cumulative; ``X.ds.loss`` a byte
a token, 0 or 1; ``X.ds.metadata`` lines of text: the tokenizer and, behind the last ``|``, the bytes of a token; the
number of tokens; the same for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import Sidecar
from torch_table_loader.read.token_files import (
    AT_ONCE,
    GROUP_BYTES,
    MOST_TOKENS,
    Index,
    Numbers,
    TokenReader,
    check_total,
    index_of,
    open_sidecar,
    opened_whole,
    read_exactly,
    read_whole,
    sidecar_of,
)

if TYPE_CHECKING:
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.read.token_files import Values
    from torch_table_loader.records import DataFile

LOSS_MASK = "loss_mask"
"""The column of the loss file: 1 for a token that is trained on."""

_INDEX, _LOSS, _METADATA = ".ds.index", ".ds.loss", ".ds.metadata"
_TYPES = {2: pa.uint16(), 4: pa.uint32()}
_MOST_METADATA = 1 << 16


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
            lengths, tokens = _parse(Numbers(source, index.name, "<u8", index.version.num_bytes // 8))
        width = _width(file.version.num_bytes, tokens, index.name)
        if (note := sidecar_of(file, _METADATA)) is not None:
            _check_note(note, storage, tokens, width)
        columns: dict[str, pa.DataType] = {}
        if (loss := sidecar_of(file, _LOSS)) is not None:
            if loss.version.num_bytes != tokens:
                raise ValueError(f"{loss.name} has {loss.version.num_bytes} bytes for {tokens} tokens")
            columns[LOSS_MASK] = pa.uint8()
        return Index(_TYPES[width], lengths, columns)

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


def _parse(all_ends: Numbers) -> tuple[NDArray[np.uint32], int]:
    """Return the number of tokens of each document, and of all."""
    name = all_ends.name
    lengths, tokens = np.empty(all_ends.count, np.uint32), 0
    for first in range(0, all_ends.count, AT_ONCE):
        ends = all_ends.part(first, first + AT_ONCE)
        found = np.diff(ends, prepend=np.uint64(tokens))  # more than any number of tokens where an end falls
        if int(found.max()) > MOST_TOKENS:
            at = int((found > MOST_TOKENS).argmax())
            if int(ends[at]) < (int(ends[at - 1]) if at else tokens):
                raise ValueError(f"{name} says that document {first + at} ends at {ends[at]}, before it begins")
            check_total(name, int(ends[at]), 4)
            raise ValueError(f"{name} says a document of {found[at]} tokens, and a list has at most {MOST_TOKENS}")
        lengths[first : first + len(found)] = found
        tokens = int(ends[-1])
    check_total(name, tokens, 4)
    return lengths, tokens


def _width(num_bytes: int, tokens: int, index: str) -> int:
    """Return the bytes of a token, from those of all the tokens that the index says."""
    width = num_bytes // tokens if tokens else 2
    if width not in _TYPES or width * tokens != num_bytes:
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
