"""What a mixture says that it took of each source, held against the batches of all ranks, counted one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import MixedDataset, Pack, Stop, StructuredDataset, TableLoader
from torch_table_loader.errors import ConfigError

SIZES = {"books": 30, "web": 70}
PACKS: dict[str, Pack | None] = {
    "rows": None,
    "concat": Pack(seq_len=8, output=["input_ids", "doc_ids"]),
    "growing": Pack(seq_len={0: 4, 3: 8, 6: 16}, output=["input_ids", "doc_ids"]),
    "best_fit": Pack(seq_len=12, strategy="best_fit", output=["input_ids", "doc_ids"]),
    "pad": Pack(seq_len=12, strategy="pad", output=["input_ids", "doc_ids"]),
}


def tables() -> dict[str, pa.Table]:
    lengths = {"books": 7, "web": 3}
    return {
        name: pa.table({"input_ids": [[number + 1] * (lengths[name] + number % 3) for number in range(rows)]})
        for name, rows in SIZES.items()
    }


def mixed(rank: int, pack: Pack | None, shuffle: Any, weights: Any, **options: Any) -> Any:
    own: dict[str, Any] = {"shuffle": shuffle, "check_plan": False, **({} if pack is None else {"pack": pack})}
    if pack is None:
        own["ragged"] = "offsets"
    with meant_warnings():
        sources = {name: StructuredDataset(source=table, **own) for name, table in tables().items()}
        asked: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "num_ranks": 2, "rank": rank, "check_plan": False}
        return MixedDataset.create_dataloader(sources, weights, **{**asked, **options})


def count(batch: Any, pack: Pack | None, into: Counter[int]) -> None:
    """Count the rows or tokens of each source in a batch."""
    if pack is None:
        into.update(batch["source"].tolist())
        return
    for row in batch["doc_ids"].tolist():
        sources = [int(batch["documents"]["source"][number]) for number in row if number >= 0]
        if pack.strategy == "concat":
            into.update(sources)
        elif sources:
            into[sources[0]] += len(row)


def said(dataset: Any, ahead: int = 0) -> list[int]:
    taken = dataset.taken(ahead).values()
    return [each.tokens if each.rows is None else each.rows for each in taken]


@pytest.mark.parametrize("weights", [{"books": 3, "web": 1}, {0: {"books": 1, "web": 1}, 4: {"books": 1, "web": 3}}])
@pytest.mark.parametrize("shuffle", ["rows", True])
@pytest.mark.parametrize("form", PACKS)
@daily(8)
def test_counts_are_those_of_the_batches(form: str, shuffle: Any, weights: Any) -> None:
    pack, stop = PACKS[form], Stop("forever", samples=60)
    ranks = [mixed(rank, pack, shuffle, weights, stop=stop) for rank in range(2)]
    dataset = ranks[0][1]
    ahead = [said(dataset, step) for step in range(9)]
    whole = None
    came: Counter[int] = Counter()
    for step, batches in enumerate(zip(*(loader for loader, _ in ranks), strict=True)):
        for batch in batches:
            count(batch, pack, came)
        found = dataset.taken()
        assert said(dataset) == [came[0], came[1]], step
        if step + 1 < len(ahead):
            assert ahead[step + 1] == said(dataset), step
        sizes = [(each.rows or each.tokens or 0) / each.epochs for each in found.values() if each.epochs]
        whole = sizes if len(sizes) == 2 and whole is None else whole
        if len(sizes) == 2:
            assert sizes == pytest.approx(whole)
    assert sum(came.values()) > 0
    if pack is None:
        assert whole == pytest.approx(list(SIZES.values()))
    if form in ("concat", "growing"):
        tokens = [sum(map(len, table["input_ids"].to_pylist())) for table in tables().values()]
        assert whole == pytest.approx(tokens)


@pytest.mark.parametrize("shuffle", ["rows", True])
def test_counts_go_on_through_new_weights_and_a_resume(shuffle: Any) -> None:
    pack = PACKS["concat"]
    ranks = [mixed(rank, pack, shuffle, {"books": 3, "web": 1}, stop=Stop("forever", samples=80)) for rank in range(2)]
    both, came = [iter(loader) for loader, _ in ranks], Counter[int]()

    def take(steps: int) -> None:
        for _ in range(steps):
            for batches in both:
                count(next(batches), pack, came)

    take(4)
    for _, dataset in ranks:
        dataset.set_weights({"books": 0, "web": 1})
    take(3)
    assert said(ranks[0][1]) == [came[0], came[1]]
    state = ranks[0][0].state_dict()
    loader, dataset = mixed(0, pack, shuffle, {"books": 3, "web": 1}, stop=Stop("forever", samples=80), num_ranks=1)
    loader.load_state_dict(state)
    assert said(dataset) == [came[0], came[1]]
    count(next(iter(loader)), pack, came)
    assert isinstance(loader, TableLoader)
    assert said(dataset) == [came[0], came[1]]


def test_a_number_of_batches_below_zero_is_refused() -> None:
    _, dataset = mixed(0, None, "rows", {"books": 3, "web": 1})
    with pytest.raises(ConfigError, match="ahead"):
        dataset.taken(-1)
