"""The law of damaged row stores: the right rows, or an error of this library that names the file and the remedy.

Other rows come only of what the documentation says is not compared: see `NOT_COMPARED`.
To try many, each in a process of its own: ``python -m tests.fuzz.test_damaged_stores tokens rotten 0 1000``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.effort import daily, examples
from tests.fuzz import store_cases
from tests.fuzz.cases import Rows
from tests.fuzz.mutations import damaged
from tests.fuzz.store_cases import KINDS, WHERES, Where, prepare, read_store
from tests.launchers.sandbox import Outcome, Sandbox

FEW, MANY = 1, 5
"""Cases of each file of each store, in every run and in long ones; effort multiplies both."""

NOT_COMPARED: dict[Where, tuple[str, ...]] = {
    "touched": (),
    "rotten": ("records.bin",),
    "rotten and larger than memory": ("records.bin", "nulls.bin", "row_ids.bin", "codes.bin", "heap-", "values-"),
    "at a URL": (),
    "at a URL, by ranges": ("records.bin", "nulls.bin", "row_ids.bin", "codes.bin", "values-"),
}
"""The files of which other rows may come, by the beginnings of their names."""


def damage(data: bytes, seed: int) -> tuple[bytes, str]:
    """Damage a file; three in four keep its length, as rot does."""
    new, what = damaged(data, seed)
    if seed % 4 and len(new) != len(data):
        new = (new + data[len(new) :])[: len(data)]
    return new, what


def fault(name: str, where: Where, sound: Rows, outcome: Outcome) -> str:
    """Say how an outcome breaks the law; nothing if it does not."""
    if outcome.kind == "ours":
        told = name in outcome.text or (name == "manifest.json" and "manifest" in outcome.text)
        remedy = "remove" in outcome.text or "store verify" in outcome.text
        return "" if told and remedy else f"names no file, or no remedy: {outcome.error}: {outcome.text}"
    if outcome.kind != "value":
        return f"{outcome.kind}: {outcome.error} {outcome.text}\n{outcome.trace}"
    if outcome.value != sound and not name.startswith(NOT_COMPARED[where]):
        return f"other rows: {outcome.value.count}"
    return ""


def faults(sandbox: Sandbox, kind: str, where: Where, folder: Path, seeds: range) -> list[str]:
    """Read a damaged store as often as there are files and seeds; what breaks the law."""
    root = str(folder)
    made = sandbox.run(prepare, root, kind)
    assert made.kind == "value", made
    shutil.copytree(folder / "stores", folder / "sound")
    files = sorted(path for path in (folder / "sound").rglob("*") if path.is_file())
    cases = []
    for number, path in enumerate(files):
        if where.startswith("at a URL") and path.name.startswith("weights-"):
            continue  # those are kept on this machine
        for seed in seeds:
            new, what = damage(path.read_bytes(), 1000 * number + seed)
            cases.append((str(path.relative_to(folder / "sound")), new, f"seed {seed}: {what}"))
    outcomes = sandbox.run_all(
        read_store, [(root, kind, None, where), *((root, kind, (name, new), where) for name, new, _ in cases)]
    )
    assert outcomes[0].kind == "value", outcomes[0]
    assert outcomes[0].value.count > 0
    return [
        f"{kind}, {where}, {name}, {what}: {said}"
        for (name, _, what), outcome in zip(cases, outcomes[1:], strict=True)
        if (said := fault(Path(name).name, where, outcomes[0].value, outcome))
    ]


@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("kind", KINDS)
@daily(2)
def test_a_damaged_store_gives_its_rows_or_an_error_that_names_the_file(
    sandbox: Sandbox, tmp_path: Path, kind: str, where: Where
) -> None:
    assert faults(sandbox, kind, where, tmp_path, range(FEW)) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERES)
@pytest.mark.parametrize("kind", KINDS)
@daily(3)
def test_many_damaged_stores(sandbox: Sandbox, tmp_path: Path, kind: str, where: Where) -> None:
    assert faults(sandbox, kind, where, tmp_path, range(FEW, FEW + examples(MANY))) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in, Sandbox(store_cases.__name__) as box:
        for line in faults(box, sys.argv[1], sys.argv[2], Path(made_in), range(int(sys.argv[3]), int(sys.argv[4]))):  # type: ignore[arg-type]
            print(line, flush=True)
