"""The remaining memory, read from fake /proc and /sys of machines with cgroups of either version."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_table_loader.engine.machine import available_memory

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NO_LIMIT_V1 = 9223372036854771712

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "36 32 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
CPU_V1 = "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
UNIFIED = "41 32 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"


class Machine:
    """A fake root of a file system."""

    def __init__(self, root: Path, available: int = 100 * GIB) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:  1 kB\nMemFree:  2 kB\nMemAvailable:   {available // KIB} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, cgroups: str, *mounts: str) -> None:
        self.write("proc/self/cgroup", cgroups + "\n")
        self.write("proc/self/mountinfo", "".join(f"{mount}\n" for mount in mounts))

    def v2(self, folder: str, limit: Any, used: int, cached: int = 0, high: Any = "max") -> None:
        for name, value in {"max": limit, "high": high, "current": used}.items():
            self.write(f"{folder}/memory.{name}", f"{value}\n")
        self.write(f"{folder}/memory.stat", f"anon 5\nfile {cached + 7}\ninactive_file {cached}\nactive_file 7\n")

    def v1(self, folder: str, limit: int, used: int, cached: int = 0, hierarchical: int = NO_LIMIT_V1) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{used}\n")
        statistics = f"inactive_file 3\nhierarchical_memory_limit {hierarchical}\ntotal_inactive_file {cached}\n"
        self.write(f"{folder}/memory.stat", statistics)

    @property
    def left(self) -> int | None:
        return available_memory(self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_a_limit_the_memory_of_the_machine_counts(machine: Machine) -> None:
    assert machine.left == 100 * GIB
    assert available_memory(machine.root / "nothing") is None


def test_the_tightest_of_nested_cgroups_of_version_2_counts(machine: Machine) -> None:
    machine.process("0::/kubepods/pod7/box", V2)
    machine.v2("/sys/fs/cgroup/kubepods", 64 * GIB, 60 * GIB)
    machine.v2("/sys/fs/cgroup/kubepods/pod7", "max", GIB)
    machine.v2("/sys/fs/cgroup/kubepods/pod7/box", 8 * GIB, GIB)
    assert machine.left == 4 * GIB
    machine.v2("/sys/fs/cgroup/kubepods/pod7", 2 * GIB, GIB)
    assert machine.left == GIB
    machine.v2("/sys/fs/cgroup/kubepods/pod7/box", 8 * GIB, GIB, high=1536 * MIB)
    assert machine.left == 512 * MIB


def test_cached_pages_count_as_free_up_to_the_used_memory(machine: Machine) -> None:
    machine.process("0::/box", V2)
    machine.v2("/sys/fs/cgroup/box", 2 * GIB, 2 * GIB, cached=700 * MIB)
    assert machine.left == 700 * MIB
    machine.v2("/sys/fs/cgroup/box", 2 * GIB, 2 * GIB + 5)
    assert machine.left == 0


def test_a_cgroup_of_version_1_counts_together_with_its_parents(machine: Machine) -> None:
    machine.process("9:name=systemd:/\n4:memory:/a/b\n1:cpu:/a", CPU_V1, V1)
    machine.v1("/sys/fs/cgroup/memory", NO_LIMIT_V1, 90 * GIB)
    machine.v1("/sys/fs/cgroup/memory/a", 3 * GIB, GIB, cached=100 * MIB)
    machine.v1("/sys/fs/cgroup/memory/a/b", NO_LIMIT_V1, 512 * MIB)
    assert machine.left == 2 * GIB + 100 * MIB
    machine.v1("/sys/fs/cgroup/memory/a/b", GIB, 512 * MIB)
    assert machine.left == 512 * MIB


def test_a_limit_of_version_1_above_the_mount_is_read_from_the_kernel(machine: Machine) -> None:
    machine.process("4:memory:/", V1)
    machine.v1("/sys/fs/cgroup/memory", NO_LIMIT_V1, GIB, hierarchical=5 * GIB)
    assert machine.left == 4 * GIB


def test_with_both_versions_memory_is_read_from_the_one_that_controls_it(machine: Machine) -> None:
    machine.process("4:memory:/a\n0::/b", V1, UNIFIED)
    machine.v1("/sys/fs/cgroup/memory/a", 3 * GIB, GIB)
    machine.write("/sys/fs/cgroup/unified/b/cgroup.procs", "1\n")
    assert machine.left == 2 * GIB
    machine.v2("/sys/fs/cgroup/unified/b", GIB, 0)
    assert machine.left == GIB


@pytest.mark.parametrize(
    ("own", "mount"),
    [
        ("0::/", V2),
        ("0::/docker/77ab", V2),
        ("0::/docker/77ab", V2.replace("0:26 / ", "0:26 /docker/77ab ")),
        ("0::/../../elsewhere", V2),
        ("0::/other", V2.replace("0:26 / ", "0:26 /docker/77ab ")),
    ],
    ids=["its own namespace", "a path of the host", "a part of the tree", "out of the namespace", "another part"],
)
def test_a_container_reads_the_cgroups_mounted_in_it(machine: Machine, own: str, mount: str) -> None:
    machine.process(own, mount)
    machine.v2("/sys/fs/cgroup", 700 * MIB, 300 * MIB)
    assert machine.left == 400 * MIB


def test_a_mount_point_with_a_blank_is_read(machine: Machine) -> None:
    machine.process("0::/box", V2.replace("/sys/fs/cgroup", "/odd\\040place"))
    machine.v2("/odd place/box", 700 * MIB, 300 * MIB)
    assert machine.left == 400 * MIB


@pytest.mark.parametrize(("limit", "field"), [("Max address space", "VmSize"), ("Max data size", "VmData")])
def test_the_limits_of_the_process_count(machine: Machine, limit: str, field: str) -> None:
    machine.write("proc/self/status", f"Name:\tx\n{field}:\t  {GIB // KIB} kB\n")
    machine.write("proc/self/limits", f"Limit  Soft Limit  Hard Limit  Units\n{limit}   {3 * GIB}   unlimited  bytes\n")
    assert machine.left == 2 * GIB
    machine.write("proc/self/limits", f"{limit}   unlimited   unlimited  bytes\n")
    assert machine.left == 100 * GIB


def test_malformed_system_files_are_ignored(machine: Machine) -> None:
    machine.process("0::/box", V2)
    machine.write("/sys/fs/cgroup/box/memory.max", "")
    machine.write("/sys/fs/cgroup/box/memory.current", "none\n")
    machine.write("/sys/fs/cgroup/box/memory.stat", "\ninactive_file\nfile x\n")
    assert machine.left == 100 * GIB


def test_this_process_reads_its_own_limit() -> None:
    code = "from torch_table_loader.engine.machine import available_memory; print(available_memory())"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (64 * GIB, 64 * GIB))

    free = available_memory()
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limited, capture_output=True, text=True, check=True)
    assert free is not None
    assert 0 < int(done.stdout) < 64 * GIB
