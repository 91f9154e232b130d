"""A token table written by a cluster: the same bytes, in whatever order its shares end."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import StorageError, StructuredDataset, tokenize_table
from torch_table_loader.cli.main import main


def crossed(value: Any) -> Any:
    """Give what another process has of a value."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 our own bytes


class PicklingCluster:
    """Stands in for a Ray cluster: what tasks get and give crosses as bytes, and they end in another order."""

    cpus = 2

    def share(self, value: Any) -> Any:
        return value

    def run(self, work: Any, calls: Any) -> Any:
        for shared, *arguments in reversed(calls):
            yield "node", crossed(work(crossed(shared), *arguments))


class BlindCluster(PicklingCluster):
    """Its nodes do not see the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, work: Any, calls: Any) -> Any:
        for mark in self._folder.glob(".shared-*"):
            mark.unlink()
        return super().run(work, calls)


@pytest.fixture
def table(tmp_path: Path) -> str:
    file = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"text": [f"text {row}" for row in range(100)]}), file, row_group_size=5)
    return str(file)


def opened(table: str) -> StructuredDataset:
    return StructuredDataset(table, columns=["text"], split_size=5, output_format="arrow", check_plan=False)


def test_a_cluster_writes_what_one_process_writes(table: str, tmp_path: Path) -> None:
    cluster: Any = PicklingCluster()
    alone = tokenize_table(opened(table), tmp_path / "alone", "bytes")
    spread = tokenize_table(opened(table), tmp_path / "spread", "bytes", cluster=cluster)
    assert replace(spread, path=alone.path) == alone
    assert alone.num_parts == 20
    names = sorted(file.name for file in alone.path.iterdir())
    assert sorted(file.name for file in spread.path.iterdir()) == names
    assert all((alone.path / name).read_bytes() == (spread.path / name).read_bytes() for name in names)
    assert not list(tmp_path.glob(".shared-*"))
    assert tokenize_table(opened(table), tmp_path / "spread", "bytes", cluster=cluster).written == 0


def test_a_node_that_does_not_see_the_folder_is_named(table: str, tmp_path: Path) -> None:
    cluster: Any = BlindCluster(tmp_path)
    with pytest.raises(StorageError, match="does not see"):
        tokenize_table(opened(table), tmp_path / "out", "bytes", cluster=cluster)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--address", "head:6379"], "--address names a Ray cluster; also pass --engine ray"),
        (["--engine", "ray", "--num-workers", "2"], "leave --num-workers out"),
        (["--engine", "ray", "--num-ranks", "2", "--rank", "0"], "leave --num-ranks out"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert main(["tokenize", table, str(tmp_path / "out"), "--tokenizer", "bytes", *given]) == 2
    assert message in capsys.readouterr().err
