"""`cached_property` without a lock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    from functools import cached_property as _Locked  # noqa: N812

    class cached_property(_Locked):  # noqa: N801
        """Python 3.11's holds one lock of all instances while it computes, which a forked worker finds held forever."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Return the value; threads that ask at the same time may compute it twice."""
            if instance is None:
                return self
            values = vars(instance)
            if self.attrname not in values:
                values[self.attrname] = self.func(instance)
            return values[self.attrname]


__all__ = ["cached_property"]
