"""Files as columns are planned like files as objects."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.errors import ConfigError, TableError
from torch_table_loader.planning.listed_files import ListedFiles, packed
from torch_table_loader.read.footers import estimated_groups, estimated_layout
from torch_table_loader.records import DataFile, DeleteFile, FileColumns, FileVersion, LocalVersion


class Made:
    """Builds files from sizes and rows, and counts them."""

    def __init__(self, told: list[tuple[int, int]]) -> None:
        self.told = told
        self.count = 0

    def __call__(self, place: int) -> DataFile:
        self.count += 1
        num_bytes, num_rows = self.told[place]
        version = FileVersion(num_bytes, immutable=True)
        return DataFile(f"/t/{place}", str(place), version, "parquet", num_rows=None if num_rows < 0 else num_rows)


def listed(told: list[tuple[int, int]]) -> ListedFiles:
    columns = np.array(told, dtype=np.int64).reshape(-1, 2)
    return ListedFiles(columns[:, 0], columns[:, 1], np.empty(0, dtype=np.int64), Made(told))


sizes = st.one_of(st.integers(0, 100 << 20), st.sampled_from([0, 1, 32 << 20, (32 << 20) + 1, 64 << 20, 1 << 33]))
rows = st.one_of(st.integers(0, 10**6), st.sampled_from([0, 1 << 40, 1 << 60]))


@given(told=st.lists(st.tuples(sizes, rows), max_size=5).filter(lambda told: sum(rows for _, rows in told) < 1 << 62))
def test_row_groups_of_listed_files_are_estimated_like_those_of_plain_files(told: list[tuple[int, int]]) -> None:
    files = listed(told)
    layout, values = estimated_layout(files), estimated_layout(tuple(files))
    for name in ("group_offsets", "group_rows", "group_bytes", "group_kept", "group_live", "whole"):
        assert np.array_equal(getattr(layout, name), getattr(values, name)), name
    assert layout.num_bytes == values.num_bytes
    groups = np.split(layout.group_rows, layout.group_offsets[1:-1]) if told else []
    assert [tuple(group.tolist()) for group in groups] == [estimated_groups(file)[0] for file in files]


def test_a_layout_is_built_without_building_a_file() -> None:
    files = listed([(10, 3), (70 << 20, 9), (0, 0)])
    assert estimated_layout(files).num_rows == 12
    made = files.make
    assert isinstance(made, Made)
    assert made.count == 0


def test_listed_files_are_a_picklable_sequence() -> None:
    files = listed([(10, 3), (20, 5), (30, 7)])
    assert [file.name for file in files] == ["0", "1", "2"]
    assert files[-1].num_rows == 7
    assert files[1:] == (files[1], files[2])
    assert list(pickle.loads(pickle.dumps(files))) == list(files)  # noqa: S301 - our own
    with pytest.raises(IndexError):
        files[3]
    with pytest.raises(ConfigError, match="got 1 and 2"):
        ListedFiles(files.num_bytes[:1], files.num_rows[:2], files.deleted, files.make)


PARTITIONS = ((), (("day", 1),), (("day", True),), (("day", -0.0),))
texts = st.text(st.one_of(st.characters(), st.sampled_from("/é\udce9")), max_size=5)
versions = st.builds(FileVersion, sizes, st.sampled_from([None, 3]), st.sampled_from([None, "tag"]))
versions_here = st.builds(
    lambda version, inode: replace(version, local=LocalVersion("here", inode, 1)), versions, st.integers(0, 2)
)


@st.composite
def data_files(draw: st.DrawFn) -> DataFile:
    path = draw(texts)
    file = DataFile(
        path,
        draw(st.one_of(st.just(path[1:]), texts)),
        draw(st.one_of(versions, versions_here)),
        draw(st.sampled_from(["parquet", "orc"])),
        draw(st.sampled_from(PARTITIONS)),
        num_rows=draw(st.one_of(st.none(), st.integers(0, 1 << 40))),
        split_offsets=tuple(draw(st.lists(st.integers(0, 1 << 40), max_size=3))),
        tail_bytes=draw(st.sampled_from([None, 9])),
    )
    columns = draw(st.one_of(st.none(), st.builds(FileColumns, st.none())))
    file = replace(file, reader=draw(st.sampled_from([None, "reader"])), columns=columns)
    sidecars = (file,) * draw(st.integers(0, 1))
    deletes = tuple(DeleteFile(file, "vector", 1, inline=b"m") for _ in range(draw(st.integers(0, 1))))
    return replace(file, deletes=deletes, sidecars=sidecars)


@given(files=st.lists(data_files(), max_size=6))
def test_packed_files_equal_the_original_files(files: list[DataFile]) -> None:
    found = packed(files)
    for again in (found, pickle.loads(pickle.dumps(found))):  # noqa: S301 - our own
        assert list(again) == files
        names = {each.name for each in fields(DataFile)} - ({"columns"} if again is not found else set())
        for name in names:
            assert [getattr(file, name) for file in again] == [getattr(file, name) for file in files]
        assert [repr(file.partition) for file in again] == [repr(file.partition) for file in files]
        assert [file.version.local for file in again] == [file.version.local for file in files]
        assert again.num_bytes.tolist() == [file.version.num_bytes for file in files]
        assert again.deleted.tolist() == [at for at, file in enumerate(files) if file.deletes]
    if all(file.num_rows is not None for file in files):
        assert estimated_layout(found).group_rows.tolist() == estimated_layout(files).group_rows.tolist()
        assert estimated_layout(found).group_bytes.tolist() == estimated_layout(files).group_bytes.tolist()


def test_packed_files_do_not_show_their_paths() -> None:
    version = FileVersion(1)
    assert "secret" not in repr(packed([DataFile("https://b/a.parquet?sig=secret", "a.parquet", version, "parquet")]))


def test_packed_files_take_little_more_than_their_paths() -> None:
    def weigh(make: Callable[[list[DataFile]], object]) -> float:
        tracemalloc.start()
        version = FileVersion
        files = [DataFile(f"s3://b/{at:064}", f"{at:064}", version(at), "parquet", num_rows=at) for at in range(9999)]
        held = make(files)
        del files
        weight = tracemalloc.get_traced_memory()[0] / 9999
        tracemalloc.stop()
        assert held is not None
        return weight

    assert weigh(packed) < 71 + 60 < weigh(tuple) / 2


def test_files_with_unknown_rows_are_refused() -> None:
    with pytest.raises(TableError, match="how many rows 1 has, but does not"):
        estimated_layout(listed([(10, 3), (20, -1)]))


def test_a_lazy_loader_of_a_delta_table_builds_none_of_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    from tests.tables.delta import DeltaWriter, some
    from torch_table_loader import DeltaDataset

    table = DeltaWriter(tmp_path / "t")
    for at in range(5):
        table.append(some(at * 10, at * 10 + 10))
    table.commit()
    asked: list[int] = []
    make = ListedFiles.__getitem__

    def count(files: ListedFiles, index: Any) -> Any:
        asked.append(index)
        return make(files, index)

    monkeypatch.setattr(ListedFiles, "__getitem__", count)
    loader, dataset = DeltaDataset.create_dataloader(table.uri, columns=["x"], footers="lazy", batch_size=10)
    assert (len(loader), asked) == (5, [])
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(50))
    assert set(asked) == set(range(5))
    assert dataset.version == 0
