"""The modes of the loader over the same small tables: how a loader of each is made, and which rows it delivers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

import torch_table_loader
from tests.guests import is_here
from tests.launchers.jobs import spans_of
from tests.states import State, samples_of, steps_of
from tests.tables.iceberg import IcebergWriter, column
from tests.tables.plain import Groups, key, meant_warnings
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.extend import LiveSpan, RowSpan, SourceRow

GROUPS: dict[str, Groups] = {"a": [[9, 4, 11], [1], [], [17, 5], [13, 13]], "b": [[8, 8], [5], [10, 10]]}
SIZES = {name: sum(map(sum, groups)) for name, groups in GROUPS.items()}
SOME = pc.field("k") < 7
"""A filter that leaves some rows out."""

_SCHEMA = pa.schema([("x", pa.int64()), ("k", pa.int32()), ("f", pa.float64()), ("s", pa.string())])
APART = 1000
"""What the ids of the second table of a mixture begin with."""
_OF_SOURCES = (
    "pack",
    "filters",
    "row_store",
    "columns",
    "row_id",
    "output_format",
    "nulls",
    "ragged",
    "strings",
    "transforms",
    "decode",
)


def write_tables(root: Path) -> None:
    """Write the tables that the modes read; `x` is each row's ordinal, and decides all its values."""
    for name, groups in GROUPS.items():
        write_rows(root / name, groups)
    _write_lake(root / "lake")


def write_rows(root: Path, groups: Groups) -> None:
    """Write a Parquet file for each list of row group sizes."""
    root.mkdir(parents=True)
    start = 0
    for number, sizes in enumerate(groups):
        with pq.ParquetWriter(root / f"{number:03}.parquet", _SCHEMA) as writer:
            for size in sizes:
                rows = [_row(x) for x in range(start, start + size)]
                writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
                start += size


def _row(x: int) -> dict[str, Any]:
    return {"x": x, "k": key(x), "f": x / 2, "s": f"row {x}"}


def _write_lake(root: Path) -> None:
    """Write an Iceberg table with deletes of both kinds."""
    kinds = {"x": "long", "k": "int", "f": "double", "s": "string"}
    lake = IcebergWriter(root, columns=[column(at, name, kind) for at, (name, kind) in enumerate(kinds.items(), 1)])
    starts: dict[str, int] = {}
    start = 0
    for size, form in ((30, "parquet"), (20, "orc"), (31, "avro")):
        path = lake.append(map(_row, range(start, start + size)), form, group=9)
        starts[f"data/{Path(path).name}"] = start
        start += size
        if form == "parquet":
            lake.commit()
            lake.delete_rows({path: range(5)}, "orc")
    lake.commit()
    lake.delete_rows({path: [30]})
    lake.delete_keys([1], [{"x": 49, "k": key(49)}, {"x": 60, "k": key(60)}], "avro")
    lake.commit()
    (root / "location").write_text(lake.metadata)
    (root / "starts").write_text(json.dumps(starts))
    (root / "live").write_text(" ".join(str(row["x"]) for row in lake.live()))


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    size = {} if "global_batch_size" in options else {"batch_size": 5}
    return {"num_workers": 2, "check_plan": False, "row_id": True} | size | options


class Mode(ABC):
    """A way to read tables. A row is named by an int; a loader makes batches of five rows, unless told otherwise.

    Where documents are packed, a sequence stands for a row, and is named by its tokens; see `packed_modes`.
    """

    name: str
    tables: ClassVar[Sequence[str]] = "a"
    """Those that `write_tables` wrote and this mode reads."""

    def __str__(self) -> str:
        """Name the mode in the ids of tests."""
        return self.name

    def make(self, root: Path, **options: Any) -> TableLoader:
        """Make a loader over what `write_tables` wrote; options of sources go to the sources."""
        with meant_warnings():
            return self.make_loudly(root, **_with_defaults(options))

    def make_loudly(self, root: Path, **options: Any) -> TableLoader:
        """Make a loader with few options beside these, and let it warn."""
        dataset, arguments, chosen = self.parts(root, options)
        loader: TableLoader = dataset.create_dataloader(*arguments, **chosen)[0]
        return loader

    def open(self, root: Path, **options: Any) -> Any:
        """Open the dataset alone, for a DataLoader of the caller's."""
        dataset, arguments, chosen = self.parts(root, _with_defaults(options))
        return dataset(*arguments, **chosen)

    @abstractmethod
    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return the class of the dataset, its arguments, and its options."""

    def rows(self, batch: Any) -> list[Any]:
        """List the rows of a batch, padding left out, and hold its values against what those rows have."""
        rows = batch["row_id"].tolist()
        of_rows = {"x": rows, "k": [key(x) for x in rows], "f": [x / 2 for x in rows], "s": [f"row {x}" for x in rows]}
        for name in batch.keys() & of_rows.keys():
            values = batch[name]
            assert (values if isinstance(values, list) else values.tolist()) == of_rows[name]
        return [row for row, padding in zip(self.ids(batch), self.pads(batch), strict=True) if not padding]

    def pads(self, batch: Any) -> list[bool]:
        """Say of each row of a batch whether it is padding."""
        return batch["padding"].tolist() if "padding" in batch else [False] * len(batch["row_id"])

    def ids(self, batch: Any) -> list[Any]:
        """List the rows of a batch, padding included."""
        found: list[int] = batch["row_id"].tolist()
        return found

    def sources(self, batch: Any) -> list[Any]:
        """List what `rows_of` is to name of a batch."""
        return self.rows(batch)

    def read(self, batches: Iterable[Any]) -> list[list[Any]]:
        """List the rows of each of some batches."""
        return [self.rows(batch) for batch in batches]

    def rows_of(self, root: Path, loader: TableLoader, step: int) -> list[int]:
        """List the rows that `loader.rows_of` names, as the files have them."""
        return [row for span in spans_of(loader, step) for row in self._spanned(root, span)]

    def _spanned(self, root: Path, span: RowSpan | LiveSpan) -> list[int]:
        assert isinstance(span, RowSpan)
        start = self._starts(root)[span.file]
        return list(range(start + span.row_start, start + span.row_stop))

    def _starts(self, root: Path) -> dict[str, int]:
        """Count the rows before each file."""
        sizes = [sum(groups) for groups in GROUPS["a"]]
        return {f"{at:03}.parquet": sum(sizes[:at]) for at in range(len(sizes))}

    def live(self, root: Path, *, filtered: bool = False) -> set[int]:
        """List the rows that are to be delivered."""
        return {x for x in range(SIZES["a"]) if not filtered or key(x) < 7}

    def check_whole(self, seen: Iterable[Any], live: set[int]) -> None:
        """Hold what was delivered of a whole epoch against what was to be delivered."""
        self.check_once(seen, live)

    def check_once(self, seen: Iterable[Any], live: set[int]) -> None:
        """Each row came once."""
        assert sorted(seen) == sorted(live)

    @abstractmethod
    def steps(self, state: State, batch_size: int = 5) -> int:
        """Read from the state of a job of one rank how many steps it has taken in the stage that it speaks of."""


class RowMode(Mode):
    """Reads single rows from a row store, so that some can be excluded."""

    def steps(self, state: State, batch_size: int = 5) -> int:
        """Count the steps that took the samples of a state."""
        return -(-self.consumed(state) // batch_size)

    def consumed(self, state: State) -> int:
        """Read how many samples were taken."""
        return samples_of(state)

    def beside(self, rows: Iterable[Any]) -> set[int]:
        """List what leaves where rows are excluded."""
        return set(rows)

    def change(self, dataset: Any, what: str, rows: Iterable[int]) -> None:
        """Exclude or include rows.

        Args:
            dataset: of this mode.
            what: "exclude" or "include".
            rows: which.
        """
        getattr(dataset, what)(_tensor_or_list(what, rows))

    def excluded(self, dataset: Any) -> list[int]:
        """List the rows that the dataset says are excluded from the next epoch."""
        return _listed(dataset.excluded)

    def mask(self, dataset: Any, rows: Iterable[int]) -> Any:
        """Return some rows as a mask, as `exclude` takes it."""
        return _mask(dataset.table.layout.num_rows, rows)


class Splits(Mode):
    """Reads split by split, in a stream."""

    name = "splits"

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Shuffle splits, unless told otherwise."""
        chosen: dict[str, Any] = {"shuffle": "splits"} | options
        if "split_strategy" not in chosen:
            chosen.setdefault("split_size", 10)
        return StructuredDataset, [str(root / "a")], chosen

    def steps(self, state: State, batch_size: int = 5) -> int:
        """Read the steps of the newest stage."""
        return steps_of(state)


class Mixed(Splits):
    """Reads several splits side by side, in a stream."""

    name = "mixed"

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Mix splits in windows of few batches, unless told otherwise."""
        return super().parts(root, {"shuffle": "mixed", "shuffle_buffer_size": 17} | options)


class Rows(RowMode):
    """Reads the rows of a table one by one."""

    name = "rows"

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Shuffle rows."""
        return StructuredDataset, [str(root / "a")], {"shuffle": "rows"} | options


class LakeRows(RowMode):
    """Reads the rows of an Iceberg table with deletes one by one."""

    name = "iceberg"
    tables = ("lake",)

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Shuffle rows that no delete names."""
        location = (root / "lake" / "location").read_text()
        dataset = torch_table_loader.IcebergDataset
        return dataset, [], {"metadata_location": location, "shuffle": "rows"} | options

    def _starts(self, root: Path) -> dict[str, int]:
        starts: dict[str, int] = json.loads((root / "lake" / "starts").read_text())
        return starts

    def live(self, root: Path, *, filtered: bool = False) -> set[int]:
        """List the rows that the deletes leave."""
        live = map(int, (root / "lake" / "live").read_text().split())
        return {x for x in live if not filtered or key(x) < 7}


class TwoTables(Mode):
    """Reads two tables at once; an epoch ends when each row of both has come."""

    tables = ("a", "b")
    shuffle: ClassVar[dict[str, Any]]

    def parts(self, root: Path, options: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
        """Mix two parts of the first table with one of the second, unless told otherwise."""
        own = {name: value for name, value in options.items() if name not in _OF_SOURCES}
        of_sources = self.shuffle | {name: value for name, value in options.items() if name in _OF_SOURCES}
        sources = {name: StructuredDataset(str(root / name), check_plan=False, **of_sources) for name in self.tables}
        weights = own.pop("weights", {"a": 2, "b": 1})
        return torch_table_loader.MixedDataset, [sources, weights], {"stop": "all_exhausted"} | own

    def ids(self, batch: Any) -> list[int]:
        """Name a row by its source and its id there."""
        return [APART * at + row for at, row in zip(batch["source"].tolist(), batch["row_id"].tolist(), strict=True)]

    def rows_of(self, root: Path, loader: TableLoader, step: int) -> list[int]:
        """List the rows that `loader.rows_of` names."""
        found = [row for row in loader.rows_of(step) if isinstance(row, SourceRow)]
        assert len(found) == len(loader.rows_of(step))
        return [APART * self.tables.index(row.source) + row.row_id for row in found]

    def live(self, root: Path, *, filtered: bool = False) -> set[int]:
        """List the rows of both tables."""
        return {
            APART * at + x
            for at, name in enumerate(self.tables)
            for x in range(SIZES[name])
            if not filtered or key(x) < 7
        }

    def check_whole(self, seen: Iterable[int], live: set[int]) -> None:
        """Each row came, and none of a source twice more than another."""
        times = Counter(seen)
        assert set(times) == live
        for at in range(len(self.tables)):
            own = [count for row, count in times.items() if row // APART == at]
            assert max(own, default=0) - min(own, default=0) <= 1


class Mixture(TwoTables, RowMode):
    """Mixes two tables row by row."""

    name = "mixture"
    shuffle: ClassVar[dict[str, Any]] = {"shuffle": "rows"}

    def change(self, dataset: Any, what: str, rows: Iterable[int]) -> None:
        """Exclude or include rows of each source."""
        by_source: dict[str, list[int]] = {name: [] for name in self.tables}
        for row in rows:
            by_source[self.tables[row // APART]].append(row % APART)
        getattr(dataset, what)({name: _tensor_or_list(what, own) for name, own in by_source.items()})

    def excluded(self, dataset: Any) -> list[int]:
        """List the rows of both sources that are excluded."""
        assert list(dataset.excluded) == list(self.tables)
        return [APART * at + row for at, ids in enumerate(dataset.excluded.values()) for row in _listed(ids)]

    def mask(self, dataset: Any, rows: Iterable[int]) -> Any:
        """Return some rows as a mask of each source."""
        return {
            name: _mask(SIZES[name], [row % APART for row in rows if row // APART == at])
            for at, name in enumerate(self.tables)
        }


class MixedSplits(TwoTables):
    """Mixes two tables that are read split by split."""

    name = "streams"
    shuffle: ClassVar[dict[str, Any]] = {"shuffle": "splits", "split_size": 10}

    def steps(self, state: State, batch_size: int = 5) -> int:
        """Read the steps of the newest stage."""
        return steps_of(state)


def _listed(ids: Any) -> list[int]:
    assert ids.dtype == np.int64
    found: list[int] = ids.tolist()
    return found


def _mask(num_rows: int, rows: Iterable[int]) -> torch.Tensor:
    mask = torch.zeros(num_rows, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def _tensor_or_list(what: str, rows: Iterable[int]) -> Any:
    return torch.tensor(sorted(rows), dtype=torch.int64) if what == "exclude" else sorted(rows)


SPLITS, MIXED, ROWS, LAKE, MIXTURE, STREAMS = Splits(), Mixed(), Rows(), LakeRows(), Mixture(), MixedSplits()
LAKES: list[RowMode] = [LAKE] if is_here("iceberg") else []
MIXTURES: list[Mode] = [MIXTURE, STREAMS] if is_here("mixtures") else []
TABLE_MODES: list[Mode] = [SPLITS, MIXED, ROWS, *LAKES, *MIXTURES]
ROW_MODES: list[RowMode] = [ROWS, *LAKES, *(mode for mode in MIXTURES if isinstance(mode, RowMode))]

PROCESSES: dict[str, Any] = {"worker_type": "process", "num_workers": 2}
UNEVEN: dict[str, dict[str, Any]] = {
    "splits": {"split_size": 10**9, "num_workers": 1},
    "mixed": {"split_size": 10**9},
    "mixture": {"weights": {"a": 1, "b": 0}},
    "streams": {"weights": {"a": 1, "b": 0}},
    "packs by concat": {"split_size": 10**9, "num_workers": 1, "batch_size": 30},
    "packed items by best_fit": {"batch_size": 29},
    "packed mixture by windows": {"weights": {"documents": 1, "more documents": 0}, "batch_size": 27},
    "packed streams by pad": {"weights": {"documents": 1, "more documents": 0}, "batch_size": 27},
}
"""With these a job of two ranks takes two steps on the first and one on the second."""
