"""What is special to a mixture of rows: shares, stop rules, long histories, forms that must be equal."""

from __future__ import annotations

import copy
import io
import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.states import excluded_of, is_ended, newest, record_of, with_newest, with_record, without_column
from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import (
    ConfigError,
    MixedDataset,
    ResumeError,
    RowStore,
    StructuredDataset,
    TableLoader,
    Vocabulary,
)
from torch_table_loader.engine import row_store
from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.extend import ExclusionVersions, SourceRow
from torch_table_loader.testing import check_items, small_sizes

SIZES = {"a": 700, "b": 250, "c": 61}
WEIGHTS = {"a": 5, "b": 3, "c": 1}

Tables = dict[str, str]
Row = tuple[str, int]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Tables of several files whose `id` counts from 10,000 in the second, from 20,000 in the third."""
    root = tmp_path_factory.mktemp("tables")
    for number, (name, size) in enumerate(SIZES.items()):
        (root / name).mkdir()
        for part, ids in enumerate(np.array_split(np.arange(size) + 10_000 * number, 3)):
            columns = {"id": ids, "x": ids.astype("f4") / 3, "text": [f"row {i}" for i in ids]}
            pq.write_table(pa.table(columns), root / name / f"{part}.parquet", row_group_size=50)
    return {name: str(root / name) for name in SIZES}


@pytest.fixture(autouse=True)
def _small_gathers() -> Iterator[None]:
    """So small tables would come with one gather, which wraps them hundreds of times."""
    with small_sizes(gather_rows=200):
        yield


def open_sources(paths: Mapping[str, str], **options: Any) -> dict[str, StructuredDataset]:
    chosen: dict[str, Any] = {"shuffle": "rows", "row_id": True, "check_plan": False} | options
    with meant_warnings():
        return {name: StructuredDataset(path, **chosen) for name, path in paths.items()}


def make(
    paths: Mapping[str, str], weights: Mapping[str, float] | None = None, **options: Any
) -> tuple[TableLoader, MixedDataset]:
    own = ("filters", "row_store", "columns")
    of_sources = {name: options.pop(name) for name in own if name in options}
    weights = {name: WEIGHTS[name] for name in paths} if weights is None else weights
    with meant_warnings():
        sources = open_sources(paths, **of_sources)
        size = {} if "global_batch_size" in options else {"batch_size": 32}
        return MixedDataset.create_dataloader(sources, weights, **({"check_plan": False} | size | options))


def rows(batch: Mapping[str, Any], names: tuple[str, ...] = ("a", "b", "c")) -> list[Row]:
    """Give source and row of each row of a batch, padding left out."""
    pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["source"])
    found = zip(batch["source"].tolist(), batch["row_id"].tolist(), pads, strict=True)
    return [(names[source], row) for source, row, padding in found if not padding]


def batches(loader: Any) -> list[list[Row]]:
    return [rows(batch) for batch in loader]


# ---- what comes ------------------------------------------------------------------------------------------

jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 5),
        "num_workers": st.integers(0, 4),
        "batch_size": st.integers(3, 20),
        "even_ranks": st.sampled_from([None, "pad"]),
        "drop_last": st.booleans(),
        "stop": st.sampled_from(["first_exhausted", "all_exhausted"]),
        "block": st.sampled_from([0, 1, 256]),
        "filters": st.sampled_from([None, pc.field("k") < 5]),
    }
)


@pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    groups=st.lists(
        st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=3
    ),
    weights=st.lists(st.sampled_from([0.3, 1, 2]), min_size=3, max_size=3),
    options=jobs,
    epoch=st.integers(0, 2),
)
def test_each_source_has_its_share_and_repeats_no_row_before_its_wrap(
    groups: list[list[list[int]]], weights: list[float], options: dict[str, Any], epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        paths = {name: f"{root}/{name}" for name, _ in zip("abc", groups, strict=False)}
        for path, files in zip(paths.values(), groups, strict=True):
            write_table(Path(path), files)
        shares = dict(zip(paths, weights, strict=False))
        made = [make(paths, shares, rank=rank, **options) for rank in range(options["num_ranks"])]
        live = {name: len(source.as_map()) for name, source in open_sources(paths, filters=options["filters"]).items()}
        seen: Counter[Row] = Counter()
        for loader, _ in made:
            loader.set_epoch(epoch)
            found = list(loader)
            assert len(found) == len(loader)
            assert all(len(batch["source"]) == options["batch_size"] for batch in found[:-1])
            for batch in found:
                assert batch["x"].tolist() == batch["row_id"].tolist()
                seen.update(rows(batch, tuple(paths)))
        per_source = Counter(name for name, _ in seen.elements())
        for name, count in live.items():
            own = [times for (source, _), times in seen.items() if source == name]
            assert max(own, default=0) - (min(own, default=0) if len(own) == count else 0) <= 1
            if options["stop"] == "first_exhausted":
                assert max(own, default=0) <= 1
            elif not options["drop_last"]:
                assert len(own) == count
        if options["drop_last"] or options["even_ranks"] == "pad":
            assert len({len(loader) for loader, _ in made}) == 1
        total = sum(per_source.values())
        block = max(options["block"], 100)
        for name in paths:
            share = total * Fraction(str(shares[name])) / sum(Fraction(str(weight)) for weight in shares.values())
            assert abs(per_source[name] - share) <= block


@pytest.mark.parametrize("block", [0, 64, 256])
@pytest.mark.parametrize("options", [{"num_workers": 0}, {}, {"num_ranks": 2, "rank": 0}], ids=str)
@daily(3)
def test_the_first_source_to_be_exhausted_ends_the_epoch_at_the_row_that_would_repeat(
    tables: Tables, block: int, options: dict[str, Any]
) -> None:
    world = {key: value for key, value in options.items() if key != "rank"}
    made = [make(tables, block=block, rank=rank, **world)[0] for rank in range(options.get("num_ranks", 1))]
    found = [row for loader in made for batch in batches(loader) for row in batch]
    assert len(set(found)) == len(found)
    endless = islice(make(tables, block=block, stop="forever", batch_size=1, num_workers=0)[0], len(found) + 1)
    *rest, after = [row for batch in endless for row in rows(batch)]
    assert sorted(rest) == sorted(found)
    assert after in rest


@pytest.mark.parametrize("worker_type", ["thread", "fork"])
@pytest.mark.parametrize("where", ["behind a URL", "larger than memory"])
@daily(2)
def test_stores_that_are_not_in_memory_give_the_same(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, worker_type: str
) -> None:
    """One source is so rare that most blocks have nothing of it."""
    chosen: dict[str, Any] = {"weights": {"a": 300, "b": 100, "c": 1}, "batch_size": 8, "worker_type": worker_type}
    wanted = batches(make(tables, **chosen)[0])
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "first"))
    folder = uuid.uuid4().hex
    place = f"memory://{folder}" if where == "behind a URL" else str(tmp_path / "stores")
    if where == "larger than memory":
        monkeypatch.setattr(row_store, "available_memory", lambda: 1)
    store: dict[str, Any] = {"row_store": RowStore(place, memory=1), "num_workers": 2}
    with small_sizes(gather_rows=16):
        assert batches(make(tables, **chosen, **store)[0]) == wanted
        monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "second"))
        again, dataset = make(tables, **chosen, **store)
        assert batches(again) == wanted
    assert type(dataset.job.live_rows["a"].store.rows()).__name__ == (
        "RemoteRows" if where == "behind a URL" else "StoredRows"
    )


def test_a_mixture_holds_the_contract_of_items(tables: Tables) -> None:
    job: Any = make(tables, {"a": 3, "b": 2, "c": 1}, stop="all_exhausted")[1].job
    check_items(job.items, job.by_step)


def test_the_name_of_a_source_decides_its_order(tables: Tables) -> None:
    first = batches(make(tables, filters=pc.field("x") < 6720)[0])
    renamed = {"d" if name == "a" else name: path for name, path in tables.items()}
    other = batches(make(renamed, {"d": 5, "b": 3, "c": 1}, filters=pc.field("x") < 6720)[0])
    assert [row[1] for row in other[0] if row[0] == "a"] != [row[1] for row in first[0] if row[0] == "a"]


def test_the_order_in_which_sources_are_named_decides_only_their_numbers(tables: Tables) -> None:
    turned = dict(reversed(tables.items()))
    loader, dataset = make(turned)
    assert dataset.source_names == ("c", "b", "a")
    assert [rows(batch, ("c", "b", "a")) for batch in loader] == batches(make(tables)[0])


def test_an_epoch_without_end_wraps_and_has_no_length(tables: Tables) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 1, "c": 8}, stop="forever", batch_size=100)
    for unknown in (loader, dataset, iter(loader)):
        with pytest.raises(TypeError, match='stop="forever"'):
            len(unknown)
    loader.set_epoch(1)
    taken = [row for batch in islice(loader, 20) for row in rows(batch)]
    of_c = [row for name, row in taken if name == "c"]
    for start in range(0, len(of_c) - 61, 61):
        assert sorted(of_c[start : start + 61]) == list(range(61))
    assert of_c[:61] != of_c[61:122]
    assert dataset.explain().steps is None
    assert "the epoch ends never" in str(dataset.explain())
    assert dataset.explain().memory_expected == dataset.explain().memory_bound, "there is no end of rows"


def test_a_source_without_weight_stays_out(tables: Tables) -> None:
    loader, dataset = make(tables, {"a": 1, "b": 0, "c": 1})
    assert {name for batch in batches(loader) for name, _ in batch} == {"a", "c"}
    assert dataset.weights == {"a": 1, "b": 0, "c": 1}


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_source_without_weight_is_not_read_until_it_has_one(tables: Tables, tmp_path: Path, worker_type: str) -> None:
    store = tmp_path / "stores"
    loader, dataset = make(tables, {"a": 1, "b": 0, "c": 1}, row_store=str(store), worker_type=worker_type)
    batches = iter(loader)
    taken = [rows(next(batches))]
    assert [row for row in loader.rows_of(1) if isinstance(row, SourceRow) and row.source == "b"] == []
    assert len(list(store.iterdir())) == 2
    dataset.set_weights({"a": 0, "b": 1, "c": 0})
    taken += [rows(batch) for batch in batches]
    assert len(list(store.iterdir())) == 3
    assert {row for batch in taken for name, row in batch if name == "b"} == set(range(SIZES["b"]))


# ---- state -----------------------------------------------------------------------------------------------


def test_the_state_is_small_and_plain_whatever_the_weights(tables: Tables) -> None:
    loader, dataset = make(tables)
    dataset.exclude({"b": range(100)})
    next(iter(loader))
    dataset.set_weights({"a": 0.123456789, "b": 0.7, "c": 1})
    state = loader.state_dict()
    assert len(json.dumps(state)) < 4096
    stored = io.BytesIO()
    torch.save(state, stored)
    stored.seek(0)
    assert torch.load(stored, weights_only=True) == state == json.loads(json.dumps(state))


def run_stage(
    paths: Tables, state: dict[str, Any] | None, steps: int, change: Any, **options: Any
) -> tuple[list[Row], dict[str, Any]]:
    """Let every rank of a job go on from a state; after its first step each is told the same."""
    seen, states = [], []
    sources, weights = open_sources(paths), options.pop("weights")
    for rank in range(options["num_ranks"]):
        with meant_warnings():
            loader, dataset = MixedDataset.create_dataloader(sources, weights, rank=rank, check_plan=False, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        told = taken = 0
        for batch in islice(loader, steps):
            taken += 1
            seen += rows(batch, dataset.source_names)
            if not told:
                told = 1
                change(dataset)
        if not told:
            change(dataset)
        states.append((taken, loader.state_dict()))
    running = [state for _, state in states if not is_ended(state)]
    assert all(state == running[0] for state in running)
    return seen, running[0] if running else states[0][1]


stages = st.lists(
    st.fixed_dictionaries(
        {
            "num_ranks": st.integers(1, 5),
            "num_workers": st.integers(0, 3),
            "batch_size": st.integers(1, 40),
            "steps": st.integers(1, 6),
            "pad": st.booleans(),
            "names": st.sets(st.sampled_from("abc"), min_size=1),
            "weights": st.lists(st.sampled_from([1, 2, 5]), min_size=3, max_size=3),
            "reset": st.booleans(),
        }
    ),
    max_size=5,
)


@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=stages,
    data=st.data(),
    stop=st.sampled_from(["first_exhausted", "all_exhausted", "forever"]),
    block=st.sampled_from([0, 256]),
)
def test_states_chained_through_topologies_weights_sources_and_exclusions(
    tables: Tables, chain: list[dict[str, Any]], data: st.DataObject, stop: str, block: int
) -> None:
    state: dict[str, Any] | None = None
    seen: Counter[Row] = Counter()
    gone: dict[str, set[int]] = {name: set() for name in SIZES}
    names: set[str] = set()
    weights: dict[str, float] = {}
    last = {"num_ranks": 1, "num_workers": 1, "batch_size": 64, "steps": 12, "pad": False, "reset": False}
    for stage in [*chain, last]:
        if "names" in stage:
            left = names - stage["names"]
            seen = Counter({row: times for row, times in seen.items() if row[0] not in left})
            names = set(stage["names"])
            weights = dict(zip(sorted(names), stage["weights"], strict=False))
        elif not names:
            names, weights = {"a", "b"}, {"a": 1, "b": 1}
        asked = {name: data.draw(st.sets(st.integers(0, SIZES[name] - 1), max_size=9)) for name in sorted(names)}
        new = dict(zip(sorted(names), data.draw(st.permutations([3, 1, 4])), strict=False)) if stage["reset"] else None

        def change(dataset: MixedDataset, asked: Any = asked, new: Any = new) -> None:
            dataset.exclude({name: sorted(ids) for name, ids in asked.items()})
            if new is not None:
                dataset.set_weights(new)

        found, state = run_stage(
            {name: tables[name] for name in sorted(names)},
            state,
            stage["steps"],
            change,
            weights=weights,
            stop=stop,
            block=block,
            num_ranks=stage["num_ranks"],
            num_workers=stage["num_workers"],
            batch_size=stage["batch_size"],
            even_ranks="pad" if stage["pad"] else None,
        )
        seen.update(found)
        shares = record_of(state, "mixture")["sources"]
        assert set(shares) == names
        for name in names:
            times = [seen[name, row] for row in range(SIZES[name])]
            assert max(times) - min(times) <= 1, "no row comes twice before each has come"
            assert stop != "first_exhausted" or max(times) <= 1
            gone[name] |= asked[name]
        assert sum(seen.values()) >= sum(own["before"] for own in shares.values())
    loader, dataset = make({name: tables[name] for name in sorted(names)}, weights=weights, stop=stop, block=block)
    loader.load_state_dict(state or {})
    loader.set_epoch(1)
    going = islice(loader, 12)
    later = Counter(row for batch in going for row in rows(batch, dataset.source_names))
    excluded = gone_now(state)
    for name in names:
        assert not any(later[name, row] for row in excluded[name]), "what was excluded meanwhile is gone now"
        left = [later[name, row] for row in range(SIZES[name]) if row not in excluded[name]]
        assert max(left) - min(left) <= 1
        assert excluded[name] <= gone[name]


def gone_now(state: dict[str, Any] | None) -> dict[str, set[int]]:
    """Read what the state says is excluded from the next epoch."""
    said = {} if state is None else excluded_of(state)
    versions = {name: ExclusionVersions.from_state(own, SIZES[name]) for name, own in said.items()}
    return {name: set(versions[name].newest.ids.tolist()) if name in versions else set() for name in SIZES}


def test_a_state_that_was_tampered_with_is_refused(tables: Tables) -> None:
    loader = make(tables)[0]
    state = loader.state_dict()
    mixture, shares = dict(state["mixture"]), record_of(state, "mixture")["sources"]
    own = [["before", 0], ["weight", 1]]
    wrong: list[dict[str, Any]] = [
        *(
            with_record(with_newest(state, consumed=taken), "mixture", total=total, since=start, sources=each)
            for taken, total, start, each in (
                ("1", 10, 0, shares),
                (11, 10, 0, shares),
                (0, 10, 1, shares),
                (0, 10, 0, None),
                (0, 10, 0, []),
                (0, 10, 0, {"a": {"weight": 1}}),
                (0, 10, 0, {"z": {"weight": 1, "before": 0}}),
                (0, 10, 0, {name: {"weight": 0, "before": 0} for name in "abc"}),
                (0, 10, 0, [[name, own] for name in "aac"]),
                (0, 10, 0, [[name, own] for name in "cba"]),
            )
        ),
        with_record(with_newest(state, steps=1, ended=True, consumed=5), "mixture", total=10),
        without_column(state, "mixture"),
        *(
            {"mixture": sorted(([name, value] for name, value in {**mixture, **change}.items()))}
            for change in (
                {"newest": [["a", 1], ["b", 1]]},
                {"newest": [["a", 0], ["b", 0], ["c", 0]]},
                {"given": [["a", "1"]]},
                {key: [["a", 1], ["b", 1], ["z", 1]] for key in ("given", "newest")},
            )
        ),
        {"mixture": None},
        {"mixture": []},
        {"mixture": 3},
        {"tables": [["a"]]},
        with_newest(state, exclusions={name: [{"ids": "!", "digest": "0"}] for name in "abc"}),
    ]
    for change in wrong:
        with pytest.raises(ResumeError):
            loader.load_state_dict(copy.deepcopy(state) | change)
    assert loader.state_dict() == state


def place_of(loader: TableLoader) -> tuple[Any, ...]:
    """Return the steps, whether the rank ended, the rows that were taken, and all of the epoch."""
    state = loader.state_dict()
    stage = newest(state)
    return stage["steps"], stage["ended"], stage["consumed"], record_of(state, "mixture")["total"]


def test_weights_set_before_the_last_step_of_the_ranks_that_go_on(tables: Tables) -> None:
    one: dict[str, Any] = {"paths": {"c": tables["c"]}, "weights": {"c": 1}, "batch_size": 30}  # a row is left over
    one["even_ranks"] = False
    ended = make(**one, num_ranks=2, rank=1)[0]
    list(ended)
    assert place_of(ended) == (1, True, 60, 61)
    running, dataset = make(**one, num_ranks=2, rank=0)
    going = iter(running)
    next(going)
    dataset.set_weights({"c": 1})
    assert place_of(running) == (1, False, 60, 61)
    assert [len(rows(batch, ("c",))) for batch in going] == [1]


@pytest.mark.parametrize("weights", [None, 0.5, "abc", [("a", 1), ("b", 1), ("c", 1)]], ids=repr)
def test_weights_without_names_are_refused(tables: Tables, weights: Any) -> None:
    dataset = make(tables)[1]
    for call in (dataset.set_weights, lambda said: MixedDataset(open_sources(tables), said)):
        with pytest.raises(ConfigTypeError, match="weights must be numbers by source name, "):
            call(weights)


def test_what_accelerate_is_told_of_the_tail_follows_the_weights(tables: Tables) -> None:
    loader, dataset = make(tables, batch_size=50, num_ranks=3, rank=0, even_ranks="pad")
    batches = iter(loader)
    next(batches)
    before = loader.remainder
    dataset.set_weights({"a": 1, "b": 1, "c": 0})
    state = loader.state_dict()
    list(batches)
    fresh = make(tables, batch_size=50, num_ranks=3, rank=0, even_ranks="pad")[0]
    fresh.load_state_dict(state)
    list(fresh)
    assert loader.remainder == fresh.remainder != before


# ---- exclusion -------------------------------------------------------------------------------------------


def test_what_a_source_had_excluded_stays_out_and_its_own_later_say_is_its_own(tables: Tables) -> None:
    sources = open_sources(tables)
    sources["c"].exclude(range(60))
    loader, _ = MixedDataset.create_dataloader(sources, WEIGHTS, batch_size=32, stop="all_exhausted", check_plan=False)
    sources["c"].include(range(60))
    assert {row for batch in batches(loader) for name, row in batch if name == "c"} == {60}


def test_all_excluded_and_unknown_rows_are_errors(tables: Tables) -> None:
    loader, dataset = make(tables)
    with pytest.raises(ConfigError, match="row ids must be in"):
        dataset.exclude({"c": [61]})
    with pytest.raises(ConfigError, match="no source 'z'"):
        dataset.exclude({"z": [1]})
    with pytest.raises(ConfigTypeError, match="by name of their source"):
        dataset.include([1])  # type: ignore[arg-type]
    dataset.exclude({"c": range(61)})
    with pytest.raises(ConfigError, match="'c' has no row in this epoch"):
        iter(loader)
    with pytest.raises(ConfigError, match="'c' has no row in this epoch"):
        dataset.set_weights(WEIGHTS)
    dataset.set_weights({"a": 1, "b": 1, "c": 0})
    assert {name for batch in batches(loader) for name, _ in batch} == {"a", "b"}
    assert "'c': 0 rows, a share of 0" in str(dataset.explain())


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": pc.field("x") > 1}, "filters= belongs to the sources"),
        ({"shuffle": "rows"}, "shuffle= belongs to the sources"),
        ({"row_id": False}, "row_id= belongs to the sources"),
        ({"stop": "never"}, "stop must be one of"),
        ({"block": -1}, "block must be"),
    ],
    ids=str,
)
def test_options_that_no_mixture_takes_are_refused(tables: Tables, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixedDataset(open_sources(tables), WEIGHTS, **options)


def test_sources_that_do_not_fit_are_refused(tables: Tables, tmp_path: Path) -> None:
    good = open_sources(tables)
    even = {"a": 1, "b": 1}

    def refused(message: str, b: Any, a: Any = good["a"], **options: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            MixedDataset({"a": a, "b": b}, even, **options)

    def written(name: str, **columns: Any) -> StructuredDataset:
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        return StructuredDataset(str(tmp_path / f"{name}.parquet"), shuffle="rows", row_id=True)

    full: dict[str, Any] = {"id": pa.array([1]), "x": pa.array([1.0], "f4"), "text": ["t"]}
    refused(r"column 'x' is float in 'a' and double in 'b'", written("types", **full | {"x": pa.array([1.0])}))
    refused(r"'more' \(int64\) of 'b' is not in 'a'", written("more", **full | {"more": pa.array([1])}))
    refused(r"'text' \(string\) of 'a' is not in 'b'", written("less", id=full["id"], x=full["x"]))
    refused("row_id is True in 'a' and False in 'b'", StructuredDataset(tables["b"], shuffle="rows"))
    refused("output_format is 'torch' in 'a'", StructuredDataset(tables["b"], shuffle="rows", output_format="numpy"))
    refused("is a stream, and 'a' has shuffle=\"rows\"", StructuredDataset(tables["b"], shuffle="splits"))
    refused("must be a dataset of one table", "a path")
    refused("must be a dataset of one table", MixedDataset(good, WEIGHTS))
    refused("has a collate_fn", StructuredDataset(tables["b"], shuffle="rows", row_id=True, collate_fn=dict))
    hiding = written("source", source=pa.array([1]))
    refused("adds a column 'source'", hiding, hiding)
    padding = written("padding", padding=pa.array([1]))
    refused("adds a column 'padding'", padding, padding, even_ranks="pad")
    for wrong in ({}, [good["a"]], {1: good["a"]}):
        with pytest.raises(ConfigTypeError, match="datasets by name"):
            MixedDataset(wrong, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"nulls": {"x": float("nan")}}, {"nulls": {"x": float("nan")}}),
        (
            {"strings": {"text": Vocabulary(np.array(["row 1", "row 2"]).tolist())}},
            {"strings": {"text": Vocabulary(pa.array(["row 1", "row 2"]))}},
        ),
        ({"strings": {"text": Vocabulary(["row 1", "row 2"])}}, {"strings": {"text": Vocabulary(("row 1", "row 2"))}}),
    ],
    ids=str,
)
def test_what_is_the_same_form_but_not_the_same_object_is_taken(tables: Tables, one: Any, other: Any) -> None:
    sources = {"a": open_sources({"a": tables["a"]}, **one)["a"]}
    sources |= {"b": open_sources({"b": tables["b"]}, **other)["b"]}
    assert len(next(iter(MixedDataset(sources, {"a": 1, "b": 1}, batch_size=100)))["text"]) > 0
    if "strings" in one:
        different = open_sources({"b": tables["b"]}, strings={"text": Vocabulary(["row 2", "row 1"])})
        with pytest.raises(ConfigError, match="must come in one form, but strings is"):
            MixedDataset(sources | different, {"a": 1, "b": 1})


def test_ranks_are_those_of_the_sources_unless_they_are_named(tables: Tables) -> None:
    def source(name: str, **ranks: Any) -> StructuredDataset:
        return StructuredDataset(tables[name], shuffle="rows", row_id=True, even_ranks="pad", check_plan=False, **ranks)

    both = {name: source(name, num_ranks=3, rank=2) for name in "ab"}
    job = MixedDataset(both, {"a": 1, "b": 1}, drop_last=True, check_plan=False).job
    assert (job.topology.num_ranks, job.rank) == (3, 2)
    mixed = {"a": source("a", num_ranks=3, rank=2), "b": source("b", num_ranks=3, rank=1)}
    with pytest.raises(ConfigError, match="'a' is rank 2 of 3; 'b' is rank 1 of 3"):
        MixedDataset(mixed, {"a": 1, "b": 1})
    named = MixedDataset(mixed, {"a": 1, "b": 1}, num_ranks=1)
    assert named.job.topology.num_ranks == 1


@pytest.mark.parametrize("block", [0, 64])
def test_each_epoch_takes_its_sources_in_another_order(tables: Tables, block: int) -> None:
    loader, _ = make(tables, block=block)
    orders = []
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        orders.append([source for batch in batches(loader) for source, _ in batch][:100])
    assert {*orders[0]} == {*orders[1]} == {"a", "b", "c"}
    assert orders[0] != orders[1]
