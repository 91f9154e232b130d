"""What a filter rules out before anything is read: by partition values, and by Parquet statistics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_table_loader.read.bounds import groups_by_bounds
from torch_table_loader.read.expressions import expression_columns
from torch_table_loader.read.field_ids import found_by_name
from torch_table_loader.read.parquet_statistics import refuse_unsafe

if TYPE_CHECKING:
    from torch_table_loader.records import DataFile, FileMeta

_MOST_FLOATS = 4
"""Each float column of a filter doubles the work: every subset of them may be NaN."""


def partition_can_pass(file: DataFile, filters: Any, schema: pa.Schema) -> bool:
    """Return whether a file's partition values leave any of its rows a chance to pass.

    Args:
        file: which, with its partition values.
        filters: an expression over `schema`.
        schema: the table's unified schema, partition columns included.
    """
    known = _known_values(file, (), schema)
    if known is None:
        return True
    return _can_pass(known, filters, schema)


def kept_row_groups(
    file: DataFile, meta: FileMeta, parsed: pq.FileMetaData, filters: Any, schema: pa.Schema
) -> Sequence[bool]:
    """Say for each Parquet row group whether its statistics leave any row a chance to pass.

    Parquet statistics leave NaN out of minimum and maximum, and pyarrow trusts them: it drops a row group of
    ``[0, 1, NaN]`` under ``~(x < 3)``, which NaN passes. So the filter is asked again with each set of its
    float columns taken to be NaN, and a row group goes only where all answers agree. They write 0 as −0 too,
    which ``isin`` tells from 0: a row group of zeros stays. Columns whose statistics cannot be compared in the
    table's type (nested, or of another type in this file) count as unknown.

    Args:
        file: which, with its partition values.
        meta: its metadata.
        parsed: its footer, parsed.
        filters: an expression over `schema`.
        schema: the table's unified schema, partition columns included.

    Returns:
        One bool a row group; True where statistics cannot decide.
    """
    count = len(meta.group_rows)
    used = expression_columns(filters, schema)
    if file.columns is not None and not (
        found_by_name(meta.schema, file.columns, used) and _all_compare(meta.schema, schema, used)
    ):
        known = _known_values(file, (), schema)
        return groups_by_bounds(file, meta, parsed, used, known, lambda facts: _can_pass(facts, filters, schema))
    partition = {name for name, _ in file.partition}
    physical = set(meta.schema.names) - partition
    absent = used - physical - partition
    floats = sorted(name for name in used & physical if pa.types.is_floating(meta.schema.field(name).type))
    known = _known_values(file, absent, schema)
    if not _can_pass(known, filters, schema):
        return [False] * count
    if not _all_compare(meta.schema, schema, used & physical) or len(floats) > _MOST_FLOATS:
        return [True] * count
    leaves = [place for place in range(parsed.num_columns) if parsed.schema.column(place).path in used & physical]
    if meta.footer is not None and leaves:
        refuse_unsafe(file.name, meta.footer, parsed, leaves)
    kept = _groups_of_zeros(parsed, floats)
    for size in range(len(floats) + 1):
        for chosen in itertools.combinations(floats, size):
            nans = [_equals(name, pa.scalar(math.nan, schema.field(name).type)) for name in chosen]
            facts = [*([] if known is None else [known]), *nans]
            if nans and not _can_pass(reduce(and_, facts), filters, schema):
                continue  # NaN passes nowhere: the common case, decided without the footer
            passing = _passing_row_groups(meta.footer, facts, filters, schema)
            if passing is None:
                return [True] * count
            kept |= passing
    return [group in kept for group in range(count)]


def _passing_row_groups(footer: bytes | None, known: Sequence[Any], filters: Any, schema: pa.Schema) -> set[int] | None:
    import pyarrow.dataset as ds  # about 40 MB of libraries, for those who filter

    try:
        fragment = ds.ParquetFileFormat().make_fragment(
            pa.BufferReader(footer), partition_expression=reduce(and_, known) if known else None
        )
        return {group.id for group in fragment.subset(filters, schema=schema).row_groups}
    except pa.ArrowException:
        return None  # pyarrow cannot decide: keep all


def _groups_of_zeros(parsed: pq.FileMetaData, floats: Sequence[str]) -> set[int]:
    if not floats:
        return set()
    leaves = [index for index in range(parsed.num_columns) if parsed.schema.column(index).path in floats]
    return {
        group
        for group in range(parsed.num_row_groups)
        for leaf in leaves
        if (statistics := parsed.row_group(group).column(leaf).statistics) is not None
        and statistics.has_min_max
        and statistics.min == 0 == statistics.max
    }


def _can_pass(known: Any, filters: Any, schema: pa.Schema) -> bool:
    if known is None:
        return True
    import pyarrow.dataset as ds

    # No file is opened here: the file system dataset looks at what is known of each fragment alone.
    form = ds.IpcFileFormat()
    fragment = form.make_fragment(pa.BufferReader(b""), partition_expression=known)
    try:
        return bool(list(ds.FileSystemDataset([fragment], schema, form).get_fragments(filter=filters)))
    except pa.ArrowException:
        return True  # pyarrow cannot decide: keep all


def _known_values(file: DataFile, absent: Iterable[str], schema: pa.Schema) -> Any:
    said = [(name, _as_type(value, schema.field(name).type)) for name, value in file.partition if name in schema.names]
    known = [_equals(name, value) for name, value in said if value is not None]
    known += [pc.field(name).is_null() for name in sorted(absent)]
    return reduce(and_, known) if known else None


def _as_type(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a partition value as its column's type; None if that says nothing: NaN, or a value of another type.

    Where the file lacks the column, reading refuses such a value.
    """
    if value != value:  # noqa: PLR0124 - NaN equals nothing
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _equals(name: str, value: pa.Scalar) -> Any:
    return pc.field(name) == value if value.is_valid else pc.field(name).is_null()


def _all_compare(file_schema: pa.Schema, schema: pa.Schema, names: AbstractSet[str]) -> bool:
    there = names & set(file_schema.names)
    return all(_statistics_compare(file_schema.field(name).type, schema.field(name).type) for name in there)


def _statistics_compare(file_type: pa.DataType, table_type: pa.DataType) -> bool:
    if pa.types.is_nested(file_type) or pa.types.is_dictionary(file_type):
        return False
    if file_type.equals(table_type):
        return True
    return bool(pa.types.is_integer(file_type) and pa.types.is_integer(table_type))
