"""Equal steps of ranks, warnings, and strategies by name, through the loader."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.tables.plain import Batch, as_values, deliver, deliver_all, write_table
from torch_table_loader import ConfigError, RoundRobinStrategy, RowBalancedStrategy, StructuredDataset
from torch_table_loader.extend import Shard, Split


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write seven files of four rows."""
    write_table(tmp_path / "table", [[4]] * 7)
    return tmp_path / "table"


def make(table: Path, **options: Any) -> Any:
    chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "check_plan": False} | options
    return StructuredDataset.create_dataloader(str(table), "parquet", **chosen)[0]


def own(ranks: list[list[Batch]]) -> list[int]:
    rows = []
    for batch in (batch for batches in ranks for batch in batches):
        marks = batch.padding or [False] * len(batch.rows)
        rows += [row for row, pads in zip(batch.rows, marks, strict=True) if not pads]
    return sorted(rows)


def test_unequal_steps_are_warned_about_with_the_remedy_at_the_callers_line(table: Path) -> None:
    with pytest.warns(UserWarning, match="ranks take different numbers of steps: 3, 2, 2; .*even_ranks=") as caught:
        make(table, num_ranks=3, rank=1, even_ranks=False)
    assert [entry.filename for entry in caught] == [__file__]
    options: dict[str, Any] = {"num_ranks": 3, "rank": 1, "even_ranks": False, "check_plan": False}
    dataset = StructuredDataset(str(table), "parquet", batch_size=4, **options)  # it may become part of a mixture
    with pytest.warns(UserWarning, match="ranks take different numbers of steps") as caught:
        next(iter(dataset))
    assert [entry.filename for entry in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(dataset))


@pytest.mark.parametrize(
    "options", [{"num_ranks": 7, "even_ranks": False}, {"num_ranks": 3, "batch_size": 100}, {"num_ranks": 3}]
)
def test_equal_steps_bring_no_warning(table: Path, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(table, rank=0, **options)


def test_a_missing_process_group_is_reported_once_at_the_callers_line(table: Path) -> None:
    options: dict[str, Any] = {"num_ranks": 7, "rank": 0, "check_plan": True}
    with pytest.warns(UserWarning, match="7 ranks list the table on their own.*pass files=") as caught:
        make(table, **options)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="list the table on their own") as caught:
        StructuredDataset(str(table), "parquet", **options)
    assert [entry.filename for entry in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(table, files=[f"{number:03}.parquet" for number in range(7)], **options)


@pytest.mark.parametrize(("ranks", "size", "steps"), [(3, 4, 3), (2, 4, 4), (4, 7, 1), (3, 9, 2), (5, 2, 3)])
def test_balance_takes_rows_over_ranks_times_batch_steps(table: Path, ranks: int, size: int, steps: int) -> None:
    found = deliver_all(table, ranks, batch_size=size, even_ranks="balance")
    assert [len(batches) for batches in found] == [steps] * ranks == [-(-28 // (ranks * size))] * ranks
    assert own(found) == list(range(28))
    dropped = deliver_all(table, ranks, batch_size=size, even_ranks="balance", drop_last=True)
    assert [len(batches) for batches in dropped] == [28 // (ranks * size)] * ranks
    assert all(len(batch.rows) == size for batches in dropped for batch in batches)
    assert len(own(dropped)) == 28 // (ranks * size) * ranks * size == len(set(own(dropped)))


def test_balance_pads_only_where_a_rank_would_have_no_row_in_the_last_step(table: Path) -> None:
    # 28 rows on 3 ranks are 10, 9, 9: batches of 9 divide 9, and 3 does not divide 28.
    found = deliver_all(table, 3, batch_size=9, even_ranks="balance")
    padding = [[row for batch in batches for row in batch.padding or []].count(True) for batches in found]
    assert sorted(padding) == [0, 1, 1]
    assert all(batch.padding is not None for batches in found for batch in batches)
    padded = [batch for batches in found for batch in batches if any(batch.padding or [])]
    assert [batch.rows for batch in padded] == [[0], [0]], "pad rows are the first rows of the epoch's order"
    unpadded = deliver_all(table, 3, batch_size=4, even_ranks="balance")
    assert all(batch.padding == [False] * len(batch.rows) for batches in unpadded for batch in batches)


def test_balance_keeps_each_rank_within_one_row(table: Path) -> None:
    for ranks in (3, 5, 6):
        found = deliver_all(table, ranks, batch_size=2, even_ranks="balance", shuffle="splits")
        rows = [len(own([batches])) for batches in found]
        assert set(rows) <= {28 // ranks, -(-28 // ranks)}
        assert own(found) == list(range(28))


def test_drop_stops_all_ranks_at_the_smallest(table: Path) -> None:
    found = deliver_all(table, 3, batch_size=4, even_ranks="drop")
    assert [len(batches) for batches in found] == [2, 2, 2]
    assert all(batch.padding is None for batches in found for batch in batches)
    assert len(set(own(found))) == len(own(found)) == 24


def test_pad_fills_up_to_the_largest_with_the_first_rows_of_the_order(table: Path) -> None:
    found = deliver_all(table, 3, batch_size=4, even_ranks="pad", num_workers=1)
    assert [len(batches) for batches in found] == [3, 3, 3]
    assert [batches[-1].rows for batches in found[1:]] == [[0, 1, 2, 3]] * 2
    assert [batches[-1].padding for batches in found] == [[False] * 4, [True] * 4, [True] * 4]
    assert own(found) == list(range(28))


def test_pad_marks_every_batch_of_every_rank_and_the_schema_says_so(table: Path) -> None:
    found = deliver_all(table, 7, batch_size=4, even_ranks="pad")
    assert all(batch.padding == [False] * 4 for batches in found for batch in batches)
    assert make(table, even_ranks="pad").dataset.schema.names[-1] == "padding"
    assert "padding" not in make(table).dataset.schema.names


def test_pad_on_one_rank_pads_nothing(table: Path) -> None:
    assert own([deliver(table, even_ranks="pad", batch_size=5)]) == list(range(28))


@pytest.mark.parametrize("even", ["balance", "drop", "pad"])
def test_steps_are_equal_under_a_filter(table: Path, even: str) -> None:
    found = deliver_all(table, 3, batch_size=2, even_ranks=even, filters=pc.field("x") >= 11, shuffle="splits")
    assert len({len(batches) for batches in found}) == 1
    if even != "drop":
        assert own(found) == list(range(11, 28))


@pytest.mark.parametrize("even", ["balance", "drop", "pad"])
def test_equal_steps_require_counted_rows(table: Path, even: Any) -> None:
    with pytest.raises(ConfigError, match=f"even_ranks='{even}' needs the number of rows.*count_filtered=True"):
        make(table, even_ranks=even, filters=pc.field("k") < 5, count_filtered=False)


class ThreeArguments:
    """A V1 strategy."""

    def generate(self, files: Any, num_workers: int, epoch: int) -> list[Shard]:
        return [Shard(worker, [Split(file) for file in files[worker::num_workers]]) for worker in range(num_workers)]


def test_a_strategy_without_ranks_warns_that_every_rank_reads_all(table: Path) -> None:
    with pytest.warns(UserWarning, match=r"ThreeArguments\.generate.* does not take ranks.*each of 2 ranks") as caught:
        loader = make(table, split_strategy=ThreeArguments(), num_ranks=2, rank=1)
    assert [entry.filename for entry in caught] == [__file__]
    assert own([[as_values(batch) for batch in loader]]) == list(range(28))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(table, split_strategy=ThreeArguments())


@pytest.mark.parametrize("strategy", [ThreeArguments(), RoundRobinStrategy(), "round_robin"])
@pytest.mark.parametrize("even", ["balance", "drop", "pad"])
def test_a_generator_owns_the_assignment_and_refuses_even_ranks(table: Path, strategy: Any, even: Any) -> None:
    with pytest.raises(ConfigError, match=f"even_ranks='{even}' needs a strategy that cuts"):
        make(table, split_strategy=strategy, even_ranks=even, num_ranks=2, rank=0)


def test_a_shuffle_that_a_generator_ignores_is_reported(table: Path) -> None:
    with pytest.warns(UserWarning, match="shuffle='splits' does nothing") as caught:
        make(table, split_strategy=ThreeArguments(), shuffle="splits")
    assert [entry.filename for entry in caught] == [__file__]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("worker_type", ["thread", "process"])
@daily(2)
def test_a_generator_with_ranks_delivers_every_row_once(table: Path, shuffle: bool, worker_type: str) -> None:
    options: dict[str, Any] = {
        "split_strategy": "round_robin",
        "shuffle": shuffle,
        "batch_size": 3,
        "worker_type": worker_type,
    }
    found = deliver_all(table, 3, **options)
    assert own(found) == list(range(28))
    assert all(len(batch.rows) == 3 for batches in found for batch in batches[:-1])
    epochs = [[row for batch in deliver(table, epoch=epoch, **options) for row in batch.rows] for epoch in (0, 1, 2)]
    assert (len({tuple(rows) for rows in epochs}) > 1) == shuffle


class Forgetful(ThreeArguments):
    """Leaves the last file out."""

    def generate(self, files: Any, num_workers: int, epoch: int) -> list[Shard]:
        return super().generate(files[:-1], num_workers, epoch)


def test_a_generator_that_leaves_rows_out_is_refused(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"Forgetful must cover each row once, but leaves out rows .*006\.parquet"):
        make(table, split_strategy=Forgetful())


def test_a_cutter_that_returns_rows_twice_is_refused(table: Path) -> None:
    with pytest.raises(ConfigError, match="must cover each row once, but holds more than once"):
        make(table, split_strategy=lambda files: [Split(files[0]), *map(Split, files)])


@pytest.mark.parametrize("name", ["target_size", "size_balanced", "row_balanced"])
def test_strategies_are_found_by_name(table: Path, name: str) -> None:
    loader = make(table, split_strategy=name, split_size=2)
    kind = type(loader.dataset.job.strategy.target).__name__.lower()
    assert kind.startswith(name.replace("_", ""))
    assert own([[as_values(batch) for batch in loader]]) == list(range(28))


def test_a_name_that_is_not_installed_is_refused_with_the_nearest(table: Path) -> None:
    with pytest.raises(ConfigError, match="'row_balance'; did you mean row_balanced"):
        make(table, split_strategy="row_balance")


def test_a_size_of_splits_is_in_rows_or_as_text_in_bytes(tmp_path: Path) -> None:
    write_table(tmp_path, [[5, 5, 5, 5]])
    splits = [
        make(tmp_path, **options).dataset.explain().splits
        for options in (
            {},
            {"split_size": "1"},
            {"split_size": 10},
            {"split_size": 1},
            {"split_size": "1GiB"},
        )
    ]
    assert splits == [1, 4, 2, 4, 1]


def test_row_balanced_splits_cut_inside_row_groups(tmp_path: Path) -> None:
    write_table(tmp_path, [[100]])
    loader = make(tmp_path, split_strategy=RowBalancedStrategy(target_rows=7), shuffle="splits")
    assert loader.dataset.explain().splits == 15
    assert own([[as_values(batch) for batch in loader]]) == list(range(100))
