"""A cache within a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch_table_loader.forks import OfProcess


class LRUCache:
    """Values by key, each made once by whoever asks first; the least recently used go when it is full.

    The newest value is kept whatever its size. Threads share the cache; copies and pickles are empty.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._lock = OfProcess(threading.Lock)
        self._making: OfProcess[dict[Any, threading.Lock]] = OfProcess(dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without values."""
        return LRUCache, (self.most_bytes,)

    def get(self, key: Any, make: Callable[[], tuple[Any, int]], serves: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return a value; `make` returns it and its size in bytes, if there is none that `serves`."""
        makers = self._making.own
        while True:
            with self._lock.own:
                if key in self._values and serves(self._values[key][0]):
                    self._values.move_to_end(key)
                    return self._values[key][0]
                making = makers.setdefault(key, threading.Lock())
            with making:
                with self._lock.own:
                    if makers.get(key) is not making:
                        continue  # it was made while this thread waited
                value, num_bytes = make()
                self._keep(key, value, num_bytes)
                return value

    def _keep(self, key: Any, value: Any, num_bytes: int) -> None:
        with self._lock.own:
            self._making.own.pop(key, None)
            self._remove(key)
            self._values[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self.most_bytes and len(self._values) > 1:
                self._remove(next(iter(self._values)))

    def _remove(self, key: Any) -> None:
        self.num_bytes -= self._values.pop(key, (None, 0))[1]
