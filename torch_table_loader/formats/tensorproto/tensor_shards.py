"""The format of tensor shards, its reader and its writer, and the Arrow form of a tensor column.

| shapes | Arrow type |
|---|---|
| all the same | the element type inside fixed-size lists, one for each dimension |
| they differ in the first dimension alone | a list of that |
| they differ in another dimension | a struct: `values`, a list in row-major order, and `shape`, a fixed-size list |
| they differ in how many dimensions they have | the same, with `shape` a list |

Arrow has no fixed-size lists of no value: shapes with a 0 after the first dimension are written as a struct.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from torch_table_loader.arrow.arrays import lists_of, plain
from torch_table_loader.arrow.datatypes import ElementType, innermost, plain_type
from torch_table_loader.contracts import is_far
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.format_contracts import FormatWriter, SalvagingReader, SettlingReader, SidecarReader, Traits
from torch_table_loader.formats.tensorproto.protos import (
    CODES,
    LENGTH,
    TYPES,
    DamageError,
    Place,
    Samples,
    SampleWalk,
    byte_width,
    empty_tensor,
    storage_of,
    type_name,
)
from torch_table_loader.messages import first_twice
from torch_table_loader.read.failures import reading
from torch_table_loader.read.file_ends import open_at_start
from torch_table_loader.read.list_groups import GROUP_BYTES, check_size, group_rows, read_exactly
from torch_table_loader.read.reader_base import GroupedFile, WholeGroups, WithoutNulls
from torch_table_loader.records import FileMeta, LeftOut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import DataFile

    Tensors = tuple[list[tuple[int, ...]], list[int], NDArray[np.uint8]]


Pattern: TypeAlias = "tuple[int | None, ...] | None"
"""For each dimension its length in all shapes, or None; None if shapes differ in their number of dimensions."""

VALUES, SHAPE = "values", "shape"
"""The fields of a struct."""

_MOST_BYTES = 2**31 - 1


def joint(one: Pattern, other: Pattern) -> Pattern:
    """Return what the shapes of two patterns have in common.

    >>> joint((3, 4), (5, 4)), joint((3,), (3, 4))
    ((None, 4), None)
    """
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(length if length == theirs else None for length, theirs in zip(one, other, strict=True))


def column_type(element: pa.DataType, pattern: Pattern) -> pa.DataType:
    """Return the Arrow type of a tensor column.

    >>> column_type(pa.int8(), (None, 4))
    ListType(list<item: fixed_size_list<item: int8>[4]>)
    """
    if pattern is None:
        return pa.struct([(VALUES, pa.list_(element)), (SHAPE, pa.list_(pa.int64()))])
    if not all(pattern[1:]):
        return pa.struct([(VALUES, pa.list_(element)), (SHAPE, pa.list_(pa.int64(), len(pattern)))])
    kind = element
    for length in reversed(pattern[1:]):
        kind = pa.list_(kind, length)
    if not pattern:
        return kind
    if pattern[0]:
        return pa.list_(kind, pattern[0])
    return pa.list_(kind)


class _Column(NamedTuple):
    """A feature of a file; `column` is its name in the table, or None if it is left out."""

    name: str
    column: str | None
    code: int
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class TensorProtoReader(WholeGroups, WithoutNulls, SidecarReader, SettlingReader, SalvagingReader):
    """Reads tensor shards: a row is a sample, a column a feature.

    Args:
        names: names of columns, by position (from 0) or by the name in the TensorProto; None leaves a feature out.
            Features that are not listed keep their name, or are called ``feature_<position>`` if they have none.
        group_bytes: minimum bytes of a run of samples that is read in one piece.
    """

    names: Mapping[int | str, str | None] = field(default_factory=dict)
    name: str = "tensorproto"
    group_bytes: int = GROUP_BYTES
    traits = Traits(cut="runs of samples", pruned="partitions", needs="onnx")
    data_suffix = ".pb"
    sidecars = ()

    def __post_init__(self) -> None:
        """Refuse names of the wrong type, and two columns of one name."""
        given = self.names
        if not isinstance(given, Mapping) or not all(
            isinstance(key, int | str)
            and not isinstance(key, bool)
            and (value is None or (isinstance(value, str) and value))
            for key, value in given.items()
        ):
            raise ConfigTypeError(
                "names must be {position or name of a feature: name of the column, or None}, such as "
                f"{{0: 'input_ids', 'y': 'label'}}, got {given!r}"
            )
        columns = [value for value in given.values() if value is not None]
        if (twice := first_twice(columns)) is not None:
            raise ConfigError(f"names calls two features {twice!r}; give each column a name of its own")
        object.__setattr__(self, "names", dict(given))

    @override
    def inspect(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        return self._inspected(storage, file, None)

    @override
    def salvage(self, storage: Storage, file: DataFile, schema: pa.Schema | None) -> tuple[FileMeta, Sequence[LeftOut]]:
        left_out: list[LeftOut] = []
        return self._inspected(storage, file, left_out), left_out

    @override
    def settle(self, metas: Sequence[FileMeta]) -> Sequence[FileMeta]:
        of_files = [_columns_of(meta) for meta in metas]
        patterns: dict[tuple[str, int], Pattern] = {}
        for columns in of_files:
            for each in columns:
                key = (str(each.column), each.code)
                patterns[key] = joint(patterns.get(key, each.pattern), each.pattern)
        return [
            replace(
                meta, schema=_schema([each._replace(pattern=patterns[str(each.column), each.code]) for each in columns])
            )
            for meta, columns in zip(metas, of_files, strict=True)
        ]

    @override
    def open(self, storage: Storage, file: DataFile, meta: FileMeta) -> TensorShard:
        return TensorShard(storage.open(file.path), file, meta)

    def _inspected(self, storage: Storage, file: DataFile, left_out: list[LeftOut] | None) -> FileMeta:
        size = file.version.num_bytes
        with reading(storage, file), open_at_start(storage, file) as source:
            if not is_far(storage):
                check_size(file, source)
            survey = _Survey(file, self.names, left_out)
            survey.walk(source, size)
        return survey.meta(self.group_bytes)


class _Survey:
    """What a walk over a file finds; damage goes into `left_out`, or is an error without that."""

    def __init__(self, file: DataFile, names: Mapping[int | str, str | None], left_out: list[LeftOut] | None) -> None:
        self._file = file
        self._names = names
        self._left_out = left_out
        self._columns: list[_Column] = []
        self._walk = SampleWalk(self._check)
        self._samples = 0
        self._runs: list[tuple[int, list[tuple[int, int]]]] = []
        """For each run of samples that can be read: its first byte, and how many samples of which length it has."""

    def walk(self, source: pa.NativeFile, size: int) -> None:
        """Walk over the samples of a file of `size` bytes."""
        position, whole = 0, True
        while position < size:
            data = self._read(source, position, min(GROUP_BYTES, size - position))
            done = 0
            while done < len(data):
                needed = self._walk.needs(data, done)
                if position + done + needed > size:
                    message = (
                        f"it says {needed} bytes, its length included, and the file has {size - position - done} more"
                    )
                    self._leave_out(DamageError(message, None), position + done, size)
                    return
                if done + needed > len(data):
                    if done:
                        break
                    data = self._read(source, position, needed)
                try:
                    samples = self._walk.next(data, done, needed)
                except DamageError as damage:
                    self._leave_out(damage, position + done, position + done + needed)
                    done, whole = done + needed, True
                    continue
                self._add(samples, position + done, begins=whole)
                done, whole = done + samples.num * samples.length, False
            position += done

    def _read(self, source: pa.NativeFile, start: int, count: int) -> bytes:
        source.seek(start)
        data = bytes(source.read(count))
        if len(data) != count:
            raise TableError(f"{self._file.name} ends before byte {start + count}: it was cut while it was read")
        return data

    def meta(self, group_bytes: int) -> FileMeta:
        """Return what was found, cut into runs of samples."""
        rows: list[int] = []
        ranges: list[tuple[int, int]] = []
        for start, parts in self._runs:
            counts, lengths = zip(*parts, strict=True)
            cut, ends = group_rows(np.repeat(np.array(lengths, np.int64), counts), 1, group_bytes)
            stops = [start + end for end in ends]
            rows += cut
            ranges += zip([start, *stops[:-1]], stops, strict=True)
        return FileMeta(
            schema=_schema(self._columns),
            group_rows=tuple(rows),
            group_bytes=tuple(stop - start for start, stop in ranges),
            footer=json.dumps(self._columns).encode(),
            group_ranges=tuple(ranges),
        )

    def _add(self, samples: Samples, start: int, *, begins: bool) -> None:
        if begins:
            self._runs.append((start, []))
        parts = self._runs[-1][1]
        if parts and parts[-1][1] == samples.length:
            parts[-1] = (parts[-1][0] + samples.num, samples.length)
        else:
            parts.append((samples.num, samples.length))
        self._samples += samples.num

    def _leave_out(self, damage: DamageError, start: int, stop: int) -> None:
        if self._left_out is None:
            raise TableError(_damaged(self._file, self._samples, damage)) from damage
        number = self._samples + len(self._left_out)
        what = f"sample {number}"
        if damage.length is None:
            what += " and what follows it"
        self._left_out.append(LeftOut(self._file.name, what, start, stop, str(damage)))

    def _check(self, places: tuple[Place, ...]) -> None:
        """Compare samples with the first one, and widen what their shapes have in common."""
        if not self._columns:
            self._columns = _named(self._file, places, self._names)
            return
        _check_features(self._columns, places)
        for number, (place, column) in enumerate(zip(places, self._columns, strict=True)):
            if column.pattern != place.feature.dims:
                pattern = joint(column.pattern, place.feature.dims)
                self._columns[number] = column._replace(pattern=pattern)


class TensorShard(GroupedFile):
    """An open file of samples, whose row groups are runs of samples."""

    def __init__(self, source: pa.NativeFile, file: DataFile, meta: FileMeta) -> None:
        super().__init__(source, meta)
        self._file = file
        self._columns = _columns_of(meta)
        self._walk = SampleWalk(self._check)

    @override
    def _group(self, group: int, columns: list[str]) -> pa.RecordBatch:
        start, stop = (self._meta.group_ranges or ())[group]
        data = read_exactly(self._source, start, stop, self._file.name).to_pybytes()
        schema = pa.schema([self._meta.schema.field(name) for name in columns])
        positions = {each.column: position for position, each in enumerate(self._columns)}
        wanted = [positions[name] for name in columns]
        found = [_Tensors(TYPES[self._columns[at].code], entry.type) for at, entry in zip(wanted, schema, strict=True)]
        done = rows = 0
        for samples in self._samples(data, group):
            for column, position in zip(found, wanted, strict=True):
                feature, begin, end = samples.places[position]
                if feature.values is not None:
                    values: bytes | NDArray[np.uint8] = feature.values
                elif samples.num == 1:
                    values = data[done + begin : done + end]
                else:
                    block = np.frombuffer(data, np.uint8, samples.num * samples.length, done)
                    values = np.ascontiguousarray(block.reshape(samples.num, samples.length)[:, begin:end])
                column.add(values, samples.num, feature.dims)
            rows += samples.num
            done += samples.num * samples.length
        if rows != self._meta.group_rows[group] or done != len(data):
            raise TableError(
                f"{self._file.name} must have {self._meta.group_rows[group]} samples in bytes {start} to {stop}, got "
                f"{rows}; the file has changed since it was planned: build the loader again"
            )
        return pa.RecordBatch.from_arrays([column.array() for column in found], schema=schema)

    def _samples(self, data: bytes, group: int) -> Iterator[Samples]:
        done, sample = 0, sum(self._meta.group_rows[:group])
        while done < len(data):
            try:
                samples = self._walk.next(data, done, self._walk.needs(data, done))
            except DamageError as damage:
                raise TableError(_damaged(self._file, sample, damage)) from damage
            yield samples
            done, sample = done + samples.num * samples.length, sample + samples.num

    def _check(self, places: tuple[Place, ...]) -> None:
        _check_features(self._columns, places)
        for number, (place, column) in enumerate(zip(places, self._columns, strict=True)):
            dims = place.feature.dims
            if column.pattern not in (None, dims) and joint(column.pattern, dims) != column.pattern:
                raise ValueError(
                    f"feature {number} ({column.name!r}) has the shape {list(dims)}, which was not planned"
                )


def _damaged(file: DataFile, sample: int, damage: DamageError) -> str:
    return (
        f"{file.name}, sample {sample} must be a sample of TensorProtos like those before it, but {damage}; the file "
        "is "
        'torn or of another format: write it again, leave it out, or leave such samples out with on_error="skip"'
    )


def _check_features(columns: Sequence[_Column], places: Sequence[Place]) -> None:
    """Compare the features of a sample with those of its file's first one."""
    if len(places) != len(columns):
        raise ValueError(f"it has {len(places)} features, and the first sample has {len(columns)}")
    for number, (place, column) in enumerate(zip(places, columns, strict=True)):
        feature = place.feature
        if feature.name != column.name:
            raise ValueError(f"feature {number} is called {feature.name!r}, and {column.name!r} in the first sample")
        if feature.code != column.code:
            raise ValueError(
                f"feature {number} ({column.name!r}) is {type_name(feature.code)}, and {type_name(column.code)} in the "
                "first sample"
            )


def _named(file: DataFile, places: Sequence[Place], names: Mapping[int | str, str | None]) -> list[_Column]:
    """Return the columns of a file by its first sample."""
    own = [place.feature.name for place in places]
    if unknown := [key for key in names if not (0 <= key < len(own) if isinstance(key, int) else key in own)]:
        raise ConfigError(f"names has {unknown[0]!r}, but the features of {file.name} are, from 0, {own}")
    columns: list[_Column] = []
    for number, place in enumerate(places):
        feature = place.feature
        by_name: str | None = f"feature_{number}"
        if feature.name:
            by_name = names.get(feature.name, feature.name)
        column = names.get(number, by_name)
        if column is not None and feature.code not in TYPES:
            raise TableError(
                f"{file.name}, sample 0: feature {number} ({feature.name!r}) is {type_name(feature.code)}, which torch "
                f"does not have; leave it out with format=TensorProtoReader(names={{{number}: None}})"
            )
        columns.append(_Column(feature.name, column, feature.code, feature.dims))
    kept = [each.column for each in columns if each.column is not None]
    if (twice := first_twice(kept)) is not None:
        raise ConfigError(
            f"{file.name} has two features for the column {twice!r}; name them with "
            "format=TensorProtoReader(names={position: name})"
        )
    return columns


def _columns_of(meta: FileMeta) -> list[_Column]:
    """Return the columns that the walk over a file found, before `settle` changed its schema."""
    found: list[list[Any]] = json.loads(meta.footer or b"[]")
    return [
        _Column(name, column, code, None if pattern is None else tuple(pattern))
        for name, column, code, pattern in found
    ]


def _schema(columns: Sequence[_Column]) -> pa.Schema:
    """Return the columns of a file as an Arrow schema."""
    return pa.schema(
        [(each.column, column_type(TYPES[each.code], each.pattern)) for each in columns if each.column is not None]
    )


class _Tensors:
    """Collects the tensors of a column, and makes an Arrow array of them in memory of its own."""

    def __init__(self, element: pa.DataType, kind: pa.DataType) -> None:
        self._element = element
        self._kind = kind
        self._parts: list[bytes | NDArray[np.uint8]] = []
        self._counts: list[int] = []
        self._shapes: list[tuple[int, ...]] = []

    def add(self, values: bytes | NDArray[np.uint8], count: int, dims: tuple[int, ...]) -> None:
        """Add tensors of one shape by the bytes of their values."""
        self._parts.append(values)
        self._counts.append(count)
        self._shapes.append(dims)

    def array(self) -> pa.Array:
        """Return the tensors."""
        values = self._values()
        kind, rows = self._kind, sum(self._counts)
        if pt.is_struct(kind):
            lists = lists_of(pa.list_(self._element), self._lengths(0), values)
            shape = self._shape(kind.field(SHAPE).type)
            return pa.StructArray.from_arrays([lists, shape], fields=[kind.field(VALUES), kind.field(SHAPE)])
        inside = []
        while pt.is_fixed_size_list(kind):
            inside.append(kind)
            kind = kind.value_type
        if not pt.is_list(kind):
            return _nested(inside, values).slice(0, rows)
        items = kind.value_type
        while pt.is_fixed_size_list(items):
            inside.append(items)
            items = items.value_type
        return lists_of(self._kind, self._lengths(len(inside)), _nested(inside, values))

    def _lengths(self, fixed: int) -> NDArray[np.int64]:
        """Return how many items each tensor's list has, if each item has `fixed` dimensions."""
        sizes = {dims: prod(dims[: len(dims) - fixed]) for dims in set(self._shapes)}
        return np.repeat(np.array([sizes[dims] for dims in self._shapes], np.int64), self._counts)

    def _shape(self, kind: pa.DataType) -> pa.Array:
        flat = [length for count, dims in zip(self._counts, self._shapes, strict=True) for length in dims * count]
        values = pa.array(flat, pa.int64())
        if pt.is_fixed_size_list(kind):
            return _fixed(kind, values)
        return lists_of(kind, np.repeat(np.array([len(dims) for dims in self._shapes], np.int64), self._counts), values)

    def _values(self) -> pa.Array:
        parts: list[Any] = self._parts
        alone = len(parts) == 1 and isinstance(parts[0], np.ndarray)  # in memory of its own, then
        data: Any = parts[0] if alone else bytearray().join(parts)
        if pt.is_boolean(self._element):
            return pa.array(np.frombuffer(data, np.uint8) != 0, pa.bool_())
        buffer = pa.py_buffer(data)
        return _wrapped(self._element, buffer.size // byte_width(self._element), buffer)


def _wrapped(element: pa.DataType, count: int, data: pa.Buffer) -> pa.Array:
    array = pa.Array.from_buffers(storage_of(element), count, [None, data], null_count=0)
    if isinstance(element, ElementType):
        return pa.ExtensionArray.from_storage(element, array)
    return array


def _nested(kinds: Sequence[pa.DataType], values: pa.Array) -> pa.Array:
    """Put values into fixed-size lists, given the outermost first."""
    for kind in reversed(kinds):
        values = _fixed(kind, values)
    return values


def _fixed(kind: pa.DataType, values: pa.Array) -> pa.Array:
    count = len(values) // kind.list_size
    return pa.Array.from_buffers(kind, count, [None], null_count=0, children=[values])


class TensorProtoWriter(FormatWriter):
    """Writes rows as samples, and each column as a feature with `raw_data`."""

    name = "tensorproto"
    suffix = ".pb"

    @override
    def check(self, schema: pa.Schema) -> None:
        if not schema.names:
            raise ConfigError("a sample needs at least one feature, but the table has no columns")
        for column in schema:
            kind = column.type
            if not isinstance(kind, ElementType):
                kind = plain_type(kind)
            if _is_tensor_struct(kind):
                kind = kind.field(VALUES).type
            if innermost(kind) not in CODES:
                raise ConfigError(
                    f"column {column.name!r} is of type {column.type}, which a tensor shard cannot hold; leave it out "
                    "with --columns"
                )

    @override
    def write(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, file: BinaryIO) -> None:
        done = 0
        for batch in batches:
            columns = [_features(name, column, done) for name, column in zip(schema.names, batch.columns, strict=True)]
            for features in zip(*columns, strict=True):
                length = sum(LENGTH.size + len(feature) for feature in features)
                if length > _MOST_BYTES:
                    raise TableError(f"row {done} has {length} bytes, but a sample has at most {_MOST_BYTES}")
                file.write(LENGTH.pack(length))
                for feature in features:
                    file.write(LENGTH.pack(len(feature)))
                    file.write(feature)
                done += 1


def _plain(column: pa.Array) -> pa.Array:
    """Return a column without dictionaries and other forms; that of an element type has none."""
    if isinstance(column.type, ElementType):
        return column
    return plain(column)


def _features(name: str, column: pa.Array, done: int) -> list[bytes]:
    """Return a column's rows as serialized TensorProtos."""
    column = _plain(column)
    kind, shapes = column.type, None
    if _is_tensor_struct(kind):
        _refuse_nulls(column, name, done)
        values, lengths = column.flatten()
        _refuse_nulls(lengths, name, done)
        shapes = [tuple(shape) for shape in lengths.to_pylist()]
        column, kind = values, values.type
    element = innermost(kind)
    rows, data = _bytes_of(column, name, done)
    made: list[bytes] = []
    message = empty_tensor(name, element)
    width = byte_width(element)
    for row, (start, stop, own) in enumerate(rows):
        dims = own if shapes is None else shapes[row]
        if int(np.prod(dims, dtype=np.int64)) != stop - start or min(dims, default=0) < 0:
            raise TableError(
                f"row {done + row} of column {name!r} has {stop - start} values, and the shape {list(dims)}"
            )
        message.dims[:] = dims
        message.raw_data = data[start * width : stop * width].tobytes()
        made.append(message.SerializeToString())
    return made


def _bytes_of(
    column: pa.Array, name: str, done: int
) -> tuple[list[tuple[int, int, tuple[int, ...]]], NDArray[np.uint8]]:
    """Return for each row where its values are, and its shape; and the bytes of all values."""
    rows, lengths, inside = len(column), None, []
    _refuse_nulls(column, name, done)
    while pt.is_nested(column.type):
        if pt.is_fixed_size_list(column.type):
            inside.append(column.type.list_size)
            column = column.flatten()
        elif lengths is None and not inside:
            lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
            column = column.flatten()
        else:
            raise TableError(
                f"column {name!r} has lists inside lists, which cannot become tensors; leave it out with --columns"
            )
        column = _plain(column)
        _refuse_nulls(column, name, done)
    each = int(np.prod(inside, dtype=np.int64))
    counts = np.full(rows, each)
    firsts: list[tuple[int, ...]] = [()] * rows
    if lengths is not None:
        counts, firsts = lengths * each, [(length,) for length in lengths.tolist()]
    ends = np.cumsum(counts).tolist()
    places = [
        (end - count, end, (*first, *inside)) for end, count, first in zip(ends, counts.tolist(), firsts, strict=True)
    ]
    return places, _flat_bytes(column)


def _flat_bytes(values: pa.Array) -> NDArray[np.uint8]:
    if isinstance(values.type, ElementType):
        width = byte_width(values.type)
        return np.frombuffer(values.buffers()[1] or b"", np.uint8)[values.offset * width :][: len(values) * width]
    return np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).view(np.uint8)


def _is_tensor_struct(kind: pa.DataType) -> bool:
    return bool(pt.is_struct(kind)) and [field.name for field in kind] == [VALUES, SHAPE]


def _refuse_nulls(array: pa.Array, name: str, done: int) -> None:
    if array.null_count:
        at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise TableError(
            f"column {name!r} has a null, which a tensor cannot hold: value {at} of those from row {done} on; "
            "filter such rows out, or leave the column out with --columns"
        )
