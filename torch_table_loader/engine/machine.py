"""What the process may use of this machine: how many threads or processes serve the lanes."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the CPUs that this process may use: its affinity, less where a cgroup quota allows fewer.

    Args:
        cgroup: where the cgroup file system is mounted.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cpus(cgroup)
    return max(1, cpus if quota is None else min(cpus, quota))


def threads_for(lanes: int, cpus: int, ranks_on_node: int) -> int:
    """Fit the number of threads or processes of one rank to its share of the CPUs.

    Args:
        lanes: lanes of the rank.
        cpus: CPUs of the node.
        ranks_on_node: ranks that share them.

    >>> threads_for(lanes=8, cpus=16, ranks_on_node=4), threads_for(2, 64, 1), threads_for(4, 2, 8)
    (4, 2, 1)
    """
    return max(1, min(lanes, cpus // max(1, ranks_on_node)))


def ranks_on_this_node() -> int:
    """Read how many ranks a launcher started here: torchrun's, Horovod's or MPI's word; 1 without one."""
    for name in ("LOCAL_WORLD_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return 1


def _cgroup_cpus(root: Path) -> int | None:
    """Read the quota of cgroup v2 (cpu.max) or v1 (cpu.cfs_quota_us), rounded up."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return max(1, -(-int(quota) // int(period)))
