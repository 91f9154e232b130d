"""Tables on an object store: fetching ahead never changes a batch, in any format, engine and mode.

Files of this machine play the store: `far` makes storages say that they are elsewhere, so that all reading goes through
requests for ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tests.torch.forms import FORMS, rows_of_many_kinds
from tests.torch.modes import LAKE, SOME, SPLITS, Mode
from torch_table_loader import StructuredDataset, TableLoader

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
        {"shuffle": True, "shuffle_buffer_size": 9, "split_rows": 20},
        {"even_ranks": "pad", "num_ranks": 2, "rank": 1, "split_rows": 10},
        {"row_id": True, "split_rows": 8, "shuffle": True},
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
        for engine in ENGINES if budget == SMALL else ENGINES[1:2]:
            loader = make(read_ahead_bytes=budget, **engine)
            found = delivered(loader)
            assert found == (wanted if "num_workers" not in engine else delivered(make(**engine)))
            fetched = loader.metrics().fetch
            assert fetched.requests > 0
            assert fetched.unplanned == 0, "every byte was planned"
            if engine.get("num_workers") == 0:
                assert delivered(make(read_ahead_bytes=0, **engine)) == found


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_every_form_comes_out_the_same(tmp_path: Path, far: Callable[[], Any], options: dict[str, Any]) -> None:
    write(tmp_path / "t", "parquet")
    local = StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, **options)[0]
    wanted = delivered(local)
    with far():
        assert delivered(StructuredDataset.create_dataloader(str(tmp_path / "t"), batch_size=7, **options)[0]) == wanted


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 0}, {"worker_type": "process"}, {"filters": SOME}, {"batch_size": 3, "columns": ["s"]}],
    ids=str,
)
def test_every_mode_delivers_the_same(
    tables: Path, mode: Mode, far: Callable[[], Any], options: dict[str, Any]
) -> None:
    wanted = mode.read(mode.make(tables, **options))
    with far():
        assert mode.read(mode.make(tables, **options)) == wanted


@pytest.mark.parametrize("footers", ["eager", "lazy"])
@pytest.mark.parametrize("split_deletes", [False, True])
def test_an_iceberg_table_with_deletes_of_every_kind_is_streamed(
    tables: Path, far: Callable[[], Any], footers: str, split_deletes: bool
) -> None:
    chosen: dict[str, Any] = {"footers": footers, "split_deletes": split_deletes, "shuffle": True}
    wanted = LAKE.read(LAKE.make(tables, **chosen))
    with far():
        loader = LAKE.make(tables, **chosen)
        assert LAKE.read(loader) == wanted
        assert loader.metrics().fetch.requests > 0


@pytest.mark.parametrize("step", [1, 7, 13])
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
        assert "fetches" in str(dataset.explain())
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
