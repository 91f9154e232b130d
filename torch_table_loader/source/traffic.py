"""Counts a process's requests to a store, and tracks since when they have failed."""

from __future__ import annotations

import threading

from torch_table_loader.records import Traffic


class TrafficCounter:
    """Counts for one storage in one process; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Traffic()
        self._failing_since: float | None = None
        self._warned = False

    def total(self) -> Traffic:
        """Return the counts so far."""
        return self._total

    def tried(self, *, again: bool) -> None:
        """Count a request.

        Args:
            again: whether it repeats a failed request.
        """
        self._add(Traffic(requests=1, retries=int(again)))

    def waited(self, seconds: float) -> None:
        """Count time spent waiting between two requests."""
        self._add(Traffic(seconds_waiting=seconds))

    def served(self, num_bytes: int, now: float) -> float | None:
        """Count an answer.

        Args:
            num_bytes: bytes that arrived.

        Returns:
            Seconds since the first of the failed requests before it, if the caller was warned of them.
        """
        self._add(Traffic(num_bytes=num_bytes))
        if self._failing_since is None:
            return None
        with self._lock:
            since, warned = self._failing_since, self._warned
            self._failing_since, self._warned = None, False
        return now - since if warned and since is not None else None

    def failed(self, began: float, now: float, patience: float) -> float | None:
        """Record a failed request.

        Args:
            patience: seconds after which the caller is warned, once until a request succeeds.

        Returns:
            Seconds without a successful request, if the caller should be warned now.
        """
        with self._lock:
            if self._failing_since is None:
                self._failing_since = began
            seconds = now - self._failing_since
            if self._warned or seconds < patience:
                return None
            self._warned = True
            return seconds

    def _add(self, more: Traffic) -> None:
        with self._lock:
            self._total += more
