"""The words that key permutations, and the rows that come: part of the format of states, so they never change.

A state does not hold the order. It holds seed, epoch and names, and what comes next follows from the words below.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from typing import Any

import pytest

from tests.states import with_options
from tests.torch.test_frozen_states import (
    CASES,
    MIXED,
    NATURAL,
    PLAIN,
    ROWS,
    STATES,
    Case,
    digest,
    open_loader,
    what_comes,
)
from torch_table_loader import RoundRobinStrategy, RowBalancedStrategy, SizeBalancedStrategy, TableLoader, Weights
from torch_table_loader.extend import resolve_strategy
from torch_table_loader.planning import keys

EPOCH = 2

DEALT: Case = {"batch_size": 5, "num_workers": 2, "split_strategy": RoundRobinStrategy(shuffle=True, seed=1)}
WINDOWS = PLAIN | {"num_ranks": 2, "rank": 1, "shuffle_buffer_size": 7}

ORDERS: dict[str, tuple[Case, set[str], list[Any], str]] = {
    "splits": (
        PLAIN,
        {"splits"},
        [[24, 25, 26, 27, 28], [46, 47, 48, 49, 50], [29, 30, 31, 32, 33]],
        "c0083749cf1582aa",
    ),
    "splits, shuffle windows": (
        WINDOWS,
        {
            "splits",
            "window at 0 of lane 0 of rank 1 in stage 0",
            "window at 7 of lane 0 of rank 1 in stage 0",
            "window at 0 of lane 1 of rank 1 in stage 0",
            "window at 7 of lane 1 of rank 1 in stage 0",
            "window at 14 of lane 1 of rank 1 in stage 0",
            "window at 0 of tail 0 of rank 1 in stage 0",
        },
        [[49, 46, 51, 52, 50], [6, 0, 4, 3, 1], [48, 47, 55, 54, 53]],
        "831a67450aba9ed7",
    ),
    "files dealt in turn": (
        DEALT,
        {"round-robin files"},
        [[0, 1, 2, 3, 4], [46, 47, 48, 49, 50], [5, 6, 7, 8, 9]],
        "8c9338e10789adb2",
    ),
    "single rows": (
        ROWS | {"num_ranks": 2, "rank": 1},
        {"rows"},
        [[24, 17, 35, 14], [64, 33, 29, 61], [43, 50, 19, 9]],
        "7b1a279745a67c2f",
    ),
    "rows by weight": (
        ROWS | {"num_ranks": 2, "rank": 1, "drawn": Weights(column="x", samples=50)},
        {"rows", "places in weights"},
        [[64, 55, 36, 54], [50, 52, 34, 41], [28, 40, 57, 60]],
        "28eb7530ea75e943",
    ),
    "a mixture that draws by weight": (
        MIXED | {"shuffle_seed": 43, "stop": "all_exhausted", "drawn": Weights(balance="k", samples=40)},
        {
            "mixture from 0",
            "mixture source 0 a",
            "mixture source 1 a",
            "mixture source 2 a",
            "mixture source 0 b",
            "places in weights of source a",
            "places in weights of source b",
        },
        [[[0, 0], [1, 49], [0, 27], [1, 15], [0, 17], [0, 1]], [[0, 54], [0, 29], [1, 65], [0, 32], [0, 23], [1, 52]]],
        "89ba126212d21eba",
    ),
    "a mixture": (
        MIXED | {"shuffle_seed": 43, "stop": "all_exhausted"},
        {"mixture from 0", "mixture source 0 a", "mixture source 1 a", "mixture source 2 a", "mixture source 0 b"},
        [[[0, 63], [1, 47], [0, 51], [1, 29], [0, 46], [0, 0]], [[0, 16], [0, 10], [1, 9], [0, 1], [0, 56], [1, 39]]],
        "a4a04c0e8a901a46",
    ),
    "a mixture of all that there is": (
        NATURAL | {"shuffle_seed": 44},
        {"mixture by quotas from 0", "mixture source 0 a", "mixture source 0 b"},
        [[[1, 25], [0, 59], [1, 58], [0, 32], [1, 42], [0, 28]], [[1, 0], [0, 10], [1, 31], [0, 26], [0, 50], [1, 63]]],
        "1971ad86a929596e",
    ),
}
"""By name: options of a job, the words that key its permutations, its first batches, and a digest of all."""

RESUMED = {
    "two changes of topology, shuffle windows open": {
        "splits",
        "window at 0 of lane 0 of rank 1 in stage 0",
        "window at 0 of tail 0 of rank 1 in stage 2",
        "window at 1 of tail 1 of rank 1 in stage 2",
    },
    "a mixture whose weights changed, filtered, some rows excluded": {
        "mixture from 0",
        "mixture from 30",
        "mixture source 0 a",
        "mixture source 1 a",
        "mixture source 0 b",
    },
    "a mixture of all that there is, with other weights for a while": {
        "mixture by quotas from 0",
        "mixture by quotas from 54",
        "mixture source 0 a",
        "mixture source 0 b",
    },
}
"""By name of a frozen state: words that key what follows."""


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Take down the words with which keys are derived."""
    seen: set[str] = set()
    derive = hashlib.blake2b

    def listen(message: bytes, **others: Any) -> Any:
        fields, at = [], 0
        while at < len(message):
            (size,) = struct.unpack_from("<Q", message, at)
            fields.append(message[at + 8 : at + 8 + size])
            at += 8 + size
        seen.add(fields[2].decode())
        return derive(message, **others)

    monkeypatch.setattr(keys, "blake2b", listen)
    return seen


def open_epoch(options: Case) -> TableLoader:
    loader = open_loader(options)
    loader.set_epoch(EPOCH)
    return loader


@pytest.mark.parametrize("name", ORDERS)
def test_frozen_words_and_orders(words: set[str], name: str) -> None:
    options, expected, first, whole = ORDERS[name]
    batches = what_comes(open_epoch(options))
    assert words == expected
    assert batches[: len(first)] == first
    assert digest(batches)[:16] == whole


@pytest.mark.parametrize("name", RESUMED)
def test_frozen_words_of_what_follows_a_state(words: set[str], name: str) -> None:
    state = json.loads((STATES / "state-v2.json").read_text())[name]["state"]
    if "mixture" in state:  # with another seed its epoch has another length
        from torch_table_loader.mixtures import mixture

        other: dict[str, Any] = {}
        for cached in vars(mixture).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
    else:
        other = {"shuffle_seed": 43}  # nothing is cached under it yet
        state = with_options(state, **other)
    loader = open_loader(CASES[name]["go on"] | other)
    loader.load_state_dict(state)
    what_comes(loader)
    assert words == RESUMED[name]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "TargetSizeStrategy"),
        ("target_size", "TargetSizeStrategy"),
        ("size_balanced", "SizeBalancedStrategy"),
        ("row_balanced", "RowBalancedStrategy"),
        ("round_robin", "RoundRobinStrategy"),
        (SizeBalancedStrategy(), "SizeBalancedStrategy"),
        (functools.partial(RowBalancedStrategy(3)), "RowBalancedStrategy"),
        (lambda files: [], "<lambda>"),
    ],
)
def test_frozen_names_of_strategies(given: Any, name: str) -> None:
    """A state names the strategy as its class or function is called."""
    assert resolve_strategy(given, {}).name == name
