"""Seeds for what is random about single rows, such as augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.planning.keys import derive_key, hashes_of


def row_seeds(row_ids: Any, *, epoch: int, seed: int = 0) -> NDArray[np.int64]:
    """Return a seed for each row, int64[n] from 0 to 2^63 − 1: the same for any ranks, workers and batches of an epoch.

    With these seeds, random changes to a row stay the same when a job continues on other machines.

    Args:
        row_ids: int[n], as the column ``row_id`` gives them: a tensor, an array or a list.
        seed: a different value gives unrelated seeds.

    Raises:
        ConfigTypeError: the ids are not integers.

    >>> row_seeds([0, 1], epoch=0).tolist()
    [1073068205629341916, 3443160574030500380]
    >>> row_seeds([1], epoch=1).tolist()
    [7929402630430648056]
    """
    ids = np.asarray(row_ids)
    if ids.dtype.kind not in "iu" and ids.size:
        raise ConfigTypeError(f"row_ids must be integers, as the column row_id gives them, got {ids.dtype}")
    hashes = hashes_of(ids.astype(np.uint64), derive_key(seed, epoch, "row seeds"))
    return (hashes >> np.uint64(1)).astype(np.int64)
