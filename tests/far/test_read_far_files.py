"""The number of requests to inspect files in a remote store."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.rooms.test_read_needs import WRITERS
from tests.servers.remote_files import FarStore, Served, View
from tests.tables.iceberg import IcebergWriter, some
from tests.tables.reading import LocalStorage, inspect, whole_task
from torch_table_loader.engine.machine import FAR_REQUESTS
from torch_table_loader.engine.survey import survey
from torch_table_loader.errors import TableError
from torch_table_loader.extend import reader_for
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.manifests import list_manifests, read_manifests
from torch_table_loader.iceberg.source import IcebergRequest
from torch_table_loader.ranges import LEAST_TAIL_BYTES
from torch_table_loader.read.deletes import Deletes
from torch_table_loader.read.footers import LEAST_SEEN, FooterSizes
from torch_table_loader.read.tasks import TaskReader
from torch_table_loader.records import DataFile, FileMeta, FileVersion


def far_file(store: FarStore, path: Path, form: str = "parquet") -> DataFile:
    return DataFile(str(path), path.name, store.version_of(str(path)), form)


@dataclass
class Files:
    """A source of files in a remote store."""

    storage: Any
    files: list[DataFile]
    partition_schema: pa.Schema


def inspect_file(storage: Any, file: DataFile, schema: pa.Schema | None) -> FileMeta:
    return reader_for(file.format).inspect(storage, file, schema)


@pytest.mark.parametrize("name", WRITERS)
def test_inspecting_a_small_file_takes_one_request(tmp_path: Path, name: str) -> None:
    form, write = WRITERS[name]
    write(tmp_path / "x")
    store = FarStore()
    file = far_file(store, tmp_path / "x", form)
    meta = inspect_file(store, file, None)
    assert meta == inspect(file)
    assert [request.kind for request in store.requests] == ["range"]
    with_schema = FarStore()
    if form in ("csv", "jsonl"):
        inspect_file(with_schema, file, meta.schema)
        assert {request.kind for request in with_schema.requests} == {"range"}


def test_reading_a_stream_makes_no_extra_version_request(tmp_path: Path) -> None:
    for name in ("csv", "json", "avro"):
        form, write = WRITERS[name]
        write(tmp_path / name)
        store = FarStore()
        file = far_file(store, tmp_path / name, form)
        meta = inspect(file)
        handle = reader_for(form).open(store, file, meta)
        assert sum(batch.num_rows for batch in handle.batches(range(1), ["a"], 1000)) == meta.num_rows
        handle.close()
        assert [request.kind for request in store.requests] == ["range"]


def test_a_footer_longer_than_the_tail_takes_a_second_request(tmp_path: Path) -> None:
    columns = {f"a_column_with_a_long_name_{at}": [0] * 100 for at in range(200)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=5)
    store = FarStore()
    file = far_file(store, tmp_path / "x.parquet")
    assert file.version.num_bytes > 200_000
    assert inspect_file(store, file, None) == inspect(file)
    assert [request.kind for request in store.requests] == ["range", "range"]


@pytest.mark.parametrize("count", [1, 40, FAR_REQUESTS])
def test_construction_takes_one_request_per_file_in_parallel(tmp_path: Path, count: int) -> None:
    store = FarStore(together=count)
    for at in range(count):
        pq.write_table(pa.table({"a": np.arange(at, at + 100)}), tmp_path / f"{at:03}.parquet")
    files = [far_file(store, path) for path in sorted(tmp_path.iterdir())]
    table = survey(Files(store, files, pa.schema([])), None, None, None)
    assert table.layout.file_rows.tolist() == [100] * count
    assert Counter(request.name for request in store.requests) == {file.name: 1 for file in files}
    assert {request.kind for request in store.requests} == {"range"}


@pytest.mark.parametrize("others", [(), range(200, 320), range(0, 400, 7)], ids=["alike", "a stretch", "mixed"])
@daily(1)
def test_footers_take_few_bytes_and_rarely_a_second_request(tmp_path: Path, others: Collection[int]) -> None:
    many = 400
    values = pa.table({"a": np.random.default_rng(0).random(10_000)})
    pq.write_table(values, tmp_path / "short", use_dictionary=False)
    pq.write_table(values, tmp_path / "long", use_dictionary=False, row_group_size=150)
    for at in range(many):
        (tmp_path / f"{at:03}.parquet").hardlink_to(tmp_path / ("long" if at in others else "short"))
    store = FarStore()
    files = [far_file(store, path) for path in sorted(tmp_path.glob("*.parquet"))]
    table = survey(Files(store, files, pa.schema([])), None, None, None)
    assert len(table.layout.group_kept) == many + 66 * len(others)
    assert len(store.requests) <= 1.05 * many
    asked = sum(request.stop - request.start for request in store.requests)
    assert asked < 0.75 * many * LEAST_TAIL_BYTES


def test_a_hint_waits_for_footers_and_covers_all_that_were_seen() -> None:
    sizes = FooterSizes()
    file = DataFile("a", "a", FileVersion(1_000_000), "parquet")
    meta = FileMeta(pa.schema([]), (), (), footer=bytes(3000))
    for _ in range(LEAST_SEEN - 1):
        sizes.add(file, meta)
    assert sizes.hint(file) == file
    assert sizes.hint(file).tail_bytes is None
    sizes.add(file, meta)
    assert sizes.hint(file).tail_bytes == 12_000
    sizes.add(file, replace(meta, footer=bytes(50_000)))
    sizes.add(file, meta)
    assert sizes.hint(file).tail_bytes == 200_000
    larger = replace(file, version=FileVersion(2_000_001))
    assert sizes.hint(larger).tail_bytes is None
    assert sizes.hint(replace(file, tail_bytes=7)).tail_bytes == 7
    assert pickle.loads(pickle.dumps(sizes)).hint(file).tail_bytes is None  # noqa: S301


@pytest.mark.parametrize("tail_bytes", [1, 8, 100, 10**9])
def test_a_wrong_hint_only_costs_a_request(tmp_path: Path, tail_bytes: int) -> None:
    pq.write_table(pa.table({"a": np.arange(100_000)}), tmp_path / "x.parquet")
    store = FarStore()
    file = far_file(store, tmp_path / "x.parquet")
    hinted = replace(file, tail_bytes=tail_bytes)
    assert inspect_file(store, hinted, None) == inspect(file)
    assert {request.kind for request in store.requests} == {"range"}


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("rows", [10, 100_000])
def test_a_file_that_changed_since_it_was_listed_is_named(tmp_path: Path, rows: int, *, tags: bool) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": np.random.default_rng(0).random(1000)}), path)
    store = FarStore(tags=tags)
    file = far_file(store, path)
    pq.write_table(pa.table({"a": np.random.default_rng(1).random(rows)}), path)
    with pytest.raises((TableError, OSError), match=r"x\.parquet"):
        inspect_file(store, file, None)
    if rows > 1000 and not tags:  # where the store checks nothing, it is asked once reading fails
        with pytest.raises(TableError, match="changed while it was in use: size in bytes was"):
            inspect_file(store, file, None)


def test_metadata_that_says_a_wrong_size_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(1000)}), tmp_path / "x.parquet")
    store = FarStore()
    file = far_file(store, tmp_path / "x.parquet")
    wrong = replace(file, version=FileVersion(file.version.num_bytes - 10, immutable=True))
    with pytest.raises(TableError, match="as the table's metadata says"):
        inspect_file(store, wrong, None)


def test_an_empty_file_is_damaged_and_takes_no_request(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").touch()
    store = FarStore()
    with pytest.raises(TableError, match="at least 12 bytes"):
        inspect_file(store, far_file(store, tmp_path / "x.parquet"), None)
    assert store.kinds("range") == []


def test_each_delete_file_takes_one_request(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    paths = [table.append(some(100 * at, 100 * at + 100)) for at in range(4)]
    table.commit()
    table.delete_rows({paths[0]: [0, 5], paths[1]: [7]})
    table.delete_rows({paths[0]: [9]}, "orc")
    table.delete_rows({paths[1]: [9]}, "avro")
    table.delete_vector(paths[2], [0, 1, 2])
    table.commit()
    table.delete_keys([2], [{"k": 3}])
    table.delete_keys([2], [{"k": 4}], "avro")
    table.commit()
    source = IcebergRequest(TableAddress(metadata_location=table.metadata)).open({})
    store, near = FarStore(), Deletes(source.storage)
    far = Deletes(store)
    for file in source.files:
        assert far.positions(file).tolist() == near.positions(file).tolist()
        assert len(far.equality(file)) == len(near.equality(file))
    assert {request.kind for request in store.requests} == {"range"}
    assert max(Counter(request.name for request in store.requests).values()) == 1
    assert len(store.requests) == 6
    whole = survey(source, None, None, None)
    reader = whole.reader(["x"])
    distant = TaskReader(store, whole.files, whole.metas, whole.schema, ["x"], deletes=far)
    for number, meta in enumerate(whole.metas):
        task = whole_task(meta, number)
        assert list(distant.read(task, View())) == list(reader.read(task))
    assert len(store.requests) == 6


def test_a_damaged_remote_vector_is_named(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, version=3)
    path = table.append(some(0, 100))
    table.commit()
    table.delete_vector(path, [0, 1, 2])
    table.commit()
    (file,) = IcebergRequest(TableAddress(metadata_location=table.metadata)).open({}).files
    (delete,) = file.deletes
    assert delete.blob is not None
    for blob in ((0, 8), (4, 1 << 20), (5, delete.blob[1])):
        broken = replace(file, deletes=(replace(delete, blob=blob),))
        with pytest.raises(TableError, match="deletion vector"):
            Deletes(FarStore()).positions(broken)


def test_each_manifest_takes_one_request_in_parallel(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append(some(0, 10))
    table.commit()
    table.append(some(10, 20))
    table.commit()
    source = IcebergRequest(TableAddress(metadata_location=table.metadata)).open({})
    path = table.snapshots[-1]["manifest-list"]
    snapshot = type("Snapshot", (), {"id": 1, "manifest_list": path, "manifests": (), "num_files": 2})()
    store = FarStore()
    manifests = list_manifests(Served(inner=store), snapshot)
    store.requests.clear()
    store.together = 20
    found = read_manifests(Served(inner=store), manifests * 20)
    assert found[0][1] == len(source.files)
    assert {request.kind for request in store.requests} == {"range"}
    assert len(store.requests) == 20 * len(manifests)


def test_a_wrong_manifest_length_only_costs_requests(tmp_path: Path) -> None:
    (tmp_path / "m.avro").write_bytes(b"x" * 100)
    store = FarStore()
    assert Served(inner=store).read_whole(str(tmp_path / "m.avro"), 120) == b"x" * 100
    assert [request.kind for request in store.requests] == ["range", "version", "open"]


def test_a_manifest_that_grew_is_read_whole(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    for start in (0, 10):
        table.append(some(start, start + 10))
    table.commit()
    snapshot = type("Snapshot", (), {"id": 1, "manifest_list": table.snapshots[-1]["manifest-list"], "num_files": 2})()
    store = FarStore()
    (manifest,) = list_manifests(Served(inner=store), snapshot)
    assert manifest.num_bytes is not None
    stale = replace(manifest, num_bytes=manifest.num_bytes - 20)
    assert [listed for _, listed in read_manifests(Served(inner=store), [stale])] == [2]


@pytest.mark.parametrize("name", ["parquet", "orc", "compressed arrow"])
@daily(1)
def test_damage_to_remote_files_is_detected_like_local_damage(tmp_path: Path, name: str) -> None:
    form, write = WRITERS[name]
    write(tmp_path / "x")
    sound, chance, store = (tmp_path / "x").read_bytes(), random.Random(7), FarStore(tags=False)
    for case in range(60):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            data[-chance.randint(1, 200 if case % 2 else 20)] = chance.randrange(256)
        (tmp_path / "x").write_bytes(data)
        file = far_file(store, tmp_path / "x", form)
        assert looked_at(store, file) == looked_at(LocalStorage(), file), f"case {case}"


def looked_at(storage: Any, file: DataFile) -> Any:
    try:
        return inspect_file(storage, file, None)
    except TableError:
        return TableError
