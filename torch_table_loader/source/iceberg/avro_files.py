"""Read the Avro files of a table's metadata, in bounded memory whatever they contain."""

from __future__ import annotations

import bz2
import importlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import fastavro

from torch_table_loader.errors import MissingExtraError, MissingFileError, TableLoaderError
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.source.iceberg.checked import torn
from torch_table_loader.source.table_storage import read_whole

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

REMEDY = "restore it, or read a snapshot that does not need it"

_SYNC_BYTES = 16
_MOST_BLOCK_BYTES = 64 << 20
"""The most bytes of a block. Writers begin a new one after some 64 KiB."""

_MOST_RATIO = {"deflate": 1032, "null": 1}
"""The most bytes that a codec can expand a byte to; other codecs have no such bound."""


def read_records(
    storage: Storage, path: str, what: str, num_bytes: int | None = None
) -> tuple[Iterator[dict[str, Any]], Mapping[str, str], int]:
    """Read an Avro file; its records are decoded lazily.

    `what` is the role of the file in the table, for messages. The size is the metadata's, if it gives it.

    Returns:
        The records, the entries of the header, and the size of the file in bytes.

    Raises:
        TableError: the file is missing, or is not an Avro file of records.
        StorageError: the store failed.
    """
    shown = shown_url(path)
    try:
        data = read_whole(storage, path, num_bytes)
    except MissingFileError as error:
        raise MissingFileError(f"the {what} {shown} is gone; {REMEDY}", shown) from error

    def broken(error: Exception) -> TableLoaderError:
        if "you need to install" in str(error):
            return MissingExtraError(f"the {what} {shown}: {error}")
        return torn(f"the {what} {shown} must be an Avro file of records, but does not parse", error, REMEDY)

    try:
        reader = _reader_of(data)
    except Exception as error:  # fastavro raises many kinds of errors for bytes that are not Avro
        if num_bytes is None or storage.version(path).num_bytes == len(data):
            raise broken(error) from error
        return read_records(storage, path, what)  # a rewrite of the file may have left its old size in the list

    def records() -> Iterator[dict[str, Any]]:
        try:
            yield from cast("Iterator[dict[str, Any]]", reader)
        except Exception as error:
            raise broken(error) from error

    return records(), cast("Mapping[str, str]", reader.metadata), len(data)


def _reader_of(data: bytes) -> Any:
    """Open an Avro file, and check that its schema and blocks can be trusted."""
    source = io.BytesIO(data)
    reader = fastavro.reader(source)
    header = cast("Mapping[str, str]", reader.metadata)
    _check_schema(json.loads(header["avro.schema"]))
    _check_blocks(data, source.tell(), header.get("avro.codec", "null"))
    return reader


def _check_blocks(data: bytes, start: int, codec: str) -> None:
    """Refuse blocks that extend beyond the file, or decompress to more than memory allows."""
    sync = data[start - _SYNC_BYTES : start]
    at = start
    while at < len(data):
        count, at = _number(data, at)
        size, at = _number(data, at)
        end = at + size
        if count < 0 or size < 0 or data[end : end + _SYNC_BYTES] != sync:
            raise ValueError(f"the block at byte {at} says that it has {count} records in {size} bytes, but does not")
        ratio = _MOST_RATIO.get(codec)
        if (ratio is None or size * ratio > _MOST_BLOCK_BYTES) and _holds(data[at:end], codec) > _MOST_BLOCK_BYTES:
            raise ValueError(f"the block at byte {at} holds more than {_MOST_BLOCK_BYTES >> 20} MiB")
        at = end + _SYNC_BYTES


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a number in Avro's encoding (zigzag of a variable length); return it and where it ends."""
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte; return it and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError(f"the number at byte {at} has no end")


def _holds(block: bytes, codec: str) -> int:
    """Return the decompressed bytes of a block; counting stops soon after the allowed number."""
    if codec == "snappy":
        return _unsigned(block, 0)[0]
    decompressors: dict[str, Callable[[], Any]] = {
        "deflate": lambda: zlib.decompressobj(-15),
        "bzip2": bz2.BZ2Decompressor,
        "xz": lzma.LZMADecompressor,
        "zstandard": _zstd,
    }
    make = decompressors.get(codec)
    return len(block) if make is None else len(make().decompress(block, _MOST_BLOCK_BYTES + 1))


def _zstd() -> Any:
    """Return the module that fastavro also decompresses with; if it is missing, fastavro names the package."""
    for module in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(module).ZstdDecompressor()
        except ImportError:
            continue
    raise ValueError("zstandard: you need to install backports.zstd")


def _check_schema(schema: Any) -> None:
    """Refuse lists of values that take no bytes: a few bytes may claim any number of them."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("its records must be of a record type")
    waiting: list[Any] = [schema]
    items: list[Any] = []
    empty: set[Any] = {"null"}
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, list):
            waiting += kind
        elif isinstance(kind, dict):
            if kind.get("type") == "array":
                items.append(kind["items"])
            if not _takes_bytes(kind, empty):
                empty.add(kind.get("name"))
            inner = [field["type"] for field in kind.get("fields") or ()]
            waiting += [kind.get("items"), kind.get("values"), kind.get("type"), *inner]
    if not all(_takes_bytes(each, empty) for each in items):
        raise ValueError("it has lists of values that take no bytes")


def _takes_bytes(kind: Any, empty: set[Any]) -> bool:
    if not isinstance(kind, dict):
        return isinstance(kind, list) or kind not in empty
    if kind.get("type") == "record":
        return any(_takes_bytes(field["type"], empty) for field in kind["fields"])
    return bool(kind.get("size")) if kind.get("type") == "fixed" else _takes_bytes(kind.get("type"), empty)
