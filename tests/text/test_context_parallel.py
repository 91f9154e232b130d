"""Context parallelism: the ranks of a group have slices of the same sequences, which together are all of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import GROUPS, full_pack, write_documents
from torch_table_loader import ConfigError, ConfigTypeError, MixedDataset, Pack, StructuredDataset, TableLoader

A_TOKEN = ("input_ids", "labels", "position_ids", "doc_ids", "weight")
WHOLE = ("cu_seqlens", "max_seqlen")


class Mesh:
    """One dimension of a DeviceMesh, as this rank sees it."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks

    def get_local_rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return str(root)


def make(table: str, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        return StructuredDataset.create_dataloader(table, pack=pack, batch_size=2, check_plan=False, **options)[0]


def joined(slices: list[Any], order: str) -> Any:
    """Put the slices of all ranks back in their places, [sequences, seq_len, ...]."""
    if order == "contiguous":
        return np.concatenate(slices, axis=1)
    halves = [np.split(values, 2, axis=1) for values in slices]
    return np.concatenate([half[0] for half in halves] + [half[1] for half in reversed(halves)], axis=1)


@pytest.mark.parametrize("order", ["balanced", "contiguous"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("strategy", "shuffle"), [("concat", True), ("best_fit", "rows"), ("windows", "rows")])
@daily(6)
def test_slices_of_all_ranks_are_the_whole(table: str, order: Any, ranks: int, strategy: Any, shuffle: Any) -> None:
    about: dict[str, Any] = {"seq_len": 16, "strategy": strategy, "labels": "shifted", "aligned": ["weight"]}
    whole = make(table, full_pack(**about), shuffle=shuffle)
    slices = [
        make(table, full_pack(**about, context=(rank, ranks), context_order=order), shuffle=shuffle)
        for rank in range(ranks)
    ]
    steps = 0
    for base, *parts in zip(whole, *slices, strict=True):
        steps += 1
        for name in set(base).intersection(A_TOKEN):
            values = [np.asarray(part[name]) for part in parts]
            assert all(len(value[0]) == 16 // ranks for value in values)
            assert (joined(values, order) == np.asarray(base[name])).all()
        for name in WHOLE:
            assert all(np.array_equal(part[name], base[name]) for part in parts)
    assert steps == len(whole)
    assert len({str(loader.state_dict()) for loader in (whole, *slices)}) == 1


def test_a_mesh_and_a_mixture(table: str) -> None:
    packs = [Pack(seq_len=8, labels="shifted", context=given) for given in (None, (1, 2), Mesh(1, 2))]
    ids = []
    for pack in packs:
        with meant_warnings():
            sources = {name: StructuredDataset(table, pack=pack, shuffle="splits") for name in ("a", "b")}
            loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=2, check_plan=False)
        ids.append(np.concatenate([batch["input_ids"] for batch in loader]))
    assert (ids[1] == ids[0][:, 2:6]).all()
    assert (ids[2] == ids[1]).all()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"context": 3}, ConfigTypeError, r"must be \(rank, ranks\)"),
        ({"context": (2, 2)}, ConfigError, "rank of context must be"),
        ({"context": (0, 0)}, ConfigError, "ranks of context must be"),
        ({"context": (0, 3)}, ConfigError, "a multiple of 6"),
        ({"context": (0, 16), "context_order": "balanced"}, ConfigError, "a multiple of 32"),
        ({"seq_len": {0: 16, 2: 9}, "context": (0, 2)}, ConfigError, "got 9 tokens"),
        ({"context": (0, 2), "labels": "hf"}, ConfigError, "are shifted by the model"),
        ({"context": (0, 2), "output": "flash"}, ConfigError, "makes one flat row"),
        ({"context": (0, 2), "spans": ["s"]}, ConfigError, "spans lie over slices"),
        ({"context": (0, 2), "context_order": "megatron"}, ConfigError, "context_order must be one of"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Pack(**{"seq_len": 16, "labels": "shifted", **options})
