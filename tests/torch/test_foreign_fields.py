"""A state has fields that only one kind of job may fill: each is refused by name in a state of any other kind."""

from __future__ import annotations

import copy
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
from tests.states import EXTENTS, ORIGIN, SEQ_LEN, State, newest
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


Edit = Callable[[State], None]


def each_table(place: int, value: Any) -> Edit:
    def edit(state: State) -> None:
        for entry in state["tables"]:
            entry[place] = copy.deepcopy(value)

    return edit


def in_stage(place: int, value: Any) -> Edit:
    def edit(state: State) -> None:
        newest(state)[place] = copy.deepcopy(value)

    return edit


def of_top(key: str, value: Any) -> Edit:
    return lambda state: state.update({key: copy.deepcopy(value)})


def at_weights(state: State) -> None:
    newest(state)[8][0].append([0, 3])


def at_the_end(*values: Any) -> Edit:
    return lambda state: newest(state).extend(copy.deepcopy(values))


def with_option(place: int, name: str, value: Any) -> Edit:
    """Add an option to the tables (2), or to the mixture (0)."""

    def edit(state: State) -> None:
        for pairs in [state["mixture"][0]] if place == 0 else [entry[place] for entry in state["tables"]]:
            pairs[:] = sorted([*(pair for pair in pairs if pair[0] != name), [name, value]])

    return edit


EXTENT = [None, 1, "0" * 32]
ORDER: list[Any] = [
    [["block", 256], ["shuffle_seed", 42], ["stop", "first_exhausted"]],
    [["a", 1], ["b", 1]],
    [["a", 1], ["b", 1]],
]
EXCLUDED = [["eJxjYIAAJiBmZmBnAAAAOgAN", "ea766d87f6a6db938f0bde2b114f3104"]]


def kinds_with(*words: str, but: tuple[str, ...] = ()) -> list[str]:
    """Name the kinds that have all words, and none of others."""
    return [kind for kind in (*KINDS, *MIXED) if {*words} <= {*kind.split()} and not {*but} & {*kind.split()}]


FOREIGN: list[tuple[str, list[str], Edit, str]] = [
    ("exclusions", kinds_with("stream"), each_table(3, EXCLUDED), "exclusions"),
    ("an anchor", kinds_with("stream"), each_table(4, [0, 16, 48, 1]), "anchor"),
    ("an anchor", kinds_with("rows", but=("cut", "whole")), each_table(4, [0, 16, 48, 1]), "anchor"),
    ("a mixture", kinds_with(but=("mixed",)), of_top("mixture", ORDER), "history|mixture"),
    ("no mixture", kinds_with("mixed"), of_top("mixture", []), "history|tables|mixture"),
    (
        "two tables",
        kinds_with(but=("mixed",)),
        lambda state: state["tables"].append(["z", *state["tables"][0][1:]]),
        "tables",
    ),
    (
        "a table without a name",
        kinds_with("mixed"),
        lambda state: state["tables"][0].__setitem__(0, ""),
        "sources|tables",
    ),
    ("the kind of rows", kinds_with("stream"), of_top("kind", "items"), "history"),
    ("the kind of streams", kinds_with("rows"), of_top("kind", "splits"), "history|anchor"),
    ("a length", kinds_with("rows", but=("cut", "whole")), in_stage(SEQ_LEN, 4), "sequences"),
    ("an origin", kinds_with("rows", but=("cut",)), in_stage(ORIGIN, 8), "tokens|origin|samples|sequences"),
    ("extents", kinds_with("rows"), in_stage(EXTENTS, [EXTENT]), "extents|table grew"),
    ("an extent", kinds_with("stream", but=("mixed",)), in_stage(9, EXTENT), "extent"),
    ("a rank", kinds_with("stream", but=("mixed",)), in_stage(10, 1), "count_filtered"),
    ("an origin of a source", kinds_with("mixed", "rows", but=("cut",)), at_weights, "origin"),
    ("what is dropped", kinds_with("mixed", "stream", but=("cut",)), at_the_end([4, [1, 0]]), "weights"),
    ("a width", kinds_with("mixed", "stream", but=("cut",)), at_the_end([], 4), "tokens"),
    ("a window", kinds_with("mixed", "stream"), in_stage(5, 64), "shuffle_buffer_size"),
    ("micro-batches", kinds_with("stream", but=("mixed",)), in_stage(8, 2), "micro_batches"),
    ("packing", kinds_with(but=("cut", "whole")), with_option(2, "stage", "concat"), "stage|pack|history"),
    ("sources that are dropped", kinds_with("mixed"), with_option(0, "drop", [["a", 1]]), "drop"),
    ("a budget", kinds_with("mixed"), with_option(0, "tokens", 100), "tokens"),
]


@pytest.mark.parametrize(
    ("kind", "edit", "said"),
    [pytest.param(kind, edit, said, id=f"{what} in {kind}") for what, kinds, edit, said in FOREIGN for kind in kinds],
)
@daily(lambda kind: kind in ("rows", "stream", "mixed rows"))
def test_a_field_of_another_kind_of_job_is_refused_by_name(
    tables: Path, states: Callable[[str], State], kind: str, edit: Edit, said: str
) -> None:
    state = states(kind)
    edit(state)
    loader = make(tables, kind)
    with pytest.raises(ResumeError, match=said):
        loader.load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize("kind", ["mixed rows", "mixed whole rows"])
def test_rows_that_are_mixed_have_no_origins_of_sequences(
    tables: Path, states: Callable[[str], State], kind: str
) -> None:
    state = states(kind)
    newest(state)[8][1].append([0, -2])
    with pytest.raises(ResumeError, match=r"origins .*'b'.* documents are not cut anywhere"):
        make(tables, kind).load_state_dict(state)
