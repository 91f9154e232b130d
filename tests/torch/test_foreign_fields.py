"""Each kind of job has its own records in a state: what is of another kind, or of none, is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.states import State, record_of, with_newest, with_options, with_record, without_column
from tests.tables.plain import meant_warnings
from torch_table_loader import MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader

ROWS: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"}
STREAM: dict[str, Any] = {"shuffle": "splits", "split_size": 10}
CUT, WHOLE = {"pack": Pack(seq_len=4)}, {"pack": Pack(seq_len=4, strategy="pad")}
KINDS: dict[str, dict[str, Any]] = {
    "rows": ROWS,
    "stream": STREAM,
    "cut rows": ROWS | CUT,
    "whole rows": ROWS | WHOLE,
    "cut stream": STREAM | CUT,
    "whole stream": STREAM | WHOLE,
}
MIXED = {f"mixed {kind}": own for kind, own in KINDS.items()}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name in "ab":
        (root / name).mkdir()
        lists = pa.array([[row, row + 1, row + 2] for row in range(60)], pa.list_(pa.int32()))
        pq.write_table(pa.table({"x": range(60), "input_ids": lists}), root / name / "0.parquet", row_group_size=10)
    return root


def make(tables: Path, kind: str) -> TableLoader:
    own = MIXED[kind] if kind in MIXED else KINDS[kind]
    form: dict[str, Any] = {"columns": [] if "pack" in own else ["x"], "check_plan": False}
    with meant_warnings():
        if kind not in MIXED:
            return StructuredDataset.create_dataloader(str(tables / "a"), batch_size=4, num_workers=2, **form, **own)[0]
        sources = {name: partial(StructuredDataset, str(tables / name), **form, **own) for name in "ab"}
        weights = {"a": 1, "b": 1}
        return MixedDataset.create_dataloader(sources, weights, batch_size=4, num_workers=2, check_plan=False)[0]


@pytest.fixture(scope="module")
def states(tables: Path) -> Callable[[str], State]:
    """Give a state of a kind of job, which such a job takes."""

    @cache
    def of(kind: str) -> str:
        with make(tables, kind) as loader:
            list(islice(loader, 3))
            text = json.dumps(loader.state_dict())
        make(tables, kind).load_state_dict(json.loads(text))
        return text

    return lambda kind: dict(json.loads(of(kind)))


Edit = Callable[[State], State]


def in_stage(**columns: Any) -> Edit:
    return lambda state: with_newest(state, **columns)


def in_record(key: str, **fields: Any) -> Edit:
    return lambda state: with_record(state, key, **fields)


def of_top(key: str, value: Any) -> Edit:
    return lambda state: {**state, key: value}


def of_sources(key: str, value: Any) -> Edit:
    """Add a record that says the same of each source."""
    return lambda state: with_newest(state, **{key: {name: value for name, _ in state["tables"]}})


def at_sources(key: str, field: str, value: Any) -> Edit:
    """Say the same of each source in a field of a record; what the record must have is there."""
    needed = {"seq_len": 4, "origin": 0}
    return lambda state: with_record(
        with_newest(state, **{key: {**needed, **record_of(state, key)}}),
        key,
        **{field: {name: value for name, _ in state["tables"]}},
    )


def with_table_option(name: str, value: Any) -> Edit:
    def edit(state: State) -> State:
        for source, _ in state["tables"]:
            state = with_options(state, source, **{name: value})
        return state

    return edit


def with_mixture_option(name: str, value: Any) -> Edit:
    def edit(state: State) -> State:
        mixture = dict(state["mixture"])
        mixture["options"] = sorted({**dict(mixture["options"]), name: value}.items())
        return {**state, "mixture": [list(pair) for pair in sorted(mixture.items())]}

    return edit


def renamed(names: list[str]) -> Edit:
    """Give so many tables other names."""
    return lambda state: {
        **state,
        "tables": [[name, own] for name, (_, own) in zip(names, 2 * state["tables"], strict=False)],
    }


EXTENT = {"snapshot_id": None, "files": 1, "fingerprint": "0" * 32}
WEIGHTS = [["a", 1], ["b", 1]]
MIXTURE: list[Any] = [
    ["given", WEIGHTS],
    ["newest", WEIGHTS],
    ["options", [["block", 256], ["shuffle_seed", 42], ["stop", "first_exhausted"]]],
]
SHARES: dict[str, Any] = {"total": 120, "since": 0, "sources": {name: {"weight": 1, "before": 0} for name in "ab"}}
EXCLUDED = [{"ids": "eJxjYIAAJiBmZmBnAAAAOgAN", "digest": "ea766d87f6a6db938f0bde2b114f3104"}]
ORIGIN = {"round": 0, "tokens": -2}
ANCHOR = {"round": 0, "place": 16, "before": 48, "seal": 1}


def kinds_with(*words: str, but: tuple[str, ...] = ()) -> list[str]:
    """Name the kinds that have all words, and none of others."""
    return [kind for kind in (*KINDS, *MIXED) if {*words} <= {*kind.split()} and not {*but} & {*kind.split()}]


PLAIN_ROWS = kinds_with("rows", but=("cut", "whole"))
FOREIGN: list[tuple[str, list[str], Edit, str]] = [
    ("a record that nobody knows", kinds_with(), in_stage(another=[]), "does not know.* got 'another'"),
    ("exclusions", kinds_with("stream"), of_sources("exclusions", EXCLUDED), "exclusions"),
    ("exclusions of another table", kinds_with("rows"), in_stage(exclusions={"z": EXCLUDED}), "exclusions .*got 'z'"),
    ("sequences", kinds_with("stream"), in_stage(packing={"seq_len": 4, "origin": 0}), "without 'packing'"),
    ("sequences", PLAIN_ROWS, in_stage(packing={"seq_len": 4, "origin": 0}), "sequences"),
    ("no sequences", kinds_with("rows", "cut"), lambda state: without_column(state, "packing"), "'packing'"),
    ("no sequences", kinds_with("rows", "whole"), lambda state: without_column(state, "packing"), "'packing'"),
    ("an anchor", PLAIN_ROWS, at_sources("packing", "anchors", ANCHOR), "sequences"),
    ("an anchor of another table", kinds_with("rows", "cut"), in_record("packing", anchors={"z": ANCHOR}), "got 'z'"),
    ("an origin", kinds_with("rows", "whole"), in_record("packing", origin=8), "tokens|origin|samples|sequences"),
    (
        "an origin of a source",
        kinds_with("rows", "cut"),
        in_record("packing", origins={"z": ORIGIN}),
        "got 'z'|origins",
    ),
    ("an origin of the table", ["cut rows"], in_record("packing", origins={"": ORIGIN}), "origins must be left out"),
    (
        "a mixture",
        kinds_with(but=("mixed",)),
        of_top("mixture", MIXTURE),
        "history must be one with a column 'mixture'",
    ),
    ("shares", kinds_with("rows", but=("mixed",)), in_stage(mixture=SHARES), "has no mixture"),
    (
        "a whole mixture",
        kinds_with("rows", but=("mixed",)),
        lambda state: {**with_newest(state, mixture=SHARES), "mixture": MIXTURE},
        "for the sources",
    ),
    (
        "no mixture",
        kinds_with("mixed"),
        lambda state: {key: value for key, value in state.items() if key != "mixture"},
        "has no mixture",
    ),
    ("no shares", kinds_with("mixed"), lambda state: without_column(state, "mixture"), "tables|column 'mixture'"),
    ("two tables", kinds_with(but=("mixed",)), renamed(["", "z"]), "tables"),
    ("a table without a name", kinds_with("mixed"), renamed(["", "b"]), "sources|tables"),
    ("the kind of rows", kinds_with("stream"), of_top("kind", "items"), "history"),
    ("the kind of streams", kinds_with("rows"), of_top("kind", "splits"), "history"),
    ("extents", kinds_with("rows"), in_stage(extents=[EXTENT]), "extents|table grew"),
    ("an extent", kinds_with("stream"), in_stage(extent=EXTENT), "extent"),
    ("a rank", kinds_with("stream"), in_stage(rank=1), "count_filtered|rank"),
    (
        "what is dropped",
        kinds_with("mixed", "stream", but=("cut",)),
        in_record("mixture", dropped={"until": 4, "weights": [1, 0]}),
        "weights",
    ),
    ("a width", kinds_with("mixed", "stream", but=("cut",)), in_record("mixture", width=4), "tokens"),
    ("a field that nobody knows", kinds_with("mixed"), in_record("mixture", another=4), "without 'another'"),
    ("a field that nobody knows", kinds_with("rows", "cut"), in_record("packing", another=4), "without 'another'"),
    ("a window", kinds_with("mixed", "stream"), in_stage(shuffle_buffer_size=64), "shuffle_buffer_size"),
    ("micro-batches", kinds_with("stream", but=("mixed",)), in_stage(micro_batches=2), "micro_batches"),
    ("packing", kinds_with(but=("cut", "whole")), with_table_option("stage", "concat"), "stage|pack|history"),
    ("sources that are dropped", kinds_with("mixed"), with_mixture_option("drop", [["a", 1]]), "drop"),
    ("a budget", kinds_with("mixed"), with_mixture_option("tokens", 100), "tokens"),
]


@pytest.mark.parametrize(
    ("kind", "edit", "said"),
    [pytest.param(kind, edit, said, id=f"{what} in {kind}") for what, kinds, edit, said in FOREIGN for kind in kinds],
)
@daily(lambda kind: kind in ("rows", "stream", "mixed rows"))
def test_a_field_of_another_kind_of_job_is_refused_by_name(
    tables: Path, states: Callable[[str], State], kind: str, edit: Edit, said: str
) -> None:
    loader = make(tables, kind)
    with pytest.raises(ResumeError, match=said):
        loader.load_state_dict(json.loads(json.dumps(edit(states(kind)))))


def test_whole_documents_that_are_mixed_have_no_origins(tables: Path, states: Callable[[str], State]) -> None:
    state = with_record(states("mixed whole rows"), "packing", origins={"b": ORIGIN})
    with pytest.raises(ResumeError, match=r"origins .*'b'.* documents are not cut anywhere"):
        make(tables, "mixed whole rows").load_state_dict(state)
