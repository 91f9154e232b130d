"""The machine's resources: CPUs by affinity and cgroup quota, and the ranks that share them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_table_loader.engine.machine import place_on_this_node, ranks_on_this_node, threads_for, usable_cpus


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def v2(root: Path, quotas: dict[str, str], own: str = "") -> Path:
    """Fake a machine with cgroup v2, and the `cpu.max` of some cgroups."""
    write(root, "proc/self/cgroup", f"0::/{own}\n")
    write(root, "proc/self/mountinfo", f"{V2}\n")
    for folder, text in quotas.items():
        write(root, f"sys/fs/cgroup/{folder}/cpu.max", text)
    return root


def v1(root: Path, quotas: dict[str, str], own: str = "") -> Path:
    """Fake a machine with cgroup v1, and the quotas of some cgroups for a period of 100 ms."""
    write(root, "proc/self/cgroup", f"5:memory:/elsewhere\n4:cpu,cpuacct:/{own}\n")
    write(root, "proc/self/mountinfo", f"{V1}\n")
    for folder, quota in quotas.items():
        write(root, f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_quota_us", quota)
        write(root, f"sys/fs/cgroup/cpu,cpuacct/{folder}/cpu.cfs_period_us", "100000\n")
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
def test_a_quota_of_cgroup_v2_is_respected(tmp_path: Path, text: str, cpus: int) -> None:
    assert usable_cpus(v2(tmp_path, {"": text})) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("300000\n", 3), ("250000\n", 3), ("-1\n", 8), ("1000\n", 1)])
def test_a_quota_of_cgroup_v1_is_respected(tmp_path: Path, quota: str, cpus: int) -> None:
    assert usable_cpus(v1(tmp_path, {"": quota})) == cpus


def test_the_tightest_of_nested_cgroups_counts(tmp_path: Path) -> None:
    quotas = {"pods": "600000 100000", "pods/7": "max 100000", "pods/7/box": "700000 100000", "pods/8": "100000 100000"}
    assert usable_cpus(v2(tmp_path / "2", quotas, own="pods/7/box")) == 6
    assert usable_cpus(v2(tmp_path / "3", quotas | {"pods/7": "250000 100000"}, own="pods/7/box")) == 3
    assert usable_cpus(v1(tmp_path / "1", {"": "-1", "pods": "400000", "pods/7": "-1"}, own="pods/7")) == 4


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
def test_the_launcher_gives_the_number_of_ranks_on_the_node(
    name: str, value: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    assert ranks_on_this_node() == ranks


@pytest.mark.parametrize("name", ["LOCAL", "HOROVOD_LOCAL", "OMPI_COMM_WORLD_LOCAL"])
@pytest.mark.parametrize(("value", "place"), [("3", (3, 4)), ("4", (None, 4)), ("", (None, 4)), (None, (None, 4))])
def test_the_launcher_gives_the_number_of_a_rank_on_the_node(
    name: str, value: str | None, place: tuple[int | None, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("LOCAL", "HOROVOD_LOCAL", "OMPI_COMM_WORLD_LOCAL"):
        monkeypatch.delenv(f"{each}_RANK", raising=False)
        for size in ("WORLD_SIZE", "SIZE"):
            monkeypatch.delenv(f"{each}_{size}", raising=False)
    assert place_on_this_node() == (0, 1)
    monkeypatch.setenv(f"{name}_{'WORLD_SIZE' if name == 'LOCAL' else 'SIZE'}", "4")
    if value is not None:
        monkeypatch.setenv(f"{name}_RANK", value)
    assert place_on_this_node() == place


@pytest.mark.parametrize(
    ("lanes", "cpus", "ranks", "servers"),
    [(4, 64, 1, 4), (4, 64, 8, 4), (4, 8, 8, 1), (8, 16, 4, 4), (1, 64, 1, 1), (4, 1, 8, 1), (4, 3, 2, 1)],
)
def test_ranks_share_the_cpus_of_their_node(lanes: int, cpus: int, ranks: int, servers: int) -> None:
    assert threads_for(lanes, cpus, ranks) == servers
