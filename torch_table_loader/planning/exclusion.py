"""Rows that the caller excluded: a small set, its form in the state, and the order of the remaining rows."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from torch_table_loader.errors import ConfigError, ConfigTypeError, ResumeError
from torch_table_loader.planning.distinct import distinct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_BLOCK_BITS = 16
_BITMAP_FROM = 4096
"""From this many ids on, a bitmap of 65,536 bits is smaller than their 16-bit numbers (as in Roaring bitmaps)."""
_HEADER = struct.Struct("<QI")
_NOTHING = "0" * 32


def encode_ids(ids: Ints) -> str:
    """Write a set of ids as text: blocks of 65,536, each as numbers or a bitmap (Chambi et al. 2016), compressed.

    Args:
        ids: int64[n], sorted, without duplicates, none negative.

    >>> decode_ids(encode_ids(np.array([3, 70_000]))).tolist()
    [3, 70000]
    """
    if not len(ids):
        return ""
    blocks, starts = np.unique(ids >> _BLOCK_BITS, return_index=True)
    packer = zlib.compressobj(6)
    parts = []
    for block, part in zip(blocks.tolist(), np.split(ids, starts[1:]), strict=True):
        low = (part & 0xFFFF).astype("<u2")
        if len(low) < _BITMAP_FROM:
            body = low.tobytes()
        else:
            bits = np.zeros(1 << _BLOCK_BITS, dtype=np.bool_)
            bits[low] = True
            body = np.packbits(bits, bitorder="little").tobytes()
        parts += [packer.compress(_HEADER.pack(block, len(low))), packer.compress(body)]
    return base64.b64encode(b"".join([*parts, packer.flush()])).decode("ascii")


def decode_ids(text: str, num_rows: int = 1 << 63) -> Ints:
    """Read what `encode_ids` wrote: row ids of a table with `num_rows` physical rows.

    Raises:
        ResumeError: the text is not a set of ids of the table.
    """
    if not text:
        return np.empty(0, dtype=np.int64)
    most = ((num_rows >> _BLOCK_BITS) + 1) * (_HEADER.size + (1 << _BLOCK_BITS) // 8)
    try:
        unpacker = zlib.decompressobj()
        ids = _ids_in(unpacker.decompress(base64.b64decode(text, validate=True), most + 1))
    except (binascii.Error, zlib.error, struct.error, ValueError) as error:
        raise ResumeError(
            f"the state's exclusions must be as state_dict() writes them, got {error!r}; pass its value unchanged"
        ) from error
    if not unpacker.eof or unpacker.unused_data or (np.diff(ids) <= 0).any() or not 0 <= ids[0] <= ids[-1] < num_rows:
        raise ResumeError(
            f"the state's exclusions must be rising ids of a table of {num_rows} rows, got others; pass the value of "
            "state_dict() unchanged"
        )
    return ids


def _ids_in(data: bytes) -> Ints:
    parts, at = [], 0
    while at < len(data):
        block, count = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if count < _BITMAP_FROM:
            low = np.frombuffer(data, "<u2", count, at).astype(np.int64)
            at += 2 * count
        else:
            bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
            low = np.flatnonzero(bits).astype(np.int64)
            at += 8192
        parts.append(low + (min(block, (1 << 47) - 1) << _BLOCK_BITS))
    found = np.concatenate(parts)
    if not len(found):
        raise ValueError("no ids")
    return found


@dataclass(frozen=True, eq=False)
class Exclusions:
    """Excluded row ids, and a hash of every change that was requested.

    Args:
        ids: int64[n], sorted, without duplicates.
        digest: hash of every `exclude` and `include` so far, in order; equal on ranks that received the same calls.
    """

    ids: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    digest: str = _NOTHING

    def exclude(self, row_ids: Any, num_rows: int) -> Exclusions:
        """Exclude rows, named as in `checked_ids`, of a table with `num_rows` physical rows.

        Raises:
            ConfigError: an id is not a row's, or a mask has the wrong length.
        """
        asked = checked_ids(row_ids, num_rows)
        return Exclusions(np.union1d(self.ids, asked), self._after(b"exclude", asked))

    def include(self, row_ids: Any, num_rows: int) -> Exclusions:
        """Include rows again; see `exclude`."""
        asked = checked_ids(row_ids, num_rows)
        return Exclusions(np.setdiff1d(self.ids, asked, assume_unique=True), self._after(b"include", asked))

    def _after(self, what: bytes, asked: Ints) -> str:
        hashed = hashlib.blake2b(bytes.fromhex(self.digest) + what, digest_size=16)
        hashed.update(np.ascontiguousarray(asked, dtype="<i8").data)
        return hashed.hexdigest()

    def to_state(self) -> dict[str, str]:
        """Write the ids and the hash as text."""
        return {"ids": encode_ids(self.ids), "digest": self.digest}

    @classmethod
    def from_state(cls, state: Mapping[str, str], num_rows: int) -> Exclusions:
        """Read what `to_state` wrote, in a checked state, for a table with `num_rows` physical rows.

        Raises:
            ResumeError: the ids are not of the table, or the hash is none.
        """
        text, digest = state["ids"], state["digest"]
        if not re.fullmatch(f"[0-9a-f]{{{len(_NOTHING)}}}", digest):
            raise ResumeError(f"the state's exclusions must have a hash, got {digest!r}; pass state_dict() unchanged")
        return cls(decode_ids(text, num_rows), digest)

    def __eq__(self, other: object) -> bool:
        """Return whether both received the same calls, in the same order."""
        return isinstance(other, Exclusions) and self.digest == other.digest

    def __hash__(self) -> int:
        """Hash the calls received."""
        return hash(self.digest)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining:
    """The places [0, total) without some of them, in order. Maps ranks among the rest to places in O(log n).

    Args:
        gone: int64[n] excluded places: sorted, without duplicates, each in [0, total).

    >>> Remaining(6, np.array([0, 3])).select(np.arange(4)).tolist()
    [1, 2, 4, 5]
    """

    total: int
    gone: Ints
    num_rows: int = field(init=False)
    """Number of places left."""
    _shifts: Ints = field(init=False, repr=False)
    """Number of remaining places before each excluded place."""

    def __post_init__(self) -> None:
        """Compute what every look-up needs."""
        object.__setattr__(self, "num_rows", self.total - len(self.gone))
        object.__setattr__(self, "_shifts", self.gone - np.arange(len(self.gone), dtype=np.int64))

    def select(self, ranks: Ints, rounds: Ints | int = 0) -> Ints:  # noqa: ARG002 every round has the same places
        """Return the place of each rank (int64, each in [0, num_rows)) among the remaining places."""
        if not len(self.gone):
            return ranks
        return ranks + np.searchsorted(self._shifts, ranks, side="right")

    def rank(self, places: Ints) -> Ints:
        """Return the rank of each place among the remaining places; no given place is excluded."""
        if not len(self.gone):
            return places
        return places - np.searchsorted(self.gone, places)


@dataclass(frozen=True, slots=True)
class ExclusionVersions:
    """What is excluded from the running epoch, and from later ones.

    Args:
        running: of the epoch in which the newest iterator began.
        newest: what was requested since; it applies from the next epoch.
    """

    running: Exclusions = field(default_factory=Exclusions)
    newest: Exclusions = field(default_factory=Exclusions)

    def to_state(self) -> list[dict[str, str]]:
        """Write as text: one entry if both are equal, else two."""
        if self.running == self.newest:
            return [self.running.to_state()]
        return [self.running.to_state(), self.newest.to_state()]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, str]], num_rows: int) -> ExclusionVersions:
        """Read what `to_state` wrote, in a checked state; an empty list if nothing is excluded.

        Raises:
            ResumeError: the ids are not of the table.
        """
        versions = [Exclusions.from_state(entry, num_rows) for entry in state] or [Exclusions()]
        return cls(versions[0], versions[-1])


def checked_ids(row_ids: Any, num_rows: int) -> Ints:
    """Return the row ids that the caller names, sorted and without duplicates.

    Args:
        row_ids: an array, a tensor or a list of integers in [0, num_rows), or a mask with one bool for each row.

    Raises:
        ConfigError: an id is not a row's, or a mask has the wrong length.
        ConfigTypeError: the argument is something else.

    >>> checked_ids([4, 1, 4], 6).tolist(), checked_ids(np.array([False, True, True]), 3).tolist()
    ([1, 4], [1, 2])
    """
    if hasattr(row_ids, "cpu"):
        row_ids = row_ids.cpu()
    ids = np.asarray(row_ids)
    if ids.dtype == np.bool_:
        if ids.shape != (num_rows,):
            raise ConfigError(
                f"a mask of rows must have the shape ({num_rows},), a bool for each of the table's physical rows, got "
                f"{ids.shape}; of a mask over as_map() pass view.row_ids(numpy.flatnonzero(mask))"
            )
        return np.flatnonzero(ids).astype(np.int64)
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.dtype.kind not in "iu":
        raise ConfigTypeError(f"row ids must be integers, got {ids.dtype}; take them from the column row_id")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= num_rows:
        raise ConfigError(
            f"row ids must be in [0, {num_rows}), the table's physical rows, got {low if low < 0 else high}; take "
            "them from the column row_id (row_id=True)"
        )
    return distinct(ids.astype(np.int64).reshape(-1))
