"""What a store should contain, the names of its files, and how a row is laid out in them.

Fixed-width columns are in one record, widest first, everything else in heaps.

Lists that are equally long in each row, such as tokens of documents, may be kept flat instead: one record of values for
each element, one after another, so that parts of lists can be gathered too.

Columns are stored in their plain types, all of which Arrow gathers by index: dictionaries and run-ends as the values
they encode, views as strings and lists, extension types as their storage.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_table_loader.arrow.arrays import bits, encoded, number_type, numbers_of, plain
from torch_table_loader.arrow.datatypes import plain_type
from torch_table_loader.cached import cached_property
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    _Alone: TypeAlias = tuple[NDArray[Any], NDArray[Any]]
    _Together: TypeAlias = tuple[NDArray[Any], list[NDArray[Any]]]


_LEAST_TOGETHER = 3
"""Number of columns from which on they are collected before they are transposed."""

WIDE_BYTES = 4
"""Bytes of a list's length while a store is built."""

FORMAT = 5
"""Increase it when the files' layout changes: names of stores contain it."""

REMEDY = "remove it with `torch-table-loader store prune --damaged`, and it is built again"

MANIFEST = "manifest.json"
RECORDS = "records.bin"
NULLS = "nulls.bin"
IDS = "row_ids.bin"
LENGTHS = "lengths.bin"
CODES = "codes.bin"
WORDS = "words.arrow"
PARTS = "parts"
WIDE_LENGTHS = f"{PARTS}/lengths.bin"
"""The lengths of lists while a store is built, each of `WIDE_BYTES`."""
LEASES = "leases"


@dataclass(frozen=True, slots=True)
class FixedType:
    """A type of fixed width: its values take `width` bytes each in a record.

    `item` is the Arrow type of one value; `sizes` are those of the fixed-size lists around it, outermost first.
    """

    item: pa.DataType
    sizes: tuple[int, ...]
    width: int
    count: int = field(init=False, compare=False)
    """Values in a row."""

    def __post_init__(self) -> None:
        """Count the values."""
        object.__setattr__(self, "count", prod(self.sizes))

    @property
    def null_bits(self) -> int:
        """Bits that say which parts of a row are null: one for the row, each list inside, and each value."""
        return sum(prod(self.sizes[:depth]) for depth in range(len(self.sizes) + 1))


@dataclass(frozen=True, slots=True)
class Slot:
    """One column's position: bytes from the record's start, and its first bit in the record of nulls."""

    column: int
    kind: FixedType
    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class Group:
    """Neighboring slots of one width, which are transposed together.

    A value is an unsigned integer of its width, or opaque bytes. A row has `count` values, from byte `offset` on.
    """

    slots: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    count: int


class RecordLayout:
    """The layout of a schema's rows."""

    def __init__(self, schema: pa.Schema, flat: int = 0) -> None:
        """Place the columns; the first `flat` are kept flat: large lists of numbers, or vectors, without nulls."""
        self.schema = schema
        self.flat = flat
        self.value_dtype = np.dtype(
            [(entry.name, number_type(entry.type.value_type)) for entry in list(schema)[:flat]]
        ).newbyteorder("<")
        """The type of the values of one element of a row's lists."""
        kinds = [fixed_type(plain_type(entry.type)) for entry in schema]
        placed = sorted(
            ((column, kind) for column, kind in enumerate(kinds) if kind is not None),
            key=lambda pair: (-_alignment(pair[1].width), -pair[1].width, pair[0]),
        )
        self.heap = tuple(column for column, kind in enumerate(kinds) if kind is None and column >= flat)
        slots, offset, bit = [], 0, 0
        for column, kind in placed:
            slots.append(Slot(column, kind, offset, bit))
            offset += kind.width * kind.count
            bit += kind.null_bits
        self.slots = tuple(slots)
        largest = max((_alignment(slot.kind.width) for slot in slots), default=1)
        self.width = -(-offset // largest) * largest
        """Bytes of a record."""
        self.null_width = -(-bit // 8)
        """Bytes of a record of nulls."""

    @cached_property
    def heap_schema(self) -> pa.Schema:
        """The columns that records do not hold, as they are stored."""
        return pa.schema([pa.field(heap_name(column), plain_type(self.schema.types[column])) for column in self.heap])

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Groups of adjacent slots of one width."""
        return tuple(self.groups_without(frozenset()))

    def groups_without(self, columns: Container[int]) -> Iterator[Group]:
        """Yield groups of adjacent slots of one width, less the slots of some columns."""
        left = [number for number, slot in enumerate(self.slots) if slot.column not in columns]
        runs = groupby(enumerate(left), key=lambda pair: (self.slots[pair[1]].kind.width, pair[1] - pair[0]))
        for (width, _), run in runs:
            numbers = tuple(number for _, number in run)
            count = sum(self.slots[number].kind.count for number in numbers)
            yield Group(numbers, _dtype_of(width), self.slots[numbers[0]].offset, count)

    def encode(self, batch: pa.RecordBatch) -> tuple[list[NDArray[Any]], Bytes | None, set[int]]:
        """Prepare rows for records: nulls become 0.

        Returns:
            The values of each slot, [rows, count]; uint8[rows, null_width], one bit for each part of a row, set if it
            is null, or None if nothing is; and the columns with nulls.
        """
        values, nulls, null_columns = [], None, set()
        for slot in self.slots:
            bare, missing = _taken_apart(plain(batch.column(slot.column)), slot.kind)
            values.append(bare)
            if missing is not None:
                if nulls is None:
                    nulls = np.zeros((batch.num_rows, self.null_width * 8), dtype=np.bool_)
                nulls[:, slot.bit : slot.bit + slot.kind.null_bits] = missing
                null_columns.add(slot.column)
        if nulls is None:
            return values, None, null_columns
        return values, np.packbits(nulls, axis=1, bitorder="little"), null_columns

    def blocks(self, values: Sequence[NDArray[Any]], num_rows: int) -> Iterator[tuple[int, Bytes]]:
        """Yield the first row and the records of each block: uint8[k, width], in memory that the next block reuses.

        `values` are those that `encode` returns. Columns with one value for each row and the same width are collected
        first, and transposed together: writing them one by one would fetch each cache line of the records again for
        each column.
        """
        rows = max(sizes().record_block_bytes // max(self.width, 1), sizes().record_block_rows)
        buffer = np.zeros((min(rows, num_rows), self.width), dtype=np.uint8)
        together, alone = self._parts(values, buffer)
        most = max((len(bares) for _, bares in together), default=0)
        spare = np.empty(len(buffer) * most * 8, dtype=np.uint8)
        for start in range(0, num_rows, rows):
            count = min(rows, num_rows - start)
            here = slice(start, start + count)
            for part, bares in together:
                piece = spare[: count * part.shape[1] * part.itemsize].view(part.dtype).reshape(part.shape[1], count)
                for row, bare in zip(piece, bares, strict=True):
                    row[:] = bare[here, 0]
                part[:count] = piece.T
            for part, bare in alone:
                part[:count] = bare[here]
            yield start, buffer[:count]

    def _parts(self, values: Sequence[NDArray[Any]], records: Bytes) -> tuple[list[_Together], list[_Alone]]:
        """View the values in records: those of adjacent slots of one width and one value together, others alone."""
        together: list[_Together] = []
        alone: list[_Alone] = []
        slots = self.slots
        for group in self.groups:
            for single, run in groupby(group.slots, key=lambda number: slots[number].kind.count == 1):
                numbers = list(run)
                if single and len(numbers) >= _LEAST_TOGETHER and group.dtype.kind == "u":
                    stop = slots[numbers[-1]].offset + group.dtype.itemsize
                    part = records[:, slots[numbers[0]].offset : stop].view(group.dtype)
                    together.append((part, [values[number] for number in numbers]))
                    continue
                for slot, bare in ((slots[number], values[number]) for number in numbers):
                    stop = slot.offset + slot.kind.width * slot.kind.count
                    alone.append((records[:, slot.offset : stop].view(bare.dtype), bare))
        return together, alone

    def flat_of(self, batch: pa.RecordBatch) -> tuple[Bytes, NDArray[Any]]:
        """Return the bytes of each row's length, uint8[rows, 4], and the values of the flat lists, [all elements]."""
        lists = [batch.column(column) for column in range(self.flat)]
        offsets = lists[0].offsets.to_numpy()
        lengths = np.diff(offsets)
        longest = sizes().list_values
        if lengths.max(initial=0) >= longest:
            raise TableError(
                f"a list of column {self.schema.names[0]!r} has {lengths.max():,} elements, and the row store takes "
                f"fewer than {longest:,}; cut it into several rows"
            )
        values = np.empty(int(offsets[-1] - offsets[0]), dtype=self.value_dtype)
        for name, column in zip(self.schema.names, lists, strict=False):
            first = column.offsets[0].as_py()
            values[name] = numbers_of(column.values.slice(first, len(values)))
        return lengths.astype("<u4").view(np.uint8).reshape(-1, WIDE_BYTES), values

    def heap_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that records do not hold."""
        columns = [plain(batch.column(column)) for column in self.heap]
        return pa.RecordBatch.from_arrays(columns, schema=self.heap_schema)


def heap_name(column: int) -> str:
    """Return the name of a column in a heap."""
    return f"c{column}"


def fixed_type(kind: pa.DataType) -> FixedType | None:
    """Describe a plain type of fixed width; None if its values vary in width.

    >>> fixed_type(pa.list_(pa.int16(), 3))
    FixedType(item=DataType(int16), sizes=(3,), width=2, count=3)
    >>> fixed_type(pa.string()) is None
    True
    """
    sizes: list[int] = []
    while pt.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    if pt.is_boolean(kind):
        return FixedType(kind, tuple(sizes), 1)
    if pt.is_nested(kind) or pt.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType) or pt.is_null(kind):
        return None
    try:
        width = int(kind.bit_width) // 8
    except ValueError:
        return None
    if 0 in sizes or width < 1:
        return None
    return FixedType(kind, tuple(sizes), width)


def check_storable(schema: pa.Schema) -> None:
    """Refuse columns that the store could not return."""
    for entry in schema:
        try:
            probe = pa.nulls(2, plain_type(entry.type))
            back = encoded(probe.take(pa.array([1, 0])), entry.type)
            pa.concat_arrays([probe, probe])
        except (pa.ArrowException, NotImplementedError, ValueError, TypeError) as error:
            raise ConfigError(
                f"column {entry.name!r} is of type {entry.type}, which cannot be gathered row by row ({error}); leave "
                'it out with columns=[...], or use shuffle="splits"'
            ) from error
        if back.type != entry.type:
            raise ConfigError(
                f"column {entry.name!r} is of type {entry.type}, which comes back as {back.type}; leave it out with "
                'columns=[...], or use shuffle="splits"'
            )


def _dtype_of(width: int) -> np.dtype[Any]:
    """Return unsigned integers of a width, or opaque bytes if there are none."""
    return np.dtype(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}")


def _alignment(width: int) -> int:
    """Return the largest power of two, at most 8, that divides a width."""
    return min(width & -width, 8)


def _taken_apart(array: pa.Array, kind: FixedType) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return a fixed-width array's values, [rows, count], and which parts of each row are null, [rows, null_bits]."""
    rows, per_row = len(array), 1
    levels = [array]
    for size in kind.sizes:
        array = array.values.slice(array.offset * size, len(array) * size)
        levels.append(array)
        per_row *= size
    values = _values(array, kind).reshape(rows, per_row)
    if not any(level.null_count for level in levels):
        return values, None
    masks: list[NDArray[np.bool_]] = []
    covered = np.zeros((rows, 1), dtype=np.bool_)
    for level, size in zip(levels, (*kind.sizes, 1), strict=True):
        null = level.is_null().to_numpy(zero_copy_only=False).reshape(rows, -1) if level.null_count else False
        covered = covered | null
        masks.append(covered)
        covered = np.repeat(covered, size, axis=1)
    values = values.copy()
    values[masks[-1]] = np.zeros(1, dtype=values.dtype)
    return values, np.concatenate(masks, axis=1)


def _values(array: pa.Array, kind: FixedType) -> NDArray[Any]:
    buffer = array.buffers()[1]
    if pt.is_boolean(array.type):
        if buffer is None or not len(array):
            return np.zeros(len(array), dtype=np.uint8)
        return bits(buffer, array.offset, len(array)).view(np.uint8)
    dtype = _dtype_of(kind.width)
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * kind.width)


@dataclass(frozen=True, eq=False)
class StoreSpec:
    """What a store should contain.

    Args:
        filters: key of the row filter; None without one.
        chunk_rows: live rows of each chunk, in row order; a builder makes one chunk at a time.
        keeps_ids: whether row ids are stored, because they are not the places.
        variable_bytes: estimated bytes of the columns of variable width.
        made: key of what was made from the rows before they were stored; None if they are the table's rows.
        flat: number of leading columns whose lists are kept flat; see `RecordLayout`.
    """

    table: str
    filters: str | None
    schema: pa.Schema
    chunk_rows: tuple[int, ...]
    keeps_ids: bool = False
    variable_bytes: int = 0
    made: str | None = None
    flat: int = 0

    @cached_property
    def layout(self) -> RecordLayout:
        """The layout of the records."""
        return RecordLayout(self.schema, self.flat)

    @cached_property
    def name(self) -> str:
        """The store's folder name: the same for every run over the same table, columns and filter."""
        kept = (encode_schema(self.schema), self.chunk_rows, self.keeps_ids)
        key = (FORMAT, self.table, self.filters, *kept, self.made, self.flat)
        return f"rows-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"

    @cached_property
    def chunk_starts(self) -> tuple[int, ...]:
        """The first row of each chunk, and the row after the last."""
        return (0, *accumulate(self.chunk_rows))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.chunk_starts[-1]

    @property
    def row_widths(self) -> dict[str, int]:
        """The bytes of a row in each file that all chunks are written to."""
        widths = {RECORDS: self.layout.width, NULLS: self.layout.null_width}
        if self.keeps_ids:
            widths[IDS] = 8
        if self.flat:
            widths[WIDE_LENGTHS] = WIDE_BYTES
        return widths

    @property
    def num_bytes(self) -> int:
        """Bytes that the store needs, with the estimate for columns of variable width."""
        return self.num_rows * (self.layout.width + 8 * self.keeps_ids) + self.variable_bytes

    @property
    def most_shared_bytes(self) -> int:
        """The most bytes of what all lanes need whole: lengths of flat lists with their sums, and distinct strings."""
        lengths = 0
        if self.flat:
            lengths = self.num_rows * (WIDE_BYTES + 1)
        return lengths + min(self.variable_bytes, sizes().store_word_bytes)


def encode_schema(schema: pa.Schema) -> str:
    """Write a schema as text, without its metadata."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Read what `encode_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def heap_file(chunk: int) -> str:
    """Return the name of the heap of a chunk."""
    return f"heap-{chunk:06}.arrow"


def values_file(chunk: int) -> str:
    """Return the name of the file with the values of a chunk's lists."""
    return f"values-{chunk:06}.bin"


def chunk_codes_file(chunk: int) -> str:
    """Return the name of the file with the codes of a chunk's strings while a store is built."""
    return f"{PARTS}/{chunk:06}.arrow"


def part_file(place: Path, chunk: int) -> Path:
    """Return the path of the file that records a finished chunk."""
    return place / PARTS / f"{chunk:06}.json"


class Part(NamedTuple):
    """A finished chunk.

    Args:
        sums: by file, the XXH3 hash of what the chunk wrote there; without the nulls if it has none.
        num_values: elements of its flat lists.
    """

    rows: int
    sums: Mapping[str, int]
    heap_bytes: int
    num_values: int
    null_columns: tuple[int, ...]

    @classmethod
    def from_json(cls, data: Any) -> Part:
        """Read what `json.dumps` wrote. Raises ValueError or TypeError if the data is malformed."""
        rows, sums, heap_bytes, num_values, columns = data
        return cls(rows, dict(sums), heap_bytes, num_values, tuple(columns))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the bytes of a store come from, and what to do if they are damaged."""

    name: str
    remedy: str = REMEDY

    def damaged(self, what: str, why: str = "is not what was written") -> TableError:
        """Return the error for damage to a file, or to a chunk if the file holds several."""
        return TableError(f"the row store {self.name!r} is damaged: {what} {why}; {self.remedy}")
