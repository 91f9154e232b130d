"""Tensor shards on S3: fetched ahead, each sample once, and damage left out as it is from a local folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from tests.tables.tensor_shards import sample, tensor
from torch_table_loader import StructuredDataset

pytestmark = pytest.mark.usefixtures("earlier_loaders_gone")


def test_shards_on_s3_come_as_local_ones_do(
    tmp_path: Path, s3_client: Any, bucket: str, s3_options: dict[str, Any]
) -> None:
    for file in range(3):
        samples = [
            sample([tensor("id", np.int64(number)), tensor("x", np.full((number % 4, 2), number, np.float32))])
            for number in range(file * 20, file * 20 + 20)
        ]
        data = b"".join(samples)[: None if file else -3]
        (tmp_path / f"{file}.pb").write_bytes(data)
        s3_client.put_object(Bucket=bucket, Key=f"shards/{file}.pb", Body=data)
    found = []
    far: dict[str, Any] = {"storage_options": s3_options}
    near: dict[str, Any] = {}
    for path, options in ((str(tmp_path), near), (f"s3://{bucket}/shards", far)):
        with pytest.warns(UserWarning, match="sample 19 and what follows it of 0.pb"):
            loader, dataset = StructuredDataset.create_dataloader(
                path,
                "tensorproto",
                batch_size=7,
                num_workers=2,
                shuffle="splits",
                split_size=5,
                on_error="skip",
                filters=pc.field("id") < 50,
                ragged="offsets",
                **options,
            )
        found.append([(batch["id"].tolist(), batch["x"].values.tolist()) for batch in loader])
        assert len(loader) == len(found[-1])
        assert [part.file for part in dataset.left_out] == ["0.pb"]
    assert found[0] == found[1]
    assert sorted(number for ids, _ in found[0] for number in ids) == [*range(19), *range(20, 50)]
    assert loader.metrics().fetch.unplanned == 0
