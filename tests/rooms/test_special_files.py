"""A FIFO, device or socket in place of a data file is refused, and never blocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StructuredDataset, TableError
from torch_table_loader.extend import PathSource, open_storage

pytestmark = pytest.mark.timeout(60)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=sorted(SPECIAL))
def special(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Build a table of one file, and something beside it that is not a regular file."""
    table = tmp_path / "t"
    table.mkdir()
    pq.write_table(pa.table({"x": [1, 2]}), table / "a.parquet")
    SPECIAL[request.param](table / "b.parquet")
    return request.param, table / "b.parquet"


def test_special_files_are_refused_everywhere(special: tuple[str, Path]) -> None:
    kind, path = special
    table = path.parent
    for where, options in (
        (table, {}),
        (path, {}),
        (table / "*.parquet", {}),
        ([table / "a.parquet", path], {}),
        (table, {"files": ["a.parquet", "b.parquet"]}),
    ):
        with pytest.raises(TableError, match=rf"b\.parquet: expected a file, found a {kind}"):
            PathSource.open(where, "parquet", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["open", "version", "read_bytes"])
def test_no_call_blocks_on_a_special_file(special: tuple[str, Path], call: str) -> None:
    kind, path = special
    storage, where = open_storage(path)
    with pytest.raises(TableError, match=rf"b\.parquet: expected a file, found a {kind}"):
        getattr(storage, call)(where)


def test_hidden_special_files_are_left_out(special: tuple[str, Path]) -> None:
    _, path = special
    path.rename(path.with_name(".b.parquet"))
    assert [file.name for file in PathSource.open(path.parent, "parquet").files] == ["a.parquet"]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_file_that_becomes_special_is_refused(special: tuple[str, Path], worker_type: Any) -> None:
    kind, path = special
    loader, _ = StructuredDataset.create_dataloader(
        str(path.parent), files=["a.parquet"], num_workers=1, worker_type=worker_type
    )
    path.rename(path.with_name("a.parquet"))
    with pytest.raises(TableError, match=rf"a\.parquet: expected a file, found a {kind}"):
        list(loader)
