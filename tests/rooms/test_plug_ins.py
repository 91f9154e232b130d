"""Plug-ins: formats by object and by name, sources, and storages."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.rooms.plug_ins import (
    Catalog,
    NumbersReader,
    Placed,
    Scrambled,
    install,
    numbers,
    turned,
    write_numbers,
)
from tests.servers.remote_files import FarStore
from tests.states import table_of
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, TableError
from torch_table_loader.cli.main import main
from torch_table_loader.extend import FORMATS, DataFile
from torch_table_loader.opening import agreed_source
from torch_table_loader.testing import ContractError, check_format_reader, check_source, check_storage, stored_files

SERVED: dict[str, dict[str, Any]] = {
    "threads": {},
    "fork": {"worker_type": "fork"},
    "spawn": {"worker_type": "spawn"},
    "forkserver": {"worker_type": "forkserver"},
    "rows": {"shuffle": "rows", "row_store": "memory"},
}
IN_EVERY_WORKER = [pytest.param(name, marks=pytest.mark.slow if name == "spawn" else ()) for name in SERVED]
MOST = [pytest.param(name, marks=pytest.mark.slow if name in ("spawn", "forkserver") else ()) for name in SERVED]
"""New processes take seconds to import torch."""
PLUGS = "tests.rooms.plug_ins"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and its children, in which plug-ins can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_numbers(tmp_path / "t")
    return tmp_path / "t"


def delivered(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["number"].tolist()]


def loader_of(*args: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(*args, **{"batch_size": 4, "num_workers": 2, **options})[0]


# Formats


@pytest.mark.parametrize("served", IN_EVERY_WORKER)
@daily(2)
def test_a_reader_passed_as_an_object_reads_in_every_worker(table: Path, served: str) -> None:
    loader = loader_of(table, numbers, **SERVED[served])
    assert sorted(delivered(loader)) == list(range(55))


@pytest.mark.parametrize("served", IN_EVERY_WORKER)
def test_an_installed_reader_is_found_in_every_worker(table: Path, site: Path, served: str) -> None:
    install(site, numbers=f"{PLUGS}:numbers", made=f"{PLUGS}:make_numbers")
    name = "made" if served == "rows" else "numbers"
    assert sorted(delivered(loader_of(table, name, **SERVED[served]))) == list(range(55))


def test_a_state_resumes_with_a_reader_passed_as_an_object(table: Path) -> None:
    whole = delivered(loader_of(table, numbers, shuffle="splits"))
    loader = loader_of(table, numbers, shuffle="splits")
    iterator = iter(loader)
    begun = [number for _ in range(3) for number in next(iterator)["number"].tolist()]
    state = loader.state_dict()
    again = loader_of(table, numbers, shuffle="splits", **SERVED["fork"])
    again.load_state_dict(state)
    assert begun + delivered(again) == whole


def test_a_plan_cache_distinguishes_readers_of_one_name(table: Path, tmp_path: Path) -> None:
    for column in ("number", "figure"):
        dataset = StructuredDataset(table, NumbersReader(column=column), plan_cache=str(tmp_path / "plans"))
        assert dataset.schema.names == [column]
    assert len(list((tmp_path / "plans").iterdir())) == 2 * 5


def test_the_reader_of_this_test_keeps_the_contract(table: Path) -> None:
    check_format_reader(NumbersReader(), *stored_files(table, "numbers"))


def test_every_name_is_listed_once_and_ours_first(table: Path, site: Path) -> None:
    install(site, numbers=f"{PLUGS}:numbers", parquet=f"{PLUGS}:numbers")
    with pytest.raises(ConfigError, match="format must be one of") as refused:
        StructuredDataset(table, "quux")
    listed = str(refused.value).partition("one of ")[2].partition(", got")[0]
    names = re.findall(r"'([\w-]+)'", listed)
    assert tuple(names[: len(FORMATS)]) == FORMATS
    assert "numbers" in names
    assert names.count("parquet") == 1


def test_an_installed_reader_does_not_take_a_name_of_ours(table: Path, site: Path) -> None:
    install(site, csv=f"{PLUGS}:numbers")
    assert StructuredDataset(str(table / "0.txt"), "csv").schema.names == ["0"]


FAULTY = {
    "nonsense:gone": "format reader 'bad' is installed as nonsense:gone but cannot be loaded .*reinstall",
    f"{PLUGS}:nowhere": "cannot be loaded .*no attribute 'nowhere'",
    f"{PLUGS}:CannotBeMade": r"installed as 'bad' could not be made \(RuntimeError: no licence\)",
    f"{PLUGS}:other_name": "installed as 'bad' must have this name, but calls itself 'figures'",
    f"{PLUGS}:no_open": "installed as 'bad' must be a FormatReader, but NoOpen has no method open",
    f"{PLUGS}:just_a_number": "must be a FormatReader, but int has no method inspect, prune, null_columns, open",
}


@pytest.mark.parametrize("value", FAULTY)
def test_a_faulty_plug_in_is_refused(table: Path, site: Path, value: str) -> None:
    install(site, bad=value)
    with pytest.raises(ConfigError, match=FAULTY[value]):
        StructuredDataset(table, "bad")


def test_a_name_installed_twice_is_refused(table: Path, site: Path, tmp_path: Path) -> None:
    install(site, bad=f"{PLUGS}:numbers")
    (tmp_path / "more").mkdir()
    (site / "some_formats-1.0.dist-info").rename(site / "first_formats-1.0.dist-info")
    install(site, bad=f"{PLUGS}:other_name")
    for folder in ("first", "some"):
        metadata = site / f"{folder}_formats-1.0.dist-info" / "METADATA"
        metadata.write_text(f"Metadata-Version: 2.1\nName: {folder}-formats\nVersion: 1.0\n")
    with pytest.raises(ConfigError, match=r"'bad' must mean one format reader, but .*:numbers and .*:other_name"):
        StructuredDataset(table, "bad")


def test_an_unknown_name_is_refused_with_those_that_exist(table: Path, site: Path) -> None:
    install(site, numbers=f"{PLUGS}:numbers")
    with pytest.raises(
        ConfigError, match=r"format must be one of 'parquet', .*'numbers'.*, got 'numbres'; did you mean num"
    ):
        StructuredDataset(table, "numbres")


@dataclass(frozen=True)
class Local(NumbersReader):
    handle: Any = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NumbersReader, "format must be an instance of a format reader, got the class NumbersReader; call it first"),
        (NumbersReader(name=""), "format must have a name, a string that is not empty, but NumbersReader.name is ''"),
        (Local(handle=open), "format must be one"),
    ],
)
def test_an_object_that_is_not_a_reader_is_refused(table: Path, given: Any, message: str) -> None:
    if isinstance(given, Local):
        message, given = "format must pickle", Local(handle=sys._getframe())
    with pytest.raises(ConfigError, match=message):
        StructuredDataset(table, given)


def test_the_command_line_takes_an_installed_name(table: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, numbers=f"{PLUGS}:numbers")
    assert main(["inspect", str(table), "--format", "numbers"]) == 0
    assert "number" in capsys.readouterr().out


# Sources


def scrambled(folder: Path) -> Path:
    """Invert all bits of a table's files."""
    for path in folder.rglob("*.txt"):
        path.write_bytes(turned(path.read_bytes()))
    return folder


@dataclass(frozen=True)
class Listed:
    """A source without snapshots."""

    storage: Any
    files: tuple[DataFile, ...]
    partition_schema: pa.Schema


def listed(table: Path) -> Listed:
    source = Catalog(str(scrambled(table)), 5)
    return Listed(source.storage, source.files, source.partition_schema)


@pytest.mark.parametrize("served", MOST)
def test_a_source_passed_as_an_object_is_read_by_every_worker(table: Path, served: str) -> None:
    loader = loader_of(source=listed(table), **SERVED[served])
    assert sorted(delivered(loader)) == list(range(55))


def test_from_source_makes_the_same_dataset(table: Path) -> None:
    source = listed(table)
    dataset = StructuredDataset.from_source(source, batch_size=7)
    assert isinstance(dataset, StructuredDataset)
    assert dataset.options.batch_size == 7
    assert dataset.snapshot_id is None
    assert [file.name for file in dataset.table.files] == [file.name for file in source.files]
    loader, made = StructuredDataset.create_dataloader(source=source, batch_size=7)
    assert len(loader) == len(dataset) == 8
    assert made.job.compared == dataset.job.compared


def test_ranks_share_a_source(table: Path) -> None:
    source = listed(table)
    parts = [
        delivered(loader_of(source=source, num_ranks=3, rank=rank, even_ranks="balance", check_plan=False))
        for rank in range(3)
    ]
    assert sorted(number for part in parts for number in part) == list(range(55))


def test_the_sources_and_storages_of_this_test_keep_their_contracts(table: Path) -> None:
    source = listed(table)
    check_source(source)
    check_source(Catalog(str(table), 3))
    check_storage(source.storage, source.files[0].path)


@pytest.mark.parametrize("served", MOST)
def test_a_state_resumes_at_its_own_snapshot(table: Path, served: str) -> None:
    folder = str(scrambled(table))
    options = {"shuffle": "splits", **SERVED[served]}
    whole = delivered(loader_of(source=Catalog(folder, 3), **options))
    loader = loader_of(source=Catalog(folder, 3), **options)
    iterator = iter(loader)
    begun = [number for _ in range(3) for number in next(iterator)["number"].tolist()]
    state = loader.state_dict()
    assert table_of(state)["snapshot_id"] == 3
    again, dataset = StructuredDataset.create_dataloader(
        source=Catalog(folder, 5), batch_size=4, num_workers=2, **options
    )
    assert dataset.snapshot_id == 5
    again.load_state_dict(state)
    assert begun + delivered(again) == whole
    assert dataset.snapshot_id == 3
    assert sorted(whole) == list(range(33))


def test_a_state_of_another_snapshot_is_refused_if_one_was_chosen(table: Path) -> None:
    folder = str(scrambled(table))
    state = loader_of(source=Catalog(folder, 3)).state_dict()
    pinned = loader_of(source=Catalog(folder, 5, pinned=True))
    with pytest.raises(ResumeError, match="state is of snapshot 3, and this is snapshot 5"):
        pinned.load_state_dict(state)
    expired = loader_of(source=Catalog(folder, 5, lost=frozenset({3})))
    with pytest.raises(ResumeError, match="snapshot 3, which cannot be read: snapshot 3 has expired"):
        expired.load_state_dict(state)
    assert sorted(delivered(expired)) == list(range(55))


@dataclass(frozen=True)
class Forgetful(Catalog):
    def at_snapshot(self, snapshot_id: int) -> Catalog:
        return super().at_snapshot(snapshot_id + 1)


@dataclass(frozen=True)
class Unnamed(Catalog):
    @property
    def fingerprint(self) -> str:
        return "mine"


def test_faulty_sources_of_snapshots_are_refused(table: Path) -> None:
    folder = str(scrambled(table))
    for source, message in (
        (Forgetful(folder, 3), "Forgetful must be the same at its own snapshot 3"),
        (Catalog(folder, 5, lost=frozenset({5})), "must open its own snapshot 5, but at_snapshot raised.*expired"),
        (Unnamed(folder, 3), "a fingerprint of 64 hexadecimal digits, got 'mine'"),
        (replace_format(listed(table), "figures"), "'4.txt' in a format that cannot be read: ConfigError: format must"),
    ):
        with pytest.raises(ContractError, match=message):
            check_source(source)


def replace_format(source: Listed, name: str) -> Listed:
    files = tuple(replace(file, format=name, reader=None) for file in source.files)
    return replace(source, files=files)


@dataclass
class RankZero:
    """The view of rank 0, for a rank with another view."""

    snapshot_id: int = 0
    names: tuple[str, ...] = ()

    def common_value(self, name: str, value: Any) -> Any:
        return self.snapshot_id

    def common_files(self, files: Any) -> Any:
        return tuple(file for file in files if file.name in self.names)


def test_every_rank_reads_what_rank_0_sees(table: Path) -> None:
    folder = str(scrambled(table))
    newer: Any = agreed_source(Catalog(folder, 5), RankZero(snapshot_id=3))  # type: ignore[arg-type]
    assert newer.snapshot_id == 3
    source = Catalog(folder, 5)
    plain = Listed(source.storage, source.files, source.partition_schema)
    fewer = agreed_source(plain, RankZero(names=("1.txt", "3.txt")))  # type: ignore[arg-type]
    assert [file.name for file in fewer.files] == ["1.txt", "3.txt"]


def test_an_object_that_is_not_a_source_is_refused(table: Path) -> None:
    source: Any = listed(table)
    for options, message in (
        ({"source": 5}, "source must be a Source, but int has no storage, files, partition_schema"),
        ({"source": Listed}, "source must be an instance of a Source, got the class Listed; call it first"),
        ({"source": Listed(3, (), pa.schema([]))}, "source.storage must be a Storage, but int has no is_local, open"),
        ({"source": source, "path": "x"}, "path= cannot be passed with source="),
        ({"source": source, "format": "csv"}, "format= cannot be passed with source="),
        ({"source": source, "files": ["a"]}, "files= cannot be passed with source="),
        ({"source": Catalog(str(table), 2), "schema": pa.schema([])}, "schema= cannot be passed with source="),
    ):
        with pytest.raises(ConfigError, match=message):
            StructuredDataset(**options)


# Storages


@pytest.mark.parametrize("served", MOST)
def test_a_storage_passed_as_an_object_is_read_by_every_worker(table: Path, served: str) -> None:
    storage, names = Scrambled(str(scrambled(table).parent)), [f"{at}.txt" for at in range(5)]
    by_name = loader_of([f"t/{name}" for name in names], numbers, storage=storage, **SERVED[served])
    below = loader_of("t", numbers, storage=storage, files=names, **SERVED[served])
    assert by_name.state_dict() == below.state_dict()
    rows = delivered(by_name)
    assert rows == delivered(below)
    assert sorted(rows) == list(range(55))


def test_paths_in_a_storage_may_have_partitions(tmp_path: Path) -> None:
    for day in (1, 2):
        write_numbers(tmp_path / f"day={day}", files=1)
    scrambled(tmp_path)
    names = [f"day={day}/0.txt" for day in (1, 2)]
    dataset = StructuredDataset(names, numbers, storage=Scrambled(str(tmp_path)))
    assert [dict(file.partition) for file in dataset.table.files] == [{"day": 1}, {"day": 2}]
    assert [file.name for file in dataset.table.files] == names


def test_a_plan_cache_requires_the_place_of_a_storage(table: Path, tmp_path: Path) -> None:
    scrambled(table)
    options: dict[str, Any] = {"files": ["0.txt"], "plan_cache": str(tmp_path / "plans")}
    with pytest.raises(ConfigError, match=r"plan_cache= needs .* Scrambled has no attribute place"):
        loader_of("t", numbers, storage=Scrambled(str(tmp_path)), **options)
    for _ in range(2):
        assert delivered(loader_of("t", numbers, storage=Placed(str(tmp_path)), **options)) == list(range(11))
    assert len(list((tmp_path / "plans").iterdir())) == 1


def test_a_storage_with_ranges_has_all_required_methods(table: Path) -> None:
    @dataclass(frozen=True)
    class Ranged(Scrambled):
        def read_range(self, path: str, start: int, stop: int, version: Any = None) -> bytes:
            raise AssertionError(path)

    missing = "must be a RangeStorage, since it has read_range, but Ranged has no checks, place, traffic"
    with pytest.raises(ConfigError, match=f"storage {missing}"):
        StructuredDataset("0.txt", numbers, storage=Ranged(str(table)))
    with pytest.raises(ConfigError, match=rf"source\.storage {missing}"):
        StructuredDataset.from_source(Catalog(str(table), 1, storage=Ranged(str(table))))


def test_a_storage_with_ranges_is_fetched_and_cached_as_asked(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"number": range(500)}), tmp_path / "t" / "0.parquet", row_group_size=50)
    asked = {"read_ahead_bytes": "1MiB", "cache_dir": str(tmp_path / "cache"), "retry_seconds": 1}
    path = [str(tmp_path / "t" / "0.parquet")]
    for fetched in (True, False):
        loader = loader_of(path, "parquet", storage=FarStore(), storage_options=asked)
        assert sorted(delivered(loader)) == list(range(500))
        assert loader.dataset.explain().fetch.ahead_bytes == 1 << 20
        assert (loader.metrics().fetch.num_bytes > 0) == fetched


def test_an_object_that_is_not_a_storage_is_refused(table: Path) -> None:
    storage: Any = Scrambled(str(table))
    for options, message in (
        ({"storage": "s3"}, "storage must be a Storage, but str has no is_local, open, version, close"),
        ({"storage": Scrambled}, "storage must be an instance of a Storage, got the class Scrambled; call it first"),
        ({"storage": storage, "storage_options": {"key": "k"}}, "storage_options= cannot be passed with storage="),
        ({"storage": storage, "path": [""]}, "path must name files of the storage"),
    ):
        with pytest.raises(ConfigError, match=message):
            StructuredDataset(**{"path": "0.txt", "format": numbers, **options})
    with pytest.raises(TableError, match=r"nothing.txt"):
        StructuredDataset("nothing.txt", numbers, storage=storage)
