"""Ranks whose jobs differ in one drawn thing either take equal steps or all raise one of our errors; none waits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ranks import Outcome, Ranks, one_hash_store
from tests.waiting import PATIENCE_S
from torch_table_loader import StructuredDataset, TableLoaderError
from torch_table_loader.testing import small_sizes

TIMEOUT_S = PATIENCE_S
OPTIONS: dict[str, list[Any]] = {
    "batch_size": [3, 7, -1],
    "columns": [["x"], ["k"], ["nope"]],
    "filters": [None, "k < 3", "k <"],
    "shuffle": [True, "rows", "nope"],
    "shuffle_seed": [1, 2],
    "drop_last": [False, True],
    "even_ranks": ["pad", None, "balance"],
    "epochs": [None, 1, 2],
    "num_workers": [0, 1, 2],
    "check_plan": [True, False],
    "output_format": ["torch", "numpy", "arrow"],
    "prefetch_batches": [None, 2],
    "nope": ["left out", 1],
}
OTHERS = ("table", "files", "state", "exclusions", "failing code", "no rank")
LAW = "equal steps, or an error of ours on every rank, within the timeout"


def tables(folder: Path) -> list[str]:
    """Write a table, one with other rows, and one with another file more."""
    places = []
    for name, sizes in (("a", (40, 20)), ("b", (40, 21)), ("c", (40, 20, 9))):
        place = folder / name
        place.mkdir()
        for number, rows in enumerate(sizes):
            pq.write_table(pa.table({"x": range(rows), "k": [n % 5 for n in range(rows)]}), place / f"{number}.parquet")
        places.append(str(place))
    return places


class Failing(StructuredDataset):
    """Fails in code of its own, after the table was opened."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        raise KeyError("of the caller's own code")


def play_case(ranks: Ranks, places: list[str], seed: int, count: int) -> tuple[str, list[Outcome]]:
    """Let ranks differ in what a seed draws."""
    chance = random.Random(seed)
    differs, other = chance.choice([*OPTIONS, *OTHERS]), chance.randrange(count)
    common = {"batch_size": 5, "shuffle": chance.choice([True, "rows"]), "even_ranks": "pad", "num_ranks": count}
    value = chance.choice(OPTIONS.get(differs, [None]))
    steps_before = chance.randrange(4)

    def job(rank: int) -> int:
        mine: dict[str, Any] = {**common, "rank": rank}
        unlike, place, kind = rank == other, places[0], StructuredDataset
        if unlike and differs in OPTIONS and value != "left out":
            mine[differs] = value
        if unlike and differs in ("table", "files"):
            place = places[1 if differs == "table" else 2]
        if unlike and differs == "failing code":
            kind = Failing
        if unlike and differs == "no rank":
            del mine["rank"]
        loader, dataset = kind.create_dataloader(place, **mine)
        if unlike and differs == "exclusions" and common["shuffle"] == "rows":
            dataset.exclude([1, 2])
        if unlike and differs == "state" and steps_before:
            alone, _ = StructuredDataset.create_dataloader(place, **{**mine, "check_plan": False})
            batches = iter(alone)
            for _ in range(steps_before):
                next(batches, None)
            state = alone.state_dict()
            alone.close()
            loader.load_state_dict(state)
        return len(list(loader))

    with small_sizes(exclusions_s=1.0):  # not in each thread: blocks that overlap do not restore the sizes
        return differs, ranks.play(job)


def check(monkeypatch: pytest.MonkeyPatch, folder: Path, seeds: range) -> None:
    places = tables(folder)
    for seed in seeds:
        count = 2 + seed % 2
        with monkeypatch.context() as patched:
            differs, outcomes = play_case(
                Ranks(patched, one_hash_store(folder, count), count, TIMEOUT_S), places, seed, count
            )
        said = f"seed {seed}: {differs}: {outcomes}"
        assert all(each.seconds < TIMEOUT_S for each in outcomes), said
        if differs == "failing code":  # after all agreed: the others take their steps
            assert sum(isinstance(each.error, KeyError) for each in outcomes) == 1, said
            continue
        fresh_stream = differs in ("state", "check_plan")
        """A rank that began a stream, or compares nothing, waits for nobody: it may not know yet."""
        failed = [each.error for each in outcomes if each.error is not None]
        assert all(isinstance(error, TableLoaderError) for error in failed), said
        assert not failed or len(failed) == count or fresh_stream, said
        assert failed or len({each.value for each in outcomes}) == 1, said


@pytest.mark.filterwarnings("ignore")
def test_ranks_that_differ_agree_or_all_hear_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(monkeypatch, tmp_path, range(12))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(3))
def test_more_ranks_that_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: int) -> None:
    check(monkeypatch, tmp_path, range(100 * part + 12, 100 * part + 60))
