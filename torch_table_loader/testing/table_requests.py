"""The contract of table formats: what a request opens, how it prunes, and what it says of commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_table_loader.testing.rules import ContractError, contract_errors, require
from torch_table_loader.testing.sources import check_source

if TYPE_CHECKING:
    from torch_table_loader.source.snapshot_files import SnapshotFiles, TableRequest


def check_table_request(request: TableRequest, chosen: Mapping[str, Any] | None = None) -> None:
    """Check a table format's request, with a table that has a snapshot and does not change meanwhile.

    What it opens must pass `check_source`, and be the same each time and for fewer columns. A filter may leave files
    out, but none in which a row may pass, and does not change which snapshot it is. Constants must be those of columns
    that the table has now. There must be no commits between a snapshot and itself.

    Args:
        request: reads the whole table: without columns, filters and a start.
        chosen: the arguments that choose a snapshot; none for the newest.

    Raises:
        ContractError: a rule is broken; the message names it.
    """
    who, chosen = type(request).__name__, chosen or {}
    whole = (request.columns, request.filters, request.start) == (None, None, None)
    require(whole, f"{who} must be checked without columns, filters and start: they are tried here")

    def opened(**parts: Any) -> SnapshotFiles:
        with contract_errors(who, f"must open its table with {sorted(parts)}, but raised"):
            return replace(request, **parts).open(chosen)

    found = opened()
    own = found.snapshot_id
    if own is None:
        raise ContractError(f"{who} must be checked with a table that has a snapshot")
    check_source(found)
    _check_same(who, "again", found, opened())
    for entry in found.schema:
        name, column = entry.name, pc.field(entry.name)
        _check_same(who, f"for the column {name!r} alone", found, opened(columns=[name]))
        if pa.types.is_nested(entry.type):
            continue
        _check_same(who, f"under a filter of {name!r} that all rows pass", found, opened(filters=_passed(column)))
        left = [file.path for file in opened(filters=~_passed(column)).files]
        strange = sorted(set(left) - {file.path for file in found.files})
        require(not strange, f"{who} must leave files out under a filter of {name!r}, and has others: {strange}")
    for file in found.files:
        if file.columns is None:
            continue
        unknown = set(file.columns.constants) - {each.field_id for each in file.columns.table.current}
        require(not unknown, f"{who} gives {file.name!r} constants of columns that the table lacks: {sorted(unknown)}")
    with contract_errors(who, f"must list the commits from snapshot {own} to itself, but raised"):
        require(not request.commits(own, own), f"{who} must have no commits after snapshot {own} up to itself")


def _passed(column: pc.Expression) -> pc.Expression:
    return column.is_null() | column.is_valid()


def _check_same(who: str, how: str, found: SnapshotFiles, other: SnapshotFiles) -> None:
    require(
        (other.fingerprint, other.snapshot_id) == (found.fingerprint, found.snapshot_id),
        f"{who} must open the same snapshot {how}, got {other.snapshot_id} for {found.snapshot_id}",
    )
    paths, others = ([file.path for file in each.files] for each in (found, other))
    require(paths == others, f"{who} must have the same {len(paths)} files {how}, got {len(others)}")
