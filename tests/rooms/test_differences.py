"""What an epoch changes, as a worker process is sent it: without the parts that the process has."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any

from torch_table_loader.engine.workers.differences import difference, restored


@dataclass(frozen=True, eq=False)
class Part:
    """A part that is large, with what it found in its process."""

    data: bytes
    found: list[Any] = field(default_factory=list, init=False)


@dataclass(frozen=True, eq=False)
class Whole:
    """A value of parts, with a number that changes."""

    parts: tuple[Part, ...]
    epoch: int = 0
    last: Any = None


def test_parts_that_the_process_has_are_not_sent() -> None:
    before = Whole((Part(b"a" * 10_000), Part(b"b" * 10_000)))
    there = pickle.loads(pickle.dumps(before))  # noqa: S301 our own
    data = difference(replace(before, epoch=1), before, 1_000)
    assert data is not None
    got = restored(data, there)
    assert got.epoch == 1
    assert [one is other for one, other in zip(got.parts, there.parts, strict=True)] == [True, True]


def test_what_a_part_found_in_one_process_is_not_looked_for_in_another() -> None:
    before = Whole((Part(b"a"),))
    there = pickle.loads(pickle.dumps(before))  # noqa: S301 our own
    before.parts[0].found.append((Part(b"new"),))
    there.parts[0].found.append((Part(b"other"),))
    data = difference(replace(before, last=before.parts[0].found[0][0]), before, 1_000)
    assert data is not None
    assert restored(data, there).last.data == b"new"


def test_what_is_too_much_is_not_sent() -> None:
    before = Whole(())
    assert difference(replace(before, last=b"a" * 2_000), before, 1_000) is None
