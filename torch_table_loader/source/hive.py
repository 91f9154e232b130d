"""Hive partitioning: ``key=value`` directories become typed columns, the same ones on every rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from torch_table_loader.errors import ConfigError, TableError

NULL_SEGMENT = "__HIVE_DEFAULT_PARTITION__"
"""The text that Hive and Spark write for null (Hive's ``hive.exec.default.partition.name``)."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

PartitionValues = tuple[tuple[str, Any], ...]


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
    names: Sequence[str], schema: pa.Schema | None = None
) -> tuple[pa.Schema, list[PartitionValues], tuple[str, ...]]:
    """Return what `decode_hive` does if all files lie in folders alike, and else no columns but the keys there are.

    >>> columns_of_folders(["day=1/a", "b"])[2], columns_of_folders(["day=1/a", "day=2/b"])[0].names
    (('day',), ['day'])
    """
    folders = [name.rpartition("/")[0] for name in names]
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
