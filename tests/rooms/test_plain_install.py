"""A plain ``pip install .``, without any extra: what needs none works, and what needs one says which.

Simulated: a process that can import what the dependencies of the package bring, and nothing else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "torch-table-loader"
OWN = {"torch_table_loader", "torch_table_strategies"}

SUITE = """
import json, sys
BLOCKED = set(json.loads(sys.argv[1]))

class Plain:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)  # such as find_distributions

sys.meta_path[:] = map(Plain, sys.meta_path)

import contextlib, io, itertools
import pyarrow as pa, pyarrow.csv, pyarrow.feather, pyarrow.orc, pyarrow.parquet as pq
from pathlib import Path
from torch_table_loader import (
    DeltaDataset, IcebergDataset, MixedDataset, Pack, StructuredDataset, part_of, tokenize_table
)
from torch_table_loader.cli.main import main

root = Path(sys.argv[2])
table = pa.table({"x": range(40), "s": [f"s{row % 3}" for row in range(40)]})
for name in ("t", "odd"):
    (root / name).mkdir()
pq.write_table(table, root / "t" / "a.parquet", row_group_size=10)
pq.write_table(table, root / "odd" / "a.weird", row_group_size=10)
pa.csv.write_csv(table, root / "a.csv")
pa.feather.write_feather(table, root / "a.arrow", compression="uncompressed")
pa.orc.write_table(table, root / "a.orc")
(root / "a.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in table.to_pylist()))
(root / "a.numbers").write_text("1\\n2\\n3\\n")
(root / "b.quux").write_text("this is no table at all" * 9)
pq.write_table(pa.table({"text": ["one", "two three"]}), root / "text.parquet")

def xs(batches):
    return sorted(x for batch in batches for x in batch["x"].tolist())

def read(path, **options):
    options = {"columns": ["x"], "batch_size": 7, **options}
    return xs(StructuredDataset.create_dataloader(str(path), **options)[0]) == list(range(40))

def resumed():
    make = lambda: StructuredDataset.create_dataloader(str(root / "t"), columns=["x"], batch_size=7, shuffle=True)[0]
    first, then = make(), make()
    taken = xs(itertools.islice(first, 2))
    then.load_state_dict(first.state_dict())
    return sorted(taken + xs(then)) == list(range(40))

def mixed():
    sources = {name: StructuredDataset(str(root / "t"), shuffle="rows", columns=["x"]) for name in "ab"}
    return sum(len(batch["x"]) for batch in MixedDataset.create_dataloader(sources, {"a": 1, "b": 1})[0]) > 40

def tokenized():
    dataset = StructuredDataset(str(root / "text.parquet"), columns=["text"], output_format="arrow")
    tokenize_table(dataset, str(root / "tokens"), "bytes")
    pack = Pack(seq_len=4)
    return len(StructuredDataset.create_dataloader(str(root / "tokens"), pack=pack, batch_size=1)[0]) > 1

def typed(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return bool(out.getvalue())

CASES = {
    "parquet": lambda: read(root / "t"),
    "csv": lambda: read(root / "a.csv"),
    "json lines": lambda: read(root / "a.jsonl"),
    "arrow": lambda: read(root / "a.arrow"),
    "orc": lambda: read(root / "a.orc"),
    "rows in memory": lambda: len(StructuredDataset.from_arrow(table).head(3)) == 3,
    "an unknown ending": lambda: read(root / "odd"),
    "an ending of a plug-in": lambda: StructuredDataset(str(root / "a.npy")).num_rows == 3,
    "rows": lambda: read(root / "t", shuffle="rows"),
    "mixed splits": lambda: read(root / "t", shuffle="mixed"),
    "processes": lambda: read(root / "t", worker_type="fork"),
    "resume": resumed,
    "mixture": mixed,
    "filters": lambda: StructuredDataset(str(root / "t"), filters="x >= 3 and s = 's1'").num_rows == 12,
    "parts": lambda: 0 < StructuredDataset(str(root / "t"), filters=part_of("x", {"a": 1, "b": 1}, "a")).num_rows < 40,
    "tokens": tokenized,
    "explain": lambda: bool(StructuredDataset(str(root / "t")).explain().to_html("t")),
    "command line": lambda: typed("head", str(root / "t")) and typed("inspect", str(root / "t")) and typed("formats"),
    # What needs an extra names it:
    "onnx": lambda: StructuredDataset(str(root / "t"), format="tensorproto"),
    "onnx, by its ending": lambda: StructuredDataset(str(root / "b.quux")),
    "iceberg": lambda: IcebergDataset("db.t", {"type": "sql", "uri": "sqlite://"}),
    "delta": lambda: DeltaDataset(str(root / "t")),
    "s3": lambda: StructuredDataset("s3://bucket/t", storage_options={"key": "a", "secret": "b"}),
    "progress": lambda: StructuredDataset(str(root / "t"), show_progress=True),
    "text": lambda: tokenize_table(
        StructuredDataset(str(root / "text.parquet"), columns=["text"], output_format="arrow"),
        str(root / "others"), "tiktoken:cl100k_base",
    ),
}

def outcome(case):
    try:
        return case()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

import numpy
numpy.save(root / "a.npy", numpy.arange(3))
print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
"""

WORKS = (
    *("parquet", "csv", "json lines", "arrow", "orc", "rows in memory", "an unknown ending", "an ending of a plug-in"),
    *("rows", "mixed splits", "processes", "resume", "mixture", "filters", "parts", "tokens", "explain"),
    "command line",
)
NEEDS = {
    "onnx": r"^MissingExtraError: .*pip install 'torch-table-loader\[onnx\]'",
    "onnx, by its ending": r"b.quux must be a Parquet file.*may be its own: 'tensorproto' .*torch-table-loader\[onnx\]",
    "iceberg": r"^MissingExtraError: .*pip install 'torch-table-loader\[iceberg\]'",
    "delta": r"^MissingExtraError: .*pip install 'torch-table-loader\[delta\]'",
    "s3": r"^MissingExtraError: .*pip install 'torch-table-loader\[s3\]'",
    "progress": r"^MissingExtraError: .*pip install 'torch-table-loader\[progress\]'",
    "text": r"^MissingExtraError: .*pip install 'torch-table-loader\[text\]'",
}


def distributions_of(name: str, found: set[str]) -> set[str]:
    """Return what a distribution needs without extras, by normalised names, itself included."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    if normal in found:
        return found
    found.add(normal)
    try:
        needed = requires(name) or []
    except PackageNotFoundError:  # of another system
        return found
    for each in needed:
        if "extra ==" not in each:
            distributions_of(re.split(r"[^\w.-]", each, maxsplit=1)[0], found)
    return found


def blocked_modules() -> set[str]:
    """Return the modules that are installed here, and that a plain install would not bring."""
    plain = distributions_of(PACKAGE, set())
    return {
        module
        for module, owners in packages_distributions().items()
        if module not in OWN | set(sys.stdlib_module_names)
        and not any(re.sub(r"[-_.]+", "-", owner).lower() in plain for owner in owners)
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    blocked = blocked_modules()
    assert {"onnx", "obstore", "deltalake", "pyiceberg", "tqdm", "pandas", "tokenizers"} <= blocked
    assert not {"torch", "numpy", "pyarrow", "fsspec", "xxhash"} & blocked
    command = [sys.executable, "-W", "ignore", "-c", SUITE, json.dumps(sorted(blocked))]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("plain"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", WORKS)
def test_what_needs_no_extra_works_without_any(plain: dict[str, Any], case: str) -> None:
    assert plain[case] is True


@pytest.mark.parametrize("case", NEEDS)
def test_what_needs_an_extra_names_it(plain: dict[str, Any], case: str) -> None:
    assert re.search(NEEDS[case], str(plain[case]))


def test_each_case_is_looked_at(plain: dict[str, Any]) -> None:
    assert set(plain) == {*WORKS, *NEEDS}
