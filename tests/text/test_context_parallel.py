"""Context parallelism: the ranks of a group have slices of the same sequences, which together are all of each."""

from __future__ import annotations

from dataclasses import replace
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


def padded_as_transformer_engine_does(batch: Any, fills: dict[str, int], multiple: int) -> tuple[dict[str, Any], Any]:
    """Pad each document of a whole batch to a multiple, one by one, as its ``pad_thd_sequences_for_cp`` says."""
    documents = np.asarray(batch["doc_ids"]).reshape(-1)
    rows = np.repeat(np.arange(len(batch["doc_ids"])), np.asarray(batch["doc_ids"]).shape[1])
    lengths, found = [], {name: [] for name in fills}  # type: ignore[var-annotated]
    for number in range(documents.max() + 1):
        inside = np.flatnonzero(documents == number)
        assert len(set(rows[inside])) == 1
        lengths.append(len(inside))
        for name, fill in fills.items():
            values = np.asarray(batch[name]).reshape(len(documents), -1)[inside]
            more = np.full((-len(inside) % multiple, values.shape[1]), fill, values.dtype)
            found[name].append(np.concatenate([values, more]))
    return {name: np.concatenate(each) for name, each in found.items()}, np.array(lengths)


def slices_as_transformer_engine_takes_them(edges: Any, rank: int, ranks: int) -> list[int]:
    """Return the places that its ``thd_get_partitioned_indices`` gives a rank of padded documents, one by one."""
    taken: list[int] = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        chunk = (stop - start) // (2 * ranks)
        for number in (rank, 2 * ranks - 1 - rank):
            taken += range(start + number * chunk, start + (number + 1) * chunk)
    return taken


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("strategy", "shuffle"), [("concat", True), ("best_fit", "rows"), ("pad", "rows")])
@daily(4)
def test_documents_are_cut_as_transformer_engine_cuts_them(table: str, strategy: Any, shuffle: Any, ranks: int) -> None:
    most = 9 if strategy == "best_fit" else None
    about: dict[str, Any] = {"seq_len": 13, "strategy": strategy, "labels": "shifted", "max_docs_per_row": most}
    options = {"shuffle": shuffle, "num_workers": 2, "columns": ["id"]}
    whole = make(table, full_pack(**about, aligned=["weight"], pad_id=7), **options)
    slices = [
        make(
            table,
            full_pack(**about, aligned=["weight"], pad_id=7, context=(rank, ranks), context_order="documents"),
            **options,
        )
        for rank in range(ranks)
    ]
    fills = {"input_ids": 7, "labels": -100, "doc_ids": -1, "weight": 0}
    steps = 0
    for base, *parts in zip(whole, *slices, strict=True):
        steps += 1
        padded, lengths = padded_as_transformer_engine_does(base, fills, 2 * ranks)
        edges = np.concatenate([[0], np.cumsum(lengths)])
        padded_edges = np.concatenate([[0], np.cumsum(-(-lengths // (2 * ranks)) * 2 * ranks)])
        for rank, part in enumerate(parts):
            own, padded_own = np.asarray(part["cu_seqlens"]), np.asarray(part["cu_seqlens_padded"])
            assert own.dtype == padded_own.dtype == np.dtype(np.int32)
            assert own[: len(edges)].tolist() == edges.tolist()
            assert padded_own[: len(edges)].tolist() == padded_edges.tolist()
            if most is None:
                assert len(own) == len(padded_own) == len(edges)
            else:
                assert len(own) == len(padded_own) == len(base["doc_ids"]) * most + 1
                assert set(padded_own[len(edges) :].tolist()) <= {padded_edges[-1]}
            assert part["max_seqlen"] == np.diff(padded_edges).max()
            taken = slices_as_transformer_engine_takes_them(padded_edges, rank, ranks)
            for name in fills:
                values = np.asarray(part[name])
                assert values.shape[:2] == (1, padded_edges[-1] // ranks)
                assert values.reshape(values.shape[1], -1).tolist() == padded[name][taken].tolist(), name
            inside = np.concatenate([np.arange(size) for size in np.diff(padded_edges)])
            assert np.asarray(part["position_ids"])[0].tolist() == inside[taken].tolist()
            assert np.asarray(part["documents"]["id"]).tolist() == np.asarray(base["documents"]["id"]).tolist()
    assert steps == len(whole)
    assert len({str(loader.state_dict()) for loader in (whole, *slices)}) == 1


def test_one_sequence_has_slices_of_its_documents(table: str) -> None:
    pack = Pack(seq_len=8, strategy="windows", labels="shifted", output=["input_ids", "cu_seqlens"])
    about: dict[str, Any] = {"shuffle": "rows", "row_store": "memory", "check_plan": False}
    with meant_warnings():
        whole = StructuredDataset(table, pack=pack, **about).as_map()[0]
        own = replace(pack, context=(1, 2), context_order="documents")
        part = StructuredDataset(table, pack=own, **about).as_map()[0]
    edges = whole["cu_seqlens"].tolist()
    padded = [0, *np.cumsum([-(-size // 4) * 4 for size in np.diff(edges)]).tolist()]
    assert (part["cu_seqlens"].tolist(), part["cu_seqlens_padded"].tolist()) == (edges, padded)
    assert part["input_ids"].shape == (padded[-1] // 2,)


@pytest.mark.parametrize("output", [None, "hf", "megatron", "segment_ids", ["input_ids", "cu_seqlens"]], ids=str)
def test_documents_are_cut_for_every_output(table: str, output: Any) -> None:
    pack = Pack(seq_len=13, labels="shifted", output=output, context=(1, 2), context_order="documents")
    batch = next(iter(make(table, pack)))
    edges, positions = {"cu_seqlens", "cu_seqlens_padded"}, {"labels", "position_ids"}
    expected = {
        "None": {"input_ids", "labels"},
        "hf": {"input_ids", *positions},
        "segment_ids": {"input_ids", "segment_ids", *positions},
        "megatron": {"tokens", "loss_mask", "max_seqlen", *positions, *edges},
    }.get(str(output), {"input_ids", *edges})
    assert set(batch) == expected
    assert {tuple(batch[name].shape) for name in expected - edges - {"max_seqlen"}} == {(1, batch_tokens(batch))}
    if output == "megatron":
        assert (batch["loss_mask"][batch["labels"] == 0] == 0).all()


def batch_tokens(batch: Any) -> int:
    """Return the tokens of a rank's slices."""
    return int(next(batch[name] for name in ("input_ids", "tokens") if name in batch).shape[1])
