"""The survey of a table: footers read once and in parallel, schemas unified, row groups pruned."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torch_table_loader.contracts import SnapshotSource
from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.expressions import check_filter
from torch_table_loader.read.field_ids import found_by_name
from torch_table_loader.read.formats import reader_for
from torch_table_loader.read.unify import resolve_schema
from torch_table_loader.source.fingerprint import fingerprint
from torch_table_loader.source.plan_cache import CacheEntry

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.contracts import Source, Storage
    from torch_table_loader.records import DataFile, FileMeta
    from torch_table_loader.source.plan_cache import PlanCache

T = TypeVar("T")
R = TypeVar("R")

INFERRED_FORMATS = frozenset({"csv", "json", "jsonl"})
"""Formats whose types are guessed from text."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table whose footers have been read.

    Args:
        storage: where the files are.
        layout: files and row groups.
        metas: what each file's footer says.
        schema: the unified schema, partition columns included.
        fingerprint: hash of relative names, sizes and row counts; or of table and snapshot.
        deletes: reads what is deleted from the files.
        snapshot_id: of a table that has snapshots, the one that is read.
        description: what the source says of itself.
        notes: what planning has to say.
    """

    storage: Storage
    layout: TableLayout
    metas: tuple[FileMeta, ...]
    schema: pa.Schema
    fingerprint: str
    deletes: Deletes
    snapshot_id: int | None = None
    description: str = ""
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The data files in canonical order."""
        return self.layout.files

    @property
    def footer_bytes(self) -> int:
        """Bytes of raw footers that are held so that no footer is read twice."""
        return sum(len(meta.footer) for meta in self.metas if meta.footer is not None)

    def refuse_nulls(self, columns: frozenset[str]) -> None:
        """Refuse columns in which statistics prove a null.

        Args:
            columns: those in which a null would be an error when it came.

        Raises:
            TableError: names the column, a file, and the remedies.
        """
        wanted = sorted(columns)
        if not wanted:
            return

        def check(index: int) -> None:
            file, meta = self.files[index], self.metas[index]
            asked = wanted
            if file.deletes:
                return  # a delete may take the nulls
            if file.columns is not None:
                asked = [name for name in wanted if found_by_name(meta.schema, file.columns, {name})]
            groups = self.layout.groups_of(index)
            kept = self.layout.group_kept[groups.start : groups.stop].tolist()
            found = reader_for(file.format).null_columns(meta, asked, kept)
            if found:
                raise TableError(
                    f"column {min(found)!r} has nulls in {file.name!r} (its statistics say so), and a tensor of ints "
                    f'or bools has no place for them; pass nulls={{{min(found)!r}: fill}}, nulls="mask", or filter '
                    "them out"
                )

        in_parallel(check, range(len(self.files)))


def survey(
    source: Source, filters: Any, given: pa.Schema | None, cache: PlanCache | None, *, split_deletes: bool = False
) -> Table:
    """Read what a table says of itself.

    Args:
        source: its files.
        filters: a row filter, for pruning; or None.
        given: the caller's ``schema=``, or None.
        cache: footers that were read before, or None.
        split_deletes: whether files that have deletes may be cut.

    Raises:
        TableError: a file is gone, torn, or does not fit the others.
        ConfigError: the filter does not fit the schema.
    """
    files = tuple(source.files)
    metas = _inspect(source, files, given, cache)
    snapshot = source if isinstance(source, SnapshotSource) else None
    if not files and given is None and snapshot is None:
        raise ConfigError(
            "the table has no data file (only hidden, empty or ignored ones), so that its columns are not known; "
            "pass schema= to read it as an empty table"
        )
    schema = _schema(source, files, metas, given) if snapshot is None else snapshot.schema
    kept: list[Sequence[bool]] | None = None
    if filters is not None:
        check_filter(filters, schema)
        kept = in_parallel(
            lambda pair: reader_for(pair[0].format).prune(pair[0], pair[1], filters, schema),
            list(zip(files, metas, strict=True)),
        )
    deletes = Deletes(source.storage)
    live = in_parallel(lambda pair: _live(*pair, deletes), list(zip(files, metas, strict=True)))
    layout = TableLayout.of(
        files,
        [meta.group_rows for meta in metas],
        [meta.group_bytes for meta in metas],
        kept,
        live,
        whole=[not split_deletes and tuple(own) != meta.group_rows for own, meta in zip(live, metas, strict=True)],
    )
    if snapshot is None:
        return Table(source.storage, layout, metas, schema, fingerprint(files, layout.file_rows.tolist()), deletes)
    said = (snapshot.fingerprint, deletes, snapshot.snapshot_id, snapshot.description, tuple(snapshot.notes))
    return Table(source.storage, layout, metas, schema, *said)


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Map over threads; the first error is raised. For work that waits for a store."""
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), 4 * (os.cpu_count() or 1), 32), "table-loader-survey") as pool:
        return list(pool.map(work, items))


def _schema(source: Source, files: Sequence[DataFile], metas: Sequence[FileMeta], given: pa.Schema | None) -> pa.Schema:
    schemas = [(file.name, meta.schema) for file, meta in zip(files, metas, strict=True)]
    inferred = any(file.format in INFERRED_FORMATS for file in files)
    return resolve_schema(schemas, partition=source.partition_schema, given=given, inferred=inferred)


def _live(file: DataFile, meta: FileMeta, deletes: Deletes) -> Sequence[int]:
    """Count the rows that position deletes leave in each row group; −1 where keys are deleted too."""
    if not file.deletes:
        return meta.group_rows
    if any(delete.kind == "equality" for delete in file.deletes):
        return [-1] * len(meta.group_rows)
    positions = deletes.positions(file)
    if len(positions) and not 0 <= positions[0] <= positions[-1] < meta.num_rows:
        raise TableError(
            f"the deletes of {file.name} must lie in its {meta.num_rows} rows, got rows {positions[0]} to "
            f"{positions[-1]}; the table's metadata does not fit its files"
        )
    edges = np.cumsum([0, *meta.group_rows])
    found: list[int] = (np.diff(edges) - np.diff(np.searchsorted(positions, edges))).tolist()
    return found


def _inspect(
    source: Source, files: Sequence[DataFile], given: pa.Schema | None, cache: PlanCache | None
) -> tuple[FileMeta, ...]:
    known = [None] * len(files) if cache is None else cache.get_many(files)

    def inspect(pair: tuple[DataFile, CacheEntry | None]) -> FileMeta:
        file, entry = pair
        if entry is not None:
            return entry.meta
        meta = reader_for(file.format).inspect(source.storage, file, given)
        if cache is not None:
            cache.put(file, CacheEntry(meta))
        return meta

    return _sharing_schemas(in_parallel(inspect, list(zip(files, known, strict=True))))


def _sharing_schemas(metas: Sequence[FileMeta]) -> tuple[FileMeta, ...]:
    """Let files of equal schemas hold one schema, of which a table with many files then needs little memory."""
    distinct: list[pa.Schema] = []
    shared: list[FileMeta] = []
    for meta in metas:
        same = next((schema for schema in distinct[:8] if schema.equals(meta.schema, check_metadata=True)), None)
        if same is None:
            distinct.append(meta.schema)
        shared.append(meta if same is None else replace(meta, schema=same))
    return tuple(shared)


__all__ = ["Table", "in_parallel", "survey"]
