"""The command that writes the table of the documentation's examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_table_loader import StructuredDataset
from torch_table_loader.cli.main import main


def test_the_sample_is_the_same_each_time_and_can_be_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert main(["sample", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"wrote 8,400 rows in 7 files to {tmp_path / 'one'}"
    tables = [StructuredDataset(str(tmp_path / name)).head(8400) for name in ("one", "two")]
    assert tables[0].equals(tables[1])
    assert tables[0].schema.names == ["label", "price", "ad", "day"]
    assert tables[0].num_rows == 8400


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    for out in (tmp_path, tmp_path / "mine"):
        assert main(["sample", str(out)]) == 2
    assert capsys.readouterr().err.count("OUT must be a new or empty folder") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
