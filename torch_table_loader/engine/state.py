"""The state of a loader: small plain data that says what the job has done, and of which tables.

Its keys never change. What grows or shrinks is a list of plain values, since stores of checkpoints that go key by key
then keep it whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.exclusion import ExclusionVersions
from torch_table_loader.planning.mixture import NaturalShares, Shares
from torch_table_loader.read.filter_key import filter_key, printed_filter_key
from torch_table_loader.source.fingerprint import fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_table_loader.engine.table import Table
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.stages import Extent, SamplePosition

State: TypeAlias = Mapping[str, Any]

STATE_VERSION = 1

UPGRADES: dict[int, Callable[[State], State]] = {}
"""For each version before the current one, what turns a state of it into one of the next version."""

_COLUMN_NAMES_BYTES = 1024
"""Names of columns are written out up to so many bytes, and hashed beyond."""

_REMEDIES = {
    "table": "pin the files of the first run with files= (dataset.save_files(path) keeps them), or start a new epoch",
    "options": "give the loader the options of the run that was saved, or start without its state",
}


def identity(table: Table, columns: pa.Schema, options: LoaderOptions, strategy: str, splits: str) -> dict[str, Any]:
    """Return the table and options that a state is bound to, as plain data without path or secret.

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
            **({} if table.start_snapshot_id is None else {"start_snapshot_id": table.start_snapshot_id}),
            **({"left_out": len(table.left_out)} if table.left_out else {}),
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


def write_state(bound: Mapping[str, Any], position: Mapping[str, Any]) -> dict[str, Any]:
    """Write where a job of one table is.

    Args:
        bound: the job's `identity`.
        position: what the trainer took, as plain data.
    """
    about = {"version": STATE_VERSION, "table": dict(bound["table"]), "options": dict(bound["options"])}
    return about | dict(position)


def current_version(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upgrade a state of an older version, and refuse what is no state, or one of a newer release.

    Raises:
        ResumeError: says what came.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise ResumeError(
            f"expected what state_dict() returned, got {type(state).__name__} without a version; pass it unchanged"
        )
    given = state["version"]
    while isinstance(state["version"], int) and state["version"] in UPGRADES:
        state = UPGRADES[state["version"]](state)
    if state["version"] != STATE_VERSION:
        raise ResumeError(
            f"expected a state of version {STATE_VERSION}, got version {given!r}; "
            "load it with the release of torch-table-loader that wrote it"
        )
    return state


def check_state(bound: Mapping[str, Any], table: Table, state: Mapping[str, Any], filters: Any) -> None:
    """Refuse a state of another table or other options.

    Args:
        bound: the `identity` of the job that is to go on.
        table: its table.
        state: of the current version, written on any rank.
        filters: the job's row filter, or None.

    Raises:
        ResumeError: names what differs.
    """
    if "mixture" in state:
        raise ResumeError("the state speaks of a mixture, and this is one table; load it with a MixedDataset's loader")
    _compare_tables(table, bound["table"], state.get("table", {}))
    theirs = state.get("options", {})
    if filters is not None and theirs.get("filters") == printed_filter_key(filters, table.schema):
        theirs = {**theirs, "filters": bound["options"]["filters"]}
    _compare_options(bound["options"], theirs)


def bound_by(
    own: Mapping[str, Any], state: State, extents: Collection[Extent], options: Callable[[Extent], Mapping[str, Any]]
) -> tuple[Mapping[str, Any], Extent | None]:
    """Return what a state must be bound to, and what the table was then, if it has grown since.

    Args:
        own: the job's `identity`.
        state: of the current version.
        extents: what the table was, as far as that is known.
        options: what differs in the options of a job of the table as it was.
    """
    table = state.get("table")
    digest = table.get("fingerprint") if isinstance(table, Mapping) else None
    for extent in extents:
        if extent.fingerprint == digest != own["table"]["fingerprint"]:
            was = {**own["table"], "fingerprint": digest}
            return {"table": was, "options": {**own["options"], **options(extent)}}, extent
    return own, None


def refuse_unknown(extents: Collection[Extent], known: Collection[Extent]) -> None:
    """Refuse to go on from a table of which it is not known what it was.

    Raises:
        ResumeError: says where it is known.
    """
    if unknown := [extent for extent in extents if extent not in known]:
        raise ResumeError(
            f"the state's epoch began before the table grew, when it had {unknown[0].files} files, and which these are "
            "is not known here; load it into a loader made by create_dataloader(...), in the process that trains"
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
            f"pass snapshot_id={theirs['snapshot_id']} (version={theirs['snapshot_id']} of a Delta Lake table) to go "
            "on, or start a new epoch without the state"
        )
    if own.get("start_snapshot_id") != theirs.get("start_snapshot_id"):
        then, now = (_after(each.get("start_snapshot_id")) for each in (theirs, own))
        raise ResumeError(
            f"the state speaks of {then}, and this is {now}; pass the start_snapshot_id of the run that was saved, or "
            "start a new epoch without the state"
        )
    if table.left_out or "left_out" in theirs:
        raise ResumeError(
            f"the state speaks of a table of which on_error left out {theirs.get('left_out', 0)} damaged parts, and "
            f"here it leaves out {len(table.left_out)}, or others; {_REMEDIES['table']}"
        )
    if younger := _files_since(table, theirs):
        shown = ", ".join(map(repr, younger[:5])) + (f" and {len(younger) - 5} more" if len(younger) > 5 else "")
        raise ResumeError(
            f"the table grew since the state was saved: {len(younger)} new files: {shown}; {_REMEDIES['table']}; or "
            'pass on_growth="continue" to go on with the new rows too'
        )
    counts = "; ".join(f"{name}: {theirs.get(name)} then, {own[name]} now" for name in ("files", "rows", "bytes"))
    raise ResumeError(f"the state speaks of another table ({counts}); {_REMEDIES['table']}")


def _after(start: int | None) -> str:
    return "a whole snapshot" if start is None else f"the rows after snapshot {start}"


def _files_since(table: Table, theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the youngest files, where the table without them is the one of the state."""
    old = oldest_files(table, theirs.get("files", 0), theirs.get("fingerprint"))
    younger = sorted(set(range(len(table.files))).difference(old or ()))
    return [] if old is None else [table.files[at].name for at in younger]


def oldest_files(table: Table, count: int, digest: Any) -> list[int] | None:
    """Return the oldest files of a table, in its order, where they make the table of a fingerprint; else None.

    Args:
        table: a table that may have grown.
        count: how many files it had.
        digest: its fingerprint then.
    """
    by_age = sorted(range(len(table.files)), key=lambda at: (table.files[at].version.mtime_ns or 0, at))
    old, rows = sorted(by_age[:count]), table.layout.file_rows
    restored = fingerprint([table.files[at] for at in old], [int(rows[at]) for at in old])
    return old if restored == digest else None


def _compare_options(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    differing = [
        name for name in dict.fromkeys((*own, "stage", "weights", "batch_by")) if own.get(name) != theirs.get(name)
    ]
    if not differing:
        return
    if differing == ["splits"]:
        raise ResumeError(
            "the state was saved with the table split in another way (the same strategy, with other parameters); "
            + _REMEDIES["options"]
        )
    shown = "; ".join(
        f"{name} was {_shown(theirs.get(name))} and is {_shown(own.get(name))}"
        for name in differing
        if name != "splits"
    )
    raise ResumeError(f"the state was saved under other options: {shown}; {_REMEDIES['options']}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


Weights: TypeAlias = dict[str, int] | str
"""By name of the source; or the word for those of what is left of each source."""


@dataclass(frozen=True, slots=True)
class MixtureState:
    """A state of a mixture, read.

    Args:
        epoch: which.
        consumed: samples that the job had taken.
        ended: True where they were counted on a rank that had taken all its batches, while others went on.
        total: samples of the epoch, as the weights then were; `ENDLESS` where it had no end.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
        shares: the weights of the running epoch, in the order of the names.
        names: the sources, sorted.
        sources: for each, table and options of a state of it alone, by name.
        exclusions: what is taken out of each, by name.
        anchors: of those that are walked, by name; see `TurnStream.anchor`.
    """

    epoch: int
    consumed: int
    ended: bool
    total: int
    given: Weights
    newest: Weights
    shares: Shares
    names: tuple[str, ...]
    sources: Mapping[str, Mapping[str, Any]]
    exclusions: Mapping[str, ExclusionVersions]
    anchors: Mapping[str, Any]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MixtureState:
        """Read what `write_mixture_state` wrote.

        Raises:
            ResumeError: it is something else.
        """
        try:
            consumed, ended, total = state["position"]
            start, shares = state["shares"]
            _refuse_others(
                state["epoch"], consumed, total, start, *(number for entry in shares for number in entry[1:])
            )
            given, newest = read_weights(state["given"]), read_weights(state["newest"])
            excluded = {
                name: ExclusionVersions.from_state({"exclusions": entry}) for name, entry in state["exclusions"]
            }
            sources = {
                name: {"table": dict(table), "options": dict(options)} for name, table, options, *_ in state["sources"]
            }
            anchors = {name: anchor for name, _, _, *rest in state["sources"] for anchor in rest}
            names = tuple(name for name, _, _ in shares)
            _refuse_unfit(names, given, newest, {name: weight for name, weight, _ in shares})
            _refuse_disorder(start, consumed, total)
            return cls(
                epoch=state["epoch"],
                consumed=consumed,
                ended=bool(ended),
                total=total,
                given=given,
                newest=newest,
                shares=Shares(start, tuple(entry[1] for entry in shares), tuple(entry[2] for entry in shares)),
                names=names,
                sources={name: sources[name] for name in names},
                exclusions={name: excluded.get(name, ExclusionVersions()) for name in names},
                anchors=anchors,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ResumeError(
                f"the state must be that of a mixture, as state_dict() writes it, got {error!r}; pass the value of "
                "state_dict() of a MixedDataset's loader unchanged"
            ) from error

    def source_state(self, name: str, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Write the state that a source alone would have at the start of the epoch, with nothing excluded.

        Args:
            name: of the source.
            identity: of the source here, whose own shuffling a mixture does not use.
        """
        source = self.sources[name]
        shuffling = {option: identity["options"][option] for option in ("shuffle", "shuffle_seed")}
        options = {**shuffling, **source["options"]}
        about = {"version": STATE_VERSION, "table": source["table"], "options": options}
        return about | {"epoch": self.epoch, "consumed": 0}


def write_mixture_state(
    bound: Mapping[str, Any],
    position: SamplePosition,
    given: Weights,
    newest: Weights,
    exclusions: Mapping[str, ExclusionVersions],
    anchors: Mapping[str, list[int]],
) -> dict[str, Any]:
    """Write where a job of a mixture is.

    Args:
        bound: the job's `identity`.
        position: what the trainer took.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
        exclusions: of each source, by name.
        anchors: see `MixtureState`.
    """
    mixture = position.mixed
    shares, nothing = mixture.shares, ExclusionVersions()
    return {
        "version": STATE_VERSION,
        "mixture": dict(bound["options"]),
        "sources": [
            [
                name,
                pairs_of(source["table"]),
                pairs_of(source["options"]),
                *([anchors[name]] if name in anchors else []),
            ]
            for name, source in sorted(bound["sources"].items())
        ],
        "given": given if isinstance(given, str) else pairs_of(given),
        "newest": newest if isinstance(newest, str) else pairs_of(newest),
        "epoch": position.epoch,
        "position": [position.consumed, position.ended, position.total],
        "shares": [
            shares.start,
            [list(entry) for entry in zip(mixture.names, shares.weights, shares.before, strict=True)],
        ],
        "exclusions": [[name, entry.to_state()] for name, entry in sorted(exclusions.items()) if entry != nothing],
    }


def check_mixture(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state of something else, or of a mixture under other options.

    Args:
        own: the options that decide the order.
        state: of the current version, written on any rank.

    Raises:
        ResumeError: names what differs.
    """
    if "mixture" not in state:
        raise ResumeError("the state speaks of one table, and this is a mixture; load it with the loader of that table")
    theirs = state["mixture"]
    if not isinstance(theirs, Mapping):
        raise ResumeError(f"the state must say of which mixture it is, got {theirs!r}; pass state_dict() unchanged")
    if differing := [name for name in own if own[name] != theirs.get(name)]:
        shown = "; ".join(f"{name} was {theirs.get(name)!r} and is {own[name]!r}" for name in differing)
        raise ResumeError(
            f"the state was saved under other options: {shown}; give the mixture the options of the run that was "
            "saved, or start without its state"
        )


def read_weights(written: Any) -> Weights:
    """Read weights as a state has them.

    Raises:
        TypeError: they are something else.
        ValueError: likewise.
    """
    if isinstance(written, str):
        if written not in get_args(NaturalShares):
            raise ValueError(f"weights {written!r}")
        return written
    weights = dict(written)
    _refuse_others(*weights.values())
    return weights


def _refuse_others(*numbers: Any) -> None:
    if wrong := [number for number in numbers if isinstance(number, bool) or not isinstance(number, int) or number < 0]:
        raise TypeError(f"{wrong[0]!r} where a number is expected")


def _refuse_disorder(*samples: int) -> None:
    if list(samples) != sorted(samples):
        raise ValueError(f"weights from, taken, and of the epoch: {samples} samples")


def _refuse_unfit(names: tuple[str, ...], *weights: Weights) -> None:
    if names != tuple(sorted(set(names))):
        raise ValueError(f"sources {names!r}")
    for entry in weights:
        if not isinstance(entry, str) and (entry.keys() != set(names) or not any(entry.values())):
            raise ValueError(f"weights {entry!r} for the sources {names!r}")


def pairs_of(values: Mapping[str, Any]) -> list[list[Any]]:
    """Write a mapping as a list, by name: the keys of a state never change."""
    return [[name, value] for name, value in sorted(values.items())]
