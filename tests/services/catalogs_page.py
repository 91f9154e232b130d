"""The examples of docs/catalogs.md that need a service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_table_loader import IcebergDataset

PAGE = Path(__file__).parents[2] / "docs" / "catalogs.md"


def example(heading: str) -> str:
    """Return the example of a section that is not run with the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (found,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    return str(found)


def run(code: str, replaced: Mapping[str, str]) -> list[int]:
    """Run an example with the names of servers that are here; return the rows."""
    for written, here in replaced.items():
        assert written in code
        code = code.replace(written, here)
    names: dict[str, Any] = {"IcebergDataset": IcebergDataset}
    exec(code, names)  # noqa: S102 the page is ours
    return sorted(int(value) for batch in names["loader"] for value in next(iter(batch.values())))
