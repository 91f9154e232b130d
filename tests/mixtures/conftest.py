"""What tests of mixtures share with those of tables: no accelerator that is left."""

from __future__ import annotations

from tests.torch.conftest import no_accelerator_left

__all__ = ["no_accelerator_left"]
