"""Weights by step are what `set_weights` at their steps would be; how often sources come at most ends an epoch."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, Stop, StructuredDataset, TableLoader

SIZES = {"a": 300, "b": 200, "c": 90}
SCHEDULE: dict[int, Any] = {
    0: {"a": 1, "b": 0, "c": 1},
    4: {"a": 1, "b": 1, "c": 0},
    5: {"a": 2, "b": 2, "c": 0},
    9: {"a": 1, "b": 3, "c": 2},
}
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "streams": {"shuffle": "splits", "split_size": 30},
    "packed rows": {"shuffle": "rows", "row_store": "memory", "pack": Pack(seq_len=4)},
    "packed streams": {"shuffle": "splits", "pack": Pack(seq_len=4, strategy="pad")},
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


# ---- where an epoch ends whose weights change -----------------------------------------------------------------

SMALL = {"a": 13, "b": 20, "c": 5}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, StructuredDataset]]:
    root = tmp_path_factory.mktemp("small")
    for name, size in SMALL.items():
        pq.write_table(pa.table({"x": range(size)}), root / f"{name}.parquet", row_group_size=5)
    kinds = {kind: {**KINDS[kind], "check_plan": False} for kind in ("rows", "streams")}
    with meant_warnings():
        return {
            kind: {name: StructuredDataset(str(root / f"{name}.parquet"), **own) for name in SMALL}
            for kind, own in kinds.items()
        }


@dataclass(frozen=True)
class Job:
    """A mixture whose weights change, and what it must do."""

    schedule: dict[int, dict[str, int]]
    stop: Stop
    ranks: int
    batch_size: int

    @classmethod
    def drawn(cls, seed: int) -> Job:
        """Draw one; each schedule has a source that comes late or leaves early."""
        draw = random.Random(seed)
        steps = [0, *sorted(draw.sample(range(1, 9), draw.randint(1, 3)))]
        schedule: dict[int, dict[str, int]] = {}
        while len(schedule) < len(steps) or all(all(each.values()) for each in schedule.values()):
            drawn = [{name: draw.choice([0, 0, 1, 1, 2, 3]) for name in SMALL} for _ in steps]
            schedule = {step: each for step, each in zip(steps, drawn, strict=True) if any(each.values())}
        named = {name: draw.randint(1, 2) for name in draw.sample(list(SMALL), draw.randint(1, 2))}
        samples = draw.choice([None, None, draw.randint(1, 80)])
        stop = Stop(draw.choice(["all_exhausted", "all_exhausted", "first_exhausted", named]), samples=samples)
        return cls(schedule, stop, draw.randint(1, 3), draw.choice([2, 3, 5]))

    @property
    def step_rows(self) -> int:
        return self.ranks * self.batch_size

    def weights_at(self, place: int) -> dict[str, int]:
        return self.schedule[max(step for step in self.schedule if step * self.step_rows <= place)]

    def wanted_at(self, place: int) -> set[str]:
        """Name the sources that have a weight at a place, or later."""
        later = [own for step, own in self.schedule.items() if step * self.step_rows > place]
        return {name for own in (self.weights_at(place), *later) for name, weight in own.items() if weight}

    def end(self, order: list[str]) -> int | None:
        """Return the place of an endless order where the epoch ends; None if it does not."""
        counts = dict.fromkeys(SMALL, 0)
        limits = self.stop.limits(SMALL)
        for place, name in enumerate(order):
            if place == self.stop.samples:
                return place
            around = {place, max(0, place - 1)}
            if self.stop.at == "all_exhausted":
                if any(all(counts[own] >= SMALL[own] for own in self.wanted_at(each)) for each in around):
                    return place
            elif counts[name] >= limits.get(name, len(order)):
                return place
            counts[name] += 1
        return None

    def made(self, sources: dict[str, StructuredDataset], rank: int, stop: Stop) -> tuple[TableLoader, MixedDataset]:
        options: dict[str, Any] = {"num_ranks": self.ranks, "rank": rank, "even_ranks": False, "num_workers": 0}
        with meant_warnings():
            return MixedDataset.create_dataloader(
                sources, self.schedule, stop=stop, batch_size=self.batch_size, check_plan=False, **options
            )

    def order(self, sources: dict[str, StructuredDataset]) -> list[str]:
        """Return the sources at the first places of the epoch if it had no end, as they are planned."""
        job = self.made(sources, 0, Stop("forever"))[1].job
        stages: list[Any] = list(job.walk.stages(job.start(0)))
        ends = [*(stage.start for stage in stages[1:]), stages[-1].start + 300]
        found: list[str] = []
        for stage, end in zip(stages, ends, strict=True):
            places = np.arange(stage.start, end)
            names = stage.asked.value
            numbers = (
                stage.mixture.take(places).source
                if hasattr(stage, "mixture")
                else stage.deal.sources(places - stage.start)
            )
            found += [list(names)[number] for number in numbers.tolist()]
        return found

    def read(self, sources: dict[str, StructuredDataset]) -> tuple[list[str], list[MixedDataset]]:
        """Return the sources that come over all ranks, in the order of their places, and each rank's dataset."""
        ranks, datasets = [], []
        for rank in range(self.ranks):
            loader, dataset = self.made(sources, rank, self.stop)
            batches = [batch["source"].tolist() for batch in loader]
            assert len(batches) == len(loader)
            ranks.append(batches)
            datasets.append(dataset)
        steps = zip_longest(*ranks, fillvalue=[])
        places = [number for step in steps for row in zip_longest(*step) for number in row if number is not None]
        return [list(SMALL)[number] for number in places], datasets

    def ends_where_weights_change(self, place: int, counts: dict[str, int]) -> bool:
        """Return whether a source has come as often as it may where another would come next: that ends an epoch too."""
        limits = {} if self.stop.at == "all_exhausted" else self.stop.limits(SMALL)
        begins = [step * self.step_rows for step in self.schedule]
        return place in begins and any(counts[name] == limits.get(name) for name in self.weights_at(place - 1))

    @property
    def slack(self) -> int:
        """Rows in which a mixture of streams surely has a place where it may end."""
        most = max(-(-sum(each.values()) // min(filter(None, each.values()))) for each in self.schedule.values())
        return 2 * -(-most // self.step_rows) * self.step_rows


@pytest.mark.parametrize("kind", ["rows", "streams"])
@pytest.mark.parametrize("seeds", [range(first, first + 3) for first in range(0, 99, 3)], ids=str)
@daily(4)
def test_an_epoch_ends_by_all_its_weights(small: Any, kind: str, seeds: range) -> None:
    for seed in seeds:
        job = Job.drawn(seed)
        order = job.order(small[kind])
        end = job.end(order)
        if end is None:
            with pytest.raises(ConfigError, match="would not end"):
                job.made(small[kind], 0, job.stop)
            continue
        found, datasets = job.read(small[kind])
        counts = {name: found.count(name) for name in SMALL}
        for dataset in datasets:
            notes = dataset.explain().notes
            assert all(f"the epoch delivers {counts[name]:,}," in notes[n] for n, name in enumerate(SMALL)), seed
        if len(found) < end and job.ends_where_weights_change(len(found), counts):
            continue
        if kind == "rows":
            assert found == order[:end], seed
        elif {*job.wanted_at(max(0, end - job.slack)), *job.wanted_at(end + job.slack)} <= job.wanted_at(end):
            assert abs(len(found) - end) <= job.slack, seed
        if job.stop.at == "all_exhausted":
            wanted = job.wanted_at(len(found) - 1), job.wanted_at(len(found))
            came = any(all(counts[name] >= SMALL[name] for name in names) for names in wanted)
            assert came or len(found) == job.stop.samples, seed
        else:
            assert all(counts[name] <= most for name, most in job.stop.limits(SMALL).items()), seed


@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_a_source_that_gets_its_weight_late_is_waited_for(small: Any, kind: str) -> None:
    late = {0: {"a": 1, "b": 0, "c": 0}, 9: {"a": 1, "b": 1, "c": 0}}
    found, _ = Job(late, Stop("all_exhausted"), 2, 3).read(small[kind])
    assert (found.count("a") >= 13, found.count("b") >= 20) == (True, True)
    found, _ = Job(late, Stop({"b": 1}), 2, 3).read(small[kind])
    assert 20 - 6 < found.count("b") <= 20
    with pytest.raises(ConfigError, match="would not end"):
        Job(late, Stop({"c": 1}), 2, 3).made(small[kind], 0, Stop({"c": 1}))


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
