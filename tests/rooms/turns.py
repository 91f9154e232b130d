"""Lets threads meet inside a module: each of its lines gives the others a turn."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def in_turns(module: ModuleType, work: Callable[[int], object], num_threads: int) -> None:
    """Call a function in threads that stop for a moment before each line of a module.

    Args:
        module: the module.
        work: called with the number of the thread.
        num_threads: how many there are.
    """

    def of_line(frame: FrameType, event: str, arg: Any) -> Any:
        time.sleep(0.0005)
        return of_line

    def of_call(frame: FrameType, event: str, arg: Any) -> Any:
        return of_line if frame.f_code.co_filename == module.__file__ else None

    def run(number: int) -> None:
        sys.settrace(of_call)
        try:
            work(number)
        finally:
            sys.settrace(None)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
