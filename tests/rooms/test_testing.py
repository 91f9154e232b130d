"""The contract checks: each rule has a plug-in that breaks it, and the check reports it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.parquet_reader import PARQUET_READER
from torch_table_loader import (
    RoundRobinStrategy,
    RowBalancedStrategy,
    SizeBalancedStrategy,
    TargetSizeStrategy,
)
from torch_table_loader.errors import ConfigTypeError, TableError
from torch_table_loader.extend import FileStorage, PathSource, Traffic
from torch_table_loader.read.parquet import ParquetFile
from torch_table_loader.records import DataFile, DataFileInfo, FileMeta, FileVersion, RowRange, Shard, Split
from torch_table_loader.testing import (
    ContractError,
    check_format_reader,
    check_source,
    check_split_strategy,
    check_storage,
    data_file,
    zoo,
)

# Split strategies


def whole(files: Sequence[DataFileInfo]) -> list[Split]:
    return [Split(file) for file in files]


@dataclass
class Dealing:
    """A sound generator; the faulty ones below change one thing."""

    calls: int = 0

    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        return list(files)

    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        mine = self.order(files, epoch)[rank::num_ranks]
        return [Shard(worker, whole(mine[worker::num_workers])) for worker in range(num_workers)]


class ThreeArguments(Dealing):
    def generate(self, files: list[DataFileInfo], num_workers: int, epoch: int) -> list[Shard]:  # type: ignore[override]
        return super().generate(files, num_workers, epoch)


class ByHash(Dealing):
    """``hash()`` of a string differs by process."""

    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        return sorted(files, key=lambda file: hash(file.path))


class Counting:
    calls = 0

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        self.calls += 1
        return whole(files)[:: 1 if self.calls % 7 else -1]


class Forgetful(Dealing):
    """Loses its data when it is pickled."""

    def __init__(self) -> None:
        super().__init__(calls=1)

    def __reduce__(self) -> tuple[Any, ...]:
        return _forgotten, ()

    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        return list(files)[:: 1 if self.calls else -1]


def _forgotten() -> Forgetful:
    made = Forgetful()
    made.calls = 0
    return made


class Sorting(Dealing):
    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        assert isinstance(files, list)
        files.sort(key=lambda file: file.path, reverse=True)
        return files


class Marking(Dealing):
    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        for file in files:
            assert isinstance(file.partition, dict)
            file.partition["seen"] = True
        return list(files)


class Growing(Dealing):
    def generate(self, files: list[DataFileInfo], num_workers: int, *rest: int) -> list[Shard]:
        return super().generate(files, num_workers + 1, *rest)


class Miscounting(Dealing):
    def generate(self, *args: Any) -> list[Shard]:
        shards = super().generate(*args)
        for shard in shards:
            shard.row_count = 1
        return shards


class BlindToRanks(Dealing):
    def generate(
        self, files: list[DataFileInfo], num_workers: int, epoch: int, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        return super().generate(files, num_workers, epoch)


class LosesInEpoch7(Dealing):
    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        return list(files)[epoch // 7 :]


class NeedsFiles(Dealing):
    def order(self, files: Sequence[DataFileInfo], epoch: int) -> list[DataFileInfo]:
        return [files[0], *files[1:]]


def without_rows_of_pruned_groups(files: Sequence[DataFileInfo]) -> list[Split]:
    return [
        Split(file, RowRange(start, group.num_rows))
        for file in files
        for start, group in zip(starts(file), file.row_groups, strict=True)
        if group.kept
    ]


def starts(file: DataFileInfo) -> list[int]:
    return [0, *itertools.accumulate(group.num_rows for group in file.row_groups)][: len(file.row_groups)]


def sorting_cutter(files: Sequence[DataFileInfo]) -> list[Split]:
    if isinstance(files, list):
        files.reverse()
    return whole(sorted(files, key=lambda file: file.path))


def list_or_not(files: Sequence[DataFileInfo]) -> list[Split]:
    return whole(files if isinstance(files, list) else list(files)[::-1])


SOUND = [
    whole,
    Dealing(),
    ThreeArguments(),
    TargetSizeStrategy(target_rows=4),
    SizeBalancedStrategy(300),
    RowBalancedStrategy(3),
    RoundRobinStrategy(shuffle=True),
]

FAULTY: dict[str, tuple[Any, str]] = {
    "no pickle": (lambda table: [Split(file) for file in table], "must pickle"),
    "call order": (Counting(), "Counting on table .* must be pure, but asked again, in another order it answers"),
    "lost in pickle": (Forgetful(), "must be pure, but pickled it answers otherwise"),
    "list changed": (Sorting(), "Sorting on table .* must not change the files"),
    "file changed": (Marking(), "must not change the files"),
    "list changed by a cutter": (sorting_cutter, "sorting_cutter on table .* must not change the files"),
    "list alone": (list_or_not, "must cut a list of files as it cuts any other sequence"),
    "worker ids": (Growing(), r"num_ranks=1 rank=0 num_workers=1 epoch=0: ConfigError: .* got ids \[0, 1\]"),
    "row count": (Miscounting(), "says row_count=1 of shard 0, whose splits have 0 rows"),
    "ranks ignored": (BlindToRanks(), "on table 'one row', num_ranks=2 num_workers=1 epoch=0: .* more than once rows"),
    "one epoch": (LosesInEpoch7(), "on table 'one row', num_ranks=1 num_workers=1 epoch=7: .* leaves out rows"),
    "no files": (NeedsFiles(), "NeedsFiles on table 'no files', .*: IndexError"),
    "pruned rows": (without_rows_of_pruned_groups, "on table 'pruned row groups': .* leaves out rows"),
}


@pytest.mark.parametrize("strategy", SOUND, ids=lambda strategy: getattr(strategy, "__name__", str(strategy)))
@daily(2)
def test_sound_strategies_pass(strategy: Any) -> None:
    check_split_strategy(strategy, other_process=False)


@pytest.mark.parametrize("fault", FAULTY)
@daily(3)
def test_a_faulty_strategy_is_refused(fault: str) -> None:
    strategy, message = FAULTY[fault]
    with pytest.raises(ContractError, match=message):
        check_split_strategy(strategy, other_process=False)


@pytest.mark.slow
def test_string_hashes_are_detected_in_another_process() -> None:
    check_split_strategy(ByHash(), other_process=False)
    with pytest.raises(ContractError, match=r"ByHash on .* asked in another process it answers otherwise"):
        check_split_strategy(ByHash(), ranks=[1], workers=[1], epochs=[0])


def test_another_process_agrees_on_a_sound_strategy() -> None:
    check_split_strategy(RoundRobinStrategy(shuffle=True), ranks=[2], workers=[2], epochs=[0, 3])


def test_a_strategy_of_a_script_cannot_be_imported_elsewhere() -> None:
    script = (
        "from torch_table_loader.extend import Split\n"
        "from torch_table_loader.testing import check_split_strategy\n"
        "def mine(files): return [Split(file) for file in files]\n"
        "try: check_split_strategy(mine)\n"
        "except AssertionError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "must work in another process" in run.stdout
    assert "define it in a module that can be imported" in run.stdout


def test_files_of_the_callers_own_are_checked() -> None:
    files = [data_file("a", [3, 4]), data_file("b", [5])]
    check_split_strategy(TargetSizeStrategy(), files, other_process=False)
    with pytest.raises(ContractError, match=r"on table 'files': .* leaves out rows"):
        check_split_strategy(without_rows_of_pruned_groups, [data_file("a", [3], pruned=[0])], other_process=False)


def test_an_object_that_is_not_a_strategy_is_a_config_error() -> None:
    with pytest.raises(ConfigTypeError, match="got the class Dealing"):
        check_split_strategy(Dealing)


def test_the_zoo_is_fresh_each_time_and_as_described() -> None:
    tables = zoo()
    assert tables == zoo()
    assert tables["hive partitions"][0].partition is not zoo()["hive partitions"][0].partition
    assert not tables["no files"]
    assert all(file.record_count == 0 for file in tables["nothing but empty files"])
    for files in tables.values():
        assert len({file.path for file in files}) == len(files)


# Storages


@pytest.fixture
def stored(tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    return str(tmp_path / "file")


@dataclass
class Plain:
    """A sound storage; the faulty ones below change one thing."""

    is_local: Any = True
    closed: bool = False
    looks: int = 0

    def open(self, path: str) -> Any:
        return self.found(path, lambda: pa.OSFile(path, "rb"))

    def version(self, path: str) -> FileVersion:
        found: FileVersion = self.found(path, lambda: FileVersion(Path(path).stat().st_size))
        return found

    def close(self) -> None:
        self.closed = True

    def found(self, path: str, what: Any) -> Any:
        try:
            return what()
        except FileNotFoundError as error:
            raise TableError(f"{path} is gone") from error


class LocksItself(Plain):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a lock")


class PythonFiles(Plain):
    def open(self, path: str) -> Any:
        return self.found(path, lambda: Path(path).open("rb"))


class OneHandle(Plain):
    """Gives every caller the same handle."""

    handles: dict[str, Any]

    def open(self, path: str) -> Any:
        handles = self.__dict__.setdefault("handles", {})
        if path not in handles or handles[path].closed:
            handles[path] = super().open(path)
        return handles[path]


class WrongSize(Plain):
    def version(self, path: str) -> FileVersion:
        super().version(path)
        return FileVersion(7)


class Restless(Plain):
    def version(self, path: str) -> FileVersion:
        self.looks += 1
        return replace(super().version(path), etag=str(self.looks))


class NoVersion(Plain):
    def version(self, path: str) -> Any:
        return super().version(path).num_bytes


class RawErrors(Plain):
    def found(self, path: str, what: Any) -> Any:
        return what()


class Nameless(Plain):
    def found(self, path: str, what: Any) -> Any:
        try:
            return what()
        except FileNotFoundError as error:
            raise TableError("gone") from error


class Forgiving(Plain):
    def version(self, path: str) -> FileVersion:
        return super().version(path) if Path(path).exists() else FileVersion(0)


class StaysClosed(Plain):
    def open(self, path: str) -> Any:
        if self.closed:
            raise ValueError("closed")
        return super().open(path)


class ClosesOnce(Plain):
    def close(self) -> None:
        if self.closed:
            raise ValueError("closed twice")
        self.closed = True


class OpensAnother(Plain):
    """Opens another file after it was pickled."""

    def __reduce__(self) -> Any:
        return OpensAnother, (self.is_local, False, 1)

    def open(self, path: str) -> Any:
        return pa.BufferReader(b"xx") if self.looks else super().open(path)


@dataclass
class OneThread(Plain):
    busy: int = 0

    def open(self, path: str) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("only in the thread that made me")
        return super().open(path)


STORAGES: dict[str, tuple[Any, str]] = {
    "is_local": (Plain(is_local="yes"), "is_local as a bool, got 'yes'"),
    "pickle": (LocksItself(), "must pickle"),
    "handle type": (PythonFiles(), r"must open a pyarrow.NativeFile, got BufferedReader; wrap it"),
    "own positions": (OneHandle(), "a position of their own|must open and read|random access"),
    "size": (WrongSize(), "version says 7 bytes, but it has 100"),
    "version stays": (Restless(), "the version must stay"),
    "version type": (NoVersion(), "must say a FileVersion, got int"),
    "error type": (RawErrors(), "open of a file that is not there must raise TableError, but raised FileNotFound"),
    "error names": (Nameless(), "must name 'is-not-there', but its TableError says: gone"),
    "version of nothing": (
        Forgiving(),
        "version of a file that is not there must .* but raised nothing",
    ),
    "after close": (StaysClosed(), "ValueError: closed"),
    "close twice": (ClosesOnce(), "must open again after a second close, but raised: ValueError: closed twice"),
    "after pickle": (OpensAnother(), "must open the same file after it was pickled"),
    "threads": (OneThread(), "RuntimeError: only in the thread"),
}


@dataclass
class Ranged(Plain):
    """Gives ranges of bytes, and breaks one rule of them."""

    fault: str = ""
    place: Any = "here"

    def read_range(self, path: str, start: int, stop: int, version: FileVersion | None = None) -> bytes:
        if version is not None and version != self.version(path) and self.fault != "any version":
            raise ValueError("another one") if self.fault == "error type" else TableError(f"{path} is another one")
        if self.fault == "missing":
            return Path(path).read_bytes()[start:stop]
        with self.open(path) as source:
            data: bytes = source.read_at(stop - start, start)
        return data + b"x" if self.fault == "longer" else data

    def checks(self, version: FileVersion) -> bool:
        return self.fault != "checks nothing"

    def traffic(self) -> Any:
        return 0 if self.fault == "traffic" else Traffic()


class NoChecks(Plain):
    place = "here"

    def read_range(self, *_: Any) -> bytes:
        return b""

    def traffic(self) -> Traffic:
        return Traffic()


STORAGES |= {
    "no checks": (NoChecks(), "must have checks, since it has read_range"),
    "place": (Ranged(place=None), "must have a place, a text, got None"),
    "traffic": (Ranged(fault="traffic"), "must say a Traffic, got int"),
    "range": (Ranged(fault="longer"), "read_range must give bytes"),
    "range of nothing": (Ranged(fault="missing"), "read_range of a file .* must raise TableError, but raised FileNotF"),
    "range of another": (Ranged(fault="any version"), "must refuse another version, since checks"),
    "range's error": (Ranged(fault="error type"), "must raise TableError for another version.* ValueError: another"),
}


def test_sound_storages_pass(stored: str) -> None:
    check_storage(Plain(), stored)
    check_storage(FileStorage("file"), stored)
    check_storage(Ranged(), stored)
    check_storage(Ranged(fault="checks nothing"), stored)


@pytest.mark.parametrize("fault", STORAGES)
def test_a_faulty_storage_is_refused(stored: str, fault: str) -> None:
    storage, message = STORAGES[fault]
    with pytest.raises(ContractError, match=message):
        check_storage(storage, stored)


def test_a_missing_or_tiny_file_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_bytes(b"x")
    with pytest.raises(ContractError, match="at least two bytes, got 1"):
        check_storage(Plain(), str(tmp_path / "tiny"))
    with pytest.raises(ContractError, match="must open and read the file, but raised: TableError"):
        check_storage(Plain(), str(tmp_path / "none"))


# Sources


def lake(root: Path) -> PathSource:
    for day in (1, 2):
        (root / f"day={day}").mkdir(parents=True)
        pq.write_table(sample(), root / f"day={day}" / "a.parquet", row_group_size=7)
    return PathSource.open(str(root), "parquet")


def sample() -> pa.Table:
    count = 20
    return pa.table(
        {
            "number": pa.array([None if at % 9 == 4 else at for at in range(count)], pa.int32()),
            "ratio": [float("nan") if at % 7 == 0 else at / 3 for at in range(count)],
            "word": [None if at > 12 else f"w{at}" for at in range(count)],
            "list": pa.array([[at] * (at % 3) for at in range(count)], pa.list_(pa.int32())),
        }
    )


@dataclass
class Listed:
    """A source with given answers."""

    storage: Any
    files: Any
    partition_schema: Any


class Moody(Listed):
    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "files":
            self.__dict__["files"] = found[::-1]
        return found


class Shuffled(Listed):
    def __reduce__(self) -> Any:
        return Listed, (self.storage, self.files[::-1], self.partition_schema)


def test_a_sound_source_passes(tmp_path: Path) -> None:
    check_source(lake(tmp_path / "lake"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    check_source(PathSource.open(str(tmp_path / "empty"), "parquet"))


def faulty_sources(source: PathSource) -> Iterator[tuple[Any, str]]:
    def having(kind: type = Listed, schema: Any = source.partition_schema, **changes: Any) -> Any:
        first, second = source.files
        return kind(source.storage, [replace(first, **changes), second], schema)

    name = source.files[0].name
    yield having(name=source.files[1].name), "each file once, but the name"
    yield having(path=source.files[1].path), "each file once, but the path"
    yield having(name=f"/{name}"), "relative to the table's root"
    yield having(name="s3://key:secret@bucket/a"), "relative to the table's root"
    yield having(format=""), "say each file's format"
    yield having(partition=()), r"must have the partition columns \['day'\], got \[\]"
    yield having(partition=(("day", "monday"),)), f"'{name}' must have a int64 in partition column 'day', got 'monday'"
    yield having(version=FileVersion(1)), "but its storage says"
    yield having(path="/nowhere/a.parquet"), "which its storage must open, but that raised: MissingFileError"
    yield having(schema=None), "must give a pyarrow.Schema, got NoneType"
    yield having(Moody), "the same order each time"
    yield having(Shuffled), "the same order after pickling"
    yield Listed(source.storage, ["a.parquet"], source.partition_schema), "must list DataFiles, got str"


def test_faulty_sources_are_refused(tmp_path: Path) -> None:
    for source, message in faulty_sources(lake(tmp_path / "lake")):
        with pytest.raises(ContractError, match=message):
            check_source(source)


# Format readers


@dataclass(frozen=True)
class Faulty(PARQUET_READER):  # type: ignore[misc]
    """Parquet, with one thing wrong."""

    fault: str = ""
    inspected: list[str] = field(default_factory=list, compare=False)

    def inspect(self, storage: Any, file: DataFile, schema: Any) -> Any:
        self.inspected.append(file.name)
        return INSPECTING[self.fault](self, storage, file) if self.fault in INSPECTING else self.sound(storage, file)

    def sound(self, storage: Any, file: DataFile) -> Any:
        return PARQUET_READER.inspect(self, storage, file, None)

    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        kept: Sequence[bool] = PARQUET_READER.prune(self, file, meta, filters, schema)
        return PRUNING[self.fault](kept) if self.fault in PRUNING else kept

    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> Any:
        found = PARQUET_READER.null_columns(self, meta, columns, kept)
        return NULLS[self.fault](found, kept) if self.fault in NULLS else found

    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> Any:
        if self.fault == "footer again":
            self.sound(storage, file)
        if self.fault == "raw error on open":
            return FaultyFile(PARQUET_READER.open(self, RawStorage(inner=storage), file, meta), "", meta)
        return FaultyFile(PARQUET_READER.open(self, storage, file, meta), self.fault, meta)


@dataclass
class RawStorage(Plain):
    inner: Any = None

    def open(self, path: str) -> Any:
        try:
            return self.inner.open(path)
        except TableError as error:
            raise OSError(path) from error


@dataclass
class FaultyFile:
    inner: ParquetFile
    fault: str
    meta: FileMeta

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[Any]:
        if self.fault == "max_rows":
            max_rows = 1 << 20
        if self.fault == "columns in the file's order":
            columns = [name for name in self.meta.schema.names if name in columns]
        if self.fault == "columns besides" and not columns:
            columns = self.meta.schema.names
        if self.fault == "no columns, no rows" and not columns:
            return
        if self.fault == "last row group forgotten" and len(groups) > 1:
            groups = groups[:-1]
        if self.fault == "row groups from the start":
            groups = range(len(groups))
        for batch in self.inner.batches(groups, columns, max_rows):
            yield BATCHES.get(self.fault, lambda same: same)(batch)

    def close(self) -> None:
        self.inner.close()


def widened(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "number" not in batch.schema.names:
        return batch
    at = batch.schema.names.index("number")
    return batch.set_column(at, "number", batch.column(at).cast(pa.int64()))


def noted(reader: Faulty, storage: Any, file: DataFile) -> Any:
    found = reader.sound(storage, file)
    return replace(found, group_bytes=tuple(len(reader.inspected) + size for size in found.group_bytes))


def raw(reader: Faulty, storage: Any, file: DataFile) -> Any:
    try:
        return reader.sound(storage, file)
    except TableError as error:
        raise OSError("No such file") from error


def nameless(reader: Faulty, storage: Any, file: DataFile) -> Any:
    try:
        return reader.sound(storage, file)
    except TableError as error:
        raise TableError("torn" if "is-not-there" not in file.name else str(error)) from error


def raw_when_torn(reader: Faulty, storage: Any, file: DataFile) -> Any:
    try:
        return reader.sound(storage, file)
    except TableError as error:
        if "is-not-there" in file.name:
            raise
        raise pa.ArrowInvalid("not parquet") from error


def with_rows(change: Any) -> Any:
    def inspect(reader: Faulty, storage: Any, file: DataFile) -> Any:
        found = reader.sound(storage, file)
        return replace(found, group_rows=change(found.group_rows))

    return inspect


def twice_named(reader: Faulty, storage: Any, file: DataFile) -> Any:
    found = reader.sound(storage, file)
    return replace(found, schema=pa.schema([*found.schema, found.schema.field(0)]))


INSPECTING: dict[str, Any] = {
    "meta changes": noted,
    "raw error when gone": raw,
    "error names no file": nameless,
    "raw error when torn": raw_when_torn,
    "rows moved": with_rows(lambda rows: (rows[0] + 1, rows[1] - 1, *rows[2:])),
    "rows missing": with_rows(lambda rows: (*rows[:-1], rows[-1] - 1)),
    "rows are floats": with_rows(lambda rows: tuple(map(float, rows))),
    "names twice": twice_named,
    "no meta": lambda *_: {"schema": None},
}
PRUNING: dict[str, Any] = {
    "prunes too much": lambda kept: [mark and at != 1 for at, mark in enumerate(kept)],
    "one mark": lambda kept: [True],
}
NULLS: dict[str, Any] = {
    "nulls invented": lambda found, kept: found | {"list"},
    "nulls of pruned row groups": lambda found, kept: found | {"number"},
    "nulls in a list": lambda found, kept: list(found),
}
BATCHES: dict[str, Any] = {
    "tables": lambda batch: pa.Table.from_batches([batch]),
    "other type": widened,
    "other values": lambda batch: batch.slice(1) if batch.num_rows == 7 else batch,
}
READERS = {
    "meta changes": "must say the same each time, and after pickling",
    "raw error when gone": "inspect of a file that is gone must raise TableError, but raised OSError",
    "error names no file": "inspect of a cut file must name it, but says: torn",
    "raw error when torn": "inspect of a cut file must raise TableError or nothing, but raised ArrowInvalid",
    "raw error on open": "open of a file that is gone, or its first batch, must raise TableError, but raised OSError",
    "rows moved": "row group 0 must have the 8 rows of inspect, got 7",
    "rows missing": "must have the 19 rows of inspect, got 20",
    "rows are floats": "must be ints of at least 0",
    "names twice": "column names must be unique",
    "no meta": "inspect must give a FileMeta, got dict",
    "prunes too much": "row group 1 holds rows that pass .*, but prune says False",
    "one mark": "one mark for each of 3 row groups",
    "nulls invented": "null_columns names 'list', which has no null",
    "nulls of pruned row groups": "null_columns names 'number', which has no null in the row groups that are kept",
    "nulls in a list": "must give a frozenset",
    "footer again": "open must use the footer of inspect, but read bytes",
    "tables": "expected RecordBatches, got Table",
    "other type": "column 'number' must be int32 as inspect says, got int64",
    "other values": "row group 0 must have the 7 rows of inspect, got 6",
    "max_rows": "a batch must have at most 7 rows, got 20",
    "columns in the file's order": "exactly the columns .*, in this order",
    "columns besides": r"exactly the columns \[\], in this order",
    "no columns, no rows": "batches without columns must still have all rows",
    "last row group forgotten": "must have the 20 rows of inspect, got 14",
    "row groups from the start": "row group 1 must hold the rows that the whole file has there",
}


def test_a_sound_reader_passes(tmp_path: Path) -> None:
    source = lake(tmp_path / "lake")
    check_format_reader(PARQUET_READER(), source.storage, source.files)
    check_format_reader(Faulty(), source.storage, source.files[:1])


@pytest.mark.parametrize("fault", READERS)
@daily(9)
def test_a_faulty_reader_is_refused(tmp_path: Path, fault: str) -> None:
    source = lake(tmp_path / "lake")
    with pytest.raises(ContractError, match=f"Faulty on 'day=1/a.parquet'.*{READERS[fault]}"):
        check_format_reader(Faulty(fault=fault), source.storage, source.files[:1])


def test_a_reader_needs_a_name_must_pickle_and_needs_files(tmp_path: Path) -> None:
    source = lake(tmp_path / "lake")
    with pytest.raises(ContractError, match="must have a name, got ''"):
        check_format_reader(PARQUET_READER(name=""), source.storage, source.files)
    with pytest.raises(ContractError, match="at least one file"):
        check_format_reader(PARQUET_READER(), source.storage, [])

    class Local(PARQUET_READER):  # type: ignore[misc]
        """Cannot be found by pickle."""

    with pytest.raises(ContractError, match="Local must pickle"):
        check_format_reader(Local(), source.storage, source.files)


def test_every_planted_fault_is_named_in_a_rule() -> None:
    assert {*INSPECTING, *PRUNING, *NULLS, *BATCHES} <= set(READERS)


def test_a_contract_error_is_an_assertion_so_that_runners_report_a_failure() -> None:
    assert issubclass(ContractError, AssertionError)
