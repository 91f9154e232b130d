"""A job goes on with a table that delta-rs wrote more to, and is refused where it rewrote files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tables.kinds import DELTA, rows_of
from torch_table_loader import ResumeError, TableLoader


def make(table: str, **options: Any) -> TableLoader:
    return DELTA.loader(table, **{"batch_size": 4, "num_workers": 2, "on_growth": "continue", **options})


def test_a_finished_epoch_goes_on_with_what_delta_rs_appended_since(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"x": range(10)}))
    loader = make(uri)
    assert len(rows_of(loader)) == 10
    write_deltalake(uri, pa.table({"x": range(10, 17)}), mode="append")
    newer = make(uri)
    newer.load_state_dict(loader.state_dict())
    assert sorted(rows_of(newer)) == list(range(10, 17))
    later = make(uri, on_growth=None)
    later.load_state_dict(loader.state_dict())
    assert DELTA.read(later) == 0  # without the option, a state goes on in its own version


def test_files_that_delta_rs_rewrote_since_are_refused_by_the_version_that_did_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for at in range(2):
        write_deltalake(uri, pa.table({"x": range(10 * at, 10 * at + 10)}), mode="append")
    loader = make(uri)
    rows_of(loader, 1)
    DeltaTable(uri).optimize.compact()
    with pytest.raises(ResumeError, match=r"version 2: OPTIMIZE.*2 of its files are gone"):
        make(uri).load_state_dict(loader.state_dict())
