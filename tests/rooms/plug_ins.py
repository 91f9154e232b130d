"""Plug-ins for tests: a format, a storage and sources, at the top of a module, where pickle finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from torch_table_loader import ConfigError, TableError
from torch_table_loader.extend import DataFile, FileMeta, FileVersion

GROUP = 4


@dataclass(frozen=True)
class NumbersReader:
    """Reads a text file of integers, one a line, as one column."""

    name: str = "numbers"
    column: str = "number"

    def inspect(self, storage: Any, file: DataFile, schema: pa.Schema | None) -> FileMeta:
        rows = len(self.numbers(storage, file))
        groups = tuple(min(GROUP, rows - start) for start in range(0, rows, GROUP))
        return FileMeta(pa.schema([(self.column, pa.int64())]), groups, groups)

    def prune(self, file: DataFile, meta: FileMeta, filters: Any, schema: pa.Schema) -> Sequence[bool]:
        return [True] * len(meta.group_rows)

    def null_columns(self, meta: FileMeta, columns: Sequence[str], kept: Sequence[bool]) -> frozenset[str]:
        return frozenset()

    def open(self, storage: Any, file: DataFile, meta: FileMeta) -> NumbersFile:
        return NumbersFile(self.numbers(storage, file), meta.schema.names[0])

    def numbers(self, storage: Any, file: DataFile) -> list[int]:
        with storage.open(file.path) as source:
            try:
                return [int(line) for line in bytes(source.read()).splitlines()]
            except ValueError as error:
                raise TableError(f"{file.name}: {error}") from error


@dataclass
class NumbersFile:
    rows: list[int]
    column: str

    def batches(self, groups: range, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        stop = min(groups.stop * GROUP, len(self.rows))
        for start in range(groups.start * GROUP, stop, max_rows):
            part = self.rows[start : min(start + max_rows, stop)]
            yield pa.record_batch({self.column: pa.array(part, pa.int64())}).select(list(columns))

    def close(self) -> None:
        pass


class NoOpen(NumbersReader):
    open = None  # type: ignore[assignment]


class CannotBeMade(NumbersReader):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


numbers = NumbersReader()
other_name = NumbersReader("figures")
no_open = NoOpen()
just_a_number = 5


def make_numbers() -> NumbersReader:
    return NumbersReader("made")


def write_numbers(folder: Path, files: int = 5, rows: int = 11) -> list[int]:
    """Write a table; return its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(files):
        (folder / f"{at}.txt").write_text("".join(f"{at * rows + row}\n" for row in range(rows)))
    return list(range(files * rows))


def install(site: Path, **formats: str) -> None:
    """Install a distribution with entry points in a folder on the path."""
    info = site / "some_formats-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-formats\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in formats.items()]
    (info / "entry_points.txt").write_text("\n".join(["[torch_table_loader.formats]", *lines, ""]))


@dataclass(frozen=True)
class Scrambled:
    """A storage of files whose bits are all inverted. It cannot list."""

    folder: str
    is_local: bool = False
    fork_safe = True

    def open(self, path: str) -> pa.NativeFile:
        try:
            return pa.BufferReader(turned((Path(self.folder) / path).read_bytes()))
        except OSError as error:
            raise TableError(f"{path}: {error}") from error

    def version(self, path: str) -> FileVersion:
        try:
            data = (Path(self.folder) / path).read_bytes()
        except OSError as error:
            raise TableError(f"{path}: {error}") from error
        return FileVersion(len(data), etag=hashlib.sha256(data).hexdigest())

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Placed(Scrambled):
    """A storage that has a name."""

    @property
    def place(self) -> str:
        return f"scrambled:{self.folder}"


def turned(data: bytes) -> bytes:
    return bytes(byte ^ 255 for byte in data)


@dataclass(frozen=True)
class Catalog:
    """A source: a listed table of numbers at one snapshot. Each commit adds a file."""

    folder: str
    commits: int
    pinned: bool = False
    lost: frozenset[int] = frozenset()
    storage: Any = field(default_factory=lambda: Scrambled("/"))
    schema = pa.schema([("number", pa.int64())])
    partition_schema = pa.schema([])
    notes = ()

    @property
    def files(self) -> tuple[DataFile, ...]:
        paths = [f"{self.folder}/{at}.txt" for at in range(self.commits)]
        versions = map(self.storage.version, paths)
        return tuple(
            DataFile(path, Path(path).name, version, "numbers", reader=numbers)
            for path, version in zip(paths, versions, strict=True)
        )

    @property
    def snapshot_id(self) -> int:
        return self.commits

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.commits}".encode()).hexdigest()

    @property
    def description(self) -> str:
        return f"numbers, snapshot {self.commits}"

    def at_snapshot(self, snapshot_id: int) -> Catalog:
        if snapshot_id in self.lost:
            raise ConfigError(f"snapshot {snapshot_id} has expired")
        return replace(self, commits=snapshot_id)
