"""Tables on an object store: fetching ahead never changes a batch, in any format, engine and mode.

Files of this machine play the store: `far` makes storages say that they are elsewhere, so that all reading goes through
requests for ranges.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.iceberg import IcebergWriter, column
from tests.torch.forms import FORMS, rows_of_many_kinds
from tests.torch.modes import LAKE, SOME, SPLITS, Mode
from torch_table_loader import IcebergDataset, StructuredDataset, TableError, TableLoader
from torch_table_loader.extend import FileStorage
from torch_table_loader.testing import small_sizes

SMALL = 4096
"""A budget of bytes that holds little more than one request of these tables."""


def write(root: Path, form: str) -> None:
    """Write a table of three files in a format; flat columns where that has no others."""
    root.mkdir()
    for number in range(3):
        table = rows_of_many_kinds(range(number * 100, number * 100 + 70))
        flat = table.select(["id", "f", "s"])
        path = root / f"{number}.{form}"
        if form == "parquet":
            pq.write_table(table, path, row_group_size=17, compression="zstd" if number else "none")
        elif form == "orc":
            pyarrow.orc.write_table(table.drop_columns(["g"]), path, stripe_size=1024, batch_size=10)
        elif form == "csv":
            pyarrow.csv.write_csv(flat, path)
        elif form == "jsonl":
            path.write_text("".join(f'{{"id": {row["id"]}, "f": {row["f"] or 0}}}\n' for row in table.to_pylist()))
        else:
            opened = pa.ipc.new_stream if form == "ipc" else pa.ipc.new_file
            with opened(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=20)


def delivered(loader: TableLoader) -> list[Any]:
    """Take an epoch, as plain values."""
    return [repr({name: _plain(value) for name, value in _columns(batch).items()}) for batch in loader]


def _columns(batch: Any) -> dict[str, Any]:
    return batch.to_pydict() if isinstance(batch, pa.RecordBatch) else dict(batch)


def _plain(value: Any) -> Any:
    if hasattr(value, "is_nested") and value.is_nested:
        return [each.tolist() for each in value.unbind()]
    return value.tolist() if hasattr(value, "tolist") else value


TABLES: dict[str, list[dict[str, Any]]] = {
    "parquet": [
        {},
        {"columns": ["s", "id"]},
        {"columns": ["id"], "filters": pc.field("f") > 30},
        {"filters": pc.field("n") > 120, "count_filtered": False},
        {"shuffle": "splits", "shuffle_buffer_size": 9, "split_size": 20},
        {"even_ranks": "pad", "num_ranks": 2, "rank": 1, "split_size": 10},
        {"row_id": True, "split_size": 8, "shuffle": "splits"},
    ],
    "orc": [{}, {"columns": ["s", "id"]}, {"columns": ["id"], "filters": pc.field("f") > 30}],
    "arrow": [{}, {"columns": ["s", "id"]}, {"columns": ["id"], "filters": pc.field("f") > 30}],
    "ipc": [{}, {"columns": ["id"]}],
    "csv": [{}, {"columns": ["id"], "filters": pc.field("f") > 30}],
    "jsonl": [{}, {"columns": ["id"]}],
}
ENGINES: list[dict[str, Any]] = [{"num_workers": 0}, {}, {"num_workers": 2, "worker_type": "process"}]


@pytest.mark.parametrize(
    ("form", "options"), [(form, options) for form, each in TABLES.items() for options in each], ids=str
)
@pytest.mark.parametrize("budget", [SMALL, "128MiB"])
@daily(5)
def test_batches_are_those_of_a_table_on_this_machine(
    tmp_path: Path, far: Callable[[], Any], form: str, options: dict[str, Any], budget: Any
) -> None:
    write(tmp_path / "t", form)
    chosen: dict[str, Any] = {"batch_size": 8, "output_format": "dict", "check_plan": False} | options
    name = "arrow" if form == "ipc" else form

    def make(**more: Any) -> TableLoader:
        return StructuredDataset.create_dataloader(str(tmp_path / "t"), name, **chosen, **more)[0]

    local = make()
    wanted = delivered(local)
    assert wanted
    assert local.metrics().fetch.requests == 0
    with far():
        for engine in ENGINES[: 2 if options else 3] if budget == SMALL else ENGINES[1:2]:
            loader = make(storage_options={"read_ahead_bytes": budget}, **engine)
            found = delivered(loader)
            assert found == (wanted if "num_workers" not in engine else delivered(make(**engine)))
            fetched = loader.metrics().fetch
            assert fetched.requests > 0
            assert fetched.unplanned == 0, "every byte was planned"
            if engine.get("num_workers") == 0:
                assert delivered(make(storage_options={"read_ahead_bytes": 0}, **engine)) == found


@pytest.mark.parametrize("options", FORMS, ids=str)
@daily(2)
def test_every_form_comes_out_the_same(tmp_path: Path, far: Callable[[], Any], options: dict[str, Any]) -> None:
    write(tmp_path / "t", "parquet")
    local = StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, **options)[0]
    wanted = delivered(local)
    with far():
        assert delivered(StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, **options)[0]) == wanted


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 0}, {"worker_type": "process"}, {"filters": SOME}, {"batch_size": 3, "columns": ["k"]}],
    ids=str,
)
@daily(4)
def test_every_mode_delivers_the_same(
    tables: Path, mode: Mode, far: Callable[[], Any], options: dict[str, Any]
) -> None:
    wanted = mode.read(mode.make(tables, **options))
    with far():
        assert mode.read(mode.make(tables, **options)) == wanted


@pytest.mark.parametrize("footers", ["eager", "lazy"])
@pytest.mark.parametrize("split_deletes", [False, True])
@daily(2)
def test_an_iceberg_table_with_deletes_of_every_kind_is_streamed(
    tables: Path, far: Callable[[], Any], footers: str, split_deletes: bool
) -> None:
    chosen: dict[str, Any] = {"footers": footers, "split_deletes": split_deletes, "shuffle": "splits"}
    wanted = LAKE.read(LAKE.make(tables, **chosen))
    with far():
        loader = LAKE.make(tables, **chosen)
        assert LAKE.read(loader) == wanted
        fetched = loader.metrics().fetch
        assert fetched.requests > 0
        assert fetched.unplanned == 0


@pytest.mark.parametrize("step", [1, 7, 13])
@daily(1)
def test_a_resumed_epoch_fetches_what_is_left(tables: Path, far: Callable[[], Any], step: int) -> None:
    whole = SPLITS.read(SPLITS.make(tables))
    with far():
        first = SPLITS.make(tables)
        taken = iter(first)
        for _ in range(step):
            next(taken)
        state = first.state_dict()
        taken.close()
        second = SPLITS.make(tables)
        second.load_state_dict(state)
        assert SPLITS.read(second) == whole[step:]
        assert second.metrics().fetch.unplanned == 0


def test_the_plan_says_what_is_fetched(tmp_path: Path, far: Callable[[], Any]) -> None:
    write(tmp_path / "t", "parquet")
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, columns=["id", "f"])
    assert dataset.explain().fetch is None
    with far():
        loader, dataset = StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, columns=["id", "f"])
        plan = dataset.explain().fetch
        assert plan is not None
        assert "Object store" in str(dataset.explain())
        list(loader)
    fetched = loader.metrics().fetch
    assert (fetched.requests, fetched.num_bytes) == (plan.requests, plan.num_bytes)
    assert 1 <= plan.amplification < 100
    assert "fetched" in str(loader.metrics())


def test_progress_says_how_fast_bytes_come(
    tmp_path: Path, far: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t", "parquet")
    for where, said in ((nullcontext, False), (far, True)):
        with where():
            loader = StructuredDataset.create_dataloader(
                str(tmp_path / "t"), batch_size=7, columns=["id"], show_progress=True
            )[0]
            assert len(list(loader)) == len(loader)
        drawn = capsys.readouterr().err
        assert "epoch 0: 100%" in drawn
        assert ("MB/s" in drawn) == said


# ---- every byte once -------------------------------------------------------------------------------------

CELL = st.sampled_from([1000, 40_000])
"""Bytes of a value: row groups of a few rows then have more bytes than the first request brings."""
GROUP_SIZES = st.lists(st.integers(1, 15), min_size=1, max_size=6) | st.just([12] * 6)
FILTERS = {
    "none": None,
    "some": pc.equal(pc.bit_wise_and(pc.field("id"), 3), 0),
    "late": pc.field("id") > 20,
    "few": pc.field("id") == 30,
}
_WRITERS = ("parquet", "orc", "arrow", "ipc", "avro", "jsonl")


def write_large(root: Path, form: str, files: list[list[int]], widths: list[int]) -> None:
    """Write files of row groups of the given sizes: a column `id`, and large texts that do not compress."""
    root.mkdir()
    random, start = Random(0), 0
    for number, sizes in enumerate(files):
        groups = []
        for size in sizes:
            columns = {"id": pa.array(range(start, start + size), pa.int64())}
            for place, width in enumerate(widths):
                columns[f"c{place}"] = pa.array([random.randbytes(width // 2).hex() for _ in range(size)])
            groups.append(pa.table(columns))
            start += size
        _write_groups(root / f"{number}.{form}", form, groups)


def _write_groups(path: Path, form: str, groups: list[pa.Table]) -> None:
    schema = groups[0].schema
    if form == "parquet":
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for group in groups:
                writer.write_table(group)
    elif form == "orc":
        pyarrow.orc.write_table(pa.concat_tables(groups), path, stripe_size=1 << 20, batch_size=8)
    elif form == "avro":
        fields = [{"name": name, "type": "long" if name == "id" else "string"} for name in schema.names]
        record = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
        with path.open("wb") as target:
            fastavro.writer(target, record, pa.concat_tables(groups).to_pylist(), sync_interval=1 << 17)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in pa.concat_tables(groups).to_pylist()))
    else:
        opened = pa.ipc.new_stream if form == "ipc" else pa.ipc.new_file
        with opened(path, schema) as writer:
            for group in groups:
                writer.write_table(group)


@pytest.mark.parametrize("form", _WRITERS)
@settings(
    max_examples=examples(8),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.generate],  # to shrink an example would write hundreds of tables
)
@given(data=st.data())
@daily(2)
def test_every_planned_byte_is_fetched_once_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    far: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    data: st.DataObject,
) -> None:
    root = tmp_path_factory.mktemp("large") / "t"
    widths = data.draw(st.lists(CELL, min_size=1, max_size=5) | st.just([40_000] * 5), label="widths")
    write_large(root, form, data.draw(st.lists(GROUP_SIZES, min_size=1, max_size=2), label="files"), widths)
    names = ["id", *(f"c{place}" for place in range(len(widths)))]
    options: dict[str, Any] = {
        "columns": data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1), label="columns"),
        "num_workers": data.draw(st.integers(0, 3), label="lanes"),
        "batch_size": data.draw(st.sampled_from([1, 7, 40, 1000]), label="batch size"),
        "split_size": data.draw(st.sampled_from([None, 5, 30]), label="splits"),
        "shuffle": data.draw(st.booleans(), label="shuffle"),
        "filters": FILTERS[data.draw(st.sampled_from(sorted(FILTERS)), label="filter")],
        "storage_options": {"read_ahead_bytes": data.draw(st.sampled_from([SMALL, "4MiB", "128MiB"]), label="budget")},
    }
    if (even := data.draw(st.sampled_from([None, "balance", "drop", "pad"]), label="even ranks")) is not None:
        options |= {"num_ranks": 3, "rank": data.draw(st.integers(0, 2), label="rank"), "even_ranks": even}
    with far(), small_sizes(late_s=60), monkeypatch.context() as patch:  # a request sent twice is another test
        name = "arrow" if form == "ipc" else form
        loader, dataset = StructuredDataset.create_dataloader(
            str(root), name, output_format="arrow", check_plan=False, **options
        )
        plan = dataset.explain().fetch
        assert plan is not None
        patch.setattr(FileStorage, "open", None)  # nothing is read beside what is fetched
        steps = sum(1 for _ in loader)
        fetched = loader.metrics().fetch
        assert fetched.unplanned == 0
        assert fetched.requests <= plan.requests
        assert fetched.num_bytes <= plan.num_bytes
        # A stripe or record batch is planned whole, and read as far as its columns go; a file that is read from its
        # start is planned whole, and read as far as the last row that passes and that the rank delivers.
        if options["filters"] is None and (form == "parquet" or (even is None and form in ("ipc", "avro", "jsonl"))):
            assert (fetched.requests, fetched.num_bytes) == (plan.requests, plan.num_bytes)
        state = _state_after(loader, data.draw(st.integers(0, steps), label="taken"))
        loader.load_state_dict(state)
        list(loader)
        assert loader.metrics().fetch.unplanned == 0


@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("columns", [["c0"], ["c0", "c2"], ["id", "c0", "c2", "c4"]], ids=str)
@small_sizes(late_s=60)
def test_columns_of_row_groups_that_are_decoded_together_are_fetched_once(
    tmp_path: Path, far: Callable[[], Any], columns: list[str], lanes: int
) -> None:
    write_large(tmp_path / "t", "parquet", [[12] * 6] * 2, [60_000] * 5)
    with far():
        loader, dataset = StructuredDataset.create_dataloader(
            str(tmp_path / "t"), batch_size=50, num_workers=lanes, columns=columns
        )
        plan = dataset.explain().fetch
        assert plan is not None
        assert sum(len(batch["c0"]) for batch in loader) == 144
    fetched = loader.metrics().fetch
    assert (fetched.unplanned, fetched.requests, fetched.num_bytes) == (0, plan.requests, plan.num_bytes)


@pytest.mark.parametrize("split_deletes", [False, True])
@pytest.mark.parametrize("lanes", [0, 3])
@small_sizes(late_s=60)
@daily(2)
def test_deletes_change_nothing_in_what_is_fetched(
    tmp_path: Path, far: Callable[[], Any], lanes: int, split_deletes: bool
) -> None:
    random, columns = Random(0), [column(1, "x", "long"), *(column(at, f"c{at}", "string") for at in range(2, 6))]
    lake = IcebergWriter(tmp_path / "lake", columns=columns)
    rows = [{"x": x, **{f"c{at}": random.randbytes(10_000).hex() for at in range(2, 6)}} for x in range(240)]
    paths = [lake.append(rows[start : start + 80], group=15) for start in (0, 80, 160)]
    lake.commit()
    lake.delete_rows({paths[0]: range(0, 80, 7), paths[1]: range(15, 45)})
    lake.delete_keys([1], [{"x": x} for x in range(150, 240, 9)])
    lake.commit()
    with far():
        loader, dataset = IcebergDataset.create_dataloader(
            metadata_location=lake.metadata,
            columns=["x", "c2", "c5"],
            batch_size=20,
            num_workers=lanes,
            split_deletes=split_deletes,
        )
        plan = dataset.explain().fetch
        assert plan is not None
        assert sorted(x for batch in loader for x in batch["x"].tolist()) == [row["x"] for row in lake.live()]
    fetched = loader.metrics().fetch
    assert (fetched.unplanned, fetched.requests, fetched.num_bytes) == (0, plan.requests, plan.num_bytes)


def _state_after(loader: TableLoader, steps: int) -> dict[str, Any]:
    """Return the state of a loader of which the trainer took some steps of the next epoch."""
    loader.set_epoch(1)
    taken = iter(loader)
    for _ in range(steps):
        next(taken)
    state = loader.state_dict()
    taken.close()
    return state


GROUP = 1_200_000
"""Rows of a row group that is more than what one request brings."""


def _watched(folder: Path, groups: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, int], list[int]]:
    """Write a table of large row groups; return the lengths of fetched bytes that are alive, and of all that came."""
    alive: dict[int, int] = {}
    came: list[int] = []
    ask = FileStorage.read_range

    class Fetched(bytearray):
        def __del__(self) -> None:
            alive.pop(id(self), None)

    def fetched(*given: Any) -> Fetched:
        data = Fetched(ask(*given))
        alive[id(data)] = len(data)
        came.append(len(data))
        return data

    folder.mkdir()
    layout: dict[str, Any] = {"row_group_size": GROUP, "compression": None, "use_dictionary": False}
    pq.write_table(pa.table({"x": np.arange(GROUP * groups)}), folder / "0.parquet", **layout)
    monkeypatch.setattr(FileStorage, "read_range", fetched)
    return alive, came


def _large_groups(folder: Path) -> TableLoader:
    return StructuredDataset.create_dataloader(
        str(folder),
        split_size=10**9,
        storage_options={"read_ahead_bytes": "10MB"},
        batch_size=GROUP,
        num_workers=1,
        prefetch_batches=1,
    )[0]


def test_row_groups_that_are_decoded_are_let_go(
    tmp_path: Path, far: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, came = _watched(tmp_path / "t", 6, monkeypatch)
    with far():
        held = [sum(list(alive.values())) for _ in _large_groups(tmp_path / "t")]
    assert sum(came) >= 6 * 8 * GROUP
    assert max(held) < 3 * 8 * GROUP


def test_no_more_comes_ahead_than_was_asked_for(
    tmp_path: Path, far: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, came = _watched(tmp_path / "t", 10, monkeypatch)
    with far(), closing(iter(_large_groups(tmp_path / "t"))) as batches:
        next(batches)
        end = time.monotonic() + 1  # for what must not come: a slow machine makes the test see less, not fail
        while sum(list(alive.values())) < 3 * 8 * GROUP and time.monotonic() < end:
            time.sleep(0.01)
        assert sum(list(alive.values())) < 3 * 8 * GROUP
    assert came


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_of_this_machine_that_changes_while_it_is_read_ahead_is_an_error(tmp_path: Path, workers: int) -> None:
    write(tmp_path / "t", "parquet")
    asked: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "storage_options": {"read_ahead_bytes": 1 << 20}}
    loader = StructuredDataset.create_dataloader(str(tmp_path / "t"), check_plan=False, columns=["id"], **asked)[0]
    whole = [batch["id"].tolist() for batch in loader]
    assert loader.metrics().fetch.requests > 0
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "t" / "2.parquet").read_bytes())
    copy.replace(tmp_path / "t" / "2.parquet")
    loader.set_epoch(1)
    with pytest.raises(TableError, match=r"2\.parquet"):
        list(loader)
    assert len(whole) == len(loader)
