"""Every feature of Iceberg, in threads and in processes, on one rank and on three: full content, against a log."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.tables.iceberg_cases import CASES, Case
from torch_table_loader import IcebergDataset

IN_PROCESSES = ("mixed_formats_with_deletes", "a_schema_that_evolved")
"""Cases that worker processes read every day; starting them takes long."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Give a case by name; its table is written once."""
    root = tmp_path_factory.mktemp("matrix")
    cases: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in cases:
            cases[name] = CASES[name](root / name)
        return cases[name]

    return make


def delivered(case: Case, rank: int, num_ranks: int, **options: Any) -> pa.Table:
    """Read a rank's part of an epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*(list the table on their own|even_ranks)", UserWarning)
        loader, dataset = IcebergDataset.create_dataloader(
            metadata_location=case.location,
            output_format="arrow",
            **{"batch_size": 7, "num_workers": 2, "num_ranks": num_ranks, "rank": rank, "even_ranks": False}
            | options
            | case.options,
        )
    batches = list(loader)
    assert [batch.num_rows for batch in batches[:-1]] == [7] * (len(loader) - 1)
    assert all(batch.schema.equals(dataset.schema) for batch in batches)
    return pa.Table.from_batches(batches, dataset.schema)


def plain(row: dict[str, Any]) -> str:
    """Write a row so that two are equal if their text is: Python has many a UTC."""
    utc = {name: value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value for name, value in row.items()}
    return repr(utc)


def holds(case: Case, num_ranks: int, **options: Any) -> None:
    tables = [delivered(case, rank, num_ranks, **options) for rank in range(num_ranks)]
    found = Counter(plain(row) for table in tables for row in table.to_pylist())
    assert found == Counter(map(plain, case.rows))
    assert case.rows
    assert tables[0].column_names == list(case.rows[0])


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", CASES)
@daily(6)
def test_in_threads(made: Callable[[str], Case], name: str, num_ranks: int) -> None:
    holds(made(name), num_ranks)
    holds(made(name), num_ranks, shuffle="splits", split_deletes=True, split_size=6)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", CASES)
@daily(lambda name, num_ranks: name in IN_PROCESSES and num_ranks == 1)
def test_in_processes(made: Callable[[str], Case], name: str, num_ranks: int) -> None:
    holds(made(name), num_ranks, worker_type="process", shuffle="splits")
