"""Row mode on Iceberg tables: each live row once, uniformly, resumable, with deletes, filters and evolved schemas."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.iceberg import COLUMNS, IcebergWriter, column
from tests.laws.effort import examples
from tests.torch.test_iceberg_laws import commits, grow, loaders, rows_of, sample
from torch_table_loader import IcebergDataset, ResumeError, TableLoader

ROWS: dict[str, Any] = {"shuffle": "rows", "batch_size": 8}

jobs = st.fixed_dictionaries(
    {
        "num_ranks": st.integers(1, 4),
        "num_workers": st.integers(0, 3),
        "batch_size": st.integers(1, 7),
        "even_ranks": st.sampled_from([None, "pad"]),
        "filters": st.sampled_from([None, None, pc.field("k") < 5]),
    }
)


@pytest.mark.filterwarnings("ignore:epoch . is iterated again")
@settings(deadline=None, max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(history=commits, job=jobs, version=st.sampled_from([2, 3]), partitioned=st.booleans(), on_disk=st.booleans())
def test_every_live_row_comes_once(
    history: list[dict[str, Any]], job: dict[str, Any], version: int, partitioned: bool, on_disk: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as stores:
        table = IcebergWriter(Path(folder), version=version, partition_by=2 if partitioned else None)
        grow(table, history)
        live = table.live()
        if job["filters"] is not None:
            live = [row for row in live if row["k"] is not None and row["k"] < 5]
        job = job | {"shuffle": "rows"} | ({"row_store": stores} if on_disk else {})
        ranks = loaders(table.metadata, **job)
        wanted = Counter(row["x"] for row in live)
        assert Counter(x for loader in ranks for x in rows_of(loader)) == wanted
        steps = [sum(1 for _ in loader) for loader in ranks]
        assert steps == [len(loader) for loader in ranks]
        assert len(set(steps)) == 1 or job["even_ranks"] is None


@settings(deadline=None, max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(
    history=commits,
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 9), st.integers(0, 4)), max_size=4),
)
def test_states_go_on_through_jobs_of_any_size(
    history: list[dict[str, Any]], sizes: list[tuple[int, int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = IcebergWriter(Path(folder))
        grow(table, history)
        state: dict[str, Any] | None = None
        seen: list[int] = []
        for num_ranks, lanes, batch_size, steps in [*sizes, (1, 1, 50, 10**6)]:
            ranks = loaders(
                table.metadata, num_ranks, num_workers=lanes, batch_size=batch_size, shuffle="rows", even_ranks="pad"
            )
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
                seen += rows_of(loader, steps)
            states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
            assert all(each == states[0] for each in states)
            state = states[0]
        assert Counter(seen) == Counter(row["x"] for row in table.live())


def make(table: IcebergWriter, **options: Any) -> tuple[TableLoader, IcebergDataset]:
    return IcebergDataset.create_dataloader(metadata_location=table.metadata, nulls={"k": -1}, **(ROWS | options))


def xs(loader: TableLoader) -> list[int]:
    return [x for batch in loader for x in batch["x"].tolist()]


def test_excluded_rows_leave_and_the_map_shows_them(tmp_path: Path) -> None:
    table = sample(tmp_path)
    loader, dataset = make(table, row_id=True)
    order = xs(loader)
    view = dataset.as_map()
    assert [view[at]["x"] for at in range(len(view))] == [row["x"] for row in table.live()]
    ids = view.row_ids()
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert len(ids) == len(order) < dataset.explain().rows
    gone = [int(view[at]["x"]) for at in (0, 5)]
    dataset.exclude(ids[[0, 5]])
    loader.set_epoch(1)
    assert sorted(xs(loader)) == sorted(set(order) - set(gone))
    state = loader.state_dict()
    fresh, other = make(table, row_id=True)
    fresh.load_state_dict(state)
    other.include(ids[:1])
    fresh.set_epoch(2)
    assert sorted(xs(fresh)) == sorted(set(order) - set(gone[1:]))


def test_evolved_columns_come_as_the_snapshot_has_them(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path)
    table.append([{"x": x, "k": x % 3, "s": f"s{x}"} for x in range(20)])
    table.commit()
    table.evolve([column(1, "x", "long"), column(3, "label", "string"), column(4, "new", "double")])
    table.append([{"x": x, "label": f"s{x}", "new": x / 2} for x in range(20, 40)])
    table.commit()
    table.delete_keys([3], [{"label": "s7"}, {"label": "s33"}])
    table.commit()
    loader, _ = IcebergDataset.create_dataloader(metadata_location=table.metadata, output_format="dict", **ROWS)
    found = [dict(zip(batch, row, strict=True)) for batch in loader for row in zip(*batch.values(), strict=True)]
    assert sorted(found, key=lambda row: row["x"]) == [
        {"x": x, "label": f"s{x}", "new": None if x < 20 else x / 2} for x in range(40) if x not in (7, 33)
    ]


def test_the_store_belongs_to_a_snapshot_its_columns_and_filter(tmp_path: Path) -> None:
    table = sample(tmp_path / "table")
    stores = tmp_path / "stores"

    def places(**options: Any) -> set[str]:
        loader, _ = make(table, row_store=str(stores), **options)
        assert xs(loader)
        return {path.name for path in stores.iterdir()}

    first = places()
    assert len(first) == 1
    [manifest] = stores.glob("*/manifest.json")
    written = manifest.stat().st_mtime_ns
    assert places(batch_size=3, num_workers=1, shuffle_seed=5) == first
    assert manifest.stat().st_mtime_ns == written, "it was opened, not built again"
    assert len(places(columns=["x", "k"])) == 2
    assert len(places(scan_filter="x > 20")) == 3
    table.append([{"x": 1000, "k": 1, "s": "new"}])
    table.commit()
    assert len(places()) == 4
    assert places(snapshot_id=1003) == places()


def test_a_filter_of_the_catalogs_own_language(tmp_path: Path) -> None:
    table = sample(tmp_path)
    live = [row["x"] for row in table.live() if row["x"] > 20 and row["k"] is not None and row["k"] < 6]
    assert sorted(xs(make(table, scan_filter="x > 20", filters=pc.field("k") < 6)[0])) == sorted(live)


def test_a_state_goes_on_in_its_own_snapshot(tmp_path: Path) -> None:
    table = sample(tmp_path)
    [old] = loaders(table.metadata, 1, **ROWS)
    taken = rows_of(old, 2)
    state = old.state_dict()
    expected = Counter(row["x"] for row in table.live())
    table.append([{"x": 1000, "k": 1, "s": "new"}])
    table.commit()
    [new] = loaders(table.metadata, 1, **ROWS)
    new.load_state_dict(state)
    assert Counter(taken + rows_of(new)) == expected
    assert new.state_dict()["table"]["snapshot_id"] == 1003
    [pinned] = loaders(table.metadata, 1, snapshot_id=1004, **ROWS)
    with pytest.raises(ResumeError, match=r"snapshot 1003, and this is snapshot 1004; pass snapshot_id=1003"):
        pinned.load_state_dict(state)
    [splits] = loaders(table.metadata, 1, batch_size=8, shuffle=True)
    with pytest.raises(ResumeError, match="shuffle was 'rows' and is True"):
        splits.load_state_dict(state)


def test_a_table_without_rows_is_an_empty_epoch(tmp_path: Path) -> None:
    table = IcebergWriter(tmp_path, columns=COLUMNS)
    [loader] = loaders(table.metadata, 1, **ROWS)
    assert list(loader) == []
    path = table.append([{"x": 1, "k": 1, "s": ""}])
    table.commit()
    table.delete_rows({path: [0]})
    table.commit()
    [loader] = loaders(table.metadata, 1, **ROWS)
    assert (list(loader), len(loader)) == ([], 0)
