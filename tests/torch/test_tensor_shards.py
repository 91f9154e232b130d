"""Tensor shards through the whole loader: every sample once, with its bits, whatever ranks, lanes, order and state."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.tables.tensor_shards import WIDTHS, Tensor, bits, rows_of, tensor, values_of, write_shard
from torch_table_loader import StructuredDataset, TableError, TableLoader
from torch_table_loader.formats.tensorproto import TensorProtoReader

SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "scalar": lambda _: (),
    "vector": lambda _: (3,),
    "grid": lambda _: (2, 3),
    "empty": lambda _: (2, 0),
    "ragged": lambda number: (number % 4,),
    "ragged rows": lambda number: (number % 3, 2),
    "ragged columns": lambda number: (2, number % 3),
    "any rank": lambda number: (2,) * (number % 3),
    "rare": lambda number: (1 + (number == 17), 2),
}

features = st.tuples(st.sampled_from(sorted(WIDTHS)), st.sampled_from(sorted(SHAPES)), st.booleans())

jobs = st.fixed_dictionaries(
    {
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 9),
        "shuffle": st.sampled_from([False, True, "rows"]),
        "filters": st.sampled_from([None, pc.field("id") < 11]),
    }
)


def shard_samples(kinds: list[tuple[str, str, bool]], numbers: range) -> list[list[Tensor]]:
    """Make samples that know their number."""
    found = []
    for number in numbers:
        own = [tensor("id", np.int64(number))]
        for place, (kind, shape, raw) in enumerate(kinds):
            dims = SHAPES[shape](number)
            data = values_of(kind, dims, number * 100 + place, raw=raw)
            own.append(Tensor(f"f{place}", kind, dims, data, raw))
        found.append(own)
    return found


def make(path: Path, **options: Any) -> TableLoader:
    rows_only: dict[str, Any] = {"row_store": "memory"} if options.get("shuffle") == "rows" else {"split_size": 4}
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(path), options.pop("format", "tensorproto"), check_plan=False, even_ranks=False, **rows_only | options
        )[0]


def check(taken: list[dict[str, torch.Tensor]], written: list[list[Tensor]], least: int = 0) -> None:
    """Hold what came against what was written: each sample once, bit by bit."""
    numbers = sorted(int(row["id"]) for row in taken)
    assert numbers == list(range(least, len(written)))
    for row in taken:
        for each in written[int(row["id"])]:
            assert bits(row[each.name]) == bits(each.torch), each


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(features, max_size=4),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=3),
    options=jobs,
    ranks=st.integers(1, 3),
    stop=st.integers(0, 3),
    others=st.integers(1, 3),
)
def test_every_sample_comes_once(
    kinds: list[tuple[str, str, bool]],
    sizes: list[int],
    options: dict[str, Any],
    ranks: int,
    stop: int,
    others: int,
) -> None:
    written = shard_samples(kinds, range(sum(sizes)))
    expected = written if options["filters"] is None else written[:11]
    with tempfile.TemporaryDirectory() as folder:
        begin = 0
        for file, size in enumerate(sizes):
            write_shard(Path(folder) / f"{file}.pb", written[begin : begin + size])
            begin += size
        loaders = [make(Path(folder), num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]
        whole = [list(loader) for loader in loaders]
        assert [len(batches) for batches in whole] == [len(loader) for loader in loaders]
        check([row for batches in whole for batch in batches for row in rows_of(batch)], expected)

        stop = min(stop, *(len(batches) - 1 for batches in whole)) if all(whole) else 0
        begun = [make(Path(folder), num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]
        taken = [row for loader in begun for batch in islice(loader, max(stop, 0)) for row in rows_of(batch)]
        state = begun[0].state_dict()
        for rank in range(others):
            again = make(Path(folder), num_ranks=others, rank=rank, **options)
            if stop > 0:
                again.load_state_dict(state)
            taken += [row for batch in again for row in rows_of(batch)]
        check(taken, expected)


@pytest.mark.parametrize("kind", sorted(WIDTHS))
@pytest.mark.parametrize("raw", [True, False])
@daily(14)
def test_each_element_type_comes_in_its_dtype(tmp_path: Path, kind: str, raw: bool) -> None:
    written = shard_samples([(kind, shape, raw) for shape in SHAPES], range(20))
    write_shard(tmp_path / "a.pb", written)
    for options in ({}, {"output_format": "numpy", "ragged": "offsets", "columns": ["id", "f1"]}):
        batches = list(make(tmp_path, batch_size=7, num_workers=0, **options))
        if not options:
            check([row for batch in batches for row in rows_of(batch)], written)
        else:
            assert {str(batch["f1"].dtype) for batch in batches} == {WIDTHS[kind][0]}
            joined = np.concatenate([batch["f1"] for batch in batches])
            assert joined.tobytes() == b"".join(row[2].data for row in written)


def test_numbers_that_arrow_has_not_are_padded_with_zeros(tmp_path: Path) -> None:
    written = shard_samples([("BFLOAT16", "ragged", True)], range(8))
    write_shard(tmp_path / "a.pb", written)
    (batch,) = make(tmp_path, batch_size=8, ragged="pad")
    for row, (_, each) in zip(batch["f0"].values, written, strict=True):
        assert bits(row[: each.dims[0]]) == bits(each.torch)
        assert not row[each.dims[0] :].any()
    assert batch["f0"].lengths.tolist() == [each.dims[0] for _, each in written]


def test_worker_processes_deliver_the_same(tmp_path: Path) -> None:
    written = shard_samples([("BFLOAT16", "grid", True), ("COMPLEX64", "ragged rows", True)], range(30))
    write_shard(tmp_path / "a.pb", written)
    loader = make(tmp_path, batch_size=4, num_workers=2, worker_type="process")
    check([row for batch in loader for row in rows_of(batch)], written)


def test_a_distant_shard_is_fetched_ahead(tmp_path: Path, far: Callable[[], Any]) -> None:
    written = shard_samples([("FLOAT", "ragged rows", True), ("FLOAT8E5M2", "vector", True)], range(50))
    write_shard(tmp_path / "a.pb", written[:20])
    write_shard(tmp_path / "b.pb", written[20:])
    reader = TensorProtoReader(group_bytes=300)
    with far():
        loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), reader, batch_size=8)
        plan = dataset.explain().fetch
        check([row for batch in loader for row in rows_of(batch)], written)
        fetched = loader.metrics().fetch
    assert plan is not None
    assert (fetched.requests, fetched.unplanned) == (plan.requests, 0)
    assert fetched.num_bytes == plan.num_bytes > 0


def test_a_plan_is_kept_and_says_nothing_of_other_files(tmp_path: Path) -> None:
    first, second = (
        [[tensor("x", np.full((rows, 2), rows, np.float32)), tensor("id", np.int64(rows))]] for rows in (1, 2)
    )
    write_shard(tmp_path / "t/a.pb", first)
    write_shard(tmp_path / "t/b.pb", second)
    options = {"plan_cache": str(tmp_path / "plans"), "filters": pc.field("id") > 0}
    for _ in range(2):
        (batch,) = make(tmp_path / "t", batch_size=4, num_workers=0, **options)
        assert [row["x"].shape[0] for row in rows_of(batch)] == [1, 2]
    (batch,) = make(tmp_path / "t/b.pb", batch_size=4, num_workers=0, **options)
    assert batch["x"].shape == (1, 2, 2), "all samples of this file agree"


# The habits of ONNX Runtime's DataLoader.


def test_files_come_by_name_and_go_to_ranks_in_turn(tmp_path: Path) -> None:
    for number in (10, 2, 33, 4, 25):
        write_shard(tmp_path / f"{number:03}.pb", [[tensor("id", np.int64(number * 10 + k))] for k in range(3)])
    (tmp_path / "notes.txt").write_text("no shard")
    by_name = [20, 21, 22, 40, 41, 42, 100, 101, 102, 250, 251, 252, 330, 331, 332]
    one = make(tmp_path, batch_size=1, num_workers=0)
    assert [int(batch["id"]) for batch in one] == by_name
    for rank in range(2):
        whole_files = {"split_strategy": "round_robin", "split_size": None}
        loader = make(tmp_path, batch_size=1, num_workers=0, num_ranks=2, rank=rank, **whole_files)
        expected = [number for place, number in enumerate(by_name) if place // 3 % 2 == rank]
        assert [int(batch["id"]) for batch in loader] == expected


def test_an_evaluation_loader_reads_one_file_in_one_process(tmp_path: Path) -> None:
    for number in range(3):
        write_shard(tmp_path / f"{number}.pb", [[tensor("id", np.int64(number * 10 + k))] for k in range(3)])
    loader = make(tmp_path / "1.pb", batch_size=2, num_workers=0)
    assert [batch["id"].tolist() for batch in loader] == [[10, 11], [12]]


def test_names_are_given_by_position_and_by_name(tmp_path: Path) -> None:
    own = [tensor("input1", np.float32(1)), tensor("", np.float32(2)), tensor("y", np.float32(3))]
    write_shard(tmp_path / "a.pb", [own])
    assert StructuredDataset(str(tmp_path), "tensorproto").schema.names == ["input1", "feature_1", "y"]
    reader = TensorProtoReader(names={"input1": "ids", 1: "mask", 2: None})
    (batch,) = make(tmp_path, format=reader, batch_size=1, num_workers=0)
    assert {name: column.item() for name, column in batch.items()} == {"ids": 1, "mask": 2}


def test_shards_of_any_name_are_read_if_they_are_named(tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / f"part{number}.bin", [[tensor("x", np.int64(4 * number + at))] for at in range(4)])
    names = ["part0.bin", "part1.bin"]
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "tensorproto", files=names, batch_size=4)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(TableError, match=r"must have names that end with '.pb'"):
        StructuredDataset(str(tmp_path), "tensorproto")
