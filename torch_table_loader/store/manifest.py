"""The manifest of a store, which is written last: it says that the store is complete, and what it consists of."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.cancellation import Threads
from torch_table_loader.errors import StorageError, TableError
from torch_table_loader.local_files import open_regular, read_regular, stat_regular, write_whole
from torch_table_loader.store.record_layout import RecordLayout
from torch_table_loader.store.spec import (
    CODES,
    FLAT_FORMAT,
    FORMAT,
    IDS,
    LENGTHS,
    MANIFEST,
    NULLS,
    RECORDS,
    WORDS,
    CodesPart,
    Part,
    StoreSpec,
    decode_schema,
    encode_schema,
    heap_file,
    values_file,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ_BYTES = 1 << 22
REMEDY = "remove it with `torch-table-loader store prune --damaged`, and it is built again"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished store consists of.

    Args:
        name: the store's name.
        schema: its columns.
        parts: its chunks, in row order.
        files: length and modification time (ns) of each file when the store was finished.
        table: fingerprint of the table.
        filtered: whether a row filter was applied.
        made: when it was finished, in seconds since the epoch.
        flat: number of leading columns whose lists are kept flat.
        lengths: bytes of the length of such a list, and the CRC-32 of the file of lengths; None without flat lists.
        codes: the columns that are read as codes; None if there are none.
    """

    name: str
    schema: pa.Schema
    parts: tuple[Part, ...]
    files: Mapping[str, tuple[int, int]]
    table: str
    filtered: bool
    made: float
    flat: int = 0
    lengths: tuple[int, int] | None = None
    codes: CodesPart | None = None

    @property
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
        return sum(length for length, _ in self.files.values())

    @property
    def codes_width(self) -> int:
        """Bytes of a row's codes."""
        return 0 if self.codes is None else 4 * len(self.codes.columns)

    @property
    def heap_names(self) -> list[str]:
        """The columns of the heaps that are read: those without codes."""
        layout, coded = self.layout, () if self.codes is None else self.codes.columns
        return [name for name, column in zip(layout.heap_schema.names, layout.heap, strict=True) if column not in coded]

    @property
    def null_columns(self) -> frozenset[int]:
        """The columns that contain a null."""
        return frozenset(column for part in self.parts for column in part.null_columns)


def write_manifest(
    place: Path,
    spec: StoreSpec,
    parts: Sequence[Part],
    lengths: tuple[int, int] | None = None,
    codes: CodesPart | None = None,
) -> None:
    """Write the manifest of a complete store.

    Args:
        place: its folder.
        spec: its specification.
        parts: its chunks.
        lengths: see `Manifest`.
        codes: see `Manifest`.
    """
    files = {}
    for name in [*file_names(spec, parts), *([] if codes is None else [CODES, WORDS])]:
        now = stat_regular(place / name)
        files[name] = (now.st_size, now.st_mtime_ns)
    content = {
        "format": spec.format,
        "name": spec.name,
        "table": spec.table,
        "filtered": spec.filters is not None,
        "schema": encode_schema(spec.schema),
        "files": files,
        "parts": [part.to_json() for part in parts],
        "made": time.time(),
        **({} if lengths is None else {"flat": spec.flat, "lengths": lengths}),
        **({} if codes is None else {"codes": codes.to_json()}),
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
    """Parse the content that `write_manifest` wrote.

    Args:
        text: the file's content.
        name: the store's name, for messages.

    Raises:
        TableError: the manifest is damaged, or of another format.
    """
    try:
        whole = json.loads(text)
        content = whole["store"]
        if whole["crc"] != _crc(content):
            raise TableError(f"the manifest of the row store {name!r} is damaged; {REMEDY}")
        if content["format"] != (FLAT_FORMAT if "flat" in content else FORMAT):
            raise TableError(
                f"the row store {name!r} is of format {content['format']!r}, expected {FORMAT}, or {FLAT_FORMAT} with "
                f"lists that are kept flat; read it with the version that built it, or {REMEDY}"
            )
        width, crc = content.get("lengths", (0, 0))
        return Manifest(
            content["name"],
            decode_schema(content["schema"]),
            tuple(Part.from_json(part) for part in content["parts"]),
            {name: (length, changed) for name, (length, changed) in content["files"].items()},
            content["table"],
            content["filtered"],
            content["made"],
            content.get("flat", 0),
            (width, crc) if "flat" in content else None,
            CodesPart.from_json(content["codes"]) if "codes" in content else None,
        )
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise TableError(f"the manifest of the row store {name!r} is damaged ({error!r}); {REMEDY}") from error


def check_fits(manifest: Manifest, spec: StoreSpec, name: str) -> None:
    """Check that a store is the one wanted.

    Args:
        manifest: the store's.
        spec: what it must contain.
        name: its folder's name, for the message.

    Raises:
        TableError: it contains something else.
    """
    if manifest.name != spec.name or tuple(part.rows for part in manifest.parts) != spec.chunk_rows:
        raise TableError(
            f"the row store {name!r} holds {manifest.num_rows} rows of {manifest.name!r}, expected "
            f"{spec.num_rows} of {spec.name!r}; {REMEDY}"
        )


def file_names(spec: StoreSpec, parts: Sequence[Part]) -> list[str]:
    """Return the names of the files of a store."""
    names = [RECORDS]
    if any(part.nulls is not None for part in parts):
        names.append(NULLS)
    if spec.keeps_ids:
        names.append(IDS)
    if spec.layout.heap:
        names += [heap_file(chunk) for chunk in range(len(parts))]
    if spec.flat:
        names += [LENGTHS, *(values_file(chunk) for chunk in range(len(parts)))]
    return names


def check_store(place: Path, manifest: Manifest, *, contents: bool, threads: int = 1) -> bool:
    """Compare a store's files with its manifest.

    Args:
        place: its folder.
        manifest: its manifest.
        contents: whether to read everything and compare checksums, rather than only if a file was written since.
        threads: number of threads that read.

    Returns:
        Whether everything was read.

    Raises:
        TableError: the store is damaged; the message names the file and the chunk.
    """
    changed = contents
    for name, (length, written) in manifest.files.items():
        try:
            now = stat_regular(place / name)
        except StorageError:
            raise
        except OSError as error:
            raise TableError(f"the row store {place.name!r} lacks {name}; {REMEDY}") from error
        if now.st_size != length:
            raise TableError(
                f"the row store {place.name!r} is damaged: {name} must have {length} bytes, got {now.st_size}; {REMEDY}"
            )
        changed = changed or now.st_mtime_ns != written
    if changed:
        with Threads(threads, "table-loader-verify", joined=True) as pool:
            list(pool.map(lambda work: _check_part(place, *work), _parts(manifest)))
    return changed


def _parts(manifest: Manifest) -> list[tuple[str, str, int, int, int]]:
    """List everything with a checksum: what it is, the file, its offset, its bytes, and the checksum."""
    layout, work, row = manifest.layout, [], 0
    if manifest.lengths is not None:
        work.append((LENGTHS, LENGTHS, 0, manifest.files[LENGTHS][0], manifest.lengths[1]))
    if manifest.codes is not None:
        work += [
            (name, name, 0, manifest.files[name][0], crc)
            for name, crc in ((CODES, manifest.codes.codes), (WORDS, manifest.codes.words))
        ]
    for chunk, part in enumerate(manifest.parts):
        for name, width, crc in (
            (RECORDS, layout.width, part.records),
            (NULLS, layout.null_width, part.nulls),
            (IDS, 8, part.ids),
        ):
            if crc is not None:
                work.append((f"chunk {chunk} of {name}", name, row * width, part.rows * width, crc))
        for name, length, crc in (
            (heap_file(chunk), part.heap_bytes, part.heap),
            (values_file(chunk), part.num_values * layout.value_dtype.itemsize, part.values),
        ):
            if crc is not None:
                work.append((f"chunk {chunk} of {name}", name, 0, length, crc))
        row += part.rows
    return work


def _check_part(place: Path, what: str, name: str, start: int, length: int, wanted: int) -> None:
    crc = 0
    with os.fdopen(open_regular(place / name), "rb", buffering=0) as file:
        file.seek(start)
        while length:
            data = file.read(min(length, _READ_BYTES))
            if not data:
                break
            crc = zlib.crc32(data, crc)
            length -= len(data)
    if length or crc != wanted:
        raise TableError(f"the row store {place.name!r} is damaged: {what} is not what was written; {REMEDY}")


def _crc(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
