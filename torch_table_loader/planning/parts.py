"""Divides a task into parts that can be read at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_table_loader.records import ReadTask, Segment


def divide(task: ReadTask, most_rows: int) -> list[ReadTask]:
    """Divide a task between row groups; its parts, read in order, give the same rows.

    Args:
        task: what is to be read.
        most_rows: physical rows of a part, which holds one row group's at least.

    Returns:
        The parts; the task itself where a number of live rows is asked for, but they were not counted.

    >>> groups = [Segment(group, 10 * group, 10 * group + 10, 10) for group in range(4)]
    >>> parts = divide(ReadTask(0, tuple(groups), skip=13, take=20), 20)
    >>> [([segment.group for segment in part.segments], part.skip, part.take) for part in parts]
    [([1, 2], 3, -1), ([3], 0, 3)]
    """
    if all(segment.live >= 0 for segment in task.segments):
        return list(_counted(task, most_rows))
    if task.skip or task.take >= 0:
        return [task]
    return [ReadTask(task.file_index, bunch) for bunch in _bunches(task.segments, most_rows)]


def _counted(task: ReadTask, most_rows: int) -> Iterator[ReadTask]:
    wanted: list[Segment] = []
    before, skip = 0, 0
    stop = sum(segment.live for segment in task.segments) if task.take < 0 else task.skip + task.take
    for segment in task.segments if stop > task.skip else ():
        if segment.live and before + segment.live > task.skip and before < stop:
            skip = skip if wanted else task.skip - before
            wanted.append(segment)
        before += segment.live
    left = stop - task.skip
    for bunch in _bunches(wanted, most_rows):
        live = sum(segment.live for segment in bunch) - skip
        yield ReadTask(task.file_index, bunch, skip, -1 if live <= left else left)
        left -= live
        skip = 0


def _bunches(segments: Iterable[Segment], most_rows: int) -> Iterator[tuple[Segment, ...]]:
    bunch: list[Segment] = []
    rows = 0
    for segment in segments:
        length = segment.row_stop - segment.row_start
        if bunch and rows + length > most_rows:
            yield tuple(bunch)
            bunch, rows = [], 0
        bunch.append(segment)
        rows += length
    if bunch:
        yield tuple(bunch)


__all__ = ["divide"]
