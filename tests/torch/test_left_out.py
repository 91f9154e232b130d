"""`on_error="skip"` on Iceberg and Delta Lake tables, and on several ranks: the rest comes once, and all agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.tables.delta import DeltaWriter
from tests.tables.delta import some as some_of_delta
from tests.tables.iceberg import IcebergWriter, some
from torch_table_loader import DeltaDataset, IcebergDataset, ResumeError, TableError, TableLoader

FILES, ROWS = 4, 12

Make = Callable[..., TableLoader]


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def iceberg(folder: Path) -> tuple[Make, list[int], Path]:
    """Write a table with deletes, of which the third file is torn."""
    table = IcebergWriter(folder)
    paths = [table.append(some(at * ROWS, (at + 1) * ROWS), group=5) for at in range(FILES)]
    table.commit()
    table.delete_rows({path: [3] for path in paths})
    table.commit()
    local = Path(paths[2].removeprefix("file://"))
    torn(local)
    rows = [row["x"] for row in table.live() if row["x"] not in range(2 * ROWS, 3 * ROWS)]

    def make(**options: Any) -> TableLoader:
        return IcebergDataset.create_dataloader(metadata_location=table.metadata, **options)[0]

    return make, rows, local


def delta(folder: Path) -> tuple[Make, list[int], Path]:
    table = DeltaWriter(folder)
    paths = [table.append(some_of_delta(at * ROWS, (at + 1) * ROWS)) for at in range(FILES)]
    table.commit()
    for path in paths:
        table.delete(path, [3], "i")
    table.commit()
    local = folder / paths[2]
    torn(local)
    rows = [row["x"] for row in table.live() if row["x"] not in range(2 * ROWS, 3 * ROWS)]

    def make(**options: Any) -> TableLoader:
        return DeltaDataset.create_dataloader(table.uri, **options)[0]

    return make, rows, local


TABLES = {"iceberg": iceberg, "delta": delta}

MODES: dict[str, dict[str, Any]] = {
    "splits": {"shuffle": "splits"},
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "files": {"batch_by": "file"},
}


def jobs(make: Make, ranks: int, **options: Any) -> list[TableLoader]:
    return [
        make(num_ranks=ranks, rank=rank, batch_size=4, columns=["x"], on_error="skip", check_plan=False, **options)
        for rank in range(ranks)
    ]


def taken(loaders: list[TableLoader], steps: int | None = None) -> Counter[int]:
    found: Counter[int] = Counter()
    for loader in loaders:
        for batch in islice(loader, steps):
            own = ~batch["padding"] if "padding" in batch else slice(None)
            found.update(batch["x"][own].tolist())
    return found


@pytest.mark.filterwarnings("ignore:ranks take different numbers of steps")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", TABLES)
@daily(2)
def test_what_is_sound_comes_once_on_any_number_of_ranks(tmp_path: Path, kind: str, mode: str) -> None:
    make, rows, damaged = TABLES[kind](tmp_path / "t")
    with pytest.raises(TableError, match=damaged.name):
        make(**MODES[mode])
    for ranks, others in ((1, 3), (3, 1)):
        with pytest.warns(UserWarning, match=rf"leaves out 1 damaged part of .* all of .*{damaged.name}"):
            loaders = jobs(make, ranks, **MODES[mode])
        lengths = [len(loader) for loader in loaders]
        assert taken(loaders) == Counter(rows)
        assert [loader.metrics().batches for loader in loaders] == lengths
        with pytest.warns(UserWarning, match="leaves out"):
            begun, again = jobs(make, ranks, **MODES[mode]), jobs(make, others, **MODES[mode])
        before = taken(begun, 1)
        state = begun[0].state_dict()
        for loader in again:
            loader.load_state_dict(state)
        assert before + taken(again) == Counter(rows)


@pytest.mark.parametrize("kind", TABLES)
def test_a_state_is_bound_to_what_was_left_out(tmp_path: Path, kind: str) -> None:
    make, _, damaged = TABLES[kind](tmp_path / "t")
    with pytest.warns(UserWarning, match="leaves out"):
        [first] = jobs(make, 1)
    dataset: Any = first.dataset
    assert [Path(part.file).name for part in dataset.left_out] == [damaged.name]
    state = first.state_dict()
    torn(damaged.parent / next(each.name for each in damaged.parent.glob("*.parquet") if each.name != damaged.name))
    with pytest.warns(UserWarning, match="leaves out 2 damaged parts"):
        [other] = jobs(make, 1)
    with pytest.raises(ResumeError, match="left out 1 damaged parts, but here it leaves out 2"):
        other.load_state_dict(state)


@pytest.mark.filterwarnings("ignore:ranks take different numbers of steps")
@pytest.mark.parametrize("kind", TABLES)
def test_counts_under_a_filter_leave_it_out_too(tmp_path: Path, kind: str) -> None:
    make, rows, _ = TABLES[kind](tmp_path / "t")
    with pytest.warns(UserWarning, match="leaves out"):
        loaders = jobs(make, 3, filters="x >= 5", even_ranks="pad")
    assert len({len(loader) for loader in loaders}) == 1
    assert taken(loaders) == Counter(row for row in rows if row >= 5)
