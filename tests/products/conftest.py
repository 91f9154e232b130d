"""What tests of two guests share with those of tables: stores that are far away, and no accelerator that is left."""

from __future__ import annotations

from tests.torch.conftest import far, no_accelerator_left

__all__ = ["far", "no_accelerator_left"]
