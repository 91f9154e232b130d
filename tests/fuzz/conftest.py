"""What the laws of damage share: one process that forks all cases, since what they need takes seconds to import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz import cases, catalog_cases, changing_cases, store_cases, table_cases
from tests.launchers.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    of_all = (cases, catalog_cases, changing_cases, store_cases, table_cases)
    with Sandbox(*(module.__name__ for module in of_all)) as started:
        yield started
