"""`shuffle=True` mixes the documents of a packed stream: each batch draws on the whole of a table that lies sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.text.packing_reference import PackStrategy
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader
from torch_table_loader.engine.jobs.stream_job import MIXED_ORDER
from torch_table_loader.text.packed import PackedCodec

FILES, GROUPS, DOCUMENTS = 16, 4, 120
"""Documents of a row group; they lie sorted by their number."""
TOTAL = FILES * GROUPS * DOCUMENTS
STRATEGIES: list[PackStrategy] = ["concat", "pad", "best_fit"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 1 to 23 tokens, each of which has its document's number."""
    root = tmp_path_factory.mktemp("sorted documents")
    lengths = np.random.default_rng(1).integers(1, 24, TOTAL)
    numbers, size = np.arange(TOTAL), TOTAL // FILES
    for file in range(FILES):
        own = slice(file * size, (file + 1) * size)
        offsets = np.concatenate(([0], np.cumsum(lengths[own])))
        tokens = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), np.repeat(numbers[own], lengths[own]))
        pq.write_table(
            pa.table({"tokens": tokens, "number": numbers[own]}),
            root / f"{file:02}.parquet",
            row_group_size=DOCUMENTS,
        )
    return root


def make(root: Path, strategy: PackStrategy = "concat", **options: Any) -> TableLoader:
    given: dict[str, Any] = {
        "shuffle": True,
        "batch_size": 16,
        "num_workers": 2,
        "columns": ["number"],
        "show_progress": False,
    }
    pack = Pack(seq_len=48, strategy=strategy, block_docs=DOCUMENTS)
    return StructuredDataset.create_dataloader(str(root), pack=pack, check_plan=False, **(given | options))[0]


def batches_of(root: Path, strategy: PackStrategy, ranks: int = 1, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Return the documents of each step, of all ranks together."""
    loaders = [make(root, strategy, num_ranks=ranks, rank=rank, **options) for rank in range(ranks)]
    steps = zip(*loaders, strict=True)
    return [np.concatenate([np.asarray(batch["documents"]["number"]) for batch in step]) for step in steps]


def mixed(batches: list[np.ndarray[Any, Any]]) -> tuple[float, float, float]:
    """Measure as `shared/mix/mix.py` does: spread, drift and near, of full steps, which all but the last are."""
    full = batches[:-1]
    deviation, middle = TOTAL / np.sqrt(12), (TOTAL - 1) / 2
    spread = float(np.mean([batch.std() for batch in full])) / deviation
    size = float(np.mean([len(batch) for batch in full]))
    drift = float(np.sqrt(np.mean([(batch.mean() - middle) ** 2 for batch in full]))) / (deviation / np.sqrt(size))
    near = float(np.mean([np.mean(np.diff(np.unique(batch)) <= 2) for batch in full]))
    return spread, drift, near


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(2)
def test_batches_draw_on_documents_of_the_whole_table(table: Path, strategy: PackStrategy, ranks: int) -> None:
    spread, drift, near = mixed(batches_of(table, strategy, ranks, batch_size=16 // ranks))
    assert spread > 0.95
    # A sequence of best fit has documents of one block: a batch draws on as many places as it has sequences.
    most_drift, most_near = (2.5, 1.0) if strategy == "best_fit" else (1.5, 0.15)
    assert drift < most_drift
    assert near < most_near


@pytest.mark.parametrize("strategy", STRATEGIES)
@daily(1)
def test_splits_alone_do_not_mix_documents(table: Path, strategy: PackStrategy) -> None:
    spread, drift, _ = mixed(batches_of(table, strategy, shuffle="splits"))
    assert spread < 0.3
    assert drift > 3


def test_memory_sizes_windows_of_documents_that_span_row_groups(table: Path) -> None:
    options: dict[str, Any] = {"shuffle": "splits", "num_workers": 1, "split_size": 8 * DOCUMENTS}
    [plain, *_] = batches_of(table, "concat", **options)
    [own, *_] = batches_of(table, "concat", shuffle_buffer_size="64MiB", **options)
    assert len(np.unique(plain // DOCUMENTS)) <= 2
    assert len(np.unique(own // DOCUMENTS)) > 8


def test_a_window_of_so_many_documents_is_counted_in_tokens(table: Path) -> None:
    options: dict[str, Any] = {"pack": Pack(seq_len=48), "batch_size": 16, "shuffle_buffer_size": 1_000}
    notes = StructuredDataset(str(table), shuffle=True, **options).explain().notes
    [told] = [note for note in notes if "side by side" in note]
    tokens = int(told.split("windows of ")[1].split(" tokens")[0].replace(",", ""))
    assert 9_000 < tokens < 15_000


def test_an_order_of_older_releases_goes_on_with_splits_alone(table: Path) -> None:
    """They permuted splits under `shuffle=True` too, and their states say so."""
    state = make(table, shuffle="splits").state_dict()
    with pytest.raises(ResumeError, match="shuffle was True and is 'mixed"):
        make(table).load_state_dict(state)


def test_documents_of_a_window_are_copied_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go straight from what was read to their places; only the small ends of reads are copied before."""
    tokens = [0]
    joined: Any = PackedCodec.concat

    def counted(codec: PackedCodec, parts: Any) -> Any:
        tokens[0] += sum(part.num_rows for part in parts)
        return joined(codec, parts)

    monkeypatch.setattr(PackedCodec, "concat", counted)
    found = batches_of(table, "concat")
    assert len(np.unique(np.concatenate(found))) == TOTAL
    assert tokens[0] < 0.3 * 12 * TOTAL


def test_the_order_is_frozen(table: Path) -> None:
    """States name the order's version; another order needs another."""
    found = batches_of(table, "concat")
    assert [found[0][:6].tolist(), found[40][:4].tolist(), found[-1][-4:].tolist()] == [
        [4627, 5162, 5179, 5205, 5205, 5228],
        [2223, 2236, 5579, 5591],
        [7419, 7419, 7420, 7421],
    ]
    assert MIXED_ORDER == "mixed, version 2"


def test_a_source_of_a_mixture_has_windows_in_row_groups_alone(table: Path) -> None:
    options: dict[str, Any] = {"pack": Pack(seq_len=48), "shuffle_buffer_size": 8, "columns": []}
    mixture = {"a": StructuredDataset(str(table), shuffle=True, **options)}
    with pytest.raises(ConfigError, match=r'shuffle_buffer_size= beside shuffle=True.*shuffle="splits"'):
        MixedDataset.create_dataloader(mixture, {"a": 1}, batch_size=4)
    mixture = {"a": StructuredDataset(str(table), shuffle="splits", **options)}
    MixedDataset.create_dataloader(mixture, {"a": 1}, batch_size=4)
