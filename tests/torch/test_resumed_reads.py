"""What a resumed loader reads: no file that is consumed, and of the file that was cut no row group before the cut."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.effort import daily
from tests.tables.plain import meant_warnings
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.engine.sizing import MIXED_WINDOWS
from torch_table_loader.extend import FileStorage
from torch_table_loader.formats.orc.orc import read_tail
from torch_table_loader.read.wide_parquet import WideParquet

FILES, ROWS, BATCH = 4, 12_000, 1_000


class Recorder(io.FileIO):
    """A file that writes down, for every process alike, where it is read."""

    log: Path

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._note("open")

    def read(self, size: int | None = -1, /) -> bytes:
        self._note(str(self.tell()))
        return super().read(-1 if size is None else size) or b""

    def _note(self, what: str) -> None:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{Path(str(self.name)).name} {what}\n".encode())
        os.close(descriptor)


class Watch:
    """Reads what the recorders wrote."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.forget()

    def forget(self) -> None:
        self._log.write_text("")

    @property
    def opened(self) -> list[str]:
        """Files that were opened, each once."""
        return sorted({name for name, what in self._lines() if what == "open"})

    def first_byte(self, name: str) -> int:
        """The lowest place at which a file was read."""
        return min(int(what) for file, what in self._lines() if file == name and what != "open")

    def _lines(self) -> list[tuple[str, str]]:
        return [(name, what) for name, what in map(str.split, self._log.read_text().splitlines())]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(Recorder, "log", tmp_path / "log", raising=False)
    monkeypatch.setattr(FileStorage, "open", lambda _, path: pa.PythonFile(Recorder(path), mode="r"))
    return Watch(tmp_path / "log")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the same rows as Parquet and as ORC, in files of several row groups (stripes)."""
    roots = {form: tmp_path_factory.mktemp(form) for form in ("parquet", "orc")}
    noise = np.random.default_rng(0).random((FILES, 4, ROWS))
    for number in range(FILES):
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"id": ids} | {f"c{place}": noise[number, place] for place in range(4)})
        pq.write_table(rows, roots["parquet"] / f"{number}.parquet", row_group_size=1_700)
        orc.write_table(rows, str(roots["orc"] / f"{number}.orc"), stripe_size=1 << 16, batch_size=512)
    return roots


def groups_of(path: Path) -> list[tuple[int, int]]:
    """Give the first row and the first byte of each row group of a file."""
    if path.suffix == ".parquet":
        footer = pq.read_metadata(path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        sizes = [group.num_rows for group in groups]
        chunks = [group.column(0) for group in groups]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    else:
        stripes = read_tail(pa.BufferReader(path.read_bytes())).stripes
        sizes = [stripe.num_rows for stripe in stripes]
        starts = [len("ORC"), *(len("ORC") + end for end in accumulate(stripe.num_bytes for stripe in stripes))][:-1]
    assert len(sizes) > 3, "the test needs files of several row groups"
    return list(zip([0, *accumulate(sizes)][:-1], starts, strict=True))


def make(root: Path, form: str, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(root), form, batch_size=BATCH, check_plan=False, **options)[0]


def resume(
    watch: Watch, build: Callable[[], TableLoader], taken: int
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Take some batches, then let a fresh loader go on; gives what was taken, what follows, and what followed."""
    loader = build()
    whole = [batch["id"].tolist() for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    first = [batch["id"].tolist() for batch in islice(batches, taken)]
    state = loader.state_dict()
    del batches
    fresh = build()
    fresh.load_state_dict(state)
    watch.forget()
    return first, [batch["id"].tolist() for batch in fresh], whole[taken:]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize(
    ("taken", "window"), [(1, None), (17, None), (30, 2_500), (24, 5_000), (12, 4_000), (47, 7_000), (12, None)]
)
@daily(3)
def test_reading_begins_at_the_row_group_of_the_cut_or_of_the_open_window(
    tables: dict[str, Path], watch: Watch, form: str, worker_type: str, taken: int, window: int | None
) -> None:
    root = tables[form]
    options = {"num_workers": 1, "shuffle_buffer_size": window, "worker_type": worker_type}
    _, rest, expected = resume(watch, lambda: make(root, form, **options), taken)
    assert rest == expected
    begin = taken * BATCH if window is None else taken * BATCH // window * window
    cut = begin // ROWS
    assert watch.opened == [f"{number}.{form}" for number in range(cut, FILES)]
    groups = groups_of(root / f"{cut}.{form}")
    place = bisect_right([row for row, _ in groups], begin % ROWS) - 1
    byte = watch.first_byte(f"{cut}.{form}")
    assert groups[place][1] <= byte < [*(start for _, start in groups), 1 << 60][place + 1]


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize("taken", [3, 16, 25])
@daily(2)
def test_under_a_filter_reading_begins_at_the_row_group_of_the_next_row_that_passes(
    tables: dict[str, Path], watch: Watch, form: str, taken: int
) -> None:
    options = {"num_workers": 1, "filters": pc.field("c0") < 0.7}
    _, rest, expected = resume(watch, lambda: make(tables[form], form, **options), taken)
    assert rest == expected
    cut, row = divmod(rest[0][0], ROWS)
    assert watch.opened == [f"{number}.{form}" for number in range(cut, FILES)]
    groups = groups_of(tables[form] / f"{cut}.{form}")
    assert watch.first_byte(f"{cut}.{form}") >= groups[bisect_right([first for first, _ in groups], row) - 1][1]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("window", [None, 600])
@pytest.mark.parametrize("form", ["parquet", "orc"])
@daily(2)
def test_no_consumed_file_is_opened_on_any_lane(
    tables: dict[str, Path], watch: Watch, form: str, window: int | None, worker_type: str
) -> None:
    options = {"num_workers": 3, "shuffle": "splits", "shuffle_buffer_size": window, "worker_type": worker_type}
    taken, rest, expected = resume(watch, lambda: make(tables[form], form, **options), 40)
    assert rest == expected
    left = {row // ROWS for row in range(FILES * ROWS)} - consumed(taken)
    assert watch.opened == [f"{number}.{form}" for number in sorted(left)]


@pytest.mark.parametrize("window", [None, 600])
def test_no_consumed_file_is_opened_after_a_change_of_topology(
    tables: dict[str, Path], watch: Watch, window: int | None
) -> None:
    root, shared = tables["parquet"], {"shuffle": "splits", "shuffle_buffer_size": window}
    before = [make(root, "parquet", num_workers=1, num_ranks=2, rank=rank, **shared) for rank in range(2)]
    taken = [batch["id"].tolist() for loader in before for batch in islice(loader, 15)]
    state = before[0].state_dict()
    assert consumed(taken), "the test needs files that are consumed"
    after = [make(root, "parquet", num_workers=2, num_ranks=3, rank=rank, **shared) for rank in range(3)]
    for loader in after:
        loader.load_state_dict(state)
    watch.forget()
    rest = [batch["id"].tolist() for loader in after for batch in loader]
    assert sorted(sum(taken + rest, [])) == list(range(FILES * ROWS))
    assert watch.opened == [f"{number}.parquet" for number in sorted(set(range(FILES)) - consumed(taken))]


def consumed(batches: list[list[int]]) -> set[int]:
    """Name the files of which every row was delivered."""
    files, counts = np.unique(np.array(batches).reshape(-1) // ROWS, return_counts=True)
    return set(files[counts == ROWS].tolist())


def test_a_finished_epoch_opens_nothing(tables: dict[str, Path], watch: Watch) -> None:
    _, rest, expected = resume(watch, lambda: make(tables["parquet"], "parquet", num_workers=2), FILES * ROWS // BATCH)
    assert rest == expected == []
    assert watch.opened == []


def test_a_resumed_epoch_of_mixed_splits_decodes_at_most_a_tenth_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the end of a window, where most of what is read was delivered before."""
    for number in range(64):
        rows = pa.table({"x": np.arange(number * 200, (number + 1) * 200)})
        pq.write_table(rows, tmp_path / f"{number:02}.parquet", row_group_size=50)
    decoded: list[int] = []
    read_group = WideParquet.group

    def counted(file: WideParquet, *args: Any, **options: Any) -> pa.Table:
        table = read_group(file, *args, **options)
        decoded.append(table.num_rows)
        return table

    monkeypatch.setattr(WideParquet, "group", counted)
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "shuffle": True}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), **options)
    steps, states = 64 * 200 // 8 // MIXED_WINDOWS, {}
    for step, _ in enumerate(loader, 1):
        if step % (3 * steps) == steps - 1:
            states[step] = loader.state_dict()
    assert sum(decoded) == 64 * 200
    assert len(states) >= 5
    for step, state in states.items():
        decoded.clear()
        again, _ = StructuredDataset.create_dataloader(str(tmp_path), **options)
        again.load_state_dict(state)
        left = sum(len(batch["x"]) for batch in again)
        assert left == 64 * 200 - 8 * step
        assert sum(decoded) - left <= 64 * 200 // 10
