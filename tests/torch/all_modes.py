"""All modes of the loader: those of tables, and those of sequences where this build makes them."""

from __future__ import annotations

from pathlib import Path

from tests.guests import is_here
from tests.torch.modes import TABLE_MODES, Mode, write_tables


def _modes() -> list[Mode]:
    if not is_here("text"):
        return TABLE_MODES
    from tests.text.packed_modes import PACKED_MODES

    return [*TABLE_MODES, *PACKED_MODES]


def write_all_tables(root: Path) -> None:
    """Write the tables that the modes read."""
    write_tables(root)
    if is_here("text"):
        from tests.text.packed_modes import write_token_tables

        write_token_tables(root)


MODES = _modes()
