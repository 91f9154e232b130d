"""Flat files of tokens with an index beside them: what their readers share.

The data file is tokens and nothing else. The index says where documents end. A row is a document, and each column is a
list with one value for each token; `tokens` has the stored type. A row group is a run of documents of some MiB, which
is read in one piece. `FileMeta.footer` keeps the lengths of documents, and the index is not read again.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from typing_extensions import override

from torch_table_loader.arrow.arrays import lists_of
from torch_table_loader.contracts import is_far
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import ListMeasuringReader, RangedReader, SidecarReader, Traits
from torch_table_loader.read.failures import changed_error, reading
from torch_table_loader.read.file_ends import open_at_start
from torch_table_loader.read.list_groups import TOKENS, check_size, group_rows, read_exactly
from torch_table_loader.read.reader_base import GroupedFile, WithoutNulls
from torch_table_loader.records import FileMeta

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

MOST_TOKENS = 2**31 - 1
"""The most values of a list in Arrow."""

AT_ONCE = 1 << 15
"""Documents of an index at a time: what is made of them stays in the processor's cache."""

_MOST_BYTES = 1 << 60
_ARRAY = struct.Struct("<cxxxxxxxQ")

Values = Callable[[int, int], pa.Buffer]
"""Returns the values of a column for a run of tokens, counted from the file's first, in new memory."""


class Index(NamedTuple):
    """What an index says: the type of tokens, the lengths of documents, and the types of further columns.

    The reader needs the arrays in `more` again to make those columns. `begin` is the byte of the first token.
    """

    kind: pa.DataType
    lengths: NDArray[Any]
    columns: Mapping[str, pa.DataType]
    more: tuple[NDArray[Any], ...] = ()
    begin: int = 0


class TokenReader(WithoutNulls, SidecarReader, ListMeasuringReader, RangedReader):
    """A reader of flat tokens; a subclass names the format and parses its index."""

    __slots__ = ()

    columnar = True
    traits = Traits(cut="documents", pruned="partitions", counted="the index")
    group_bytes: int

    @abstractmethod
    def read_index(self, storage: Storage, file: DataFile) -> Index:
        """Read the index of a file.

        Raises:
            ValueError: it cannot be one, or is of another file; says why, with the name of what is wrong.
        """

    @abstractmethod
    def column(
        self, name: str, storage: Storage, file: DataFile, more: Sequence[NDArray[Any]], opened: ExitStack
    ) -> Values:
        """Return how a column beside the tokens is read; `opened` closes the files that are opened for that."""

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        with reading(storage, file):
            if not is_far(storage):  # a remote one is there, as the listing says
                with storage.open(file.path) as source:
                    check_size(file, source)
            try:
                index = self.read_index(storage, file)
                return _meta(index, file.version.num_bytes, self.group_bytes)
            except ValueError as error:
                raise TableError(
                    f"{file.name} must be tokens of the format {self.name!r} with their index, but {error}; the files "
                    "are torn, of another format, or do not belong together: write them again, or leave them out"
                ) from error

    @override
    def list_lengths(self, meta: FileMeta, column: str) -> NDArray[Any] | None:
        return document_lengths(meta)

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> TokenFile:
        return TokenFile(storage, file, meta, self)

    @override
    def ranges(
        self, file: DataFile, meta: FileMeta, groups: Sequence[int], columns: Sequence[str]
    ) -> Sequence[Sequence[tuple[int, int]]]:
        places = meta.group_ranges
        if places is None or TOKENS not in columns:
            return [[] for _ in groups]
        return [[place] if (place := places[group])[0] < place[1] else [] for group in groups]


class TokenFile(GroupedFile):
    """An open file of tokens; the files beside it are opened when they are read."""

    def __init__(self, storage: Storage, file: DataFile, meta: FileMeta, reader: TokenReader) -> None:
        self._lengths, *self._more = unpack(meta.footer or b"")
        super().__init__(storage.open(file.path), meta)
        self._file = file
        self._storage = storage
        self._reader = reader
        self._rows = np.concatenate(([0], np.cumsum(meta.group_rows, dtype=np.int64)))
        self._width = width_of(meta)
        self._begin = begin_of(file, meta)
        self._columns: dict[str, Values] = {}
        self._opened = ExitStack()

    @override
    def close(self) -> None:
        super().close()
        self._opened.close()

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        lengths = self._lengths[self._rows[group] : self._rows[group + 1]]
        start, stop = (self._meta.group_ranges or ())[group]
        first, last = ((place - self._begin) // self._width for place in (start, stop))
        if len(lengths) != self._meta.group_rows[group] or int(lengths.sum(dtype=np.int64)) != last - first:
            raise TableError(f"{self._file.name}: what is known of its row group {group} contradicts itself")
        schema = pa.schema([self._meta.schema.field(name) for name in columns])
        arrays = []
        for field in schema:
            if field.name == TOKENS:
                values = read_exactly(self._source, start, stop, self._file.name)
            else:
                values = self._column(field.name)(first, last)
            flat = pa.Array.from_buffers(field.type.value_type, last - first, [None, values], null_count=0)
            arrays.append(lists_of(field.type, lengths, flat))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str) -> Values:
        if name not in self._columns:
            self._columns[name] = self._reader.column(name, self._storage, self._file, self._more, self._opened)
        return self._columns[name]


def document_lengths(meta: FileMeta) -> NDArray[Any]:
    """Return the number of tokens of each document of a file, from its metadata, as read-only unsigned integers."""
    return unpack(meta.footer or b"")[0]


def width_of(meta: FileMeta) -> int:
    """Return the bytes of a token."""
    return int(meta.schema.field(TOKENS).type.value_type.bit_width // 8)


def begin_of(file: DataFile, meta: FileMeta) -> int:
    """Return the byte of a file's first token; its end if it has none."""
    if meta.group_ranges:
        return meta.group_ranges[0][0]
    return file.version.num_bytes


def read_whole(storage: Storage, file: DataFile) -> pa.Buffer:
    """Read a sidecar whole."""
    with opened_whole(storage, file) as source:
        return read_exactly(source, 0, file.version.num_bytes, file.name)


@contextmanager
def opened_whole(storage: Storage, file: DataFile) -> Iterator[pa.NativeFile]:
    """Open a sidecar that is read once, and whole; that of a remote store is fetched first, whatever the order."""
    with open_at_start(storage, file) as source:
        check_size(file, source)
        if is_far(storage):
            yield pa.BufferReader(read_exactly(source, 0, source.size(), file.name))
        else:
            yield source


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers in a file, which is read some numbers at a time: none of them stays in memory."""

    source: pa.NativeFile
    name: str
    dtype: str
    count: int
    place: int = 0

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """Read some of the numbers; `stop` may be after the last."""
        width = np.dtype(self.dtype).itemsize
        first, last = self.place + start * width, self.place + min(stop, self.count) * width
        return np.frombuffer(read_exactly(self.source, first, last, self.name), self.dtype)


def open_sidecar(storage: Storage, file: DataFile) -> pa.NativeFile:
    """Open a sidecar, which must be what was listed."""
    source = storage.open(file.path)
    now = storage.version(file.path)
    if not (file.version.immutable or file.version.holds(now)):
        source.close()
        raise changed_error(file, now)
    return source


def sidecar_of(file: DataFile, suffix: str) -> DataFile | None:
    """Return the sidecar of a file with a suffix; None if there is none."""
    return next((each for each in file.sidecars if each.name.endswith(suffix)), None)


def index_of(file: DataFile, suffix: str) -> DataFile:
    """Return the index beside a file."""
    found = sidecar_of(file, suffix)
    if found is None:
        raise ValueError(
            f"it has no index: its source must list the file that ends with {suffix!r} as DataFile.sidecars"
        )
    return found


def pack(*arrays: NDArray[Any]) -> bytes:
    """Write arrays as bytes, each in the narrowest unsigned integers.

    >>> [array.tolist() for array in unpack(pack(np.array([1, 300]), np.array([], np.int64)))]
    [[1, 300], []]
    """
    parts: list[bytes | memoryview] = []
    for array in arrays:
        kept = narrow(array)
        parts += [_ARRAY.pack(kept.dtype.char.encode(), len(kept)), kept.data]
    return b"".join(parts)


def narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the narrowest unsigned integers."""
    return array.astype(np.min_scalar_type(int(array.max())) if len(array) else np.uint8, copy=False)


def unpack(data: bytes) -> list[NDArray[Any]]:
    """Read what `pack` wrote."""
    arrays, place = [], 0
    while place < len(data):
        char, count = _ARRAY.unpack_from(data, place)
        dtype = np.dtype(char.decode())
        arrays.append(np.frombuffer(data, dtype, count, place + _ARRAY.size))
        place += _ARRAY.size + count * dtype.itemsize
    return arrays


def _meta(index: Index, num_bytes: int, group_bytes: int) -> FileMeta:
    """Return the metadata of a file by its index."""
    width = index.kind.bit_width // 8
    lengths = narrow(index.lengths)
    longest = int(lengths.max(initial=0))
    if longest > MOST_TOKENS:
        raise ValueError(f"its index says a document of {longest} tokens, and a list has at most {MOST_TOKENS}")
    total = int(lengths.sum(dtype=np.int64)) * width
    if total != num_bytes - index.begin:
        raise ValueError(f"its index says {total} bytes of tokens ({index.kind}), and it has {num_bytes}")
    rows, stops = group_rows(lengths, width, group_bytes)
    places = [index.begin + place for place in (0, *stops)]
    each = width + sum(max(1, kind.bit_width // 8) for kind in index.columns.values())
    fields = [(TOKENS, pa.list_(index.kind)), *((name, pa.list_(kind)) for name, kind in index.columns.items())]
    return FileMeta(
        schema=pa.schema(fields),
        group_rows=tuple(rows),
        group_bytes=tuple((stop - start) // width * each for start, stop in pairwise(places)),
        footer=pack(lengths, *index.more),
        group_ranges=tuple(pairwise(places)),
    )


def check_total(what: str, tokens: int, width: int) -> None:
    """Raise a ValueError for a number of tokens that no file has, before it is multiplied."""
    if not 0 <= tokens <= _MOST_BYTES // width:
        raise ValueError(f"{what} says {tokens} tokens, which no file has")
