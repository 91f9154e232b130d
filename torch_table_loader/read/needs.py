"""Which bytes of a file its row groups take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_table_loader.format_contracts import RangedReader
from torch_table_loader.planning.requests import FIRST_BYTES
from torch_table_loader.records import FileNeeds

if TYPE_CHECKING:
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.records import DataFile, FileMeta


def needs_of(
    file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str], reader: FormatReader
) -> FileNeeds | None:
    """Return which bytes it takes to open a file and to decode some of its row groups.

    A file that is needed whole is read from its start, and comes in parts.

    Args:
        columns: names as the file spells them.

    Returns:
        The bytes, in the order of decoding; None where that is not known, or nothing is needed.
    """
    size = file.version.num_bytes
    if isinstance(reader, RangedReader):
        found = tuple(tuple(each) for each in reader.ranges(file, meta, groups, columns)) if groups else ()
    elif len(meta.group_rows) == 1 and groups:
        found = (((0, size),),)
    else:
        return None
    if found == (((0, size),),):
        parts = tuple(((start, min(start + FIRST_BYTES, size)),) for start in range(0, size, FIRST_BYTES))
        return FileNeeds(file, parts) if parts else None
    return FileNeeds(file, found, tuple(groups)) if any(found) else None
