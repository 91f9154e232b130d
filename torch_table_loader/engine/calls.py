"""The calls that make loaders. The ranks of a program make the same ones, and hear of one that another makes unlike."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_PACKAGE = __name__.partition(".")[0]

_counts: Counter[str] = Counter()

running: ContextVar[Call | None] = ContextVar("running", default=None)
"""The call of this thread that makes a loader."""


def _times(line: str) -> int:
    """Return how often this process has made a call by a line before."""
    _counts[line] += 1
    return _counts[line] - 1


class Call:
    """A call that makes a loader, or several: those of a mixture's sources, or of the parts of a split.

    Its name is the place in the program, down to the line, and how often the program came there: what ranks that run
    one program have in common, and what tells this call from others that one rank alone makes.
    """

    def __init__(self, maker: object, outer: Call | None) -> None:
        """Begin.

        Args:
            maker: what is made, or makes; the call of its base class is a part of the same call.
            outer: the call that makes more than this.
        """
        self.maker: object = maker
        self.is_over = False
        """Whether no rank waits for this call's loader, or those that do know that it will not come."""
        self._outermost: Call = self if outer is None else outer._outermost
        self._made = 0
        if outer is None:
            line = place()
            self._name = f"{line}/{_times(line)}"

    def key(self) -> str:
        """Return the name of the next loader that is made in the call."""
        outermost = self._outermost
        outermost._made += 1
        return f"{outermost._name}/{outermost._made}"


def place() -> str:
    """Return a hash of the lines that led into this library."""
    lines: list[str] = []
    frame = inspect.currentframe()
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in (_PACKAGE, "contextlib"):
            lines.append(f"{Path(code.co_filename).name}:{frame.f_lineno}:{code.co_name}")
        frame = frame.f_back
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@contextmanager
def making(maker: object, refused: Callable[[Call, BaseException], None]) -> Iterator[None]:
    """Make one or several loaders in one call; an error of which no other rank knows yet is told to them.

    Args:
        maker: see `Call`.
        refused: is given such an error.
    """
    outer = running.get()
    if outer is not None and outer.maker is maker:
        yield
        return
    call = Call(maker, outer)
    token = running.set(call)
    try:
        yield
    except BaseException as error:
        if not call.is_over:
            refused(call, error)
        if outer is not None:
            outer.is_over |= call.is_over
        raise
    finally:
        running.reset(token)
        call.maker = None  # a client's idle connections may keep the context, and with it the call


class SameCall:
    """What the ranks of a process group say of one call: that they compare what it makes, or why they do not.

    Nobody waits for it.
    """

    def __init__(self, store: Any, num_ranks: int, world: int) -> None:
        """Begin with a store in which the keys are those of the call.

        Args:
            num_ranks: among how many ranks this one divides the rows.
            world: ranks of the process group.
        """
        self._store, self._num_ranks, self._world = store, num_ranks, world

    def compares(self) -> None:
        """Say that this rank waits for the others to compare."""
        self._store.set("compares", json.dumps(self._num_ranks))

    def does_not(self, why: str) -> None:
        """Say that this rank does not, and why."""
        with suppress(RuntimeError):  # where the store is gone: whoever needs it finds that out
            self._store.set("unlike", json.dumps([self._num_ranks, why]))

    def unlike(self) -> str | None:
        """Return why a rank does not compare what others do, if any is known of either."""
        if not self._store.check(["unlike", "compares"]):
            return None
        num_ranks, (others, why) = (json.loads(self._store.get(key)) for key in ("compares", "unlike"))
        # A job of fewer ranks than the group has need not include that rank.
        if num_ranks in (others, self._world):
            return str(why)
        return None
