"""`global_batch_size` by step, sample or token: the same rows, in global batches of the sizes that a schedule says."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.mixtures.mixed_worlds import write_fours
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, Pack, Schedule, StructuredDataset

SIZES = {"a": 300, "b": 120}
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"shuffle": "rows", "row_store": "memory"},
    "stream": {"shuffle": "splits", "split_size": 30},
    "packed rows": {"shuffle": "rows", "row_store": "memory", "pack": Pack(seq_len=4)},
    "packed stream": {"shuffle": "splits", "pack": Pack(seq_len=4)},
}
RAMPS: dict[str, Any] = {
    "steps": {0: 6, 4: 12, 9: 24},
    "samples": Schedule({0: 6, 25: 12, 100: 24}, unit="samples"),
    "down": {0: 24, 3: 6},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fours(tmp_path_factory.mktemp("tables"), SIZES)


def make(tables: Path, kind: str, *, mixed: bool, **options: Any) -> Any:
    own = {"columns": [] if "pack" in KINDS[kind] else ["x"], **KINDS[kind]}
    own |= {name: options.pop(name) for name in ("pack",) if name in options}
    asked: dict[str, Any] = {"num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        if not mixed:
            return StructuredDataset.create_dataloader(str(tables / "a"), "parquet", **own, **asked)
        sources = {name: partial(StructuredDataset, str(tables / name), **own) for name in SIZES}
        return MixedDataset.create_dataloader(sources, {"a": 2, "b": 1}, stop="all_exhausted", **asked)


def items(batch: Any) -> list[Any]:
    """Name each row, or the document that is a sequence, without padding; of a mixture, with its source."""
    if "x" in batch:
        pads = batch["padding"].tolist() if "padding" in batch else [False] * len(batch["x"])
        sources = batch["source"].tolist() if "source" in batch else [0] * len(pads)
        rows = zip(sources, batch["x"].tolist(), pads, strict=True)
        return [(source, row) for source, row, pad in rows if not pad]
    parts = batch["documents"]["source"].tolist() if "documents" in batch else None
    found = []
    for number, ids in enumerate(batch["input_ids"].tolist()):
        label = batch["labels"][number].tolist()
        if label[1] != -100:
            docs = batch["doc_ids"][number].tolist() if parts else [0]
            found.append((parts[docs[0]] if parts else 0, ids[0]))
    return found


def sizes_of(ramp: Any, count: int) -> list[int]:
    """List the sizes of the first steps, as Megatron decides them: by what was taken where a step begins."""
    values, unit = (ramp, "steps") if isinstance(ramp, dict) else (ramp.values, ramp.unit)
    found: list[int] = []
    while len(found) < count:
        done = {"steps": len(found), "samples": sum(found), "tokens": 4 * sum(found)}[unit]
        found.append(values[max(place for place in values if place <= done)])
    return found


def on_all_ranks(tables: Path, kind: str, state: Any = None, **options: Any) -> list[list[Any]]:
    ranks = []
    for rank in range(options["num_ranks"]):
        loader, dataset = make(tables, kind, rank=rank, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        left = loader.remaining
        ranks.append([items(batch) for batch in loader])
        assert len(ranks[-1]) == left
        assert loader.remaining == 0
        if state is None:
            assert left == len(loader) == dataset.explain().steps
    return [
        [item for rank in ranks for item in (rank[step] if step < len(rank) else [])] for step in range(len(ranks[0]))
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("ramp", RAMPS.values(), ids=list(RAMPS))
@daily(lambda kind, mixed, ramp: ramp == RAMPS["samples"] and ("packed" in kind) != mixed)
def test_steps_take_as_much_as_the_schedule_says(tables: Path, kind: str, mixed: bool, ramp: Any) -> None:
    options: dict[str, Any] = {"global_batch_size": ramp, "num_ranks": 3, "even_ranks": "pad", "mixed": mixed}
    steps = on_all_ranks(tables, kind, **options)
    wanted = sizes_of(ramp, len(steps))
    alone_in_a_stream = not mixed and "stream" in kind  # whose ranks are padded apart
    assert [len(step) for step in steps[:-1]] == wanted[:-1] or alone_in_a_stream
    times = Counter(item for step in steps for item in step)
    assert set(times) == {(at, row) for at, name in enumerate(SIZES) if mixed or not at for row in range(SIZES[name])}
    if not mixed:
        assert set(times.values()) == {1}
    if "rows" in kind:  # the order is that of one size; only its cuts differ
        plain = on_all_ranks(tables, kind, **options | {"global_batch_size": 6})
        flat = [item for step in plain for item in sorted(step)]
        ends = [sum(wanted[:step]) for step in range(len(wanted))]
        for end, size, step in zip(ends, wanted, steps, strict=True):
            assert sorted(step) == sorted(flat[end : end + size])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("ramp", RAMPS.values(), ids=list(RAMPS))
@daily(2)
def test_a_state_goes_on_on_any_world(tables: Path, kind: str, mixed: bool, ramp: Any) -> None:
    loader, _ = make(tables, kind, mixed=mixed, global_batch_size=ramp)
    whole = [items(batch) for batch in loader]
    assert len(whole) == len(loader)
    sizes = sizes_of(ramp, len(whole))
    assert [len(step) for step in whole[:-1]] == sizes[:-1]
    for taken in (2, 4, 5, 9, 10, len(whole)):
        begun, _ = make(tables, kind, mixed=mixed, global_batch_size=ramp)
        with begun:
            before = [items(batch) for batch in islice(begun, taken)]
            state = begun.state_dict()
        same, _ = make(tables, kind, mixed=mixed, global_batch_size=ramp)
        same.load_state_dict(json.loads(json.dumps(state)))
        assert (len(same), same.remaining) == (len(whole), len(whole) - taken)
        assert before + [items(batch) for batch in same] == whole
        sought, _ = make(tables, kind, mixed=mixed, global_batch_size=ramp)
        assert sought.seek(step=taken) == taken
        assert [items(batch) for batch in sought] == whole[taken:]
        if taken < len(whole):
            assert sought.seek(sample=sum(sizes[:taken]) + 1) == taken
        world = {"num_ranks": 2, "even_ranks": "pad", "num_workers": 1}
        rest = on_all_ranks(tables, kind, state, mixed=mixed, global_batch_size=ramp, **world)
        if mixed or "rows" in kind:
            assert [len(step) for step in rest[:-1]] == sizes[taken : taken + len(rest) - 1]
        times = Counter(item for step in before + rest for item in step)
        assert len(times) == sum(SIZES.values() if mixed else [SIZES["a"]])
        if not mixed:
            assert set(times.values()) == {1}


@pytest.mark.parametrize("kind", ["rows", "packed rows", "mixed rows", "mixed streams"])
@pytest.mark.parametrize("unit", ["steps", "samples"])
@daily(2)
def test_steps_of_the_optimizer_grow_in_batches_of_one_size(tables: Path, kind: str, unit: str) -> None:
    ramp = Schedule({0: 8, 20: 16, 50: 32}, unit="samples") if unit == "samples" else {0: 8, 3: 16, 7: 32}
    mixed, of = "mixed" in kind, {"mixed streams": "stream", "mixed rows": "rows"}.get(kind, kind)
    options: dict[str, Any] = {"global_batch_size": ramp, "batch_size": 4, "mixed": mixed}
    if kind == "packed rows":
        options["pack"] = Pack(seq_len=4, balance="attention")
    total = sum(map(len, on_all_ranks(tables, of, num_ranks=2, **options)))
    steps = on_all_ranks(tables, of, num_ranks=2, drop_last=True, **options)
    assert all(len(step) == 8 for step in steps)
    assert sum(map(len, steps)) == 56 + (total - 56) // 32 * 32, "3 steps of 8, and 2 of 16, and whole ones of 32"
    for taken in (1, 3, 5, 12):
        loader, _ = make(tables, of, num_ranks=2, rank=0, drop_last=True, **options)
        list(islice(loader, taken))
        rest = on_all_ranks(tables, of, loader.state_dict(), num_ranks=2, drop_last=True, **options)
        assert taken + len(rest) == len(steps)


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("kind", ["packed rows", "packed stream"])
def test_tokens_and_lengths_and_later_epochs(tables: Path, kind: str, mixed: bool) -> None:
    ramp = Schedule({0: 6, 50: 12}, unit="tokens")
    loader, _ = make(tables, kind, mixed=mixed, global_batch_size=ramp)
    assert [len(items(batch)) for batch in loader][:5] == sizes_of(ramp, 5) == [6, 6, 6, 12, 12]
    loader.set_epoch(1)
    assert [len(items(batch)) for batch in islice(loader, 2)] == [12, 12]
    if not mixed:
        both = KINDS[kind] | {"pack": Pack(seq_len={0: 4, 3: 8})}
        grown = StructuredDataset.create_dataloader(
            str(tables / "a"),
            "parquet",
            columns=[],
            num_workers=1,
            check_plan=False,
            global_batch_size={0: 6, 2: 4, 5: 8},
            **both,
        )[0]
        shapes = [tuple(batch["input_ids"].shape) for batch in grown]
        assert shapes[:6] == [(6, 4), (6, 4), (4, 4), (4, 8), (4, 8), (8, 8)]
        assert sum(rows * length for rows, length in shapes) - 1200 < 64


def test_weights_change_by_samples_and_tokens_under_a_ramp(tables: Path) -> None:
    for kind, weights in (
        ("rows", Schedule({0: {"a": 1, "b": 0}, 40: {"a": 0, "b": 1}}, unit="samples")),
        ("stream", Schedule({0: {"a": 1, "b": 0}, 40: {"a": 0, "b": 1}}, unit="samples")),
        ("packed rows", Schedule({0: {"a": 1, "b": 0}, 157: {"a": 0, "b": 1}}, unit="tokens")),
        ("packed stream", Schedule({0: {"a": 1, "b": 0}, 157: {"a": 0, "b": 1}}, unit="tokens")),
    ):
        own = {"columns": [] if "pack" in KINDS[kind] else ["x"], **KINDS[kind]}
        sources = {name: partial(StructuredDataset, str(tables / name), **own) for name in SIZES}
        job: dict[str, Any] = {"num_workers": 2, "check_plan": False, "global_batch_size": {0: 6, 5: 12}}
        with meant_warnings():
            loader, _ = MixedDataset.create_dataloader(sources, weights, stop="all_exhausted", **job)
        batches = [items(batch) for batch in loader]
        assert len(batches) == len(loader)
        assert [len({source for source, _ in batch}) for batch in batches] == [1] * len(batches)
        assert [batch[0][0] for batch in batches[:8]] == [0, 0, 0, 0, 0, 0, 1, 1], "42 were taken after six steps"
        half, _ = MixedDataset.create_dataloader(sources, weights, stop="all_exhausted", **job)
        list(islice(half, 5))
        again, _ = MixedDataset.create_dataloader(sources, weights, stop="all_exhausted", **job)
        again.load_state_dict(half.state_dict())
        assert [items(batch) for batch in again] == batches[5:]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("rows", {"global_batch_size": {1: 6}}, "begins with the value of step 0"),
        ("rows", {"global_batch_size": {0: 6, 2: 0}}, "at least 1"),
        ("rows", {"global_batch_size": {0: 6, 2: 7}, "num_ranks": 2, "rank": 0}, "the nearest is"),
        ("rows", {"global_batch_size": {0: 8, 3: 16}, "batch_size": 4}, "multiples of the 2 batches"),
        ("rows", {"global_batch_size": Schedule({0: 6, 9: 7}, unit="tokens")}, "counts tokens"),
        ("stream", {"global_batch_size": {0: 6, 2: 8}, "num_ranks": 2, "rank": 0, "even_ranks": False}, "even_ranks"),
        ("stream", {"global_batch_size": {0: 6, 2: 8}, "batch_size": 2}, "a stream takes one batch"),
        ("stream", {"global_batch_size": {0: 6, 2: 8}, "batch_by": "file", "split_size": None}, "filled across splits"),
    ],
)
def test_what_does_not_fit_is_refused(tables: Path, kind: str, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StructuredDataset.create_dataloader(str(tables / "a"), "parquet", check_plan=False, **KINDS[kind] | options)


def test_a_stream_takes_a_global_batch_size(tables: Path) -> None:
    loader, _ = make(tables, "stream", mixed=False, global_batch_size=60, num_ranks=3, rank=1, even_ranks="pad")
    assert len(items(next(iter(loader)))) == 20
    with pytest.raises(ConfigError, match="create_dataloader"):
        next(iter(StructuredDataset(str(tables / "a"), global_batch_size={0: 6, 2: 8}, shuffle="splits")))
