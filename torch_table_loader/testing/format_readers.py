"""The contract of format readers: metadata, pruning, and batches."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from torch_table_loader.arrow.arrays import plain
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
from torch_table_loader.testing.damage import Damaged, Wrapped
from torch_table_loader.testing.rules import ContractError, contract_errors, expecting_table_error, pickled, require

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.records import DataFile


_MAX_ROWS = 7
_PROBED_COLUMNS = 16
_ORDERED = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string, pa.types.is_temporal)
"""Types that pyarrow can compare; half floats are not among them."""


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
    copy = pickled(reader, who)
    found: list[tuple[DataFile, FileMeta]] = []

    def read(where: str, storage: Storage, file: DataFile, meta: FileMeta) -> pa.Table:
        return _check_batches(where, reader, storage, file, meta)

    for file in files:
        where = f"{who} on {file.name!r}"
        with contract_errors(where, "inspect raised"):
            meta = reader.inspect(storage, file, schema)
            again = [each.inspect(storage, file, schema) for each in (reader, copy)]
        _check_meta(where, meta, again)
        _check_traits(where, reader, file, meta)
        table = _check_batches(where, reader, storage, file, meta)
        groups = _groups(table, meta)
        _check_pruning(where, reader, file, meta, groups)
        _check_null_columns(where, reader, meta, groups)
        _check_bounds(where, reader, meta, groups)
        _check_footer_is_not_read_again(where, reader, storage, file, meta)
        _check_failures(where, reader, storage, file, meta, schema)
        found.append((file, meta))
        if isinstance(reader, EncodingReader) and isinstance(copy, EncodingReader):
            _check_encoding(where, (reader, copy), storage, file, meta, table)
        if isinstance(reader, SalvagingReader) and isinstance(copy, SalvagingReader):
            _check_salvaging(where, (reader, copy), storage, file, meta, schema, read)
    if isinstance(reader, SettlingReader) and isinstance(copy, SettlingReader):
        _check_settling(who, (reader, copy), storage, found, read)


def stored_files(
    path: str | os.PathLike[str],
    format: str | FormatReader,  # noqa: A002 the name that callers of a dataset write
) -> tuple[Storage, Sequence[DataFile]]:
    """Return the storage and the files of a table's path, for `check_format_reader`.

    Args:
        path: a directory, a glob, or a file.
        format: the format reader or its name; your own `SidecarReader` as an object.
    """
    by_name = isinstance(format, str)
    reader = reader_for(format) if isinstance(format, str) and format in format_names() else format
    source = PathSource.open(path, reader, by_name=by_name)
    return source.storage, source.files


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


def _check_traits(where: str, reader: FormatReader, file: DataFile, meta: FileMeta) -> None:
    traits = getattr(reader, "traits", None)
    if traits is None:
        return
    require(isinstance(traits, Traits), f"{where}: traits must be a Traits, got {type(traits).__name__}")
    require(
        traits.cut is not None or len(meta.group_rows) <= 1,
        f"{where}: a file of {len(meta.group_rows)} row groups is cut, and traits.cut must say into what",
    )
    if traits.pruned is None:
        with contract_errors(where, "prune raised"):
            kept = reader.prune(file, meta, pc.scalar(False), meta.schema)
        require(all(kept), f"{where}: prune leaves row groups out, and traits.pruned must say by what")


def _check_batches(where: str, reader: FormatReader, storage: Storage, file: DataFile, meta: FileMeta) -> pa.Table:
    """Read the file in every way, and return its rows."""
    everything, names = range(len(meta.group_rows)), meta.schema.names

    def read(what: str, groups: range, columns: Sequence[str], max_rows: int = 1 << 20) -> pa.Table:
        with contract_errors(where, f"reading {what} raised"), closing(reader.open(storage, file, meta)) as opened:
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


def _check_pruning(
    where: str, reader: FormatReader, file: DataFile, meta: FileMeta, groups: Sequence[pa.Table]
) -> None:
    """Filter by existing values: a row group with a passing row must be kept."""
    constants = dict(file.partition)
    fields = [pa.field(name, pa.scalar(value).type) for name, value in constants.items()]
    schema = pa.schema([*meta.schema, *fields])
    complete = [_with_constants(group, constants) for group in groups]
    for name, probe in _probes(complete, schema):
        with contract_errors(where, f"prune({probe}) raised"):
            kept = reader.prune(file, meta, probe, schema)
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


def _check_null_columns(where: str, reader: FormatReader, meta: FileMeta, groups: Sequence[pa.Table]) -> None:
    """Check that claimed nulls exist, and that columns without claimed nulls have none."""
    names = meta.schema.names
    marks = [[True] * len(groups), [False] * len(groups)]
    marks += [[at == only for at in range(len(groups))] for only in range(len(groups))]
    for kept in marks:
        with contract_errors(where, "null_columns raised"):
            found = reader.null_columns(meta, names, kept)
        require(isinstance(found, frozenset), f"{where}: null_columns must give a frozenset, got {found!r}")
        for name in found:
            require(
                name in names
                and any(group.column(name).null_count for group, keep in zip(groups, kept, strict=True) if keep),
                f"{where}: null_columns names {name!r}, which has no null in the row groups that are kept ({kept})",
            )
        for name in reader.null_free(meta, names, kept) if isinstance(reader, NullProvingReader) else ():
            require(
                name in names
                and not any(group.column(name).null_count for group, keep in zip(groups, kept, strict=True) if keep),
                f"{where}: null_free names {name!r}, which has a null in the row groups that are kept ({kept})",
            )


def _check_bounds(where: str, reader: FormatReader, meta: FileMeta, groups: Sequence[pa.Table]) -> None:
    """Check that claims about integers match the decoded values."""
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


def _check_footer_is_not_read_again(
    where: str, reader: FormatReader, storage: Storage, file: DataFile, meta: FileMeta
) -> None:
    if meta.footer is None:
        return
    watched = Watched(storage)
    with contract_errors(where, "open raised"), closing(reader.open(watched, file, meta)) as opened:
        for _ in opened.batches(range(min(1, len(meta.group_rows))), meta.schema.names, 1 << 20):
            pass
    with storage.open(file.path) as handle:
        end, begins = handle.size(), bytes(handle.read(len(meta.footer))) == meta.footer
    # A footer is at the end of a file, unless the file begins with it, it is in a sidecar, or it was found by reading
    # rows, which then continues to the end.
    elsewhere = bool(file.sidecars) or any(stop == end for _, stop in meta.group_ranges or ())
    first, last = (0, len(meta.footer)) if begins else (end, end) if elsewhere else (end - 1, end)
    again = [(start, stop) for start, stop in watched.reads if start < last and stop > first]
    require(not again, f"{where}: open must use the footer of inspect, but read bytes {again} of {end} again")


def _check_failures(
    where: str, reader: FormatReader, storage: Storage, file: DataFile, meta: FileMeta, schema: pa.Schema | None
) -> None:
    gone = replace(file, path=f"{file.path}.is-not-there", name=f"{file.name}.is-not-there")
    with expecting_table_error(where, "inspect of a file that is gone", naming="is-not-there"):
        reader.inspect(storage, gone, schema)
    with (
        expecting_table_error(where, "open of a file that is gone, or its first batch,", naming="is-not-there"),
        closing(reader.open(storage, gone, meta)) as opened,
    ):
        next(opened.batches(range(len(meta.group_rows)), meta.schema.names, 1 << 20), None)
    for place in (Damaged(storage, "cut"), Damaged(storage, "noise")):
        try:
            reader.inspect(place, file, schema)
        except TableError as error:
            require(file.name in str(error), f"{where}: inspect of a {place.harm} file must name it, but says: {error}")
        except Exception as error:
            raise ContractError(
                f"{where}: inspect of a {place.harm} file must raise TableError or nothing, but raised "
                f"{type(error).__name__}: {error}"
            ) from error


def _same(where: str, what: str, found: pa.Table, expected: pa.Table) -> None:
    for name in expected.schema.names:
        require(
            found.num_rows == expected.num_rows and _equal(found.column(name), expected.column(name)),
            f"{where}: {what} must hold the rows that the whole file has there, but column {name!r} differs",
        )


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


@dataclass(frozen=True, slots=True)
class Watched(Wrapped):
    """Serves the files of another storage unchanged, and records what is read."""

    reads: list[tuple[int, int]] = field(default_factory=list, init=False)
    """``(start, stop)`` of each read."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file and record its reads."""
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


_ReadWhole = Callable[[str, "Storage", DataFile, FileMeta], object]
"""Reads a file in every way and compares it with its metadata: where, storage, file, metadata."""


def _check_settling(
    who: str,
    readers: Sequence[SettlingReader],
    storage: Storage,
    found: Sequence[tuple[DataFile, FileMeta]],
    read: _ReadWhole,
) -> None:
    """Check that a reader and its copy give each column one type in all files of a table, and read them with it."""
    metas = [meta for _, meta in found]
    with contract_errors(who, "settle raised"):
        settled, *others = [list(reader.settle(metas)) for reader in readers]
        mixed = list(readers[0].settle([*settled[:1], *metas[1:]]))
        again = list(readers[0].settle(settled))
    require(len(settled) == len(metas), f"{who}: settle must give {len(metas)} FileMetas, got {len(settled)}")
    require(
        all(each == settled for each in (*others, again, mixed)),
        f"{who}: settle must say the same each time, after pickling the reader, and of files that were settled before",
    )
    types: dict[str, tuple[pa.DataType, str]] = {}
    for (file, meta), own in zip(found, settled, strict=True):
        require(
            replace(own, schema=meta.schema) == meta and own.schema.names == meta.schema.names,
            f"{who}: settle must change types alone, but changes more of {file.name!r}",
        )
        for column in own.schema:
            first, name = types.setdefault(column.name, (column.type, file.name))
            require(
                first == column.type,
                f"{who}: settle must give column {column.name!r} one type, but it is {first} in {name!r} and "
                f"{column.type} in {file.name!r}",
            )
        read(f"{who} on {file.name!r}, as settle says", storage, file, own)


def _check_encoding(
    where: str, readers: Sequence[EncodingReader], storage: Storage, file: DataFile, meta: FileMeta, rows: pa.Table
) -> None:
    """Check that strings which a reader and its copy read as dictionaries are those of the plain `rows`."""
    names = [field.name for field in meta.schema if kinds.is_string(field.type)]
    for reader in readers if names else ():
        with contract_errors(where, "reading with encoded columns raised"):
            opened = reader.encoding(frozenset(names)).open(storage, file, meta)
            with closing(opened):
                batches = list(opened.batches(range(len(meta.group_rows)), names, max(1, meta.num_rows)))
        for at, name in enumerate(names):
            arrays = [plain(batch.column(at)) for batch in batches]
            require(
                all(array.type == pa.string() for array in arrays)
                and pa.chunked_array(arrays, pa.string()).equals(rows[name]),
                f"{where}: an encoded column must hold the strings that it holds otherwise, but {name!r} does not",
            )


def _check_salvaging(
    where: str,
    readers: Sequence[SalvagingReader],
    storage: Storage,
    file: DataFile,
    sound: FileMeta,
    schema: pa.Schema | None,
    read: _ReadWhole,
) -> None:
    """Check that a reader and its copy leave nothing out of an intact file, and of a damaged one only the damage.

    `sound` is what `inspect` says of the intact file.
    """
    for reader in readers:
        with contract_errors(where, "salvage of a sound file raised"):
            meta, left_out = reader.salvage(storage, file, schema)
        require(
            meta == sound and not left_out,
            f"{where}: salvage of a sound file must say what inspect says and leave nothing out, got {meta}, "
            f"{left_out}",
        )
    gone = replace(file, path=f"{file.path}.is-not-there", name=f"{file.name}.is-not-there")
    with expecting_table_error(where, "salvage of a file that is gone", naming="is-not-there"):
        readers[0].salvage(storage, gone, schema)
    for place in (Damaged(storage, "cut"), Damaged(storage, "spot"), Damaged(storage, "noise")):
        _check_damaged(f"{where}, {place.harm}", readers, place, place.listed(file), schema, read)


def _check_damaged(
    where: str,
    readers: Sequence[SalvagingReader],
    place: Damaged,
    file: DataFile,
    schema: pa.Schema | None,
    read: _ReadWhole,
) -> None:
    expected = _said(where, file, lambda: (readers[0].inspect(place, file, schema), ()))
    found = _said(where, file, lambda: readers[0].salvage(place, file, schema))
    for reader in readers:
        again = _said(where, file, lambda reader=reader: reader.salvage(place, file, schema))  # type: ignore[misc]
        require(again == found, f"{where}: salvage must say the same each time, and after pickling the reader")
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
        read(f"{where}, what salvage leaves", place, file, meta)


def _said(
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
