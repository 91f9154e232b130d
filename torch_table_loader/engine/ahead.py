"""A lane's parts, read in order by the thread that has the lane, and ahead of it by threads that have none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_table_loader.batching.rows import Rows
    from torch_table_loader.engine.work import Part


class _Ahead:
    """A part that is not its lane's first."""

    __slots__ = ("done", "error", "part", "rows", "taken")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.taken = False
        self.done = False
        self.rows: list[Rows] = []
        self.error: BaseException | None = None


class Helpers:
    """How many parts all lanes together may hold that were read ahead, and whom to tell that there are more.

    Args:
        lock: guards all lanes of a server.
        most: parts that may be read ahead and wait.
        offered: called under the lock when a lane has parts to offer.
    """

    def __init__(self, lock: threading.Lock, most: int, offered: Callable[[], None]) -> None:
        """Hold nothing."""
        self.changed = threading.Condition(lock)
        self.most = most
        self.held = 0
        self.offered = offered


class PartsAhead:
    """Reads the parts of one lane, in order.

    One thread at a time iterates over what a call gives. Meanwhile `take` hands the lane's next parts to threads that
    have no lane of their own, so that a lane which is behind is read by more than one.
    """

    def __init__(self, read: Callable[[Part], Iterator[Rows]], helpers: Helpers) -> None:
        """Begin with no parts.

        Args:
            read: reads a part.
            helpers: shared by the lanes of a server.
        """
        self._read = read
        self._helpers = helpers
        self._next: deque[_Ahead] = deque()

    def __call__(self, parts: Iterable[Part]) -> Iterator[Rows]:
        """Yield the rows of parts, in order.

        Args:
            parts: of the lane; taken as far ahead as helpers may read.

        Raises:
            BaseException: what reading a part raised, in its place, whoever read it.
        """
        source = iter(parts)
        while True:
            while len(self._next) <= self._helpers.most and (part := next(source, None)) is not None:
                self._next.append(_Ahead(part))
            if not self._next:
                return
            first = self._await_first()
            if first.error is not None:
                raise first.error
            yield from first.rows if first.done else self._read(first.part)

    def _await_first(self) -> _Ahead:
        """Take the first part, and wait for whoever reads it."""
        helpers = self._helpers
        with helpers.changed:
            first = self._next[0]
            while first.taken and not first.done:
                helpers.changed.wait()
            self._next.popleft()
            helpers.held -= first.done
            if self._offer() is not None:
                helpers.offered()
            return first

    def _offer(self) -> _Ahead | None:
        if self._helpers.held >= self._helpers.most:
            return None
        return next((ahead for ahead in self._next if ahead.part.bounded and not ahead.taken), None)

    def take(self) -> Callable[[], None] | None:
        """Give a part to read, as something to call without the lock; None where there is none. Needs the lock."""
        ahead = self._offer()
        if ahead is None:
            return None
        ahead.taken = True
        self._helpers.held += 1
        return lambda: self._read_ahead(ahead)

    def _read_ahead(self, ahead: _Ahead) -> None:
        try:
            ahead.rows = list(self._read(ahead.part))
        except BaseException as caught:  # noqa: BLE001 whoever has the lane raises it, in its place
            ahead.error = caught
        with self._helpers.changed:
            ahead.done = True
            self._helpers.changed.notify_all()


__all__ = ["Helpers", "PartsAhead"]
