"""What one logger of this library said: other loggers may speak meanwhile, such as those of clients of stores."""

from __future__ import annotations

import logging

import pytest


def said_by(caplog: pytest.LogCaptureFixture, room: str, level: int = logging.WARNING) -> list[str]:
    """Return the messages of a logger, in order.

    Args:
        caplog: pytest's fixture.
        room: the logger's name after that of the package, such as "far.disk_cache".
        level: the least level of the messages.
    """
    name = f"torch_table_loader.{room}"
    return [entry.getMessage() for entry in caplog.records if entry.name == name and entry.levelno >= level]
