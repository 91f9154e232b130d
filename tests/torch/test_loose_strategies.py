"""Split strategies that declare `coverage="any"`, through the whole loader: length, ranks, state and explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, Pack, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.extend import DataFileInfo, RowRange, RowSpan, Shard, SourceRow, Split
from torch_table_loader.testing import ContractError, check_split_strategy

FILES, ROWS, GROUP = 5, 20, 6


@dataclass(frozen=True)
class Oversampled:
    """The first file three times, a part of the others, which overlaps itself, and of the last file nothing."""

    coverage: ClassVar[str] = "any"

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        first, *others = files
        parts = [Split(file, RowRange(*part)) for file in others[:-1] for part in ((2, 7), (4, 9))]
        return [Split(first), *parts, Split(first), Split(first)]


@dataclass(frozen=True)
class Sampled:
    """Another half of the files in each epoch, and the first of those twice."""

    coverage: ClassVar[str] = "any"

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int, num_ranks: int, rank: int
    ) -> list[Shard]:
        half = list(files)[epoch % 2 :: 2]
        mine = [*half, *half[:1]][rank::num_ranks]
        return [Shard(worker, [Split(file) for file in mine[worker::num_workers]]) for worker in range(num_workers)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for file in range(FILES):
        rows = pa.table({"id": range(file * ROWS, (file + 1) * ROWS)})
        pq.write_table(rows, tmp_path / f"{file}.parquet", row_group_size=GROUP)
    return tmp_path


def make(path: Path, strategy: Any, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(path), "parquet", split_strategy=strategy, check_plan=False, **options
        )[0]


def jobs(path: Path, strategy: Any, ranks: int, **options: Any) -> list[TableLoader]:
    return [make(path, strategy, num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]


def taken(loaders: list[TableLoader], steps: int | None = None) -> Counter[int]:
    return Counter(row for each in loaders for batch in islice(each, steps) for row in batch["id"].tolist())


def oversampled() -> Counter[int]:
    found = Counter(dict.fromkeys(range(ROWS), 3))
    for file in range(1, FILES - 1):
        found.update(file * ROWS + row for start, length in ((2, 7), (4, 9)) for row in range(start, start + length))
    return found


FILTERS = {"none": None, "even ones": pc.bit_wise_and(pc.field("id"), pc.scalar(1)) == 0, "some": pc.field("id") >= 9}
PASSES: dict[str, Callable[[int], bool]] = {
    "none": lambda row: True,
    "even ones": lambda row: row % 2 == 0,
    "some": lambda row: row >= 9,
}


@pytest.mark.parametrize(
    "options", [{}, {"shuffle_buffer_size": 7}, {"batch_by": "file", "even_ranks": False}], ids=str
)
@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize(("ranks", "others"), [(1, 3), (3, 1)])
@daily(3)
def test_what_a_strategy_holds_comes_as_often_on_any_number_of_ranks(
    table: Path, options: dict[str, Any], kind: str, ranks: int, others: int
) -> None:
    same: dict[str, Any] = {"shuffle": "splits", "filters": FILTERS[kind], **options}
    expected = Counter({row: count for row, count in oversampled().items() if PASSES[kind](row)})
    loaders = jobs(table, Oversampled(), ranks, batch_size=4, num_workers=2, **same)
    lengths = [len(each) for each in loaders]
    assert taken(loaders) == expected
    assert [each.metrics().batches for each in loaders] == lengths
    begun = jobs(table, Oversampled(), ranks, batch_size=4, num_workers=2, **same)
    before = taken(begun, 2)
    again = jobs(table, Oversampled(), others, batch_size=5, num_workers=1, **same)
    for each in again:
        each.load_state_dict(begun[0].state_dict())
    assert before + taken(again) == expected


@pytest.mark.parametrize("kind", FILTERS)
def test_rows_of_says_which_rows_come_again(table: Path, kind: str) -> None:
    loader = make(table, Oversampled(), batch_size=4, num_workers=2, filters=FILTERS[kind])
    passing = [row for row in range(FILES * ROWS) if PASSES[kind](row)]
    for step, batch in enumerate(loader):
        told: list[int] = []
        for span in loader.rows_of(step):
            assert not isinstance(span, SourceRow)
            first = int(span.file.removesuffix(".parquet")) * ROWS
            if isinstance(span, RowSpan):
                told += range(first + span.row_start, first + span.row_stop)
            else:
                group = range(first + span.row_group * GROUP, first + min((span.row_group + 1) * GROUP, ROWS))
                told += [row for row in passing if row in group][span.first : span.last + 1]
        assert told == batch["id"].tolist()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_generator_deals_what_it_likes_in_each_epoch(table: Path, ranks: int) -> None:
    for epoch, files in ((0, [0, 2, 4, 0]), (1, [1, 3, 1])):
        loaders = jobs(table, Sampled(), ranks, batch_size=4, num_workers=2)
        for each in loaders:
            each.set_epoch(epoch)
        lengths = [len(each) for each in loaders]
        begun = taken(loaders, 1)
        state = loaders[0].state_dict()
        again = jobs(table, Sampled(), ranks, batch_size=4, num_workers=2)
        for each in again:
            each.load_state_dict(state)
        assert begun + taken(again) == Counter(file * ROWS + row for file in files for row in range(ROWS))
        assert sum(lengths) == sum(each.metrics().batches for each in again) + ranks


def test_a_generator_goes_on_in_its_own_shape_alone(table: Path) -> None:
    loader = make(table, Sampled(), batch_size=4, num_workers=2)
    next(iter(loader))
    [other, *_] = jobs(table, Sampled(), 3, batch_size=4, num_workers=2)
    with pytest.raises(
        ResumeError, match=r"only a job of the same shape can continue .*Topology\(num_ranks=1.* was saved"
    ):
        other.load_state_dict(loader.state_dict())
    assert list(loader)
    other.load_state_dict(loader.state_dict())  # no rank has a step left, so that nothing is dealt anew


def test_what_is_left_out_is_explained(table: Path) -> None:
    dataset = StructuredDataset(str(table), "parquet", split_strategy=Oversampled())
    notes = dataset.explain().notes
    assert "Oversampled declares coverage='any': 47 of 100 rows are left out, and 55 come again" in notes
    with meant_warnings():
        dataset = StructuredDataset(str(table), "parquet", split_strategy=Sampled())
    assert "Sampled declares coverage='any': an epoch has the rows that it deals for it" in dataset.explain().notes


@pytest.mark.parametrize("option", [{"on_growth": "continue"}, {"pack": Pack(seq_len=4)}], ids=str)
def test_what_needs_each_row_once_is_refused(table: Path, option: dict[str, Any]) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]] * ROWS}), table / "tokens.parq")
    with pytest.raises(ConfigError, match="needs splits that hold each row once, and Oversampled declares"):
        StructuredDataset(str(table / "*.parq"), "parquet", split_strategy=Oversampled(), **option)


class Undeclared(Oversampled):
    """Says nothing."""

    coverage: ClassVar[str] = "once"


class Forgetful(Oversampled):
    """Declares it in one process alone."""

    def __init__(self) -> None:
        object.__setattr__(self, "coverage", "any")

    coverage: ClassVar[str] = "once"

    def __reduce__(self) -> tuple[Any, ...]:
        return Undeclared, ()

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return [Split(file) for file in files]


def test_the_contract_knows_what_is_declared() -> None:
    check_split_strategy(Sampled(), other_process=False)
    check_split_strategy(Evens(), other_process=False)
    with pytest.raises(ContractError, match="must cover each row once, but leaves out"):
        check_split_strategy(Evens("once"), other_process=False)
    with pytest.raises(ContractError, match="declares coverage='any', and 'once' after pickling"):
        check_split_strategy(Forgetful(), other_process=False)


@dataclass(frozen=True)
class Evens:
    """Every other file."""

    coverage: str = "any"

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return [Split(file) for file in list(files)[1::2]]
