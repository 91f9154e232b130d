"""Paths as text: the folder above, the fixed part of a glob, and what several paths have in common."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence


def parent_of(path: str) -> str:
    """Return the folder of a path; for a URL, without its query."""
    return path.partition("?")[0].rpartition("/")[0] if "://" in path else path.rpartition("/")[0]


def static_root(pattern: str) -> str:
    """Return the part of a glob before its first wildcard."""
    segments = pattern.split("/")
    magic = next(index for index, segment in enumerate(segments) if glob.has_magic(segment))
    return "/".join(segments[:magic])


def is_shallow(relative: str) -> bool:
    """Return whether a glob, below its fixed part, matches files of a single folder only."""
    return "/" not in relative and "**" not in relative


def prefixes_of(name: str) -> Iterable[str]:
    """Return a relative name and the directories above it: ``a/b/c``, ``a``, ``a/b``."""
    yield name
    for index, character in enumerate(name):
        if character == "/":
            yield name[:index]


def common_root(roots: Sequence[str]) -> str:
    """Return the deepest directory that contains all roots.

    >>> common_root(["/t/day=1", "/t/day=2"]), common_root(["/t", "/t/x"]), common_root(["/t/ab", "/t/a"])
    ('/t', '/t', '/t')
    """
    shared = [root.split("/") for root in roots]
    depth = 0
    while all(depth < len(parts) for parts in shared) and len({parts[depth] for parts in shared}) == 1:
        depth += 1
    return "/".join(shared[0][:depth])
