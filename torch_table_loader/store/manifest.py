"""The manifest of a store, which is written last: it says that the store is complete, and what it consists of."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from torch_table_loader.cached import cached_property
from torch_table_loader.cancellation import Threads
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.local_files import open_regular, read_regular, stat_regular, write_whole
from torch_table_loader.nesting import load_json
from torch_table_loader.planning.lists import SUMMED
from torch_table_loader.store.record_layout import (
    CODES,
    FORMAT,
    IDS,
    LENGTHS,
    MANIFEST,
    NULLS,
    RECORDS,
    REMEDY,
    WORDS,
    Origin,
    Part,
    RecordLayout,
    StoreSpec,
    decode_schema,
    encode_schema,
    heap_file,
    values_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ_BYTES = 1 << 19
"""Bytes that are read and hashed at a time: they stay in a core's second cache."""

_ALWAYS = (LENGTHS, WORDS)
"""Small files, which are compared whenever they are opened."""

_SELDOM = (RECORDS,)
"""What is compared only if a file was written to, or on request."""


class Summed(NamedTuple):
    """A part of a store, in bytes, with the XXH3 hash of what was written."""

    what: str
    name: str
    start: int
    length: int
    checksum: int


@dataclass(frozen=True)
class Manifest:
    """What a finished store consists of.

    Args:
        files: length, and times of modification and of change (ns), of each file when the store was finished.
        made: when it was finished, in seconds since the epoch.
        flat: number of leading columns whose lists are kept flat.
        whole: the XXH3 hash of each file that holds all chunks and was written at the end.
        codes: the columns that are read as codes, and whether each contains a null.
    """

    name: str
    schema: pa.Schema
    parts: tuple[Part, ...]
    files: Mapping[str, tuple[int, int, int]]
    made: float
    flat: int
    whole: Mapping[str, int]
    codes: Mapping[int, bool]

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of the records."""
        return RecordLayout(self.schema, self.flat)

    @property
    def value_starts(self) -> NDArray[np.int64]:
        """int64[chunks + 1], the elements of lists before each chunk, and the total."""
        return np.cumsum([0, *(part.num_values for part in self.parts)], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(length for length, *_ in self.files.values())

    @property
    def row_widths(self) -> dict[str, int]:
        """The bytes of a row in each file that has a record for each row; 0 if there is no such file."""
        layout = self.layout
        widths = {RECORDS: layout.width, NULLS: layout.null_width, IDS: 8, CODES: 4 * len(self.codes)}
        return {name: width if name in self.files else 0 for name, width in widths.items()}

    @property
    def length_width(self) -> int:
        """The bytes of the length of a flat list; 0 without such lists."""
        blocks = -(-self.num_rows // SUMMED)
        if self.flat:
            return (self.files[LENGTHS][0] - 8 * (blocks + 1)) // (SUMMED * blocks or 1)
        return 0

    @cached_property
    def heap_names(self) -> list[str]:
        """The columns of the heaps that are read: those without codes."""
        names, columns = self.layout.heap_schema.names, self.layout.heap
        return [name for name, column in zip(names, columns, strict=True) if column not in self.codes]

    @property
    def null_columns(self) -> frozenset[int]:
        """The columns that contain a null."""
        return frozenset(column for part in self.parts for column in part.null_columns)

    @cached_property
    def sums(self) -> dict[str, list[Summed]]:
        """By file, the parts of it that have a checksum."""
        found = {name: [Summed(name, name, 0, self.files[name][0], known)] for name, known in self.whole.items()}
        widths, row = self.row_widths, 0
        for chunk, part in enumerate(self.parts):
            for name, checksum in part.sums.items():
                width = widths.get(name)
                start, length = (0, self.files[name][0]) if width is None else (row * width, part.rows * width)
                own = found.setdefault(name, [])
                own.append(Summed(f"chunk {chunk} of {name}", name, start, length, checksum))
            row += part.rows
        return found

    def opening_sums(self, share: tuple[int, int] | None) -> list[Summed]:
        """Return what is compared when a store is opened whose files nobody wrote to since it was finished.

        Comparing records would take more than 3 % of an epoch; comparing all else takes less. Heaps that are not read,
        since there are codes of all their strings, are left out.

        Args:
            share: the number of this process among those that share the work, and how many there are; None leaves what
                is not small to others.
        """
        heaps = () if self.heap_names else map(heap_file, range(len(self.parts)))
        left_out = {*_ALWAYS, *_SELDOM, *heaps}
        others = [part for name, parts in self.sums.items() if name not in left_out for part in parts]
        small = [part for name in _ALWAYS for part in self.sums.get(name, ())]
        if share is None:
            return small
        return [*small, *others[share[0] :: share[1]]]


def write_manifest(
    place: Path, spec: StoreSpec, parts: Sequence[Part], whole: Mapping[str, int], codes: Mapping[int, bool]
) -> None:
    """Write the manifest of a complete store."""
    files = {}
    names = [RECORDS, *([IDS] if spec.keeps_ids else []), *whole, *(name for part in parts for name in part.sums)]
    for name in dict.fromkeys(names):
        now = stat_regular(place / name)
        files[name] = (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    content = {
        "format": FORMAT,
        "name": spec.name,
        "schema": encode_schema(spec.schema),
        "parts": parts,
        "files": files,
        "made": time.time(),
        "flat": spec.flat,
        "whole": whole,
        "codes": list(codes.items()),
    }
    write_whole(place / MANIFEST, json.dumps({"crc": _crc(content), "store": content}).encode())


def read_manifest(place: Path) -> Manifest | None:
    """Read a store's manifest; None if there is none.

    Raises:
        TableError: the manifest is damaged, or of another format.
        StorageError: the store's folder or its manifest is a link, or something else that this library did not make.
    """
    try:
        text = read_regular(place / MANIFEST)
    except FileNotFoundError:
        return None
    except StorageError:
        raise
    except OSError as error:
        raise TableError(f"the manifest of the row store {place.name!r} cannot be read ({error}); {REMEDY}") from error
    return parse_manifest(text, place.name)


def parse_manifest(text: bytes, name: str) -> Manifest:
    """Parse the content that `write_manifest` wrote."""
    try:
        whole = load_json(text, f"the manifest of the row store {name!r}")
        content = whole["store"]
        if whole["crc"] != _crc(content):
            raise TableError(f"the manifest of the row store {name!r} is damaged; {REMEDY}")
        if content["format"] != FORMAT:
            raise TableError(
                f"the row store {name!r} is of format {content['format']!r}, expected {FORMAT}; read it with the "
                f"version that built it, or {REMEDY}"
            )
        manifest = Manifest(
            content["name"],
            decode_schema(content["schema"]),
            tuple(map(Part.from_json, content["parts"])),
            {name: (length, written, changed) for name, (length, written, changed) in content["files"].items()},
            content["made"],
            content["flat"],
            dict(content["whole"]),
            dict(content["codes"]),
        )
        _check_sizes(manifest)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise TableError(f"the manifest of the row store {name!r} is damaged ({error!r}); {REMEDY}") from error
    return manifest


def check_fits(manifest: Manifest, spec: StoreSpec, name: str) -> None:
    """Check that a store, in a folder of that name, is the one wanted."""
    if manifest.name != spec.name or tuple(part.rows for part in manifest.parts) != spec.chunk_rows:
        raise TableError(
            f"the row store {name!r} holds {manifest.num_rows} rows of {manifest.name!r}, expected "
            f"{spec.num_rows} of {spec.name!r}; {REMEDY}"
        )


def check_store(place: Path, manifest: Manifest, *, contents: bool, threads: int = 1) -> bool:
    """Compare a store's files with its manifest; with `contents`, read everything and compare checksums.

    Otherwise that is done only if a file was written to since.

    Returns:
        Whether a file was written to.
    """
    origin, touched = Origin(place.name), False
    for name, (length, *times) in manifest.files.items():
        try:
            now = stat_regular(place / name)
        except StorageError:
            raise
        except OSError as error:
            raise TableError(f"the row store {place.name!r} lacks {name}; {REMEDY}") from error
        if now.st_size != length:
            raise origin.damaged(name, f"must have {length} bytes, got {now.st_size}")
        touched = touched or times != [now.st_mtime_ns, now.st_ctime_ns]
    if touched or contents:
        with Threads(threads, "table-loader-verify", joined=True) as pool:
            list(pool.map(lambda part: _compare_file(place, part, origin), chain.from_iterable(manifest.sums.values())))
    return touched


def _compare_file(place: Path, part: Summed, origin: Origin) -> None:
    """Read a part of a file, and compare its checksum. A disk that fails is an error here, and not a signal."""
    found, left = xxhash.xxh3_64(), part.length
    buffer = memoryview(bytearray(min(_READ_BYTES, part.length)))
    try:
        with os.fdopen(open_regular(place / part.name), "rb", buffering=0) as file:
            file.seek(part.start)
            while left and (read := file.readinto(buffer[:left])):
                found.update(buffer[:read])
                left -= read
    except StorageError:
        raise
    except OSError as error:
        raise origin.damaged(part.what, f"cannot be read ({error})") from error
    if left or found.intdigest() != part.checksum:
        raise origin.damaged(part.what)


def _check_sizes(manifest: Manifest) -> None:
    """Check that the files of a manifest are as long as its chunks need, so that reading them stays within them.

    Raises:
        ValueError: a file has another length, or is not one of a store.
    """
    rows, layout, parts, files = manifest.num_rows, manifest.layout, manifest.parts, manifest.files
    blocks, width = -(-rows // SUMMED), manifest.length_width
    itemsize = layout.value_dtype.itemsize
    wanted = {name: rows * width for name, width in manifest.row_widths.items()}
    wanted[LENGTHS] = 8 * (blocks + 1) + width * SUMMED * blocks
    whole = {LENGTHS} if manifest.flat else set()
    whole |= {CODES, WORDS} if manifest.codes else set()
    fits = manifest.whole.keys() == whole and (width in (1, 2, 4, 8) or not (manifest.flat and rows))
    for chunk, part in enumerate(parts):
        own = {RECORDS}
        if layout.heap:
            own.add(name := heap_file(chunk))
            wanted[name] = part.heap_bytes
        if manifest.flat:
            own.add(name := values_file(chunk))
            wanted[name] = part.num_values * itemsize
        fits = fits and part.rows >= 0 and own <= part.sums.keys() <= own | {NULLS, IDS}
    for name, (length, *_) in files.items():
        if length != wanted.get(name, length if name == WORDS else None):
            raise ValueError(f"{name} has {length} bytes")
    if not fits or manifest.sums.keys() - files.keys():
        raise ValueError("its chunks do not fit its files")


def _crc(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
