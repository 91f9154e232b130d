"""What is deleted from data files: position deletes, deletion vectors and equality deletes, each file read once.

Deletion vectors are roaring bitmaps, framed alike in Puffin files and in those of Delta Lake:
https://iceberg.apache.org/puffin-spec/, and "Deletion Vector Format" in the protocol of Delta Lake, whose log may hold
the bitmap itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.arrow.datatypes import decoded_type, is_string
from torch_table_loader.contracts import is_far
from torch_table_loader.errors import MissingExtraError, TableError
from torch_table_loader.nesting import load_json
from torch_table_loader.planning.distinct import distinct
from torch_table_loader.planning.row_parts import KIND, decoded
from torch_table_loader.ranges import LEAST_TAIL_BYTES
from torch_table_loader.read.by_id import own_ids, plan_by_id
from torch_table_loader.read.failures import reading
from torch_table_loader.read.file_ends import fetched, open_at_end
from torch_table_loader.read.footers import check_rows
from torch_table_loader.read.formats import inspect_file, reader_of
from torch_table_loader.read.key_set import KeySet
from torch_table_loader.read.lru_cache import LRUCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from torch_table_loader.contracts import Storage
    from torch_table_loader.records import Column, DataFile, DeleteFile, FileMeta, TableColumns

CACHE_BYTES = 512 * 1024 * 1024
"""Decoded deletes that a process holds at most; what was used longest ago goes first, and is read again."""

_ROWS_AT_A_TIME = 1 << 17

_PUFFIN = b"PFA1"
_VECTOR = b"\xd1\xd3\x39\x64"
_FOOTER_END = struct.Struct("<iI4s")
_LZ4 = 1
_MOST_FOOTER_BYTES = 256 << 20


class Holder(NamedTuple):
    """A format of files that hold deletion vectors.

    Args:
        head: the bytes with which a file begins.
        lists: whether its end says which vectors it holds, and its length is that of the table's metadata; else
            nothing says how long it is.
    """

    head: bytes
    lists: bool


HOLDERS = {"puffin": Holder(_PUFFIN, lists=True), "deletion vectors": Holder(b"\x01", lists=False)}
"""By the format of a `DeleteFile`'s file; one whose vector the table's log holds is of none of them."""


class EqualityKeys(NamedTuple):
    """Keys whose rows are deleted from a data file, if a commit with a sequence number above `after` deletes them."""

    ids: tuple[int, ...]
    keys: KeySet
    after: int


class Deletes:
    """Reads deletes, and caches them. Threads share it; pickled, it starts empty."""

    def __init__(self, storage: Storage, cache_bytes: int = CACHE_BYTES, *, verify_checksums: bool = True) -> None:
        self.verify_checksums = verify_checksums
        self._storage = storage
        self._cache = LRUCache(cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cache."""
        return partial(Deletes, verify_checksums=self.verify_checksums), (self._storage, self._cache.most_bytes)

    def positions(self, file: DataFile) -> NDArray[np.int64]:
        """Return the deleted rows of a data file that are known by position, or those that stay if `keeps_deleted`.

        They are int64, ascending, each once.

        Raises:
            TableError: a delete file is gone, torn, or does not say what it must.
            StorageError: the store failed.
        """
        deleted = self._named([delete for delete in file.deletes if not delete.keeps], file.path)
        if not file.keeps_deleted:
            return deleted
        kept = self._named([delete for delete in file.deletes if delete.keeps], file.path)
        return np.setdiff1d(kept, deleted, assume_unique=True)

    def equality(self, file: DataFile) -> list[EqualityKeys]:
        """Return the keys whose rows are deleted from a data file."""
        by_columns: dict[tuple[tuple[int, ...], bool], list[DeleteFile]] = {}
        for delete in file.deletes:
            if delete.kind == "equality":
                by_columns.setdefault((tuple(sorted(delete.key_ids)), delete.everywhere), []).append(delete)
        after = _commit_of(file)
        return [EqualityKeys(ids, self._keys(ids, deletes), after) for (ids, _), deletes in by_columns.items()]

    def _named(self, deletes: Sequence[DeleteFile], path: str) -> NDArray[np.int64]:
        """Return the rows that deletes name by position, ascending, each once."""
        parts = [self._positions(delete, path) for delete in deletes if delete.kind != "equality"]
        parts = [part for part in parts if len(part)]
        if not parts:
            return np.empty(0, dtype=np.int64)
        if len(parts) == 1:
            return parts[0]
        return distinct(np.concatenate(parts))

    def _positions(self, delete: DeleteFile, path: str) -> NDArray[np.int64]:
        if delete.kind == KIND:

            def others() -> tuple[NDArray[np.int64], int]:
                positions = decoded(delete.inline).others(delete.file.name, delete.num_rows)
                return positions, positions.nbytes

            return cast("NDArray[np.int64]", self._cached((KIND, path, delete.inline), delete, others))
        if delete.kind == "vector":
            holder, data = HOLDERS.get(delete.file.format), b""
            if holder is not None and holder.lists:
                data = self._checked_data(delete, path)
            name = ("vector", delete.file.path, delete.blob, delete.inline)

            def read() -> tuple[NDArray[np.int64], int]:
                positions = read_vector(self._storage, delete, data)
                return positions, positions.nbytes

            return cast("NDArray[np.int64]", self._cached(name, delete, read))
        by_path = self._cached(("position", delete.file.path), delete, lambda: self._read_positions(delete))
        return cast("NDArray[np.int64]", by_path.get(path, np.empty(0, dtype=np.int64)))

    def _cached(self, key: tuple[Any, ...], delete: DeleteFile, read: Callable[[], tuple[Any, int]]) -> Any:
        """Return what the cache has of a delete file, or read it."""
        with reading(self._storage, delete.file):  # decoders raise errors of many kinds for damaged bytes
            return self._cache.get(key, read)

    def _checked_data(self, delete: DeleteFile, path: str) -> bytes:
        """Check that a vector is of a data file; return the bytes of its file, if that is small."""

        def read() -> tuple[Puffin, int]:
            found = read_listing(self._storage, delete)
            return found, found.num_bytes

        listing: Puffin = self._cached(("listing", delete.file.path), delete, read)
        listing.check(delete, path)
        return listing.data

    def _read_positions(self, delete: DeleteFile) -> tuple[Any, int]:
        """Read a position delete file: for each data file its positions."""
        parts: dict[str, list[NDArray[np.int64]]] = {}
        storage, meta = self._inspected(delete.file)
        for batch in self._rows_of(storage, delete.file, meta, _position_names(delete, meta.schema)):
            paths, positions = batch.columns
            if paths.null_count:  # some writers leave rows without a path, which delete nothing
                named = paths.is_valid()
                paths, positions = paths.filter(named), positions.filter(named)
            if positions.null_count:
                raise TableError(f"{delete.file.name} must give a position in each row, but has nulls; write it again")
            if not pa.types.is_dictionary(paths.type):
                paths = paths.dictionary_encode()
            codes = paths.indices.to_numpy(zero_copy_only=False)
            if not len(codes):
                continue
            rows = positions.cast(pa.int64()).to_numpy(zero_copy_only=False)
            if not (codes[1:] >= codes[:-1]).all():
                order = np.argsort(codes, kind="stable")
                codes, rows = codes[order], rows[order]
            bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
            for start, stop in pairwise(bounds):
                parts.setdefault(paths.dictionary[int(codes[start])].as_py(), []).append(rows[start:stop])
        by_path = {path: distinct(np.concatenate(each)) for path, each in parts.items()}
        return by_path, sum(each.nbytes + len(path) for path, each in by_path.items())

    def _keys(self, ids: tuple[int, ...], deletes: Sequence[DeleteFile]) -> KeySet:
        """Return a set of the keys of some delete files, given oldest first, and maybe of older ones.

        A delete file reaches all data files of earlier commits. So the deletes of an older data file include those of a
        newer one, and the set that is made for the oldest serves all.
        """
        paths = [delete.file.path for delete in deletes]

        def holds(made: tuple[list[str], KeySet]) -> bool:
            return made[0][-len(paths) :] == paths

        def make() -> tuple[tuple[list[str], KeySet], int]:
            tables: list[pa.Table] = [
                self._cached(("keys", delete.file.path), delete, partial(self._read_keys, delete, ids))
                for delete in deletes
            ]
            commits = np.repeat([_commit_of(delete.file) for delete in deletes], [table.num_rows for table in tables])
            keys = KeySet(pa.concat_tables(tables).columns, commits)
            return (paths, keys), keys.num_bytes

        return cast("KeySet", self._cache.get(("set", ids, paths[-1]), make, holds)[1])

    def _read_keys(self, delete: DeleteFile, ids: tuple[int, ...]) -> tuple[Any, int]:
        file = delete.file
        if file.columns is None:
            raise TableError(f"{file.name} must come with the table's columns; plan the table again")
        paths = [key_path(file.columns.table, field_id, file.name) for field_id in ids]
        wanted = [(str(place), path[0]) for place, path in enumerate(paths)]
        storage, meta = self._inspected(file)
        plan = plan_by_id(meta.schema, file.columns, wanted, name=file.name)
        batches = []
        for batch in self._rows_of(storage, file, meta, plan.reads):
            conformed = plan.apply(batch)
            columns = [inside(conformed.column(place), path) for place, path in enumerate(paths)]
            batches.append(pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(ids))]))
        schema = pa.schema([(str(place), path[-1].type) for place, path in enumerate(paths)])
        table = pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
        return table, table.nbytes

    def _inspected(self, file: DataFile) -> tuple[Storage, FileMeta]:
        """Return the metadata of a delete file, and where to read its rows."""
        storage = fetched(self._storage, file)
        meta = inspect_file(storage, file, None)
        if meta.num_rows < (file.num_rows or 0):  # fewer deletes bring rows back; tables exist that count too few
            check_rows(file, meta)
        return storage, meta

    def _rows_of(
        self, storage: Storage, file: DataFile, meta: FileMeta, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read all rows of some columns of a delete file."""
        found = 0
        reader = reader_of(file, verify_checksums=self.verify_checksums)
        with reading(storage, file), closing(reader.open(storage, file, meta)) as handle:
            for batch in handle.batches(range(len(meta.group_rows)), names, _ROWS_AT_A_TIME):
                found += batch.num_rows
                yield batch
        if found != meta.num_rows:
            raise TableError(
                f"{file.name} must have {meta.num_rows} rows, as its footer says, got {found}; the file is damaged: "
                "restore it"
            )


def _position_names(delete: DeleteFile, schema: pa.Schema) -> list[str]:
    """Return the names of the columns of paths and positions in a position delete file."""
    by_id, file = own_ids(schema), delete.file
    found = [by_id.get(field_id) for field_id in delete.key_ids] or [None, None]
    names = [name or usual for name, usual in zip(found, ("file_path", "pos"), strict=True)]
    if missing := [name for name in names if name not in schema.names]:
        raise TableError(f"the position delete file {file.name} must have a column {missing[0]!r}; it has none")
    kinds = [schema.field(name).type for name in names]
    if not (is_string(decoded_type(kinds[0])) and pa.types.is_integer(kinds[1])):
        raise TableError(
            f"the position delete file {file.name} must have paths in {names[0]!r} and whole numbers in "
            f"{names[1]!r}, got {kinds[0]} and {kinds[1]}; write the table's deletes again"
        )
    return names


def _commit_of(file: DataFile) -> int:
    if file.columns is None:
        return 0
    return file.columns.sequence_number or 0


def key_path(table: TableColumns, field_id: int, name: str) -> tuple[Column, ...]:
    """Return the way to a key column of a delete file: a column that the table has or had, or a field inside of one."""
    for column in (*table.current, *table.former.values()):
        if (path := _path_to(column, field_id)) is not None:
            return path
    raise TableError(f"{name} deletes by the column with the id {field_id}, which no schema of the table has")


def inside(array: pa.Array, path: Sequence[Column]) -> pa.Array:
    """Return a field inside of a struct, by the way to it; inside of null all is null."""
    for column in path[1:]:
        array = pc.struct_field(array, column.name)
    return array


def _path_to(column: Column, field_id: int) -> tuple[Column, ...] | None:
    if column.field_id == field_id:
        return (column,)
    if pa.types.is_struct(column.type):
        for child in column.children:
            if (rest := _path_to(child, field_id)) is not None:
                return (column, *rest)
    return None


class Puffin(NamedTuple):
    """A Puffin file: the length and properties of each blob, by its first byte, and the bytes of a small file."""

    blobs: Mapping[int, tuple[int, Mapping[str, Any]]]
    data: bytes

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        return len(self.data) + 512 * len(self.blobs)

    def check(self, delete: DeleteFile, path: str) -> None:
        """Refuse a vector that was not written for a data file."""
        offset, length = delete.blob or (0, 0)
        found, properties = self.blobs.get(offset, (None, {}))
        if found != length:
            there = "none" if found is None else f"one of {found} bytes"
            raise _broken(delete, f"a blob of {length} bytes at byte {offset}, as the table's metadata says", there)
        if (target := properties.get("referenced-data-file")) != path:
            raise _broken(delete, f"of {path!r}, as the table's metadata says", f"one of {target!r}")
        if (rows := str(properties.get("cardinality", delete.num_rows))) != str(delete.num_rows):
            raise _broken(delete, f"of {delete.num_rows} rows, as the table's metadata says", f"one of {rows:.40}")


def read_listing(storage: Storage, delete: DeleteFile) -> Puffin:
    """Read the footer of a Puffin file; from a remote store, one request brings a small file whole."""
    with open_at_end(storage, delete.file) as source:
        size = source.size()
        tail = source.read_at(min(size, LEAST_TAIL_BYTES), max(0, size - LEAST_TAIL_BYTES))
        if len(tail) < _FOOTER_END.size or not tail.endswith(_PUFFIN):
            raise _broken(delete, f"in a Puffin file, which begins and ends with {_PUFFIN!r}", repr(tail[-4:]))
        length, flags, _ = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
        start = size - _FOOTER_END.size - length - len(_PUFFIN)
        if not 0 <= length <= _MOST_FOOTER_BYTES or start < len(_PUFFIN):
            raise _broken(delete, f"in a Puffin file of {size} bytes", f"a footer of {length} bytes")
        footer, head, whole = tail[start - size :], _PUFFIN, b""
        if size - start > len(tail):
            footer = source.read_at(size - start, start)
        if len(tail) == size:
            head, whole = tail[:4], tail
        elif not is_far(storage):
            head = source.read_at(4, 0)
    if head != _PUFFIN or not footer.startswith(_PUFFIN):
        raise _broken(delete, f"in a Puffin file, which begins and ends with {_PUFFIN!r}", f"{head!r}, {footer[:4]!r}")
    payload = footer[len(_PUFFIN) : -_FOOTER_END.size]
    try:
        if flags & _LZ4:
            payload = _decompressed(payload)
        listed = load_json(payload, delete.file.name)["blobs"]
        blobs = {int(each["offset"]): (int(each["length"]), dict(each.get("properties") or {})) for each in listed}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _broken(delete, "in a Puffin file whose footer is JSON with blobs", f"another ({error!r})") from error
    return Puffin(blobs, whole)


def _decompressed(payload: bytes) -> bytes:
    found: bytes = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read(_MOST_FOOTER_BYTES)
    return found


def read_vector(storage: Storage, delete: DeleteFile, data: bytes = b"") -> NDArray[np.int64]:
    """Read a deletion vector, from `data` if that has all bytes of its file: int64 positions, ascending."""
    if delete.blob is None:
        return _parse_bitmap(delete.inline, delete)
    offset, length = delete.blob
    start, lists = HOLDERS[delete.file.format]
    size = (delete.file.version if lists else storage.version(delete.file.path)).num_bytes
    if offset < len(start) or length < 1 or offset + length > size:
        raise _broken(delete, f"a blob inside its {size} bytes", f"bytes {offset} to {offset + length}")
    if data:
        blob = data[offset : offset + length]
    elif is_far(storage):  # its length, magic and checksum show whether it is the blob
        blob = bytes(storage.read_range(delete.file.path, offset, offset + length, delete.file.version))
    else:
        with storage.open(delete.file.path) as source:
            if (head := source.read_at(len(start), 0)) != start:
                raise _broken(delete, f"in a file that begins with {start!r}", repr(head))
            blob = source.read_at(length, offset)
    if len(blob) < 12 or int.from_bytes(blob[:4], "big") != len(blob) - 8:
        raise _broken(delete, "a blob that says its own length", f"{len(blob)} bytes that say another")
    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise _broken(delete, "a blob whose checksum holds", "another checksum")
    return _parse_bitmap(blob[4:-4], delete)


def _parse_bitmap(body: bytes, delete: DeleteFile) -> NDArray[np.int64]:
    if body[:4] != _VECTOR:
        raise _broken(delete, f"a blob with the magic {_VECTOR!r}", repr(body[:4]))
    try:
        bitmap = _bitmap(body[4:])
        if len(bitmap) != delete.num_rows:  # before it is unpacked: a few bytes may hold any number of positions
            raise _broken(delete, f"the {delete.num_rows} positions that the table's metadata says", f"{len(bitmap)}")
        return np.array(bitmap.to_array(), dtype=np.int64)
    except (ValueError, OverflowError, IndexError) as error:
        raise _broken(delete, "a roaring bitmap", f"bytes that do not parse ({error})") from error


def _bitmap(data: bytes) -> Any:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        raise MissingExtraError("deletion vectors need pyroaring; pip install pyroaring") from error
    return BitMap64.deserialize(data)


def _broken(delete: DeleteFile, expected: str, got: str) -> TableError:
    return TableError(
        f"the deletion vector in {delete.file.name} must be {expected}, got {got}; the file is torn, or was not "
        "written as the format says: write the table's deletes again"
    )
