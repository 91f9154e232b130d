"""Words that users type lead to the place that explains them, first or second, much as Material's search ranks them.

``test_browser.py`` asks the search itself.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
TITLE_BOOST = 1000.0
SEPARATOR = re.compile(r'[\s\-,:=\[\]()"`/.;]+')
K1, B = 1.2, 0.75

_PAGE = "dataloader.html"

WANTED = {
    "num_workers": "options.html#num_workers",
    "drop_last": "options.html#drop_last",
    "batch_size": "options.html#batch_size",
    "filters": "options.html#filters",
    "columns": "options.html#columns",
    "weights": "options.html#weights",
    "prefetch": "options.html#prefetch_batches",
    "shuffle": "options.html#shuffle",
    "uneven ranks": "order.html#equal-steps-on-uneven-ranks",
    "train_test_split": "filters.html#training-and-validation-parts",
    "early stopping": "tabular.html#validate-and-stop-early-early-stopping",
    "resume": "state.html",
    "checkpoint": "state.html#checkpoints-in-a-training-loop",
    "S3 credentials": "object-stores.html#s3-credentials-and-endpoints",
    "seed": "order.html#shuffle-and-seed",
    "DDP": "distributed.html#torchrun-ddp-fsdp",
    "Lightning": "frameworks.html#lightning",
    "null values": "types.html#null-values",
    "memory": "engines.html#memory",
    "cache": "object-stores.html#a-cache-on-the-local-disk",
    "collate_fn": "options.html#collate_fn",
    "FSDP": "distributed.html#torchrun-ddp-fsdp",
    "gradient accumulation": "shuffle.html#gradient-accumulation",
    **dict.fromkeys(
        (
            "worker_init_fn",
            "pin_memory",
            "generator",
            "prefetch_factor",
            "persistent_workers",
            "multiprocessing_context",
            "batch_sampler",
            "in_order",
        ),
        _PAGE + "#arguments-of-dataloader-such-as-pin_memory-and-worker_init_fn",
    ),
    **dict.fromkeys(
        ("sampler", "DistributedSampler", "WeightedRandomSampler", "deterministic", "StatefulDataLoader"),
        _PAGE + "#distributedsampler-deterministic-order-statefuldataloader",
    ),
    **dict.fromkeys(
        (
            "Subset",
            "random_split",
            "ConcatDataset",
            "ChainDataset",
            "TensorDataset",
            "IterableDataset",
            "get_worker_info",
            "k-fold",
        ),
        _PAGE + "#subset-random_split-concatdataset-k-fold",
    ),
}


def words(text: str) -> list[str]:
    plain = re.sub(r"<[^>]+>", " ", text).lower()
    return [re.sub(r"(?<=\w{3})(ing|ed|s)$", "", word) for word in SEPARATOR.split(plain) if word]


@dataclass(frozen=True, slots=True)
class Search:
    """A stand-in for lunr: Okapi BM25 over titles and texts, where titles count a thousand times as much."""

    locations: list[str]
    boosts: list[float]
    titles: list[Counter[str]]
    texts: list[Counter[str]]

    @classmethod
    def over(cls, site: Path) -> Search:
        entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
        fields = [[Counter(words(entry[field])) for entry in entries] for field in ("title", "text")]
        boosts = [float(entry.get("boost", 1)) for entry in entries]
        return cls([entry["location"] for entry in entries], boosts, *fields)

    def find(self, query: str) -> list[str]:
        """Give the locations that hold each word of a query, or the beginning of one, best first."""
        scores = [[*self._scores(word)] for word in words(query)]
        found = [at for at in range(len(self.locations)) if all(each[at] > 0 for each in scores)]
        found.sort(key=lambda at: -self.boosts[at] * sum(each[at] for each in scores))
        return [self.locations[at] for at in found]

    def _scores(self, word: str) -> list[float]:
        total = [0.0] * len(self.locations)
        for boost, field in ((TITLE_BOOST, self.titles), (1.0, self.texts)):
            hits = [sum(count for other, count in one.items() if other.startswith(word)) for one in field]
            rare = math.log(1 + len(field) / (1 + sum(hit > 0 for hit in hits)))
            usual = sum(one.total() for one in field) / len(field)
            for at, (hit, one) in enumerate(zip(hits, field, strict=True)):
                total[at] += boost * rare * hit * (K1 + 1) / (hit + K1 * (1 - B + B * one.total() / usual))
        return total


@pytest.fixture(scope="module")
def search(site: Path) -> Search:
    return Search.over(site)


@pytest.mark.parametrize("query", WANTED)
def test_search_finds_what_users_type_first_or_second(query: str, search: Search) -> None:
    found = search.find(query)
    assert WANTED[query] in found[:2], found[:6]


def test_a_word_that_no_page_has_is_not_found(search: Search) -> None:
    assert search.find("zyzzyva") == []
