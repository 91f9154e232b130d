"""How large the pages of a Parquet file are: a page is decompressed whole, and so are the values in it.

A page begins with a header, which says its type, and its size before and after compression; a value lies in one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch_table_loader.errors import TableError
from torch_table_loader.read.parquet_footer import FooterWalk, chunk_range
from torch_table_loader.units import Size

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    import pyarrow.parquet as pq

_UNCOMPRESSED, _COMPRESSED = 2, 3
"""Fields of a page's header."""

_HEADER_BYTES = 1 << 10
"""More than most headers have; those with statistics of long texts have any number."""


class PageHeader(NamedTuple):
    """What the header of a page says, and its own bytes."""

    decompressed: int
    stored: int
    own: int


class _PageWalk(FooterWalk):
    """A walk over the header of a page."""

    def header(self) -> PageHeader:
        self._place, found = 0, {_UNCOMPRESSED: 0, _COMPRESSED: 0}
        for field, kind in self._fields():
            if field in found:
                found[field] = self._int()
            else:
                self._skip(kind)
        return PageHeader(found[_UNCOMPRESSED], found[_COMPRESSED], self._place)


def refuse_large_pages(
    source: pa.NativeFile, parsed: pq.FileMetaData, group: int, leaves: Iterable[int], most: int
) -> None:
    """Refuse columns of a row group of which one page alone comes to more than `most` bytes; pages are not read.

    Raises:
        TableError: says which column has it, how large it is, and what to do.
    """
    row_group = parsed.row_group(group)
    for leaf in leaves:
        chunk = row_group.column(leaf)
        if chunk.total_uncompressed_size <= most or (largest := _largest_page(source, *chunk_range(chunk))) <= most:
            continue
        raise TableError(
            f"a page of column {chunk.path_in_schema!r} in row group {group} comes to {Size(largest)}, and a rank may "
            f"hold {Size(most)}; a page, and so a value in it, is read whole: pass more memory, such as "
            f'shuffle_buffer_size="{-(-4 * largest >> 30)}GiB", leave the column out of columns=, or write it in '
            "smaller values or pages"
        )


def _largest_page(source: pa.NativeFile, start: int, stop: int) -> int:
    """Return the bytes of the largest page, decompressed, of those that lie between two bytes of a file.

    Where no header is found, it is the largest so far: damage is reported when the page is decoded.
    """
    largest = 0
    while start < stop and (header := _header_at(source, start, stop)) is not None:
        largest, start = max(largest, header.decompressed), start + header.own + max(0, header.stored)
    return largest


def _header_at(source: pa.NativeFile, start: int, stop: int) -> PageHeader | None:
    num_bytes = _HEADER_BYTES
    while True:
        data = source.read_at(min(num_bytes, stop - start), start)
        try:
            return _PageWalk(data).header()
        except ValueError:
            return None
        except IndexError:  # it is longer
            if num_bytes >= stop - start:
                return None
            num_bytes *= 8
