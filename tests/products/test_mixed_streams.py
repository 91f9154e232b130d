"""Mixtures of streams: what comes, in which shares, and how jobs of any size go on."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.mixtures.mixed_worlds import Row, ranks_take, source_rows, worlds, write_texts
from tests.states import is_ended
from tests.tables.iceberg import COLUMNS, IcebergWriter
from tests.tables.plain import meant_warnings
from torch_table_loader import (
    ConfigError,
    IcebergDataset,
    MixedDataset,
    ResumeError,
    StructuredDataset,
    TableError,
    TableLoader,
)
from torch_table_loader.extend import DataFileInfo, Split
from torch_table_loader.testing import small_sizes

SIZES = {"a": 300, "b": 120, "c": 17}
WEIGHTS = {"a": 5, "b": 3, "c": 1}


class FirstFile:
    """Leaves all files but the first out."""

    coverage = "any"

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        return [Split(files[0])]


@pytest.fixture(autouse=True)
def _small_gathers() -> Iterator[None]:
    """So small tables would come with one gather, which wraps them hundreds of times."""
    with small_sizes(gather_rows=800):
        yield


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_texts(tmp_path_factory.mktemp("tables"), SIZES)


def make(
    tables: Mapping[str, str], weights: Any = None, shuffle: bool = True, **options: Any
) -> tuple[TableLoader, MixedDataset]:
    weights = {name: WEIGHTS[name] for name in tables} if weights is None else weights
    with meant_warnings():
        sources = {
            name: partial(StructuredDataset, path, shuffle=shuffle, split_size=40) for name, path in tables.items()
        }
        return MixedDataset.create_dataloader(sources, weights, **({"check_plan": False, "batch_size": 16} | options))


def rows(batch: Any, names: tuple[str, ...] = tuple(SIZES)) -> list[Row]:
    """Give source and id of each row of a batch, padding left out."""
    of = batch["source"].tolist()
    assert batch["text"] == [f"{names[source]} {row}" for source, row in zip(of, batch["id"].tolist(), strict=True)]
    return source_rows(batch, names)


def job(tables: Mapping[str, str], state: Any, steps: int | None, **world: Any) -> tuple[list[list[Row]], Any]:
    """Give what all ranks deliver in some steps, step by step, and the state after them."""
    taken, states = ranks_take(partial(make, tables), state, steps, rows=rows, **world)
    most = max(map(len, taken))
    found = [[row for own in taken if step < len(own) for row in own[step]] for step in range(most)]
    return found, next((state for state in states if not is_ended(state)), states[0])


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chain=st.lists(st.tuples(worlds(30, 3), st.integers(0, 6)), max_size=3),
    last=worlds(30, 3),
    weights=st.sampled_from(["rows", WEIGHTS]),
    stop=st.sampled_from(["first_exhausted", "all_exhausted"]),
    shuffle=st.booleans(),
)
def test_every_row_comes_as_often_as_any_other_over_any_chain_of_worlds(
    tables: dict[str, str], chain: Any, last: Any, weights: Any, stop: str, shuffle: bool
) -> None:
    state, found = None, []
    for world, steps in [*chain, (last, None)]:
        new, state = job(tables, state, steps, weights=weights, stop=stop, shuffle=shuffle, **world)
        found += [row for step in new for row in step]
    seen = Counter(found)
    for name, size in SIZES.items():
        times = [seen[name, row] for row in range(size)]
        assert max(times) - min(times) <= 1
        if weights == "rows":
            assert set(times) == {1}
        assert max(times) <= 1 or stop == "all_exhausted"
        assert min(times) >= 1 or stop == "first_exhausted"


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds(30, 3), weights=st.sampled_from(["rows", WEIGHTS, {"a": 1, "b": 1, "c": 0}]))
def test_each_source_has_its_share_after_every_step_that_has_room_for_all(
    tables: dict[str, str], world: Any, weights: Any
) -> None:
    found, _ = job(tables, None, None, weights=weights, **world)
    shares = SIZES if weights == "rows" else weights
    total, counts, taken = sum(shares.values()), Counter[str](), 0
    unit = -(-total // (min(filter(None, shares.values())) * world["num_ranks"] * world["batch_size"]))
    for step, delivered in enumerate(found, 1):
        counts.update(name for name, _ in delivered)
        taken += len(delivered)
        if step % unit == 0 or step == len(found):
            assert all(abs(counts[name] - Fraction(taken * share, total)) < 1 for name, share in shares.items())


@pytest.mark.parametrize("weights", [WEIGHTS, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 0}], ids=str)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "batch_size": 11}], ids=str)
@daily(2)
def test_an_epoch_ends_where_one_more_share_of_each_would_exhaust_a_source(
    tables: dict[str, str], weights: dict[str, int], options: dict[str, Any]
) -> None:
    found = [row for batch in make(tables, weights, **options)[0] for row in rows(batch)]
    counts = Counter(name for name, _ in found)
    assert len(set(found)) == len(found)
    assert any(counts[name] + share > SIZES[name] for name, share in weights.items() if share)


def test_ranks_take_equally_many_steps(tables: dict[str, str]) -> None:
    options: list[dict[str, Any]] = [{"even_ranks": "pad"}, {"drop_last": True}]
    for option in options:
        world: dict[str, Any] = option | {"num_ranks": 3, "batch_size": 11}
        lengths = {len(make(tables, "rows", rank=rank, **world)[0]) for rank in range(3)}
        assert len(lengths) == 1


def test_an_epoch_has_another_order_unless_streams_are_not_shuffled(tables: dict[str, str]) -> None:
    for shuffle in (True, False):
        loader, _ = make({"a": tables["a"]}, {"a": 1}, shuffle=shuffle)
        orders = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            orders.append([sorted(rows(batch, ("a",))) for batch in loader])
        assert (orders[0] != orders[1]) == shuffle


def test_explain_says_shares_and_when_the_epoch_ends(tables: dict[str, str]) -> None:
    _, dataset = make(tables)
    notes = dataset.explain().notes
    assert notes[0].startswith("source 0 is 'a': 300 rows, a share of 0.5556")
    assert notes[3].startswith("after every step each source has its share, to within one row")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 256}, "leave block out"),
        ({"unit": "tokens"}, "counts tokens"),
        ({"weights": "tokens"}, "counts tokens"),
        ({"even_ranks": "drop"}, "even_ranks"),
    ],
)
def test_what_streams_cannot_do_is_refused_by_name(tables: dict[str, str], options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tables, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle_buffer_size": 10}, "shuffle_buffer_size"),
        ({"filters": pc.field("id") > 3, "count_filtered": False}, "count_filtered"),
        ({"shuffle": "rows"}, "pass the same shuffle= to all"),
        ({"shuffle": True, "shuffle_buffer_size": "1GiB"}, "shuffle_buffer_size"),
        ({"even_ranks": "drop"}, "pass it to the mixture"),
        ({"batch_by": "file"}, "a batch has rows of several sources"),
        ({"split_strategy": FirstFile()}, "pass one that covers each row once"),
    ],
)
@daily(3)
def test_a_source_that_cannot_be_mixed_is_refused_by_name(tables: dict[str, str], options: Any, message: str) -> None:
    source = partial(StructuredDataset, tables["a"], **({"shuffle": "splits"} | options))
    other = partial(StructuredDataset, tables["b"], shuffle="splits")
    with pytest.raises(ConfigError, match=message):
        MixedDataset({"a": source, "b": other}, {"a": 1, "b": 1}, check_plan=False)


def test_a_job_of_micro_batches_goes_on_where_it_was(tables: dict[str, str]) -> None:
    options: dict[str, Any] = {"global_batch_size": 32, "batch_size": 16, "num_workers": 0, "even_ranks": "pad"}
    loader, _ = make(tables, **options)
    whole = [rows(batch) for batch in loader]
    loader.set_epoch(0)
    assert [rows(batch) for batch in islice(loader, 5)] == whole[:5]
    other, _ = make(tables, **options)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [rows(batch) for batch in other] == whole[5:]


def test_a_state_of_streams_that_do_not_fit_is_refused(tables: dict[str, str]) -> None:
    loader, dataset = make(tables)
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="shuffle"):
        make(tables, shuffle=False)[0].load_state_dict(state)
    with pytest.raises(ResumeError, match="unchanged"):
        loader.load_state_dict({**state, "history": [["ended"], [1, 1]]})
    ended, _ = make(tables, "rows", num_ranks=3, rank=2, batch_size=5, even_ranks=False)
    list(ended)
    assert is_ended(ended.state_dict())
    with pytest.raises(ResumeError, match="a rank that had ended"):
        make(tables, "rows", num_ranks=3, rank=1, batch_size=5, even_ranks=False)[0].load_state_dict(ended.state_dict())
    with pytest.raises(ConfigError, match="single rows"):
        dataset.exclude({"a": [1]})


def test_streams_that_are_far_away_are_fetched_ahead_and_give_the_same(
    tables: dict[str, str], far: Callable[[], Any]
) -> None:
    for options in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "even_ranks": "pad", "num_ranks": 2}):
        with make(tables, **({"rank": 0} | options))[0] as near:
            wanted = [rows(batch) for batch in near]
        with far():
            loader, dataset = make(tables, **({"rank": 0} | options))
            with loader:
                assert [rows(batch) for batch in loader] == wanted
                fetched = loader.metrics().fetch
            assert fetched.requests >= 5
            assert fetched.retries == 0
            assert dataset.explain().memory_bound > 0


def test_a_mixture_fetches_as_its_sources_were_told(
    tables: dict[str, str], far: Callable[[], Any], tmp_path: Path
) -> None:
    with far():
        loader, _ = make(tables, storage_options={"cache_dir": str(tmp_path / "cache")})
        first = [rows(batch) for batch in loader]
        assert loader.metrics().fetch.num_bytes > 0
        again, _ = make(tables, storage_options={"cache_dir": str(tmp_path / "cache")})
        assert [rows(batch) for batch in again] == first
        assert again.metrics().fetch.num_bytes == 0
        plain, _ = make(tables, storage_options={"read_ahead_bytes": 0})
        assert [rows(batch) for batch in plain] == first
        assert plain.metrics().fetch.requests == 0
        apart = {name: partial(StructuredDataset, path, shuffle="splits") for name, path in tables.items()}
        apart["b"] = partial(apart["b"], storage_options={"read_ahead_bytes": "1MiB"})
        with pytest.raises(ConfigError, match=r"sources 'a' and 'b' differ in read_ahead_bytes.*give both the same"):
            MixedDataset(apart, dict.fromkeys(tables, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_reads_files_of_this_machine_ahead_if_asked_to(
    tables: dict[str, str], tmp_path: Path, workers: int
) -> None:
    own = {name: str(tmp_path / name) for name in tables}
    for name, path in tables.items():
        shutil.copytree(path, own[name])
    plain, dataset = make(own, num_workers=workers)
    wanted = [rows(batch) for batch in plain]
    assert plain.metrics().fetch.requests == 0
    asked, other = make(own, num_workers=workers, storage_options={"read_ahead_bytes": "1MiB"})
    assert [rows(batch) for batch in asked] == wanted
    assert asked.metrics().fetch.num_bytes > 0
    assert other.explain().memory_bound > dataset.explain().memory_bound
    changed = min((tmp_path / "a").rglob("*.parquet"))
    (tmp_path / "copy").write_bytes(changed.read_bytes())
    (tmp_path / "copy").replace(changed)
    asked.set_epoch(1)
    with pytest.raises(TableError, match=changed.name):
        list(asked)


def test_a_filter_that_leaves_no_row_is_refused_for_a_source_with_a_weight(tables: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="source 'c' has no row in this epoch"):
        make(tables, filters=pc.field("id") > 50)
    loader, _ = make(tables, {"a": 1, "b": 1, "c": 0}, filters=pc.field("id") > 50, stop="all_exhausted")
    found = {name for batch in loader for name, _ in rows(batch)}
    assert found == {"a", "b"}


def test_a_source_has_no_steps_of_its_own_to_warn_of(tables: dict[str, str], recwarn: pytest.WarningsRecorder) -> None:
    sources = {name: partial(StructuredDataset, path, shuffle="splits") for name, path in tables.items()}
    MixedDataset.create_dataloader(
        sources, "rows", num_ranks=3, rank=0, batch_size=5, even_ranks="pad", check_plan=False
    )
    assert not recwarn.list


def test_deleted_rows_of_an_iceberg_table_stay_out_and_a_state_finds_its_snapshot(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000, 1050), "s": [f"t{i}" for i in range(50)]}), tmp_path / "plain.parquet")
    table = IcebergWriter(tmp_path / "lake", columns=COLUMNS)

    def grow(start: int, stop: int) -> None:
        table.append([{"x": x, "k": x % 10, "s": f"s{x}"} for x in range(start, stop)], "parquet")
        table.delete_rows({table.data[-1].path: [0, 3]}, "parquet")
        table.commit()

    def opened() -> TableLoader:
        sources: dict[str, Any] = {
            "lake": partial(IcebergDataset, metadata_location=table.metadata, shuffle="splits"),
            "files": partial(StructuredDataset, str(tmp_path / "plain.parquet"), shuffle="splits"),
        }
        return MixedDataset(
            sources, "rows", batch_size=10, columns=["x", "s"], num_workers=2, check_plan=False
        ).loader()

    grow(0, 90)
    live = {row["x"] for row in table.live()}
    loader = opened()
    batches = iter(loader)
    seen = [x for batch in islice(batches, 4) for x in batch["x"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batch["x"].tolist() for batch in batches]
    assert sorted(seen + sum(rest, [])) == sorted([*live, *range(1000, 1050)])
    grow(90, 120)
    later = opened()
    later.load_state_dict(state)
    assert [batch["x"].tolist() for batch in later] == rest


def test_a_change_of_the_size_of_the_job_within_a_block_keeps_rounds(tables: dict[str, str]) -> None:
    """One row in 300 of a batch of 4: a block is 75 steps, and the job changes in the middle of one."""
    shares = {"a": 298, "b": 1, "c": 1}
    first, state = job(tables, None, 40, weights=shares, num_ranks=1, batch_size=4)
    rest, _ = job(tables, state, None, weights=shares, num_ranks=2, batch_size=3)
    seen = Counter(row for step in first + rest for row in step)
    assert max(seen.values()) == 1
    assert sum(seen[row] for row in seen if row[0] == "a") > 290
