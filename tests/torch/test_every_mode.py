"""What holds in every mode: one order whoever makes the batches, exact state, exclusion, form, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.states import State, without_column
from tests.text.packed_modes import FLAT_MODES, PACKED_MODES, PACKED_ROWS, PACKED_SPLITS
from tests.torch.all_modes import MODES
from tests.torch.forms import FORMS, plain, rows_of_many_kinds
from tests.torch.modes import (
    LAKE,
    MIXED,
    MIXTURE,
    PROCESSES,
    ROW_MODES,
    ROWS,
    SOME,
    SPLITS,
    STREAMS,
    TABLE_MODES,
    UNEVEN,
    Mode,
    RowMode,
    TwoTables,
)
from torch_table_loader import ConfigError, RowStore

pytestmark = pytest.mark.usefixtures("small_gathers")
STREAMED = [SPLITS, MIXED, STREAMS, *(mode for mode in PACKED_MODES if mode.streamed)]
STORED = [mode for mode in MODES if mode not in STREAMED]

in_row_modes = pytest.mark.parametrize("mode", ROW_MODES, ids=str, scope="session")
in_table_modes = pytest.mark.parametrize("mode", TABLE_MODES, ids=str, scope="session")


# ---- the order -------------------------------------------------------------------------------------------

STORES: dict[str, Any] = {"row_store": "STORES"}
BUFFERED: dict[str, dict[str, Any]] = {"splits": {"shuffle_buffer_size": 5}}
SAME: list[tuple[list[Any], dict[str, Any]]] = [
    (MODES, PROCESSES),
    ([SPLITS, ROWS, MIXTURE, STREAMS], PROCESSES | {"collate_fn": dict}),
    (MODES, {"prefetch_batches": 5}),
    (TABLE_MODES, {"columns": ["s", "x"]}),
    (PACKED_MODES, {"columns": ["title"]}),
    (FLAT_MODES, PROCESSES),
    ([MIXED, *STORED], {"num_workers": 0}),
    ([MIXED, *ROW_MODES], {"num_workers": 7}),
    (STORED, {"num_workers": 3, "prefetch_batches": 2}),
    (ROW_MODES, {"global_batch_size": 5}),
    (STORED, STORES),
    ([LAKE], STORES | PROCESSES),
    ([LAKE], {"split_deletes": True}),
    ([ROWS], PROCESSES | {"row_store": RowStore(memory=1), "worker_type": "forkserver"}),
    ([MIXTURE], PROCESSES | STORES | {"worker_type": "forkserver"}),
]


@pytest.mark.parametrize(("mode", "options"), [(mode, options) for modes, options in SAME for mode in modes], ids=str)
@daily(5)
def test_batches_are_the_same_whoever_makes_them(
    mode: Mode, tables: Path, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = mode.make(tables)
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path))
    options = {name: str(tmp_path) if value == "STORES" else value for name, value in options.items()}
    found = mode.make(tables, **options)
    for epoch in (3,) if options.get("worker_type") == "forkserver" else (0, 3):
        wanted.set_epoch(epoch)
        found.set_epoch(epoch)
        order = mode.read(wanted)
        assert mode.read(found) == order
        assert sum(order, []) != sorted(sum(order, []))
        mode.check_whole(sum(order, []), mode.live(tables))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_divide_an_epoch(mode: Mode, tables: Path, num_ranks: int) -> None:
    """Those that gather single rows, or sequences, stride the order of one rank."""
    ranks = [
        mode.read(mode.make(tables, num_ranks=num_ranks, rank=rank, batch_size=4, even_ranks=False))
        for rank in range(num_ranks)
    ]
    mode.check_whole([row for batches in ranks for batch in batches for row in batch], mode.live(tables))
    if mode in STORED:
        whole = sum(mode.read(mode.make(tables)), [])
        size = 4 * num_ranks
        for rank, batches in enumerate(ranks):
            steps = [whole[start : start + size][rank::num_ranks] for start in range(0, len(whole), size)]
            assert batches == [step for step in steps if step]


def test_a_callers_own_dataloader_gets_the_same_steps(mode: Mode, tables: Path, tmp_path: Path) -> None:
    """Its workers are the lanes; where a loader of ours serves the dataset, a DataLoader without workers reads that.

    Our loader takes longer lanes more often, which torch's cannot: it gives the same steps in another order then.
    Where it mixes splits, it has one lane.
    """
    order: Any = sorted if mode is PACKED_SPLITS else list
    stores = {"row_store": str(tmp_path)} if mode in STORED else {}
    orders = []
    for workers in (0, 2):
        wanted = mode.read(mode.make(tables, num_workers=workers, **stores))
        dataset = mode.open(tables, **stores)
        found = mode.read(DataLoader(dataset, batch_size=None, num_workers=workers))
        if mode is MIXED and workers:
            order = lambda batches: sorted(row for batch in batches for row in batch)  # noqa: E731
        assert order(found) == order(wanted)
        orders.append(wanted)
    assert (orders[0] == orders[1]) == (mode is MIXED or mode not in STREAMED)
    served: Any = mode.make(tables, **stores).dataset
    assert mode.read(DataLoader(served, batch_size=None)) == orders[1]


def test_epochs_and_seeds_differ_and_rows_of_tells_them(mode: Mode, tables: Path) -> None:
    """A filter of a stream makes spans of live rows, of which test_rows_of.py speaks."""
    filters = None if mode in (SPLITS, MIXED, STREAMS) else SOME
    loader = mode.make(tables, filters=filters)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        told = [mode.rows_of(tables, loader, step) for step in range(len(loader))]
        batches = list(loader)
        assert told == [mode.sources(batch) for batch in batches]
        found = mode.read(batches)
        mode.check_whole(sum(found, []), mode.live(tables, filtered=filters is not None))
        orders.append(found)
    seeded = mode.make(tables, filters=filters, shuffle_seed=43)
    orders.append(mode.read(seeded))
    assert len({json.dumps(order) for order in orders}) == 4
    with pytest.raises(ConfigError, match=rf"step must be in \[0, {len(seeded)}\), got {len(seeded)}"):
        seeded.rows_of(len(seeded))
    seeded.set_epoch(1)
    assert mode.read(seeded) not in orders, "a seed at one epoch is not its neighbour at the next"


@pytest.mark.slow
def test_another_process_with_other_hashes_gives_the_same_order_and_goes_on(tables: Path, tmp_path: Path) -> None:
    wanted = {}
    for mode in MODES:
        loader = mode.make(tables, **BUFFERED.get(mode.name, {}))
        loader.set_epoch(2)
        whole = mode.read(loader)
        loader.set_epoch(2)
        list(islice(loader, 3))
        torch.save(loader.state_dict(), tmp_path / mode.name)
        wanted[mode.name] = [whole, whole[3:]]
    script = (
        "import json, sys, torch\n"
        "from pathlib import Path\n"
        "from tests.torch.all_modes import MODES\n"
        "from tests.torch.test_every_mode import BUFFERED\n"
        "found = {}\n"
        "for mode in MODES:\n"
        "    loader = mode.make(Path(sys.argv[1]), **BUFFERED.get(mode.name, {}))\n"
        "    loader.set_epoch(2)\n"
        "    found[mode.name] = [mode.read(loader)]\n"
        "    loader.load_state_dict(torch.load(Path(sys.argv[2]) / mode.name, weights_only=True))\n"
        "    found[mode.name].append(mode.read(loader))\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tables), str(tmp_path)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(json.dumps(wanted))


@pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE, PACKED_SPLITS, PACKED_ROWS], ids=str, scope="session")
@daily(2)
def test_a_table_that_was_moved_keeps_its_order_and_its_states(mode: Mode, tables: Path, tmp_path: Path) -> None:
    """Not an Iceberg table, whose metadata names its place."""
    loader = mode.make(tables)
    wanted = mode.read(loader)
    loader.set_epoch(0)
    list(islice(loader, 6))
    for name in mode.tables:
        shutil.copytree(tables / name, tmp_path / "elsewhere" / name)
    moved = mode.make(tmp_path / "elsewhere")
    assert mode.read(moved) == wanted
    moved.load_state_dict(loader.state_dict())
    assert mode.read(moved) == wanted[6:]


# ---- exclusion -------------------------------------------------------------------------------------------


@in_row_modes
@pytest.mark.parametrize("filters", [None, SOME], ids=["whole", "filtered"])
def test_excluded_rows_leave_at_the_next_epoch(mode: RowMode, tables: Path, filters: Any) -> None:
    live = mode.live(tables, filtered=filters is not None)
    loader = mode.make(tables, filters=filters)
    first = mode.read(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    head = mode.rows(next(batches))
    mode.change(loader.dataset, "exclude", head)
    mode.change(loader.dataset, "exclude", range(30))
    assert mode.excluded(loader.dataset) == sorted({*head, *range(30)})
    assert [head, *mode.read(batches)] == first, "the epoch that runs keeps its order"
    state = loader.state_dict()
    loader.set_epoch(0)
    assert mode.read(loader) == first
    loader.set_epoch(1)
    gone = {*head, *range(30)}
    order = mode.read(loader)
    mode.check_whole(sum(order, []), live - gone)
    assert len(loader) == len(order)
    fresh = mode.make(tables, filters=filters)
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    assert mode.excluded(fresh.dataset) == sorted(gone)
    assert mode.read(fresh) == order
    mode.change(fresh.dataset, "include", range(30))
    fresh.set_epoch(1)
    assert mode.read(fresh) == order
    fresh.set_epoch(2)
    mode.check_whole(sum(mode.read(fresh), []), live - (gone - set(range(30))))


@in_row_modes
def test_rows_that_no_table_has_cannot_be_excluded(mode: RowMode, tables: Path) -> None:
    dataset = mode.make(tables).dataset
    for what in ("exclude", "include"):
        with pytest.raises(ConfigError, match="row ids must be in"):
            mode.change(dataset, what, [90])


@in_row_modes
def test_a_mask_says_the_same_as_ids(mode: RowMode, tables: Path) -> None:
    loaders = [mode.make(tables, filters=SOME) for _ in range(3)]
    datasets: list[Any] = [loader.dataset for loader in loaders]
    by_ids, by_tensor, by_array = datasets
    rows = [3, 8, 40]
    mode.change(by_ids, "exclude", rows)
    mask: Any = mode.mask(by_tensor, rows)
    by_tensor.exclude(mask)
    arrays = {name: own.numpy() for name, own in mask.items()} if isinstance(mask, dict) else mask.numpy()
    by_array.exclude(arrays)
    assert mode.excluded(by_ids) == mode.excluded(by_tensor) == mode.excluded(by_array) == rows
    order, *others = [mode.read(loader) for loader in loaders]
    assert others == [order, order]
    assert loaders[0].state_dict() == loaders[1].state_dict()
    short = {name: own[1:] for name, own in arrays.items()} if isinstance(arrays, dict) else arrays[1:]
    for change in (by_array.exclude, by_array.include):
        with pytest.raises(ConfigError, match="a mask of rows must have the shape"):
            change(short)
    assert mode.excluded(by_array) == rows


@in_row_modes
def test_what_is_excluded_is_a_copy(mode: RowMode, tables: Path) -> None:
    dataset: Any = mode.make(tables).dataset
    mode.change(dataset, "exclude", [3, 5])
    found = dataset.excluded
    for ids in found.values() if isinstance(found, dict) else [found]:
        ids.fill(0)
    assert mode.excluded(dataset) == [3, 5]


@in_row_modes
def test_ranks_without_a_group_cannot_gather_and_one_rank_need_not(mode: RowMode, tables: Path) -> None:
    alone: Any = mode.make(tables).dataset
    alone.exclude(mode.mask(alone, [3, 5]), gather=True)
    alone.include(mode.mask(alone, [5]), gather=True)
    assert mode.excluded(alone) == [3]
    of_two: Any = mode.make(tables, num_ranks=2, rank=0).dataset
    with pytest.raises(ConfigError, match=r"gather=True joins the rows of 2 ranks, but no process group has that many"):
        of_two.exclude(mode.mask(of_two, [3]), gather=True)
    assert mode.excluded(of_two) == []


# ---- the form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [ROWS, MIXTURE], ids=str, scope="session")
@pytest.mark.parametrize("options", FORMS, ids=str)
@daily(4)
def test_every_form_holds_the_values_that_splits_mode_gives(
    mode: Mode, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A batch of one row has to be read as such; a lane gathers many of them at a time, of a mixture from both."""
    wanted: dict[int, Any] = {}
    for name, ids in (("a", range(100)), ("b", range(100, 160))):
        table = rows_of_many_kinds(ids)
        order = table.column_names if name == "a" else ["id", *reversed(table.column_names[1:])]
        if name not in mode.tables:
            continue
        (tmp_path / "alone" / name / "a").mkdir(parents=True)
        (tmp_path / name).mkdir()
        for path in (tmp_path / name, tmp_path / "alone" / name / "a"):
            pq.write_table(table.select(order), path / "0.parquet", row_group_size=70)
        plainly = options | {"worker_type": "thread", "shuffle": False, "batch_size": 1}
        wanted |= {row["id"]: row for row in map(plain, SPLITS.make(tmp_path / "alone" / name, **plainly))}
    found = [plain(batch) for batch in mode.make(tmp_path, batch_size=1, **options)]
    assert {row["id"] for row in found} == wanted.keys()
    for row in found:
        assert row.pop("source", "[0]") == repr([int(row["id"] >= 100)])
        assert row == wanted[row["id"]]
    assert isinstance(mode, RowMode)
    assert set(Counter(row["id"] for row in found).values()) <= {1, 2}


def test_a_batch_may_be_written_in_place(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables, **({"row_store": "memory"} if mode in STORED else {}))
    first = mode.read(loader)
    loader.set_epoch(0)
    for taken, batch in enumerate(loader):
        assert mode.rows(batch) == first[taken]
        for values in [*batch.values(), *batch.get("documents", {}).values()]:
            if isinstance(values, torch.Tensor):
                values.zero_()
            elif isinstance(values, list):
                values.clear()
    loader.set_epoch(0)
    assert mode.read(loader) == first


@in_table_modes
@pytest.mark.parametrize("options", [{}, {"even_ranks": "pad"}, {"row_id": False, "columns": ["s", "x"]}], ids=str)
@daily(6)
def test_the_schema_says_what_comes(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    dataset: Any = loader.dataset
    own = options.get("columns", ["x", "k", "f", "s", "row_id"])
    added = (["source"] if isinstance(mode, TwoTables) else []) + (["padding"] if "even_ranks" in options else [])
    assert list(next(iter(loader))) == dataset.schema.names
    assert sorted(dataset.schema.names) == sorted(own + added)
    assert dataset.schema.names[len(own) :] == added
    assert [name for name, _ in dataset.explain().schema] == dataset.schema.names


# ---- options, and what is said of them -------------------------------------------------------------------

NO_MEANING = [ROWS, LAKE]
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    (MODES, {"batch_size": 0}, "batch_size must be at least 1"),
    (MODES, {"num_ranks": 2}, "needs rank="),
    (ROW_MODES, {"even_ranks": "drop"}, "even_ranks='drop' is for splits"),
    (ROW_MODES, {"global_batch_size": 101, "num_ranks": 2, "rank": 0}, "the nearest is 100"),
    (ROW_MODES, {"global_batch_size": 0}, "global_batch_size must be at least 1"),
    ([SPLITS], {"global_batch_size": 8, "batch_size": 4}, "a stream takes one batch of each rank"),
    (
        ROW_MODES,
        {"global_batch_size": 64, "batch_size": 3, "num_ranks": 4, "rank": 1},
        "must be a multiple of num_ranks=4 times batch_size=3, got 64; the nearest is 60",
    ),
    ([SPLITS], {"row_store": "memory"}, "row_store='memory' does not work with shuffle='splits'"),
    (NO_MEANING, {"split_size": 5}, "split_size=5 does not work with shuffle='rows'"),
    (NO_MEANING, {"shuffle_buffer_size": 5}, "shuffle_buffer_size=5 does not work"),
    (NO_MEANING, {"split_strategy": "row_balanced"}, "split_strategy='row_balanced' does not work"),
    (NO_MEANING, {"filters": pc.field("x") > 3, "count_filtered": False}, "count_filtered=False does not work"),
    (ROW_MODES, {"row_store": ""}, 'row_store must be "memory", a directory, or a URL'),
    (
        [ROWS, LAKE],
        {"row_store": "memory", "worker_type": "spawn"},
        "not forked; pass row_store=",
    ),
    (
        [MIXTURE],
        {"worker_type": "forkserver"},
        "source 'a' keeps its rows in memory.*as row_store=",
    ),
]


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [(mode, options, message) for modes, options, message in REFUSED for mode in modes],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(mode: Mode, tables: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mode.make(tables, **options)


@in_row_modes
@pytest.mark.parametrize("given", [{}, {"batch_size": 4}], ids=str)
def test_a_global_batch_is_divided_over_the_ranks(mode: RowMode, tables: Path, given: dict[str, Any]) -> None:
    loader = mode.make(tables, global_batch_size=16, num_ranks=4, rank=1, **given)
    dataset: Any = loader.dataset
    assert dataset.options.batch_size == 4
    assert len(mode.rows(next(iter(loader)))) == 4


def optimizer_steps(mode: RowMode, tables: Path, ranks: int, micro: int, state: Any = None, **options: Any) -> Any:
    """Give the rows of each step of an optimizer that accumulates over micro-batches, sorted, and a later state."""
    job: dict[str, Any] = {"global_batch_size": 12, "num_ranks": ranks, "batch_size": 12 // ranks // micro, **options}
    read = []
    for rank in range(ranks):
        loader = mode.make(tables, rank=rank, **job)
        if state is not None:
            loader.load_state_dict(state)
        told, batches = loader.remaining, iter(loader)
        own = mode.read(islice(batches, 2 * micro))
        between = loader.state_dict()
        read.append(own + mode.read(batches))
        assert len(read[-1]) == told
        assert {len(batch) for batch in read[-1][:-1]} == {12 // ranks // micro}
    taken = [sorted(sum(batches, [])) for batches in zip_longest(*read, fillvalue=[])]
    return [sorted(sum(taken[at : at + micro], [])) for at in range(0, len(taken), micro)], between


def without_steps(state: State) -> State:
    """Leave out the steps, which are shorter where ranks take micro-batches."""
    return without_column(state, "steps")


@in_row_modes
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"even_ranks": "pad"}], ids=str)
@daily(2)
def test_steps_of_the_optimizer_are_the_same_on_any_ranks_in_any_micro_batches(
    mode: RowMode, tables: Path, options: dict[str, Any]
) -> None:
    wanted, state = optimizer_steps(mode, tables, 1, 1, **options)
    assert all(len(rows) == 12 for rows in wanted[:-1])
    for ranks, micro in ((1, 3), (2, 1), (2, 3), (3, 4)):
        found, there = optimizer_steps(mode, tables, ranks, micro, **options)
        assert found == wanted
        assert without_steps(there) == without_steps(state)
    rest, _ = optimizer_steps(mode, tables, 2, 2, state, **options)
    assert rest == wanted[2:]


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, PROCESSES, {"batch_size": 11}], ids=str)
@daily(5)
def test_rows_that_fill_up_a_ranks_steps_are_marked_and_no_others(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    chosen = {"even_ranks": "pad", "num_ranks": 4} | ({"weights": "rows"} if isinstance(mode, TwoTables) else {})
    batches = [list(mode.make(tables, rank=rank, **chosen, **options)) for rank in range(4)]
    assert len({len(own) for own in batches}) == 1
    unmarked = [row for own in batches for row in sum(mode.read(own), [])]
    mode.check_once(unmarked, mode.live(tables))
    marks = [mark for own in batches for batch in own for mark in mode.pads(batch)]
    assert sum(marks) == len(marks) - len(unmarked) > 0


def test_uneven_steps_are_said_once(mode: Mode, tables: Path) -> None:
    options = {"num_ranks": 2, "rank": 0, "batch_size": 36, "check_plan": False, "row_id": True, "even_ranks": False}
    options |= UNEVEN.get(mode.name, {})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = mode.make_loudly(tables, **options)
        assert len(list(loader)) == len(loader) == 2
    of_packs = "each of 2 ranks counts its own rows, and steps may differ"
    wanted = of_packs if mode is PACKED_SPLITS else "ranks take different numbers of steps: 2, 1"
    assert [wanted in str(entry.message) for entry in said] == [True]


SAID = {
    "splits": ["reads it: 8 splits by TargetSizeStrategy"],
    "mixed": ["reads it: 8 splits by TargetSizeStrategy", "each batch draws on up to 16 splits", "windows of"],
    "rows": ["from a row store in the memory of this rank, of about", "73 of 73 live rows are in the epoch"],
    "iceberg": ["from a row store in the memory of this rank, of about", "73 of 73 live rows are in the epoch"],
    "mixture": ["source 1 is 'b': 41 rows, a share of 0.3333", "times the source"],
    "streams": ["by a mixture of streams", "source 1 is 'b': 41 rows, a share of 0.3333", "after every step each"],
}


@in_table_modes
@pytest.mark.parametrize("options", [{}, {"num_ranks": 2, "rank": 1, "even_ranks": "pad"}], ids=str)
@daily(4)
def test_explain_tells_what_comes(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    dataset: Any = loader.dataset
    told, found = dataset.explain(), list(loader)
    assert 0 < told.memory_expected <= told.memory_bound
    assert told.live_rows == len(mode.live(tables))
    assert told.steps == len(loader) == len(found) == told.steps_per_rank[told.rank]
    assert sum(worker.steps for worker in told.workers) == len(found)
    assert sum(worker.rows for worker in told.workers) in (
        sum(map(len, map(mode.ids, found))),
        told.rows_per_rank[told.rank],
    )
    assert (told.batch_size, told.num_ranks) == (5, options.get("num_ranks", 1))
    assert [text for text in SAID[mode.name] if text not in str(told)] == []
    assert dataset.state_dict() == loader.state_dict()
