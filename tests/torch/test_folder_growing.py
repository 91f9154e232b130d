"""A job goes on with a folder that grew: what was left of the epoch and what came since, each row once."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.generators import HalvesV2
from tests.launchers.jobs import of_a_running_rank, topologies
from tests.states import State, is_ended, samples_of
from tests.tables.plain import SCHEMA, Groups, as_values, key, meant_warnings, rows
from torch_table_loader import (
    ConfigError,
    MixedDataset,
    Pack,
    ResumeError,
    RoundRobinStrategy,
    StructuredDataset,
    TableLoader,
)

FILTER = pc.field("k") < 4

CUTTERS: list[dict[str, Any]] = [
    {"shuffle": "splits"},
    {"split_size": 5, "shuffle": "splits"},
    {"split_size": 5},
    {"split_strategy": "row_balanced", "split_size": 4, "shuffle": "splits"},
]
GENERATORS: list[dict[str, Any]] = [
    {"split_strategy": HalvesV2()},
    {"split_strategy": RoundRobinStrategy(shuffle=True)},
]

growths = st.lists(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3), min_size=2, max_size=4)
"""For each version of a table the row groups of the files that it adds."""


class Folder:
    """A folder that grows; the files of each version have names before, between and after those of older ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = self.versions = self.files = 0

    def grow(self, groups: Groups) -> int:
        """Write a file for each list of row groups, and say how many rows there are now."""
        self.versions += 1
        for number, sizes in enumerate(groups):
            path = self.root / f"{number * 7 % 3}-{self.versions % 3}-{self.versions}-{number}.parquet"
            with pq.ParquetWriter(path, SCHEMA) as writer:
                for size in sizes:
                    writer.write_table(rows(self.rows, self.rows + size))
                    self.rows += size

            self.files += 1
            os.utime(path, ns=(self.files * 10**9, self.files * 10**9))
        return self.rows


def make(root: Path, **options: Any) -> TableLoader:
    """Make a loader that goes on with what is new."""
    with meant_warnings():
        chosen: dict[str, Any] = {"check_plan": False, "schema": SCHEMA, "on_growth": "continue"} | options
        return StructuredDataset.create_dataloader(str(root), "parquet", **chosen)[0]


def own_rows(batches: Any) -> list[int]:
    """Give `x` of every row, padding left out."""
    values = [as_values(batch) for batch in batches]
    return [
        row
        for each in values
        for row, pads in zip(each.rows, each.padding or [False] * len(each.rows), strict=True)
        if not pads
    ]


def run(
    root: Path, state: State | None, steps: int | None, epoch: int, **options: Any
) -> tuple[list[list[int]], list[State], list[int]]:
    """Let every rank go on from a state for some steps (None: to the end); gives rows, states and steps by rank."""
    seen, states, lengths = [], [], []
    for rank in range(options["num_ranks"]):
        loader = make(root, rank=rank, **options)
        loader.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        lengths.append(loader.remaining)
        batches = list(islice(loader, steps))
        assert steps is not None or len(batches) == lengths[-1]
        seen.append(own_rows(batches))
        states.append(loader.state_dict())
    return seen, states, lengths


def loses_rows(topology: dict[str, Any]) -> bool:
    return bool(topology["drop_last"]) or topology["even_ranks"] == "drop"


@st.composite
def lives(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Groups, dict[str, Any], int]]]:
    """Draw what the parts of an epoch share, and of each what the table gets before it, its topology and its steps."""
    generated = draw(st.booleans())
    shared = dict(draw(st.sampled_from(GENERATORS if generated else CUTTERS)))
    if draw(st.booleans()):
        shared["filters"] = FILTER
    kept = st.sampled_from([False, False, True])
    parts: list[tuple[Groups, dict[str, Any], int]] = []
    for groups in draw(growths):
        same = bool(parts) and draw(kept)
        topology = parts[-1][1] if same else draw(topologies(generated=generated))
        parts.append((groups, topology, draw(st.integers(0, 6))))
    return shared, parts


@pytest.mark.filterwarnings("ignore:drop_last=True leaves rank . no step")
@settings(max_examples=examples(4), deadline=None)
@given(life=lives(), epoch=st.integers(0, 2))
def test_every_row_of_a_folder_that_grows_comes_once(
    life: tuple[dict[str, Any], list[tuple[Groups, dict[str, Any], int]]], epoch: int
) -> None:
    shared, parts = life
    state: State | None = None
    seen: list[int] = []
    dropped = loses_rows(parts[-1][1])
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(Path(name))
        folder.grow([[3]])
        for number, (groups, topology, steps) in enumerate(parts):
            total = folder.grow(groups)
            last = number == len(parts) - 1
            delivered, states, lengths = run(folder.root, state, None if last else steps, epoch, **shared, **topology)
            seen += sum(delivered, [])
            if topology["even_ranks"] is not None:
                assert len(set(lengths)) == 1
            state = of_a_running_rank(states)
            if is_ended(state):
                return  # all ranks have ended unequally: of those states only the longest loads
            dropped |= loses_rows(topology) and any(
                map(is_ended, states)
            )  # the rest of a rank that ended before others
    expected = [row for row in range(total) if "filters" not in shared or key(row) < 4]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(expected)
    if not dropped:
        assert sorted(seen) == expected


def take(loader: TableLoader, steps: int | None = None) -> list[int]:
    return own_rows(islice(loader, steps))


def test_other_options_and_tables_are_refused_over_a_table_that_grew(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.grow([[5, 5]])
    loader = make(tmp_path, batch_size=3)
    take(loader, 1)
    state = loader.state_dict()
    folder.grow([[5]])
    for options, message in (
        ({"split_size": 2}, "split_size was .134217728 B. and is 2"),
        ({"columns": ["x"]}, "columns was"),
        ({"on_growth": None}, 'the table grew since.*or pass on_growth="continue"'),
    ):
        with pytest.raises(ResumeError, match=message):
            make(tmp_path, **options).load_state_dict(state)
    for path in tmp_path.iterdir():
        shutil.copyfile(path, tmp_path / f"copy-{path.name}")
        path.unlink()
    with pytest.raises(ResumeError, match="another table"):
        make(tmp_path).load_state_dict(state)


def test_rows_that_nobody_counted_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.grow([[5, 5]])
    loader = make(tmp_path, batch_size=3, filters=FILTER, count_filtered=False)
    take(loader, 1)
    folder.grow([[5]])
    with pytest.raises(ResumeError, match="count_filtered=False, so it is unknown"):
        make(tmp_path, batch_size=3, filters=FILTER, count_filtered=False).load_state_dict(loader.state_dict())


def test_a_dataloader_of_ones_own_says_where_to_go_on(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.grow([[5, 5]])
    loader = make(tmp_path, batch_size=3)
    take(loader, 1)
    folder.grow([[5]])
    grown = make(tmp_path, batch_size=3)
    grown.load_state_dict(loader.state_dict())
    take(grown, 1)
    with meant_warnings():
        alone = StructuredDataset(
            str(tmp_path), "parquet", check_plan=False, schema=SCHEMA, batch_size=3, num_workers=4
        )
    with pytest.raises(ResumeError, match=r"load it into a loader made by create_dataloader\(\.\.\.\)"):
        alone._position.load(grown.state_dict(), 4)


def test_the_option_is_checked(tmp_path: Path) -> None:
    Folder(tmp_path).grow([[5]])
    with pytest.raises(ConfigError, match="on_growth must be one of None, 'continue', got 'go on'"):
        make(tmp_path, on_growth="go on")
    with pytest.raises(ConfigError, match="on_growth and pack go together without shuffle"):
        make(tmp_path, shuffle="rows", pack=Pack(seq_len=4))
    with meant_warnings():
        options: dict[str, Any] = {"schema": SCHEMA, "check_plan": False, "shuffle": "rows", "on_growth": "continue"}
        source = StructuredDataset(str(tmp_path), "parquet", **options)
    with pytest.raises(ConfigError, match="source 'a' has on_growth"):
        MixedDataset({"a": source}, weights={"a": 1})


@settings(max_examples=examples(3), deadline=None)
@given(
    growths=growths,
    filtered=st.booleans(),
    even_ranks=st.sampled_from([None, "pad"]),
    worlds=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 4)), min_size=4, max_size=4),
)
def test_every_row_comes_once_where_rows_are_shuffled_one_by_one(
    growths: list[Groups], filtered: bool, even_ranks: Any, worlds: list[tuple[int, int, int]]
) -> None:
    options: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "even_ranks": even_ranks}
    options |= {"filters": FILTER} if filtered else {}
    state: State | None = None
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(Path(name))
        folder.grow([[13]])
        for number, groups in enumerate(growths):
            total = folder.grow(groups)
            ranks, batch_size, steps = worlds[number]
            last, states = number == len(growths) - 1, []
            for rank in range(ranks):
                loader = make(folder.root, num_ranks=ranks, rank=rank, batch_size=batch_size, **options)
                loader.set_epoch(1)
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                length = loader.remaining
                batches = list(islice(loader, None if last else steps))
                assert not last or len(batches) == length
                seen += own_rows(batches)
                states.append(loader.state_dict())
            running = [each for each in states if not is_ended(each)]
            assert all(each == running[0] for each in running)
            state = running[0] if running else max(states, key=samples_of)
    assert sorted(seen) == [row for row in range(total) if not filtered or key(row) < 4]


def test_rows_that_were_excluded_stay_out_when_their_ids_move(tmp_path: Path) -> None:
    first = tmp_path / "b.parquet"
    pq.write_table(rows(0, 20), first)
    os.utime(first, ns=(10**9, 10**9))
    options = {"shuffle": "rows", "row_store": "memory", "batch_size": 4, "row_id": True}
    loader = make(tmp_path, **options)
    assert isinstance(loader.dataset, StructuredDataset)
    loader.dataset.exclude([3, 4])
    batches = iter(loader)
    seen = own_rows(islice(batches, 2))
    loader.dataset.exclude([5])
    state = loader.state_dict()
    pq.write_table(rows(20, 27), tmp_path / "a.parquet")
    grown = make(tmp_path, **options)
    grown.load_state_dict(state)
    left = list(grown)
    assert sorted(seen + own_rows(left)) == [x for x in range(27) if x not in (3, 4)]
    assert all(
        x == (row - 7 if row >= 7 else row + 20)
        for batch in left
        for x, row in zip(*(batch[n].tolist() for n in ("x", "row_id")), strict=True)
    )
    grown.set_epoch(1)
    assert sorted(own_rows(grown)) == [x for x in range(27) if x not in (3, 4, 5)]
