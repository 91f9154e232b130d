"""What a changelog says of the rows of its files; the same for Iceberg and Delta Lake."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ConfigError

if TYPE_CHECKING:
    from torch_table_loader.records import Column, DataFile, FileColumns


def check_names(own: Iterable[str], changes: Sequence[Column]) -> None:
    """Refuse a table that has a column of a name that a changelog adds.

    Args:
        changes: the columns that the changelog adds.
    """
    names = set(own)
    if taken := [column.name for column in changes if column.name in names]:
        raise ConfigError(f"a changelog adds a column {taken[0]!r}, and the table has one of that name; rename it")


def marked(changed: Iterable[tuple[DataFile, tuple[Any, ...]]], changes: Sequence[Column]) -> tuple[DataFile, ...]:
    """Return the files of a changelog, each with what is said of all its rows.

    A file that comes several times gets another name each time, since plans and states know files by their names.

    Args:
        changed: data files that are read by ids, in order, and the values of the added columns.
    """
    files: list[DataFile] = []
    times: dict[str, int] = {}
    shared: dict[tuple[FileColumns, tuple[Any, ...]], FileColumns] = {}
    for file, said in changed:
        assert file.columns is not None  # noqa: S101 tables with changelogs find columns by ids
        times[file.name] = nth = times.get(file.name, 0) + 1
        key = (file.columns, said)
        if key not in shared:
            constants = {column.field_id: value for column, value in zip(changes, said, strict=True)}
            shared[key] = replace(file.columns, constants={**file.columns.constants, **constants})
        pairs = tuple((column.name, value) for column, value in zip(changes, said, strict=True))
        name = file.name if nth == 1 else f"{file.name}#{nth}"
        files.append(replace(file, name=name, columns=shared[key], partition=(*file.partition, *pairs)))
    return tuple(files)
