"""ORC: cut at stripes, whose row counts come from the footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import orc

from torch_table_loader.read.failures import first_line, reading
from torch_table_loader.read.orc_footer import Stripe, check_stripes, read_postscript, read_stripes
from torch_table_loader.read.reader_base import WithoutStatistics, bounded, refuse_duplicates, rows_without_columns
from torch_table_loader.read.sound import sound_text
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OrcReader(WithoutStatistics):
    """Reads ORC files (https://orc.apache.org/specification/ORCv1/)."""

    name: str = "orc"
    columnar = True

    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:  # noqa: ARG002
        """Read the footer: see `FormatReader.inspect`. ORC has types of its own, so `schema` is not used."""
        with reading(storage, file, "an ORC file"), storage.open(file.path) as source:
            stripes, file_schema = _read_tail(source)
        refuse_duplicates(file_schema, file)
        return FileMeta(
            schema=file_schema,
            group_rows=tuple(stripe.num_rows for stripe in stripes),
            group_bytes=tuple(stripe.num_bytes for stripe in stripes),
        )

    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OrcFile:
        """Open; pyarrow takes no footer from outside, so this reads it again."""
        source = storage.open(file.path)
        try:
            return OrcFile(orc.ORCFile(source), source, meta)
        except BaseException:
            source.close()
            raise


class OrcFile:
    """An open ORC file; a stripe is decoded at a time."""

    def __init__(self, handle: orc.ORCFile, source: pa.NativeFile, meta: FileMeta) -> None:
        """Own an open file."""
        self._handle = handle
        self._source = source
        self._meta = meta

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of stripes: see `OpenFile.batches`."""
        wanted = list(columns)
        for stripe in groups:
            if not wanted:
                yield from bounded(rows_without_columns(self._meta.group_rows[stripe]), max_rows)
                continue
            # As in Parquet, a name may bring in more than it names, and the file's order is kept.
            batch = sound_text(self._handle.read_stripe(stripe, columns=wanted).select(wanted))
            yield from bounded(batch, max_rows)

    def close(self) -> None:
        """Release the file."""
        self._source.close()


def _read_tail(source: pa.NativeFile) -> tuple[list[Stripe], pa.Schema]:
    size = source.size()
    tail = source.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    postscript = read_postscript(tail)
    if postscript.tail_bytes > size:
        raise ValueError(f"the footer needs {postscript.tail_bytes} bytes of {size}")
    if postscript.tail_bytes > len(tail):
        tail = source.read_at(postscript.tail_bytes, size - postscript.tail_bytes)
    stripes = read_stripes(tail, postscript)
    check_stripes(stripes, size - postscript.tail_bytes)
    try:
        parsed = orc.ORCFile(pa.BufferReader(tail))  # the tail alone has the schema: nothing is read twice
    except OSError as error:
        raise ValueError(first_line(error)) from error
    if parsed.nrows != sum(stripe.num_rows for stripe in stripes) or parsed.nstripes != len(stripes):
        raise ValueError(f"its stripes do not add up to the {parsed.nrows} rows it says")
    return stripes, parsed.schema
