"""Row stores behind a URL, of rows drawn by weight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.order.weighted import ids, make, write_weighted


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose weight `w` is 0 to 3, of which one in ten has the class "rare"."""
    return write_weighted(tmp_path_factory.mktemp("table"))


def test_a_store_behind_a_url_has_its_weights_on_this_machine(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path))
    assert ids(make(table, row_store="memory://weighted/stores")) == ids(make(table))
    assert len(list((tmp_path / "row-stores" / "weights").glob("*.sums"))) == 1
