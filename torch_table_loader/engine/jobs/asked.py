"""What the caller asks of epochs that run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Asked:
    """What the caller asks of epochs that run; `Job.current` takes it up.

    Args:
        changes: how often something else was asked for.
    """

    changes: int = 0


NOTHING = Asked()
"""What is asked of jobs that nobody can ask for anything."""
