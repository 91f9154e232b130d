"""The law of damaged tables: the right rows, or an error of this library that names a file; never anything else.

To repeat a case that failed: ``python -m tests.fuzz.test_damaged_iceberg v2 "data manifest" 17``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily, examples
from tests.fuzz import table_cases
from tests.fuzz.table_cases import read_table
from tests.fuzz.tables_to_damage import PLACES, Lake, damage, is_another, make_lake
from tests.launchers.sandbox import Outcome, Sandbox, outcome_of

FEW, MANY = 4, 25
"""Cases of each file of each table, in every run and in long ones; effort multiplies the latter."""

CASES = [(name, place) for name, places in PLACES.items() for place in places]


def options_of(seed: int) -> dict[str, Any]:
    """How a case is read."""
    return {"footers": ("eager", "lazy")[seed % 2], "filtered": seed % 5 == 4}


def arguments(lake: Lake, place: str, data: bytes | None, seed: int) -> tuple[Any, ...]:
    file = None if data is None else (str(lake.files[place]), data)
    return str(lake.root), str(lake.sound), lake.location, file, options_of(seed)


def fault(lake: Lake, place: str, data: bytes, sound: Outcome, outcome: Outcome) -> str:
    """Say how an outcome breaks the law; nothing if it does not."""
    if outcome.kind == "ours":
        names = [str(lake.root), *(path.name for path in lake.sound.rglob("*") if path.is_file())]
        # A damaged path is named as it is: there is nothing, or something that is not a file.
        path = outcome.error in ("MissingFileError", "StorageError", "ConfigError")
        path = path or any(said in outcome.text for said in ("expected a file", "paths without NUL"))
        return "" if path or any(name in outcome.text for name in names) else f"names no file: {outcome.text}"
    if outcome.kind != "value":
        return f"{outcome.kind}: {outcome.error} {outcome.text}\n{outcome.trace}"
    if outcome.value == sound.value or is_another(lake, place, data):
        return ""
    return f"{outcome.value.count} rows, expected {sound.value.count} and the same values"


def faults(sandbox: Sandbox, name: str, place: str, folder: Path, seeds: range) -> tuple[list[str], int]:
    """Read a table as often as there are seeds; what breaks the law, and how many cases there were."""
    lake = make_lake(name, folder)
    [sound] = sandbox.run_all(read_table, [arguments(lake, place, None, 0)])
    assert sound.kind == "value", sound
    assert sound.value.count > 0
    damages = [(seed, made) for seed in seeds if (made := damage(lake, place, seed)) is not None]
    outcomes = sandbox.run_all(read_table, [arguments(lake, place, data, seed) for seed, (data, _) in damages])
    found = [
        f"{name} {place!r}, seed {seed} ({what}), {options_of(seed)}: {said}"
        for (seed, (data, what)), outcome in zip(damages, outcomes, strict=True)
        if (said := fault(lake, place, data, sound, outcome))
    ]
    return found, len(damages)


@pytest.mark.parametrize(("name", "place"), CASES)
@daily(2)
def test_a_damaged_table_gives_its_rows_or_an_error_that_names_a_file(
    sandbox: Sandbox, tmp_path: Path, name: str, place: str
) -> None:
    found, num_cases = faults(sandbox, name, place, tmp_path, range(FEW))
    assert found == []
    assert num_cases > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), CASES)
@daily(3)
def test_many_damaged_tables(sandbox: Sandbox, tmp_path: Path, name: str, place: str) -> None:
    wanted = examples(MANY)
    found, num_cases = faults(sandbox, name, place, tmp_path, range(FEW, FEW + wanted))
    assert found == []
    assert num_cases > wanted / 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if len(sys.argv) == 5:  # many, with a report
            with Sandbox(table_cases.__name__) as box:
                lines, count = faults(
                    box, sys.argv[1], sys.argv[2], Path(made), range(int(sys.argv[3]), int(sys.argv[4]))
                )
                print(*lines, f"{count} cases", sep="\n")
        else:
            one = make_lake(sys.argv[1], Path(made))
            broken = damage(one, sys.argv[2], int(sys.argv[3]))
            if broken is not None:
                print(broken[1])
                print(outcome_of(read_table, arguments(one, sys.argv[2], broken[0], int(sys.argv[3]))))
