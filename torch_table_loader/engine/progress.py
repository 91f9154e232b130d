"""The progress bar, drawn where the caller asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def progress_bar(label: str, *, show: bool) -> Callable[[Iterable[Any], int | None], Iterable[Any]]:
    """Make a wrapper that draws a progress bar around an iterable, or leaves it as it is."""
    if not show:
        return lambda items, _total: items
    from tqdm.auto import tqdm

    return lambda items, total: tqdm(items, desc=label, total=total)
