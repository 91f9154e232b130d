"""Planning tables of many files: what is read, how much memory it takes, and what is cached for the next rank."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.effort import daily
from tests.servers.remote_files import Served
from tests.tables.iceberg import IcebergWriter
from tests.tables.iceberg_many import write_many
from tests.waiting import PATIENCE_S
from torch_table_loader import ConfigError, IcebergDataset, ResumeError, TableError
from torch_table_loader.extend import FileStorage
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.manifests import DeletesInfo, Entry, Manifest, read_manifests
from torch_table_loader.iceberg.metadata import SpecField
from torch_table_loader.iceberg.scan import DeleteIndex, Naming, plan_files
from torch_table_loader.iceberg.source import IcebergRequest, read_plan, write_plan
from torch_table_loader.predicates.facts import Facts
from torch_table_loader.read.footers import estimated_groups
from torch_table_loader.records import DataFile, FileVersion, TableColumns
from torch_table_loader.source.table_storage import TableStorage
from torch_table_loader.testing import check_source

BYTES_A_FILE = 2048
"""What planning may hold of a data file, whatever its manifest says of it."""

_PLAN = """
import json, re, sys
from torch_table_loader.iceberg.catalog import TableAddress
from torch_table_loader.iceberg.source import IcebergRequest
from torch_table_loader.iceberg.scan import DeleteIndex, Naming, plan_files

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def plan(location, filters=None):
    at = TableAddress(
        metadata_location=location,
        storage_options={"anon": True, "region": "us-east-1"},
        allow_locations=["s3://nowhere"],
    )
    return IcebergRequest(at, filters=filters).open({})

plan(sys.argv[1])
before = peak()
source = plan(sys.argv[2])
print(json.dumps({"files": len(source.files), "bytes": peak() - before}))
"""


@pytest.mark.rare
def test_a_hundred_thousand_files_are_planned_in_bounded_memory(tmp_path: Path) -> None:
    few = write_many(tmp_path / "few", 8, 2, "s3://nowhere/few")
    many = write_many(tmp_path / "many", 100_000, 1_000, "s3://nowhere/many")
    command = [sys.executable, "-c", _PLAN, few, many]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    planned = json.loads(done.stdout)
    assert planned["files"] == 100_000
    assert planned["bytes"] < 100_000 * BYTES_A_FILE


def test_manifests_are_read_in_parallel(tmp_path: Path) -> None:
    write_many(tmp_path / "t", 12, 4, "s3://nowhere/t")
    together = threading.Barrier(4, timeout=PATIENCE_S)

    class Waiting(FileStorage):
        def open(self, path: str) -> pa.NativeFile:
            together.wait()  # broken, if the others do not come while this one is open
            return super().open(path)

    manifests = [Manifest(f"{tmp_path}/t/metadata/m{number:05}.avro", spec_id=0) for number in range(4)]
    found = read_manifests(Served(inner=Waiting("file")), manifests)
    assert [[entry.partition for entry in each] for each, _ in found] == [[(number,)] * 3 for number in range(4)]


def written(root: Path, **how: Any) -> IcebergWriter:
    """A table of six files in four row groups each, with position deletes in one, and keys deleted from three."""
    table = IcebergWriter(root, partition_by=2, **how)
    files = [table.append(rows(at), partition=at % 2, group=25) for at in range(6)]
    table.commit()
    table.delete_rows({files[1]: range(20, 50)}, partition=1)
    table.delete_keys([1], [{"x": 100 * at + 7} for at in range(6)], partition=0)
    table.commit()
    return table


def rows(file: int) -> list[dict[str, Any]]:
    return [{"x": 100 * file + at, "k": file % 2, "s": f"s{at % 3}"} for at in range(100)]


def read(table: IcebergWriter, **options: Any) -> list[int]:
    loader, _ = IcebergDataset.create_dataloader(
        **{**newest(table), "output_format": "arrow", "num_workers": 2, "batch_size": 7, **options}
    )
    return [x for batch in loader for x in batch.column("x").to_pylist()]


def newest(table: IcebergWriter) -> dict[str, Any]:
    """Return the table's location with its snapshot, so that all ranks of a test see the same one."""
    return {"metadata_location": table.metadata, "snapshot_id": table.snapshots[-1]["snapshot-id"]}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the reads of files of a table that its storage declares remote."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(TableStorage, name)

        def counting(self: TableStorage, path: str, *more: Any) -> Any:
            counts[path.rpartition("/")[2]] += 1
            return real(self, path, *more)

        monkeypatch.setattr(TableStorage, name, counting)

    for name in ("open", "read_range"):
        count(name)
    monkeypatch.setattr(TableStorage, "is_local", property(lambda _: False))
    return counts


@pytest.mark.parametrize("filters", [None, pc.field("k") == 0])
def test_the_second_rank_reads_no_manifest_and_no_footer(
    tmp_path: Path, opened: Counter[str], filters: pc.Expression | None
) -> None:
    table = written(tmp_path / "t")
    where, cache = newest(table), str(tmp_path / "cache")

    def plan(rank: int) -> IcebergDataset:
        opened.clear()
        return IcebergDataset(**where, plan_cache=cache, filters=filters, rank=rank, num_ranks=2, even_ranks="balance")

    first = plan(0)
    assert sum(count for name, count in opened.items() if name.startswith(("snap-", "m"))) >= 3
    second = plan(1)
    asked = {name for name in opened if not name.endswith(".metadata.json")}
    deletes = {Path(delete.file.path).name for file in second.table.files for delete in file.deletes}
    assert asked <= deletes  # of which one that goes by position says how many rows of each row group live
    assert [file.name for file in second.table.files] == [file.name for file in first.table.files]
    assert second.explain().notes == first.explain().notes
    other = IcebergDataset(**where, plan_cache=cache, filters=pc.field("k") == 1)
    assert [file.partition for file in other.table.files] != [file.partition for file in first.table.files]


def test_a_cached_plan_belongs_to_its_snapshot_alone(tmp_path: Path) -> None:
    table, cache = IcebergWriter(tmp_path / "t"), str(tmp_path / "cache")
    for number in range(3):
        table.append(rows(number))
        snapshot = table.commit()
        assert len(read(table, plan_cache=cache)) == 100 * (number + 1)
    assert len(read(table, plan_cache=cache, snapshot_id=snapshot - 1)) == 200
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(entry.read_bytes()[:-3])
    assert len(read(table, plan_cache=cache)) == 300


VALUES = (
    None,
    True,
    -3,
    2**40,
    "ü",
    b"\0\xff",
    0.1,
    float("-inf"),
    dt.date(2020, 2, 29),
    dt.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC),
    dt.time(1, 2, 3, 4),
    Decimal("-1.50"),
    UUID(int=7),
)


def test_entries_of_every_kind_round_trip_through_the_cache() -> None:
    said = DeletesInfo((1, 2), "s3://a/b", (4, 99), (b"a", None))
    entries = [
        Entry("s3://a/1", 0, "PARQUET", 3, VALUES, 9, None, 10, 20, (4, 8)),
        Entry("s3://a/2", 1, "PUFFIN", 0, (), 10, 5, 1, 2, (), said),
        Entry(
            "s3://a/3",
            2,
            "AVRO",
            0,
            (),
            10,
            5,
            1,
            2,
            (),
            said,
            ((1, Facts(-5, b"a", nulls=True, values=False)), (2, Facts("a", 0.5, nulls=False))),
        ),
    ]
    written = write_plan((entries, ("one", "two")))
    assert written is not None
    found, notes = read_plan(written)
    assert notes == ("one", "two")
    names = Entry.__dataclass_fields__
    assert [{n: getattr(e, n) for n in names} for e in found] == [{n: getattr(e, n) for n in names} for e in entries]
    assert all(type(a) is type(b) for a, b in zip(found[0].partition, VALUES, strict=True))


def test_a_rank_opens_only_the_footers_of_its_own_files(tmp_path: Path, opened: Counter[str]) -> None:
    table = IcebergWriter(tmp_path / "t")
    for at in range(8):
        table.append(rows(at), group=25)
    table.commit()
    everything: list[int] = []
    for rank in range(4):
        opened.clear()
        loader, dataset = IcebergDataset.create_dataloader(
            **newest(table), footers="lazy", rank=rank, num_ranks=4, output_format="arrow"
        )
        assert len(loader) == 1
        assert not [name for name in opened if name.endswith(".parquet")]
        everything += [x for batch in loader for x in batch.column("x").to_pylist()]
        read_files = {name for name in opened if name.endswith(".parquet")}
        assert len(read_files) == 2
        assert dataset.table.footer_bytes > 0
    assert sorted(everything) == list(range(800))


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("split_deletes", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 3])
@daily(2)
def test_rows_come_once_whenever_footers_are_read(
    tmp_path: Path, worker_type: str, split_deletes: bool, num_ranks: int
) -> None:
    table = written(tmp_path)
    expected = sorted(row["x"] for row in table.live())
    shared: dict[str, Any] = {"split_deletes": split_deletes, "num_ranks": num_ranks, "split_size": 30}
    shared |= {"shuffle": "splits", "footers": "lazy", "worker_type": worker_type, "even_ranks": "balance"}
    found = [x for rank in range(num_ranks) for x in read(table, rank=rank, **shared)]
    assert sorted({*found}) == expected
    assert len(found) <= len(expected) + num_ranks
    filtered = [x for rank in range(num_ranks) for x in read(table, rank=rank, filters=pc.field("x") > 333, **shared)]
    assert sorted({*filtered}) == [x for x in expected if x > 333]


@pytest.mark.filterwarnings("ignore:under a row filter", "ignore:ranks take different")
@pytest.mark.parametrize("split_deletes", [False, True])
def test_a_lazy_job_resumes_on_any_ranks(tmp_path: Path, split_deletes: bool) -> None:
    table = written(tmp_path)

    def load(rank: int, num_ranks: int, **more: Any) -> Any:
        return IcebergDataset.create_dataloader(
            **newest(table), footers="lazy", split_deletes=split_deletes, split_size=30, rank=rank,
            num_ranks=num_ranks, num_workers=2, batch_size=7, shuffle="splits", output_format="arrow", **more,
        )[0]  # fmt: skip

    taken: list[int] = []
    states = []
    for rank in range(2):
        loader = load(rank, 2)
        batches = iter(loader)
        taken += [x for _ in range(11) for x in next(batches).column("x").to_pylist()]
        states.append(loader.state_dict())
    assert states[0] == states[1]
    for rank in range(3):
        loader = load(rank, 3)
        loader.load_state_dict(states[0])
        taken += [x for batch in loader for x in batch.column("x").to_pylist()]
    assert sorted(taken) == sorted(row["x"] for row in table.live())
    eager, _ = IcebergDataset.create_dataloader(metadata_location=table.metadata, split_size=30, shuffle="splits")
    with pytest.raises(ResumeError, match="split"):
        eager.load_state_dict(states[0])


def test_a_file_with_other_rows_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    path = table.append(rows(0))
    table.data[0].entry["record_count"] = 99
    table.commit()
    for footers in ("eager", "lazy"):
        with pytest.raises(TableError, match=f"{Path(path).name} must have 99 rows"):
            read(table, footers=footers)
    with pytest.raises(ConfigError, match="footers must be one of 'eager', 'lazy'"):
        read(table, footers="later")
    with pytest.raises(ConfigError, match='does not work with shuffle="rows"'):
        read(table, footers="lazy", shuffle="rows")


@pytest.mark.parametrize(
    ("size", "offsets", "expected"),
    [
        (100, (4, 54), ((52, 48), (50, 46))),
        (100, (), ((100,), (100,))),
        (80 << 20, (), ((40, 40, 20), (32 << 20, 32 << 20, 16 << 20))),
        (100, (4, 4, 300, -1), ((100,), (96,))),
        (0, (), ((100,), (1,))),
    ],
)
def test_row_groups_are_estimated_by_bytes(size: int, offsets: tuple[int, ...], expected: Any) -> None:
    file = DataFile("a", "a", FileVersion(size), "parquet", num_rows=100, split_offsets=offsets)
    assert estimated_groups(file) == expected


def test_an_identity_partition_is_in_the_partition_schema(tmp_path: Path) -> None:
    at = TableAddress(metadata_location=written(tmp_path).metadata)
    source = IcebergRequest(at).open({})
    assert source.partition_schema == pa.schema([("k", pa.int32())])
    assert [dict(file.partition) for file in source.files] == [{"k": at % 2} for at in range(6)]
    check_source(source)


def test_zero_and_minus_zero_are_different_partitions() -> None:
    spec = SpecField.model_validate({"source-id": 1, "transform": "identity"})
    naming = Naming("s3://a", TableColumns(()), {0: [spec]}, {1: "f"})
    entries = [Entry(f"s3://a/{value}", 0, "PARQUET", 0, (value,), 1, None, 1, 1) for value in (0.0, -0.0)]
    files = plan_files(entries, DeleteIndex([], naming), naming)
    assert sorted(repr(file.partition) for file in files) == ["(('f', -0.0),)", "(('f', 0.0),)"]
    assert files[0].columns != files[1].columns
