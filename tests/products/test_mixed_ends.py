"""`Stop`: sources that came often enough leave the mixture, the others go on, and a budget ends the epoch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.mixtures.mixed_worlds import write_fours
from tests.states import record_of, with_record
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, ConfigTypeError, MixedDataset, Pack, ResumeError, Stop, StructuredDataset

SIZES = {"a": 300, "b": 90, "c": 41}
NAMES = tuple(SIZES)
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "streams": {"shuffle": "splits", "split_size": 30},
    "packed rows": {"shuffle": "rows", "row_store": "memory", "pack": Pack(seq_len=4)},
    "packed streams": {"shuffle": "splits", "pack": Pack(seq_len=4)},
}
WEIGHTS = {"a": 3, "b": 2, "c": 1}
STOPS = {
    "one is dropped, another ends": Stop({"a": 1}, drop={"b": 1, "c": 2}),
    "all come once": Stop(drop=dict.fromkeys(SIZES, 1)),
    "the last one that is not dropped ends": Stop("first_exhausted", drop={"c": 1}),
    "all have come": Stop("all_exhausted", drop={"c": 3}),
    "some samples": Stop("forever", drop={"c": 1, "b": 2}, samples=700),
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fours(tmp_path_factory.mktemp("tables"), SIZES)


def make(tables: Path, kind: str, stop: Any, weights: Any = WEIGHTS, **options: Any) -> Any:
    own = {"columns": [] if "pack" in KINDS[kind] else ["x"], **KINDS[kind]}
    asked: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        sources = {name: partial(StructuredDataset, str(tables / name), **own) for name in SIZES}
        return MixedDataset.create_dataloader(sources, weights, stop=stop, **asked)


def items(batch: Any) -> list[tuple[str, int]]:
    """Name each row of a batch, or each document, which is a sequence of its own, without padding."""
    if "x" in batch:
        pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"])
        named = zip(batch["source"].tolist(), batch["x"].tolist(), pads, strict=True)
        return [(NAMES[source], row) for source, row, pad in named if not pad]
    found = []
    for ids, docs in zip(batch["input_ids"].tolist(), batch["doc_ids"].tolist(), strict=True):
        if docs[0] >= 0:
            assert len(set(ids)) == len(set(docs)) == 1
            found.append((NAMES[batch["documents"]["source"].tolist()[docs[0]]], ids[0]))
    return found


def on_all_ranks(tables: Path, kind: str, stop: Any, **world: Any) -> list[list[tuple[str, int]]]:
    """List what each step of a job delivers on all its ranks together."""
    ranks = []
    for rank in range(world["num_ranks"]):
        loader, dataset = make(tables, kind, stop, rank=rank, **world)
        ranks.append([items(batch) for batch in loader])
        told = dataset.explain()
        assert len(ranks[-1]) == len(loader) == told.steps == told.steps_per_rank[rank]
    return [
        [item for rank in ranks for item in (rank[step] if step < len(rank) else [])] for step in range(len(ranks[0]))
    ]


def ended(counts: Counter[str], stop: Stop, weights: dict[str, int]) -> bool:
    """Say, from the words of the documentation alone, whether an epoch must be over."""
    left = [name for name in weights if weights[name] and counts[name] < stop.drop.get(name, 1 << 30) * SIZES[name]]
    if not left or sum(counts.values()) >= (stop.samples or 1 << 60):
        return True
    if stop.at == "all_exhausted":
        return all(counts[name] >= SIZES[name] for name in weights if weights[name])
    return False


def check(steps: Iterable[list[tuple[str, int]]], stop: Stop, *, slack: int) -> Counter[str]:
    """Hold an epoch against its rule: caps are reached to the row, rounds are whole, and others keep their shares."""
    counts: Counter[str] = Counter()
    rows: Counter[tuple[str, int]] = Counter()
    for step in steps:
        assert not ended(counts, stop, WEIGHTS)
        before = counts.copy()
        counts.update(name for name, _ in step)
        rows.update(step)
        free = [name for name in WEIGHTS if before[name] < stop.drop.get(name, 1 << 30) * SIZES[name]]
        going = [name for name in free if counts[name] < stop.drop.get(name, 1 << 30) * SIZES[name]]
        if len(going) == len(free):
            for name in free:
                share = Fraction(len(step) * WEIGHTS[name], sum(WEIGHTS[each] for each in free))
                assert abs(counts[name] - before[name] - share) <= slack
    for name, size in SIZES.items():
        times = [rows[name, row] for row in range(size)]
        assert max(times) - min(times) <= 1, "no row comes again before all rows of its source came"
        assert counts[name] <= stop.drop.get(name, 1 << 30) * size
        assert counts[name] <= stop.named.get(name, 1 << 30) * size
    return counts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", STOPS.values(), ids=list(STOPS))
@pytest.mark.parametrize("world", [{"num_ranks": 1}, {"num_ranks": 3, "batch_size": 5, "even_ranks": "pad"}], ids=str)
@daily(5)
def test_sources_are_dropped_when_they_came_often_enough(tables: Path, kind: str, stop: Stop, world: Any) -> None:
    steps = on_all_ranks(tables, kind, stop, **world)
    slack = 64 if "rows" in kind else 2  # of rows, shares hold over a block
    counts = check(steps, stop, slack=slack)
    size = world["num_ranks"] * world.get("batch_size", 4)
    assert all(len(step) == size for step in steps[:-1])
    if stop == STOPS["all come once"]:
        assert counts == SIZES
    elif stop == STOPS["some samples"]:
        assert (counts["b"], counts["c"], sum(counts.values())) == (180, 41, 700)
    elif stop == STOPS["all have come"]:
        assert all(counts[name] >= size for name, size in SIZES.items())
    elif stop == STOPS["one is dropped, another ends"]:
        assert (counts["b"], counts["c"]) == (90, 82)
        assert counts["a"] > 300 - slack
    else:
        assert counts["c"] == 41
        assert counts["b"] > 90 - slack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", STOPS.values(), ids=list(STOPS))
@daily(2)
def test_a_state_goes_on_on_any_world(tables: Path, kind: str, stop: Stop) -> None:
    loader, _ = make(tables, kind, stop)
    whole = [items(batch) for batch in loader]
    for taken in range(3, len(whole) + 1, len(whole) // 4):
        begun, _ = make(tables, kind, stop)
        with begun:
            before = [items(batch) for batch in islice(begun, taken)]
            state = json.loads(json.dumps(begun.state_dict()))
        same, _ = make(tables, kind, stop)
        same.load_state_dict(state)
        assert (len(same), same.remaining) == (len(whole), len(whole) - taken)
        assert before + [items(batch) for batch in same] == whole
        rest = []
        for rank in range(2):
            other, _ = make(tables, kind, stop, num_ranks=2, rank=rank, batch_size=3, num_workers=1, even_ranks="pad")
            other.load_state_dict(state)
            rest.append([items(batch) for batch in other])
        there = [[*one, *two] for one, two in zip(*rest, strict=True)]
        counts = Counter(name for step in before + there for name, _ in step)
        rows = Counter(item for step in before + there for item in step)
        assert all(counts[name] <= times * SIZES[name] for name, times in stop.drop.items())
        for name, size in SIZES.items():
            times = [rows[name, row] for row in range(size)]
            assert max(times) - min(times) <= 1
        if "rows" in kind:  # neither ranks nor batches decide the order
            assert sorted(item for step in there for item in step) == sorted(i for step in whole[taken:] for i in step)


@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_weights_change_before_and_after_a_drop(tables: Path, kind: str) -> None:
    stop = Stop(drop={"a": 1, "b": 2, "c": 2})
    loader, dataset = make(tables, kind, stop, {0: WEIGHTS, 20: {"a": 1, "b": 1, "c": 3}, 60: {"a": 0, "b": 1, "c": 1}})
    steps = [items(batch) for batch in loader]
    assert len(steps) == len(loader) == dataset.explain().steps
    counts = Counter(name for step in steps for name, _ in step)
    assert (counts["b"], counts["c"]) == (180, 82)
    assert counts["a"] == len([1 for step in steps[:60] for name, _ in step if name == "a"])


@pytest.mark.parametrize("kind", KINDS)
@daily(2)
def test_tokens_end_an_epoch(tables: Path, kind: str) -> None:
    stop = Stop("forever", tokens=4 * 203 + 3)
    if "packed" not in kind:
        with pytest.raises(ConfigError, match="counts tokens"):
            make(tables, kind, stop)
        return
    loader, dataset = make(tables, kind, stop)
    assert len(loader) == 51
    assert sum(len(items(batch)) for batch in loader) == 203
    assert "after 203" in dataset.explain().notes[-1]
    with pytest.raises(ConfigError, match="at least those of one sequence"):
        make(tables, kind, Stop("forever", tokens=3))


@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_explain_counts_what_comes_over_drops(tables: Path, kind: str) -> None:
    loader, dataset = make(tables, kind, STOPS["one is dropped, another ends"])
    counts = Counter(name for batch in loader for name, _ in items(batch))
    notes = dataset.explain().notes
    for number, name in enumerate(NAMES):
        assert f"source {number} is {name!r}: {SIZES[name]:,} rows" in notes[number]
        assert f"the epoch delivers {counts[name]:,}," in notes[number]
    assert notes[-1].endswith(
        "before 'a' comes more than 1 times; the others go on without 'b' after it came 1 times and 'c' after it came "
        "2 times"
    )


@pytest.mark.parametrize("kind", ["rows", "streams"])
def test_a_state_needs_the_same_rule(tables: Path, kind: str) -> None:
    loader, _ = make(tables, kind, STOPS["some samples"])
    list(islice(loader, 2))
    for other in (Stop("forever", samples=700), Stop("forever", drop={"c": 1, "b": 2}, samples=701), "all_exhausted"):
        again, _ = make(tables, kind, other)
        with pytest.raises(ResumeError, match="other options"):
            again.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "wrong", [[0, [1]], [3, [3, 2, 1]], [8, [0, 0, 0]], [0, [1, 1, 1 << 60]], [4, [1, 1, 1]]], ids=str
)
@daily(2)
def test_a_state_of_drops_that_no_stage_has_is_refused(tables: Path, wrong: Any) -> None:
    loader, _ = make(tables, "streams", STOPS["one is dropped, another ends"])
    list(islice(loader, 90))
    state = json.loads(json.dumps(loader.state_dict()))
    until, weights = wrong
    assert "dropped" in record_of(state, "mixture")
    state = with_record(state, "mixture", dropped={"until": until, "weights": weights})
    again, _ = make(tables, "streams", STOPS["one is dropped, another ends"])
    with pytest.raises(ResumeError):
        again.load_state_dict(state)


@pytest.mark.parametrize("kind", ["rows", "streams"])
@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (lambda: Stop({"a": 1}, drop={"a": 2}), "name it in one of them"),
        (lambda: Stop(drop={"d": 2}), "stop names 'd'"),
        (lambda: Stop(drop={"a": 0}), "at least 1"),
        (lambda: Stop("never"), "stop must be one of"),  # type: ignore[arg-type]
        (lambda: Stop({"c": 1}, drop={"a": 1}), "would not end"),
        (lambda: Stop("forever", samples=0), "samples of Stop must be at least 1"),
        (lambda: Stop(drop=3), "most times of sources by name"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_rule_is_refused(tables: Path, kind: str, stop: Any, said: str) -> None:
    with pytest.raises((ConfigError, ConfigTypeError), match=said):
        make(tables, kind, stop(), {"a": 1, "b": 1, "c": 0})


@pytest.mark.parametrize("kind", KINDS)
@daily(2)
def test_all_sources_may_end_with_a_step(tables: Path, kind: str) -> None:
    loader, dataset = make(tables, kind, STOPS["all come once"], "rows", batch_size=431)
    [batch] = list(loader)
    assert Counter(name for name, _ in items(batch)) == SIZES
    assert (len(loader), loader.remaining, dataset.explain().steps) == (1, 0, 1)
    again, _ = make(tables, kind, STOPS["all come once"], "rows", batch_size=431)
    again.load_state_dict(loader.state_dict())
    assert list(again) == []
