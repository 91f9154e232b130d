"""What one rank is refused, all ranks hear of at once, whatever it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.ranks import Ranks, file_stores, one_hash_store, tcp_stores
from tests.waiting import PATIENCE_S
from torch_table_loader import (
    ConfigError,
    DeltaDataset,
    IcebergDataset,
    MixedDataset,
    StorageTimeoutError,
    StructuredDataset,
    TableError,
)

TABLE = pa.table({"x": range(100), "k": [n % 5 for n in range(100)]})
TIMEOUT_S = PATIENCE_S
AT_ONCE_S = PATIENCE_S / 2
"""Far below the timeout, and far above the longest time between two looks."""


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ranks:
    return Ranks(monkeypatch, one_hash_store(tmp_path, 2), 2, TIMEOUT_S)


def plain(own: int, /, **options: Any) -> StructuredDataset:
    ranks: dict[str, Any] = {"num_ranks": 2, "rank": own, "shuffle": "rows", "batch_size": 10} | options
    return StructuredDataset(source=TABLE, **{name: value for name, value in ranks.items() if value != "left out"})


def mixture(rank: int, sources: dict[str, Any] | None = None, **options: Any) -> MixedDataset:
    opened = sources or {name: partial(StructuredDataset, source=TABLE) for name in ("a", "b")}
    weights = options.pop("weights", {"a": 1, "b": 1})
    return MixedDataset(opened, weights, **{"num_ranks": 2, "rank": rank, "batch_size": 10} | options)


class Subclass(StructuredDataset):
    """Has a constructor of its own, which may fail."""

    def __init__(self, rank: int, *, fails: bool = False) -> None:
        if fails:
            raise KeyError("a secret")
        super().__init__(source=TABLE, num_ranks=2, rank=rank, even_ranks="pad")


class Interrupted:
    """A source that is opened when the user presses Ctrl+C."""

    storage = partition_schema = None

    @property
    def files(self) -> Any:
        raise KeyboardInterrupt


def of_another(rank: int, *, what: str, **options: Any) -> Any:
    """Make others of a table that is open on both ranks."""
    first = plain(rank, check_plan=False)
    first._opening.keywords["check_plan"] = True  # type: ignore[union-attr]
    return first.split(**options) if what == "split" else first.with_options(**options)


HIDDEN = ("ranks misspelt", "a whole table", "an error of a subclass")
"""In these the rank that is refused cannot know that it should have compared a loader."""

WRONG: dict[str, Any] = {"nope": 1}
SPLIT: dict[str, Any] = {"what": "split", "by": "k", "parts": {"train": 0.5, "val": 0.5}}

REFUSED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a wrong keyword": (plain, partial(plain, nope=1)),
    "a misspelt keyword": (plain, partial(plain, num_ranks="left out", num_rnaks=2)),
    "ranks misspelt": (plain, partial(plain, num_ranks="left out", rank="left out", num_rnaks=2)),
    "a wrong value": (plain, partial(plain, batch_size=-1)),
    "options that do not go together": (plain, partial(plain, split_size=3)),
    "a wrong rank": (plain, partial(plain, rank=2)),
    "a column that is not there": (plain, partial(plain, columns=["nope"])),
    "no table": (plain, lambda rank: StructuredDataset("nowhere", num_ranks=2, rank=rank)),
    "no file format": (plain, lambda rank: StructuredDataset("nowhere", "nope", num_ranks=2, rank=rank)),
    "an interrupt": (plain, lambda rank: StructuredDataset(source=Interrupted(), num_ranks=2, rank=rank)),
    "an error of a subclass": (Subclass, partial(Subclass, fails=True)),
    "an Iceberg table's wrong keyword": (plain, lambda rank: IcebergDataset("a.b", num_ranks=2, rank=rank, **WRONG)),
    "two catalogs": (plain, lambda rank: IcebergDataset("a.b", "c", catalog="d", num_ranks=2, rank=rank)),
    "a Delta Lake table's versions": (
        plain,
        lambda rank: DeltaDataset("nowhere", version=1, timestamp="2026-01-01T00:00:00Z", num_ranks=2, rank=rank),
    ),
    "a mixture's wrong keyword": (mixture, partial(mixture, nope=1)),
    "a mixture's weights": (mixture, partial(mixture, weights={"a": 1})),
    "a mixture's sources": (mixture, partial(mixture, sources={"a": None, "b": None})),
    "a source of a mixture": (
        mixture,
        partial(mixture, sources={name: partial(StructuredDataset, source=TABLE, **WRONG) for name in ("a", "b")}),
    ),
    "the second source of a mixture": (
        mixture,
        partial(mixture, sources={"a": partial(StructuredDataset, source=TABLE), "b": StructuredDataset}),
    ),
    "other options": (
        partial(of_another, what="with_options", batch_size=3),
        partial(of_another, what="with_options", batch_size="x"),
    ),
    "a split": (partial(of_another, **SPLIT), partial(of_another, **{**SPLIT, "by": "nope"})),
    "no comparison": (plain, partial(plain, check_plan=False)),
    "a whole table": (plain, partial(plain, num_ranks="left out", rank="left out")),
    "a mixture that compares nothing": (mixture, partial(mixture, check_plan=False)),
}
UNLIKE = ("no comparison", "a mixture that compares nothing")
"""In these no rank is refused alone."""

REFUSED_ALONE = [name for name in REFUSED if name not in (*HIDDEN, *UNLIKE)]


@daily(lambda refused, rank: rank == len(refused) % 2)
@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("refused", REFUSED)
def test_all_ranks_hear_at_once_of_what_one_is_refused(ranks: Ranks, refused: str, rank: int) -> None:
    right, wrong = REFUSED[refused]

    def job(own: int) -> Any:
        time.sleep(0.2 if own == rank else 0)  # the other waits by then
        made = (wrong if own == rank else right)(own)
        next(iter(made.loader()))

    outcomes = ranks.play(job)
    other = outcomes[1 - rank].error
    assert isinstance(other, TableError), outcomes
    assert f"rank {rank} " in str(other)
    assert "secret" not in str(other)
    assert outcomes[rank].error is not None
    assert max(each.seconds for each in outcomes) < AT_ONCE_S


@daily(6)
@pytest.mark.parametrize("refused", REFUSED_ALONE)
def test_ranks_that_caught_an_error_agree_on_their_next_loader(ranks: Ranks, refused: str) -> None:
    right, wrong = REFUSED[refused]
    assert all(each.error is not None for each in ranks.play(lambda rank: (wrong if rank else right)(rank)))
    assert [each.error for each in ranks.play(plain)] == [None, None]
    both = ranks.play(wrong)
    assert {type(each.error) for each in both} == {type(both[0].error)} != {type(None)}
    assert [each.error for each in ranks.play(plain)] == [None, None]


@pytest.mark.parametrize("stores", [file_stores, tcp_stores])
def test_ranks_hear_of_each_other_over_every_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stores: Callable[[Path, int], Any]
) -> None:
    ranks = Ranks(monkeypatch, stores(tmp_path, 3), 3, TIMEOUT_S)
    for wrong in ({"nope": 1}, {"batch_size": -1}):
        options: list[dict[str, Any]] = [{}, {}, wrong]

        def job(rank: int, options: list[dict[str, Any]] = options) -> Any:
            return plain(rank, num_ranks=3, **options[rank])

        outcomes = ranks.play(job)
        assert [str(each.error).startswith("rank 2 ") for each in outcomes[:2]] == [True, True], outcomes
        assert max(each.seconds for each in outcomes) < AT_ONCE_S
    assert [each.error for each in ranks.play(partial(plain, num_ranks=3))] == [None] * 3


def test_a_loader_that_one_rank_alone_makes_without_a_comparison_is_legal(ranks: Ranks) -> None:
    """Of the same table, in a loop, or by the function that all ranks call afterwards."""

    def look(rank: int) -> Any:
        return next(iter(plain(rank, check_plan=False).loader()))

    def job(rank: int) -> int:
        if rank == 1:
            for _ in range(2):
                look(rank)
        steps = 0
        for check in (False, True):
            steps += len(list(plain(rank, check_plan=check).loader()))
        if rank == 0:
            look(rank)
        return steps + len(plain(rank))

    assert [each.value for each in ranks.play(job)] == [15, 15]


def test_a_rank_that_compares_nothing_waits_for_nobody(ranks: Ranks) -> None:
    [alone] = ranks.play(lambda rank: len(plain(rank, check_plan=False)), only=[1])
    assert alone.value == 5


def test_a_loader_of_fewer_ranks_than_the_group_has_is_not_everybodys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two of three ranks divide the rows, and the third reads all of them by the same line."""
    ranks = Ranks(monkeypatch, one_hash_store(tmp_path, 3), 3, TIMEOUT_S)
    outcomes = ranks.play(lambda rank: len(plain(rank % 2, num_ranks=2 if rank < 2 else 1)))
    assert [each.value for each in outcomes] == [5, 5, 10], outcomes


@pytest.mark.parametrize("rank", range(2))
def test_the_timeout_of_the_process_group_is_heeded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int) -> None:
    ranks = Ranks(monkeypatch, one_hash_store(tmp_path, 2), 2, 0.5)
    [outcome] = ranks.play(plain, only=[rank])
    assert isinstance(outcome.error, StorageTimeoutError)
    assert "waited 0:00:00.5" in str(outcome.error)
    assert outcome.seconds < AT_ONCE_S


def test_what_one_rank_alone_is_refused_concerns_no_other(ranks: Ranks) -> None:
    """A rank that caught the error of a loader of its own goes on with the others."""

    def job(rank: int) -> int:
        if rank == 0:
            with pytest.raises(ConfigError):
                StructuredDataset("nowhere", check_plan=False)
            with pytest.raises(ConfigError):
                StructuredDataset(source=TABLE, nope=1)  # type: ignore[call-arg]
        return len(plain(rank))

    assert [each.value for each in ranks.play(job)] == [5, 5]
