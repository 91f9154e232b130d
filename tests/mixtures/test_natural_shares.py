"""Mixtures whose shares hold after every row, and those that deliver all that their sources have, each row once."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.mixtures.mixed_worlds import Row, ranks_take, source_rows, worlds
from tests.states import is_ended
from tests.tables.plain import meant_warnings
from torch_table_loader import ConfigError, MixedDataset, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.errors import ConfigTypeError

SIZES = {"a": 600, "b": 240, "c": 7}

Tables = dict[str, str]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    root = tmp_path_factory.mktemp("tables")
    for name, size in SIZES.items():
        (root / name).mkdir()
        pq.write_table(pa.table({"id": np.arange(size)}), root / name / "0.parquet", row_group_size=100)
    return {name: str(root / name) for name in SIZES}


def make(tables: Tables, weights: Any = "rows", **options: Any) -> tuple[TableLoader, MixedDataset]:
    with meant_warnings():
        sources = {
            name: StructuredDataset(path, shuffle="rows", columns=["id"], check_plan=False)
            for name, path in tables.items()
        }
        return MixedDataset.create_dataloader(sources, weights, **({"check_plan": False, "batch_size": 16} | options))


def job(tables: Tables, state: Any, steps: int | None, change: Any = None, **world: Any) -> tuple[list[Row], Any]:
    """Give what all ranks deliver in some steps, in the job's order, and the state after them."""
    taken, states = ranks_take(partial(make, tables), state, steps, change, **world)
    found = []
    for step in range(max(map(len, taken))):
        parts = [own[step] for own in taken if step < len(own)]
        found += [part[at] for at in range(max(map(len, parts))) for part in parts if at < len(part)]
    return found, next((state for state in states if not is_ended(state)), states[0])


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=st.lists(st.tuples(worlds(40), st.integers(0, 6)), max_size=3),
    last=worlds(40),
    stop=st.sampled_from(["first_exhausted", "all_exhausted"]),
    gone=st.sets(st.integers(0, 239), max_size=30),
    epoch=st.integers(0, 2),
)
def test_natural_shares_deliver_each_row_once_over_any_chain_of_worlds(
    tables: Tables, chain: Any, last: Any, stop: str, gone: set[int], epoch: int
) -> None:
    loader, dataset = make(tables, stop=stop)
    dataset.exclude({"b": sorted(gone)})
    loader.set_epoch(epoch)
    left = {name: size - len(gone) * (name == "b") for name, size in SIZES.items()}
    assert len(loader) == -(-sum(left.values()) // 16)
    state, found = json.loads(json.dumps(loader.state_dict())), []
    for world, steps in [*chain, (last, None)]:
        new, state = job(tables, state, steps, stop=stop, **world)
        found += new
    wanted = Counter((name, row) for name in SIZES for row in range(SIZES[name]) if name != "b" or row not in gone)
    assert Counter(found) == wanted
    counts, total = Counter[str](), sum(left.values())
    if last["even_ranks"] is None and all(world["even_ranks"] is None for world, _ in chain):
        for n, (name, _) in enumerate(found, 1):
            counts[name] += 1
            assert all(abs(counts[each] - Fraction(n * left[each], total)) < 1 for each in SIZES)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(0, 9)),
    named=st.sampled_from([{"a": 1, "b": 1, "c": 0}, {"a": 0, "b": 3, "c": 0.05}]),
    stop=st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_weights_become_natural_again_and_the_rest_comes_once(
    tables: Tables, steps: tuple[int, int, int], named: dict[str, float], stop: str
) -> None:
    loader, dataset = make(tables, batch_size=20, stop=stop, num_workers=1)
    batches, found = iter(loader), Counter[Row]()
    for number, weights in zip(steps, (named, "rows", None), strict=True):
        for batch in islice(batches, number):
            found.update(source_rows(batch, dataset.source_names))
        if weights is not None:
            dataset.set_weights(weights)  # type: ignore[arg-type]
            assert isinstance(dict(loader.state_dict()["mixture"])["newest"], str) == (weights == "rows")
    state = json.loads(json.dumps(loader.state_dict()))
    before = found.copy()
    found.update(row for batch in batches for row in source_rows(batch, dataset.source_names))
    other, own = make(tables, batch_size=7, stop=stop, num_workers=2)
    other.load_state_dict(state)
    assert before + Counter(row for batch in other for row in source_rows(batch, own.source_names)) == found
    assert found == Counter({(name, row): 1 for name, size in SIZES.items() for row in range(size)})


def test_sources_come_and_go_and_all_that_is_left_comes_once(tables: Tables) -> None:
    two = {name: tables[name] for name in "ab"}
    found, state = job(two, None, 9, num_ranks=2, batch_size=16)
    more, state = job(tables, state, 9, num_ranks=1, batch_size=16)
    rest, _ = job({name: tables[name] for name in "bc"}, state, None, num_ranks=3, batch_size=5)
    seen = Counter([*found, *more, *rest])
    assert max(seen.values()) == 1
    assert {row for row in seen if row[0] in "bc"} == {(name, row) for name in "bc" for row in range(SIZES[name])}


def test_each_epoch_takes_the_shares_of_its_rows(tables: Tables) -> None:
    loader, dataset = make(tables)
    assert dataset.weights == SIZES
    dataset.exclude({"a": range(360), "c": range(7)})
    assert dataset.weights == {"a": 1, "b": 1, "c": 0}
    state = loader.state_dict()
    mixture = dict(state["mixture"])
    assert (mixture["given"], mixture["newest"], dict(mixture["options"])["block"]) == ("rows", "rows", 0)
    for epoch, size in ((0, 480), (1, 480)):
        loader.set_epoch(epoch)
        assert Counter(row for batch in loader for row in source_rows(batch, dataset.source_names)).total() == size
    dataset.exclude({"a": range(600), "b": range(240)})
    loader.set_epoch(2)
    with pytest.raises(ConfigError, match="no source has a row"):
        iter(loader)


def test_an_epoch_without_end_goes_round_by_natural_shares(tables: Tables) -> None:
    loader, dataset = make(tables, stop="forever", batch_size=sum(SIZES.values()))
    for batch in islice(loader, 2):
        assert Counter(name for name, _ in source_rows(batch, dataset.source_names)) == SIZES


def test_explain_says_what_holds(tables: Tables) -> None:
    assert "after every row each source has its share, to within one row" in " ".join(make(tables)[1].explain().notes)


def test_states_of_other_orders_and_weights(tables: Tables) -> None:
    loader, _ = make(tables)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="block was 0 and is 256"):
        make(tables, {"a": 1, "b": 1, "c": 1})[0].load_state_dict(state)
    mixture = [[name, {"newest": "all"}.get(name, value)] for name, value in state["mixture"]]
    with pytest.raises(ResumeError, match="newest must be one of 'rows', 'tokens'"):
        loader.load_state_dict({**state, "mixture": mixture})
    other, dataset = make(tables, {"a": 1, "b": 1, "c": 1}, block=0)
    other.load_state_dict(state)
    assert set(dataset.weights.values()) == {1}


@pytest.mark.parametrize(
    ("weights", "options", "error", "message"),
    [
        ("all", {}, ConfigTypeError, 'or "rows" or "tokens" to take all'),
        (
            "tokens",
            {},
            ConfigError,
            'weights="tokens" counts tokens.* got sources without pack=.*weights="rows", which',
        ),
        ("rows", {"unit": "tokens"}, ConfigError, 'unit="tokens" counts tokens.*divided by the mean tokens of'),
        ("rows", {"unit": "bytes"}, ConfigError, 'unit must be "rows" or "tokens"'),
        ("rows", {"block": 256}, ConfigError, 'weights="rows" holds after every row and needs no block, got block=256'),
        ({"a": 1, "b": 1, "c": 1}, {"block": -1}, ConfigError, "block must be an int"),
    ],
)
def test_shares_that_cannot_be_meant_are_refused(
    tables: Tables, weights: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(tables, weights, **options)


def test_natural_shares_in_blocks_are_refused_at_run_time(tables: Tables) -> None:
    _, dataset = make(tables, {"a": 1, "b": 1, "c": 1})
    with pytest.raises(ConfigError, match='weights="rows" holds after every row and needs no block, got block=256'):
        dataset.set_weights("rows")


def test_a_source_that_is_far_too_small_beside_the_others_is_refused(tmp_path: Path) -> None:
    paths = {}
    for name, size in (("large", 1 << 21), ("small", 1)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": np.zeros(size, np.int8)}), tmp_path / name / "0.parquet")
        paths[name] = str(tmp_path / name)
    with pytest.raises(ConfigError, match="smallest weight must be at least"):
        make(paths)
