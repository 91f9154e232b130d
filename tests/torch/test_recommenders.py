"""Lists as torchrec takes them: what `docs/columns.md` shows, on a stand-in with the constructor of torchrec 1.9."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tests.rooms.test_docs import ROOT, blocks_of
from torch_table_loader import Hash, StructuredDataset


class KeyedJaggedTensor:
    """Has what torchrec's has of the same name: its signature, and what it says of keys, values and lengths."""

    def __init__(
        self,
        keys: list[str],
        values: torch.Tensor,
        weights: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Any = None,
        **beyond: Any,
    ) -> None:
        """Check what torchrec demands, and lay the lists out by key, then by row."""
        assert [weights, offsets, stride, stride_per_key_per_rank] == [None] * 4
        assert not beyond
        assert lengths is not None
        assert len(lengths) % len(keys) == 0
        assert int(lengths.sum()) == len(values)
        rows = len(lengths) // len(keys)
        lists = iter(torch.split(values, lengths.tolist()))
        self.lists = {key: [next(lists).tolist() for _ in range(rows)] for key in keys}


def test_the_documented_call_makes_one_of_offsets(tmp_path: Path) -> None:
    names: dict[str, Any] = {"torch": torch}
    (block,) = (each for each in blocks_of(ROOT / "docs" / "columns.md") if "def keyed(" in each.text)
    exec(block.text, names)  # noqa: S102 the page is ours
    clicked = [[3, 1, 4], [], [1], [5, 9], []]
    tags = [["new"], ["new", "sale"], [], [], ["sale"]]
    pq.write_table(pa.table({"clicked": clicked, "tags": tags}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, batch_size=3, ragged="offsets", strings=Hash(1000), num_workers=1, check_plan=False
    )
    batches = [names["keyed"](KeyedJaggedTensor, batch, ["tags", "clicked"]) for batch in loader]
    assert [row for batch in batches for row in batch.lists["clicked"]] == clicked
    bucket = {len(row): row for batch in batches for row in batch.lists["tags"]}[2]
    coded = dict(zip(("new", "sale"), bucket, strict=True))
    assert [row for batch in batches for row in batch.lists["tags"]] == [[coded[tag] for tag in row] for row in tags]
