"""`batch_by="file"` through the whole loader: batches of one file each, of any format, in any shape, with its state."""

from __future__ import annotations

import tempfile
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
from pyarrow import feather

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.tables.tensor_shards import tensor, write_shard
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader

FORMATS = {"parquet": "parquet", "ipc": "arrow", "tensorproto": "pb"}

Rows = list[tuple[int, int]]
"""``(id, file)`` of each row."""


def write(folder: Path, sizes: list[int], kind: str = "parquet") -> Path:
    """Write a file of so many rows each; a row says which one it is, and in which file."""
    folder.mkdir(exist_ok=True)
    for file, (stop, size) in enumerate(zip(np.cumsum(sizes).tolist(), sizes, strict=True)):
        table = pa.table({"id": np.arange(stop - size, stop), "file": np.full(size, file)})
        path = folder / f"{file:03}.{FORMATS[kind]}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=5)
        elif kind == "ipc":
            feather.write_feather(table, path, chunksize=4, compression="uncompressed")
        else:
            names = table.column_names
            write_shard(path, [[tensor(n, np.int64(row[n])) for n in names] for row in table.to_pylist()])
    return folder


def make(path: Path, **options: Any) -> TableLoader:
    with meant_warnings():
        loader, _ = StructuredDataset.create_dataloader(
            str(path), options.pop("format", "parquet"), check_plan=False, batch_by="file", **options
        )
    return loader


def rows_in(batch: dict[str, torch.Tensor]) -> Rows:
    """Take what is no padding from a batch, which must be of one file."""
    [file] = set(batch["file"].tolist())
    own = torch.ones(len(batch["id"]), dtype=torch.bool) if "padding" not in batch else ~batch["padding"]
    return [(number, file) for number in batch["id"][own].tolist()]


shapes = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 9),
        "shuffle": st.booleans(),
        "shuffle_buffer_size": st.sampled_from([None, 3, 8]),
        "even_ranks": st.sampled_from([None, "balance", "pad"]),
        "worker_type": st.just("thread"),
        "collate_fn": st.sampled_from([None, dict]),
        "prefetch_batches": st.sampled_from([None, 1]),
    }
)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=5),
    kind=st.sampled_from(sorted(FORMATS)),
    options=shapes,
    later=shapes,
    filtered=st.booleans(),
    ranks=st.integers(1, 3),
    others=st.integers(1, 3),
    stop=st.integers(1, 4),
)
def test_each_row_once_each_batch_of_one_file_on_any_number_of_ranks(
    sizes: list[int],
    kind: str,
    options: dict[str, Any],
    later: dict[str, Any],
    filtered: bool,
    ranks: int,
    others: int,
    stop: int,
) -> None:
    total = sum(sizes)
    file_of = np.repeat(np.arange(len(sizes)), sizes).tolist()
    filters = pc.field("id") >= total // 3 if filtered else None
    expected = [(number, file_of[number]) for number in range(total // 3 if filtered else 0, total)]
    same = {"format": kind, "filters": filters}
    later = later | {"shuffle": options["shuffle"]}
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), sizes, kind)
        jobs = [make(path, **same, **options, num_ranks=ranks, rank=rank) for rank in range(ranks)]
        whole = [list(loader) for loader in jobs]
        assert [len(batches) for batches in whole] == [len(loader) for loader in jobs]
        assert sorted(row for batches in whole for batch in batches for row in rows_in(batch)) == expected
        for loader, batches in zip(jobs, whole, strict=True):
            assert loader.metrics().rows == sum(len(batch["id"]) for batch in batches) if batches else True

        stop = min([stop, *map(len, whole)])
        begun = [make(path, **same, **options, num_ranks=ranks, rank=rank) for rank in range(ranks)]
        taken = [row for loader in begun for batch in islice(loader, stop) for row in rows_in(batch)]
        longest = max(range(ranks), key=lambda rank: len(whole[rank]))
        state = begun[longest].state_dict() if stop else None
        for rank in range(others):
            again = make(path, **same, **later, num_ranks=others, rank=rank)
            if state is not None:
                again.load_state_dict(state)
            taken += [row for batch in again for row in rows_in(batch)]
        assert sorted(taken) == expected


def test_the_end_of_each_file_is_short_or_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [7, 3, 8])
    for drop, expected in ((False, [4, 3, 3, 4, 4]), (True, [4, 4, 4])):
        loader = make(path, batch_size=4, num_workers=1, drop_last=drop)
        assert [len(batch["id"]) for batch in loader] == expected
        assert len(loader) == len(expected)


def test_worker_processes_deliver_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [7, 3, 8, 21])
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "shuffle": "splits"}
    threads, processes = (make(path, worker_type=kind, **options) for kind in ("thread", "process"))
    assert [batch["id"].tolist() for batch in processes] == [batch["id"].tolist() for batch in threads]


def test_a_dataloader_of_the_callers_own_gets_batches_of_one_file(tmp_path: Path) -> None:
    dataset = StructuredDataset(str(write(tmp_path / "t", [7, 3])), batch_size=4, batch_by="file", num_workers=0)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=None))
    assert [rows_in(batch)[0][1] for batch in batches] == [0, 0, 1]


def test_the_loader_says_of_which_file_its_newest_batch_is(tmp_path: Path) -> None:
    loader = make(write(tmp_path / "t", [7, 3, 8]), batch_size=4, num_workers=2, shuffle="splits", epochs=2)
    assert loader.current_file is None
    for batch in loader:
        assert loader.current_file == f"{rows_in(batch)[0][1]:03}.parquet"
    state = loader.state_dict()
    again = make(tmp_path / "t", batch_size=4, num_workers=2, shuffle="splits")
    again.load_state_dict(state)
    assert again.current_file == loader.current_file


def test_padding_is_of_a_file_too(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [9, 1])
    loader = make(path, batch_size=4, num_workers=1, num_ranks=2, rank=1, even_ranks="pad")
    seen = [(batch["padding"].all().item(), loader.current_file) for batch in loader]
    assert seen == [(False, "001.parquet"), (True, "000.parquet"), (True, "000.parquet")]


def test_reading_begins_at_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [7, 3, 8, 6])
    loader = make(path, batch_size=4, num_workers=0)
    assert loader.seek(file="002.parquet") == 3
    assert [rows_in(batch)[0][1] for batch in loader] == [2, 2, 3, 3]
    bare: dict[str, Any] = {"num_ranks": 2, "even_ranks": False}
    jobs = [make(path, batch_size=4, num_workers=0, rank=rank, **bare) for rank in range(2)]
    assert [job.seek(file="003.parquet") for job in jobs] == [1, 1], "the same step on every rank"
    assert [[rows_in(batch)[0][1] for batch in job] for job in jobs] == [[0, 2, 2], [3, 3]]
    with pytest.raises(ConfigError, match=r"no file '2\.parquet'; did you mean"):
        loader.seek(file="2.parquet")
    with pytest.raises(ConfigError, match="pass step=, fraction= or file="):
        loader.seek(sample=3)
    filtered = make(path, filters=pc.field("file") != 1)
    with pytest.raises(ConfigError, match=r"delivers no row of '001\.parquet'"):
        filtered.seek(file="001.parquet")


def test_a_state_is_of_batches_of_files_or_not(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [7, 3])
    by_file = make(path, split_strategy="target_size", batch_size=2)
    plain, _ = StructuredDataset.create_dataloader(str(path), batch_size=2, check_plan=False)
    next(iter(by_file))
    next(iter(plain))
    for one, other in ((by_file, plain), (plain, by_file)):
        with pytest.raises(ResumeError, match="batch_by was"):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_epoch_goes_on_over_a_table_that_grew(tmp_path: Path, ranks: int) -> None:
    path = write(tmp_path / "t", [7, 3, 8, 5])
    late = path / "003.parquet"
    kept = late.read_bytes()
    late.unlink()
    taken, options = [], {"batch_size": 3, "num_workers": 1, "on_growth": "continue"}
    loader = make(path, **options)
    taken += [row for batch in islice(loader, 4) for row in rows_in(batch)]
    late.write_bytes(kept)
    for rank in range(ranks):
        again = make(path, num_ranks=ranks, rank=rank, **options)
        again.load_state_dict(loader.state_dict())
        taken += [row for batch in again for row in rows_in(batch)]
    assert sorted(taken) == list(enumerate(np.repeat(range(4), [7, 3, 8, 5]).tolist()))


def test_the_explanation_counts_rows_and_steps_of_every_rank(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t", [7, 3, 8, 5]))
    options: dict[str, Any] = {"batch_size": 4, "batch_by": "file", "num_ranks": 2, "rank": 0, "check_plan": False}
    even: dict[Any, Any] = {False: (4, 3), "balance": (4, 4), "drop": (3, 3)}
    for even_ranks, steps in even.items():
        with meant_warnings():
            told = StructuredDataset(path, even_ranks=even_ranks, **options).explain()
        assert (told.rows_per_rank, told.steps_per_rank) == ((15, 8), steps), even_ranks


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shuffle": "rows"}, "batch_by='file' does not work with shuffle='rows'"),
        ({"batch_by": "row"}, "batch_by must be one of None, 'file'"),
        ({"split_size": 3}, "leave split_size out"),
        ({"count_filtered": False}, "leave count_filtered=True, or batch_by out"),
        ({"pack": Pack(seq_len=4)}, 'use strategy="best_fit" or "pad"'),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "t", [2])
    with pytest.raises(ConfigError, match=told):
        StructuredDataset(str(path), **{"batch_by": "file"} | options)


def test_without_it_no_batch_is_of_a_file(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t", [2, 3]))
    loader, _ = StructuredDataset.create_dataloader(path)
    rows = StructuredDataset(path, shuffle="rows", row_store="memory")
    mixed, _ = MixedDataset.create_dataloader({"t": rows}, {"t": 1.0}, check_plan=False)
    for each in (loader, mixed):
        with pytest.raises(ConfigError, match=r"current_file needs batches .*; pass batch_by=\"file\""):
            _ = each.current_file
        with pytest.raises(ConfigError, match=r"seek\(file=\.\.\.\) needs batches"):
            each.seek(file="000.parquet")


def test_a_small_rest_of_a_chunk_does_not_keep_the_chunk(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet")
    *_, rest = make(tmp_path, batch_size=900, num_workers=1, output_format="arrow")
    assert rest["x"].to_pylist() == list(range(900, 1000))
    assert rest.get_total_buffer_size() == 8 * 100


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@daily(2)
def test_each_rank_begins_with_its_own_file_of_a_number(tmp_path: Path, shuffle: bool, ranks: int) -> None:
    path = write(tmp_path / "t", [5, 3, 8, 1, 9, 4, 6])
    options: dict[str, Any] = {"num_workers": 1, "batch_size": 4, "shuffle": shuffle, "num_ranks": ranks}
    alone = make(path, **options | {"num_ranks": 1, "rank": 0})
    alone.set_epoch(2)
    rows = [row for batch in alone for row in rows_in(batch)]
    order = list(dict.fromkeys(file for _, file in rows))
    for number in range(-(-len(order) // ranks)):
        left = order[number * ranks :]
        seen: list[Rows] = []
        states = []
        for rank in range(ranks):
            loader = make(path, rank=rank, **options)
            assert loader.seek(epoch=2, file=number) == 0
            states.append(loader.state_dict())
            remaining, batches = loader.remaining, list(loader)
            assert len(batches) == remaining
            own = [row for batch in batches for row in rows_in(batch)]
            if rank < len(left):
                assert own[0][1] == left[rank]
            seen.append(own)
        assert sorted(row for own in seen for row in own) == sorted(row for row in rows if row[1] in left)
        assert all(state == states[0] for state in states)
        other = make(path, **options | {"num_ranks": 1, "rank": 0})
        other.load_state_dict(states[0])
        assert [row for batch in other for row in rows_in(batch)] == [row for row in rows if row[1] in left]
    with pytest.raises(ConfigError, match="pass a number below"):
        loader.seek(epoch=2, file=number + 1)
    with pytest.raises(ConfigError, match="named in one way"):
        loader.seek(file=0, step=1)


def test_a_rank_without_a_batch_left_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [4, 4, 4])
    loader = make(path, num_workers=1, batch_size=2, num_ranks=2, rank=1, even_ranks=False)
    with pytest.warns(UserWarning, match=r"ranks \[1\] have no batch left where '002.parquet' begins"):
        loader.seek(file="002.parquet")
