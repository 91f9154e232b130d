"""Weights by step are what `set_weights` at their steps would be; how often sources come at most ends an epoch."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader

SIZES = {"a": 300, "b": 200, "c": 90}
SCHEDULE: dict[int, Any] = {
    0: {"a": 1, "b": 0, "c": 1},
    4: {"a": 1, "b": 1, "c": 0},
    5: {"a": 2, "b": 2, "c": 0},
    9: {"a": 1, "b": 3, "c": 2},
}
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "streams": {"shuffle": True, "split_size": 30},
    "packed rows": {"shuffle": "rows", "row_store": "memory", "pack": Pack(seq_len=4)},
    "packed streams": {"shuffle": True, "pack": Pack(seq_len=4, strategy="pad")},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for name, size in SIZES.items():
        (root / name).mkdir()
        lists = pa.array([[row, row + 1, row + 2] for row in range(size)], pa.list_(pa.int32()))
        pq.write_table(pa.table({"x": range(size), "input_ids": lists}), root / name / "0.parquet", row_group_size=20)
    return root


def make(tables: Path, kind: str, weights: Any, **options: Any) -> tuple[TableLoader, MixedDataset]:
    own = {"columns": [] if "pack" in KINDS[kind] else ["x"], **KINDS[kind]}
    asked: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "check_plan": False, "stop": "all_exhausted", **options}
    with meant_warnings():
        sources = {name: partial(StructuredDataset, str(tables / name), **own) for name in SIZES}
        return MixedDataset.create_dataloader(sources, weights, **asked)


def plain(batch: Any) -> Any:
    return json.loads(json.dumps({name: values.tolist() for name, values in batch.items() if name != "documents"}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [0, 1])
@daily(3)
def test_a_schedule_is_weights_that_are_set_at_its_steps(tables: Path, kind: str, rank: int) -> None:
    world: dict[str, Any] = {"num_ranks": 2, "rank": rank, "even_ranks": "pad"}
    loader, _ = make(tables, kind, SCHEDULE, **world)
    by_hand, dataset = make(tables, kind, SCHEDULE[0], **world)
    wanted = []
    for step, batch in enumerate(by_hand, start=1):
        wanted.append(plain(batch))
        if step in SCHEDULE:
            dataset.set_weights(SCHEDULE[step])
    assert [plain(batch) for batch in loader] == wanted
    assert len(loader) == len(wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", ["all_exhausted", "first_exhausted"])
@daily(1)
def test_it_resumes_inside_any_part_of_it(tables: Path, kind: str, stop: Any) -> None:
    loader, dataset = make(tables, kind, SCHEDULE, stop=stop)
    whole = [plain(batch) for batch in loader]
    assert len(whole) == len(loader) == dataset.explain().steps
    for step in (0, 2, 4, 5, 7, 9, 11, len(whole)):
        begun, _ = make(tables, kind, SCHEDULE, stop=stop)
        with begun:
            taken = [plain(batch) for batch in islice(begun, step)]
            state = json.loads(json.dumps(begun.state_dict()))
        again, _ = make(tables, kind, SCHEDULE, stop=stop)
        again.load_state_dict(state)
        assert (len(again), again.remaining) == (len(whole), len(whole) - step)
        assert taken + [plain(batch) for batch in again] == whole
        sought, _ = make(tables, kind, SCHEDULE, stop=stop)
        sought.seek(step=step)
        assert [plain(batch) for batch in sought] == whole[step:]


def test_later_epochs_have_the_last_weights(tables: Path) -> None:
    loader, _ = make(tables, "rows", SCHEDULE, block=0)
    last, _ = make(tables, "rows", SCHEDULE[9], block=0)
    for each in (loader, last):
        each.set_epoch(1)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in last]


def test_another_world_and_another_schedule_go_on(tables: Path) -> None:
    loader, _ = make(tables, "rows", SCHEDULE, num_ranks=2, rank=0, block=0)
    list(islice(loader, 6))
    state = loader.state_dict()
    other, dataset = make(tables, "rows", {0: SCHEDULE[0], 5: {"a": 0, "b": 1, "c": 0}}, block=0, batch_size=8)
    other.load_state_dict(state)
    batches = [plain(batch) for batch in islice(other, 6)]
    assert {source for batch in batches for source in batch["source"]} == {1}
    assert dataset.weights == {"a": 0, "b": 1, "c": 0}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({1: {"a": 1, "b": 1, "c": 1}}, "begins with the value of step 0, got 1"),
        ({0: SCHEDULE[0], -3: SCHEDULE[4]}, "begins with the value of step 0, got -3"),
        ({0: SCHEDULE[0], 3: {"a": 1}}, "must name every source"),
        ({0: SCHEDULE[0], 3: {"a": -1, "b": 1, "c": 1}}, "weight"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_a_wrong_schedule_is_refused(tables: Path, kind: str, weights: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(tables, kind, weights)


def test_weights_are_not_set_beside_a_schedule(tables: Path) -> None:
    _, dataset = make(tables, "rows", SCHEDULE)
    with pytest.raises(ConfigError, match="follows a schedule"):
        dataset.set_weights(SCHEDULE[4])


# ---- how often a source comes at most ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "streams", "packed streams"])
@pytest.mark.parametrize(
    "weights", [{"a": 1, "b": 1, "c": 1}, {"a": 5, "b": 1, "c": 2}, {"a": 1, "b": 1, "c": 0}], ids=str
)
@pytest.mark.parametrize("stop", [{"c": 3, "b": 2}, {"a": 2, "b": 1}], ids=str)
@daily(4)
def test_an_epoch_ends_before_a_source_comes_oftener(tables: Path, kind: str, weights: Any, stop: Any) -> None:
    loader, dataset = make(tables, kind, weights, stop=stop, batch_size=1)
    sources: list[int] = []
    for batch in loader:
        sources += batch["source"].tolist() if "source" in batch else batch["documents"]["source"][:1].tolist()
    counts = {name: sources.count(number) for number, name in enumerate(SIZES)}
    limits = {name: times * SIZES[name] for name, times in stop.items() if weights[name]}
    assert all(counts[name] <= limit for name, limit in limits.items())
    slack = 256 if kind == "rows" else sum(weights.values())  # shares hold over a block
    assert any(counts[name] > limit - slack for name, limit in limits.items())
    assert len(sources) == len(loader) == dataset.explain().steps
    half, _ = make(tables, kind, weights, stop=stop, batch_size=1)
    with half:
        begun = len(list(islice(half, len(sources) // 2)))
    again, _ = make(tables, kind, weights, stop=stop, batch_size=3)
    again.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert again.remaining == -(-(len(sources) - begun) // 3)
    other, _ = make(tables, kind, weights, stop="all_exhausted")
    with pytest.raises(ResumeError, match="stop was"):
        other.load_state_dict(half.state_dict())


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"d": 2}, "stop names 'd'"),
        ({"a": 0}, "at least 1"),
        ({}, "names no source"),
        ("never", "stop must be one of"),
        ({"c": 2}, "no source of stop=.* has a weight"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_a_wrong_end_is_refused(tables: Path, kind: str, stop: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(tables, kind, {"a": 1, "b": 1, "c": 0}, stop=stop)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataloader_of_your_own_takes_no_schedule(tables: Path, kind: str) -> None:
    own = {"columns": [] if "pack" in KINDS[kind] else ["x"], "check_plan": False, **KINDS[kind]}
    sources = {name: StructuredDataset(str(tables / name), **own) for name in SIZES}
    dataset = MixedDataset(sources, SCHEDULE, batch_size=4, stop="all_exhausted", check_plan=False)
    with pytest.raises(ConfigError, match="weights by step is for the loader"):
        next(iter(dataset))
