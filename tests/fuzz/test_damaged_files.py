"""The law of damaged files: the right rows, or an error of this library that names the file; never anything else.

To repeat a case that failed, in this process: ``python -m tests.fuzz.test_damaged_files "arrow file" 17``.
To try many, each in a process of its own: ``python -m tests.fuzz.test_damaged_files "arrow file" 0 1000``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily, examples
from tests.fuzz import cases
from tests.fuzz.cases import Rows, read_damaged
from tests.fuzz.mutations import damaged
from tests.launchers.sandbox import Outcome, Sandbox, outcome_of
from tests.tables.every_format import ROWS, SAMPLES, Sample

FILE = "damaged-file"
FEW, MANY = 4, 25
"""Cases of each kind of file, in every run and in long ones; effort multiplies both."""


def options_of(seed: int) -> dict[str, object]:
    """How a case is read. Tensors are refused for many types, so that most cases take Python objects."""
    output = ("dict", "dict", "arrow", "torch")[seed % 4]
    return {"output_format": output, "num_workers": 0} | ({"nulls": "mask"} if output == "torch" else {})


def damage(sample: Sample, seed: int) -> tuple[bytes, str]:
    """Damage a file anywhere, or one with checksums where these protect it."""
    body = sample.data[: sample.checked]
    data, what = damaged(body or sample.data, seed)
    return data + sample.data[len(body) :] if body else data, what


def case(folder: str, sample: Sample, data: bytes, options: dict[str, object]) -> tuple[Any, ...]:
    """Give what `read_damaged` takes."""
    read = sample.suffix if sample.read is None else sample.read
    return f"{folder}/{FILE}", sample.format, {**sample.beside, sample.suffix: data}, read, options


def fault(sample: Sample, sound: Rows, outcome: Outcome, options: dict[str, object]) -> str:
    """Say how an outcome breaks the law; nothing if it does not."""
    if outcome.kind == "ours":
        return "" if FILE in outcome.text or outcome.error == "ConfigError" else f"names no file: {outcome.text}"
    if outcome.kind != "value":
        return f"{outcome.kind}: {outcome.error} {outcome.text}\n{outcome.trace}"
    rows: Rows = outcome.value
    if sample.counted and rows.count != ROWS:
        return f"{rows.count} rows of {ROWS}"
    if sample.checked and options["output_format"] == "dict" and rows.digest != sound.digest:
        return "other values than the file's, which has checksums"
    return ""


def faults(sandbox: Sandbox, name: str, path: Path, seeds: range) -> list[str]:
    sample = SAMPLES[name]()
    damages = [(sample.data, "nothing"), *(damage(sample, seed) for seed in seeds)]
    options = [options_of(0), *map(options_of, seeds)]
    sound, *outcomes = sandbox.run_all(
        read_damaged, [case(str(path), sample, data, how) for (data, _), how in zip(damages, options, strict=True)]
    )
    assert sound.kind == "value", sound
    assert sound.value.count == ROWS
    return [
        f"{name!r}, seed {seed} ({what}), as {how['output_format']}: {said}"
        for seed, (_, what), how, outcome in zip(seeds, damages[1:], options[1:], outcomes, strict=True)
        if (said := fault(sample, sound.value, outcome, how))
    ]


@pytest.mark.parametrize("name", SAMPLES)
@daily(4)
def test_a_damaged_file_gives_its_rows_or_an_error_that_names_it(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    assert faults(sandbox, name, tmp_path, range(FEW)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@daily(3)
def test_many_damaged_files(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    assert faults(sandbox, name, tmp_path, range(FEW, FEW + examples(MANY))) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) == 4:  # many, with a report
            with Sandbox(cases.__name__) as box:
                for line in faults(box, sys.argv[1], Path(folder), range(int(sys.argv[2]), int(sys.argv[3]))):
                    print(line, flush=True)
        else:
            one = SAMPLES[sys.argv[1]]()
            broken, done = damage(one, int(sys.argv[2]))
            print(done)
            print(outcome_of(read_damaged, case(folder, one, broken, options_of(int(sys.argv[2])))))
