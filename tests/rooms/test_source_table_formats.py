"""A folder of an Iceberg, Delta Lake or Hudi table is refused as plain files, however its path is given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.servers.buckets import Bucket, serve
from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import ConfigError, IcebergDataset, StorageError, StructuredDataset
from torch_table_loader.cli.main import main
from torch_table_loader.errors import AccessRefusedError
from torch_table_loader.extend import FileStorage, PathSource
from torch_table_loader.source import listing

DELTA = {
    "t/_delta_log/00000000000000000000.json": b"{}",
    "t/part-0.parquet": b"x",
    "t/day=1/part-1.parquet": b"x",
    "t/day=1/zone=eu/part-2.parquet": b"x",
}
HUDI = {
    "t/.hoodie/hoodie.properties": b"x",
    "t/day=1/.hoodie_partition_metadata": b"x",
    "t/day=1/part-1.parquet": b"x",
    "t/2024/01/.hoodie_partition_metadata": b"x",
    "t/2024/01/part-1.parquet": b"x",
}
ICEBERG = {
    "t/metadata/00000-abc.metadata.json": b"{}",
    "t/metadata/00009-abc.metadata.json": b"{}",
    "t/metadata/00010-abc.gz.metadata.json": b"{}",
    "t/metadata/snap-1.avro": b"x",
    "t/data/part-0.parquet": b"x",
    "t/data/day=1/part-1.parquet": b"x",
    "t/data/day=1/00000-deletes.parquet": b"x",
}
PLAIN = {
    "t/metadata/readme.json": b"{}",
    "t/day=1/part-0.parquet": b"x",
    "t/part-1.parquet": b"x",
    "other/_delta_log/0.json": b"{}",
    "other/part-2.parquet": b"x",
}

REQUESTS = ("stat", "probe", "walk", "version")


@pytest.fixture(params=["local", "memory", "bucket"])
def write(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(files: dict[str, bytes]) -> str:
        if request.param == "bucket":
            serve(Bucket({f"lake/{name}": data for name, data in files.items()}), monkeypatch)
            return "s3://b/lake"
        memory = fsspec.filesystem("memory")
        memory.store.clear()
        for name, data in files.items():
            if request.param == "local":
                (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "lake" / name).write_bytes(data)
            else:
                memory.pipe_file(f"/lake/{name}", data)
        return f"{tmp_path}/lake" if request.param == "local" else "memory://lake"

    return of


CASES = [
    (DELTA, "Delta Lake", ["t", "t/day=1", "t/day=1/zone=eu", "t/part-0.parquet", "t/*.parquet", "t/day=*", ""]),
    (DELTA, "Delta Lake", ["t/day=1/part-1.parquet", "t/day=1/*.parquet", "*/part-0.parquet", "t/day=1/zone=*/*"]),
    (HUDI, "Hudi", ["t", "t/day=1", "t/2024/01", "t/day=1/part-1.parquet", "t/*/*.parquet", ""]),
    (ICEBERG, "Iceberg", ["t", "t/data", "t/data/day=1", "t/data/part-0.parquet", "t/data/*.parquet", "*/data/*", ""]),
    (ICEBERG, "Iceberg", ["t/data/day=1/part-1.parquet", "t/data/day=1/*.parquet"]),
]


@pytest.mark.parametrize(
    ("files", "name", "path"), [(files, name, path) for files, name, paths in CASES for path in paths]
)
def test_every_path_into_such_a_table_is_refused(write: Any, files: dict[str, bytes], name: str, path: str) -> None:
    lake = write(files)
    with pytest.raises(ConfigError, match=rf"lake/t\S* (is|belongs to) an? {name} table.*source=pyarrow.dataset"):
        PathSource.open(f"{lake}/{path}".rstrip("/"), "parquet")


def test_one_of_several_paths_and_pinned_files_are_refused(write: Any) -> None:
    lake = write({**DELTA, **{name.replace("t/", "plain/"): data for name, data in PLAIN.items() if name[0] == "t"}})
    with pytest.raises(ConfigError, match="lake/t is a Delta"):
        PathSource.open([f"{lake}/plain", f"{lake}/t/day=1"], "parquet")
    with pytest.raises(ConfigError, match="lake/t is a Delta"):
        PathSource.open(f"{lake}/t", "parquet", files=["part-0.parquet"])
    assert PathSource.open(f"{lake}/plain", "parquet").files


def test_the_newest_metadata_is_named(write: Any) -> None:
    lake = write(ICEBERG)
    with pytest.raises(
        ConfigError, match=re.escape(f'metadata_location="{lake}/t/metadata/00010-abc.gz.metadata.json')
    ):
        PathSource.open(f"{lake}/t/data", "parquet")


@pytest.mark.parametrize("path", ["t", "t/day=1", "t/*.parquet", "t/part-1.parquet", "t/day=1/part-0.parquet", "t/*/*"])
def test_plain_files_beside_such_a_table_are_read(write: Any, path: str) -> None:
    assert PathSource.open(f"{write(PLAIN)}/{path}", "parquet").files


def test_only_selected_files_decide(write: Any) -> None:
    lake = write(PLAIN)
    assert PathSource.open(f"{lake}/[t]/*.parquet", "parquet").files
    with pytest.raises(ConfigError, match="lake/other is a Delta"):
        PathSource.open(f"{lake}/*/*.parquet", "parquet")


def test_an_inaccessible_parent_folder_does_not_matter(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = write(PLAIN)
    raised: list[StorageError] = [AccessRefusedError("no", lake)]
    for name in REQUESTS:
        original = getattr(FileStorage, name)

        def failing(storage: FileStorage, path: str, *, original: Any = original, **options: Any) -> Any:
            if "/t/day=1" not in path:
                raise raised[-1]
            return original(storage, path, **options)

        monkeypatch.setattr(FileStorage, name, failing)
    assert PathSource.open(f"{lake}/t/day=1", "parquet").files
    raised.append(StorageError("the store is down"))
    with pytest.raises(StorageError, match="is down"):
        PathSource.open(f"{lake}/t/day=1", "parquet")


def test_it_costs_a_few_requests_per_table_and_none_per_file(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = write({f"t/day={day}/part-{part}.parquet": b"x" for day in range(20) for part in range(5)})
    asked: list[str] = []
    for name in REQUESTS:
        original = getattr(FileStorage, name)

        def counted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            asked.append(args[1])
            return original(*args, **kwargs)

        monkeypatch.setattr(FileStorage, name, counted)
    with monkeypatch.context() as without:
        without.setattr(listing, "look_around", lambda *_: [])
        PathSource.open(f"{lake}/t", "parquet")
    plain = len(asked)
    asked.clear()
    assert len(PathSource.open(f"{lake}/t", "parquet").files) == 100
    assert len(asked) - plain <= 4
    asked.clear()
    PathSource.open([f"{lake}/t/day={day}" for day in range(20)], "parquet")
    assert len(asked) <= 20 * plain + 8


def test_an_iceberg_table_is_read_by_the_call_that_the_error_gives(tmp_path: Path) -> None:
    writer = IcebergWriter(tmp_path / "t", (column(1, "x", "long"),))
    path = writer.append([{"x": x} for x in range(10)])
    writer.commit()
    writer.delete_rows({path: [0, 1, 2, 3]})
    writer.commit()
    assert writer.metadata.endswith("/v2.metadata.json")
    data = tmp_path / "t" / "data"
    with pytest.raises(ConfigError) as caught:
        StructuredDataset(str(data))
    call = re.search(r'(IcebergDataset\.create_dataloader\(metadata_location=".*?"\))', str(caught.value))
    assert call is not None
    loader, _ = eval(call[1], {"IcebergDataset": IcebergDataset})  # noqa: S307 - as a user would paste it
    assert sorted(row for batch in loader for row in batch["x"].tolist()) == list(range(4, 10))


def test_options_and_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "0.json").write_text("{}")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path)]) != 0  # is opened as what it is, and has no version
    assert "must be the folder of a Delta Lake table" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--format", "parquet"]) != 0
    assert "is a Delta Lake table" in capsys.readouterr().err
    loader, _ = StructuredDataset.create_dataloader(source=ds.dataset(str(tmp_path)), num_workers=0)
    assert sum(len(batch["x"]) for batch in loader) == 2
