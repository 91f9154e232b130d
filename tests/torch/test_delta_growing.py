"""A job goes on with a Delta Lake table that grew, and reads what was appended between two of its versions."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.delta import DeltaWriter, some
from tests.laws.effort import examples
from tests.torch.tables import meant_warnings
from torch_table_loader import DeltaDataset, ResumeError, TableLoader

whenever_footers_are_read = pytest.mark.parametrize("footers", ["eager", "lazy"])
parts = st.lists(
    st.fixed_dictionaries(
        {
            "files": st.lists(st.integers(0, 9), max_size=3),
            "num_ranks": st.sampled_from([1, 3]),
            "num_workers": st.integers(0, 3),
            "batch_size": st.integers(1, 7),
            "steps": st.integers(0, 5),
        }
    ),
    min_size=2,
    max_size=4,
)


def make(table: str, **options: Any) -> TableLoader:
    with meant_warnings():
        chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "columns": ["x"], "check_plan": False} | options
        return DeltaDataset.create_dataloader(table, **chosen)[0]


def version_of(loader: TableLoader) -> int:
    assert isinstance(loader.dataset, DeltaDataset)
    return loader.dataset.version


def notes_of(loader: TableLoader) -> tuple[str, ...]:
    assert isinstance(loader.dataset, DeltaDataset)
    return loader.dataset.explain().notes


def take(loader: TableLoader, steps: int | None = None) -> list[int]:
    return [x for batch in islice(loader, steps) for x in batch["x"].tolist()]


def append(table: DeltaWriter, start: int, stop: int) -> int:
    """Append a file of rows, and commit; gives the version."""
    table.append(some(start, stop), group=4)
    return table.commit()


# Going on with a newer version


@settings(max_examples=examples(6), deadline=None)
@given(
    life=parts,
    footers=st.sampled_from(["eager", "lazy"]),
    shuffle=st.sampled_from([False, True, "rows"]),
    filters=st.sampled_from([None, None, pc.field("k") < 5]),
)
def test_every_row_of_a_table_that_grows_comes_once(
    tmp_path_factory: pytest.TempPathFactory, life: list[dict[str, Any]], footers: Any, shuffle: Any, filters: Any
) -> None:
    root = tmp_path_factory.mktemp("grown")
    table, total = DeltaWriter(root / "t"), 7
    path = table.append(some(0, 7), group=3)
    table.delete(path, [2])  # a deletion vector of the first version holds in all of them
    by_rows = shuffle == "rows"
    shared: dict[str, Any] = {"shuffle": shuffle, "filters": filters, "even_ranks": "pad" if by_rows else "balance"}
    shared |= {} if by_rows else {"footers": footers}
    state: Any = None
    seen: list[int] = []
    for part in life:
        for size in part["files"]:
            table.append(some(total, total + size), group=4)
            total += size
        version = table.commit()
        sizes = {name: part[name] for name in ("num_ranks", "num_workers", "batch_size")}
        ranks = [
            make(table.uri, rank=rank, on_growth="continue", **sizes, **shared) for rank in range(part["num_ranks"])
        ]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
            assert version_of(loader) == version
            seen += own_rows(loader, None if part is life[-1] else part["steps"])
        states = [loader.state_dict() for loader in ranks]
        assert all(each == states[0] for each in states)  # ranks take equally many steps
        state = json.loads(json.dumps(states[0]))
    expected = [row["x"] for row in table.live() if filters is None or (row["k"] is not None and row["k"] < 5)]
    assert sorted(seen) == sorted(expected)


def own_rows(loader: TableLoader, steps: int | None) -> list[int]:
    """Give `x` of every row, padding left out."""
    found: list[int] = []
    for batch in islice(loader, steps):
        pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"])
        found += [x for x, is_padding in zip(batch["x"].tolist(), pads, strict=True) if not is_padding]
    return found


def test_a_finished_epoch_goes_on_with_what_delta_rs_appended_since(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": range(10)}))
    loader = make(uri, on_growth="continue")
    assert len(take(loader)) == 10
    write_deltalake(uri, pa.table({"x": range(10, 17)}), mode="append")
    newer = make(uri, on_growth="continue")
    newer.load_state_dict(loader.state_dict())
    assert sorted(take(newer)) == list(range(10, 17))
    later = make(uri)
    later.load_state_dict(loader.state_dict())
    assert version_of(later) == 0  # without the option, a state goes on in its own version


def test_a_file_of_which_more_rows_were_deleted_since_is_refused(tmp_path: Path) -> None:
    table = DeltaWriter(tmp_path / "t")
    path = table.append(some(0, 10))
    table.delete(path, [1])
    table.commit()
    loader = make(table.uri, on_growth="continue")
    take(loader, 1)
    append(table, 10, 20)
    table.delete(path, [1, 5])
    table.commit()
    with pytest.raises(ResumeError, match=r"version 2: unknown.*rows of 1 of its files were deleted since") as found:
        make(table.uri, on_growth="continue").load_state_dict(loader.state_dict())
    assert "pass version=0 and no on_growth" in str(found.value)


def test_files_that_were_rewritten_since_are_refused_by_the_version_that_did_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for at in range(2):
        write_deltalake(uri, pa.table({"x": range(10 * at, 10 * at + 10)}), mode="append")
    loader = make(uri, on_growth="continue")
    take(loader, 1)
    DeltaTable(uri).optimize.compact()
    with pytest.raises(ResumeError, match=r"version 2: OPTIMIZE.*2 of its files are gone"):
        make(uri, on_growth="continue").load_state_dict(loader.state_dict())
