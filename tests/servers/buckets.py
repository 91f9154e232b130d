"""A bucket of an object store in memory, which records its requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from obstore.store import MemoryStore

from torch_table_loader.far.object_store import ObjectStoreClient
from torch_table_loader.source import storage

_PATIENCE_S = 20.0


class Bucket:
    """Implements what `ObjectStoreClient` needs of obstore.

    Args:
        objects: bytes by key.
        asked: is called with each request, as "GET key", "HEAD key" or "LIST prefix", before it is answered.
    """

    def __init__(self, objects: Mapping[str, bytes], asked: Callable[[str], None] = lambda _: None) -> None:
        self._asked = asked
        self._objects = MemoryStore()
        for key, data in objects.items():
            self._objects.put(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Write an object, which counts as no request."""
        self._objects.put(key, data)

    def delete(self, key: str) -> None:
        """Remove an object, which counts as no request."""
        self._objects.delete(key)

    def head(self, key: str) -> Any:
        self._asked(f"HEAD {key}")
        return self._objects.head(key)

    def get(self, key: str, **options: Any) -> Any:
        self._asked(f"GET {key}")
        return self._objects.get(key, **options)

    def list(self, prefix: str | None = None, **options: Any) -> Any:
        self._asked(f"LIST {prefix or ''}")
        return self._objects.list(prefix, **options)

    async def list_with_delimiter_async(self, prefix: str | None = None) -> Any:
        self._asked(f"LIST {prefix or ''}")
        return self._objects.list_with_delimiter(prefix)


class Rounds:
    """Answers no request before all requests of its round have arrived.

    Args:
        rounds: the requests that are sent at once, and what follows them.
    """

    def __init__(self, *rounds: Collection[str]) -> None:
        self._rounds = [Counter(requests) for requests in rounds]
        self._waiting: Counter[str] = Counter()
        self._answered = 0
        self._said = threading.Condition()
        self._failed = ""

    @property
    def over(self) -> bool:
        """Return whether all rounds arrived."""
        return self._answered == len(self._rounds)

    def __call__(self, request: str) -> None:
        with self._said:
            number = self._answered
            self._waiting[request] += 1
            expected = self._rounds[number] if number < len(self._rounds) else Counter[str]()
            if not self._waiting <= expected:
                self._failed = f"round {number}: {request!r} is none of {sorted(expected.elements())}"
            elif self._waiting == expected:
                self._waiting.clear()
                self._answered += 1
            self._said.notify_all()
            came = self._said.wait_for(lambda: self._answered > number or bool(self._failed), _PATIENCE_S)
            if self._failed or not came:
                missing = sorted((expected - self._waiting).elements())
                self._failed = self._failed or f"round {number}: {missing} did not come at the same time"
                raise AssertionError(self._failed)


def serve(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let s3:// URLs of this process refer to a bucket under any name."""
    connect = storage.connect

    def connecting(protocol: str, *options: Any) -> Any:
        return ObjectStoreClient(lambda *_: bucket) if protocol == "s3" else connect(protocol, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "connect", connecting)
