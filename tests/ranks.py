"""Ranks of one job on threads of this process, each with what a process of its own would count for itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

StoreOfRank = Callable[[int], Any]


def one_hash_store(_folder: Path, _ranks: int) -> StoreOfRank:
    """Let all ranks use one store in memory."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    return lambda _: store


def file_stores(folder: Path, ranks: int) -> StoreOfRank:
    """Let ranks share a file."""
    stores = [dist.FileStore(str(folder / "file of the store"), ranks) for _ in range(ranks)]  # type: ignore[attr-defined]
    return stores.__getitem__


def tcp_stores(_folder: Path, ranks: int) -> StoreOfRank:
    """Let ranks share a server, as torchrun's do."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    clients = [dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False) for _ in range(ranks)]  # type: ignore[attr-defined]
    return lambda rank: clients[rank] if server else None


@dataclass
class _Own:
    """What a rank counts."""

    rank: int
    constructed: Any = field(default_factory=itertools.count)
    calls: Counter[str] = field(default_factory=Counter)


class _OfThisRank(threading.local):
    own: _Own


@dataclass(frozen=True)
class Outcome:
    """What a rank came to: a value or an error, and after how many seconds."""

    value: Any
    error: BaseException | None
    seconds: float


class Ranks:
    """The ranks of a job; each keeps its counts from one play to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store_of: StoreOfRank, ranks: int, timeout_s: float) -> None:
        """Pretend that a process group runs."""
        here, self._owns = _OfThisRank(), [_Own(rank) for rank in range(ranks)]
        self._here = here
        for rank in range(ranks):
            store_of(rank).set_timeout(timedelta(seconds=timeout_s))

        class Constructed:
            def __next__(self) -> int:
                return int(next(here.own.constructed))

        def times(place: str) -> int:
            here.own.calls[place] += 1
            return here.own.calls[place]

        monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store_of(here.own.rank))
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: here.own.rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
        monkeypatch.setattr("torch_table_loader.engine.plan_check._constructed", Constructed())
        monkeypatch.setattr("torch_table_loader.engine.calls._times", times)

    def play(self, job: Callable[[int], Any], only: Sequence[int] | None = None) -> list[Outcome]:
        """Run a job on all ranks, or some, at once."""

        def run(own: _Own) -> Outcome:
            self._here.own, began, value, failed = own, time.monotonic(), None, None
            try:
                value = job(own.rank)
            except BaseException as error:  # noqa: BLE001 it is what the rank came to
                failed = error
            return Outcome(value, failed, time.monotonic() - began)

        chosen = self._owns if only is None else [self._owns[rank] for rank in only]
        with ThreadPoolExecutor(len(chosen)) as pool:
            return list(pool.map(run, chosen))
