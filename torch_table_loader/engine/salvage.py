"""What ``on_error="skip"`` leaves out of a table while it is planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_table_loader.errors import MissingFileError, TableError
from torch_table_loader.format_contracts import SalvagingReader
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import changed_error, reading
from torch_table_loader.read.formats import reader_of
from torch_table_loader.records import LeftOut
from torch_table_loader.units import Size

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile, FileMeta

_SHOWN = 3


def salvage_file(
    storage: Storage, file: DataFile, schema: pa.Schema | None, inspect: Callable[[DataFile], FileMeta]
) -> tuple[FileMeta | None, Sequence[LeftOut]]:
    """Return the metadata of what can be read of a file, or None, and its damaged parts, which are left out.

    Raises:
        TableError: the file is gone, or no longer what was listed: that is no damage, and other ranks may see it.
        StorageError: the store failed.
    """
    try:
        return inspect(file), ()
    except MissingFileError:
        raise
    except TableError as error:
        now = storage.version(file.path)
        if not file.version.holds(now):
            raise changed_error(file, now) from error
        damage = error
    reader = reader_of(file)
    if isinstance(reader, SalvagingReader):
        try:
            with reading(storage, file):
                meta, left_out = reader.salvage(storage, file, schema)
        except TableError as error:
            damage = error
        else:
            if meta.num_rows:
                return meta, left_out
    return None, [LeftOut(file.name, "all", 0, file.version.num_bytes, first_line(damage))]


def described(left_out: Sequence[LeftOut]) -> str:
    """Return what is left out, for people."""
    shown = "; ".join(map(str, left_out[:_SHOWN]))
    more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    num_bytes = sum(part.stop - part.start for part in left_out)
    parts = "1 damaged part" if len(left_out) == 1 else f"{len(left_out):,} damaged parts"
    return f'on_error="skip" leaves out {parts} of {Size(num_bytes)}: {shown}{more}'
