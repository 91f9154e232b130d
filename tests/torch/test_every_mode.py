"""What holds in every mode: one order whoever makes the batches, exact state, exclusion, form, and what is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.laws.effort import examples
from tests.torch.forms import FORMS, plain, rows_of_many_kinds
from tests.torch.jobs import State, check_that_fresh_loaders_go_on
from tests.torch.modes import LAKE, MIXTURE, MODES, ROW_MODES, ROWS, SOME, SPLITS, Mode, RowMode, write_rows
from torch_table_loader import ConfigError, ResumeError, TableLoader
from torch_table_loader.engine import sizes

in_row_modes = pytest.mark.parametrize("mode", ROW_MODES, ids=str, scope="session")


@pytest.fixture(autouse=True)
def _small_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small tables would come with one gather."""
    monkeypatch.setattr(sizes, "_GATHER_ROWS", 12)


# ---- the order -------------------------------------------------------------------------------------------

PROCESSES: dict[str, Any] = {"worker_type": "process", "num_workers": 2}
STORES: dict[str, Any] = {"row_store": "STORES"}
BUFFERED: dict[str, dict[str, Any]] = {"splits": {"shuffle_buffer_size": 5}}
SAME: list[tuple[list[Any], dict[str, Any]]] = [
    (MODES, PROCESSES),
    ([SPLITS, ROWS, MIXTURE], PROCESSES | {"collate_fn": dict}),
    (MODES, {"prefetch_batches": 5}),
    (MODES, {"columns": ["s", "x"]}),
    (ROW_MODES, {"num_workers": 0}),
    (ROW_MODES, {"num_workers": 7}),
    (ROW_MODES, {"num_workers": 3, "prefetch_batches": 2}),
    (ROW_MODES, {"global_batch_size": 5}),
    (ROW_MODES, STORES),
    ([LAKE], STORES | PROCESSES),
    ([LAKE], {"split_deletes": True}),
    ([ROWS], PROCESSES | {"row_store_memory": 1, "multiprocessing_context": "forkserver"}),
    ([MIXTURE], PROCESSES | STORES | {"multiprocessing_context": "forkserver"}),
]


@pytest.mark.parametrize(("mode", "options"), [(mode, options) for modes, options in SAME for mode in modes], ids=str)
def test_batches_are_the_same_whoever_makes_them(
    mode: Mode, tables: Path, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = mode.make(tables)
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path))
    options = {name: str(tmp_path) if value == "STORES" else value for name, value in options.items()}
    found = mode.make(tables, **options)
    for epoch in (0, 3):
        wanted.set_epoch(epoch)
        found.set_epoch(epoch)
        order = mode.read(wanted)
        assert mode.read(found) == order
        assert sum(order, []) != sorted(sum(order, []))
        mode.check_whole(sum(order, []), mode.live(tables))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_divide_an_epoch(mode: Mode, tables: Path, num_ranks: int) -> None:
    """Those that read single rows stride the order of one rank."""
    ranks = [mode.read(mode.make(tables, num_ranks=num_ranks, rank=rank, batch_size=4)) for rank in range(num_ranks)]
    mode.check_whole([row for batches in ranks for batch in batches for row in batch], mode.live(tables))
    if isinstance(mode, RowMode):
        whole = sum(mode.read(mode.make(tables)), [])
        size = 4 * num_ranks
        for rank, batches in enumerate(ranks):
            steps = [whole[start : start + size][rank::num_ranks] for start in range(0, len(whole), size)]
            assert batches == [step for step in steps if step]


def test_a_callers_own_dataloader_gets_the_same_steps(mode: Mode, tables: Path, tmp_path: Path) -> None:
    """Its workers are the lanes; where a loader of ours serves the dataset, a DataLoader without workers reads that."""
    stores = {"row_store": str(tmp_path)} if isinstance(mode, RowMode) else {}
    orders = []
    for workers in (0, 2):
        wanted = mode.read(mode.make(tables, num_workers=workers, **stores))
        dataset = mode.open(tables, **stores)
        assert mode.read(DataLoader(dataset, batch_size=None, num_workers=workers)) == wanted
        orders.append(wanted)
    assert (orders[0] == orders[1]) == (mode is not SPLITS)
    served: Any = mode.make(tables, **stores).dataset
    assert mode.read(DataLoader(served, batch_size=None)) == orders[1]


def test_epochs_and_seeds_differ_and_rows_of_tells_them(mode: Mode, tables: Path) -> None:
    """A filter of a stream makes spans of live rows, of which test_rows_of.py speaks."""
    filters = None if mode is SPLITS else SOME
    loader = mode.make(tables, filters=filters)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        told = [mode.rows_of(tables, loader, step) for step in range(len(loader))]
        found = mode.read(loader)
        assert told == found
        mode.check_whole(sum(found, []), mode.live(tables, filtered=filters is not None))
        orders.append(found)
    seeded = mode.make(tables, filters=filters, shuffle_seed=43)
    orders.append(mode.read(seeded))
    assert len({json.dumps(order) for order in orders}) == 4
    with pytest.raises(ConfigError, match=rf"step must be in \[0, {len(seeded)}\), got {len(seeded)}"):
        seeded.rows_of(len(seeded))
    seeded.set_epoch(1)
    assert mode.read(seeded) not in orders, "a seed at one epoch is not its neighbour at the next"


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
        "from tests.torch.modes import MODES\n"
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
    assert json.loads(done.stdout) == wanted


@pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE], ids=str, scope="session")
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


# ---- the state -------------------------------------------------------------------------------------------

GOES_ON: list[tuple[list[Any], dict[str, Any]]] = [
    (MODES, {}),
    (MODES, {"drop_last": True}),
    (MODES, {"filters": SOME}),
    (MODES, {"num_ranks": 2, "rank": 1, "even_ranks": "pad", "batch_size": 3}),
    (MODES, {"num_workers": 0}),
    ([SPLITS, MIXTURE], PROCESSES),
    ([SPLITS], {"num_workers": 3, "shuffle_buffer_size": 9}),
    ([SPLITS], {"shuffle_buffer_size": 9, "worker_type": "process", "prefetch_batches": 5}),
    ([SPLITS], {"prefetch_batches": 1}),
    ([SPLITS], {"num_ranks": 2, "rank": 1, "even_ranks": "balance", "batch_size": 3}),
    ([SPLITS], {"num_ranks": 2, "rank": 0, "even_ranks": "pad", "shuffle_buffer_size": 4, "batch_size": 3}),
    ([SPLITS], {"shuffle": False}),
    ([SPLITS], {"filters": SOME, "count_filtered": False}),
    ([MIXTURE], {"stop": "first_exhausted"}),
]


@pytest.mark.parametrize(
    ("mode", "options"), [(mode, options) for modes, options in GOES_ON for mode in modes], ids=str
)
def test_a_fresh_loader_goes_on_with_the_batches_that_would_have_come(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    counted = options.get("count_filtered", True)
    check_that_fresh_loaders_go_on(lambda: mode.make(tables, **options), mode.read, counted=counted)


@pytest.mark.parametrize("mode", [ROWS, LAKE], ids=str, scope="session")
@pytest.mark.parametrize("options", [{}, {"filters": SOME}, {"num_ranks": 2, "rank": 1}], ids=str)
def test_every_epoch_has_as_many_steps(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    length = len(loader)
    for epoch in (1, 8):
        loader.set_epoch(epoch)
        assert len(loader) == length == len(mode.read(loader))


def is_plain(value: object) -> bool:
    """Whether it is ints, strings, bools and None, in lists and dicts, and nothing that only looks like them."""
    if type(value) is dict:
        return all(type(name) is str and is_plain(entry) for name, entry in value.items())
    return all(map(is_plain, value)) if type(value) is list else type(value) in (int, str, bool, type(None))


@pytest.mark.parametrize("options", [{}, {"filters": SOME, "num_ranks": 2, "rank": 1, "even_ranks": "pad"}], ids=str)
def test_a_state_is_small_and_plain_and_has_the_same_keys_at_any_moment(
    mode: Mode, tables: Path, options: dict[str, Any]
) -> None:
    loader = mode.make(tables, **options)
    states = [loader.state_dict()]
    list(islice(loader, 2))
    states.append(loader.state_dict())
    if isinstance(mode, RowMode):
        mode.change(loader.dataset, "exclude", range(20))
        states.append(loader.state_dict())
    loader.set_epoch(1)
    list(loader)
    states.append(loader.state_dict())
    for state in states:
        assert len(json.dumps(state)) < 1024 * len(mode.tables)
        assert is_plain(state)
        stored = io.BytesIO()
        torch.save(state, stored)
        stored.seek(0)
        assert torch.load(stored, weights_only=True) == state == json.loads(json.dumps(state))
        assert state.keys() == states[0].keys() == mode.make(tables).state_dict().keys()


def test_a_state_put_together_key_by_key_is_whole(mode: Mode, tables: Path) -> None:
    """As torch.distributed.checkpoint loads it: only keys that the fresh loader's own state has."""
    loader, gone = mode.make(tables), set[int]()
    if isinstance(mode, RowMode):
        gone = {6, 7, 8}
        mode.change(loader.dataset, "exclude", gone)
    loader.set_epoch(1)
    batches = iter(loader)
    taken = mode.read(islice(batches, 3))
    saved = loader.state_dict()
    fresh = mode.make(tables)
    fresh.load_state_dict({key: saved[key] for key in fresh.state_dict()})
    mode.check_whole(sum(taken + mode.read(fresh), []), mode.live(tables) - gone)


chains = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 9), st.integers(1, 6), st.booleans()), max_size=6
)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains, data=st.data())
def test_states_chained_through_topologies_with_exclusions(
    mode: Mode, tables: Path, chain: list[tuple[int, int, int, int, bool]], data: st.DataObject
) -> None:
    """An epoch delivers what was left when it began, whatever was excluded or resumed meanwhile."""
    live, gone, seen = mode.live(tables), set[int](), list[int]()
    state: State | None = None
    for ranks, lanes, batch_size, steps, pad in [*chain, (1, 0, 100, 10**6, False)]:
        asked = data.draw(st.sets(st.sampled_from(sorted(live)), max_size=5))
        what = data.draw(st.sampled_from(["exclude", "include"]))
        states = []
        for rank in range(ranks):
            options = {"num_workers": lanes, "batch_size": batch_size, "even_ranks": "pad" if pad else None}
            loader = mode.make(tables, num_ranks=ranks, rank=rank, **options)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = iter(loader)
            seen += sum(mode.read(islice(batches, 1)), [])
            if isinstance(mode, RowMode):
                mode.change(loader.dataset, what, asked)
            seen += sum(mode.read(islice(batches, steps - 1)), [])
            states.append(loader.state_dict())
        if isinstance(mode, RowMode):
            gone = gone | asked if what == "exclude" else gone - asked
        running = [each for each in states if not mode.is_ended(each)]
        assert all(each == running[0] for each in running)
        assert len(json.dumps(states)) < 4096 * ranks
        state = running[0] if running else max(states, key=lambda each: mode.steps(each, batch_size))
    mode.check_whole(seen, live)
    loader = mode.make(tables)
    loader.load_state_dict(state or {})
    assert mode.read(loader) == []
    loader.set_epoch(1)
    mode.check_whole(sum(mode.read(loader), []), live - gone)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"shuffle_seed": 1}, "saved under other options: shuffle_seed was 42 and is 1"),
    ({"columns": ["x"]}, "saved under other options: columns was"),
    ({"filters": SOME}, "saved under other options: filters was None"),
]


@pytest.mark.parametrize(("options", "message"), OTHERS, ids=str)
def test_a_state_under_other_options_is_refused_by_name(
    mode: Mode, tables: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ResumeError, match=message):
        mode.make(tables, **options).load_state_dict(mode.make(tables).state_dict())


@pytest.mark.parametrize(
    ("saved", "loads", "message"),
    [
        (ROWS, SPLITS, "shuffle was 'rows' and is True"),
        (SPLITS, ROWS, "shuffle was True and is 'rows'"),
        (ROWS, LAKE, "another table"),
        (LAKE, ROWS, "another table"),
        (ROWS, MIXTURE, "speaks of one table"),
        (SPLITS, MIXTURE, "speaks of one table"),
        (MIXTURE, ROWS, "speaks of a mixture"),
        (MIXTURE, SPLITS, "speaks of a mixture"),
    ],
    ids=str,
)
def test_a_state_of_another_mode_is_refused_by_name(saved: Mode, loads: Mode, tables: Path, message: str) -> None:
    loader = loads.make(tables)
    before = loader.state_dict()
    with pytest.raises(ResumeError, match=message):
        loader.load_state_dict(saved.make(tables).state_dict())
    assert loader.state_dict() == before


@pytest.mark.parametrize("mode", [SPLITS, ROWS, MIXTURE], ids=str, scope="session")
def test_a_state_of_another_table_is_refused(mode: Mode, tables: Path, tmp_path: Path) -> None:
    for name in mode.tables:
        write_rows(tmp_path / name, [[50]])
    with pytest.raises(ResumeError, match=r"speaks of another table \(files: \d then, 1 now; rows: \d+ then, 50 now"):
        mode.make(tmp_path).load_state_dict(mode.make(tables).state_dict())


def test_what_is_no_state_is_refused(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables)
    state = loader.state_dict()
    others: list[Any] = [None, {}, [], "a state"]
    for other in others:
        with pytest.raises(ResumeError, match=r"expected what state_dict.*without a version"):
            loader.load_state_dict(other)
    for version in (0, 2, 99, "1", None):
        with pytest.raises(ResumeError, match=f"expected a state of version 1, got version {version!r}"):
            loader.load_state_dict(state | {"version": version})
    for missing in state.keys() - ({"exclusions"} if mode in (ROWS, LAKE) else set()):
        with pytest.raises(ResumeError):
            loader.load_state_dict({name: value for name, value in state.items() if name != missing})
    for epoch in (-1, None, "0", True):
        with pytest.raises(ResumeError):
            loader.load_state_dict(state | {"epoch": epoch})
    assert loader.state_dict() == state


UNEVEN: dict[str, dict[str, Any]] = {
    "splits": {"split_rows": 10**9, "num_workers": 1},
    "mixture": {"weights": {"a": 1, "b": 0}},
}
"""With these a job of two ranks takes two steps on the first and one on the second."""


def make_uneven(mode: Mode, tables: Path, rank: int) -> TableLoader:
    return mode.make(tables, num_ranks=2, rank=rank, batch_size=36, **UNEVEN.get(mode.name, {}))


def test_the_state_of_a_rank_that_ended_is_refused_while_others_go_on(mode: Mode, tables: Path) -> None:
    long, short = (make_uneven(mode, tables, rank) for rank in (0, 1))
    assert (len(long), len(short)) == (2, 1)
    whole = mode.read(long)
    long.set_epoch(0)
    batches = iter(long)
    next(batches)
    mode.read(short)
    assert mode.is_ended(short.state_dict())
    running = long.state_dict()
    assert not mode.is_ended(running)
    for rank in (0, 1):
        fresh = make_uneven(mode, tables, rank)
        with pytest.raises(ResumeError, match=r"had ended after .* while others take (up to 2|1 more)"):
            fresh.load_state_dict(short.state_dict())
        fresh.load_state_dict(running)
        assert mode.read(fresh) == (whole[1:] if rank == 0 else [])
    assert not mode.is_ended(state_at_the_end(long, batches))


def state_at_the_end(loader: TableLoader, batches: Any) -> State:
    list(batches)
    return loader.state_dict()


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


# ---- the form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [ROWS, MIXTURE], ids=str, scope="session")
@pytest.mark.parametrize("options", FORMS, ids=str)
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
    loader = mode.make(tables, **({"row_store": "memory"} if isinstance(mode, RowMode) else {}))
    first = mode.read(loader)
    loader.set_epoch(0)
    for taken, batch in enumerate(loader):
        assert mode.rows(batch) == first[taken]
        for values in batch.values():
            values.clear() if isinstance(values, list) else values.zero_()
    loader.set_epoch(0)
    assert mode.read(loader) == first


@pytest.mark.parametrize("options", [{}, {"even_ranks": "pad"}, {"row_id": False, "columns": ["s", "x"]}], ids=str)
def test_the_schema_says_what_comes(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    dataset: Any = loader.dataset
    own = options.get("columns", ["x", "k", "f", "s", "row_id"])
    added = (["source"] if mode is MIXTURE else []) + (["padding"] if "even_ranks" in options else [])
    assert list(next(iter(loader))) == dataset.schema.names
    assert sorted(dataset.schema.names) == sorted(own + added)
    assert dataset.schema.names[len(own) :] == added
    assert [name for name, _ in dataset.explain().schema] == dataset.schema.names


# ---- options, and what is said of them -------------------------------------------------------------------

NO_MEANING = [ROWS, LAKE]
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    (MODES, {"batch_size": 0}, "batch_size must be at least 1"),
    (MODES, {"num_ranks": 2}, "wants rank="),
    (ROW_MODES, {"even_ranks": "balance"}, "even_ranks='balance' is for splits"),
    (ROW_MODES, {"global_batch_size": 101, "num_ranks": 2, "rank": 0}, "the nearest is 100"),
    (ROW_MODES, {"global_batch_size": 0}, "global_batch_size must be at least 1"),
    (
        ROW_MODES,
        {"global_batch_size": 64, "batch_size": 64, "num_ranks": 4, "rank": 1},
        "global_batch_size=64 over 4 ranks is 16 rows a rank, got batch_size=64 beside it; leave",
    ),
    ([SPLITS], {"global_batch_size": 8}, "global_batch_size=8 has no meaning with shuffle=True"),
    ([SPLITS], {"row_store": "memory"}, "row_store='memory' has no meaning with shuffle=True"),
    (NO_MEANING, {"split_rows": 5}, "split_rows=5 has no meaning with shuffle='rows'"),
    (NO_MEANING, {"shuffle_buffer_size": 5}, "shuffle_buffer_size=5 has no meaning"),
    (NO_MEANING, {"split_strategy": "row_balanced"}, "split_strategy='row_balanced' has no meaning"),
    (NO_MEANING, {"filters": pc.field("x") > 3, "count_filtered": False}, "count_filtered=False has no meaning"),
    (ROW_MODES, {"row_store": ""}, 'row_store must be "memory", a directory, or a URL'),
    (ROW_MODES, {"row_store_memory": "much"}, "row_store_memory must read like"),
    (
        [ROWS, LAKE],
        {"row_store": "memory", "worker_type": "process", "multiprocessing_context": "spawn"},
        "not forked; pass row_store=",
    ),
    (
        [MIXTURE],
        {"worker_type": "process", "multiprocessing_context": "forkserver"},
        "source 'a' keeps its rows in memory.*pass row_store=",
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


def test_uneven_steps_are_said_once(mode: Mode, tables: Path) -> None:
    options = {"num_ranks": 2, "rank": 0, "batch_size": 36, "check_plan": False, **UNEVEN.get(mode.name, {})}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = mode.make_loudly(tables, **options)
        assert len(list(loader)) == len(loader) == 2
    assert ["ranks take unequally many steps: 2, 1" in str(entry.message) for entry in said] == [True]


SAID = {
    "splits": ["splits     8 by TargetSizeStrategy"],
    "rows": ["from a row store of about", "in the memory of this rank", "73 of 73 live rows are in the epoch"],
    "iceberg": ["from a row store of about", "in the memory of this rank", "73 of 73 live rows are in the epoch"],
    "mixture": ["source 1 is 'b': 41 rows, a share of 0.3333", "times all of them"],
}


@pytest.mark.parametrize("options", [{}, {"num_ranks": 2, "rank": 1, "even_ranks": "pad"}], ids=str)
def test_explain_tells_what_comes(mode: Mode, tables: Path, options: dict[str, Any]) -> None:
    loader = mode.make(tables, **options)
    dataset: Any = loader.dataset
    told, found = dataset.explain(), list(loader)
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
