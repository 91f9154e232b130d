"""Imports of today that cross into a guest. `test_levels.py` refuses others, and those that are no longer needed.

Each goes with the step of the rebuild that no longer needs it, and none comes.
"""

_TABLE = """
cli.writing: text.token_table
"""
"""Modules, and the modules of guests that each imports and that its own guest does not have."""

BORDERS = frozenset(
    (line.partition(": ")[0], target) for line in _TABLE.split("\n") for target in line.partition(": ")[2].split()
)
"""These as pairs: who imports, and what."""
