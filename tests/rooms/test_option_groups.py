"""Groups of options mean the same as the flat options."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

from tests.tables.plain import write_table
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    DeltaDataset,
    Distributed,
    IcebergDataset,
    LoaderOptions,
    Memory,
    MixedDataset,
    Reading,
    RowMode,
    SplitMode,
    StructuredDataset,
    Types,
)
from torch_table_loader import options as flat
from torch_table_loader.option_groups import GROUPS, OptionGroup, flattened, options_of

Kind = type[OptionGroup]
FLAT: dict[str, Field[Any]] = {entry.name: entry for entry in fields(LoaderOptions)}


@pytest.fixture
def table(tmp_path: Path) -> str:
    write_table(tmp_path / "table", [[9, 7]])
    return str(tmp_path / "table")


@pytest.mark.parametrize("group", GROUPS)
def test_the_fields_are_those_of_the_flat_options(group: Kind) -> None:
    types, flat_types = get_type_hints(group), get_type_hints(LoaderOptions)
    assert options_of(group)
    for entry in fields(group):
        if entry.name != "given":
            own = FLAT[entry.name]
            assert (entry.default, entry.repr, types[entry.name]) == (own.default, own.repr, flat_types[entry.name])


def test_an_option_is_in_one_group_and_modes_are_complete() -> None:
    grouped = [name for group in GROUPS for name in options_of(group)]
    assert len(set(grouped)) == len(grouped)
    assert set(options_of(RowMode)) == set(flat._ROWS_ONLY)
    assert set(options_of(SplitMode)) == set(flat._SPLITS_ONLY)


@pytest.mark.parametrize("group", GROUPS)
def test_completion_shows_the_fields(group: Kind) -> None:
    shown = inspect.signature(group).parameters
    assert list(shown) == list(options_of(group))
    assert {name: shown[name].default for name in shown} == {name: FLAT[name].default for name in shown}
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in shown.values())


@pytest.mark.parametrize(
    "call",
    [StructuredDataset, StructuredDataset.create_dataloader, IcebergDataset, DeltaDataset, MixedDataset],
    ids=lambda call: call.__qualname__,
)
def test_every_dataset_shows_the_argument(call: Any) -> None:
    shown = inspect.signature(call).parameters["options"]
    assert (shown.kind, shown.default) == (shown.KEYWORD_ONLY, ())


@pytest.mark.parametrize("same", [copy.copy, copy.deepcopy, lambda group: pickle.loads(pickle.dumps(group))])  # noqa: S301
def test_groups_are_frozen_and_record_the_given_fields(same: Callable[[Any], Any]) -> None:
    group = Distributed(num_ranks=1)
    assert (same(group), same(group).given) == (group, {"num_ranks"})
    assert repr(group) == "Distributed(num_ranks=1, rank=None, mesh=None, even_ranks=None, check_plan=True)"
    with pytest.raises(AttributeError):
        group.num_ranks = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_rank'"):
        Distributed(num_rank=2)  # type: ignore[call-arg]


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Reading(storage_options={"secret": "hidden"}))
    with pytest.raises(ConfigError) as caught:
        flattened(
            {"storage_options": {"key": "hidden"}, "options": [Reading(storage_options={"secret": "hidden"})]},
        )
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigTypeError) as caught:
        flattened({"options": {"storage_options": {"secret": "hidden"}}})
    assert "hidden" not in str(caught.value)


def test_a_group_fills_the_flat_options(table: str) -> None:
    asked: dict[str, Any] = {
        "split_rows": 4,
        "num_ranks": 2,
        "rank": 1,
        "check_plan": False,
        "nulls": "mask",
        "prefetch_batches": 3,
    }
    groups = [
        SplitMode(split_rows=4),
        Distributed(num_ranks=2, rank=1, check_plan=False),
        Types(nulls="mask"),
        Memory(prefetch_batches=3),
    ]
    one, same = StructuredDataset(table, **asked), StructuredDataset(table, options=groups)
    assert one.options == same.options
    made: tuple[dict[str, Any], ...] = (asked, {"options": groups})
    loaders = [StructuredDataset.create_dataloader(table, **told)[0] for told in made]
    assert loaders[0].state_dict() == loaders[1].state_dict()
    assert StructuredDataset(table, batch_size=5, options=()).options == LoaderOptions(batch_size=5)


def test_groups_work_wherever_options_do(table: str) -> None:
    class Own(StructuredDataset):
        def __init__(self, path: str, batch_size: int = 4, **options: Any) -> None:
            super().__init__(path, batch_size=batch_size, **options)

    loader, _ = Own.create_dataloader(table, options=[SplitMode(shuffle_buffer_size=3), Types(nulls="mask")])
    assert sum(len(batch["x"]) for batch in loader) == 16
    held = StructuredDataset.from_arrow(pa.table({"x": range(6)}), shuffle="rows", options=[RowMode(micro_batches=2)])
    assert held.options.micro_batches == 2
    rows = RowMode(row_store="memory", global_batch_size=4)
    sources = {name: partial(StructuredDataset, table, options=[Reading(on_error="skip")]) for name in "ab"}
    mixed = MixedDataset(
        sources,
        {"a": 1, "b": 1},
        options=[rows, Types(nulls="mask"), Distributed(num_ranks=2, rank=0, check_plan=False)],
    )
    assert (mixed.options.batch_size, mixed.options.num_ranks, mixed.options.nulls) == (2, 2, "mask")
    assert {job.options.on_error for job in mixed._sources.values()} == {"skip"}


def test_group_options_of_mixture_sources_are_compared(table: str) -> None:
    told = partial(StructuredDataset, table, options=[Types(nulls="mask")])
    MixedDataset({"a": told}, {"a": 1}, nulls="mask")
    with pytest.raises(ConfigError, match="nulls= differs between the mixture and its source 'a'"):
        MixedDataset({"a": told}, {"a": 1}, options=[Types(nulls={"x": 0})])
    with pytest.raises(ConfigError, match="split_rows= belongs to the sources of a mixture"):
        MixedDataset({"a": told}, {"a": 1}, options=[SplitMode(split_rows=3)])


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            {"num_ranks": 4, "options": [Distributed(num_ranks=1)]},
            ConfigError,
            r"num_ranks is given twice, by a keyword argument and by Distributed\(num_ranks=\.\.\.\); give it once",
        ),
        (
            {"options": [Types(decimals=None), Types(decimals="float64")]},
            ConfigError,
            r"decimals is given twice, by Types\(decimals=\.\.\.\) and by Types\(decimals=\.\.\.\)",
        ),
        (
            {"options": {"rank": 0}},
            ConfigTypeError,
            r"options must be a list of groups .* got dict; pass other options",
        ),
        ({"options": "rank"}, ConfigTypeError, r"options must be a list of groups .* got str"),
        ({"options": [LoaderOptions()]}, ConfigTypeError, r"got LoaderOptions; pass other options as keyword"),
        ({"options": Memory()}, ConfigTypeError, r"got Memory; pass options=\[it\]"),
        ({"options": [RowMode(micro_batches=2)]}, ConfigError, "micro_batches=2 does not work with shuffle=False"),
        ({"options": [Memory(prefetch_batches=0)]}, ConfigError, "prefetch_batches must be at least 1, got 0"),
    ],
)
def test_invalid_groups_are_refused(given: dict[str, Any], error: type[ConfigError], said: str) -> None:
    with pytest.raises(error, match=said):
        StructuredDataset("nowhere", **given)


def test_one_group_may_be_given_several_times_with_disjoint_fields() -> None:
    assert flattened({"options": [Distributed(num_ranks=2), Distributed(rank=1)]}) == {"num_ranks": 2, "rank": 1}
