"""Options that are told to a mixture once: it opens its sources with them, and refuses what contradicts them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.tables.plain import meant_warnings
from tests.text.packing_reference import full_pack
from torch_table_loader import ConfigError, MixedDataset, StructuredDataset

EVEN = {"a": 1, "b": 1}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    for name in EVEN:
        (tmp_path / name).mkdir()
        columns = {"id": np.arange(40), "x": np.zeros(40), "input_ids": [[1, 2, 3]] * 40}
        pq.write_table(pa.table(columns), tmp_path / name / "0.parquet")
    return {name: str(tmp_path / name) for name in EVEN}


def to_open(paths: dict[str, str], **options: Any) -> dict[str, partial[StructuredDataset]]:
    return {name: partial(StructuredDataset, path, **options) for name, path in paths.items()}


def test_sources_are_opened_with_the_options_of_the_mixture(paths: dict[str, str], tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    shared: dict[str, Any] = {"num_ranks": 2, "rank": 1, "row_store": str(stores), "check_plan": False}
    shared |= {"columns": ["id"], "filters": pc.field("id") < 30, "row_id": True, "num_workers": 1}
    loader, dataset = MixedDataset.create_dataloader(to_open(paths), "rows", batch_size=5, drop_last=True, **shared)
    assert (dataset.job.topology.num_ranks, dataset.job.rank) == (2, 1)
    for own in dataset._sources.values():
        options = own.options
        assert all(getattr(options, name) == value for name, value in shared.items() if name != "filters")
        assert (options.shuffle, options.drop_last, options.batch_size) == ("rows", False, 1024)
    batch = next(iter(loader))
    assert list(batch) == ["id", "row_id", "source"]
    assert len(list(stores.iterdir())) == 2
    assert len(loader) * 10 == 60


def test_a_job_of_ranks_is_told_to_the_mixture_alone(paths: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is opened by itself would warn that it reads the whole table."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    job = MixedDataset(to_open(paths), EVEN, num_ranks="auto", drop_last=True, check_plan=False, columns=["id"]).job
    assert (job.topology.num_ranks, job.rank) == (2, 1)


def test_packed_sources_are_told_once(paths: dict[str, str]) -> None:
    pack = full_pack(seq_len=8)
    with meant_warnings():
        dataset = MixedDataset(to_open(paths), "tokens", pack=pack, columns=[], batch_size=2, check_plan=False)
    assert len(dataset) == 15
    assert all(own.options.pack == pack.of_columns(["input_ids"]) for own in dataset._sources.values())


def test_what_a_source_says_alone_stays_and_a_function_of_any_kind_opens_it(paths: dict[str, str]) -> None:
    def opened(**options: Any) -> StructuredDataset:
        return StructuredDataset(paths["a"], columns=["id"], filters=pc.field("id") < 7, **options)

    sources: dict[str, Any] = {"a": opened, "b": partial(StructuredDataset, paths["b"], columns=["id"])}
    assert MixedDataset(sources, "rows", check_plan=False, batch_size=47).explain().rows_per_rank == (47,)


def test_contradictions_are_refused_by_name(paths: dict[str, str]) -> None:
    def refused(message: str, sources: Any, **options: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            MixedDataset(sources, EVEN, check_plan=False, **options)

    for option, one, other in (
        ("num_ranks", 1, 2),
        ("row_store", "memory", "/elsewhere"),
        ("filters", pc.field("id") < 7, pc.field("id") < 8),
        ("columns", ["id"], ["x"]),
    ):
        message = f"^{option}= differs between the mixture and its source 'a'; pass it to only one of them"
        refused(message, to_open(paths, **{option: one}), **{option: other})
    open_ones = {name: StructuredDataset(path, shuffle="rows", row_id=True) for name, path in paths.items()}
    refused(
        "^row_store= belongs to the sources .* source 'a' is already open with another value", open_ones, row_store="x"
    )
    MixedDataset(open_ones, EVEN, row_id=True, check_plan=False)
    refused("'b' is a stream, and 'a' has", to_open(paths) | to_open({"b": paths["b"]}, shuffle="splits"))
    refused("'a' must be a dataset of one table", {"a": dict, "b": dict})
    refused("split_size= belongs to the sources", to_open(paths), split_size=10)
