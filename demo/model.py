"""A small recommender in the manner of DLRM: embeddings of hashed ids, and a perceptron over them and the floats."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from demo.make_clicks import CATEGORICAL, DENSE

_BUCKETS = 4096
_WIDTH = 8
_HASH = 2_654_435_761


class ClickModel(nn.Module):
    """Predicts the logit of a click."""

    def __init__(self) -> None:
        """Lay out one table for all ids, each column with its own buckets."""
        super().__init__()
        self.embeddings = nn.Embedding(_BUCKETS * len(CATEGORICAL), _WIDTH)
        nn.init.normal_(self.embeddings.weight, std=0.05)
        self.perceptron = nn.Sequential(
            nn.Linear(len(DENSE) + _WIDTH * len(CATEGORICAL), 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.first_bucket: torch.Tensor
        self.register_buffer("first_bucket", torch.arange(len(CATEGORICAL)) * _BUCKETS)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Give a logit a row.

        Args:
            batch: the table's columns by name, each of shape ``(rows,)``.

        Returns:
            float32 of shape ``(rows,)``.
        """
        ids = torch.stack([batch[name] for name in CATEGORICAL], dim=1).long()
        buckets = (ids * _HASH >> 16) % _BUCKETS + self.first_bucket
        embedded = self.embeddings(buckets).flatten(start_dim=1)
        dense = torch.stack([batch[name] for name in DENSE], dim=1)
        logits: torch.Tensor = self.perceptron(torch.cat((dense, embedded), dim=1))
        return logits.squeeze(1)


__all__ = ["ClickModel"]
