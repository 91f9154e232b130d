"""The state of a loader: small plain data that says what the job has done, and of which table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.cursor import STATE_VERSION, Cursor
from torch_table_loader.read.filter_key import filter_key, printed_filter_key
from torch_table_loader.source.fingerprint import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.engine.survey import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.row_cursor import RowCursor

_COLUMN_NAMES_BYTES = 1024
"""Names of columns are written out up to so many bytes, and hashed beyond."""

_REMEDIES = {
    "table": "pin the files of the first run with files= (dataset.save_files(path) keeps them), or start a new epoch",
    "options": "give the loader the options of the run that was saved, or start without its state",
}


def identity(table: Table, columns: pa.Schema, options: LoaderOptions, strategy: str, splits: str) -> dict[str, Any]:
    """Say of which table and options a state speaks, as plain data without path or secret.

    Args:
        table: the table.
        columns: what comes out.
        options: the caller's.
        strategy: the name of the split strategy.
        splits: the hash of what it returned.
    """
    return {
        "table": {
            "fingerprint": table.fingerprint,
            "files": len(table.files),
            "rows": table.layout.num_rows,
            "bytes": table.layout.num_bytes,
            **({} if table.snapshot_id is None else {"snapshot_id": table.snapshot_id}),
        },
        "options": {
            "columns": _columns(columns),
            "filters": None if options.filters is None else filter_key(options.filters, table.schema),
            "shuffle": bool(options.shuffle),
            "shuffle_seed": options.shuffle_seed,
            "split_strategy": strategy,
            "split_bytes": options.target_split_bytes,
            "split_rows": options.split_rows,
            "splits": splits,
        },
    }


def write_state(said: Mapping[str, Any], cursor: Cursor | RowCursor) -> dict[str, Any]:
    """Write where a job stands.

    Args:
        said: the job's `identity`.
        cursor: what the trainer took.
    """
    about = {"version": STATE_VERSION, "table": dict(said["table"]), "options": dict(said["options"])}
    return about | cursor.to_state()


def read_state(said: Mapping[str, Any], table: Table, state: Mapping[str, Any], filters: Any = None) -> Cursor:
    """Read where a job stood, and refuse a state of another table or other options.

    Args:
        said: the `identity` of the job that is to go on.
        table: its table.
        state: what `write_state` wrote, on any rank.
        filters: the job's row filter.

    Raises:
        ResumeError: names what differs.
    """
    check_state(said, table, state, filters)
    return Cursor.from_state(state)


def check_state(said: Mapping[str, Any], table: Table, state: Mapping[str, Any], filters: Any = None) -> None:
    """Refuse a state of another table or other options; see `read_state`."""
    check_version(state)
    if "mixture" in state:
        raise ResumeError("the state speaks of a mixture, and this is one table; load it with a MixedDataset's loader")
    _compare_tables(table, said["table"], state.get("table", {}))
    theirs = state.get("options", {})
    if filters is not None and theirs.get("filters") == printed_filter_key(filters, table.schema):
        theirs = {**theirs, "filters": said["options"]["filters"]}
    _compare_options(said["options"], theirs)


def check_version(state: Mapping[str, Any]) -> None:
    """Refuse what is no state, and a state of another release."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise ResumeError(
            f"expected what state_dict() returned, got {type(state).__name__} without a version; pass it unchanged"
        )
    if state["version"] != STATE_VERSION:
        raise ResumeError(
            f"expected a state of version {STATE_VERSION}, got version {state['version']!r}; "
            "load it with the release of torch-table-loader that wrote it"
        )


def _columns(schema: pa.Schema) -> list[str] | str:
    names = sorted(f"{field.name}: {field.type}" for field in schema)
    if len(json.dumps(names)) <= _COLUMN_NAMES_BYTES:
        return names
    return f"{len(names)} columns, {hashlib.sha256(repr(names).encode()).hexdigest()[:32]}"


def _compare_tables(table: Table, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    if own["fingerprint"] == theirs.get("fingerprint"):
        return
    if "snapshot_id" in own and "snapshot_id" in theirs and own["snapshot_id"] != theirs["snapshot_id"]:
        raise ResumeError(
            f"the state speaks of snapshot {theirs['snapshot_id']}, and this is snapshot {own['snapshot_id']}; "
            f"pass snapshot_id={theirs['snapshot_id']} to go on, or start a new epoch without the state"
        )
    if younger := _files_since(table, theirs):
        shown = ", ".join(map(repr, younger[:5])) + (f" and {len(younger) - 5} more" if len(younger) > 5 else "")
        raise ResumeError(
            f"the table grew since the state was saved: {len(younger)} new files: {shown}; {_REMEDIES['table']}"
        )
    counts = "; ".join(f"{name}: {theirs.get(name)} then, {own[name]} now" for name in ("files", "rows", "bytes"))
    raise ResumeError(f"the state speaks of another table ({counts}); {_REMEDIES['table']}")


def _files_since(table: Table, theirs: Mapping[str, Any]) -> list[str]:
    """Name the youngest files, where the table without them is the one of the state."""
    before = theirs.get("files", 0)
    by_age = sorted(range(len(table.files)), key=lambda at: (table.files[at].version.mtime_ns or 0, at))
    old, rows = sorted(by_age[:before]), table.layout.file_rows
    restored = fingerprint([table.files[at] for at in old], [int(rows[at]) for at in old])
    if restored != theirs.get("fingerprint"):
        return []
    return [table.files[at].name for at in sorted(by_age[before:])]


def _compare_options(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    differing = [name for name in own if own[name] != theirs.get(name)]
    if not differing:
        return
    if differing == ["splits"]:
        raise ResumeError(
            "the state was saved with the table split in another way (the same strategy, with other parameters); "
            + _REMEDIES["options"]
        )
    shown = "; ".join(
        f"{name} was {_shown(theirs.get(name))} and is {_shown(own[name])}" for name in differing if name != "splits"
    )
    raise ResumeError(f"the state was saved under other options: {shown}; {_REMEDIES['options']}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
