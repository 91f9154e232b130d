"""``torch-table-loader head``, ``schema`` and ``plan``: the first rows, the columns, and what an epoch reads."""

from __future__ import annotations

import argparse
import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch_table_loader.cli.arguments import OF_FILES, OPTIONS, add_arguments, open_table
from torch_table_loader.cli.parser import Parser
from torch_table_loader.cli.printing import show
from torch_table_loader.engine.jobs.resolve import columns_of
from torch_table_loader.report import Table
from torch_table_loader.units import integer

_WIDEST = 40
"""Characters of a value that are printed; with ``--json`` all are."""

_LOOKING: dict[str, Any] = {"output_format": "arrow", "num_workers": 0, "count_filtered": False}
"""Options that open any table, whatever its columns, without reading rows."""


def add_head(parser: Parser) -> None:
    """Add the options of ``head``."""
    add_arguments(parser, (*OF_FILES, "columns"))
    parser.add_argument("-n", "--rows", type=int, default=5, metavar="N", help="rows to print at most (default: 5)")
    parser.runs(
        _head,
        "clicks --rows 10",
        "--catalog prod --table db.clicks --columns label,price --json",
        "lake/orders --filter \"day = 'mon'\"",
    )


def _head(typed: argparse.Namespace) -> None:
    """Print the first rows after deletes and filters."""
    dataset = open_table(typed, **_LOOKING)
    rows, notes = dataset.head(integer("--rows", typed.rows, 0)), dataset.table.hints(dataset.options.columns)
    found = [{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()]
    shown = [[_short(value) for value in row.values()] for row in found]
    table = Table(f"the first {len(found):,} rows", {name: name for name in rows.schema.names}, shown)
    show(typed, {"rows": found, "notes": notes}, table, *(f"note: {note}" for note in notes))


def add_schema(parser: Parser) -> None:
    """Add the options of ``schema``."""
    add_arguments(parser, {*OF_FILES, "columns"} - {"filters"})
    parser.runs(_schema, "clicks", "warehouse/db/clicks/metadata/00003-4a.metadata.json --json")


def _schema(typed: argparse.Namespace) -> None:
    """Print the columns with their Arrow types."""
    dataset = open_table(typed, **_LOOKING)
    table = dataset.table
    fields = [table.schema.field(name) for name in columns_of(table, dataset.options)]
    columns = [{"name": each.name, "type": str(each.type), "nullable": each.nullable} for each in fields]
    rows = [(each["name"], each["type"], "yes" if each["nullable"] else "no") for each in columns]
    header = {"name": "column", "type": "Arrow type", "nullable": "nulls allowed"}
    notes = table.hints(dataset.options.columns)
    told = {"table": table.description or None, "snapshot_id": table.snapshot_id, "columns": columns, "notes": notes}
    show(typed, told, Table(table.description or "schema", header, rows), *(f"note: {note}" for note in notes))


def add_plan(parser: Parser) -> None:
    """Add the options of ``plan``."""
    add_arguments(parser, OPTIONS)
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="rank whose plan to print (default: 0)")
    parser.add_argument("--epoch", type=int, default=0, metavar="N", help="epoch to plan (default: 0)")
    parser.runs(
        _plan,
        "clicks --columns label --ranks 8 --rank 3 --shuffle --epoch 2",
        "--catalog prod --table db.clicks --branch daily --json",
    )


def _plan(typed: argparse.Namespace) -> None:
    """Print what a rank reads in an epoch, and why."""
    own = {"rank": typed.rank} if getattr(typed, "num_ranks", 1) > 1 or typed.rank else {}
    dataset = open_table(typed, **own)
    dataset.set_epoch(typed.epoch)
    found = dataset.explain()
    value = {name: value for name, value in asdict(found).items() if name != "order"}
    description = dataset.table.description
    show(typed, value, *([description] if description else []), *found.parts())


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
