"""ORC: cut at stripes, whose row counts come from the footer.

pyarrow does not give those counts. A file ends in: metadata, footer, postscript, and one byte with the postscript's
length. Postscript and footer are protocol buffers; metadata and footer are compressed in chunks
(https://orc.apache.org/specification/ORCv1/, "File Tail" and "Compression").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import orc
from typing_extensions import override

from torch_table_loader.arrow.sound import sound_text
from torch_table_loader.format_contracts import Traits
from torch_table_loader.messages import first_line
from torch_table_loader.read.failures import reading
from torch_table_loader.read.far_files import open_at_end
from torch_table_loader.read.orc_messages import decompressed, fields
from torch_table_loader.read.orc_stripes import Stripe, StripeCheck
from torch_table_loader.read.reader_base import GroupedFile, WholeGroups, refuse_duplicates
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

_TAIL_BYTES = 64 * 1024
_OPENING_BYTES = 16 * 1024
"""What ORC's library reads of a file's end to open it, where its footer is not longer."""


@dataclass(frozen=True, slots=True)
class OrcReader(WholeGroups):
    """Reads ORC files (https://orc.apache.org/specification/ORCv1/)."""

    name: str = "orc"
    suffixes = (".orc",)
    traits = Traits(cut="stripes", pruned="partitions", counted="the footer")
    columnar = True

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file, "an ORC file"), open_at_end(storage, file) as source:
            stripes, file_schema, tail_bytes = _read_tail(source)
            size = source.size()
        refuse_duplicates(file_schema, file)
        return FileMeta(
            schema=file_schema,
            group_rows=tuple(stripe.num_rows for stripe in stripes),
            group_bytes=tuple(stripe.num_bytes for stripe in stripes),
            group_ranges=tuple((stripe.start, stripe.start + stripe.num_bytes) for stripe in stripes),
            opening=((max(0, size - max(tail_bytes, _OPENING_BYTES)), size),),
        )

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> OrcFile:
        # The footer is read again, since pyarrow takes none from outside.
        source = storage.open(file.path)
        try:
            return OrcFile(source, meta)
        except BaseException:
            source.close()
            raise


class OrcFile(GroupedFile):
    """An open ORC file, whose row groups are stripes."""

    def __init__(self, source: pa.NativeFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._handle = orc.ORCFile(source)
        self._check, self._stripes = read_checks(source)

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        self._check.check(self._source, self._stripes[group], columns)
        # As in Parquet, a name may bring in more than it names, and the file's order is kept.
        return sound_text(self._handle.read_stripe(group, columns=columns).select(columns))


def _tail_of(source: pa.NativeFile, num_bytes: int) -> tuple[bytes, Postscript]:
    """Return the end of a file, from its metadata on at least, and its postscript."""
    size = source.size()
    tail = source.read_at(min(size, num_bytes), max(0, size - num_bytes))
    postscript = read_postscript(tail)
    if postscript.tail_bytes > size:
        raise ValueError(f"the footer needs {postscript.tail_bytes} bytes of {size}")
    if postscript.tail_bytes > len(tail):
        tail = source.read_at(postscript.tail_bytes, size - postscript.tail_bytes)
    return tail, postscript


def read_checks(source: pa.NativeFile) -> tuple[StripeCheck, list[Stripe]]:
    """Return the check of a file's stripes, and the stripes."""
    tail, postscript = _tail_of(source, _OPENING_BYTES)
    return StripeCheck.of(_footer_of(tail, postscript), *postscript.chunks), read_stripes(tail, postscript)


def _read_tail(source: pa.NativeFile) -> tuple[list[Stripe], pa.Schema, int]:
    """Return stripes, schema, and the bytes of the tail."""
    size = source.size()
    tail, postscript = _tail_of(source, _TAIL_BYTES)
    stripes = read_stripes(tail, postscript)
    check_stripes(stripes, size - postscript.tail_bytes)
    StripeCheck.of(_footer_of(tail, postscript), *postscript.chunks)
    try:
        parsed = orc.ORCFile(pa.BufferReader(tail))  # the tail alone has the schema: nothing is read twice
    except OSError as error:
        raise ValueError(first_line(error)) from error
    if parsed.nrows != sum(stripe.num_rows for stripe in stripes) or parsed.nstripes != len(stripes):
        raise ValueError(f"its stripes do not add up to the {parsed.nrows} rows it says")
    return stripes, parsed.schema, postscript.tail_bytes


class Postscript(NamedTuple):
    """Where the footer lies and how it is compressed."""

    length: int
    footer_length: int
    metadata_length: int
    compression: int
    chunk_bytes: int

    @property
    def tail_bytes(self) -> int:
        """Bytes from the start of the metadata to the end of the file."""
        return self.metadata_length + self.footer_length + self.length + 1

    @property
    def chunks(self) -> tuple[int, int]:
        """The compression, and the most bytes of a decompressed chunk."""
        return self.compression, self.chunk_bytes


def read_postscript(tail: bytes) -> Postscript:
    """Read the postscript from the end of a file, which must be 256 bytes or the whole file.

    Raises:
        ValueError: it is no ORC file's.
    """
    length = tail[-1] if tail else 0
    if not 0 < length < len(tail):
        raise ValueError(f"the postscript's length is {length} of {len(tail)} bytes")
    found = dict(fields(tail[-1 - length : -1]))
    if found.get(8000) != b"ORC":
        raise ValueError("the postscript does not say ORC")
    numbers = [found.get(key, 0) for key in (1, 5, 2, 3)]
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError("the postscript's lengths are not numbers")
    footer_length, metadata_length, compression, chunk_bytes = (int(number) for number in numbers)
    return Postscript(length, footer_length, metadata_length, compression, chunk_bytes)


def read_stripes(tail: bytes, postscript: Postscript) -> list[Stripe]:
    """Read the list of stripes from the end of a file, which must have the whole footer.

    Raises:
        ValueError: the footer does not parse.
    """
    stripes = []
    for key, value in fields(_footer_of(tail, postscript)):
        if key == 3 and isinstance(value, bytes):
            numbers = {part: number for part, number in fields(value) if isinstance(number, int)}
            stripes.append(Stripe(*(numbers.get(part, 0) for part in (5, 1, 2, 3, 4))))
    return stripes


def _footer_of(tail: bytes, postscript: Postscript) -> bytes:
    stop = len(tail) - 1 - postscript.length
    if postscript.footer_length > stop:
        raise ValueError(f"the footer's length is {postscript.footer_length} of {stop} bytes")
    return decompressed(tail[stop - postscript.footer_length : stop], postscript.compression)


def check_stripes(stripes: list[Stripe], stop: int) -> None:
    """Check that stripes lie in the file, and each at its own place.

    Raises:
        ValueError: one lies outside, or where another one does: its rows would come twice.
    """
    end = 0
    for stripe in sorted(stripes, key=lambda each: each.start):
        if not end <= stripe.start <= stripe.start + stripe.num_bytes <= stop:
            raise ValueError(
                f"a stripe of {stripe.num_bytes} bytes begins at byte {stripe.start}, and must lie between byte {end} "
                f"and byte {stop}"
            )
        end = stripe.start + stripe.num_bytes
