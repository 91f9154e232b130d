"""The calls of the package that a deed makes in this thread: what others do depends on time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch_table_loader

_ROOT = f"{Path(torch_table_loader.__file__).parent}/"


class Call(NamedTuple):
    """A call of a function of the package, and who made it."""

    code: CodeType
    caller: CodeType | None

    @property
    def file(self) -> str:
        """Where the function is."""
        return self.code.co_filename


def made_by(deed: Callable[[], Any]) -> list[Call]:
    """Return the calls that a deed makes, in their order."""
    found: list[Call] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            found.append(Call(frame.f_code, frame.f_back and frame.f_back.f_code))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        deed()
    finally:
        sys.setprofile(before)
    assert found
    return found
