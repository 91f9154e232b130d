"""Evaluates expressions over tables of Arrow, as pyarrow's engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from torch_table_loader.arrow import compute as pc
from torch_table_loader.predicates.hash_parts import hashed_once, make_known


def evaluated(expressions: Sequence[Any], table: pa.Table) -> pa.Table:
    """Return a column for each expression over a table, whose run-end encoded columns are decoded: none compares."""
    from pyarrow import acero  # about 40 MB of libraries, for those who filter

    make_known()
    for place, field in enumerate(table.schema):
        if pa.types.is_run_end_encoded(field.type):
            chunks = [pc.run_end_decode(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(chunks, field.type.value_type))
    names = list(map(str, range(len(expressions))))
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), names))
    # One thread: with more, acero hands out chunks in the order in which they are ready.
    with hashed_once():
        return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)


def bound_type(expression: Any, schema: pa.Schema) -> pa.DataType:
    """Return the type of what an expression says of rows of a schema, as pyarrow binds it."""
    schema = without_run_ends(schema)
    # `schema.empty_table()` does not know extension types inside lists.
    empty = pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
    return evaluated([expression], empty).schema.field(0).type


def without_run_ends(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types of values in place of run-end encoded ones, as `evaluated` has them."""
    encoded = pa.types.is_run_end_encoded
    if not any(encoded(field.type) for field in schema):
        return schema
    return pa.schema([field.with_type(field.type.value_type) if encoded(field.type) else field for field in schema])
