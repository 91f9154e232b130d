"""Each claim that our page makes about torch and torchdata is run against them, in `make test-all`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.services.claims import assert_page_and_tests_agree, shows

KNOWN = "dataloader.md"

pytestmark = pytest.mark.filterwarnings("ignore")  # what others warn of is theirs


def test_the_page_and_its_tests_agree() -> None:
    assert_page_and_tests_agree(KNOWN)


def names_in(sentence: str) -> list[str]:
    return re.findall(r"`(\w+)", sentence)


ARGUMENTS = (
    "`batch_size`, `drop_last`, `num_workers`",
    "`shuffle=True`",
    "`collate_fn`",
    "`sampler`, `batch_sampler`",
    "`pin_memory`",
    "`prefetch_factor`",
    "`persistent_workers`, `in_order`",
    "`worker_init_fn`",
    "`generator`",
    "`multiprocessing_context`",
    "`timeout`",
)
CLASSES = ("`WeightedRandomSampler`", "`ConcatDataset`, `ChainDataset`", "`TensorDataset`")


@shows(KNOWN, *ARGUMENTS)
def test_these_are_all_arguments_of_dataloader() -> None:
    named = [name for row in ARGUMENTS for name in names_in(row)]
    others = {"self", "dataset", "pin_memory_device"}  # which is deprecated there
    assert sorted(named) == sorted(set(inspect.signature(DataLoader.__init__).parameters) - others)


@shows(KNOWN, *CLASSES)
@pytest.mark.parametrize("name", [name for row in CLASSES for name in names_in(row)])
def test_a_class_of_torch_has_this_name(name: str) -> None:
    assert inspect.isclass(getattr(torch_data, name))


TEN = TensorDataset(torch.arange(10))


@shows(KNOWN, "`DistributedSampler`", "`sampler.set_epoch(epoch)`")
def test_a_sampler_has_one_order_until_its_epoch_is_set() -> None:
    sampler: Any = DistributedSampler(TEN, num_replicas=2, rank=0, shuffle=True)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


@shows(KNOWN, "deterministic")
def test_torchs_order_is_another_one_in_each_epoch_unless_it_is_seeded() -> None:
    def order(generator: torch.Generator | None) -> list[int]:
        return [int(x) for (x,) in DataLoader(TEN, shuffle=True, generator=generator)]

    assert len({tuple(order(None)) for _ in range(4)}) > 1
    assert order(torch.Generator().manual_seed(1)) == order(torch.Generator().manual_seed(1))


@shows(KNOWN, "`len(loader)`, `len(loader.dataset)`")
def test_lengths_are_batches_of_this_rank_and_rows_of_all() -> None:
    sampler: Any = DistributedSampler(TEN, num_replicas=2, rank=0)
    loader: Any = DataLoader(TEN, batch_size=2, sampler=sampler)
    assert (len(loader), len(loader.dataset)) == (3, 10)


@shows(KNOWN, "`state_dict` of `StatefulDataLoader`")
def test_a_state_of_torchdata_asks_for_as_many_workers() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader(num_workers: int) -> Any:
        return StatefulDataLoader(TEN, batch_size=2, num_workers=num_workers)

    first, same, fewer = loader(2), loader(2), loader(1)
    next(iter(first))
    state = first.state_dict()
    same.load_state_dict(state)
    assert [x.tolist() for (x,) in same] == [[2, 3], [4, 5], [6, 7], [8, 9]]
    fewer.load_state_dict(state)
    with pytest.raises(AssertionError):
        next(iter(fewer))


class Counting(IterableDataset[int]):
    """A hand-written dataset that does not ask which worker reads it."""

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


@shows(KNOWN, "hand-written `IterableDataset`, `get_worker_info`")
def test_each_worker_reads_all_of_a_hand_written_dataset() -> None:
    assert sorted(int(x) for x in DataLoader(Counting(), batch_size=None, num_workers=2)) == [0, 0, 1, 1, 2, 2]


@shows(KNOWN, "`DataLoader(dataset)`")
def test_dataloader_makes_batches_of_one_unless_told() -> None:
    assert [batch.tolist() for batch in DataLoader(Counting())] == [[0], [1], [2]]
    assert list(DataLoader(Counting(), batch_size=None)) == [0, 1, 2]


@shows(KNOWN, "`random_split`")
def test_random_split_divides_by_position() -> None:
    parts = torch_data.random_split(TEN, [0.5, 0.5], torch.Generator().manual_seed(1))
    assert sorted(x for part in parts for x in part.indices) == list(range(10))
