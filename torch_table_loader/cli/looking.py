"""``torch-table-loader head``, ``schema`` and ``plan``: the first rows, the columns, and what an epoch reads."""

from __future__ import annotations

import argparse
import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch_table_loader.cli.named_table import open_table
from torch_table_loader.cli.printing import note, show
from torch_table_loader.cli.shell_words import in_shell_words
from torch_table_loader.engine.jobs.resolve import columns_of
from torch_table_loader.report import Table
from torch_table_loader.units import integer

_WIDEST = 40
"""Characters of a value that are printed; with ``--json`` all are."""

_LOOKING: dict[str, Any] = {"output_format": "arrow", "num_workers": 0, "count_filtered": False}
"""Options that open any table, whatever its columns, without reading rows."""


def head(typed: argparse.Namespace) -> None:
    """Print the first rows after deletes and filters."""
    dataset = open_table(typed, **_LOOKING)
    rows, notes = dataset.head(integer("--rows", typed.rows, 0)), dataset.table.hints(dataset.options.column_names)
    found = [{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()]
    shown = [[_short(value) for value in row.values()] for row in found]
    title = "the first row" if len(found) == 1 else f"the first {len(found):,} rows" if found else "no rows"
    table = Table(title, {name: name for name in rows.schema.names}, shown)
    show(typed, {"rows": found, "notes": notes}, table, *map(note, notes))


def schema(typed: argparse.Namespace) -> None:
    """Print the columns with their Arrow types."""
    dataset = open_table(typed, **_LOOKING)
    table = dataset.table
    fields = [table.schema.field(name) for name in columns_of(table, dataset.options)]
    columns = [{"name": each.name, "type": str(each.type), "nullable": each.nullable} for each in fields]
    rows = [(each["name"], each["type"], "yes" if each["nullable"] else "no") for each in columns]
    header = {"name": "column", "type": "Arrow type", "nullable": "nulls allowed"}
    notes = table.hints(dataset.options.column_names)
    told = {"table": table.description or None, "snapshot_id": table.snapshot_id, "columns": columns, "notes": notes}
    show(typed, told, Table(table.description or "schema", header, rows), *map(note, notes))


def plan(typed: argparse.Namespace) -> None:
    """Print what a rank reads in an epoch, and why."""
    own = {"rank": typed.rank} if getattr(typed, "num_ranks", 1) > 1 or typed.rank else {}
    dataset = open_table(typed, **own)
    dataset.set_epoch(typed.epoch)
    found = dataset.explain()
    value = {name: value for name, value in asdict(found).items() if name != "order"}
    description = dataset.table.description
    parts = [in_shell_words(part) if isinstance(part, str) else part for part in found.parts()]
    show(typed, value, *([description] if description else []), *parts)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: bytes in base64; times, decimals and non-finite numbers as text.

    >>> plain({"a": [b"ab", float("nan"), 1]})
    {'a': ['YWI=', 'nan', 1]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _short(value: Any) -> str | int:
    if value is None:
        return "null"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if isinstance(value, int) else repr(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
