"""Sources of mixtures whose rows are drawn by weight."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.order.test_weighted_rows import NOTHING, Held, ratios, sums_of
from tests.order.weighted import ROWS, write_weighted
from torch_table_loader import (
    ConfigError,
    MixedDataset,
    ResumeError,
    StructuredDataset,
    TableLoader,
    Weights,
)
from torch_table_loader.extend import Permutation, SourceOrder, WeightedRows, WeightSums, derive_key


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose weight `w` is 0 to 3, of which one in ten has the class "rare"."""
    return write_weighted(tmp_path_factory.mktemp("table"))


@given(st.lists(ratios, min_size=1, max_size=30).filter(any), st.integers(1, 50), st.integers(0, 3))
def test_a_source_of_a_mixture_draws_again_in_each_round(weights: list[float], samples: int, epoch: int) -> None:
    key = derive_key(3, epoch, "places in weights of source a")
    rows = WeightedRows(Held(WeightSums(sums_of(weights))), NOTHING, samples, key)
    turns = np.arange(3 * samples)
    taken = SourceOrder(rows, 3, "a", epoch).take(turns)
    for number in range(3):
        order = Permutation(samples, derive_key(3, epoch, f"mixture source {number} a")).slice(0, samples)
        inside = slice(number * samples, (number + 1) * samples)
        assert taken[inside].tolist() == rows.select(order, number).tolist()
        backwards = SourceOrder(rows, 3, "a", epoch).take(turns[inside][::-1].copy())
        assert backwards.tolist() == taken[inside][::-1].tolist()


def test_a_source_of_a_mixture_may_have_few_samples(table: str) -> None:
    few, all_of_it = (StructuredDataset(table, shuffle="rows", weights=given) for given in (Weights(samples=12), None))
    assert len(MixedDataset.create_dataloader({"a": few, "b": all_of_it}, {"a": 1, "b": 1}, batch_size=1)[0]) == 24
    natural = MixedDataset({"a": few, "b": all_of_it}, "rows")
    assert natural.weights == {"a": 3, "b": 25}


def test_a_source_of_a_mixture_may_be_weighted(table: str) -> None:
    def mixed(samples: int | None = 50, **options: Any) -> TableLoader:
        weights = Weights(column="w", samples=samples)
        sources = {
            "a": StructuredDataset(table, shuffle="rows", row_id=True, weights=weights),
            "b": StructuredDataset(table, shuffle="rows", row_id=True),
        }
        return MixedDataset.create_dataloader(sources, {"a": 3, "b": 1}, batch_size=8, num_workers=2, **options)[0]

    def both(loader: TableLoader) -> list[tuple[int, int]]:
        return [
            pair for batch in loader for pair in zip(batch["source"].tolist(), batch["row_id"].tolist(), strict=True)
        ]

    loader = mixed()
    order = both(loader)
    of_a = Counter(row for source, row in order if source == 0)
    assert of_a.total() == 50, "the epoch ends when a source's samples are taken"
    assert not any(row % 4 == 0 for row in of_a)
    weights = np.arange(ROWS) % 4
    assert all(abs(of_a[row] - 50 * weights[row] / weights.sum()) < 2 for row in range(ROWS))
    begun, again = mixed(), mixed()
    for _ in islice(begun, 3):
        state = json.loads(json.dumps(begun.state_dict()))
    again.load_state_dict(state)
    assert both(again) == order[24:]
    rounds = Counter(row for source, row in both(mixed(stop="all_exhausted")) if source == 0)
    assert rounds.total() > 5 * 50
    assert all(abs(rounds[row] - rounds.total() * weights[row] / weights.sum()) < 2 * 7 for row in range(ROWS))
    sources = {name: StructuredDataset(table, shuffle="rows", row_id=True) for name in "ab"}
    plain = MixedDataset.create_dataloader(sources, {"a": 3, "b": 1}, batch_size=8)[0]
    with pytest.raises(ResumeError, match=r"source 'a'.*weights was \"Weights"):
        plain.load_state_dict(state)
    with pytest.raises(ResumeError, match=r"source 'a'.*weights was None and is \"Weights"):
        mixed().load_state_dict(plain.state_dict())
    nothing = StructuredDataset(table, shuffle="rows", row_id=True, weights="w")
    nothing.exclude(range(ROWS))
    with pytest.raises(ConfigError, match="source 'a' has no row"):
        MixedDataset({"a": nothing}, {"a": 1})
