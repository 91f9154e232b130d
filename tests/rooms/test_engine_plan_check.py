"""Ranks compare what they plan and what they leave out, over the store of their process group."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from torch_table_loader import StructuredDataset, TableError, TableLoader
from torch_table_loader.testing import small_sizes

Made = tuple[TableLoader[StructuredDataset], StructuredDataset]


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Made]:
    """Two ranks on threads of this process: construct the loader of one of them."""
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "t.parquet")
    shared = torch._C._distributed_c10d.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: shared)
    here = threading.local()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: here.rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr("torch_table_loader.engine.plan_check._constructed", itertools.repeat(7))

    def make(rank: int) -> Made:
        here.rank = rank
        return StructuredDataset.create_dataloader(
            str(tmp_path), shuffle="rows", num_ranks=2, rank=rank, batch_size=10, row_id=True
        )

    return make


def test_ranks_with_different_exclusions_are_warned_when_the_epoch_begins(two_ranks: Callable[[int], Made]) -> None:
    def run(rank: int, epoch: int, excluded: list[int]) -> int:
        loader, dataset = made[rank]
        dataset.exclude(excluded)
        loader.set_epoch(epoch)
        return len(list(loader))

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(two_ranks, range(2)))
        assert list(pool.map(run, range(2), [0, 0], [[], []])) == [5, 5]
        assert list(pool.map(run, range(2), [1, 1], [[3, 4], [3, 4]])) == [5, 5]
        differing = [pool.submit(run, rank, 2, excluded) for rank, excluded in enumerate([[5, 6], [5]])]
        for one in differing:
            with pytest.raises(TableError, match=r"leaves other rows out of epoch 2 than the rank that began it first"):
                one.result()


def test_a_rank_does_not_wait_for_ever_in_the_last_millisecond(
    two_ranks: Callable[[int], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of torch counts whole milliseconds, and waits without a limit for none."""

    class InMilliseconds(dist.PrefixStore):  # type: ignore[name-defined,misc]
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            assert timeout >= timedelta(milliseconds=1)
            super().wait(keys, timeout)

    monkeypatch.setattr(dist, "PrefixStore", InMilliseconds)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(two_ranks, range(2)))
    loader, dataset = made[0]
    dataset.exclude([3])
    with small_sizes(exclusions_s=0.001):
        assert len(list(loader)) == 5


def test_ranks_that_agree_in_the_moment_in_which_a_look_ends_agree(
    two_ranks: Callable[[int], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank looks for failures of others between two waits; a key that is set in between is no failure."""

    class EndsTooEarly(dist.PrefixStore):  # type: ignore[name-defined,misc]
        """Each first wait for a key gives up just before the key is set."""

        def __init__(self, name: str, base: Any) -> None:
            super().__init__(name, base)
            self._gave_up: set[str] = set()

        def wait(self, keys: list[str], timeout: timedelta) -> None:
            super().wait(keys, timedelta(minutes=1))
            if not self._gave_up.issuperset(keys):
                self._gave_up.update(keys)
                raise RuntimeError("wait timeout")

    monkeypatch.setattr(dist, "PrefixStore", EndsTooEarly)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(two_ranks, range(2)))
        assert [len(loader) for loader, _ in made] == [5, 5]


def test_a_rank_of_a_part_for_which_another_agreed_reads_what_was_planned_late(
    two_ranks: Callable[[int], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of one tensor-parallel group read one part: all may have agreed before the last of them looks."""

    class LooksTooEarly(dist.PrefixStore):  # type: ignore[name-defined,misc]
        """What rank 0 says is there just after the first look for it."""

        def __init__(self, name: str, base: Any) -> None:
            super().__init__(name, base)
            self._looked: set[str] = {"verdict"}

        def check(self, keys: list[str]) -> bool:
            if not self._looked.issuperset(keys):
                self._looked.update(keys)
                return False
            return bool(super().check(keys))

    with ThreadPoolExecutor(2) as pool:
        assert [len(loader) for loader, _ in pool.map(two_ranks, range(2))] == [5, 5]
    monkeypatch.setattr(dist, "PrefixStore", LooksTooEarly)
    assert len(two_ranks(1)[0]) == 5


def test_a_store_that_is_gone_is_an_error_at_once(
    two_ranks: Callable[[int], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(dist.PrefixStore):  # type: ignore[name-defined,misc]
        def wait(self, keys: list[str], timeout: timedelta) -> None:
            raise RuntimeError("connection reset")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

    monkeypatch.setattr(dist, "PrefixStore", Gone)
    with pytest.raises(RuntimeError, match="connection reset"):
        two_ranks(0)
