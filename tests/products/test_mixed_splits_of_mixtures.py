"""A mixture of streams mixes the splits of each source, as a single stream does: how well, how exactly, how large."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.shapes import held_of
from tests.effort import daily, examples
from tests.mixtures.mixed_worlds import ranks_take, worlds
from tests.states import is_ended
from tests.tables.plain import meant_warnings
from torch_table_loader import MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.extend import SourceRow

FILES = {"a": 16, "b": 8}
ROWS = {"a": 3200, "b": 800}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Sorted by `id`, which is also the row id."""
    root = tmp_path_factory.mktemp("sorted")
    for name, files in FILES.items():
        (root / name).mkdir()
        for number, ids in enumerate(np.array_split(np.arange(ROWS[name]), files)):
            lists = pa.array([[row] * (1 + row % 5) for row in ids.tolist()], pa.list_(pa.int32()))
            columns = {"id": ids, "input_ids": lists}
            pq.write_table(pa.table(columns), root / name / f"{number:02}.parquet", row_group_size=50)
    return {name: str(root / name) for name in FILES}


def make(
    tables: Mapping[str, str], weights: Any = "rows", shuffle: Any = True, own: Any = None, **options: Any
) -> tuple[TableLoader, MixedDataset]:
    own = {"columns": ["id"], "row_id": True} if own is None else own
    sources = {name: partial(StructuredDataset, path, shuffle=shuffle, **own) for name, path in tables.items()}
    with meant_warnings():
        return MixedDataset.create_dataloader(sources, weights, **({"check_plan": False, "batch_size": 64} | options))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("weights", ["rows", {"a": 3, "b": 1}, {"a": 1, "b": 1}], ids=str)
@daily(2)
def test_batches_draw_on_all_parts_of_each_source(tables: dict[str, str], ranks: int, weights: Any) -> None:
    """A uniform order has 1 of both; consecutive rows have a spread of 0, and a drift of the root of the batch."""
    world = {"num_ranks": ranks, "batch_size": 64 // ranks, "num_workers": 0}
    loaders = [make(tables, weights, rank=rank, **world)[0] for rank in range(ranks)]
    steps = [(parts, list(parts[0])) for parts in zip(*loaders, strict=False)]
    batches = [{name: np.concatenate([part[name] for part in parts]) for name in names} for parts, names in steps]
    for number, name in enumerate(tables):
        found = [batch["id"][batch["source"] == number] for batch in batches[:-1]]
        uniform, size = np.sqrt(ROWS[name] ** 2 / 12), np.mean([len(rows) for rows in found])
        assert np.mean([rows.std() for rows in found]) / uniform > 0.97
        assert np.std([rows.mean() for rows in found]) * np.sqrt(size) / uniform < 1.5


def test_splits_is_what_it_was(tables: dict[str, str]) -> None:
    loader, dataset = make(tables, shuffle="splits")
    batch = next(iter(loader))
    assert (np.diff(batch["id"].numpy()[batch["source"].numpy() == 0]) == 1).all()
    assert not any("side by side" in note for note in dataset.explain().notes)


def test_threads_and_processes_give_the_same_in_any_number(tables: dict[str, str]) -> None:
    wanted = [batch["row_id"].tolist() for batch in make(tables, num_workers=0)[0]]
    for options in ({"num_workers": 3}, {"num_workers": 2, "worker_type": "process"}):
        assert [batch["row_id"].tolist() for batch in make(tables, **options)[0]] == wanted


def rows(batch: Any, names: tuple[str, ...]) -> list[tuple[str, int]]:
    pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["id"])
    found = zip(batch["source"].tolist(), batch["id"].tolist(), pads, strict=True)
    return [(names[source], row) for source, row, padding in found if not padding]


changes = st.sampled_from([None, {"a": 1, "b": 1}, {"a": 5, "b": 1}, {"a": 0, "b": 1}, "rows"])


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=st.lists(st.tuples(worlds(30), st.integers(0, 30), changes), max_size=3), last=worlds(30))
def test_every_row_comes_as_often_as_any_other_over_any_chain_of_worlds_and_weights(
    tables: dict[str, str], chain: Any, last: Any
) -> None:
    """Windows are open where jobs stop, and go on in their order on others."""
    small = {"a": tables["b"], "b": tables["b"]}
    state, found = None, Counter[tuple[str, int]]()
    for world, steps, weights in [*chain, (last, None, None)]:

        def change(dataset: MixedDataset, asked: Any = weights) -> None:
            if asked is not None:
                dataset.set_weights(asked)

        built = partial(make, small, {"a": 2, "b": 1}, stop="all_exhausted")
        taken, states = ranks_take(built, state, steps, change, rows=rows, **world)
        found.update(row for own in taken for step in own for row in step)
        state = next((each for each in states if not is_ended(each)), states[0])
    for name in small:
        times = [found[name, row] for row in range(ROWS["b"])]
        assert max(times) - min(times) <= 1


def test_a_state_in_mid_window_goes_on_with_the_same_rows(tables: dict[str, str]) -> None:
    whole = [batch["row_id"].tolist() for batch in make(tables, num_workers=0)[0]]
    for steps in (1, 7, 30):
        loader, _ = make(tables, num_workers=2)
        assert [batch["row_id"].tolist() for batch in islice(loader, steps)] == whole[:steps]
        state = json.loads(json.dumps(loader.state_dict()))
        assert '"windows"' in json.dumps(state["history"])
        again, _ = make(tables)
        again.load_state_dict(state)
        assert [batch["row_id"].tolist() for batch in again] == whole[steps:]


def test_rows_of_names_the_rows_of_windows(tables: dict[str, str]) -> None:
    loader, dataset = make(tables, num_workers=0)
    for step, batch in enumerate(islice(loader, 5)):
        names = [dataset.source_names[source] for source in batch["source"].tolist()]
        wanted = [SourceRow(name, row) for name, row in zip(names, batch["row_id"].tolist(), strict=True)]
        assert loader.rows_of(step) == wanted


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_documents_of_packs_are_mixed_and_named(tables: dict[str, str], strategy: Any) -> None:
    """Those of a sequence are far from each other in the table; all come, those that windows cut in parts."""
    own = {"pack": Pack(seq_len=12, strategy=strategy), "columns": ["id"]}
    loader, dataset = make(tables, own=own, batch_size=8, num_workers=0)
    seen, gaps = set(), []
    for step, batch in enumerate(loader):
        ids, sources = (np.asarray(batch["documents"][name]) for name in ("id", "source"))
        owners = [
            SourceRow(dataset.source_names[of], row) for of, row in zip(sources.tolist(), ids.tolist(), strict=True)
        ]
        if step % 97 == 0:
            assert loader.rows_of(step) == owners
        seen.update(owners)
        gaps += np.abs(np.diff(ids[sources == 0])).tolist()
    assert seen == {SourceRow(name, row) for name in tables for row in range(ROWS[name])}
    if strategy == "concat":  # sequences of best fit are packed of a block of a row group, and these are mixed
        assert np.mean(np.array(gaps) > 100) > 0.5


def test_explain_says_how_well_each_source_is_mixed(tables: dict[str, str]) -> None:
    notes = make(tables, {"a": 3, "b": 1})[1].explain().notes
    told = [note for note in notes if "side by side" in note]
    assert told[0].startswith("source 'a': each batch draws on up to 16 splits that are read side by side, in windows")
    assert told[1].startswith("source 'b': each batch draws on up to 16 splits")


_SHAPES: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "small row groups": (32, 4_000, 4_000, 10, {"num_workers": 2}),
    "large row groups": (6, 120_000, 120_000, 10, {"num_workers": 2}),
    "one thread": (8, 40_000, 20_000, 10, {"num_workers": 0}),
    "wide": (40, 8_000, 4_000, 40, {"num_workers": 2}),
}


@pytest.mark.parametrize(("files", "rows", "group", "width", "options"), _SHAPES.values(), ids=_SHAPES)
@daily(2)
def test_windows_of_all_sources_stay_within_the_bound(
    tmp_path: Path, files: int, rows: int, group: int, width: int, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        name = "ab"[number % 2]
        (tmp_path / name).mkdir(exist_ok=True)
        columns = {f"x{place}": rng.random(rows) for place in range(width)}
        pq.write_table(pa.table(columns), tmp_path / name / f"{number:03}.parquet", row_group_size=group)
    paths = {name: str(tmp_path / name) for name in "ab"}
    found = held_of(lambda: make(paths, {"a": 2, "b": 1}, own={}, batch_size=256, **options))
    assert found.holds, found
    assert not found.idle, found


_PACKED: dict[str, tuple[int, int, int, Pack, dict[str, Any]]] = {
    "cut anywhere": (16, 4_000, 2_000, Pack(seq_len=1024), {"num_workers": 2}),
    "best fit": (16, 4_000, 2_000, Pack(seq_len=1024, strategy="best_fit", block_docs=1_000), {"num_workers": 0}),
}


@pytest.mark.parametrize(("files", "rows", "group", "pack", "options"), _PACKED.values(), ids=_PACKED)
@daily(1)
def test_windows_of_documents_stay_within_the_bound(
    tmp_path: Path, files: int, rows: int, group: int, pack: Pack, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    for number in range(files):
        name = "ab"[number % 2]
        (tmp_path / name).mkdir(exist_ok=True)
        ends = np.concatenate(([0], np.cumsum(rng.integers(20, 500, rows)))).astype(np.int32)
        tokens = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 999, ends[-1]), pa.int32()))
        table = pa.table({"input_ids": tokens, "id": np.arange(rows)})
        pq.write_table(table, tmp_path / name / f"{number:03}.parquet", row_group_size=group)
    paths = {name: str(tmp_path / name) for name in "ab"}
    own = {"pack": pack, "columns": ["id"]}
    found = held_of(lambda: make(paths, {"a": 2, "b": 1}, own=own, batch_size=8, **options))
    assert found.holds, found
    assert not found.idle, found


def test_a_state_with_windows_of_another_source_is_refused(tables: dict[str, str]) -> None:
    loader, _ = make(tables)
    state = json.loads(json.dumps(loader.state_dict()).replace('"windows", [["a"', '"windows", [["A"'))
    with pytest.raises(ResumeError, match="with windows of A, b for the sources a, b"):
        make(tables)[0].load_state_dict(state)
