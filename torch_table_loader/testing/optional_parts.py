"""The contract of a format reader's optional parts: one type a column, encoded strings, leaving out damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as kinds

from torch_table_loader.arrow.arrays import plain
from torch_table_loader.errors import TableError
from torch_table_loader.format_contracts import EncodingReader, SalvagingReader, SettlingReader
from torch_table_loader.records import DataFile, FileMeta, LeftOut
from torch_table_loader.testing.damage import Damaged
from torch_table_loader.testing.rules import ContractError, contract_errors, expecting_table_error, require

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

ReadWhole = Callable[[str, "Storage", DataFile, FileMeta], object]
"""Reads a file in every way and compares it with its metadata: where, storage, file, metadata."""


def check_settling(
    who: str,
    readers: Sequence[SettlingReader],
    storage: Storage,
    found: Sequence[tuple[DataFile, FileMeta]],
    read: ReadWhole,
) -> None:
    """Check that files of one table get one type for each column, and can be read with it.

    Args:
        who: the reader's name.
        readers: the reader, and its pickled copy.
        storage: the storage of the files.
        found: the files, each with the result of `inspect`.
        read: checks the rows read from a file.
    """
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


def check_encoding(
    where: str, readers: Sequence[EncodingReader], storage: Storage, file: DataFile, meta: FileMeta, rows: pa.Table
) -> None:
    """Check that strings read as dictionaries are the same strings.

    Args:
        where: reader and file.
        readers: the reader, and its pickled copy.
        storage: the storage of the file.
        file: the file.
        meta: the result of `inspect` for it.
        rows: all rows of the file, with plain types.
    """
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


def check_salvaging(
    where: str,
    readers: Sequence[SalvagingReader],
    storage: Storage,
    file: DataFile,
    sound: FileMeta,
    schema: pa.Schema | None,
    read: ReadWhole,
) -> None:
    """Check that nothing is left out of an intact file, and only what is damaged out of a damaged one.

    Args:
        where: reader and file.
        readers: the reader, and its pickled copy.
        storage: the storage of the file.
        file: an intact file.
        sound: the result of `inspect` for it.
        schema: the schema, for a format without types of its own.
        read: checks the rows read from a file.
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
    read: ReadWhole,
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
