"""What the folders say that files lie in.

``key=value`` folders, as Hive names them, become typed columns, the same ones on every rank. Folders of other table
formats are recognized, whose files are not simply their rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from torch_table_loader.errors import AccessRefusedError, ConfigError, TableError
from torch_table_loader.ranges import Found
from torch_table_loader.source.address import HTTP_PROTOCOLS, parse_address
from torch_table_loader.source.storage import FileStorage, open_storage

NULL_SEGMENT = "__HIVE_DEFAULT_PARTITION__"
"""The text that Hive and Spark write for null (Hive's ``hive.exec.default.partition.name``)."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

PartitionValues = tuple[tuple[str, Any], ...]

_ICEBERG = re.compile(r"(?P<table>(?:.*/)?)metadata/[^/]*\.metadata\.json")
_DELTA = re.compile(r"(?P<table>(?:.*/)?)_delta_log(?:/.*)?")
_HUDI = re.compile(r"(?P<table>(?:.*/)?)(?:\.hoodie(?:/.*)?|\.hoodie_partition_metadata[^/]*)")

_MARKS = ("metadata/", "_delta_log", ".hoodie")
"""Text that every pattern requires: most names contain none of it."""

_VERSION = re.compile(r"v?(\d+)")


def hive_segments(name: str) -> tuple[tuple[str, str | None], ...]:
    """Split a file's name, relative to the table's root, into its partition keys and values, as text.

    >>> hive_segments("day=2024-01-31/city=S%C3%A3o%20Paulo/part-0.parquet")
    (('day', '2024-01-31'), ('city', 'São Paulo'))
    """
    found: dict[str, str | None] = {}
    for segment in name.split("/")[:-1]:
        if not _is_hive(segment):
            continue
        raw_key, _, raw_value = segment.partition("=")
        try:
            key = unquote(raw_key, errors="strict")
            value = None if raw_value == NULL_SEGMENT else unquote(raw_value, errors="strict")
        except UnicodeDecodeError as error:
            raise TableError(
                f"{name}: hive segment {segment!r} must be percent-encoded UTF-8; rename the directory"
            ) from error
        if key in found:
            raise TableError(f"{name}: hive key {key!r} comes twice in one path; remove one of them")
        found[key] = value
    return tuple(found.items())


def hive_root(root: str) -> str:
    """Return the unbroken run of ``key=value`` segments that a table's root ends with, as a prefix of names.

    The path of one partition says what all its files have in common. A segment further up, above one without ``=``, may
    belong to whatever contains the table, and does not count.

    >>> hive_root("/data/run=3/table/year=2023/region=us"), hive_root("/data/run=3/table")
    ('year=2023/region=us/', '')
    """
    segments = root.rstrip("/").split("/")
    start = len(segments)
    while start and _is_hive(segments[start - 1]):
        start -= 1
    return "".join(f"{segment}/" for segment in segments[start:])


def _is_hive(segment: str) -> bool:
    return segment.find("=") > 0


def decode_hive(names: Sequence[str], schema: pa.Schema | None = None) -> tuple[pa.Schema, list[PartitionValues]]:
    """Decode and type the partition values of all files of a table.

    A column takes its type from the schema. If that lacks it, it is int64 if every value in the table is an integer in
    plain notation (no leading zero, no plus) that fits, else date32 if every value is an ISO date, else string; without
    any value it is string. Types depend on the set of names alone, never on their order.

    Args:
        names: the files' relative names, each after what `hive_root` returns for their root.

    Returns:
        The partition columns, in the order of the path of the name that sorts first, and each file's ``(column,
        value)`` pairs as Python values in that order.

    Raises:
        TableError: a file has different partition columns from the rest.
        ConfigError: a value cannot be read as the type that the caller gave.

    >>> types, values = decode_hive(["day=2/a", "day=10/b"])
    >>> str(types.field("day").type), values
    ('int64', [(('day', 2),), (('day', 10),)])
    """
    if not names:
        return pa.schema([]), []
    segments = [dict(hive_segments(name)) for name in names]
    first = min(range(len(names)), key=lambda index: names[index].encode("utf-8"))
    columns = list(segments[first])
    for name, found in zip(names, segments, strict=True):
        if found.keys() != segments[first].keys():
            raise TableError(
                f"{name}: hive columns must be the same in every file; {names[first]} has "
                f"{columns or 'none'}, this one has {list(found) or 'none'}; "
                "move the file, or leave it out of path"
            )
    fields = []
    decoded: dict[str, dict[str | None, Any]] = {}  # for each distinct text, not for each file
    for column in columns:
        texts = {found[column]: name for name, found in zip(names, segments, strict=True)}
        if schema is not None and column in schema.names:
            kind = schema.field(column)
        else:
            kind = pa.field(column, _infer([text for text in texts if text is not None]))
        fields.append(kind)
        decoded[column] = _typed(kind, texts)
    values = [tuple((column, decoded[column][found[column]]) for column in columns) for found in segments]
    return pa.schema(fields), values


def columns_of_folders(
    root: str, names: Sequence[str], schema: pa.Schema | None = None
) -> tuple[pa.Schema, list[PartitionValues], tuple[str, ...]]:
    """Return what `decode_hive` does if all files lie in folders alike, and else no columns but the keys there are.

    >>> columns_of_folders("/t", ["day=1/a", "b"])[2], columns_of_folders("/t/month=3", ["day=1/a", "day=2/b"])[0].names
    (('day',), ['month', 'day'])
    """
    above = hive_root(root)
    folders = [(above + name).rpartition("/")[0] for name in names]
    distinct = list(dict.fromkeys(folders))
    if not any("=" in folder for folder in distinct):
        return pa.schema([]), [()] * len(names), ()
    try:
        columns, values = decode_hive([f"{folder}/" for folder in distinct], schema)
    except TableError:
        segments = [segment for folder in distinct for segment in folder.split("/") if _is_hive(segment)]
        return (
            pa.schema([]),
            [()] * len(names),
            tuple(dict.fromkeys(unquote(each.partition("=")[0]) for each in segments)),
        )
    of_folder = dict(zip(distinct, values, strict=True))
    return columns, [of_folder[folder] for folder in folders], ()


def _infer(texts: Sequence[str]) -> pa.DataType:
    if texts and all(_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in texts):
        return pa.int64()
    if texts and all(_is_date(text) for text in texts):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    if _DATE.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _typed(kind: pa.Field, texts: dict[str | None, str]) -> dict[str | None, Any]:
    """Turn each distinct text of a column into a Python value of its type."""
    values: dict[str | None, Any] = {}
    for text, name in texts.items():
        try:
            values[text] = None if text is None else pa.scalar(text, pa.string()).cast(kind.type).as_py()
        except (pa.ArrowException, ValueError) as error:
            raise ConfigError(
                f"{name}: hive value {kind.name}={text!r} cannot be read as {kind.type}, which schema asks for; "
                "give the column another type in schema, or leave it out there"
            ) from error
    return values


def look_around(
    pool: Executor, storage: FileStorage, roots: Iterable[str], walked: Iterable[str]
) -> list[Future[list[Found]]]:
    """Look for metadata of other table formats where no listing will see it, without waiting.

    A path may be a table's ``data`` folder, a partition, or a file. So this looks into the table's folder and the one
    above it, which costs a few requests for a table, not one for each file. What it finds is for
    `refuse_table_formats`, in addition to the listing.

    Args:
        roots: the given directories, or the directories of the given files.
        walked: those of them that are listed with everything below.
    """
    if storage.protocol in HTTP_PROTOCOLS:
        return []
    near = {place for root in roots for place in _above(root)} - set(walked)
    return [
        pool.submit(look, storage, f"{folder}/{name}")
        for folder in sorted(near)
        for name, look in (("_delta_log", _folder), (".hoodie", _folder), ("metadata", _inside))
    ]


def refuse_table_formats(storage: FileStorage, seen: Iterable[Found], files: Collection[str]) -> None:
    """Raise if the files belong to a table of Iceberg, Delta Lake or Hudi.

    The metadata of such a table says which files belong to it, and which of their rows are deleted. It is among what
    the listing saw, including hidden files, and what `look_around` found.
    """
    marks = [entry for entry in seen if any(mark in entry.path for mark in _MARKS)]
    for pattern, explain in ((_ICEBERG, _iceberg), (_DELTA, _delta), (_HUDI, _hudi)):
        matches = ((pattern.fullmatch(entry.path), entry) for entry in marks)
        tables: dict[str, list[Found]] = {}
        for match, entry in matches:
            if match is not None:
                tables.setdefault(match["table"], []).append(entry)
        for table, found in sorted(tables.items()):
            if any(file.startswith(table) for file in files):
                raise ConfigError(
                    f"{explain(storage, storage.shown(table.rstrip('/')), found)}; "
                    "source=pyarrow.dataset.dataset(path) reads the files into memory, deleted rows included"
                )


def format_of_folder(path: str, storage_options: Mapping[str, Any] | None) -> str | None:
    """Return the table format that a folder declares: "delta", "iceberg", or None if it declares none.

    An Iceberg table declares itself with ``metadata/version-hint.text``, which tables without a catalog have.
    """
    protocol = parse_address(path).protocol
    if protocol in HTTP_PROTOCOLS or any(character in path for character in "*?["):
        return None
    storage, root = open_storage(path, storage_options)
    root = root.rstrip("/")
    try:
        if _folder(storage, f"{root}/_delta_log"):
            return "delta"
        with suppress(AccessRefusedError):  # the caller may be allowed to read only the files
            hint = storage.probe(f"{root}/metadata/version-hint.text")
            if hint is not None and not hint.is_dir:
                return "iceberg"
    finally:
        storage.close()
    return None


def _above(root: str) -> Iterator[str]:
    """Yield the folder of the partitions, and the one above it, which contains an Iceberg table's ``data``."""
    base = root.rstrip("/")[: len(root.rstrip("/")) - len(hive_root(root)) or None].rstrip("/")
    yield base
    above, slash, _ = base.rpartition("/")
    if slash and (above or base.startswith("/")):
        yield above


def _folder(storage: FileStorage, path: str) -> list[Found]:
    with suppress(AccessRefusedError):  # the caller may be allowed to read only the table
        found = storage.stat(f"{path}/")
        if found is not None and found.is_dir:
            return [Found(path, None)]
    return []


def _inside(storage: FileStorage, path: str) -> list[Found]:
    with suppress(AccessRefusedError):
        found = storage.probe(f"{path}/")
        if found is not None and found.is_dir:
            return storage.walk(path, recursive=False)
    return []


def _iceberg(storage: FileStorage, table: str, found: list[Found]) -> str:
    newest = storage.shown(max(found, key=_age).path)
    return (
        f"{table} is an Iceberg table, and its files alone are not its rows; read it with "
        f'IcebergDataset.create_dataloader(metadata_location="{newest}"), or with table= and catalog_config='
    )


def _delta(_: FileStorage, table: str, __: list[Found]) -> str:
    return (
        f"{table} is a Delta Lake table, and its files alone are not its rows; read it with "
        f'DeltaDataset.create_dataloader("{table}")'
    )


def _hudi(_: FileStorage, table: str, __: list[Found]) -> str:
    return (
        f"{table} belongs to a Hudi table, and its files alone are not its rows; write its current rows out as Parquet "
        "with an engine that reads Hudi, and read those"
    )


def _age(metadata: Found) -> tuple[int, int, str]:
    """Return a sort key for metadata files: the number that their names begin with, then the time."""
    number, written = -1, 0
    if (match := _VERSION.match(metadata.path.rpartition("/")[2])) is not None:
        number = int(match[1])
    if metadata.version is not None and metadata.version.mtime_ns is not None:
        written = metadata.version.mtime_ns
    return number, written, metadata.path
