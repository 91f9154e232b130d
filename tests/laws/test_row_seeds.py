"""Seeds of rows: a pure function of id, epoch and seed, without collisions or neighbors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_table_loader import ConfigError, ConfigTypeError, row_seeds

IDS = np.arange(50_000)


def test_seeds_do_not_depend_on_batches() -> None:
    whole = row_seeds(IDS, epoch=3, seed=7)
    order = np.random.default_rng(0).permutation(IDS)
    assert (row_seeds(order, epoch=3, seed=7) == whole[order]).all()
    assert (row_seeds(torch.from_numpy(order), epoch=3, seed=7) == whole[order]).all()
    assert row_seeds([], epoch=0).tolist() == []


def test_every_row_epoch_and_seed_has_its_own() -> None:
    told = [row_seeds(IDS, epoch=epoch, seed=seed) for epoch in range(3) for seed in range(3)]
    every = np.concatenate(told)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0


@pytest.mark.parametrize("bit", [0, 1, 31, 61, 62])
def test_bits_are_evenly_distributed(bit: int) -> None:
    """Within five standard deviations, so that generators that take few bits differ too."""
    ones = int(((row_seeds(IDS, epoch=0) >> bit) & 1).sum())
    assert abs(ones - len(IDS) / 2) < 5 * (len(IDS) / 4) ** 0.5


def test_ids_must_be_integers_and_epochs_count_from_0() -> None:
    with pytest.raises(ConfigTypeError, match="row_ids must be integers, as the column row_id gives them, got float64"):
        row_seeds([0.5], epoch=0)
    with pytest.raises(ConfigError, match="epoch must be at least 0"):
        row_seeds([1], epoch=-1)
