"""A node keeps its files; its ranks share them evenly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_table_strategies import NodeLocal
from torch_table_strategies.node_local import home_nodes

from torch_table_loader import ConfigError
from torch_table_loader.extend import DataFileInfo, Shard
from torch_table_loader.testing import data_file

FILES = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=4), st.sets(st.integers(0, 3))), min_size=1, max_size=25
).map(
    lambda drawn: [data_file(f"f{at}.parquet", rows, pruned=sorted(pruned)) for at, (rows, pruned) in enumerate(drawn)]
)
NODES = st.integers(1, 4)


def rows_of(shard: Shard, *, kept: bool = True) -> list[tuple[str, int]]:
    """Name the rows of a shard that statistics keep (or rule out), in reading order."""
    rows = []
    for split in shard.splits:
        assert split.row_range is not None
        for row in range(split.row_range.offset, split.row_range.row_stop):
            start = 0
            for group in split.file.row_groups:
                if start <= row < start + group.num_rows and group.kept == kept:
                    rows.append((split.file.path, row))
                start += group.num_rows
    return rows


@settings(max_examples=60, deadline=None)
@given(files=FILES, per_node=NODES, num_ranks=st.integers(1, 9), workers=st.integers(1, 3), epoch=st.integers(0, 9))
def test_each_row_once_and_equal_shares_on_a_node(
    files: list[DataFileInfo], per_node: int, num_ranks: int, workers: int, epoch: int
) -> None:
    strategy = NodeLocal(ranks_per_node=per_node)
    every: list[tuple[str, int]] = []
    by_node: dict[int, list[int]] = {}
    for rank in range(num_ranks):
        shards = strategy.generate(files, workers, epoch, num_ranks, rank)
        assert [shard.id for shard in shards] == list(range(workers))
        by_node.setdefault(rank // per_node, []).extend(len(rows_of(shard)) for shard in shards)
        every += [row for shard in shards for kept in (True, False) for row in rows_of(shard, kept=kept)]
    assert sorted(every) == sorted((file.path, row) for file in files for row in range(file.record_count or 0))
    assert all(max(counts) - min(counts) <= 1 for counts in by_node.values())


@settings(max_examples=40, deadline=None)
@given(files=FILES, per_node=NODES, num_ranks=st.integers(1, 9))
def test_a_node_keeps_its_files_over_epochs_and_workers(
    files: list[DataFileInfo], per_node: int, num_ranks: int
) -> None:
    strategy = NodeLocal(ranks_per_node=per_node)
    homes: dict[str, set[int]] = {}
    for epoch in range(4):
        for rank in range(num_ranks):
            for shard in strategy.generate(files, 1 + epoch % 2, epoch, num_ranks, rank):
                for split in shard.splits:
                    homes.setdefault(split.file.path, set()).add(rank // per_node)
    assert all(len(nodes) == 1 for nodes in homes.values())


@given(
    rows=st.lists(st.integers(0, 1000), max_size=40),
    per_node=NODES,
    num_ranks=st.integers(1, 12),
    slack=st.integers(0, 50),
)
def test_nodes_are_balanced_by_rows_as_far_as_whole_files_allow(
    rows: list[int], per_node: int, num_ranks: int, slack: int
) -> None:
    sizes = tuple((f"f{at}", count) for at, count in enumerate(rows))
    homes = home_nodes(sizes, num_ranks, per_node, slack)
    for node in range(-(-num_ranks // per_node)):
        ranks = min(per_node, num_ranks - node * per_node)
        load = sum(count for count, home in zip(rows, homes, strict=True) if home == node)
        assert load <= sum(rows) * ranks * (100 + slack) / (100 * num_ranks) + max(rows, default=0) + 1


@given(count=st.integers(1, 60), nodes=st.integers(1, 8))
def test_a_new_node_takes_files_and_no_other_node_does(count: int, nodes: int) -> None:
    sizes = tuple((f"f{at}", 1) for at in range(count))
    unbounded = 100 * (nodes + 1)
    before, after = home_nodes(sizes, nodes, 1, unbounded), home_nodes(sizes, nodes + 1, 1, unbounded)
    assert all(new in (old, nodes) for old, new in zip(before, after, strict=True))


def test_epochs_differ_and_unshuffled_ones_do_not() -> None:
    files = [data_file(f"{at}.parquet", [5] * 6) for at in range(5)]
    orders = [[rows_of(s) for s in NodeLocal().generate(files, 2, epoch)] for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    plain = [[rows_of(s) for s in NodeLocal(shuffle=False).generate(files, 1, epoch)] for epoch in range(2)]
    assert plain[0] == plain[1] == [[(file.path, row) for file in files for row in range(30)]]


def test_the_order_is_frozen() -> None:
    files = [data_file(f"{at}.parquet", [1] * 4) for at in range(3)]
    (shard,) = NodeLocal(seed=3).generate(files, 1, 2)
    assert " ".join(f"{path[0]}{row}" for path, row in rows_of(shard)) == "21 10 02 23 22 01 20 03 12 11 00 13"
    assert home_nodes(tuple((f"{at}.parquet", 1) for at in range(10)), 4, 2, 50) == (1, 0, 1, 0, 1, 1, 1, 0, 1, 1)


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="ranks_per_node=0"):
        NodeLocal(ranks_per_node=0)
    with pytest.raises(ConfigError, match="slack_percent=-1"):
        NodeLocal(slack_percent=-1)
