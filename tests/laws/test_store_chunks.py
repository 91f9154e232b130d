"""Chunks of a row store: every live row once, in canonical order, whole row groups."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.extend import TableLayout
from torch_table_loader.planning.splits import Chunks, whole_files
from torch_table_loader.records import DataFile, FileVersion

groups = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6)


@given(groups=groups, target=st.integers(1, 40), data=st.data())
def test_chunks_read_every_live_row_once_in_order(groups: list[list[int]], target: int, data: st.DataObject) -> None:
    files = [DataFile(str(number), str(number), FileVersion(1), "") for number in range(len(groups))]
    layout = TableLayout.of(files, groups, groups)
    segments = whole_files(layout, filtered=False)
    live = np.array([data.draw(st.integers(0, rows)) for rows in segments.live.tolist()], dtype=np.int64)
    segments = segments.counted(live)
    chunks = Chunks.of(segments, target)
    assert sum(chunks.rows) == live.sum()
    found, largest = [], max((rows for file in groups for rows in file), default=0)
    for chunk, rows in enumerate(chunks.rows):
        tasks = chunks.tasks(chunk)
        assert sum(segment.live for task in tasks for segment in task.segments) == rows
        assert 0 < rows < target + largest
        found += [(task.file_index, *segment) for task in tasks for segment in task.segments]
    wanted = []
    lives = {
        (int(g), int(s)): int(n) for g, s, n in zip(segments.group, segments.row_start, segments.live, strict=True)
    }
    for file, sizes in enumerate(groups):
        start = 0
        for group, rows in enumerate(sizes):
            count = lives.get((int(layout.group_offsets[file]) + group, start), 0)
            if count:
                wanted.append((file, group, start, start + rows, count))
            start += rows
    assert found == wanted
