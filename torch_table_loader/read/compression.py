"""How files of text are compressed as a whole, which the ends of their names say."""

from __future__ import annotations

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4", ".br": "brotli"}
"""pyarrow's codec by the end of a file's name; LZ4 is the frame format."""

_OTHERS = (".xz", ".lzma", ".zip", ".7z", ".z", ".snappy", ".sz", ".lzo")
"""Ends of the names of compressed files that are not read."""

_SUFFIXES = (*CODECS, *_OTHERS)


def split_codec(name: str) -> tuple[str, str]:
    """Split a file's name into the name without compression, and the suffix of the compression.

    >>> split_codec("day=1/x.csv.GZ"), split_codec("x.csv"), split_codec("x.json.xz")
    (('day=1/x.csv', '.gz'), ('x.csv', ''), ('x.json', '.xz'))
    """
    lower = name.lower()
    for suffix in filter(lower.endswith, _SUFFIXES):
        return name[: -len(suffix)], suffix
    return name, ""
