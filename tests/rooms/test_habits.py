"""Habits of PyTorch: 29 things that its users try first. Each works as there, or its error names the remedy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset, default_collate, random_split
from torch.utils.data.distributed import DistributedSampler

from torch_table_loader import ConfigError, ConfigTypeError, StructuredDataset

ROWS, SIZE = 20, 4


@dataclass(frozen=True, slots=True)
class Here:
    """A table, and how a user opens it."""

    path: str

    def dataset(self, **options: Any) -> Any:
        asked: dict[str, Any] = {"batch_size": SIZE, "columns": ["x"], **options}
        return StructuredDataset(self.path, **asked)

    def loader(self, **options: Any) -> Any:
        return self.dataset(**options).loader()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Here:
    root = tmp_path_factory.mktemp("habits")
    days = [date(2026, 1, 1 + row // 2) for row in range(ROWS)]
    texts = [f"s{row % 3}" for row in range(ROWS)]
    table = pa.table({"x": range(ROWS), "day": days, "at": pa.array(days).cast(pa.timestamp("us")), "s": texts})
    pq.write_table(table, root / "0.parquet", row_group_size=5)
    return Here(str(root))


def xs(batches: Any) -> list[int]:
    return [x for batch in batches for x in batch["x"].reshape(-1).tolist()]


def resumed(here: Here) -> list[int]:
    first, then = here.loader(), here.loader()
    next(iter(first))
    then.load_state_dict(first.state_dict())
    return xs(then)


def another_epoch(here: Here) -> bool:
    loader = here.loader(shuffle="splits", split_size=5)
    first = xs(loader)
    loader.sampler.set_epoch(1)
    second = xs(loader)
    return first != second and sorted(first) == sorted(second)


def as_map(here: Here) -> Any:
    return here.dataset(shuffle="rows", row_store="memory").as_map()


EVERY = list(range(ROWS))

WORKS: dict[str, tuple[Callable[[Here], Any], Any]] = {
    "for batch in loader": (lambda here: xs(here.loader()), EVERY),
    "len(loader), enumerate": (lambda here: (len(here.loader()), len(list(enumerate(here.loader())))), (5, 5)),
    "len(loader.dataset)": (lambda here: len(here.loader().dataset), ROWS),
    "isinstance(loader, DataLoader)": (lambda here: isinstance(here.loader(), DataLoader), True),
    "loader.sampler.set_epoch": (another_epoch, True),
    "state_dict": (resumed, EVERY[SIZE:]),
    "pickle": (lambda here: xs(DataLoader(pickle.loads(pickle.dumps(here.dataset())), batch_size=None)), EVERY),  # noqa: S301
    "num_workers=0, drop_last": (lambda here: xs(here.loader(num_workers=0, batch_size=7, drop_last=True)), EVERY[:14]),
    "DataLoader(ds, batch_size=None)": (lambda here: xs(DataLoader(here.dataset(), batch_size=None)), EVERY),
    "DataLoader(loader.dataset)": (lambda here: xs(DataLoader(here.loader().dataset, batch_size=None)), EVERY),
    "a sampler of rows": (
        lambda here: sorted(xs(DataLoader(as_map(here), sampler=RandomSampler(as_map(here)), batch_size=7))),
        EVERY,
    ),
    "DistributedSampler": (
        lambda here: xs(DataLoader(as_map(here), sampler=DistributedSampler(as_map(here), 2, 1, shuffle=False))),
        EVERY[1::2],
    ),
    "Subset of rows": (lambda here: xs(Subset(as_map(here), [3, 5])), [3, 5]),
    "loader.metrics() first": (lambda here: (here.loader().metrics().rows, here.loader().metrics().batches), (0, 0)),
}
"""By habit: what it gives here."""


@pytest.mark.parametrize("habit", WORKS)
def test_a_habit_works(here: Here, habit: str) -> None:
    does, given = WORKS[habit]
    assert does(here) == given


BY_NUMBER = r"as_map\(\) .*shuffle=\"rows\".*split\(.*without another DataLoader"
STACKED = r"whole batches.*DataLoader\(dataset, batch_size=None\)"
PARTS = r"dataset\.split\(\{\"train\": 0.8, \"val\": 0.2\}, by="
A_DATE = r"2026-01-03 10:30, without quotes \(in Python datetime.date\(2026, 1, 3\)\)"
Habits = dict[str, Callable[[Here], Any]]

ANSWERED: dict[str, tuple[Habits, str]] = {
    "ds[0]": ({"dataset": lambda here: here.dataset()[0], "loader": lambda here: here.loader()[0]}, BY_NUMBER),
    "Subset(ds)": (
        {
            "itself": lambda here: Subset(here.dataset(), [0, 1])[0],
            "loaded": lambda here: next(iter(DataLoader(Subset(here.dataset(), [0, 1])))),
            "of loader.dataset": lambda here: Subset(here.loader().dataset, [0, 1])[0],
        },
        BY_NUMBER,
    ),
    "random_split(ds)": (
        {
            "shares": lambda here: random_split(here.dataset(), [0.5, 0.5]),
            "numbers": lambda here: random_split(here.dataset(), [10, 10]),
            "of loader.dataset": lambda here: random_split(here.loader().dataset, [0.5, 0.5]),
        },
        BY_NUMBER,
    ),
    "DataLoader(loader)": (
        {
            "plain": lambda here: next(iter(DataLoader(here.loader()))),
            "sized": lambda here: next(iter(DataLoader(here.loader(), batch_size=7))),
        },
        BY_NUMBER,
    ),
    "DataLoader(ds, batch_size=7)": (
        {
            "plain": lambda here: next(iter(DataLoader(here.dataset()))),
            "sized": lambda here: next(iter(DataLoader(here.dataset(), batch_size=7))),
            "of loader.dataset": lambda here: next(iter(DataLoader(here.loader().dataset, batch_size=7))),
            "workers": lambda here: next(iter(DataLoader(here.dataset(), batch_size=7, num_workers=1))),
        },
        STACKED,
    ),
    "batch_size=None": (
        {"None": lambda here: here.loader(batch_size=None)},
        "got None: batches are made here; leave it out .*to a DataLoader of your own",
    ),
    "collate_fn of samples": (
        {
            "zip": lambda here: list(here.loader(collate_fn=lambda samples: dict([*samples]))),
            "by key": lambda here: list(
                here.loader(collate_fn=lambda samples: torch.stack([each["x"] for each in samples]))
            ),
            "default": lambda here: list(here.loader(collate_fn=default_collate)),
            "attributes": lambda here: list(here.loader(collate_fn=lambda samples: samples.x)),
            "processes": lambda here: list(here.loader(collate_fn=default_collate, worker_type="fork")),
            "arrow": lambda here: list(here.loader(collate_fn=default_collate, output_format="arrow")),
        },
        "collate_fn gets a whole batch, one (dict|RecordBatch) of columns, and never a list of rows",
    ),
    "split=": (
        {
            word: lambda here, word=word: here.loader(**{word: 1})  # type: ignore[misc]
            for word in ("split", "train", "test_size", "val_split")
        },
        PARTS,
    ),
    "streaming=": (
        {"streaming": lambda here: here.loader(streaming=True)},
        "leave it out: tables are always read while training runs",
    ),
    "target=": (
        {
            word: lambda here, word=word: here.loader(**{word: 1})  # type: ignore[misc]
            for word in ("target", "label", "labels")
        },
        r"columns= takes labels.*\"y\": \"churn\"",
    ),
    "quoted dates": (
        {
            "text": lambda here: here.dataset(filters="day >= '2026-01-03'"),
            "text of times": lambda here: here.dataset(filters="at >= '2026-01-03 10:00'"),
            "tuples": lambda here: here.dataset(filters=[("day", ">=", "2026-01-03")]),
            "lists": lambda here: here.dataset(filters="day in ('2026-01-03', '2026-01-04')"),
            "expression": lambda here: here.dataset(filters=pc.field("day") >= "2026-01-03"),
        },
        A_DATE,
    ),
    "it is for: none": (
        {
            "strings": lambda here: here.dataset(strings={"x": "codes"}),
            "ragged": lambda here: here.dataset(ragged={"x": "pad"}),
        },
        "names 'x', which is a number; no column here can have it, so leave it out",
    ),
    "the nearest are none": (
        {
            "strings": lambda here: here.dataset(strings={"q": "codes"}),
            "decode": lambda here: here.dataset(decode={"q": len}),
            "unsupported": lambda here: here.dataset(unsupported={"q": "list"}),
        },
        "names 'q', which is not a column here; no column here can have it, so leave it out",
    ),
    "ds.split()": (
        {
            "nothing": lambda here: here.dataset().split(),
            "test_size": lambda here: here.dataset().split(test_size=0.2),
        },
        rf"^StructuredDataset\.split\(\): .*; write {PARTS}\"user_id\"\)",
    ),
    "get_metrics": (
        {
            "loader": lambda here: here.loader().get_metrics(),
            "dataset": lambda here: here.dataset().get_metrics(),
            "loader.dataset": lambda here: here.loader().dataset.get_metrics(),
        },
        r"has no attribute 'get_metrics'; metrics\(\) has them",
    ),
}
"""By habit: the ways in which it is had, and what the error says."""


@pytest.mark.parametrize(("habit", "way"), [(habit, way) for habit, (ways, _) in ANSWERED.items() for way in ways])
def test_a_habit_is_answered_with_what_to_write(here: Here, habit: str, way: str) -> None:
    ways, said = ANSWERED[habit]
    with pytest.raises(Exception, match=said) as caught:
        ways[way](here)
    assert isinstance(caught.value, ConfigError) or habit in ("collate_fn of samples", "get_metrics")


def test_these_are_the_habits_of_the_list() -> None:
    assert len(WORKS) + len(ANSWERED) == 29


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("batch", "here it is batch_size="),
        ("workers", "here it is num_workers="),
        ("root", "here it is path="),
        ("distributed", 'num_ranks="auto" gives each rank its part'),
        ("deterministic", "leave it out: shuffle_seed= and the epoch"),
        ("map_style", r"as_map\(\)"),
        ("nrows", "islice"),
        ("rows", r"help\("),
    ],
)
def test_a_guess_is_answered_with_what_is_meant_or_nothing(word: str, said: str) -> None:
    guess: dict[str, Any] = {word: 1}
    with pytest.raises(ConfigTypeError, match=f"'{word}'; .*{said}"):
        StructuredDataset("somewhere", **guess)


def test_an_attribute_that_nobody_has_is_plainly_missing(here: Here, tmp_path: Path) -> None:
    for asked in (here.dataset(), here.loader()):
        assert not hasattr(asked, "map")
        with pytest.raises(AttributeError, match=r"has no attribute 'quux'$"):
            _ = asked.quux
        assert (tmp_path / "kept").write_bytes(pickle.dumps(asked))
    with pytest.raises(AttributeError, match=r"'map'; collate_fn= is called with each batch"):
        here.dataset().map(len)
