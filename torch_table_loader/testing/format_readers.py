"""The contract of format readers: metadata, pruning, and batches."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from typing_extensions import override

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.contracts import Storage
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import (
    BoundsReader,
    EncodingReader,
    NullProvingReader,
    SalvagingReader,
    SettlingReader,
    Traits,
)
from torch_table_loader.read.formats import format_names, reader_for
from torch_table_loader.records import DataFile, FileMeta, LeftOut
from torch_table_loader.source.listing import PathSource
from torch_table_loader.testing.rules import GONE, ContractError, contract_errors, expecting_missing, pickled, require

if TYPE_CHECKING:
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.records import DataFile, FileVersion

_MAX_ROWS = 7
_PROBED_COLUMNS = 16
_ORDERED = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string, pa.types.is_temporal)
"""Types that pyarrow can compare; half floats are not among them."""

_SPOT = 16
"""Bytes in the middle that "spot" overwrites."""


def check_format_reader(
    reader: FormatReader, storage: Storage, files: Sequence[DataFile], schema: pa.Schema | None = None
) -> None:
    """Check a format reader with files of its format, by reading them completely, several times.

    It must be picklable; return metadata that is true of what it reads; read any row groups, columns and batch sizes
    alike; never prune a row group that contains a passing row; name null columns that do contain a null; open without
    reading the footer again; and answer a missing, cut or damaged file with a TableError that names it. With `settle`
    it must give a column one type in all files, and read it so; with `salvage` it must leave out what is damaged, and
    no more than it says.

    Args:
        files: small files, ideally with several row groups, with nulls, and with all types that the format has.
        schema: the schema, for a format without types of its own.

    Raises:
        ContractError: a rule is broken; the message names the rule, the file, and the row group or column.
    """
    who = type(reader).__name__
    require(isinstance(reader.name, str) and reader.name, f"{who} must have a name, got {reader.name!r}")
    require(files, f"{who} must be checked by at least one file")
    readers = (reader, pickled(reader, who))
    cases = [_case(readers, storage, file, schema) for file in files]
    for case in cases:
        _check_traits(case)
        table = _check_batches(case)
        groups = _groups(table, case.meta)
        _check_pruning(case, groups)
        _check_null_columns(case, groups)
        _check_bounds(case, groups)
        _check_footer_is_not_read_again(case)
        _check_failures(case)
        _check_encoding(case, table)
        _check_salvaging(case)
    _check_settling(who, cases)


def stored_files(
    path: str | os.PathLike[str],
    format: str | FormatReader,  # noqa: A002 the name that callers of a dataset write
) -> tuple[Storage, Sequence[DataFile]]:
    """Return the storage and the files of a table's path, for `check_format_reader`.

    Args:
        path: a directory, a glob, or a file.
        format: the format reader or its name; your own `SidecarReader` as an object.
    """
    by_name, reader = isinstance(format, str), format
    if isinstance(format, str) and format in format_names():
        reader = reader_for(format)
    source = PathSource.open(path, reader, by_name=by_name)
    return source.storage, source.files


@dataclass(frozen=True, slots=True)
class _Case:
    """A reader and its pickled copy, a file to check them with, and what they say of it."""

    where: str
    readers: tuple[FormatReader, FormatReader]
    storage: Storage
    file: DataFile
    schema: pa.Schema | None
    meta: FileMeta

    @property
    def reader(self) -> FormatReader:
        """The reader itself."""
        return self.readers[0]


def _case(
    readers: tuple[FormatReader, FormatReader], storage: Storage, file: DataFile, schema: pa.Schema | None
) -> _Case:
    where = f"{type(readers[0]).__name__} on {file.name!r}"
    with contract_errors(where, "inspect raised"):
        meta = readers[0].inspect(storage, file, schema)
        again = [reader.inspect(storage, file, schema) for reader in readers]
    _check_meta(where, meta, again)
    return _Case(where, readers, storage, file, schema, meta)


def _check_meta(where: str, meta: FileMeta, again: list[FileMeta]) -> None:
    require(isinstance(meta, FileMeta), f"{where}: inspect must give a FileMeta, got {type(meta).__name__}")
    require(again == [meta, meta], f"{where}: inspect must say the same each time, and after pickling the reader")
    require(isinstance(meta.schema, pa.Schema), f"{where}: the schema must be Arrow's, got {type(meta.schema)}")
    names = meta.schema.names
    require(len(set(names)) == len(names), f"{where}: column names must be unique, got {names}")
    counts = (*meta.group_rows, *meta.group_bytes)
    require(
        all(isinstance(count, int) and count >= 0 for count in counts),
        f"{where}: rows and bytes of row groups must be ints of at least 0, got {meta.group_rows}, {meta.group_bytes}",
    )
    pickled(meta, f"{where}: its FileMeta")


def _check_traits(case: _Case) -> None:
    where, meta = case.where, case.meta
    traits = getattr(case.reader, "traits", None)
    if traits is None:
        return
    require(isinstance(traits, Traits), f"{where}: traits must be a Traits, got {type(traits).__name__}")
    require(
        traits.cut is not None or len(meta.group_rows) <= 1,
        f"{where}: a file of {len(meta.group_rows)} row groups is cut, and traits.cut must say into what",
    )
    if traits.pruned is None:
        with contract_errors(where, "prune raised"):
            kept = case.reader.prune(case.file, meta, pc.scalar(False), meta.schema)
        require(all(kept), f"{where}: prune leaves row groups out, and traits.pruned must say by what")


def _check_batches(case: _Case) -> pa.Table:
    """Read the file in every way, and return its rows."""
    where, meta = case.where, case.meta
    everything, names = range(len(meta.group_rows)), meta.schema.names

    def read(what: str, groups: range, columns: Sequence[str], max_rows: int = 1 << 20) -> pa.Table:
        with (
            contract_errors(where, f"reading {what} raised"),
            closing(case.reader.open(case.storage, case.file, meta)) as opened,
        ):
            return _collect(f"{where}, {what}", opened.batches(groups, columns, max_rows), meta, columns, max_rows)

    table = read("all of it", everything, names)
    require(
        table.num_rows == meta.num_rows, f"{where} must have the {meta.num_rows} rows of inspect, got {table.num_rows}"
    )
    for group in everything:
        part, start = read(f"row group {group}", range(group, group + 1), names), sum(meta.group_rows[:group])
        rows = meta.group_rows[group]
        require(
            part.num_rows == rows,
            f"{where}: row group {group} must have the {rows} rows of inspect, got {part.num_rows}",
        )
        _same(where, f"row group {group}", part, table.slice(start, rows))
    later = everything[len(everything) // 2 :]
    tail = table.slice(sum(meta.group_rows[: later.start]))
    _same(where, "its later row groups", read("later row groups", later, names), tail)
    _same(where, "no row groups", read("no row groups", everything[:0], names), table.slice(0, 0))
    _same(where, f"at most {_MAX_ROWS} rows a batch", read("small batches", everything, names, _MAX_ROWS), table)
    _same(where, "columns the other way round", read("columns", everything, names[::-1]), table.select(names[::-1]))
    require(
        read("no columns", everything, []).num_rows == table.num_rows,
        f"{where}: batches without columns must still have all rows",
    )
    return table


def _collect(
    what: str, batches: Iterator[pa.RecordBatch], meta: FileMeta, columns: Sequence[str], max_rows: int
) -> pa.Table:
    parts, rows = [], 0
    schema = pa.schema([meta.schema.field(name) for name in columns])
    for batch in batches:
        require(isinstance(batch, pa.RecordBatch), f"{what}: expected RecordBatches, got {type(batch).__name__}")
        require(batch.num_rows <= max_rows, f"{what}: a batch must have at most {max_rows} rows, got {batch.num_rows}")
        require(
            batch.schema.names == list(columns),
            f"{what}: a batch must have exactly the columns {list(columns)}, in this order, got {batch.schema.names}",
        )
        for column in schema:
            found = batch.schema.field(column.name).type
            require(
                found == column.type,
                f"{what}: column {column.name!r} must be {column.type} as inspect says, got {found}",
            )
        rows += batch.num_rows
        parts.append(batch.replace_schema_metadata(None).columns)
    if not columns:
        return pa.table({"": pa.nulls(rows)}).select([])
    chunks = [pa.chunked_array([part[at] for part in parts], column.type) for at, column in enumerate(schema)]
    return pa.Table.from_arrays(chunks, names=list(columns))


def _groups(table: pa.Table, meta: FileMeta) -> list[pa.Table]:
    starts = [sum(meta.group_rows[:group]) for group in range(len(meta.group_rows))]
    return [table.slice(start, rows) for start, rows in zip(starts, meta.group_rows, strict=True)]


def _check_pruning(case: _Case, groups: Sequence[pa.Table]) -> None:
    """Filter by existing values: a row group with a passing row must be kept."""
    where, constants = case.where, dict(case.file.partition)
    fields = [pa.field(name, pa.scalar(value).type) for name, value in constants.items()]
    schema = pa.schema([*case.meta.schema, *fields])
    complete = [_with_constants(group, constants) for group in groups]
    for name, probe in _probes(complete, schema):
        with contract_errors(where, f"prune({probe}) raised"):
            kept = case.reader.prune(case.file, case.meta, probe, schema)
        require(
            len(kept) == len(groups),
            f"{where}: prune must say one mark for each of {len(groups)} row groups, got {kept}",
        )
        for number, group in enumerate(complete):
            require(
                kept[number] or not group.filter(probe).num_rows,
                f"{where}: row group {number} holds rows that pass {probe}, but prune says False (column {name!r})",
            )


def _with_constants(group: pa.Table, constants: dict[str, Any]) -> pa.Table:
    for name, value in constants.items():
        group = group.append_column(name, pa.array([value] * group.num_rows, pa.scalar(value).type))
    return group


def _probes(groups: Sequence[pa.Table], schema: pa.Schema) -> Iterator[tuple[str, pc.Expression]]:
    for column in schema.names[:_PROBED_COLUMNS]:
        field = pc.field(column)
        yield column, field.is_null()
        yield column, field.is_valid()
        yield column, field.is_valid() | field.is_null()
        if not any(belongs(schema.field(column).type) for belongs in _ORDERED):
            continue
        values = [value for group in groups for value in _ends(group.column(column))]
        yield from ((column, probe) for value in values for probe in _comparisons(field, value))


def _comparisons(field: pc.Expression, value: pa.Scalar) -> list[pc.Expression]:
    equal = field == value
    return [
        equal, ~equal, field != value, field <= value, field >= value, field < value, field > value, field.isin([value])
    ]  # fmt: skip


def _ends(column: pa.ChunkedArray) -> list[pa.Scalar]:
    """Return the first, least and greatest value."""
    known = column.drop_null()
    if not len(known):
        return []
    bounds = pc.min_max(known)
    return [known[0], bounds["min"], bounds["max"]]


def _check_null_columns(case: _Case, groups: Sequence[pa.Table]) -> None:
    """Check that claimed nulls exist, and that columns without claimed nulls have none."""
    where, reader, names = case.where, case.reader, case.meta.schema.names
    marks = [[True] * len(groups), [False] * len(groups)]
    marks += [[at == only for at in range(len(groups))] for only in range(len(groups))]
    for kept in marks:
        with contract_errors(where, "null_columns raised"):
            found = reader.null_columns(case.meta, names, kept)
        require(isinstance(found, frozenset), f"{where}: null_columns must give a frozenset, got {found!r}")
        for name in found:
            require(
                name in names
                and any(group.column(name).null_count for group, keep in zip(groups, kept, strict=True) if keep),
                f"{where}: null_columns names {name!r}, which has no null in the row groups that are kept ({kept})",
            )
        if not isinstance(reader, NullProvingReader):
            continue
        for name in reader.null_free(case.meta, names, kept):
            require(
                name in names
                and not any(group.column(name).null_count for group, keep in zip(groups, kept, strict=True) if keep),
                f"{where}: null_free names {name!r}, which has a null in the row groups that are kept ({kept})",
            )


def _check_bounds(case: _Case, groups: Sequence[pa.Table]) -> None:
    """Check that claims about integers match the decoded values."""
    where, reader, meta = case.where, case.reader, case.meta
    if not isinstance(reader, BoundsReader):
        return
    whole = pa.concat_tables(groups) if groups else meta.schema.empty_table()
    for name in meta.schema.names:
        if not pa.types.is_integer(meta.schema.field(name).type):
            continue
        with contract_errors(where, "bounds raised"):
            found = reader.bounds(meta, name)
        least = pc.min_max(whole.column(name)).as_py()
        wanted = (whole.column(name).null_count, least["min"], least["max"])
        require(found in (None, wanted), f"{where}: bounds of {name!r} must be None or {wanted}, got {found}")


def _check_footer_is_not_read_again(case: _Case) -> None:
    where, file, meta = case.where, case.file, case.meta
    if meta.footer is None:
        return
    watched = Watched(case.storage)
    with contract_errors(where, "open raised"), closing(case.reader.open(watched, file, meta)) as opened:
        for _ in opened.batches(range(min(1, len(meta.group_rows))), meta.schema.names, 1 << 20):
            pass
    with case.storage.open(file.path) as handle:
        end, begins = handle.size(), bytes(handle.read(len(meta.footer))) == meta.footer
    # A footer is at the end of a file, unless the file begins with it, it is in a sidecar, or it was found by reading
    # rows, which then continues to the end.
    elsewhere = bool(file.sidecars) or any(stop == end for _, stop in meta.group_ranges or ())
    first, last = end - 1, end
    if begins:
        first, last = 0, len(meta.footer)
    elif elsewhere:
        first = end
    again = [(start, stop) for start, stop in watched.reads if start < last and stop > first]
    require(not again, f"{where}: open must use the footer of inspect, but read bytes {again} of {end} again")


def _check_failures(case: _Case) -> None:
    where, reader, file, meta = case.where, case.reader, case.file, case.meta
    gone = _gone(file)
    with expecting_missing(where, "inspect of a file that is gone"):
        reader.inspect(case.storage, gone, case.schema)
    with (
        expecting_missing(where, "open of a file that is gone, or its first batch,"),
        closing(reader.open(case.storage, gone, meta)) as opened,
    ):
        next(opened.batches(range(len(meta.group_rows)), meta.schema.names, 1 << 20), None)
    for place in (Damaged(case.storage, "cut"), Damaged(case.storage, "noise")):
        try:
            reader.inspect(place, file, case.schema)
        except TableError as error:
            require(file.name in str(error), f"{where}: inspect of a {place.harm} file must name it, but says: {error}")
        except Exception as error:
            raise ContractError(
                f"{where}: inspect of a {place.harm} file must raise TableError or nothing, but raised "
                f"{type(error).__name__}: {error}"
            ) from error


def _gone(file: DataFile) -> DataFile:
    return replace(file, path=f"{file.path}.{GONE}", name=f"{file.name}.{GONE}")


def _same(where: str, what: str, found: pa.Table, expected: pa.Table) -> None:
    for name in expected.schema.names:
        require(
            found.num_rows == expected.num_rows and _equal(found.column(name), expected.column(name)),
            f"{where}: {what} must hold the rows that the whole file has there, but column {name!r} differs",
        )


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


@dataclass(frozen=True, slots=True)
class Wrapped(Storage):
    """A storage that opens the files of another one differently."""

    inner: Storage

    @property
    @override
    def is_local(self) -> bool:
        return self.inner.is_local

    @override
    def version(self, path: str) -> FileVersion:
        return self.inner.version(path)

    @override
    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True, slots=True)
class Watched(Wrapped):
    """Serves the files of another storage unchanged, and records what is read."""

    reads: list[tuple[int, int]] = field(default_factory=list, init=False)
    """``(start, stop)`` of each read."""

    @override
    def open(self, path: str) -> pa.NativeFile:
        with self.inner.open(path) as handle:
            return pa.PythonFile(_Noting(bytes(handle.read()), self.reads), mode="r")


class _Noting(io.BytesIO):
    def __init__(self, content: bytes, reads: list[tuple[int, int]]) -> None:
        super().__init__(content)
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        data = super().read(size)
        self._reads.append((start, start + len(data)))
        return data

    def readinto(self, buffer: Any, /) -> int:
        start = self.tell()
        count = super().readinto(buffer)
        self._reads.append((start, start + count))
        return count


def _check_settling(who: str, cases: Sequence[_Case]) -> None:
    """Check that each column gets one type in all files of a table, with which they can be read."""
    metas, (reader, copy) = [case.meta for case in cases], cases[0].readers
    if not isinstance(reader, SettlingReader) or not isinstance(copy, SettlingReader):
        return
    with contract_errors(who, "settle raised"):
        settled, other = list(reader.settle(metas)), list(copy.settle(metas))
        mixed = list(reader.settle([*settled[:1], *metas[1:]]))
        again = list(reader.settle(settled))
    require(len(settled) == len(metas), f"{who}: settle must give {len(metas)} FileMetas, got {len(settled)}")
    require(
        all(each == settled for each in (other, again, mixed)),
        f"{who}: settle must say the same each time, after pickling the reader, and of files that were settled before",
    )
    types: dict[str, tuple[pa.DataType, str]] = {}
    for case, own in zip(cases, settled, strict=True):
        file = case.file
        require(
            replace(own, schema=case.meta.schema) == case.meta and own.schema.names == case.meta.schema.names,
            f"{who}: settle must change types alone, but changes more of {file.name!r}",
        )
        for column in own.schema:
            first, name = types.setdefault(column.name, (column.type, file.name))
            require(
                first == column.type,
                f"{who}: settle must give column {column.name!r} one type, but it is {first} in {name!r} and "
                f"{column.type} in {file.name!r}",
            )
        _check_batches(replace(case, where=f"{case.where}, as settle says", meta=own))


def _check_encoding(case: _Case, rows: pa.Table) -> None:
    """Check that strings read as dictionaries are those of the plain `rows`."""
    where, meta = case.where, case.meta
    names = [field.name for field in meta.schema if kinds.is_string(field.type)]
    if not names:
        return
    for reader in case.readers:
        if not isinstance(reader, EncodingReader):
            return
        with contract_errors(where, "reading with encoded columns raised"):
            opened = reader.encoding(frozenset(names)).open(case.storage, case.file, meta)
            with closing(opened):
                batches = list(opened.batches(range(len(meta.group_rows)), names, max(1, meta.num_rows)))
        for at, name in enumerate(names):
            arrays = [plain(batch.column(at)) for batch in batches]
            require(
                all(array.type == pa.string() for array in arrays)
                and pa.chunked_array(arrays, pa.string()).equals(rows[name]),
                f"{where}: an encoded column must hold the strings that it holds otherwise, but {name!r} does not",
            )


def _check_salvaging(case: _Case) -> None:
    """Check that nothing is left out of an intact file, and only what is damaged out of a damaged one."""
    where, (reader, copy) = case.where, case.readers
    if not isinstance(reader, SalvagingReader) or not isinstance(copy, SalvagingReader):
        return
    for each in (reader, copy):
        with contract_errors(where, "salvage of a sound file raised"):
            meta, left_out = each.salvage(case.storage, case.file, case.schema)
        require(
            meta == case.meta and not left_out,
            f"{where}: salvage of a sound file must say what inspect says and leave nothing out, got {meta}, "
            f"{left_out}",
        )
    with expecting_missing(where, "salvage of a file that is gone"):
        reader.salvage(case.storage, _gone(case.file), case.schema)
    for place in (Damaged(case.storage, "cut"), Damaged(case.storage, "spot"), Damaged(case.storage, "noise")):
        damaged = replace(case, where=f"{where}, {place.harm}", storage=place, file=place.listed(case.file))
        _check_damaged(damaged, (reader, copy))


def _check_damaged(case: _Case, readers: Sequence[SalvagingReader]) -> None:
    where, place, file, schema = case.where, case.storage, case.file, case.schema
    expected = _answer_of(where, file, lambda: (readers[0].inspect(place, file, schema), ()))
    found, *others = (
        _answer_of(where, file, lambda reader=reader: reader.salvage(place, file, schema))  # type: ignore[misc]
        for reader in (readers[0], *readers)
    )
    require(
        all(other == found for other in others),
        f"{where}: salvage must say the same each time, and after pickling the reader",
    )
    if expected is not None:
        require(found == expected, f"{where}: salvage of a file that inspect takes must say the same as inspect")
    if found is None:
        return
    meta, left_out = found
    require(
        expected is not None or left_out,
        f"{where}: inspect refuses the file, and salvage leaves nothing out; name each part that is left out",
    )
    for part in left_out:
        require(
            isinstance(part, LeftOut)
            and part.file == file.name
            and 0 <= part.start < part.stop <= file.version.num_bytes,
            f"{where}: what is left out must be a LeftOut of bytes of the file, got {part!r}",
        )
    if left_out and meta.num_rows:
        _check_batches(replace(case, where=f"{where}, what salvage leaves", meta=meta))


def _answer_of(
    where: str, file: DataFile, ask: Callable[[], tuple[FileMeta, Sequence[LeftOut]]]
) -> tuple[FileMeta, tuple[LeftOut, ...]] | None:
    """Return an answer; None if it is a TableError that names the file."""
    try:
        meta, left_out = ask()
    except TableError as error:
        require(file.name in str(error), f"{where}: a TableError must name {file.name!r}, but says: {error}")
        return None
    except Exception as error:
        raise ContractError(
            f"{where}: inspect and salvage must raise TableError or nothing, but one raised {type(error).__name__}: "
            f"{error}"
        ) from error
    return meta, tuple(left_out)


@dataclass(frozen=True, slots=True)
class Damaged(Wrapped):
    """Serves the files of another storage with some harm done to their bytes.

    "cut" keeps the first half; "noise" keeps only the length; "spot" keeps all but some bytes in the middle.
    """

    harm: Literal["cut", "noise", "spot"]

    @override
    def open(self, path: str) -> pa.NativeFile:
        with self.inner.open(path) as handle:
            content = bytes(handle.read())
        middle, noise = len(content) // 2, _noise(len(content))
        harmed = {
            "cut": content[:middle],
            "noise": noise,
            "spot": content[:middle] + noise[middle : middle + _SPOT] + content[middle + _SPOT :],
        }
        return pa.BufferReader(harmed[self.harm])

    def listed(self, file: DataFile) -> DataFile:
        """Return a file as a listing shows it after the damage: a cut file is shorter."""
        num_bytes = file.version.num_bytes
        if self.harm == "cut":
            num_bytes //= 2
        return replace(file, version=replace(file.version, num_bytes=num_bytes))


def _noise(length: int) -> bytes:
    """Return bytes of a fixed generator (Lehmer's, modulo 2**31 − 1), the same in each run."""
    state, noise = 1, bytearray()
    for _ in range(length):
        state = state * 48271 % 0x7FFFFFFF
        noise.append(state & 0xFF)
    return bytes(noise)
