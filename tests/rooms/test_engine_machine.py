"""What the machine lends: CPUs by affinity and cgroup quota, and the ranks that share them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_table_loader.engine.machine import ranks_on_this_node, threads_for, usable_cpus


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


def v2(root: Path, text: str) -> Path:
    (root / "cpu.max").write_text(text)
    return root


def v1(root: Path, quota: str, period: str) -> Path:
    (root / "cpu").mkdir()
    (root / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (root / "cpu" / "cpu.cfs_period_us").write_text(period)
    return root


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("max 100000\n", 8),
        ("", 8),
    ],
)
def test_a_quota_of_cgroup_v2_is_kept(tmp_path: Path, text: str, cpus: int) -> None:
    assert usable_cpus(v2(tmp_path, text)) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("300000\n", 3), ("250000\n", 3), ("-1\n", 8), ("1000\n", 1)])
def test_a_quota_of_cgroup_v1_is_kept(tmp_path: Path, quota: str, cpus: int) -> None:
    assert usable_cpus(v1(tmp_path, quota, "100000\n")) == cpus


def test_without_cgroups_affinity_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cpus(tmp_path / "none") == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert usable_cpus(tmp_path / "none") == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cpus(tmp_path / "none") == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(tmp_path / "none") == 1


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"])
@pytest.mark.parametrize(("value", "ranks"), [("4", 4), ("0", 1), ("", 1), ("four", 1)])
def test_the_launcher_says_how_many_ranks_share_the_node(
    name: str, value: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    assert ranks_on_this_node() == ranks


@pytest.mark.parametrize(
    ("lanes", "cpus", "ranks", "servers"),
    [(4, 64, 1, 4), (4, 64, 8, 4), (4, 8, 8, 1), (8, 16, 4, 4), (1, 64, 1, 1), (4, 1, 8, 1), (4, 3, 2, 1)],
)
def test_ranks_share_the_cpus_of_their_node(lanes: int, cpus: int, ranks: int, servers: int) -> None:
    assert threads_for(lanes, cpus, ranks) == servers
