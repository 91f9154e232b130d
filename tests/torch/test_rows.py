"""Row mode through the real loader: every row once, one order whatever the job, exact state, exclusion."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
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
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from tests.torch.forms import FORMS, plain, rows_of_many_kinds
from tests.torch.jobs import check_that_fresh_loaders_go_on, spans_of
from tests.torch.tables import deliver_all, key, meant_warnings, write_table
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.dataset import TableDataset
from torch_table_loader.store.gather import StoredRows

ROWS = 2_903


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("table")
    start = 0
    for number, size in enumerate([700, 1, 0, 650, 652, 900]):
        ids = np.arange(start, start + size)
        columns = {"id": ids, "x": ids.astype("f4") / 3, "name": [f"row {i}" for i in ids]}
        pq.write_table(pa.table(columns), root / f"part-{number}.parquet", row_group_size=130)
        start += size
    return str(root)


def make(path: str, **options: Any) -> tuple[TableLoader, TableDataset]:
    defaults: dict[str, Any] = {"shuffle": "rows", "check_plan": False}
    if "global_batch_size" not in options:
        defaults["batch_size"] = 64
    with meant_warnings():
        return StructuredDataset.create_dataloader(path, "parquet", **(defaults | options))


def ids(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


tables = st.lists(st.lists(st.integers(0, 12), max_size=4), min_size=1, max_size=6)
jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 5),
        "num_workers": st.integers(0, 5),
        "batch_size": st.integers(1, 9),
        "even_ranks": st.sampled_from([None, "pad"]),
        "drop_last": st.booleans(),
        "prefetch_batches": st.sampled_from([None, 1, 3]),
        "filters": st.sampled_from([None, pc.field("k") < 5, pc.field("k") < 0]),
    }
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=tables, options=jobs, epoch=st.integers(0, 2), on_disk=st.booleans())
def test_every_row_comes_once(groups: list[list[int]], options: dict[str, Any], epoch: int, on_disk: bool) -> None:
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as stores:
        total = write_table(Path(root), groups)
        place: dict[str, Any] = {"row_store": stores} if on_disk else {}
        ranks = deliver_all(Path(root), epoch=epoch, shuffle="rows", **options, **place)
        size, live = (
            options["batch_size"],
            [
                x
                for x in range(total)
                if "k" not in str(options["filters"]) or (key(x) < (5 if "5" in str(options["filters"]) else 0))
            ],
        )
        own: Counter[int] = Counter()
        for batches in ranks:
            assert all(len(batch.rows) == size for batch in batches[:-1])
            for batch in batches:
                assert batch.ids == batch.rows
                assert (batch.padding is None) == (options["even_ranks"] is None)
                marks = batch.padding or [False] * len(batch.rows)
                own.update(row for row, padding in zip(batch.rows, marks, strict=True) if not padding)
        assert max(own.values(), default=0) <= 1
        if options["drop_last"]:
            assert len(own) == len(live) // (size * len(ranks)) * size * len(ranks)
            assert set(own) <= set(live)
        else:
            assert set(own) == set(live)
        if options["drop_last"] or options["even_ranks"] == "pad":
            assert len({tuple(len(batch.rows) for batch in batches) for batches in ranks}) == 1


SAME: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 7},
    {"worker_type": "process", "num_workers": 2},
    {"worker_type": "process", "num_workers": 3, "collate_fn": dict},
    {"row_store": "STORES"},
    {"row_store_memory": 1, "worker_type": "process", "num_workers": 2, "multiprocessing_context": "forkserver"},
    {"prefetch_batches": 5},
    {"global_batch_size": 64},
    {"columns": ["name", "id"]},
]


@pytest.mark.parametrize("options", SAME, ids=str)
def test_batches_are_the_same_whoever_makes_them(
    table: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path))
    options = {name: str(tmp_path) if value == "STORES" else value for name, value in options.items()}
    wanted, found = make(table)[0], make(table, **options)[0]
    for epoch in (0, 3):
        wanted.set_epoch(epoch)
        found.set_epoch(epoch)
        assert ids(found) == ids(wanted)


def test_ranks_stride_the_order_of_one_rank(table: str) -> None:
    whole = [row for batch in ids(make(table)[0]) for row in batch]
    assert whole != sorted(whole)
    for ranks in (2, 3):
        loaders = [make(table, num_ranks=ranks, rank=rank, batch_size=50)[0] for rank in range(ranks)]
        steps = [ids(loader) for loader in loaders]
        for step in range(len(steps[-1]) - 1):
            size = 50 * ranks
            for rank in range(ranks):
                assert steps[rank][step] == whole[step * size : (step + 1) * size][rank::ranks]


def test_a_callers_own_dataloader_gets_the_same_steps(table: str, tmp_path: Path) -> None:
    loader, dataset = make(table, row_store=str(tmp_path))
    wanted = ids(loader)
    for workers in (0, 2):
        assert ids(DataLoader(dataset, batch_size=None, num_workers=workers)) == wanted


def test_epochs_and_seeds_differ_and_rows_of_tells_them(table: str) -> None:
    loader = make(table, filters=pc.field("x") < 700)[0]
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        told = [spans_of(loader, step) for step in range(len(loader))]
        found = ids(loader)
        assert [len(spans) for spans in told] == [len(batch) for batch in found]
        starts = {"part-0.parquet": 0, "part-1.parquet": 700, "part-3.parquet": 701, "part-4.parquet": 1351}
        starts["part-5.parquet"] = 2003
        assert [[starts[span.file] + span[1] for span in spans] for spans in told] == found
        orders.append(found)
    orders.append(ids(make(table, filters=pc.field("x") < 700, shuffle_seed=1)[0]))
    assert len({json.dumps(order) for order in orders}) == 4


# ---- state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"drop_last": True}, {"filters": pc.field("x") < 700}, {"num_ranks": 2, "rank": 1, "even_ranks": "pad"}],
    ids=str,
)
def test_a_fresh_loader_goes_on_with_the_batches_that_would_have_come(table: str, options: dict[str, Any]) -> None:
    check_that_fresh_loaders_go_on(lambda: make(table, **options)[0], ids)
    loader = make(table, **options)[0]
    length = len(loader)
    loader.set_epoch(8)
    assert len(loader) == length, "every epoch has as many steps"


chains = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 90), st.integers(1, 12), st.booleans()), max_size=6
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains, data=st.data())
def test_states_chained_through_topologies_with_exclusions(
    table: str, chain: list[tuple[int, int, int, int, bool]], data: st.DataObject
) -> None:
    """Each epoch delivers what was left when it began, whatever was excluded or resumed meanwhile."""
    state: dict[str, Any] | None = None
    gone: set[int] = set()
    wanted, seen, epoch = set(range(ROWS)), list[int](), 0
    for ranks, lanes, batch_size, steps, pad in [*chain, (1, 0, 500, 10**6, False)]:
        asked = data.draw(st.sets(st.integers(0, ROWS - 1), max_size=20))
        exclude, states = data.draw(st.booleans()), []
        for rank in range(ranks):
            loader, dataset = make(
                table,
                num_ranks=ranks,
                rank=rank,
                num_workers=lanes,
                batch_size=batch_size,
                even_ranks="pad" if pad else None,
            )
            if state is None:
                loader.set_epoch(epoch)
            else:
                loader.load_state_dict(state)
            taken = 0
            for batch in loader:
                taken += 1
                padding = batch["padding"].tolist() if pad else [False] * len(batch["id"])
                seen += [row for row, is_padding in zip(batch["id"].tolist(), padding, strict=True) if not is_padding]
                if taken == 1:
                    (dataset.exclude if exclude else dataset.include)(sorted(asked))
                if taken == steps:
                    break
            if not taken:
                (dataset.exclude if exclude else dataset.include)(sorted(asked))
            states.append(loader.state_dict())
        gone = gone | asked if exclude else gone - asked
        running = [entry for entry in states if isinstance(entry["consumed"], int)]
        assert all(entry == running[0] for entry in running)
        state = running[0]
    assert sorted(seen) == sorted(wanted)
    loader, _ = make(table)
    loader.load_state_dict(state or {})
    assert ids(loader) == []
    loader.set_epoch(epoch + 1)
    assert sorted(row for batch in ids(loader) for row in batch) == sorted(wanted - gone)


def test_a_state_fits_no_other_mode_table_or_seed(table: str, tmp_path: Path) -> None:
    state = make(table)[0].state_dict()
    assert len(json.dumps(state)) < 1024
    with pytest.raises(ResumeError, match="shuffle was 'rows' and is True"):
        make(table, shuffle=True)[0].load_state_dict(state)
    with pytest.raises(ResumeError, match="shuffle was True and is 'rows'"):
        make(table)[0].load_state_dict(make(table, shuffle=True)[0].state_dict())
    with pytest.raises(ResumeError, match="shuffle_seed was 42 and is 1"):
        make(table, shuffle_seed=1)[0].load_state_dict(state)
    write_table(tmp_path / "other", [[5]])
    with pytest.raises(ResumeError, match="another table"):
        make(str(tmp_path / "other"))[0].load_state_dict(state)
    for wrong in ({"consumed": -1}, {"consumed": "1"}, {"consumed": ROWS + 1}, {"epoch": None}, {"exclusions": 1}):
        with pytest.raises(ResumeError):
            make(table)[0].load_state_dict(state | wrong)


def test_the_state_of_a_rank_that_ended_is_refused_while_others_go_on(table: str) -> None:
    size = (ROWS - 1) // 2  # one row is left for rank 0
    ended = make(table, num_ranks=2, rank=1, batch_size=size)[0]
    ids(ended)
    assert ended.state_dict()["consumed"][1:] == ["ended"]
    with pytest.raises(ResumeError, match="others take 1 more"):
        make(table)[0].load_state_dict(ended.state_dict())


def test_a_state_put_together_key_by_key_is_whole(table: str) -> None:
    """As torch.distributed.checkpoint loads it: only keys that the fresh loader's own state has."""
    loader, dataset = make(table, row_id=True)
    dataset.exclude([1, 2, 3])
    loader.set_epoch(1)
    batches = iter(loader)
    taken = [next(batches) for _ in range(3)]
    saved = loader.state_dict()
    fresh = make(table, row_id=True)[0]
    fresh.load_state_dict({key: saved[key] for key in fresh.state_dict()})
    delivered = torch.cat([batch["row_id"] for batch in (*taken, *fresh)])
    assert sorted(delivered.tolist()) == [row for row in range(ROWS) if row not in (1, 2, 3)]


# ---- exclusion -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [None, pc.field("x") < 700], ids=["whole", "filtered"])
def test_excluded_rows_leave_at_the_next_epoch(table: str, filters: Any) -> None:
    loader, dataset = make(table, filters=filters, row_id=True)
    live = 2_100 if filters is not None else ROWS
    first = ids(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    seen = [next(batches)]
    dataset.exclude(seen[0]["row_id"])
    dataset.exclude(torch.arange(100))
    assert [batch["id"].tolist() for batch in [*seen, *batches]] == first, "the epoch that runs keeps its order"
    state = loader.state_dict()
    loader.set_epoch(0)
    assert ids(loader) == first
    loader.set_epoch(1)
    gone = set(seen[0]["row_id"].tolist()) | set(range(100))
    order = [row for batch in ids(loader) for row in batch]
    assert sorted(order) == [row for row in range(live) if row not in gone]
    assert len(loader) == -(-(live - len(gone)) // 64)
    fresh, other = make(table, filters=filters, row_id=True)
    fresh.load_state_dict(state)
    fresh.set_epoch(1)
    assert [row for batch in ids(fresh) for row in batch] == order
    other.include(range(100))
    fresh.set_epoch(2)
    assert {row for batch in ids(fresh) for row in batch} == set(range(live)) - (gone - set(range(100)))


def test_all_excluded_is_an_error_and_unknown_rows_too(table: str) -> None:
    loader, dataset = make(table)
    with pytest.raises(ConfigError, match="row ids must be in"):
        dataset.exclude([ROWS])
    dataset.exclude(range(ROWS))
    with pytest.raises(ConfigError, match="all 2903 rows are excluded"):
        iter(loader)
    dataset.include([7])
    assert ids(loader) == [[7]]


# ---- other output, and the map ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_form_holds_the_values_that_splits_mode_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(rows_of_many_kinds(range(300)), tmp_path / "t.parquet", row_group_size=70)
    found, wanted = (
        {
            row["id"]: row
            for batch in make(str(tmp_path), shuffle=shuffle, batch_size=1, row_id=True, **options)[0]
            for row in [plain(batch)]
        }
        for shuffle in ("rows", False)
    )
    assert len(found) == 300
    assert found == wanted


def test_the_map_serves_samplers_and_people(table: str) -> None:
    _, dataset = make(table, filters=pc.field("x") >= 100, row_id=True)
    view = dataset.as_map()
    assert len(view) == ROWS - 300
    assert view[0] == {"id": 300, "x": 100.0, "name": "row 300", "row_id": 300}
    assert view[-1]["id"] == ROWS - 1
    assert view.row_ids([1, 0]).tolist() == [301, 300]
    assert view.row_ids().tolist() == list(range(300, ROWS))
    assert view.batch([2, 0])["name"] == ["row 302", "row 300"]
    sampler = RandomSampler(view, generator=torch.Generator().manual_seed(0))
    found = [row for batch in DataLoader(view, batch_size=100, sampler=sampler) for row in batch["id"].tolist()]
    assert sorted(found) == list(range(300, ROWS))
    with pytest.raises(IndexError, match="place 5000"):
        view[5000]


class Gathers:
    """Counts how often a view reads the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        gather = StoredRows.gather

        def counted(rows: StoredRows, places: Any) -> Any:
            self.times += 1
            return gather(rows, places)

        monkeypatch.setattr(StoredRows, "gather", counted)


SEVERAL: dict[str, tuple[Any, list[int]]] = {
    "list": ([3, 4], [3, 4]),
    "tuple": ((7, 2, 2), [7, 2, 2]),
    "negative": ([-1, 0], [ROWS - 1, 0]),
    "array": (np.array([5, -2], dtype="i4"), [5, ROWS - 2]),
    "unsigned array": (np.array([5, 6], dtype="u8"), [5, 6]),
    "tensor": (torch.tensor([9, 8]), [9, 8]),
    "range": (range(4, 0, -1), [4, 3, 2, 1]),
    "slice": (slice(3, 6), [3, 4, 5]),
    "slice from the end": (slice(-2, None), [ROWS - 2, ROWS - 1]),
    "slice backwards": (slice(6, 2, -2), [6, 4]),
    "slice past the end": (slice(ROWS - 1, ROWS + 50), [ROWS - 1]),
    "one in a list": ([11], [11]),
}


@pytest.mark.parametrize("several", SEVERAL)
def test_the_map_gives_several_places_as_one_batch(table: str, several: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = make(table)[1].as_map()
    gathers = Gathers(monkeypatch)
    index, wanted = SEVERAL[several]
    batch = view[index]
    assert isinstance(batch["id"], torch.Tensor)
    assert batch["id"].tolist() == wanted
    assert batch["name"] == [f"row {place}" for place in wanted]
    assert gathers.times == 1


@pytest.mark.parametrize("place", [6, np.int32(6), np.uint64(6), torch.tensor(6), 6 - ROWS], ids=repr)
def test_the_map_gives_one_place_as_one_row(table: str, place: Any) -> None:
    assert make(table)[1].as_map()[place] == {"id": 6, "x": 2.0, "name": "row 6"}


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        ([3, ROWS], IndexError, f"place {ROWS} is not in a table of {ROWS} rows"),
        ([-ROWS - 1], IndexError, f"place {-ROWS - 1} is not in"),
        (np.array([2**64 - 1], dtype="u8"), IndexError, "place 18446744073709551615 is not in"),
        (np.uint64(2**64 - 1), IndexError, "place 18446744073709551615 is not in"),
        (True, TypeError, "places must be integers, got a bool"),
        (np.True_, TypeError, "places must be integers, got a bool"),
        (torch.tensor(True), TypeError, "places must be integers, got bool"),
        ([True, 3], TypeError, "got a bool"),
        (np.ones(ROWS, dtype=bool), TypeError, "flatnonzero"),
        (torch.ones(4, dtype=torch.bool), TypeError, "flatnonzero"),
        ([[1, 2]], TypeError, "an array of shape"),
        ([[1], [2, 3]], TypeError, "one list of integers"),
        (1.0, TypeError, "got float64"),
        ([1.5], TypeError, "got float64"),
        ("3", TypeError, "places must be integers"),
        (None, TypeError, "places must be integers"),
        ([], ConfigError, "at least one row"),
        (slice(5, 5), ConfigError, "at least one row"),
    ],
    ids=repr,
)
def test_the_map_refuses_what_is_no_place(table: str, index: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(table)[1].as_map()[index]


def test_a_batch_sampler_reads_the_store_once_a_batch(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = make(table)[1].as_map()
    gathers = Gathers(monkeypatch)
    sampler = BatchSampler(SequentialSampler(view), 500, drop_last=False)
    found = [row for batch in DataLoader(view, sampler=sampler, batch_size=None) for row in batch["id"].tolist()]
    assert found == list(range(ROWS))
    assert gathers.times == 6


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"batch_size": 16}], ids=str)
def test_a_global_batch_is_divided_over_the_ranks(table: str, given: dict[str, Any]) -> None:
    loader, dataset = make(table, global_batch_size=64, num_ranks=4, rank=1, **given)
    assert dataset.options.batch_size == 16
    assert len(next(iter(loader))["id"]) == 16


@pytest.mark.parametrize("batch_size", [1024, 256, 64, 32, 1])
def test_a_batch_size_that_was_given_must_agree_with_the_global_one(table: str, batch_size: int) -> None:
    said = f"global_batch_size=64 over 4 ranks is 16 rows a rank, got batch_size={batch_size} beside it; leave"
    with pytest.raises(ConfigError, match=said):
        make(table, global_batch_size=64, num_ranks=4, rank=1, batch_size=batch_size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_rows": 5}, "split_rows=5 has no meaning with shuffle='rows'"),
        ({"shuffle_buffer_size": 5}, "shuffle_buffer_size=5 has no meaning"),
        ({"split_strategy": "row_balanced"}, "split_strategy='row_balanced' has no meaning"),
        ({"filters": pc.field("x") > 3, "count_filtered": False}, "count_filtered=False has no meaning"),
        ({"even_ranks": "balance"}, "even_ranks='balance' is for splits"),
        ({"global_batch_size": 101, "num_ranks": 2, "rank": 0}, "the nearest is 100"),
        ({"global_batch_size": 0}, "global_batch_size must be at least 1"),
        ({"row_store": ""}, 'row_store must be "memory", a directory, or a URL'),
        ({"row_store_memory": "much"}, "row_store_memory must read like"),
        ({"shuffle": True, "row_store": "memory"}, "row_store='memory' has no meaning with shuffle=True"),
        ({"shuffle": True, "global_batch_size": 8}, "global_batch_size=8 has no meaning"),
        (
            {"row_store": "memory", "worker_type": "process", "multiprocessing_context": "spawn"},
            "not forked; pass row_store=",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(table: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(table, **options)


def test_splits_mode_has_no_rows_to_exclude(table: str) -> None:
    _, dataset = make(table, shuffle=True)
    for call in (lambda: dataset.exclude([1]), lambda: dataset.include([1]), dataset.as_map):
        with pytest.raises(ConfigError, match='pass shuffle="rows"'):
            call()


def test_uneven_steps_are_said_once(table: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        StructuredDataset.create_dataloader(
            table, shuffle="rows", num_ranks=2, rank=0, batch_size=(ROWS - 1) // 2, check_plan=False
        )
    assert ["ranks take unequally many steps: 2, 1" in str(entry.message) for entry in said] == [True]


def test_explain_tells_the_store(table: str, tmp_path: Path) -> None:
    _, dataset = make(table, row_store=str(tmp_path))
    told = dataset.explain()
    assert told.steps == 46
    assert sum(worker.rows for worker in told.workers) == ROWS
    assert "from a row store of about" in str(told)


def test_a_batch_may_be_written_in_place(table: str) -> None:
    loader = make(table, row_store="memory")[0]
    first = ids(loader)
    loader.set_epoch(0)
    for batch in loader:
        batch["id"].zero_()
        batch["x"].zero_()
    loader.set_epoch(0)
    assert ids(loader) == first
