"""`cached_property` without a lock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    from contextlib import nullcontext
    from functools import cached_property as _Locked  # noqa: N812

    class cached_property(_Locked):  # noqa: N801
        """Python 3.11's holds one lock of all instances while it computes, which a forked worker finds held forever.

        Threads that ask at the same time may compute a value twice.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            super().__init__(compute)
            self.lock = nullcontext()


__all__ = ["cached_property"]
