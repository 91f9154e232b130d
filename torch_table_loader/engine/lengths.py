"""How many batches there are, or why nobody can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_table_loader.engine.roles import Steps

UNCOUNTED = "the number of batches is not known: count_filtered=False gave the counting pass up"
ENDLESS = 'the number of batches has no end: stop="forever" was asked for; break after as many steps as you want'


def steps_of(plan: Steps) -> int:
    """Count a rank's batches; TypeError says why where nobody can."""
    if plan.endless or not plan.counted:
        raise TypeError(ENDLESS if plan.endless else UNCOUNTED)
    return plan.steps
