"""What a build lacks is refused in one clear sentence; everything else works without it.

Here a process cannot find the guests, all at once; `tools/guests.py` takes each away for real.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader.extend import reader_for
from torch_table_loader.installed import FORMATS, GUESTS, guest_of, has
from torch_table_loader.read.formats import suffixes_of


def is_here(guest: str | None) -> bool:
    return guest is None or has(guest)


_ALONE = """
import sys
from importlib import import_module
from importlib.machinery import PathFinder

class Alone(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        from torch_table_loader.installed import guest_of
        module = name.removeprefix("torch_table_loader.")
        return PathFinder.find_spec(name, path) if module == name or guest_of(module) is None else None

import torch_table_loader.installed
sys.meta_path[sys.meta_path.index(PathFinder)] = Alone

from torch_table_loader import MissingExtraError

def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except MissingExtraError as error:
        print(str(error).partition(":")[0])
"""


def alone(code: str, *arguments: object) -> list[str]:
    """Run a program in a process that finds no guest, and return the lines that it prints."""
    command = [sys.executable, "-c", _ALONE + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


_IMPORTS = """
from torch_table_loader.installed import GUESTS, has, load
for name, guest in GUESTS.items():
    assert not has(name)
    refused(load, name)
    for module in guest.modules:
        refused(import_module, f"torch_table_loader.{module}")
        refused(import_module, f"torch_table_loader.{module}.within")
import torch_table_loader
for name in ("DeltaDataset", "IcebergDataset"):
    refused(getattr, torch_table_loader, name)
"""


def test_what_imports_a_missing_guest_is_told_so() -> None:
    expected = [f"this build has no {each.title}" for each in GUESTS.values() for _ in range(1 + 2 * len(each.modules))]
    assert alone(_IMPORTS) == [*expected, "this build has no Delta Lake", "this build has no Iceberg"]


_READS = """
from torch_table_loader import StructuredDataset, Weights
for shuffle in ("rows", True):
    loader, dataset = StructuredDataset.create_dataloader(sys.argv[1], shuffle=shuffle, batch_size=4, num_workers=2)
    with loader:
        assert sorted(row for batch in loader for row in batch["x"].tolist()) == [*range(10)]
        assert dataset._repr_html_() is loader._repr_html_() is loader.metrics()._repr_html_() is None
        assert dataset.explain()._repr_html_() is None
        assert "rows" in str(dataset.explain())
refused(dataset.explain().to_html)
for name in ("a.orc", "a.arrow", "a.avro", "a.csv", "a.csv.gz", "a.jsonl"):
    refused(StructuredDataset, sys.argv[2] + "/" + name)
refused(StructuredDataset, sys.argv[1], "tensorproto")
for asked in ({"weights": "x"}, {"weights": Weights(samples=3)}, {"on_growth": "continue"}):
    refused(StructuredDataset, sys.argv[1], shuffle="rows", **asked)
"""


def test_plain_files_are_read_without_any_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / "cache"))
    for folder in ("plain", "others"):
        (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "plain" / "a.parquet", row_group_size=3)
    for name in ("a.orc", "a.arrow", "a.avro", "a.csv", "a.csv.gz", "a.jsonl"):
        (tmp_path / "others" / name).write_bytes(b"some")
    lacking = ["HTML pages", "ORC", "Arrow files", "Avro", *["CSV and JSON"] * 3, "tensor shards of ONNX"]
    lacking += ["weights or growth of rows"] * 3
    assert alone(_READS, tmp_path / "plain", tmp_path / "others") == [f"this build has no {each}" for each in lacking]


def test_the_table_names_each_module_once() -> None:
    modules = [module for guest in GUESTS.values() for module in guest.modules]
    assert len(set(modules)) == len(modules)
    assert guest_of("source.deltas") is guest_of("") is None


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if is_here(guest_of(form.module))])
def test_the_table_knows_the_suffixes_of_each_format(name: str) -> None:
    assert FORMATS[name].suffixes == suffixes_of(reader_for(name))
