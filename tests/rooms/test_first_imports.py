"""What a process imports up to its first batch: little, so that it starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_table_loader
from bench.endpoint import endpoint
from tests.effort import daily

_EPOCH = """
import json, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from torch_table_loader import StructuredDataset
loader, dataset = StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=4, shuffle=True, num_workers=2)
with loader:
    assert sum(len(batch["x"]) for batch in loader) == 10
    loader.load_state_dict(loader.state_dict())
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""

_OF_EXTRAS = ("aiohttp", "botocore", "obstore", "urllib3")
"""Packages of the extras for stores, of which a plain install has none."""

_OF_OTHERS = (
    *("pyarrow.compute", "pyarrow.csv", "pyarrow.dataset", "pyarrow.flight", "pyarrow.json", "pyarrow.orc"),
    *("fsspec", "pandas", "polars"),
    *("obstore", "botocore", "boto3", "s3fs", "aiohttp", "pyiceberg", "deltalake", "fastavro", "onnx", "tokenizers"),
    *("accelerate", "lightning", "ray", "IPython"),
)
_OF_OURS = (
    *("iceberg", "delta", "mixtures", "map_view", "report", "text", "testing", "cli"),
    *("integrations", "store", "far"),
    *("predicates.facts", "predicates.filter_form", "planning.order_sample", "source.arrow_source"),
    *("source.snapshot_files", "formats"),
    *("planning.lists", "engine.device"),
    *("engine.explanation", "engine.row_store", "order", "engine.measuring", "engine.jobs.items_job"),
    "engine.jobs.table_rows",
    *("engine.work.indexed_work", "engine.workers.processes"),
)


_IN_ROW_MODE = {
    *("store", "planning.lists", "engine.row_store", "engine.jobs.items_job"),
    *("engine.jobs.table_rows", "engine.work.indexed_work"),
}
_OF_ARROW_IN_ROW_MODE = {"pandas", "pyarrow.compute"}
"""What `take` of pyarrow imports, and arrays that it makes of Python's values."""


@pytest.mark.parametrize(
    ("asked", "job", "needed", "others"),
    [
        ("shuffle=True", "stream_job", set(), set()),
        ('shuffle="rows", row_store="memory"', "table_rows", _IN_ROW_MODE, _OF_ARROW_IN_ROW_MODE),
    ],
)
@daily(1)
def test_an_epoch_of_plain_parquet_imports_no_other_job_types(
    tmp_path: Path, asked: str, job: str, needed: set[str], others: set[str]
) -> None:
    pq.write_table(pa.table({"x": range(10), "y": [0.5] * 10}), tmp_path / "a.parquet")
    command = [sys.executable, "-c", _EPOCH.replace("shuffle=True", asked), str(tmp_path), *_OF_EXTRAS]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    ours = {f"torch_table_loader.{name}" for name in set(_OF_OURS) - needed}
    assert f"torch_table_loader.engine.jobs.{job}" in imported
    assert imported & ({*_OF_OTHERS, *ours} - others) == set()


_S3 = """
import sys
sys.modules["botocore"] = None
from torch_table_loader.far.s3_client import S3Client
login = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
client = S3Client({"endpoint": sys.argv[1], **login})
assert [found.path for found in client.walk("any/t", recursive=True)] == ["any/t/a"]
assert bytes(client.read_range("any/t/a", 1, 3, None)) == b"bc"
"""


def test_a_store_to_which_the_keys_are_given_imports_nothing_that_looks_for_them(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a").write_bytes(b"abcd")
    with endpoint(tmp_path) as served:
        subprocess.run([sys.executable, "-c", _S3, served.url], check=True)


_ON_WINDOWS = """
import importlib, os, mmap, pkgutil, signal, sys
import fsspec, numpy, pyarrow.compute, pyarrow.dataset, pyarrow.parquet, torch, torch.utils.data
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
of_os = ["O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "fork", "geteuid", "getpgid", "getuid"]
of_os += ["killpg", "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "register_at_fork"]
of_os += ["sched_getaffinity", "sched_setaffinity", "sysconf"]
of_others = {os: of_os, mmap: ["MADV_RANDOM", "MADV_WILLNEED", "MAP_SHARED"], signal: ["SIGHUP", "SIGKILL", "SIGUSR1"]}
for module, names in of_others.items():
    for name in names:
        vars(module).pop(name, None)
os.supports_dir_fd = set()
sys.platform = "win32"
import torch_table_loader
from torch_table_loader import ConfigError, StructuredDataset
for name in sorted(torch_table_loader.__all__):
    getattr(torch_table_loader, name)
for more in ({"num_workers": 2}, {"shuffle": "rows", "row_store": "memory"}):
    with StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=4, **more)[0] as loader:
        assert sorted(row for batch in loader for row in batch["x"].tolist()) == [*range(10)]
for more in ({"storage_options": {"cache_dir": sys.argv[2]}}, {"shuffle": "rows", "row_store": sys.argv[2]}):
    try:
        list(StructuredDataset.create_dataloader(sys.argv[1], "parquet", batch_size=4, **more)[0])
    except ConfigError as error:
        print(error)
"""


def test_the_package_reads_without_what_windows_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"x": range(10), "s": ["a", "bb"] * 5}), tmp_path / "table" / "a.parquet")
    command = [sys.executable, "-c", _ON_WINDOWS, str(tmp_path / "table"), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    cache, stores = done.stdout.splitlines()
    assert "'cache_dir'] needs locks" in cache
    assert "row stores in files need" in stores


def test_the_package_alone_imports_nothing_large() -> None:
    command = [sys.executable, "-c", "import torch_table_loader, sys; print({'torch', 'pyarrow'} & {*sys.modules})"]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("name", torch_table_loader.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(torch_table_loader, name) is not None
    assert name in dir(torch_table_loader)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'StructuredData'"):
        _ = torch_table_loader.StructuredData
    with pytest.raises(ImportError, match="cannot import name 'StructuredData'"):
        from torch_table_loader import StructuredData  # noqa: F401


_YOUNG = """
import gc, sys
import torch_table_loader
if "frozen" in sys.argv:
    gc.freeze()
before = gc.get_freeze_count()
torch_table_loader.StructuredDataset
assert gc.isenabled() and before // 2 <= gc.get_freeze_count() <= before
print(sum(len(gc.get_objects(generation)) for generation in (0, 1)))
"""


def test_what_was_imported_is_not_looked_through_when_an_epoch_begins() -> None:
    done = subprocess.run([sys.executable, "-c", _YOUNG], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 10_000


def test_what_the_caller_has_frozen_stays_so() -> None:
    subprocess.run([sys.executable, "-c", _YOUNG, "frozen"], check=True)
