"""Iceberg tables over the bench tables' own files, and who reads them: this library and pyiceberg.

Run as a program it compares planning with pyiceberg's `plan_files()` and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.floor import decode
from bench.ours import rows_of
from bench.tables import BenchTable
from tests.tables.iceberg import IcebergWriter, column
from tests.tables.iceberg_many import write_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("plain", "position", "vector", "equality", "keys")
"""What deletes a table has: none, or 5 % of rows by position, by deletion vector, by a few values of a column, or by
keys of two columns, one key a row."""

PLAIN = "bench.plain"
DELETED = 0.05
_TYPES = {"int64": "long", "int32": "int", "double": "double", "float": "float"}
_KEYS = {"A-zstd": "l_partkey", "A-snappy": "l_partkey", "B": "cat_3"}
_ROW_KEY = ["l_orderkey", "l_linenumber"]
_SEED = 20_260_102
_VERSION = 1


def location(table: BenchTable, kind: str, url: str | None = None) -> str:
    """Write the metadata of a table over a bench table's files if it is not there, and say where it is.

    Args:
        table: whose files become data files, by a name mapping.
        kind: one of `KINDS`.
        url: of the folder of all tables, where these are served; None for local files.
    """
    tables, root = table.folder.parent.resolve(), _folder(table, kind, url)
    said = root / "location"
    if not said.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        if url is None and kind == "plain":
            said.write_text(_write_plain(table, root))
        else:
            served = ("/", "file:///") if url is None else (f"{tables}/", f"{url}/")
            said.write_text(_write_deletes(table, kind, root, served))
    return said.read_text()


def _folder(table: BenchTable, kind: str, url: str | None) -> Path:
    return table.folder.parent.resolve() / (
        f"iceberg-{table.folder.name}-{kind}{'' if url is None else '-served'}-v{_VERSION}"
    )


def catalog_of(table: BenchTable) -> Any:
    """Open the catalog of the table without deletes, which is `PLAIN` there."""
    location(table, "plain")
    return _catalog(_folder(table, "plain", None))


def _catalog(root: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("bench", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}")


def _write_plain(table: BenchTable, root: Path) -> str:
    """Let pyiceberg take the files into a table."""
    catalog = _catalog(root)
    catalog.create_namespace("bench")
    made = catalog.create_table(PLAIN, pq.read_schema(table.files[0]))
    made.add_files([str(file.resolve()) for file in table.files])
    written: str = made.metadata_location
    return written


def _write_deletes(table: BenchTable, kind: str, root: Path, served: tuple[str, str]) -> str:
    schema = pq.read_schema(table.files[0])
    columns = [column(at + 1, entry.name, _TYPES[str(entry.type)]) for at, entry in enumerate(schema)]
    mapping = json.dumps([{"field-id": each["id"], "names": [each["name"]]} for each in columns])
    version = 3 if kind == "vector" else 2
    properties = {"schema.name-mapping.default": mapping}
    writer = IcebergWriter(root, columns, version=version, properties=properties, served=served)
    counts = {writer.adopt(file): pq.read_metadata(file).num_rows for file in table.files}
    writer.commit()
    if kind == "plain":
        return writer.metadata
    rng = np.random.default_rng(_SEED)
    rows = {path: places.tolist() for path, places in zip(counts, _deleted(rng, counts.values()), strict=True)}
    if kind == "position":
        writer.delete_rows(rows)
    elif kind == "vector":
        for path, positions in rows.items():
            writer.delete_vector(path, positions)
    elif kind == "keys":
        keys = pa.concat_tables([pq.read_table(file, columns=_ROW_KEY) for file in table.files])
        chosen = keys.filter(pa.array(rng.random(len(keys)) < DELETED)).to_pylist()
        writer.delete_keys([schema.get_field_index(name) + 1 for name in _ROW_KEY], chosen)
    else:
        key = _KEYS[table.name]
        values = np.unique(np.concatenate([pq.read_table(file, columns=[key])[key].to_numpy() for file in table.files]))
        chosen = [{key: value} for value in values[rng.random(len(values)) < DELETED].tolist()]
        writer.delete_keys([schema.get_field_index(key) + 1], chosen)
    writer.commit()
    return writer.metadata


def _deleted(rng: np.random.Generator, counts: Iterable[int]) -> Iterator[NDArray[np.int64]]:
    return (np.flatnonzero(rng.random(count) < DELETED) for count in counts)


def bare(table: BenchTable) -> Callable[[], int]:
    """Decode and leave the deleted rows out as fast as two threads can with pyarrow, knowing them already."""
    live: dict[tuple[int, int], pa.UInt32Array] = {}
    footers = [pq.read_metadata(file) for file in table.files]
    deleted = _deleted(np.random.default_rng(_SEED), (footer.num_rows for footer in footers))
    for place, (footer, gone) in enumerate(zip(footers, deleted, strict=True)):
        left = np.delete(np.arange(footer.num_rows), gone)
        starts = np.cumsum([0, *(footer.row_group(group).num_rows for group in range(footer.num_row_groups))])
        bounds = np.searchsorted(left, starts)
        for group, (low, high) in enumerate(pairwise(bounds)):
            live[place, group] = pa.array((left[low:high] - starts[group]).astype(np.uint32))
    return lambda: decode(table.files, live=live)


def ours(table: BenchTable, batch_size: int, kind: str) -> Callable[[], int]:
    """Open a table with this library; each call of what comes back is one epoch and returns its rows."""
    from torch_table_loader import IcebergDataset

    where = location(table, kind)
    loader, _ = IcebergDataset.create_dataloader(metadata_location=where, batch_size=batch_size, num_workers=2)
    return lambda: sum(rows_of(batch) for batch in loader)


def theirs(table: BenchTable, kind: str) -> Callable[[], int]:
    """Open a table with pyiceberg; each call reads it batch by batch into tensors, of whatever length they come."""
    import torch
    from pyiceberg.table import StaticTable

    opened = StaticTable.from_metadata(location(table, kind))

    def epoch() -> int:
        rows = 0
        for batch in opened.scan().to_arrow_batch_reader():
            tensors = [torch.from_numpy(column.to_numpy(zero_copy_only=False).copy()) for column in batch.columns]
            rows += len(tensors[0])
        return rows

    return epoch


def time_planning(root: Path, num_files: int, num_manifests: int, rounds: int) -> dict[str, float]:
    """Plan a table in turn with this library and with pyiceberg.

    Args:
        root: where its metadata is written, if it is not there.
        num_files: data files.
        num_manifests: manifests that list them.
        rounds: pairs to take.

    Returns:
        The median ratio of seconds, ours over theirs, and the median seconds of each.
    """
    from pyiceberg.table import StaticTable

    from torch_table_loader.iceberg.catalog import TableAddress
    from torch_table_loader.iceberg.source import IcebergRequest

    folder = root.resolve() / f"iceberg-many-{num_files}-v{_VERSION}"
    if not folder.is_dir():
        write_many(folder, num_files, num_manifests, "s3://nowhere/many")
    where = f"file://{folder}/metadata/v1.metadata.json"
    at = TableAddress(
        metadata_location=where,
        storage_options={"anon": True, "region": "us-east-1"},
        allow_locations=["s3://nowhere"],
    )

    def mine() -> int:
        return len(IcebergRequest(at).open({}).files)

    def other() -> int:
        return len(list(StaticTable.from_metadata(where).scan().plan_files()))

    if mine() != other():
        raise RuntimeError("the two sides planned different numbers of files; they are no pair")
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(rounds):
        for name, plan in (("ours", mine), ("theirs", other))[:: -1 if turn % 2 else 1]:
            begin = time.perf_counter()
            plan()
            seconds[name].append(time.perf_counter() - begin)
    ratios = [left / right for left, right in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {"ratio": statistics.median(ratios)} | {name: statistics.median(each) for name, each in seconds.items()}


def main() -> None:
    """Read the command line, plan, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--manifests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(time_planning(options.root, options.files, options.manifests, options.rounds)) + "\n")


if __name__ == "__main__":
    main()
