"""Laws of every mixture, of rows and of streams: weights that change, sources that come and go, rounds without end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.mixtures.mixed_worlds import Row, source_rows, write_texts
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.mixtures import rounds
from torch_table_loader.mixtures.rounds import Rounds
from torch_table_loader.planning import interleaving
from torch_table_loader.planning.epoch import epoch_order
from torch_table_loader.planning.runs import Runs
from torch_table_loader.read.parquet import ParquetFile
from torch_table_loader.testing import small_sizes

SIZES = {"a": 300, "b": 120, "c": 17}
WEIGHTS = {"a": 5, "b": 3, "c": 1}
EVERY = Counter((name, row) for name, size in SIZES.items() for row in range(size))
KINDS: dict[str, dict[str, Any]] = {"rows": {"shuffle": "rows"}, "streams": {"shuffle": "splits", "split_size": 40}}
OF_SOURCES = ("shuffle", "columns", "filters", "row_store")

Tables = dict[str, str]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name a kind of mixture; small tables would else come with one gather, which wraps them hundreds of times."""
    with small_sizes(gather_rows=200):
        yield request.param


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return write_texts(tmp_path_factory.mktemp("tables"), SIZES)


def make(kind: str, tables: Mapping[str, str], weights: Any = None, **options: Any) -> tuple[TableLoader, MixedDataset]:
    own = KINDS[kind] | {name: options.pop(name) for name in OF_SOURCES if name in options}
    weights = {name: WEIGHTS[name] for name in tables} if weights is None else weights
    chosen: dict[str, Any] = {"check_plan": False, "batch_size": 16} | options
    with meant_warnings():
        sources = {name: partial(StructuredDataset, path, **own) for name, path in tables.items()}
        return MixedDataset.create_dataloader(sources, weights, **chosen)


def rows(batch: Any, names: tuple[str, ...] = tuple(SIZES)) -> list[Row]:
    """Give source and id of each row of a batch, padding left out."""
    of = batch["source"].tolist()
    assert batch["text"] == [f"{names[source]} {row}" for source, row in zip(of, batch["id"].tolist(), strict=True)]
    return source_rows(batch, names)


def batches(loader: Any) -> list[list[Row]]:
    return [rows(batch) for batch in loader]


def names_in(found: list[list[Row]]) -> set[str]:
    return {name for batch in found for name, _ in batch}


def counted(*found: list[list[Row]]) -> Counter[Row]:
    return Counter(row for some in found for batch in some for row in batch)


def of_source(name: str) -> Counter[Row]:
    return Counter((name, row) for row in range(SIZES[name]))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("at", [0, 1, 4])
@daily(3)
def test_weights_change_at_the_next_step(kind: str, tables: Tables, worker_type: str, at: int) -> None:
    options: dict[str, Any] = {"worker_type": worker_type, "num_workers": 2}
    before = batches(make(kind, tables, **options)[0])
    loader, dataset = make(kind, tables, **options)
    going = iter(loader)
    taken = [rows(next(going)) for _ in range(at)]
    dataset.set_weights({"a": 0, "b": 1, "c": 0})
    assert dataset.weights == {"a": 0, "b": 1, "c": 0}
    state = json.loads(json.dumps(loader.state_dict()))
    told = len(loader), loader.remaining
    rest = batches(going)
    assert told == (at + len(rest), len(rest))
    assert taken == before[:at]
    assert names_in(rest) == {"b"}
    assert Counter(row for row in counted(taken, rest).elements() if row[0] == "b") == of_source("b")
    assert loader.metrics().batches == at + len(rest)
    assert loader.metrics().rows == counted(taken, rest).total()
    fresh = make(kind, tables, **options)[0]
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    assert told == (len(fresh), fresh.remaining)
    assert batches(fresh) == rest
    fresh.set_epoch(1)
    assert names_in(batches(fresh)) == {"b"}, "the epochs to come have them too"


def test_weights_that_change_twice_leave_each_row_once(kind: str, tables: Tables) -> None:
    loader, dataset = make(kind, tables, "rows", num_workers=2)
    going = iter(loader)
    seen = [rows(next(going)) for _ in range(3)]
    dataset.set_weights({"a": 1, "b": 0, "c": 0})
    seen += [rows(next(going)) for _ in range(3)]
    assert names_in(seen[3:]) == {"a"}
    dataset.set_weights("rows")
    assert counted(seen, batches(going)) == EVERY


def test_weights_change_at_an_epoch_and_over_a_resume(kind: str, tables: Tables) -> None:
    loader, dataset = make(kind, tables)
    list(loader)
    dataset.set_weights({"a": 1, "b": 0, "c": 0})
    finished = loader.state_dict()
    loader.set_epoch(1)
    only_a = batches(loader)
    assert counted(only_a) == of_source("a")
    fresh, other = make(kind, tables)
    fresh.load_state_dict(finished)
    assert batches(fresh) == [], "a finished epoch stays finished"
    assert other.weights == {"a": 1, "b": 0, "c": 0}
    fresh.set_epoch(1)
    assert batches(fresh) == only_a


def test_a_loader_made_with_other_weights_goes_on_with_those(kind: str, tables: Tables) -> None:
    loader, dataset = make(kind, tables)
    taken = rows(next(iter(loader)))
    dataset.set_weights({"a": 1, "b": 1, "c": 1})
    state = loader.state_dict()
    same, told = make(kind, tables)
    same.load_state_dict(state)
    assert told.weights == {"a": 1, "b": 1, "c": 1}, "made as the first run was, it has the weights that were set"
    other, told = make(kind, tables, {"a": 0, "b": 0, "c": 1})
    other.load_state_dict(state)
    assert told.weights == {"a": 0, "b": 0, "c": 1}
    found = counted([taken], batches(other))
    assert Counter(row for row in found.elements() if row[0] == "c") == of_source("c")


def test_equal_weights_change_nothing(kind: str, tables: Tables) -> None:
    loader, dataset = make(kind, tables)
    whole = batches(loader)
    loader.set_epoch(0)
    going = iter(loader)
    first = rows(next(going))
    dataset.set_weights({name: weight / 10 for name, weight in WEIGHTS.items()})
    assert [first, *batches(going)] == whole


def test_sources_are_added_and_removed_where_the_job_stands(kind: str, tables: Tables) -> None:
    two = {name: tables[name] for name in ("a", "b")}
    loader, _ = make(kind, two, "rows")
    seen = [rows(batch, ("a", "b")) for batch in islice(loader, 4)]
    state = loader.state_dict()
    more, _ = make(kind, tables, "rows")
    more.load_state_dict(state)
    assert counted(seen, batches(more)) == EVERY
    other = {name: tables[name] for name in ("b", "c")}
    changed, _ = make(kind, other, "rows")
    changed.load_state_dict(state)
    rest = [rows(batch, ("b", "c")) for batch in changed]
    assert names_in(rest) == {"b", "c"}
    found = counted(seen, rest)
    assert Counter(row for row in found.elements() if row[0] != "a") == of_source("b") + of_source("c")


def test_each_epoch_has_another_order(kind: str, tables: Tables) -> None:
    loader, _ = make(kind, tables, "rows")
    orders = []
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        orders.append(batches(loader))
    assert orders[0] != orders[1]
    assert counted(orders[0]) == counted(orders[1]) == EVERY


def test_an_epoch_without_end_wraps_and_has_no_length(kind: str, tables: Tables) -> None:
    loader, _ = make(kind, tables, stop="forever", num_workers=3)
    with pytest.raises(TypeError, match="no end"):
        len(loader)
    seen = counted([rows(batch) for batch in islice(loader, 90)])
    for name, size in SIZES.items():
        times = [seen[name, row] for row in range(size)]
        assert max(times) - min(times) <= 1
    assert max(seen.values()) > 5


def test_a_state_of_another_mixture_is_refused_by_name(kind: str, tables: Tables) -> None:
    state = make(kind, tables)[0].state_dict()
    others: list[tuple[dict[str, Any], str]] = [
        ({"stop": "forever"}, "stop was 'first_exhausted' and is 'forever'"),
        ({"shuffle_seed": 1}, "shuffle_seed was 42 and is 1"),
        ({"columns": ["id"]}, "source 'a': the state was saved under other options: columns was"),
        ({"filters": pc.field("id") < 9000}, "source 'a': .* filters was None"),
    ]
    if kind == "rows":
        others += [({"block": 8}, "block was 256 and is 8")]
    for option, message in others:
        with pytest.raises(ResumeError, match=message):
            make(kind, tables, **option)[0].load_state_dict(state)
    with pytest.raises(ResumeError, match="source 'b': the state is of another table"):
        make(kind, tables | {"b": tables["a"]})[0].load_state_dict(state)


def test_weights_that_cannot_be_meant_are_refused(kind: str, tables: Tables) -> None:
    wrong: list[tuple[Any, str]] = [
        ({"a": 1, "b": 1}, "'c' is not in it"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "weights names 'd'"),
        ({"a": 0, "b": 0, "c": 0}, "weights are all 0"),
        ({"a": -1, "b": 1, "c": 1}, "at least 0"),
        ({"a": "much", "b": 1, "c": 1}, "must be numbers"),
        ({"a": 1e-9, "b": 1, "c": 1}, "smallest weight"),
    ]
    _, dataset = make(kind, tables)
    for weights, message in wrong:
        with pytest.raises(ConfigError, match=message):
            make(kind, tables, weights)
        with pytest.raises(ConfigError, match=message):
            dataset.set_weights(weights)
    assert dataset.weights == WEIGHTS


def many_splits(folder: Path) -> dict[str, Any]:
    """Write two tables of 400 row groups of 4 rows, and read each row group as a split."""
    for name in "ab":
        pq.write_table(pa.table({"id": range(1600)}), folder / f"{name}.parquet", row_group_size=4)
    return {
        name: partial(StructuredDataset, str(folder / f"{name}.parquet"), shuffle=True, split_size=4) for name in "ab"
    }


@pytest.mark.parametrize("old", [None, 7])
def test_the_last_step_reads_the_splits_of_its_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: int | None
) -> None:
    """Its rows, and those that repeat, are of channels of all ranks, each of which ends with a window of its own."""
    sources = many_splits(tmp_path)
    opened: Any = partial(
        MixedDataset.create_dataloader, sources, {"a": 2, "b": 1}, batch_size=4, check_plan=False, even_ranks="pad"
    )
    state: Any = None
    if old:
        loader, _ = opened(rank=0, num_ranks=old, num_workers=0)
        next(iter(loader))
        state = loader.state_dict()
    loader, dataset = opened(rank=5, num_ranks=6, num_workers=0)
    if state is not None:
        loader.load_state_dict(state)
    read, batches = Counter[str](), ParquetFile.batches

    def noted(file: ParquetFile, groups: range, *rest: Any) -> Iterator[Any]:
        read["groups"] += len(groups)
        return batches(file, groups, *rest)

    monkeypatch.setattr(ParquetFile, "batches", noted)
    taken = []
    for batch in loader:
        taken.append(batch)
        if loader.remaining == 1:
            read.clear()
    last = taken[-1]
    assert last["padding"].any()
    assert 0 < read["groups"] <= len(last["id"])
    assert [tuple(row) for row in loader.rows_of(len(taken) - 1)] == source_rows(last, dataset.source_names)


def test_a_resume_of_streams_lays_out_one_rank_and_follows_each_stage_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted: splits laid out window by window, orders that are permuted, stages that are followed."""
    sources = many_splits(tmp_path)

    def opened(ranks: int, state: Any = None) -> TableLoader:
        loader: TableLoader
        loader, _ = MixedDataset.create_dataloader(
            sources, {"a": 2, "b": 1}, batch_size=4, check_plan=False, rank=0, num_ranks=ranks
        )
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def saved(ranks: int, state: Any = None) -> Any:
        loader = opened(ranks, state)
        for batch in islice(loader, 3):
            assert len(batch["id"]) == 4
        return loader.state_dict()

    done = Counter[Any]()
    mixed, permuted, followed = interleaving.interleaved, epoch_order, Rounds.after

    def noted_splits(runs: Runs, *rest: Any) -> Runs:
        done["splits"] += len(runs)
        return mixed(runs, *rest)

    def noted_order(segments: Any, *, purpose: str, **options: Any) -> Any:
        done[purpose] += 1
        return permuted(segments, purpose=purpose, **options)

    def noted_stage(own: Rounds, rest: Any, epoch: int, stage: Any) -> Any:
        done[own.name, stage.deal.number] += 1
        return followed(own, rest, epoch, stage)

    state = saved(12, saved(16))
    monkeypatch.setattr(interleaving, "interleaved", noted_splits)
    monkeypatch.setattr(rounds, "epoch_order", noted_order)
    monkeypatch.setattr(Rounds, "after", noted_stage)
    next(iter(opened(20)))
    fresh = done.pop("splits")
    done.clear()
    loader = opened(20, state)
    assert len(loader) > loader.remaining > 0
    next(iter(loader))
    assert 0 < done.pop("splits") <= fresh < 400
    stages = [(name, stage) for name in "ab" for stage in range(2)]
    assert done == Counter([*stages, *(f"splits of {name} in round 0" for name in "ab")])
