"""The parts of a dataset count together: one reading of the table counts them all, each as it would count alone."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import full_pack
from tests.torch.modes import LAKE, ROWS, SPLITS, Mode
from torch_table_loader import DeltaDataset, IcebergDataset, StructuredDataset, part_of
from torch_table_loader.planning.cutting import RowBalancedStrategy
from torch_table_loader.read.file_walk import FileWalk, Part, Run

SHARES: dict[str, dict[Any, float]] = {
    "two": {"train": 0.8, "val": 0.2},
    "three": {0: 0.5, 1: 0.3, 2: 0.2},
    "with nothing": {"none": 0, "train": 0.7, "no": 0, "val": 0.3},
}
GROUPS = [[9, 4, 11], [1], [17, 5, 30], [13]]
SOME = pc.field("k") < 7


class Reads:
    """Which rows of which files were read, how often, and in which columns."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, int]] = Counter()
        self.columns: set[str] = set()

    def note(self, walk: FileWalk, runs: Iterable[Run]) -> None:
        file = walk._plan.file.path
        self.rows.update((file, row) for run in runs for piece in run.pieces for row in range(*piece[:2]))
        self.columns |= set(walk._plan.conformer.reads)

    def forget(self) -> None:
        self.rows.clear()
        self.columns.clear()

    @property
    def most(self) -> int:
        """How often the row was read that was read most often."""
        return max(self.rows.values(), default=0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, parts = Reads(), FileWalk.parts

    def noting(self: FileWalk, runs: Sequence[Run]) -> Iterator[Part]:
        found.note(self, runs)
        return parts(self, runs)

    monkeypatch.setattr(FileWalk, "parts", noting)
    return found


SCHEMA = pa.schema({"x": pa.int64(), "k": pa.int64(), "s": pa.string(), "tokens": pa.list_(pa.int32())})


def write(root: Path) -> Path:
    """Write files whose `x` counts rows, with a list of tokens in each row."""
    root.mkdir(exist_ok=True)
    start = 0
    for number, sizes in enumerate(GROUPS):
        with pq.ParquetWriter(root / f"{number}.parquet", SCHEMA) as writer:
            for size in sizes:
                writer.write_table(_table(start, size))
                start += size
    return root


def _table(start: int, size: int) -> pa.Table:
    rows = [
        {"x": row, "k": row % 10, "s": None if row % 4 == 0 else f"s{row}", "tokens": [row] * (row % 7)}
        for row in range(start, start + size)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def make(root: Any, kind: Any = StructuredDataset, **options: Any) -> Any:
    with meant_warnings():
        return kind(root, **{"batch_size": 4, "num_workers": 2, "check_plan": False, **options})


def parts_of(dataset: Any, shares: dict[Any, float], by: Any = "x") -> dict[Any, Any]:
    with meant_warnings():
        parts: dict[Any, Any] = dataset.split(shares, by=by)
        return parts


def counts(dataset: Any) -> Any:
    """Return all that was counted for a dataset: by segment for a stream, by file for rows."""
    if dataset.options.shuffle == "rows":
        return dataset.job.items.live_starts.tolist()
    planner = dataset.job.planner
    whole = planner.whole()
    return whole.live.tolist(), planner.made_of(whole, 0), dataset.explain().live_rows


def joined(filters: Any, by: Any, shares: dict[Any, float], part: Any) -> Any:
    chosen = part_of(by, shares, part)
    return chosen if filters is None else filters & chosen


def check(reads: Reads, dataset: Any, alone: Any, shares: dict[Any, float], filters: Any, by: Any = "x") -> None:
    """Check that parts read nothing twice to be counted, and have the counts that each has alone."""
    reads.forget()
    parts = parts_of(dataset, shares, by)
    found = {part: counts(each) for part, each in parts.items()}
    assert reads.most <= 1
    read = reads.rows.copy(), set(reads.columns)
    for part, share in shares.items():
        reads.forget()
        same = alone(joined(filters, by, shares, part))
        assert len(same) == len(parts[part])
        if share:  # else planning may have left out all files
            assert counts(same) == found[part]
            assert (reads.rows, reads.columns) == read, "as much is read for all as for one"


@pytest.mark.parametrize("filters", [None, SOME], ids=["whole", "filtered"])
@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("mode", [SPLITS, ROWS, LAKE], ids=str, scope="session")
@daily(3)
def test_all_parts_cost_one_counting_read(mode: Mode, tables: Path, shares: str, filters: Any, reads: Reads) -> None:
    def opened(chosen: Any) -> Any:
        return mode.open(tables, filters=chosen)

    check(reads, opened(filters), opened, SHARES[shares], filters)


OPTIONS: dict[str, dict[str, Any]] = {
    "cut inside row groups": {"split_strategy": RowBalancedStrategy(7)},
    "one split a row group": {"split_size": 1},
    "packed": {"pack": full_pack(seq_len=8, tokens="tokens"), "columns": ["x"]},
    "whole documents": {"pack": full_pack(seq_len=8, tokens="tokens", strategy="pad"), "columns": None},
    "best fit": {"pack": full_pack(seq_len=8, tokens="tokens", strategy="best_fit", block_docs=5), "columns": None},
    "even": {"num_ranks": 3, "rank": 1, "even_ranks": "balance", "split_size": 1},
}


@pytest.mark.parametrize("filters", [None, SOME], ids=["whole", "filtered"])
@pytest.mark.parametrize("by", ["x", "s", ("x", "s")], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@daily(5)
def test_parts_of_any_form_cost_one_counting_read(
    tmp_path: Path, options: str, by: Any, filters: Any, reads: Reads
) -> None:
    root, by = write(tmp_path / "t"), list(by) if isinstance(by, tuple) else by

    def opened(chosen: Any) -> Any:
        return make(str(root), filters=chosen, shuffle="splits", **OPTIONS[options])

    check(reads, opened(filters), opened, SHARES["two"], filters, by)


@pytest.mark.parametrize("form", ["position", "equality", "lazy"])
@daily(1)
def test_deletes_are_counted_in_each_part(tmp_path: Path, form: str, reads: Reads) -> None:
    lake = IcebergWriter(tmp_path / "t")
    paths = [lake.append(some(start, start + 20), group=7) for start in (0, 20, 40)]
    lake.commit()
    if form == "position":
        lake.delete_rows({paths[0]: range(3, 9), paths[2]: [0]})
    else:
        lake.delete_keys([1], [{"x": 5}, {"x": 44}])
    lake.commit()
    more: dict[str, Any] = {"footers": "lazy"} if form == "lazy" else {"split_deletes": True}

    def opened(chosen: Any) -> Any:
        return make(None, IcebergDataset, metadata_location=lake.metadata, filters=chosen, split_size=1, **more)

    for filters in (None, pc.field("k") > 1):
        check(reads, opened(filters), opened, SHARES["three"], filters)


def test_a_rank_counts_its_own_splits_for_all_parts(tmp_path: Path, reads: Reads) -> None:
    dataset = make(str(write(tmp_path / "t")), num_ranks=2, rank=0, even_ranks=False, shuffle="splits", split_size=1)
    parts = parts_of(dataset, SHARES["two"])
    assert 0 < len(reads.rows) < 90, "the splits of the first epoch"
    with meant_warnings():
        for epoch in range(4):
            for part in parts.values():
                part.set_epoch(epoch)
                assert len(part) >= 0
    assert reads.most == 1
    assert len(reads.rows) == 90


def test_a_part_that_is_used_alone_reads_nothing_for_others(tmp_path: Path, reads: Reads) -> None:
    """Also where nothing was counted when the table was divided, and where a part gets other options."""
    dataset = make(str(write(tmp_path / "t")), count_filtered=False, filters=SOME)
    parts = parts_of(dataset, SHARES["three"], "s")
    assert not reads.rows
    with meant_warnings():
        one = parts[1].with_options(count_filtered=True)
        rows, columns = dict(reads.rows), set(reads.columns)
        assert columns == {"k", "s"}
        assert set(rows.values()) == {1}
        other = parts[2].with_options(count_filtered=True, shuffle="splits", split_size=1)
        assert reads.rows == rows, "it was counted with the other"
    for part, each in ((1, one), (2, other)):
        chosen = joined(SOME, "s", SHARES["three"], part)
        assert counts(each)[2] == make(str(tmp_path / "t"), filters=chosen).explain().live_rows
    forms = {"split_strategy": RowBalancedStrategy(7), "count_filtered": True}
    reads.forget()
    with meant_warnings():
        cut = [parts[part].with_options(**forms) for part in parts]
    assert reads.most == 1, "parts of row groups are counted together, too"
    assert [counts(each)[2] for each in cut] == [
        counts(parts[part].with_options(count_filtered=True))[2] for part in parts
    ]


def test_another_filter_is_counted_for_itself(tmp_path: Path, reads: Reads) -> None:
    root = write(tmp_path / "t")
    parts = parts_of(make(str(root)), SHARES["two"])
    for filters in (SOME, part_of("x", SHARES["two"], "val") & SOME, part_of("s", SHARES["two"], "val")):
        with meant_warnings():
            other = parts["val"].with_options(filters=filters)
        assert counts(other) == counts(make(str(root), filters=filters))
    inner = parts_of(parts["train"], {"a": 0.5, "b": 0.5}, "s")
    train = part_of("x", SHARES["two"], "train")
    for part in inner:
        filters = joined(train, "s", {"a": 0.5, "b": 0.5}, part)
        assert counts(inner[part]) == counts(make(str(root), filters=filters))


def test_parts_by_partition_columns_read_no_rows(tmp_path: Path, reads: Reads) -> None:
    for day in range(6):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(_table(20 * day, 10 + day), tmp_path / f"day={day}" / "0.parquet", row_group_size=4)
    shares = {"a": 0.5, "b": 0.5}
    for filters, most in ((None, 0), (SOME, 1)):
        dataset = make(str(tmp_path), filters=filters)
        reads.forget()
        parts = parts_of(dataset, shares, "day")
        assert reads.most == most
        for part in parts:
            alone = make(str(tmp_path), filters=joined(filters, "day", shares, part))
            assert counts(alone) == counts(parts[part])
        assert (
            sum(counts(each)[2] for each in parts.values()) == make(str(tmp_path), filters=filters).explain().live_rows
        )


def test_a_plan_cache_has_the_counts_of_all_parts(tmp_path: Path, reads: Reads) -> None:
    root, cache = write(tmp_path / "t"), str(tmp_path / "cache")
    forms: list[dict[str, Any]] = [{}, {"pack": full_pack(seq_len=8, tokens="tokens", strategy="pad")}]
    for form in forms:
        dataset = make(str(root), plan_cache=cache, **form)
        reads.forget()
        first = parts_of(dataset, SHARES["two"])
        assert reads.most == 1
        reads.forget()
        again = parts_of(make(str(root), plan_cache=cache, **form), SHARES["two"])
        alone = make(str(root), plan_cache=cache, filters=part_of("x", SHARES["two"], "val"), **form)
        assert not reads.rows
        assert counts(alone) == counts(again["val"]) == counts(first["val"])


def test_delta_tables_count_their_parts_together(tmp_path: Path, reads: Reads) -> None:
    for start in (0, 50):
        deltalake.write_deltalake(str(tmp_path / "t"), _table(start, 50), mode="append")

    def opened(chosen: Any) -> Any:
        return make(str(tmp_path / "t"), DeltaDataset, filters=chosen)

    check(reads, opened(None), opened, SHARES["three"], None)


def test_a_copy_in_another_process_counts_for_itself(tmp_path: Path, reads: Reads) -> None:
    root = write(tmp_path / "t")
    parts = parts_of(
        make(str(root), num_ranks=2, rank=0, even_ranks=False, shuffle="splits", split_size=1), SHARES["two"]
    )
    copies = {name: pickle.loads(pickle.dumps(part)) for name, part in parts.items()}  # noqa: S301 ours
    reads.forget()
    found = {name: counts(each) for name, each in copies.items()}
    assert reads.most == 2, "each for itself"
    assert found == {name: counts(each) for name, each in parts.items()}
    filtered = make(str(root), filters=SOME)
    assert counts(pickle.loads(pickle.dumps(filtered))) == counts(filtered)  # noqa: S301 ours
