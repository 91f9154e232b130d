"""What the process may use of this machine: CPUs, threads, and memory within every limit that it is under."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from torch_table_loader.cancellation import Threads

if TYPE_CHECKING:
    from torch_table_loader.contracts import Storage

T = TypeVar("T")
R = TypeVar("R")

_KIB = 1024
_LOCAL_RANKS = {
    "LOCAL_WORLD_SIZE": "LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE": "HOROVOD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
}
"""What launchers say of the ranks of a node: how many there are, and which one a process is."""


def usable_cpus(root: Path = Path("/")) -> int:
    """Count the CPUs that this process may use: its affinity, or fewer if the quota of a cgroup allows fewer.

    `root` is the folder that holds `proc` and `sys`.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if (quota := _cpu_quota(root)) is not None:
        cpus = min(cpus, quota)
    return max(1, cpus)


def threads_for(lanes: int, cpus: int, ranks_on_node: int) -> int:
    """Fit the number of threads or processes of one rank to its share of the CPUs.

    >>> threads_for(lanes=8, cpus=16, ranks_on_node=4), threads_for(2, 64, 1), threads_for(4, 2, 8)
    (4, 2, 1)
    """
    return max(1, min(lanes, cpus // max(1, ranks_on_node)))


def threads_of_lanes(lanes: int) -> int:
    """Return how many threads or processes serve the lanes of a rank on this machine."""
    return threads_for(lanes, usable_cpus(), ranks_on_this_node())


def ranks_on_this_node() -> int:
    """Read how many ranks a launcher started here: torchrun's, Horovod's or MPI's word; 1 without one."""
    return place_on_this_node()[1]


def place_on_this_node() -> tuple[int | None, int]:
    """Return the number of this rank among those that a launcher started here, and how many these are.

    The number is None if the launcher says how many there are, and not which one this is.
    """
    for ranks, own in _LOCAL_RANKS.items():
        size, number = (os.environ.get(name, "") for name in (ranks, own))
        if size.isdigit() and int(size) > 0:
            return (int(number) if number.isdigit() and int(number) < int(size) else None), int(size)
    return 0, 1


@cache
def _cpu_quota(root: Path) -> int | None:
    """Return the least quota; None where there is none. It is read once a process, since that takes a millisecond."""
    return min(_cpu_quotas(root), default=None)


def _cpu_quotas(root: Path) -> Iterator[int]:
    """Yield the quota of each cgroup that limits the process, in whole CPUs; v2 and v1 have files of other names."""
    for folder in _cgroups(root, "cpu"):
        words = [word for line in _lines(folder / "cpu.max") for word in line.split()]
        quota = period = None
        if len(words) == 2:
            quota, period = map(_number, words)
        elif not words:
            quota, period = _value(folder / "cpu.cfs_quota_us"), _value(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None and quota > 0 and period > 0:
            yield -(-quota // period)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take; None if the system does not say.

    Pages that the system caches of files and has not used lately count as available.
    """
    found = [*_of_the_machine(root), *_of_the_process(root)]
    for folder in _cgroups(root, "memory"):
        found += _of_a_cgroup(folder)
    if found:
        return max(0, min(found))
    return None


def _of_the_machine(root: Path) -> Iterator[int]:
    if (kib := _fields(root / "proc/meminfo").get("MemAvailable:")) is not None:
        yield kib * _KIB


def _of_the_process(root: Path) -> Iterator[int]:
    """Yield what RLIMIT_AS and RLIMIT_DATA leave of what the process has not mapped yet."""
    used = _fields(root / "proc/self/status")
    for line in _lines(root / "proc/self/limits"):
        for name, field in (("Max address space", "VmSize:"), ("Max data size", "VmData:")):
            if line.startswith(name):
                limit = _number(line.removeprefix(name).split()[0])
                if limit is not None and field in used:
                    yield limit - used[field] * _KIB


def _of_a_cgroup(folder: Path) -> Iterator[int]:
    """Yield what a cgroup's limits leave; v2 and v1 have files of other names."""
    statistics = _fields(folder / "memory.stat")
    used = _value(folder / "memory.current", folder / "memory.usage_in_bytes")
    if used is None:
        return
    # In v1 the plain field leaves out the cgroups below, and "hierarchical" knows those above that are out of sight.
    cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    limits = [_value(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    for limit in (*limits, statistics.get("hierarchical_memory_limit")):
        if limit is not None:
            yield limit - used + min(cached, used)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of each cgroup that may limit the process: its own, and those above up to the mount."""
    own = dict(_own_cgroups(root, controller))
    for kind, mounted, mount_point in _cgroup_mounts(root, controller):
        if kind not in own:
            continue
        base = root / mount_point.lstrip("/")
        folder = base / _inside(own[kind], mounted)
        while True:
            yield folder
            if folder == base:
                break
            folder = folder.parent


def _own_cgroups(root: Path, controller: str) -> Iterator[tuple[str, str]]:
    """Yield the process's path in the hierarchies that may limit it: of "cgroup2", and of "cgroup" (v1)."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif controller in controllers.split(","):
            yield "cgroup", path


def _cgroup_mounts(root: Path, controller: str) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of each mounted hierarchy that may limit the process, what of it is mounted, and where."""
    for line in _lines(root / "proc/self/mountinfo"):
        place, _, kind_and_options = line.partition(" - ")
        _, _, _, mounted, mount_point, *_ = map(_unescaped, place.split(" "))
        kind, _, options = kind_and_options.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            yield kind, mounted, mount_point


def _inside(path: str, mounted: str) -> PurePosixPath:
    """Return where a cgroup is below the mount; a path that leads out of what is mounted means the mount itself."""
    own = PurePosixPath(path)
    if ".." in own.parts or not own.is_relative_to(mounted):
        return PurePosixPath()
    return own.relative_to(mounted)


def _unescaped(field: str) -> str:
    r"""Undo the kernel's escapes of blanks and the like, such as ``\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _fields(path: Path) -> dict[str, int]:
    """Read a file of lines such as ``name 5`` or ``Name:  5 kB``."""
    words = [line.split() for line in _lines(path)]
    return {name: int(value) for name, value, *_ in (entry for entry in words if len(entry) > 1) if value.isdigit()}


def _value(*paths: Path) -> int | None:
    """Read the number in the first of these files that is there; None for "max"."""
    for path in paths:
        for line in _lines(path)[:1]:
            return _number(line)
    return None


def _number(text: str) -> int | None:
    with suppress(ValueError):
        return int(text)
    return None


FAR_REQUESTS = 128
"""Footers that are asked for at once where the store is far away: stores answer small requests in tens of
milliseconds, and a footer takes less than one of them to check."""


_SURVEY = "table-loader-survey"
"""What these threads are called."""


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, asks: Storage | None = None) -> list[R]:
    """Map over threads, and return the results in the order of the items; the first error is raised.

    If the work waits for a storage (`asks`) that is remote, many items are asked for at once, however few
    CPUs there are. The first of those lie all over the table, so that what they teach holds for the others.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    if asks is None or asks.is_local:
        with Threads(min(len(items), 4 * (os.cpu_count() or 1), FAR_REQUESTS), _SURVEY) as pool:
            return list(pool.map(work, items))
    order = halving(len(items))
    with Threads(min(len(items), FAR_REQUESTS), _SURVEY) as pool:
        found = dict(zip(order, pool.map(lambda place: work(items[place]), order), strict=True))
    return [found[place] for place in range(len(items))]


def halving(count: int) -> Sequence[int]:
    """Return all numbers below a count in an order of which each beginning is spread over them evenly.

    >>> halving(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = count.bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])
