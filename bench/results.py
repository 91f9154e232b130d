"""What was measured as JSON, one file a machine: a duel that is measured anew takes the place of its old result."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.pairing import best_rate, cpu_micros
from bench.report import Outcome, Row, load, machine, processor, versions

FOLDER = Path(__file__).parent / "results"


def keep(rows: Sequence[Row], outcomes: Sequence[Outcome], folder: Path = FOLDER) -> Path:
    """Write results into this machine's file; those that were not measured now stay.

    Args:
        rows: duels; those that could not be fought are kept with the reason.
        outcomes: other numbers.
        folder: of the files.

    Returns:
        The file. ``machine`` says which machine it was; ``duels`` and ``numbers`` list what was measured, each with
        its time, the load of the machine and the versions. A ratio is the speed of the left over that of the right.
    """
    path = folder / f"{slug(processor())}.json"
    before = json.loads(path.read_text()) if path.exists() else {"duels": [], "numbers": []}
    measured = {"at": f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M} UTC", "load": load(), "versions": versions()}
    content = {
        "machine": machine(),
        "duels": _merged(before["duels"], [_duel(row) | measured for row in rows], "table", "batch", "left", "asked"),
        "numbers": _merged(before["numbers"], [_number(each) | measured for each in outcomes], "name"),
    }
    folder.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)
    return path


def slug(text: str) -> str:
    """Return a text as part of a file's name.

    >>> slug("2 cores of Intel(R) Xeon(R) Processor")
    '2-cores-of-intel-r-xeon-r-processor'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _merged(before: list[dict[str, Any]], now: list[dict[str, Any]], *key: str) -> list[dict[str, Any]]:
    """Replace the entries that have the key of a new one, in their places; others come behind."""
    found = {tuple(entry[name] for name in key): entry for entry in (*before, *now)}
    return list(found.values())


def _duel(row: Row) -> dict[str, Any]:
    entry = {"table": row.table, "batch": row.batch_size, "left": row.left, "right": row.right}
    entry |= {"asked": row.asked or row.right}
    if row.pairs is None:
        return entry | {"remark": row.remark, "bar": row.bar, "met": row.met}
    ratios = row.pairs.ratios
    sides = (row.pairs.left, row.pairs.right)
    return entry | {
        "ratio": round(row.pairs.median, 4),
        "range": [round(min(ratios), 4), round(max(ratios), 4)],
        "pairs": len(ratios),
        "rows_per_second": [round(best_rate(side)) for side in sides],
        "cpu_micros_per_row": [round(cpu_micros(side), 5) for side in sides],
        "bar": row.bar,
        "met": row.met,
    }


def _number(outcome: Outcome) -> dict[str, Any]:
    return {"name": outcome.name, "value": outcome.value, "bar": outcome.bar, "met": outcome.met}


__all__ = ["FOLDER", "keep", "slug"]
