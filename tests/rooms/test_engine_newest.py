"""What was made last is kept, and no more of it."""

from __future__ import annotations

import pickle
from functools import partial

from torch_table_loader.engine.newest import Newest


def test_a_value_is_made_once_while_it_is_kept() -> None:
    made: list[str] = []
    newest: Newest[str, list[str]] = Newest(2)

    def make(key: str) -> list[str]:
        made.append(key)
        return [key]

    def asked(key: str) -> list[str]:
        return newest.of(key, partial(make, key))

    assert asked("a") is asked("a")
    assert asked("b") == ["b"]
    assert asked("a") == ["a"]
    assert made == ["a", "b"]
    asked("c")
    asked("b")
    assert made == ["a", "b", "c"], "the oldest goes, and no other"
    asked("a")
    assert made == ["a", "b", "c", "a"]


def test_making_a_value_may_make_others() -> None:
    newest: Newest[int, int] = Newest(2)

    def made(number: int) -> int:
        if number == 0:
            return 1
        return number * newest.of(number - 1, partial(made, number - 1))

    assert newest.of(5, partial(made, 5)) == 120
    assert newest.of(5, lambda: 0) == 120, "what was made last is kept"


def test_what_is_kept_crosses_to_another_process() -> None:
    newest: Newest[str, int] = Newest(1)
    newest.of("a", lambda: 1)
    other = pickle.loads(pickle.dumps(newest))  # noqa: S301
    assert other.of("a", lambda: 2) == 1
    assert other.of("b", lambda: 2) == 2
    assert other.of("a", lambda: 3) == 3
