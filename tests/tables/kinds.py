"""The formats of tables that keep their history, Iceberg and Delta Lake, as values: what laws of both write and open.

A commit has a number, from 0 on. A `TableKind` gives the id that its format has for it, and the names of options.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake

import torch_table_loader
from tests.guests import is_here
from tests.tables import delta, iceberg
from tests.tables.delta import DeltaWriter, Row
from tests.tables.iceberg import SharingWriter
from tests.tables.plain import meant_warnings
from torch_table_loader import TableLoader

if TYPE_CHECKING:
    from torch_table_loader import DeltaDataset, IcebergDataset

COLUMNS = {"x": "long", "k": "int", "s": "string"}

FORMS = ("parquet", "orc", "avro")

some = delta.some


class KeptTable(ABC):
    """A table that grows by commits, and knows itself which rows live. Files go by their paths.

    `replacing` has the ids of commits that only replaced files, and `restores` says whether deleted rows can come back.
    """

    writer: SharingWriter | DeltaWriter
    restores: bool

    def __init__(self) -> None:
        self.replacing: list[int] = []
        self._did: set[str] = set()

    @property
    @abstractmethod
    def where(self) -> str:
        """The location that a dataset opens, as the table is now."""

    @property
    def files(self) -> list[str]:
        """The data files."""
        return [each.path for each in self.writer.data]

    @property
    def untouched(self) -> list[str]:
        """The data files that this commit may still take out, or give other deletes."""
        return self.files

    def num_rows(self, path: str) -> int:
        """Return how many rows a file has, deleted ones included."""
        [rows] = [each.rows for each in self.writer.data if each.path == path]
        return len(rows)

    @abstractmethod
    def gone(self, path: str) -> frozenset[int]:
        """Return the positions of a file that are deleted."""

    @abstractmethod
    def live(self, path: str | None = None) -> list[Row]:
        """Return the rows that are not deleted, of one file or of all."""

    @abstractmethod
    def append(
        self, rows: Sequence[Row], *, group: int = 4, form: int = 0, partition: int | None = None, changes: bool = True
    ) -> str:
        """Write a data file; returns its path.

        Args:
            rows: of it.
            group: rows of a row group.
            form: counts through the forms of data files that the table may have.
            partition: value of `k` of all rows, where `k` partitions the table.
            changes: False where the rows were in the table before.
        """

    @abstractmethod
    def remove(self, path: str, *, changes: bool = True) -> None:
        """Take a file out; `changes` is False where its rows stay in the table."""

    @abstractmethod
    def mask(self, path: str, positions: Iterable[int], form: int = 0) -> None:
        """Delete these rows of a file and no others, where the table `restores`."""

    def delete(self, positions: Mapping[str, Iterable[int]], form: int = 0) -> None:
        """Delete more rows of some files; `form` counts through the forms of deletes."""
        for path, each in positions.items():
            self.mask(path, self.gone(path) | frozenset(each), form)

    @abstractmethod
    def delete_equal(self, names: Sequence[str], keys: Sequence[Row], partition_of: str, form: int = 0) -> None:
        """Delete rows of earlier commits that are equal to a key in the columns named.

        Where deletes of keys are of a partition, they are of that of a file.
        """

    def compact(self, paths: Sequence[str], group: int = 3) -> str:
        """Put one file in the place of others."""
        rows = [row for path in paths for row in self.live(path)]
        for path in paths:
            self.remove(path, changes=False)
        return self.append(rows, group=group, changes=False)

    def commit(self) -> int:
        """Make a snapshot, or a version, of what was done; returns its id."""
        made = self._commit()
        if self._did == {"replace"}:
            self.replacing.append(made)
        self._did = set()
        return made

    @abstractmethod
    def _commit(self) -> int: ...

    @abstractmethod
    def forget(self) -> None:
        """Take away what reads of commits before the newest need."""


class IcebergTable(KeptTable):
    """Deletes rows by files of positions in version 2, by deletion vectors in version 3, by files of keys in both."""

    writer: SharingWriter

    def __init__(self, root: Path, version: int, columns: Mapping[str, str], *, partitioned: bool) -> None:
        super().__init__()
        fields = [iceberg.column(field_id, name, kind) for field_id, (name, kind) in enumerate(columns.items(), 1)]
        partition_by = 2 if partitioned else None
        self.writer = SharingWriter(root, fields, partition_by, version, table_id=str(uuid.uuid4()))
        self.restores = version == 3

    @property
    def where(self) -> str:
        return self.writer.metadata

    def gone(self, path: str) -> frozenset[int]:
        return frozenset().union(*(each.positions for each in self.writer.deletes if each.path == path))

    def live(self, path: str | None = None) -> list[Row]:
        values = {row[1] for each in self.writer.data if path in (each.path, None) for row in each.rows}
        return [row for row in self.writer.live() if row["x"] in values]

    def append(
        self, rows: Sequence[Row], *, group: int = 4, form: int = 0, partition: int | None = None, changes: bool = True
    ) -> str:
        self._did.add("append" if changes else "replace")
        return self.writer.append(_in(partition, rows), FORMS[form % 3], partition, group=group)

    def remove(self, path: str, *, changes: bool = True) -> None:
        self._did.add("delete" if changes else "replace")
        self.writer.data = [each for each in self.writer.data if each.path != path]
        self.writer.deletes = [each for each in self.writer.deletes if each.path != path]

    def mask(self, path: str, positions: Iterable[int], form: int = 0) -> None:
        self._did.add("overwrite")
        self.writer.delete_vector(path, positions, self._partition(path))

    def delete(self, positions: Mapping[str, Iterable[int]], form: int = 0) -> None:
        if self.restores:
            super().delete(positions, form)
            return
        self._did.add("overwrite")
        for partition in {self._partition(path) for path in positions}:
            of = {path: each for path, each in positions.items() if self._partition(path) == partition}
            self.writer.delete_rows(of, FORMS[form % 3], partition)

    def delete_equal(self, names: Sequence[str], keys: Sequence[Row], partition_of: str, form: int = 0) -> None:
        self._did.add("overwrite")
        ids = [each["id"] for each in self.writer.columns if each["name"] in names]
        self.writer.delete_keys(ids, keys, FORMS[form % 3], self._partition(partition_of))

    def _partition(self, path: str) -> Any:
        [partition] = [each.partition for each in self.writer.data if each.path == path]
        return partition

    def _commit(self) -> int:
        [operation] = self._did if len(self._did) == 1 else ["overwrite"]
        return self.writer.commit(operation=operation)

    def forget(self) -> None:
        self.writer.snapshots = self.writer.snapshots[-1:]


class DeltaTable(KeptTable):
    """Deletes rows by deletion vectors, in files or inline; a commit changes a file once."""

    writer: DeltaWriter
    restores = True

    def __init__(self, root: Path, version: int, columns: Mapping[str, str], *, partitioned: bool) -> None:
        super().__init__()
        fields = [delta.field_of(name, "integer" if kind == "int" else kind) for name, kind in columns.items()]
        self.writer = DeltaWriter(root / "t", fields, ["k"] if partitioned else [], reader=version)
        self._touched: set[str] = set()
        self._count = 0

    @property
    def where(self) -> str:
        return self.writer.uri

    @property
    def untouched(self) -> list[str]:
        return [path for path in self.files if path not in self._touched]

    def gone(self, path: str) -> frozenset[int]:
        return self._file(path).deleted

    def live(self, path: str | None = None) -> list[Row]:
        if path is None:
            return self.writer.live()
        return [row for at, row in enumerate(self._file(path).rows) if at not in self.gone(path)]

    def append(
        self, rows: Sequence[Row], *, group: int = 4, form: int = 0, partition: int | None = None, changes: bool = True
    ) -> str:
        at = None if partition is None else {"k": str(partition)}
        self._count += 1
        path = self.writer.append(_in(partition, rows), at, group=group, name=f"{self._count:04}.parquet")
        self._note(path, "add", changes)
        return path

    def remove(self, path: str, *, changes: bool = True) -> None:
        self.writer.remove(path)
        self._note(path, "remove", changes)

    def mask(self, path: str, positions: Iterable[int], form: int = 0) -> None:
        self.writer.delete(path, positions, "ui"[form % 2])
        self._touched.add(path)
        self._did.add("mask")

    def delete_equal(self, names: Sequence[str], keys: Sequence[Row], partition_of: str, form: int = 0) -> None:
        gone = {tuple(key[name] for name in names) for key in keys}
        for path in self.untouched:
            rows = [tuple(row[name] for name in names) for row in self._file(path).rows]
            if equal := [at for at, row in enumerate(rows) if row in gone]:
                self.delete({path: equal}, form)

    def _file(self, path: str) -> delta.Data:
        [file] = [each for each in self.writer.data if each.path == path]
        return file

    def _note(self, path: str, action: str, changes: bool) -> None:
        self._touched.add(path)
        self._did.add(action if changes else "replace")
        if not changes:
            self.writer.actions[-1] = {action: {**self.writer.actions[-1][action], "dataChange": False}}

    def _commit(self) -> int:
        self._touched = set()
        return self.writer.commit()

    def forget(self) -> None:
        deltalake.DeltaTable(self.where).create_checkpoint()
        for version in range(self.writer.version):
            (self.writer.root / "_delta_log" / f"{version:020}.json").unlink()


def _in(partition: int | None, rows: Sequence[Row]) -> Sequence[Row]:
    return rows if partition is None else [{**row, "k": partition} for row in rows]


Changed = tuple[int, str, int]
"""The value of a row, whether it came or went, and the id of the commit."""


@dataclass(frozen=True)
class TableKind:
    """A format of tables.

    Args:
        name: of it.
        noun: what its commits make.
        option: of a dataset, and attribute, which names one of these.
        location: option that says where the table is.
        first: id of the first commit.
        versions: of the format in which rows can be deleted.
        went: what a changelog calls a row that went.
        came: what it calls one that came.
        change_columns: of a changelog; the second has the id of a commit, and a third would count the commits.
        table: class that writes it.
    """

    name: str
    noun: str
    option: str
    location: str
    first: int
    versions: Sequence[int]
    went: str
    came: str
    change_columns: Sequence[str]
    table: type[IcebergTable | DeltaTable]

    def __str__(self) -> str:
        return self.name

    @property
    def start(self) -> str:
        """The option that names where an interval begins."""
        return f"start_{self.option}"

    @property
    def end(self) -> str:
        """The option that names where an interval ends."""
        return f"end_{self.option}"

    def at(self, number: int) -> int:
        """Return the id of a commit."""
        return self.first + number

    def only(self, number: int) -> dict[str, Any]:
        """Return the option that reads the table of a commit."""
        return {self.option: self.at(number)}

    def after(self, first: int, last: int | None = None) -> dict[str, Any]:
        """Return the options that read what happened after a commit, up to another or to the newest."""
        return {self.start: self.at(first)} | ({} if last is None else {self.end: self.at(last)})

    def new(
        self, root: Path, *, newest: bool = False, columns: Mapping[str, str] = COLUMNS, partitioned: bool = False
    ) -> IcebergTable | DeltaTable:
        """Make an empty table in a folder, in the oldest or newest version of the format; `k` may partition it."""
        return self.table(root, self.versions[-1 if newest else 0], columns, partitioned=partitioned)

    @property
    def dataset(self) -> type[IcebergDataset | DeltaDataset]:
        """The class that reads it."""
        names = {"iceberg": "IcebergDataset", "delta": "DeltaDataset"}
        found: type[IcebergDataset | DeltaDataset] = getattr(torch_table_loader, names[self.name])
        return found

    def open(self, where: str, **options: Any) -> IcebergDataset | DeltaDataset:
        """Open a table as a dataset."""
        dataset: Any = self.dataset
        found: IcebergDataset | DeltaDataset = dataset(**{self.location: where}, **options)
        return found

    def loader(self, where: str, **options: Any) -> TableLoader:
        """Open a table with a loader."""
        chosen: dict[str, Any] = {self.location: where, "check_plan": False} | options
        dataset: Any = self.dataset
        with meant_warnings():
            loader: TableLoader = dataset.create_dataloader(**chosen)[0]
        return loader

    def loaders(self, where: str, num_ranks: int = 1, **options: Any) -> list[TableLoader]:
        """Open a table with the loader of each rank."""
        return [self.loader(where, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]

    def changelog(self, where: str, **options: Any) -> TableLoader:
        """Open what came and went with a loader."""
        columns = ["x", *self.change_columns]
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "columns": columns, "changelog": True} | options
        return self.loader(where, **chosen)

    def dataset_of(self, loader: TableLoader) -> IcebergDataset | DeltaDataset:
        """Return the dataset of a loader."""
        assert isinstance(loader.dataset, self.dataset)
        return loader.dataset

    def read(self, loader: TableLoader) -> int:
        """Return the id of the commit whose table a loader reads."""
        found: int = getattr(loader.dataset, self.option)
        return found

    def notes(self, loader: TableLoader) -> tuple[str, ...]:
        """Return what a loader's dataset says of what it reads."""
        return self.dataset_of(loader).explain().notes

    def changes(self, batches: Iterable[Any]) -> list[Changed]:
        """Return the rows of batches of a changelog, padding left out."""
        found: list[Changed] = []
        what, commit = self.change_columns[:2]
        for batch in batches:
            rows = zip(batch["x"].tolist(), batch[what], batch[commit].tolist(), strict=True)
            marks = batch["padding"].tolist() if "padding" in batch else repeat(False)
            found += [row for row, is_padding in zip(rows, marks, strict=False) if not is_padding]
        return found

    def ordinals(self, batches: Iterable[Any]) -> set[tuple[int, int]]:
        """Return the ids of commits with the ordinals that a changelog gives them, if its format has them."""
        _, commit, *ordinal = self.change_columns
        columns = [
            zip(batch[commit].tolist(), batch[name].tolist(), strict=True) for batch in batches for name in ordinal
        ]
        return {pair for each in columns for pair in each}

    def applied(self, rows: Counter[int], log: Sequence[Changed], ids: Iterable[int]) -> list[Counter[int]]:
        """Return the table after each of some commits, as a changelog says it."""
        found: list[Counter[int]] = []
        for commit in ids:
            rows = rows.copy()
            of = [(x, kind) for x, kind, at in log if at == commit]
            rows.subtract(x for x, kind in of if kind == self.went)
            assert min(rows.values(), default=0) >= 0, "a row went that was not there"
            rows.update(x for x, kind in of if kind == self.came)
            found.append(+rows)
        return found


ICEBERG = TableKind(
    *("iceberg", "snapshot", "snapshot_id", "metadata_location", 1001, (2, 3), "DELETE", "INSERT"),
    ("_change_type", "_commit_snapshot_id", "_change_ordinal"),
    IcebergTable,
)
DELTA = TableKind(
    *("delta", "version", "version", "table_uri", 0, (3,), "delete", "insert"),
    ("_change_type", "_commit_version"),
    DeltaTable,
)
KINDS = [kind for kind in (ICEBERG, DELTA) if is_here(kind.name)]
"""Those that this build has."""


def values(table: KeptTable) -> Counter[int]:
    """Return `x` of the rows that live."""
    return Counter(row["x"] for row in table.live())


def rows_of(loader: TableLoader, steps: int | None = None) -> list[int]:
    """Return `x` of the rows that a loader gives in some steps, or to its end, padding left out."""
    found: list[int] = []
    for batch in islice(loader, steps):
        marks = batch.get("padding")
        found += [int(x) for at, x in enumerate(batch["x"]) if marks is None or not marks[at]]
    return found
