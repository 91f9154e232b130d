"""The tables that are measured, each written once under a folder, from a seed or from TPC-H."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

VERSION = 2
"""Raise it when a table changes: the folders' names carry it."""

_ROW_GROUP_ROWS = 131_072
_SEED = 20_260_101
_LINEITEM_COLUMNS = (
    "l_orderkey",
    "l_partkey",
    "l_suppkey",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "l_discount",
    "l_tax",
)


@dataclass(frozen=True, slots=True)
class BenchTable:
    """A table on disk.

    Args:
        name: its letter and codec, such as "A-zstd".
        folder: where its Parquet files are.
        num_rows: all its rows.
    """

    name: str
    folder: Path
    num_rows: int

    @property
    def files(self) -> list[Path]:
        """Its files, sorted."""
        return sorted(self.folder.rglob("*.parquet"))


def build(name: str, root: Path) -> BenchTable:
    """Write a table if it is not there, and say where it is.

    Args:
        name: a key of `TABLES`.
        root: the folder of all bench tables.
    """
    folder = root / f"{name}-v{VERSION}"
    if not folder.is_dir():
        unfinished = root / f"{folder.name}.{os.getpid()}.tmp"
        unfinished.mkdir(parents=True)
        try:
            TABLES[name](unfinished, root)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    num_rows = sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))
    return BenchTable(name, folder, num_rows)


def _lineitem(folder: Path, root: Path, codec: str) -> None:
    generated = root / "tpch-sf1"
    if not (generated / "lineitem").is_dir():
        unfinished = root / f"tpch-sf1.{os.getpid()}.tmp"
        program = Path(sys.executable).with_name("tpchgen-cli")
        options = ("-s", "1", "--tables=lineitem", "--parts=4", f"--output-dir={unfinished}", "--quiet")
        subprocess.run([str(program), "parquet", *options], check=True)
        unfinished.rename(generated)
    for place, path in enumerate(sorted((generated / "lineitem").glob("*.parquet"))):
        table = pq.read_table(path, columns=list(_LINEITEM_COLUMNS))
        doubles = [
            column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column for column in table.columns
        ]
        _write(pa.table(doubles, names=table.column_names), folder, place, codec)


def _repeated(folder: Path, root: Path, name: str, times: int) -> None:
    """The files of another table several times, where an epoch of that one is too short to start processes for."""
    for turn in range(times):
        for path in build(name, root).files:
            os.link(path, folder / f"{turn}-{path.name}")


def _clicks(folder: Path, _root: Path) -> None:
    for place, rng in _seeded(8):
        rows = 500_000
        columns: dict[str, Any] = {"label": rng.random(rows, dtype=np.float32).round()}
        columns |= {f"dense_{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(13)}
        columns |= {f"cat_{i}": (rng.random(rows) ** 3 * 10 ** (2 + i % 5)).astype(np.int32) for i in range(26)}
        _write(pa.table(columns), folder, place, "snappy")


def _wide(folder: Path, _root: Path) -> None:
    for place, rng in _seeded(4):
        columns = {f"f{i}": rng.standard_normal(50_000, dtype=np.float32) for i in range(500)}
        _write(pa.table(columns), folder, place, "snappy", row_group_rows=12_500)


def _columns(folder: Path, _root: Path, columns: int) -> None:
    """Forty million float32 in so many columns."""
    for place, rng in _seeded(4):
        rows = 10_000_000 // columns
        values = {f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(columns)}
        _write(pa.table(values), folder, place, "snappy", row_group_rows=min(_ROW_GROUP_ROWS, rows))


def _documents(folder: Path, _root: Path, number: int = 5_000) -> None:
    for place, rng in _seeded(4):
        lengths = rng.integers(400, 1_200, size=number)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        tokens = (rng.random(int(offsets[-1])) ** 2 * 50_000).astype(np.int32)
        numbers = pa.array(np.arange(number) + place * number).cast(pa.string())
        columns = {
            "tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
            "url": pc.binary_join_element_wise("https://example.com/page/", numbers, ""),
            "title": pc.binary_join_element_wise("a document with the number ", numbers, ""),
        }
        _write(pa.table(columns), folder, place, "snappy", row_group_rows=1_000)


def _large_files(folder: Path, _root: Path) -> None:
    """Two files of a gigabyte, in row groups of 61 MiB, written one by one."""
    for place, rng in _seeded(2):
        schema = pa.schema([(f"x{i}", pa.float64()) for i in range(8)])
        with pq.ParquetWriter(folder / f"part-{place:03d}.parquet", schema, use_dictionary=False) as writer:
            for _ in range(16):
                writer.write_table(pa.table([rng.random(1_000_000) for _ in range(8)], schema=schema))


def _many_small(folder: Path, _root: Path) -> None:
    for place, rng in _seeded(50):
        columns = {f"f{i}": rng.standard_normal(20_000, dtype=np.float32) for i in range(8)}
        _write(pa.table(columns), folder, place, "snappy", row_group_rows=10_000)


def _noise(folder: Path, _root: Path) -> None:
    """Forty columns that hardly compress, each row group's chunk of half a MiB."""
    for place, rng in _seeded(4):
        columns = {f"f{i}": rng.standard_normal(393_216, dtype=np.float32) for i in range(40)}
        _write(pa.table(columns), folder, place, "snappy", use_dictionary=False)


def _projected(folder: Path, _root: Path, files: int, rows: int, group_rows: int) -> None:
    """Forty columns, of which some are read."""
    for place, rng in _seeded(files):
        columns = {f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(40)}
        _write(pa.table(columns), folder, place, "snappy", row_group_rows=group_rows, use_dictionary=False)


def _records(folder: Path, _root: Path) -> None:
    """Four million rows of 64 bytes."""
    for place, rng in _seeded(4):
        columns = {f"x{i}": rng.random(1_000_000) for i in range(8)}
        _write(pa.table(columns), folder, place, "none", use_dictionary=False)


def _lines(folder: Path, _root: Path) -> None:
    """A million rows with a text of a hundred bytes."""
    for place, rng in _seeded(4):
        numbers = pa.array(np.arange(250_000) + place * 250_000).cast(pa.string())
        text = pc.utf8_rpad(pc.binary_join_element_wise("a line with the number ", numbers, ""), width=100)
        _write(pa.table({"x": rng.random(250_000), "text": text}), folder, place, "none", use_dictionary=False)


def _four_hundred(folder: Path, _root: Path) -> None:
    """Files of one row group and 190 kB."""
    for place, rng in _seeded(400):
        columns = {f"f{i}": rng.standard_normal(5_900, dtype=np.float32) for i in range(8)}
        _write(pa.table(columns), folder, place, "snappy", use_dictionary=False)


def _strings(folder: Path, _root: Path) -> None:
    """Eight columns of short strings, of 10 to 10,000 different ones each."""
    for place, rng in _seeded(4):
        columns: dict[str, Any] = {}
        for i in range(8):
            words = pa.array([f"word {n} of {i}" for n in range(10 ** (1 + i % 4))])
            columns[f"s{i}"] = words.take(pa.array(rng.integers(0, len(words), 250_000)))
        _write(pa.table(columns), folder, place, "snappy")


def _nullable(folder: Path, _root: Path) -> None:
    """Eight columns of int32, a tenth of them null, and one without nulls."""
    for place, rng in _seeded(4):
        columns = {
            f"n{i}": pa.array(rng.integers(0, 1_000_000, 500_000, np.int32), mask=rng.random(500_000) < 0.1)
            for i in range(8)
        }
        _write(pa.table({**columns, "x": rng.random(500_000)}), folder, place, "snappy")


def _nested(folder: Path, _root: Path) -> None:
    """Three structs of two numbers and a struct of two, and a number."""
    for place, rng in _seeded(4):
        rows = 250_000

        def struct(names: str, rng: np.random.Generator = rng, rows: int = rows) -> pa.StructArray:
            return pa.StructArray.from_arrays([pa.array(rng.random(rows, np.float32)) for _ in names], list(names))

        columns: dict[str, Any] = {
            f"p{i}": pa.StructArray.from_arrays([*struct("ab").flatten(), struct("cd")], ["a", "b", "inner"])
            for i in range(3)
        }
        _write(pa.table({**columns, "x": rng.random(rows)}), folder, place, "snappy")


def _decimals(folder: Path, _root: Path) -> None:
    """Four columns of decimal(12, 2), and a number."""
    for place, rng in _seeded(4):
        cents = [pa.array(rng.integers(0, 10**9, 250_000)).cast(pa.decimal128(19, 0)) for _ in range(4)]
        hundred = pa.scalar(100, pa.decimal128(3, 0))
        exact = [pc.divide(each, hundred).cast(pa.decimal128(12, 2), safe=False) for each in cents]
        columns = {f"d{i}": each for i, each in enumerate(exact)}
        _write(pa.table({**columns, "x": rng.random(250_000)}), folder, place, "snappy")


def _timed(
    folder: Path, _root: Path, sizes: Sequence[int], columns: int, group_rows: int, *, days: bool = False
) -> None:
    """Sorted by time, as lakes store tables: t counts the rows; beside it columns of float32."""
    start = 0
    for (place, rng), rows in zip(_seeded(len(sizes)), sizes, strict=True):
        values = {f"x{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(columns)}
        target = folder / f"day={place:03d}" if days else folder
        target.mkdir(exist_ok=True)
        _write(pa.table({"t": np.arange(start, start + rows)} | values), target, place, "snappy", group_rows)
        start += rows


def _days() -> list[int]:
    """From one row to a million."""
    return [int(10**exponent) for exponent in np.random.default_rng(7).uniform(0, 6, 60)]


def turning(rng: np.random.Generator, times: NDArray[np.floating[Any]]) -> dict[str, NDArray[np.float32]]:
    """Make rows whose signal turns once as time goes from 0 to 1: y tends to tell the side of a line that turns.

    Args:
        rng: of the features.
        times: of the rows.
    """
    features = rng.standard_normal((2, len(times)), dtype=np.float32)
    side = np.cos(2 * np.pi * times) * features[0] + np.sin(2 * np.pi * times) * features[1]
    return {
        "t": times.astype(np.float32),
        "x0": features[0],
        "x1": features[1],
        "y": (rng.random(len(times)) < 1 / (1 + np.exp(-2 * side))).astype(np.float32),
    }


def _turning(folder: Path, _root: Path, files: int = 64, rows: int = 2_500) -> None:
    for place, rng in _seeded(files):
        times = (np.arange(rows) + place * rows) / (files * rows)
        _write(pa.table(turning(rng, times)), folder, place, "snappy", row_group_rows=rows // 4)


def _seeded(count: int) -> Iterator[tuple[int, np.random.Generator]]:
    return ((place, np.random.default_rng([_SEED, place])) for place in range(count))


def _write(
    table: pa.Table, folder: Path, place: int, codec: str, row_group_rows: int = _ROW_GROUP_ROWS, **how: Any
) -> None:
    path = folder / f"part-{place:03d}.parquet"
    pq.write_table(table, path, compression=codec, row_group_size=row_group_rows, **how)


TABLES: dict[str, Callable[[Path, Path], None]] = {
    "A-zstd": lambda folder, root: _lineitem(folder, root, "zstd"),
    "A-zstd, 8 times": partial(_repeated, name="A-zstd", times=8),
    "A-snappy": lambda folder, root: _lineitem(folder, root, "snappy"),
    "B": _clicks,
    "C": _wide,
    "D": _documents,
    **{f"{columns} columns": partial(_columns, columns=columns) for columns in (1, 10, 100, 500)},
    "D-tenth": partial(_documents, number=500),
    "E": _large_files,
    "fifty-files": _many_small,
    "noise": _noise,
    "400-files": _four_hundred,
    "6 files, row groups of 25,000": partial(_projected, files=6, rows=150_000, group_rows=25_000),
    "6 files, row groups of 250,000": partial(_projected, files=6, rows=500_000, group_rows=250_000),
    "400 files of 40 columns": partial(_projected, files=400, rows=5_000, group_rows=5_000),
    "records": _records,
    "lines": _lines,
    "strings": _strings,
    "nullable": _nullable,
    "nested": _nested,
    "decimals": _decimals,
    "sorted": partial(_timed, sizes=[20_000] * 64, columns=7, group_rows=5_000),
    "large": partial(_timed, sizes=[1_000_000] * 16, columns=7, group_rows=1_000_000),
    "days": partial(_timed, sizes=_days(), columns=7, group_rows=100_000, days=True),
    "wide": partial(_timed, sizes=[20_000] * 64, columns=40, group_rows=10_000),
    "turning": _turning,
}
"""How each table is written: given an empty folder, and the folder of all tables."""

__all__ = ["TABLES", "VERSION", "BenchTable", "build", "turning"]
