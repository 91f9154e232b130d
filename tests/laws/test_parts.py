"""The parts of a task, read in order, give the task's rows, whatever the deletes and wherever it begins and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torch_table_loader.planning.parts import divide
from torch_table_loader.records import ReadTask, Segment

lives = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=8)
"""For each row group, which of its rows live."""


def read(task: ReadTask, groups: list[list[bool]], starts: list[int]) -> list[int]:
    """Read as the contract of `ReadTask` says: the live rows, less the first `skip`, `take` of them."""
    live = [
        row
        for segment in task.segments
        for row in range(segment.row_start, segment.row_stop)
        if groups[segment.group][row - starts[segment.group]]
    ]
    return live[task.skip : None if task.take < 0 else task.skip + task.take]


@given(groups=lives, most_rows=st.integers(1, 12), skip=st.integers(0, 20), take=st.integers(-1, 20))
def test_parts_in_order_are_the_task(groups: list[list[bool]], most_rows: int, skip: int, take: int) -> None:
    starts = [sum(map(len, groups[:group])) for group in range(len(groups))]
    for counted in (True, False):
        segments = tuple(
            Segment(group, starts[group], starts[group] + len(rows), sum(rows) if counted else -1)
            for group, rows in enumerate(groups)
        )
        live = sum(map(sum, groups))
        first = min(skip, live)
        task = ReadTask(3, segments, first, min(take, live - first))
        parts = divide(task, most_rows)
        assert [row for part in parts for row in read(part, groups, starts)] == read(task, groups, starts)
        assert all(part.file_index == 3 for part in parts)
        for part in parts if counted else []:
            assert len(part.segments) == 1 or sum(s.row_stop - s.row_start for s in part.segments) <= most_rows
            assert read(part, groups, starts), "a part without rows is not worth a read"


@given(groups=lives.filter(bool))
def test_uncounted_rows_are_divided_only_where_all_are_asked_for(groups: list[list[bool]]) -> None:
    segments = tuple(Segment(group, 10 * group, 10 * group + 10, -1) for group in range(len(groups)))
    assert divide(ReadTask(0, segments, 1), 10) == [ReadTask(0, segments, 1)]
    assert len(divide(ReadTask(0, segments), 10)) == len(groups)
