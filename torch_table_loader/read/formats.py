"""The format readers by name, and by the ends of files' names: those of this library, and those that others install."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_table_loader.arrow.datatypes import levels_of
from torch_table_loader.contracts import installed_names, load_installed
from torch_table_loader.errors import ConfigError, ConfigTypeError, TableError
from torch_table_loader.format_contracts import SidecarReader
from torch_table_loader.installed import FORMATS as OWN
from torch_table_loader.installed import SPELT_OUT
from torch_table_loader.messages import did_you_mean
from torch_table_loader.read.compression import CODECS, split_codec
from torch_table_loader.read.failures import reading
from torch_table_loader.read.parquet import ParquetReader
from torch_table_loader.read.text_options import Csv, Json
from torch_table_loader.sizes import sizes

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage
    from torch_table_loader.format_contracts import FormatReader
    from torch_table_loader.records import DataFile, FileMeta

ENTRY_POINT_GROUP = "torch_table_loader.formats"

_READERS: dict[str, FormatReader] = {}
"""Readers, each made when its name is first used in a process."""

_UNVERIFIED: dict[str, FormatReader] = {"parquet": ParquetReader(verify_checksums=False)}

FORMATS = tuple(OWN)
"""The formats of this library. An installed reader cannot take one of these names."""

DEFAULT_FORMAT = "parquet"
"""The format of files without a suffix, as Hive writes them; the first bytes of a Parquet file say that it is one."""

TEXT_FORMATS = ("csv", "json")
"""Formats whose files may be compressed as a whole."""

_METHODS = ("inspect", "prune", "null_columns", "open")

_MOST_ROWS = 1 << 48
"""More rows than any file has; the rows of many such files still count in 64 bits."""


def format_names() -> tuple[str, ...]:
    """Return what the caller may write as ``format=``."""
    return (*FORMATS, *(name for name in installed_names(ENTRY_POINT_GROUP) if name not in FORMATS))


def reader_for(given: Any, path: Any = None, *, verify_checksums: bool = True) -> FormatReader:
    """Return the reader of a format.

    Args:
        given: what the caller wrote as ``format=``: a name, options of text files, or a reader.
        path: what the caller wrote as ``path``, whose suffix may say what to write.
        verify_checksums: whether stored checksums are compared with the data that they are of; a reader that the
            caller gives decides that itself.

    Raises:
        ConfigError: there is none of that name (those that exist are named), or it cannot be loaded.
        ConfigTypeError: it is not a format reader.

    >>> reader_for("parquet").name
    'parquet'
    """
    if isinstance(given, str):
        if given not in _READERS:
            _READERS[given] = _named(given, path)
        if verify_checksums:
            return _READERS[given]
        return _UNVERIFIED.get(given, _READERS[given])
    if isinstance(given, Csv):
        return _own("csv", options=given)
    if isinstance(given, Json):
        return _own("json", options=given)
    if not any(hasattr(given, method) for method in _METHODS):
        raise _unknown(given, path)
    _check_reader(given, "format")
    return given  # type: ignore[no-any-return]


def reader_of(file: DataFile, *, verify_checksums: bool = True) -> FormatReader:
    """Return the reader of a data file; see `reader_for`."""
    own: FormatReader | None = file.reader
    if own is None:
        return reader_for(file.format, verify_checksums=verify_checksums)
    return own


def settings_of(files: Sequence[DataFile]) -> str:
    """Return which settings of their readers say what the rows of files are; "" where their bytes alone do."""
    alike = {(file.format, id(file.reader)): file for file in files}.values()
    return " ".join(sorted({str(getattr(reader_of(file), "settings", "")) for file in alike}))


def infers_types(file: DataFile) -> bool:
    """Return whether types of a file without a given schema are guessed from its values; see `FormatReader`."""
    return bool(getattr(reader_of(file), "infers_types", False))


def is_columnar(file: DataFile) -> bool:
    """Return whether one column of one row group can be read by itself; see `FormatReader`."""
    return bool(getattr(reader_of(file), "columnar", False))


def inspect_file(storage: Storage, file: DataFile, schema: pa.Schema | None) -> FileMeta:
    """Read the metadata of a file (see `FormatReader.inspect`), and check its counts."""
    try:
        with reading(storage, file):
            meta = reader_of(file).inspect(storage, file, schema)
    except TableError as error:
        if file.format == DEFAULT_FORMAT and (missing := _not_loaded(file.name)):
            raise TableError(f"{error}; a format that cannot be loaded here may be its own: {missing}") from error
        raise
    types = meta.schema.types
    if any(map(pa.types.is_null, types)):  # one that is not nullable is refused by Arrow
        fields = [field.with_nullable(True) if pa.types.is_null(field.type) else field for field in meta.schema]
        meta = replace(meta, schema=pa.schema(fields, meta.schema.metadata))
    deepest, place = max(((levels_of(kind), place) for place, kind in enumerate(types)), default=(0, 0))
    if deepest > sizes().type_levels:
        raise TableError(
            f"{file.name} must have columns whose types nest at most {sizes().type_levels} levels deep, got "
            f"{deepest} in {meta.schema.field(place).name!r:.60}; write it flatter or as text, or leave the file out"
        )
    rows = meta.group_rows
    if min(rows, default=0) < 0 or sum(rows) > _MOST_ROWS:
        raise TableError(
            f"{file.name} must have row groups of 0 rows or more, {_MOST_ROWS} together at most, got "
            f"{list(rows)[:10]}; the file is damaged: write it again, or leave it out of the table"
        )
    return meta


def _unknown(given: Any, path: Any) -> ConfigError:
    """Return the error for a ``format=`` that is neither the name of a format nor a reader."""
    names = format_names()
    message = f"format must be one of {', '.join(map(repr, names))}, got {given!r}{_meant(given, path, names)}"
    if isinstance(given, str):
        return ConfigError(message)
    return ConfigTypeError(message)


def _meant(given: Any, path: Any, names: Sequence[str]) -> str:
    """Return what may have been meant, for a message: the format of files that end as the path, or a like name."""
    known = _by_suffix(FORMATS)
    if isinstance(path, list | tuple) and path:
        path = path[0]
    if isinstance(path, str | os.PathLike) and (ending := known.get(_last_suffix(str(path)).lower())):
        return f"; the path ends as files of format={ending!r} do"
    if isinstance(given, str):
        low = given.lower().lstrip(".")
        if low in FORMATS:
            return f"; did you mean {low}?"
        if f".{low}" in known:
            return f"; did you mean {known[f'.{low}']}?"
    return did_you_mean(given, names)


def _named(name: str, path: Any) -> FormatReader:
    """Make the reader of a format by its name."""
    if name in OWN or name.partition(":")[0] in SPELT_OUT:
        return _own(name)
    if name not in installed_names(ENTRY_POINT_GROUP):
        raise _unknown(name, path)
    return _installed(name)


def _own(name: str, **options: Any) -> FormatReader:
    """Make a reader of this library; one class may read files by several names."""
    spelt_out = SPELT_OUT.get(name.partition(":")[0])
    entry = spelt_out or OWN[name]
    made = getattr(import_module(f"torch_table_loader.{entry.module}"), entry.reader)
    reader: FormatReader = made(name=name, **options) if spelt_out is None else made.parse(name)
    return reader


def _installed(name: str) -> FormatReader:
    """Load an installed reader; an entry point is a reader, or a class or function that makes one."""
    found = load_installed(ENTRY_POINT_GROUP, name, "format reader")
    if isinstance(found, type) or (callable(found) and not hasattr(found, "inspect")):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"the format reader that is installed as {name!r} could not be made "
                f"({type(error).__name__}: {error}); it must need no arguments"
            ) from error
    who = f"the format reader that is installed as {name!r}"
    _check_reader(found, who)
    if found.name != name:
        raise ConfigError(f"{who} must have this name, but calls itself {found.name!r}; correct one of them")
    return found  # type: ignore[no-any-return]


def _check_reader(reader: Any, who: str) -> None:
    """Refuse what cannot be a format reader; `testing.check_format_reader` checks all of the contract."""
    if isinstance(reader, type):
        raise ConfigTypeError(
            f"{who} must be an instance of a format reader, got the class {reader.__name__}; call it first"
        )
    kind = type(reader).__name__
    if missing := [method for method in _METHODS if not callable(getattr(reader, method, None))]:
        raise ConfigTypeError(f"{who} must be a FormatReader, but {kind} has no method {', '.join(missing)}")
    if not isinstance(name := getattr(reader, "name", None), str) or not name:
        raise ConfigTypeError(f"{who} must have a name, a string that is not empty, but {kind}.name is {name!r}")
    try:
        pickle.dumps(reader)
    except Exception as error:
        raise ConfigTypeError(
            f"{who} must pickle, since it travels to worker processes, but {kind} raised "
            f"{type(error).__name__}: {error}; define it at the top of a module, and leave handles out of its state"
        ) from error


def suffixes_of(reader: FormatReader) -> tuple[str, ...]:
    """Return the suffixes of a format's files, those of sidecars included.

    >>> suffixes_of(reader_for("arrow")), suffixes_of(reader_for("megatron")), suffixes_of(reader_for("fms-fsdp"))
    (('.arrow', '.ipc', '.feather'), ('.bin', '.idx'), ('.arrow',))
    """
    own = getattr(reader, "suffixes", None)
    if own is None and isinstance(reader, SidecarReader):
        own = (reader.data_suffix, *(sidecar.suffix for sidecar in reader.sidecars))
    return tuple(own or ())


def reader_by_suffix(names: Sequence[str]) -> FormatReader:
    """Return the reader of files by their names, which must all have suffixes of one format.

    Of two formats with a suffix in common, built-in ones come before installed ones, and otherwise the first in
    `FORMATS`. Installed readers are considered if no built-in format has a suffix. If no name has a suffix of a
    format, the files are read as Parquet files.

    Raises:
        ConfigError: there are files of two formats, or of one and others; or compressed files of a format that is not
            read compressed.

    >>> reader_by_suffix(["a.csv", "b.csv.gz"]).name, reader_by_suffix(["000000_0"]).name
    ('csv', 'parquet')
    """
    firsts: dict[str, str] = {}
    known = _by_suffix(FORMATS)
    parts = [split_codec(name) for name in names]
    if any(_ending(plain, known) is None and _last_suffix(plain) for plain, _ in parts):
        known = {**_by_suffix(_loadable()[0]), **known}
    for name, (plain, _) in zip(names, parts, strict=True):
        firsts.setdefault(known.get(_ending(plain, known) or "", ""), name)
    if set(firsts) == {""} or not firsts:
        return reader_for(DEFAULT_FORMAT)
    if len(firsts) > 1:
        one, other = list(firsts.values())[:2]
        raise ConfigError(
            "without format=, all files must end as those of one format do, got "
            f"{_shown_suffix(one)} ({one}) and {_shown_suffix(other)} ({other}); pass format=, or a path such as "
            f"'…/*{_shown_suffix(next(first for form, first in firsts.items() if form))}' that names the files of one"
        )
    (form,) = firsts
    for name, (_, codec) in zip(names, parts, strict=True):
        if codec and form not in TEXT_FORMATS:
            raise ConfigError(
                f"files of format={form!r} are not read when they are compressed as a whole, got {name}; take "
                f"{codec!r} away (the format compresses by itself), or compress text: CSV and JSON lines are read "
                f"with {', '.join(CODECS)}"
            )
    return reader_for(form)


def _loadable() -> tuple[list[str], dict[str, ConfigError]]:
    """Return the installed formats that can be loaded here, and why the others cannot, such as for a missing extra."""
    loadable, errors = [], {}
    for name in format_names():
        try:
            reader_for(name)
        except ConfigError as error:
            errors[name] = error
        else:
            loadable.append(name)
    return loadable, errors


def _not_loaded(name: str) -> str:
    """Return which installed formats cannot be loaded, and why, if a file's name ends as those of no other format."""
    loadable, errors = _loadable()
    plain = split_codec(name)[0]
    if not _last_suffix(plain) or _ending(plain, _by_suffix(loadable)) is not None:
        return ""
    return "; ".join(f"{form!r} ({error})" for form, error in errors.items())


def _by_suffix(forms: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for form in forms:
        suffixes = OWN[form].suffixes if form in OWN else suffixes_of(reader_for(form))
        for suffix in suffixes:
            found.setdefault(suffix.lower(), form)
    return found


def _ending(name: str, known: Mapping[str, str]) -> str | None:
    """Return the longest suffix that a name ends with."""
    lower = name.lower()  # once: a table may have a million names
    matching = [suffix for suffix in known if lower.endswith(suffix)]
    return max(matching, key=len, default=None)


def _last_suffix(name: str) -> str:
    stem, dot, last = name.rpartition("/")[2].rpartition(".")
    if stem and dot:
        return dot + last
    return ""


def _shown_suffix(name: str) -> str:
    plain, codec = split_codec(name)
    return f"{_last_suffix(plain)}{codec}" or "no suffix"
