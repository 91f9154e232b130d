"""Files of lists, such as documents of tokens: their row groups, and bytes of them that are there or are an error."""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from torch_table_loader.errors import TableError
from torch_table_loader.planning.lists import ListLengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.records import DataFile

TOKENS = "tokens"
"""The column of the tokens, whatever the format."""

GROUP_BYTES = 8 * 1024 * 1024
"""The least bytes of tokens of a row group, which ends with the document that reaches them."""


def read_exactly(source: pa.NativeFile, start: int, stop: int, name: str) -> pa.Buffer:
    """Read bytes of a file into new memory."""
    source.seek(start)
    found = source.read_buffer(stop - start)
    if found.size != stop - start:
        raise TableError(
            f"{name} must have {stop} bytes or more, as its index says, and ends at byte {start + found.size}; it was "
            "cut: restore it, or write it again with its index"
        )
    if found.is_mutable:
        return found
    return owned(found)


def owned(data: Any) -> pa.Buffer:
    """Copy bytes into new memory."""
    view = memoryview(data).cast("B")
    target = pa.allocate_buffer(len(view))
    np.frombuffer(target, np.uint8)[:] = view
    return target


def group_rows(lengths: NDArray[Any], width: int, group_bytes: int) -> tuple[list[int], list[int]]:
    """Return the number of lists of each row group, of which none is empty, and where each group ends in bytes.

    A row group ends with the list in which a multiple of `group_bytes` lies; empty lists at the end stay in the
    last one. A value has `width` bytes.

    >>> group_rows(np.array([3, 3, 3, 3, 28, 1]), 1, 10)
    ([4, 1, 1], [12, 40, 41])
    """
    lists = ListLengths.of(lengths)
    total = lists.total * width
    cuts = np.arange(group_bytes, total, group_bytes)
    last = np.unique(lists.find(-(-cuts // width) - 1))
    edges = [0, *(last + 1).tolist()]
    stops = [0, *((lists.starts(last) + lists.take(last)) * width).tolist()]
    if edges[-1] < len(lengths):
        edges.append(len(lengths))
        stops.append(total)
    return list(map(sub, edges[1:], edges[:-1])), stops[1:]


def check_size(file: DataFile, source: pa.NativeFile) -> None:
    """Raise a TableError if a file has another size than was listed."""
    if source.size() != file.version.num_bytes:
        raise TableError(
            f"{file.name} had {file.version.num_bytes} bytes when it was listed, and has {source.size()}: it changed "
            "while it was in use, or was cut; build the loader again on the files as they are now"
        )
