"""What the caller wants of rows, in whichever form: one filter for rows, and one for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import did_you_mean
from torch_table_loader.source.iceberg.columns import read_columns
from torch_table_loader.source.iceberg.pruning import Pruner
from torch_table_loader.source.iceberg.translate import translate


def row_filter(filters: pc.Expression | None, scan_filter: Any, schema: Schema) -> pc.Expression | None:
    """Join ``filters`` and ``scan_filter``.

    Args:
        filters: a pyarrow Expression.
        scan_filter: a pyiceberg expression, or text in its grammar.
        schema: the table's.

    Raises:
        ConfigError: a filter that does not parse, or does not fit the table.
    """
    if scan_filter is None:
        return filters
    if not isinstance(scan_filter, str | BooleanExpression):
        raise ConfigTypeError(
            'scan_filter must be a pyiceberg expression or text such as "x > 3", got '
            f"{type(scan_filter).__name__}; a pyarrow Expression goes into filters="
        )
    try:
        wanted = parse(scan_filter) if isinstance(scan_filter, str) else scan_filter
        bound = bind(schema, wanted, case_sensitive=True)
    except Exception as error:
        names = [field.name for field in schema.fields]
        hints = (did_you_mean(word.strip("'\""), names) for word in str(error).split())
        raise ConfigError(
            f"scan_filter {scan_filter!s} does not fit the table ({error}); its columns are {', '.join(names[:20])}"
            + next(filter(None, hints), "")
        ) from error
    rows = expression_to_pyarrow(bound, schema)
    if isinstance(rows, bool) or not isinstance(rows, pc.Expression):
        rows = pc.scalar(bool(rows))
    return rows if filters is None else filters & rows


def make_pruner(
    filters: pc.Expression | None,
    schema: Schema,
    arrow: pa.Schema,
    specs: Mapping[int, Sequence[Mapping[str, Any]]],
) -> tuple[Pruner | None, list[str]]:
    """Make what leaves files out.

    Args:
        filters: for rows.
        schema: the table's.
        arrow: the same, as Arrow has it.
        specs: fields of partition specs, by spec id.

    Returns:
        The pruner, None where no file can be left out, and the parts of the filter that do not prune.
    """
    if filters is None:
        return None, []
    translation = translate(filters, schema, arrow)
    if translation.expression is None:
        return None, translation.untranslated
    return Pruner(translation.expression, schema, specs), translation.untranslated


def iceberg_schema(struct: Mapping[str, Any]) -> Schema:
    """Make pyiceberg's schema of those columns that can be read."""
    readable = {column.name for column in read_columns(struct)[0]}
    fields = [field for field in struct["fields"] if field["name"] in readable]
    plain = [{key: value for key, value in field.items() if not key.endswith("-default")} for field in fields]
    return Schema.model_validate({"type": "struct", "schema-id": struct.get("schema-id", 0), "fields": plain})
