"""Tokenizers of the tests, which worker processes find by their names."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

STOP_FILE = "TESTS_STOP_FILE"
"""Names a file in the environment; while it is there, tokenizers that heed it end their process or wait."""


def words(texts: list[str]) -> list[list[int]]:
    """Give each word a number below 50,000."""
    return [[zlib.crc32(word.encode()) % 50_000 for word in text.split()] for text in texts]


class Sized:
    """The same, with a vocabulary that is known."""

    vocab_size = 50_000

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return words(texts)


sized = Sized()


def numbers(texts: list[str]) -> list[list[int]]:
    """Take the texts for numbers."""
    return [list(map(int, text.split())) for text in texts]


def too_few(texts: list[str]) -> list[list[int]]:
    """Forget the last text."""
    return words(texts[:-1])


def dying(texts: list[str]) -> list[list[int]]:
    """End the process, while the stop file is there."""
    if Path(os.environ[STOP_FILE]).exists():
        os._exit(9)
    return words(texts)


def waiting(texts: list[str]) -> list[list[int]]:
    """Wait at a text with the word "late", while the stop file is there."""
    while any("late" in text for text in texts) and Path(os.environ[STOP_FILE]).exists():
        time.sleep(0.05)
    return words(texts)
