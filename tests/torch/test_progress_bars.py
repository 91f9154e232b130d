"""Progress bars: one a pass, one a worker if asked, and how often they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings, write_table
from torch_table_loader import MixedDataset, StructuredDataset, TableLoader
from torch_table_loader.testing import small_sizes

MODES: dict[str, dict[str, Any]] = {
    "splits": {"shuffle": "splits", "split_size": 20},
    "processes": {"worker_type": "process"},
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "tails": {"batch_size": 50},
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "table", [[60, 30], [45], [33, 30]])
    return tmp_path / "table"


@pytest.fixture(autouse=True)
def _drawn_at_once() -> Iterator[None]:
    with small_sizes(progress_s=0):
        yield


def loader_of(table: Path, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(
            str(table), "parquet", **{"batch_size": 7, "num_workers": 2} | options
        )[0]


def last_drawn(text: str, label: str) -> str:
    """Give the numbers that a bar showed last, such as 28/28."""
    return str(re.findall(rf"{label}: .*?(\d+/(?:\d+|\?)|\d+)(?:it)? \[", text)[-1])


@pytest.mark.parametrize("mode", MODES)
@daily(2)
def test_each_worker_has_a_bar_where_asked_for(table: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(table, show_progress="workers", **MODES[mode])
    steps = len(list(loader))
    drawn = capsys.readouterr().err
    made = [each.batches for each in loader.metrics().workers]
    assert sum(made) == steps
    assert last_drawn(drawn, "epoch 0") == f"{steps}/{steps}"
    for worker, batches in enumerate(made):
        assert last_drawn(drawn, f"worker {worker}") == f"{batches}/{batches}"


def test_bars_of_workers_end_where_the_epoch_is_resumed(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = loader_of(table)
    for _ in islice(first, 5):
        pass
    then = loader_of(table, show_progress="workers")
    then.load_state_dict(first.state_dict())
    left = len(list(then))
    drawn = capsys.readouterr().err
    assert last_drawn(drawn, "epoch 0") == f"{left}/{left}"
    shown = [last_drawn(drawn, f"worker {worker}").split("/") for worker in range(2)]
    assert all(made == total for made, total in shown)
    assert sum(int(total) for _, total in shown) == left


def test_a_mixture_and_rows_that_are_not_counted_have_bars_too(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = loader_of(table, show_progress="workers", filters="k < 5", count_filtered=False)
    list(loader)
    made = [each.batches for each in loader.metrics().workers]
    drawn = capsys.readouterr().err
    assert [last_drawn(drawn, f"worker {worker}") for worker in range(2)] == [f"{batches}" for batches in made]
    sources = {name: StructuredDataset(str(table), "parquet", shuffle="splits") for name in ("one", "two")}
    loader, _ = MixedDataset.create_dataloader(
        sources, {"one": 2, "two": 1}, batch_size=7, num_workers=2, show_progress="workers"
    )
    list(loader)
    assert last_drawn(capsys.readouterr().err, "epoch 0") == f"{len(loader)}/{len(loader)}"


def test_bars_of_several_loaders_have_names(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, mode in (("train", "rows"), ("validation", "splits")):
        loader = loader_of(table, show_progress=name, filters="k < 9", **MODES[mode])
        list(loader)
        drawn = capsys.readouterr().err
        assert last_drawn(drawn, f"{name}: epoch 0") == f"{len(loader)}/{len(loader)}"
        assert f"{name}: row store: " in drawn or f"{name}: counting: " in drawn
        assert not re.search(r"\r(epoch|row store|counting)", drawn)


@pytest.mark.parametrize(("interval", "seldom"), [(1e-9, False), (3600, True)])
def test_bars_are_drawn_as_often_as_asked(
    table: Path, interval: float, seldom: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the beginning and the end in any case."""
    loader = loader_of(table, show_progress=interval, filters="k < 9")
    list(loader)
    drawn = capsys.readouterr().err
    assert last_drawn(drawn, "epoch 0") == f"{len(loader)}/{len(loader)}"
    assert (drawn.count("epoch 0: ") <= 2) == seldom
    assert (drawn.count("counting: ") <= 2) == seldom
