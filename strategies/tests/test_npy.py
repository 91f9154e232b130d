"""The format reader for .npy files keeps the contract, and is found by its name."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_table_strategies import NpyReader

from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.testing import check_format_reader, stored_files

PLAIN: dict[str, Any] = {
    "floats": np.linspace(0, 1, 1000, dtype=np.float32),
    "big endian": np.arange(50, dtype=">i8"),
    "halves": np.arange(9, dtype=np.float16),
    "bools": np.arange(20) % 3 == 0,
    "matrix": np.arange(60, dtype=np.int16).reshape(20, 3),
    "images": np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3),
    "one row": np.array([7]),
    "no rows": np.empty(0),
}
RECORD = np.dtype([("label", "u1"), ("point", "f4", (2,)), ("price", ">f8")], align=True)


def records(count: int = 30) -> np.ndarray[Any, Any]:
    made = np.zeros(count, RECORD)
    made["label"], made["point"] = np.arange(count), np.arange(2 * count).reshape(-1, 2)
    made["price"] = np.arange(count) / 4
    return made


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    for name, array in {**PLAIN, "records": records()}.items():
        np.save(tmp_path / name, array)
    check_format_reader(NpyReader(group_rows=7), *stored_files(tmp_path, "npy"))


@pytest.mark.parametrize("name", sorted(set(PLAIN) - {"no rows"}))
def test_rows_are_those_of_the_array(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", PLAIN[name])
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, NpyReader(group_rows=4), batch_size=6, output_format="numpy"
    )
    found = np.concatenate([np.asarray(batch["value"]) for batch in loader])
    np.testing.assert_array_equal(found, PLAIN[name])


class _Cycle:
    """Garbage whose finalizer runs Python code, so that a collection lets another thread continue."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


def test_headers_are_read_in_many_threads(tmp_path: Path) -> None:
    """Python 3.11's `ast` raises SystemError when another thread parses in the middle of its work."""
    np.save(tmp_path / "a.npy", records())
    storage, (file,) = stored_files(tmp_path, "npy")
    reader = NpyReader()

    def read(_: int) -> None:
        for _ in range(1500):
            _Cycle()
            reader.inspect(storage, file, None)

    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.freeze()
    gc.set_threshold(1, 1, 1)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(read, range(4)))
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)


def test_a_structured_array_is_a_table(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", records())
    options: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": "splits",
        "split_size": 7,
        "output_format": "numpy",
        "columns": ["price", "label"],
    }
    loader, _ = StructuredDataset.create_dataloader(tmp_path, NpyReader(group_rows=7), **options)
    found = np.concatenate([batch["price"] for batch in loader])
    assert sorted(found.tolist()) == records()["price"].tolist()
    assert found.tolist() != records()["price"].tolist()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"]), "a column of the type <U1 is not read"),
        (np.array([{}], dtype=object), "a column of the type object is not read"),
        (np.array(3), "has no rows"),
        (np.asfortranarray(np.ones((3, 2))), "in Fortran order has no rows"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(TableError, match=f"a.npy must be .*{message}"):
        StructuredDataset(tmp_path, NpyReader())


def test_it_is_installed_under_its_name() -> None:
    points = entry_points(group="torch_table_loader.formats")
    assert [point.load() for point in points if point.module.startswith("torch_table_strategies")] == [NpyReader]
