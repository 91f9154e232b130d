"""What a state is bound to, and whether it is that of a job: the tables, and the options that decide the order."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from torch_table_loader.engine.saved_state import Bound, SavedState
from torch_table_loader.engine.state import write_state
from torch_table_loader.engine.state_records import find_record
from torch_table_loader.errors import ResumeError
from torch_table_loader.options import DEFAULT_SPLIT_BYTES
from torch_table_loader.read.formats import settings_of
from torch_table_loader.records import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from torch_table_loader.engine.jobs.job import Job
    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import Extent


_COLUMN_NAMES_BYTES = 1024
"""Names of columns are written out up to this many bytes, and hashed beyond."""

_PIN = "pin the files of the first run with files= (dataset.save_files(path) keeps them), or start a new epoch"


def bound(table: Table, columns: pa.Schema, options: LoaderOptions, strategy: str, splits: str) -> Bound:
    """Return the table and options that a state is bound to; `strategy` is a name, and `splits` a hash."""
    about = {
        "fingerprint": table.fingerprint,
        "files": len(table.layout.files),
        "rows": table.layout.num_rows,
        "bytes": table.layout.num_bytes,
        **({} if table.snapshot_id is None else {"snapshot_id": table.snapshot_id}),
        **({} if table.start_snapshot_id is None else {"start_snapshot_id": table.start_snapshot_id}),
        **({"changelog": True} if table.changelog else {}),
        **({"left_out": len(table.left_out)} if table.left_out else {}),
    }
    asked = {
        "columns": _columns(columns),
        "filters": table.filter_key,
        "shuffle": bool(options.shuffle),
        "shuffle_seed": options.shuffle_seed,
        "split_strategy": strategy,
        "split_size": options.split_rows or f"{options.split_bytes or DEFAULT_SPLIT_BYTES} B",
        "splits": splits,
    }
    return Bound(about, asked)


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """Name the source in errors about its part of a state; a table alone has the name ""."""
    try:
        yield
    except ResumeError as error:
        raise ResumeError(f"source {name!r}: {error}" if name else str(error)) from error


def state_of(job: Job, position: Any) -> dict[str, Any]:
    """Write where a job is, with what the caller changed since, as plain data that is equal on every rank."""
    position = job.current(position)
    return write_state(job.kind, job.bounds, position.epoch, position.history(), job.records(position))


def check_state(saved: SavedState, job: Job) -> None:
    """Refuse a state that is not one of a job, or whose table has not grown into the job's.

    A state may have other sources; those that both have must be the same.

    Raises:
        ResumeError: the state is of another table, other options or another kind of job; names what differs.
    """
    own = job.bounds if saved.grown is None else job.bounds_before_growth(saved)
    for key in dict.fromkeys((*saved.records, *job.own_records)):
        find_record(key).check_job(saved, job)
    for name, theirs in saved.tables.items():
        if name not in own:
            continue
        if theirs.table["fingerprint"] != own[name].table["fingerprint"] and saved.grown is None:
            with of_source(name):
                _refuse_table(job.tables[name], own[name].table, theirs.table)
        if theirs.options != own[name].options:
            with of_source(name):
                check_options(own[name].options, theirs.options)
    if saved.kind != job.kind:
        raise ResumeError(
            f"the state counts {saved.kind}, and its options are those of a job that counts {job.kind}; pass the value "
            "of state_dict() unchanged"
        )


def refuse_unknown(extents: Sequence[Extent], files_of: Mapping[Extent, NDArray[np.int64]]) -> None:
    """Refuse to continue from a table whose earlier extent is not known, or that shrank from one to the next.

    Raises:
        ResumeError: the message says what was expected.
    """
    if unknown := [extent for extent in extents if extent not in files_of]:
        raise ResumeError(
            f"the state's epoch began before the table grew, when it had {unknown[0].files} files, and this process "
            "does not know which; load it into a loader made by create_dataloader(...), in the process that trains"
        )
    for before, after in pairwise(extents):
        # A commit may bring no file, but makes another snapshot.
        if before == after or not np.isin(files_of[before], files_of[after]).all():
            raise ResumeError(
                f"the state's epoch began before the table grew, and a table of {before.files} files does not grow to "
                f"one of {after.files} files by these; pass the value of state_dict() unchanged"
            )


def _columns(schema: pa.Schema) -> list[str] | str:
    names = sorted(f"{field.name}: {field.type}" for field in schema)
    if len(json.dumps(names)) <= _COLUMN_NAMES_BYTES:
        return names
    return f"{len(names)} columns, {hashlib.sha256(repr(names).encode()).hexdigest()[:32]}"


def _refuse_table(table: Table, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> NoReturn:
    """Say in what another table differs from the job's own."""
    if "snapshot_id" in own and "snapshot_id" in theirs and own["snapshot_id"] != theirs["snapshot_id"]:
        raise ResumeError(
            f"the state is of snapshot {theirs['snapshot_id']}, and this is snapshot {own['snapshot_id']}; "
            f"pass snapshot_id={theirs['snapshot_id']} (version={theirs['snapshot_id']} of a Delta Lake table) to "
            "continue, or start a new epoch without the state"
        )
    then, now = map(_interval, (theirs, own))
    if then != now:
        raise ResumeError(
            f"the state is of {then}, and this is {now}; pass the start_snapshot_id of the run that was saved, and "
            "its changelog=, or start a new epoch without the state"
        )
    if table.left_out or "left_out" in theirs:
        raise ResumeError(
            f"the state is of a table of which on_error left out {theirs.get('left_out', 0)} damaged parts, but here "
            f"it leaves out {len(table.left_out)}, or others; {_PIN}"
        )
    if younger := _files_since(table, theirs):
        shown = ", ".join(map(repr, younger[:5])) + (f" and {len(younger) - 5} more" if len(younger) > 5 else "")
        raise ResumeError(
            f"the table grew since the state was saved: {len(younger)} new files: {shown}; {_PIN}; or "
            'pass on_growth="continue" to continue with the new rows too'
        )
    counts = "; ".join(f"{name}: {theirs[name]} then, {own[name]} now" for name in ("files", "rows", "bytes"))
    settings = ", or of other settings of format=" if settings_of(table.files) else ""
    settings += ", or of another part of it" if table.layout.has_deletes else ""
    raise ResumeError(f"the state is of another table{settings} ({counts}); {_PIN}")


def _interval(table: Mapping[str, Any]) -> str:
    start = table.get("start_snapshot_id")
    if start is None:
        return "a whole snapshot"
    return f"the {'changelog' if table.get('changelog') else 'rows'} after snapshot {start}"


def _files_since(table: Table, theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the youngest files, if the table without them is the state's table."""
    old = oldest_files(table, theirs["files"], theirs["fingerprint"])
    younger = sorted(set(range(len(table.files))).difference(old or ()))
    if old is None:
        return []
    return [table.files[at].name for at in younger]


def oldest_files(table: Table, count: int, digest: Any) -> list[int] | None:
    """Return the oldest `count` files of a table that may have grown, if they have a given fingerprint; else None.

    Files come in the table's order.
    """
    by_age = sorted(range(len(table.files)), key=lambda at: (table.files[at].version.mtime_ns or 0, at))
    old, rows = sorted(by_age[:count]), table.layout.file_rows
    files = [table.files[at] for at in old]
    restored = fingerprint(files, [int(rows[at]) for at in old], settings_of(files))
    if restored == digest:
        return old
    return None


_LABELS = {"stage": "stage (what pack= makes of the rows)"}
"""Names in messages for options of a state that the caller knows by another name."""

_WINDOW = re.compile(r"-windows of (\d{1,18})(-shuffled)?")
"""What a stage says of `shuffle_buffer_size`."""


def check_options(own: Mapping[str, Any], theirs: Mapping[str, Any], whose: str = "loader") -> None:
    """Refuse options that differ from the job's own; one that is left out is None.

    Raises:
        ResumeError: names what differs.
    """
    own, theirs = map(_with_window, (own, theirs))
    differing = [name for name in dict.fromkeys((*own, *theirs)) if own.get(name) != theirs.get(name)]
    if not differing:
        return
    remedy = f"give the {whose} the options of the run that was saved, or start without its state"
    if "shuffle" in differing:  # splits matter only to streams
        differing = [name for name in differing if not name.startswith("split")]
    if differing == ["splits"]:
        raise ResumeError(
            "the state was saved with the table split differently (by the same strategy, with other parameters); "
            f"{remedy}"
        )
    shown = "; ".join(
        f"{_LABELS.get(name, name)} was {_shown(theirs.get(name))} and is {_shown(own.get(name))}"
        for name in differing
        if name != "splits"
    )
    raise ResumeError(f"the state was saved under other options: {shown}; {remedy}")


def _with_window(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options with the window of a stage as the caller gave it."""
    stage = str(options.get("stage"))
    if (window := _WINDOW.search(stage)) is None:
        return options
    return {**options, "stage": _WINDOW.sub("", stage), "shuffle_buffer_size": int(window[1])}


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) <= 200:
        return text
    return f"{text[:200]}…"
