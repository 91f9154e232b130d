"""What two processes of Spark's TorchDistributor see of a table; the result is printed as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(table: str) -> list[dict[str, Any]]:
    """Take an epoch on this process; gives what every process saw."""
    import torch.distributed as dist

    from torch_table_loader import LoaderOptions, StructuredDataset
    from torch_table_loader.engine.rank_info import resolve_ranks

    dist.init_process_group("gloo")
    loader, _ = StructuredDataset.create_dataloader(
        table, batch_size=7, shuffle="splits", num_ranks="auto", even_ranks="balance"
    )
    found = resolve_ranks(LoaderOptions(num_ranks="auto"))
    mine = {"found": found, "told": len(loader), "rows": [batch["x"].tolist() for batch in loader]}
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, mine)
    dist.destroy_process_group()
    return seen


def tokenize(table: str) -> list[dict[str, Any]]:
    """Tokenize a table of text on all processes together; gives what each did."""
    import torch.distributed as dist

    from torch_table_loader import StructuredDataset, tokenize_table

    dist.init_process_group("gloo")
    dataset = StructuredDataset(table, num_ranks="auto", split_size=10, drop_last=True, columns=["text"])
    share = tokenize_table(dataset, f"{table}-tokens", "bytes")
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, {"written": share.written, "parts": share.num_parts, "rows": share.documents})
    dist.destroy_process_group()
    return seen


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        sys.stdout.write(
            f"seen: {json.dumps(distributor.run({'train': train, 'tokenize': tokenize}[sys.argv[1]], sys.argv[2]))}\n"
        )
    finally:
        spark.stop()
