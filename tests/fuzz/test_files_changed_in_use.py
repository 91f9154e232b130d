"""The law of files that change while they are read: the planned batches come, or an error that names the file.

No batch has a row that is not the planned one, and no process ends: what is mapped would do both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily, examples
from tests.fuzz.changing_cases import CHANGES, FORMS, Read, read_changed
from tests.launchers.sandbox import Outcome, Sandbox

MANY = 4
"""Moments of each change; effort multiplies them."""

MODES: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": "splits"},
    "rows": {"shuffle": "rows"},
}
SERVED: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "prefetch_batches": 2},
    "processes": {"num_workers": 2, "worker_type": "process", "prefetch_batches": 2},
}
MOMENTS = (3, 20, 38, 0)
"""How many batches come before a file is changed, of some forty, or of a hundred sequences."""

DAILY = {
    ("parquet", "shuffled"),
    ("csv", "in order"),
    ("arrow", "in order"),
    ("megatron", "rows"),
    ("fms-fsdp", "rows"),
}


def fault(planned: Read, outcome: Outcome) -> str:
    """Say how an outcome breaks the law; nothing if it does not."""
    if outcome.kind != "value":
        return f"{outcome.kind}: {outcome.error} {outcome.text}\n{outcome.trace}"
    found: Read = outcome.value
    if found.batches != planned.batches[: len(found.batches)]:
        wrong = sum(one != other for one, other in zip(found.batches, planned.batches, strict=False))
        return f"{wrong} of {len(found.batches)} batches are not those that were planned; {found.error or 'no error'}"
    if not found.error:
        return "" if len(found.batches) == len(planned.batches) else f"{len(found.batches)} batches and no error"
    return "" if "1." in found.error else f"names no file: {found.error}"


@pytest.mark.parametrize("served", SERVED)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
@daily(lambda served, mode, form: served == "here" and (form, mode) in DAILY)
def test_the_planned_batches_or_an_error(sandbox: Sandbox, tmp_path: Path, form: str, mode: str, served: str) -> None:
    options = {**MODES[mode], **SERVED[served]}
    cases = [
        (how, MOMENTS[(number + example) % len(MOMENTS)])
        for number, how in enumerate(CHANGES)
        for example in range(min(examples(MANY), len(MOMENTS)))
    ]
    asked = [(str(tmp_path / f"{number}"), form, options, *case) for number, case in enumerate([("", 0), *cases])]
    whole, *outcomes = sandbox.run_all(read_changed, asked)
    assert whole.kind == "value", whole
    assert not whole.value.error
    found = {case: fault(whole.value, outcome) for case, outcome in zip(cases, outcomes, strict=True)}
    assert {case: what for case, what in found.items() if what} == {}
    assert any(outcome.value.error for outcome in outcomes)
