"""One Ctrl-C ends the program in every phase, though a store never answers, always refuses, or lists for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.launchers.small_disks import ROOT
from tests.servers.faults import FaultyStore, serving_faults
from tests.waiting import PATIENCE_S

FILES = 4

SCRIPT = """
import json, signal, sys

def pause():
    print("here", flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores interrupts
    import pyarrow.compute as pc
    from torch_table_loader import StructuredDataset

    url, options, phase = json.loads(sys.argv[1])
    if options.pop("filtered", False):
        options["filters"] = pc.field("x") >= 5
    if phase == "plan":
        pause()
    loader, _ = StructuredDataset.create_dataloader(url, batch_size=70, **options)
    if phase == "epoch":
        pause()
    for _ in loader:
        pass
"""

HANGS: dict[str, Any] = {"kinds": ("hang",)}
FAILS: dict[str, Any] = {"kinds": ("503",)}
READS: dict[str, Any] = {"methods": ("GET",)}
LATER: dict[str, Any] = {**READS, "after": FILES}
"""Footers are served, and what is read after them is not."""

LANES: dict[str, Any] = {"num_workers": 2}
COUNTED: dict[str, Any] = {**LANES, "filtered": True}
ROWS: dict[str, Any] = {**LANES, "shuffle": "rows"}
PHASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "listing, hangs": ("plan", LANES, {**HANGS, "methods": ("LIST",)}),
    "listing, 503": ("plan", LANES, {**FAILS, "methods": ("LIST",)}),
    "listing, endless": ("plan", LANES, {"kinds": ("endless",), "methods": ("LIST",)}),
    "planning, hangs": ("plan", LANES, {**HANGS, **READS}),
    "planning, 503": ("plan", LANES, {**FAILS, **READS}),
    "counting, hangs": ("plan", COUNTED, {**HANGS, **LATER}),
    "counting, 503": ("plan", COUNTED, {**FAILS, **LATER}),
    "building, hangs": ("plan", {**ROWS, "row_store": "rows"}, {**HANGS, **LATER}),
    "building, 503": ("plan", {**ROWS, "row_store": "rows"}, {**FAILS, **LATER}),
    "building in memory, hangs": ("plan", {**ROWS, "row_store": "memory"}, {**HANGS, **LATER}),
    "epoch, hangs": ("epoch", {"num_workers": 0}, HANGS),
    "epoch without read-ahead, hangs": ("epoch", {"num_workers": 0, "ahead": 0}, HANGS),
    "threads, hang": ("epoch", LANES, HANGS),
    "threads, 503": ("epoch", LANES, FAILS),
    "threads without read-ahead, hang": ("epoch", {**LANES, "ahead": 0}, HANGS),
    "threads without read-ahead, 503": ("epoch", {**LANES, "ahead": 0}, FAILS),
    **{
        f"processes by {method}, {faults['kinds'][0]}": (
            "epoch",
            {**LANES, "worker_type": method},
            faults,
        )
        for method in ("spawn", "forkserver")
        for faults in (HANGS, FAILS)
    },
    "processes that begin": (
        "epoch",
        {**LANES, "worker_type": "spawn"},
        {"kinds": ()},
    ),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "t").mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"x": range(number * 400, (number + 1) * 400)}), folder / "t" / f"{number}.parquet")
    with serving_faults(folder) as serving:
        yield serving


DAILY = {"listing, hangs", "planning, hangs", "building, hangs", "threads, hang", "processes by forkserver, hang"}
"""Each case is an interpreter that imports torch."""

CASES = [
    *(
        pytest.param(*case, os.kill, id=name, marks=() if name in DAILY else pytest.mark.slow)
        for name, case in PHASES.items()
    ),
    *(
        pytest.param(*case, os.killpg, id=f"{name}, all told", marks=pytest.mark.slow)
        for name, case in PHASES.items()
        if "processes" in name
    ),
]


@pytest.mark.parametrize(("phase", "options", "faults", "interrupt"), CASES)
@daily(2)
def test_one_interrupt_ends_the_program(
    store: FaultyStore,
    tmp_path: Path,
    phase: str,
    options: dict[str, Any],
    faults: dict[str, Any],
    interrupt: Callable[[int, int], None],
) -> None:
    store.fail()
    ahead = {"read_ahead_bytes": options["ahead"]} if "ahead" in options else {}
    options = {name: value for name, value in options.items() if name != "ahead"}
    options |= {"storage_options": {**store.options, "retry_seconds": 600, **ahead}}
    if options.get("row_store") == "rows":
        options["row_store"] = str(tmp_path / "rows")
    script = tmp_path / "script.py"  # a file, since spawned workers import it
    script.write_text(SCRIPT)
    program = subprocess.Popen(
        [sys.executable, script, json.dumps(["s3://bucket/t", options, phase])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdin is not None
        assert program.stdout.readline() == "here\n"
        store.fail(*faults["kinds"], **{name: value for name, value in faults.items() if name != "kinds"})
        program.stdin.write("\n")
        program.stdin.flush()
        while not (store.seen().get("faults") if faults["kinds"] else _children(program.pid)):
            assert program.poll() is None
            time.sleep(0.01)
        interrupt(program.pid, signal.SIGINT)
        errors = program.communicate(timeout=PATIENCE_S)[1]
    finally:
        program.kill()
        program.wait()
    assert program.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors.splitlines(), errors
    assert "Exception ignored" not in errors


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
