"""What tests of sequences share with those of tables: the tables of all modes, and stores that are far away."""

from __future__ import annotations

from tests.torch.conftest import far, machine, no_accelerator_left, small_gathers, tables, url

__all__ = ["far", "machine", "no_accelerator_left", "small_gathers", "tables", "url"]
