"""Turns what pyarrow, a codec or a store raises into this library's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import MissingFileError, OutOfMemoryError, TableError, TableLoaderError
from torch_table_loader.messages import first_line
from torch_table_loader.translating import translating

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import OpenFile
    from torch_table_loader.records import DataFile, FileVersion

_STORE_WORDS = ("AWS Error", "curlCode", "Couldn't resolve", "Connection")
_UNREAD = (
    ("[cC]annot decrypt|FileDecryption", "has encrypted columns", "decrypt it first: this library has no keys"),
    (
        "out of range for nanosecond",  # of ORC, which pyarrow reads as nanoseconds alone
        "holds a time outside of the years 1677 to 2262, which cannot be held as nanoseconds",
        "leave the column out of columns=[...], or write the file as Parquet with microseconds",
    ),
    (
        "compression is supported by the Parquet|[cC]odec .*not (built|supported)",
        "is compressed in a way that pyarrow does not read",
        "{convert} to zstd, snappy or gzip",
    ),
    (
        "cannot contain more than|offset overflow|chunked array outputs",
        "holds more at once than an Arrow array does, such as texts of 2 GiB",
        "{convert} to smaller row groups",
    ),
    (
        "Expected all lists to be of size",
        "holds lists that differ in size from their type's, or nulls among them, which pyarrow before 26 does not read",
        "update pyarrow, or {convert}",
    ),
    ("FromBigEndian", "holds decimals of more bytes than Arrow's", "{convert} to decimals of 16 bytes at most"),
    (
        "Unrecognized type|cannot be applied to|can only (annotate|be applied)",
        "holds a type that pyarrow does not read",
        "{convert} to others with a program that reads it",
    ),
)
"""What pyarrow says of sound bytes that it does not read, what that means, and what to do."""

_CHECKSUM_WORDS = ("CRC checksum verification failed", "page integrity")
_DATA_MODULES = (
    *("builtins", "pyarrow", "numpy", "zlib", "fastavro", "cramjam", "backports", "compression"),
    *("bz2", "lzma", "json", "struct", "decimal"),
)


def is_store_failure(error: BaseException, *, is_local: bool) -> bool:
    """Return whether the store failed, not the data.

    pyarrow raises OSError both for a page that does not decode and for a store that does not answer: the
    latter carries an errno or the store's own words. A client written in Python raises its own types.
    """
    if isinstance(error, pa.ArrowException) and not isinstance(error, OSError):
        return False
    if isinstance(error, OSError):
        return error.errno is not None or type(error) is not OSError or any(word in str(error) for word in _STORE_WORDS)
    return not is_local and not type(error).__module__.startswith(_DATA_MODULES)


@translating
def reading(storage: Storage, file: DataFile, must_be: str = "") -> Iterator[None]:
    """Turn whatever a decoder raises into this library's errors, which name the file.

    A block that finds out whether the file is of its format says that format as `must_be`, such as "an ORC file".

    Raises:
        TableError: the file is damaged or of another format.
        StorageError: the store failed.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, TableLoaderError | MemoryError)
        if not must_be or known or of_unread(error) or is_store_failure(error, is_local=storage.is_local):
            raise as_reading_error(error, file, is_local=storage.is_local) from error
        reason = first_line(error) or type(error).__name__
        raise TableError(
            f"{file.name} must be {must_be}, got one that does not parse ({reason}); "
            "the file is torn or of another format: write it again, leave it out, or pass the format that it has"
        ) from error


@translating
def naming(storage: Storage, file: DataFile) -> Iterator[None]:
    """Add a file's name to errors of its reader, which does not know it when it looks at metadata in memory."""
    try:
        yield
    except Exception as error:
        raise _with_name(as_reading_error(error, file, is_local=storage.is_local), file) from error


def _with_name(error: TableLoaderError, file: DataFile) -> TableLoaderError:
    if isinstance(error, TableError) and file.name not in str(error):
        return TableError(f"{file.name}: {error}")
    return error


def as_reading_error(
    error: Exception,
    file: DataFile,
    *,
    is_local: bool,
    group: int | None = None,
    column: str | None = None,
) -> TableLoaderError:
    """Return an error, to be raised from `error`, that names the file, row group and column that were being read.

    An error of this library is returned as it is; any other becomes a StorageError or a TableError.
    """
    if isinstance(error, TableLoaderError):
        return error
    where = file.name
    if group is not None:
        where += f", row group {group}"
    if column is not None:
        where += f", column {column!r}"
    reason = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, MemoryError):
        return OutOfMemoryError(
            f"there is too little memory to read {where} ({reason}); use fewer workers, fewer columns=[...] or a "
            "smaller batch_size, or give the process more memory; if the file is small, it is damaged: write it again"
        )
    if is_store_failure(error, is_local=is_local):
        kind = store_error_type(error)
        if kind is MissingFileError:
            return MissingFileError(
                f"{where} is gone ({reason}); restore it, or make a new loader, which lists the table again", file.name
            )
        return kind(f"the store failed while reading {where} ({reason}); check access and the network, then resume")
    if any(word in reason for word in _CHECKSUM_WORDS):
        return TableError(
            f"the checksum of a page in {where} does not match its bytes ({reason}): they are not what was written; "
            "restore the file from a copy, write it again, or leave it out of the table "
            "(storage_options={'verify_checksums': False} reads such bytes as they are)"
        )
    if (unread := of_unread(error)) is not None:
        what, remedy = unread
        convert = "convert the file"
        if column is not None:
            convert = "leave such columns out of columns=[...], or convert them"
        message = f"{where} {what} ({reason}); {remedy.format(convert=convert)}"
    else:
        message = (
            f"could not decode {where} as {file.format} ({reason}); the file is damaged or is not what its "
            "metadata says: write it again, or leave it out of the table"
        )
    return TableError(message)


def of_unread(error: BaseException) -> tuple[str, str] | None:
    """Return what to say of sound values that pyarrow does not read, and what to do; None of all other errors."""
    reason = first_line(error)
    found = next(((what, remedy) for words, what, remedy in _UNREAD if re.search(words, reason)), None)
    if found is not None:
        return found
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], int):  # Arrow's number of a type
        return "holds a type that pyarrow has no class for, such as an interval", "{convert} to others"
    if isinstance(error, NotImplementedError):
        return "holds what pyarrow does not read", "{convert} to what it reads"
    return None


def changed_error(file: DataFile, now: FileVersion) -> TableError:
    """Return an error that names what changed in a file between its listing and now."""
    fields = [
        ("size in bytes", file.version.num_bytes, now.num_bytes),
        ("mtime in ns", file.version.mtime_ns, now.mtime_ns),
        ("etag", file.version.etag, now.etag),
    ]
    old, new = file.version.local, now.local
    if old is not None and new is not None and old.machine == new.machine:
        fields += [("inode", old.inode, new.inode), ("ctime in ns", old.ctime_ns, new.ctime_ns)]
    # ctime moves with permissions and links too; whether the content did cannot be known, so it is not assumed.
    changes = [f"{field} was {before!r} and is {after!r}" for field, before, after in fields if before != after]
    if len(changes) == 1 and changes[0].startswith("ctime"):
        changes[0] += " (its permissions or hard links changed, or its content with mtime set back)"
    return TableError(
        f"{file.name} changed while it was in use: {'; '.join(changes)}; build the loader again on the table as it is "
        "now, and let writers add new files instead of writing over old ones"
    )


def find_damage(handle: OpenFile, groups: range, columns: Sequence[str], max_rows: int) -> tuple[int, str] | None:
    """Return the first row group and column that do not decode, by reading the columns one by one."""
    for group in groups:
        for column in columns:
            try:
                for _ in handle.batches(range(group, group + 1), (column,), max_rows):
                    pass
            except Exception:  # noqa: BLE001 - what a decoder raises of damage, it raises here
                return group, column
    return None
