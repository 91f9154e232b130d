"""Ranks that differ in what shapes their steps are told so: every option, and the state with which they begin."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.ranks import Ranks, one_hash_store
from tests.waiting import PATIENCE_S
from torch_table_loader import MixedDataset, Pack, StructuredDataset, TableError, Weights
from torch_table_loader.options import ABOUT

TABLE = pa.table({"x": range(100), "k": [n % 5 for n in range(100)], "tokens": [[n] * (n % 7 + 1) for n in range(100)]})

COMMON: dict[str, Any] = {"columns": ["x"], "batch_size": 8, "even_ranks": "pad"}
PACK: dict[str, Any] = {"tokens": "tokens", "seq_len": 8, "eos_id": 1}

JOBS: dict[str, dict[str, Any]] = {
    "stream": {**COMMON, "shuffle": "splits", "split_size": 10},
    "rows": {**COMMON, "shuffle": "rows"},
    "packed stream": {**COMMON, "columns": None, "shuffle": "splits", "split_size": 10, "pack": Pack(**PACK)},
    "packed rows": {**COMMON, "columns": None, "shuffle": "rows", "pack": Pack(**PACK)},
}

ANY = {
    "batch_size": 9,
    "columns": ["k"],
    "filters": "k < 3",
    "shuffle_seed": 1,
    "drop_last": True,
    "even_ranks": None,
    "num_workers": 2,
    "epochs": 2,
    "shuffle": False,
    "global_batch_size": {0: 16, 3: 32},
    "on_growth": "continue",
}
STREAM = {
    "split_size": 20,
    "shuffle_buffer_size": 20,
    "split_strategy": "whole_files",
    "count_filtered": False,
    "even_ranks": "drop",
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "stream": {**ANY, **STREAM, "batch_by": "file"},
    "rows": {**ANY, "weights": Weights(samples=50)},
    "packed stream": {**ANY, **STREAM, "columns": ["tokens", "k"]},
    "packed rows": {**ANY, "columns": ["tokens", "k"], "on_growth": None},
}
PACKED = {"seq_len": 16, "strategy": "pad", "eos_id": None, "bos_id": 1, "min_length": 3, "tokens": "tokens"}

BESIDE: dict[str, dict[str, Any]] = {
    "global_batch_size": {"batch_size": None, "global_batch_size": 16},
    "split_strategy": {"split_size": None},
    "batch_by": {"split_size": None},
    "count_filtered": {"even_ranks": None},
}
"""What both ranks are given beside an option; None leaves it out."""

ALIKE = {
    "num_ranks": "says which job it is",
    "rank": "differs",
    "check_plan": "tests/rooms/test_engine_refused_ranks.py",
    **dict.fromkeys(
        ("collate_fn", "device", "prefetch_batches", "show_progress", "worker_type"), "makes no other step"
    ),
    **dict.fromkeys(("output_format", "row_id", "nulls", "ragged", "strings", "unsupported"), "the form of a batch"),
    **dict.fromkeys(("transforms", "decode"), "the form of a batch"),
    **dict.fromkeys(("row_store", "storage_options", "plan_cache"), "where bytes are"),
    **dict.fromkeys(("files", "schema", "on_error"), "compared as the table that comes of it"),
    "pack": "below, argument by argument",
}


pytestmark = pytest.mark.filterwarnings("ignore:ranks take different numbers of steps")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ranks:
    return Ranks(monkeypatch, one_hash_store(tmp_path, 2), 2, PATIENCE_S)


def opened(rank: int, **options: Any) -> StructuredDataset:
    return StructuredDataset(source=TABLE, num_ranks=2, rank=rank, **options)


def told(ranks: Ranks, make: Any, what: str) -> None:
    errors = [each.error for each in ranks.play(make)]
    for error in errors:
        assert isinstance(error, TableError), errors
        assert what in str(error)
    assert str(errors[0]) == str(errors[1])


def test_every_option_is_in_the_law() -> None:
    assert {*ALIKE, *(name for each in OTHERWISE.values() for name in each)} == ABOUT.keys()


CASES = [(job, option) for job in JOBS for option in OTHERWISE[job] if OTHERWISE[job][option] != JOBS[job].get(option)]


@daily(14)
@pytest.mark.parametrize(("job", "option"), CASES)
def test_ranks_that_differ_in_an_option_are_told(ranks: Ranks, job: str, option: str) -> None:
    common = {name: value for name, value in JOBS[job].items() if name not in BESIDE.get(option, {})}
    common |= {name: value for name, value in BESIDE.get(option, {}).items() if value is not None}
    other = {option: OTHERWISE[job][option]}
    options = [common, common | other]
    told(ranks, lambda rank: opened(rank, **options[rank]), "rank 1 plans another epoch than rank 0")


@daily(3)
@pytest.mark.parametrize("job", ["packed stream", "packed rows"])
@pytest.mark.parametrize("argument", [name for name in PACKED if name != "tokens"])
def test_ranks_that_pack_otherwise_are_told(ranks: Ranks, job: str, argument: str) -> None:
    packs = [Pack(**PACK), Pack(**{**PACK, argument: PACKED[argument]})]
    told(
        ranks, lambda rank: opened(rank, **{**JOBS[job], "pack": packs[rank]}), "rank 1 plans another epoch than rank 0"
    )


MIXED: dict[str, Any] = {
    "batch_size": 9,
    "shuffle_seed": 1,
    "drop_last": True,
    "even_ranks": None,
    "num_workers": 2,
    "epochs": 2,
    "global_batch_size": {0: 16, 3: 32},
    "columns": ["k"],
    "filters": "k < 3",
    "weights": {"a": 1, "b": 2},
    "stop": "all_exhausted",
    "block": 64,
}


def mixture(rank: int, shuffle: Any, **options: Any) -> MixedDataset:
    sources = {name: partial(StructuredDataset, source=TABLE, shuffle=shuffle) for name in ("a", "b")}
    return MixedDataset(
        sources, **{"weights": {"a": 1, "b": 1}, "num_ranks": 2, "rank": rank, **COMMON, "num_workers": 1, **options}
    )


UNDECIDED = {("splits", "block"), (True, "block"), (True, "num_workers")}
"""Orders of mixtures, and an option that decides nothing there: splits that are mixed go to one lane."""


@daily(8)
@pytest.mark.parametrize(
    ("shuffle", "option"),
    [(how, option) for how in ("splits", True, "rows") for option in MIXED if (how, option) not in UNDECIDED],
)
def test_ranks_of_mixtures_that_differ_in_an_option_are_told(ranks: Ranks, shuffle: Any, option: str) -> None:
    other = {option: MIXED[option]}
    told(ranks, lambda rank: mixture(rank, shuffle, **(other if rank else {})), "rank 1 ")


def steps_after(loader: Any, state: Any) -> int:
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return len(list(loader))


@daily(6)
@pytest.mark.parametrize("job", [*JOBS, "mixture", "mixture of streams"])
@pytest.mark.parametrize("difference", ["steps", "epoch", "one without", "none"])
def test_ranks_that_continue_from_different_states_are_told(ranks: Ranks, job: str, difference: str) -> None:
    def make(rank: int, *, check: bool = True) -> Any:
        if job.startswith("mixture"):
            return mixture(rank, "rows" if job == "mixture" else True, check_plan=check)
        return opened(rank, **JOBS[job], check_plan=check)

    [alone] = ranks.play(lambda rank: make(rank, check=False).loader(), only=[0])
    loader = alone.value
    batches = iter(loader)
    next(batches)
    states: list[Any] = [loader.state_dict()]
    if difference == "epoch":
        loader.set_epoch(1)
        batches = iter(loader)
        next(batches)
    elif difference == "steps":
        next(batches)
    states.append(None if difference == "one without" else loader.state_dict())
    loaders = [each.value.loader() for each in ranks.play(make)]
    outcomes = ranks.play(lambda rank: steps_after(loaders[rank], states[rank]))
    if difference == "none":
        assert outcomes[0].value == outcomes[1].value is not None, outcomes
        return
    if "stream" in job and difference == "one without" and outcomes[1].error is None:  # which waits for nobody
        outcomes[1] = ranks.play(lambda rank: steps_after(loaders[rank], None), only=[1])[0]
    for each in outcomes:
        assert isinstance(each.error, TableError), outcomes
        assert "from another state" in str(each.error), outcomes
        assert each.seconds < PATIENCE_S / 2
