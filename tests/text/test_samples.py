"""What a batch counts, as the core asks it: sequences by their pack, and rows by nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_table_loader import ConfigError, ConfigTypeError, LoaderOptions, Pack, StructuredDataset
from torch_table_loader.samples import ONE_BY_ONE, Samples

LENGTHS = {0: 8, 3: 16}


def samples_of(**options: Any) -> Samples:
    return LoaderOptions(**options).samples


@pytest.mark.parametrize("shuffle", [False, "splits", "rows"])
def test_without_a_pack_a_sample_is_a_row(shuffle: Any) -> None:
    samples = samples_of(shuffle=shuffle)
    assert samples is ONE_BY_ONE
    assert (samples.are_rows, samples.width, samples.rows_of(samples.width), samples.lengths) == (True, 0, 1, None)
    assert samples.reads(None) is None
    assert samples.compared == samples.bound == samples.functions == {}
    with pytest.raises(ConfigError, match="counts tokens"):
        samples.check_tokens("unit", "leave it out")


@pytest.mark.parametrize("shuffle", [False, "splits", "rows"])
@pytest.mark.parametrize("strategy", ["concat", "pad", "best_fit"])
def test_only_a_stream_of_documents_that_are_cut_anywhere_has_a_row_a_token(strategy: Any, shuffle: Any) -> None:
    samples = samples_of(shuffle=shuffle, pack=Pack(seq_len=8, strategy=strategy), batch_size=3)
    alone = strategy == "concat" and shuffle != "rows"
    assert (samples.are_rows, samples.width, samples.rows_of(8)) == (False, 8, 8 if alone else 1)
    assert samples.cut_anywhere is (strategy == "concat")
    assert samples.bound == ({} if strategy == "concat" else {"seq_len": 8})
    assert samples.changes_by_round is (strategy == "best_fit" and shuffle == "rows")


def test_widths_change_by_step() -> None:
    options = LoaderOptions(pack=Pack(seq_len=LENGTHS))
    samples = options.samples
    assert (samples.width, samples.longest) == (8, 16)
    assert samples.lengths is not None
    assert samples.lengths.values == LENGTHS
    assert options.of_length(16).samples.lengths is None
    assert options.of_length(16).samples.width == 16
    assert samples.compared == {"balance": None, "seq_len by step": ["steps", [0, 8], [3, 16]]}


def test_a_pack_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigTypeError, match=r"pack must be a Pack\(seq_len=\.\.\.\, \.\.\.\), got dict"):
        LoaderOptions(pack={"seq_len": 8})  # type: ignore[arg-type]


def test_samples_are_what_batches_count(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1] * 10] * 6}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), pack=Pack(seq_len=8), batch_size=2, num_workers=0, shuffle=False
    )
    with loader:
        assert [tuple(batch["input_ids"].shape) for batch in loader] == [(2, 8)] * 4
