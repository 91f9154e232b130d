"""Planning tables of many files: what is read, how much is held, and what is kept for the next rank."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tests.iceberg_many import write_many
from torch_table_loader.source.iceberg.manifests import Manifest, read_manifests
from torch_table_loader.source.storage import FileStorage

BYTES_A_FILE = 2048
"""What planning may hold of a data file, whatever its manifest says of it."""

_PLAN = """
import json, re, sys
from torch_table_loader.source.iceberg.open import open_source

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def plan(location, filters=None):
    source, _ = open_source(
        None, None, chosen={}, agree=lambda _, value: value, metadata_location=location, location_override=None,
        storage_options={"anon": True, "region": "us-east-1"}, credentials=None, columns=None, filters=filters,
        scan_filter=None,
    )
    return source

plan(sys.argv[1])
before = peak()
source = plan(sys.argv[2])
print(json.dumps({"files": len(source.files), "bytes": peak() - before}))
"""


@pytest.mark.slow
def test_a_hundred_thousand_files_are_planned_in_bounded_memory(tmp_path: Path) -> None:
    few = write_many(tmp_path / "few", 8, 2, "s3://nowhere/few")
    many = write_many(tmp_path / "many", 100_000, 1_000, "s3://nowhere/many")
    command = [sys.executable, "-c", _PLAN, few, many]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    planned = json.loads(done.stdout)
    assert planned["files"] == 100_000
    assert planned["bytes"] < 100_000 * BYTES_A_FILE


def test_manifests_are_read_several_at_once(tmp_path: Path) -> None:
    write_many(tmp_path / "t", 12, 4, "s3://nowhere/t")
    together = threading.Barrier(4, timeout=20)

    class Waiting(FileStorage):
        def open(self, path: str) -> pa.NativeFile:
            together.wait()  # broken, if the others do not come while this one is open
            return super().open(path)

    manifests = [Manifest(f"{tmp_path}/t/metadata/m{number:05}.avro", spec_id=0) for number in range(4)]
    found = read_manifests(Waiting("file"), manifests)
    assert [[entry.partition for entry in each] for each in found] == [[(number,)] * 3 for number in range(4)]
