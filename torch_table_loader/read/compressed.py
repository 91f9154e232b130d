"""Text that was compressed as a whole: which files are, and their text as a stream of bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.read.far_files import open_at_start

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""pyarrow's codec by the end of a file's name; LZ4 is the frame format."""

_OTHERS = (".xz", ".lzma", ".zip", ".7z", ".z", ".snappy", ".sz", ".lzo")
"""Ends of the names of compressed files that are not read."""

_CHUNK_BYTES = 1 << 20


def split_codec(name: str) -> tuple[str, str]:
    """Split a file's name into the name without compression, and the suffix of the compression.

    >>> split_codec("day=1/x.csv.GZ"), split_codec("x.csv"), split_codec("x.json.xz")
    (('day=1/x.csv', '.gz'), ('x.csv', ''), ('x.json', '.xz'))
    """
    for suffix in (*CODECS, *_OTHERS):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, ""


def open_text(storage: Storage, file: DataFile) -> pa.NativeFile:
    """Open the text of a file that is read from its start.

    Raises:
        TableError: the file is compressed in a way that is not read.
    """
    return text_of(open_at_start(storage, file), file)


def text_of(source: pa.NativeFile, file: DataFile) -> pa.NativeFile:
    """Return the text of a file that is open at its start; of a compressed one a stream, without seek or size.

    Closing the stream closes the file.

    Raises:
        TableError: the file is compressed in a way that is not read.
    """
    suffix = split_codec(file.name)[1]
    if not suffix:
        return source
    if suffix not in CODECS:
        source.close()
        raise TableError(
            f"{file.name} must be text, as it is or compressed ({', '.join(CODECS)}), got a name that ends with "
            f"{suffix!r}; compress it with gzip or zstd instead, or write it as Parquet"
        )
    return pa.CompressedInputStream(source, CODECS[suffix])


def text_bytes(storage: Storage, file: DataFile, most: int) -> int:
    """Return how many bytes of text a file has.

    Those of a compressed file are counted, in a pass of their own, which ends beyond `most`: a small file may hold any
    amount of text.
    """
    with open_text(storage, file) as source:
        if not isinstance(source, pa.CompressedInputStream):
            return int(source.size())
        num_bytes = 0
        while num_bytes <= most and (chunk := source.read(_CHUNK_BYTES)):
            num_bytes += len(chunk)
        return num_bytes
