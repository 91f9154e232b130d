"""The table of faults keeps up with the code, and the tool counts the test functions that see a fault."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tools.faults import FAULTS, Fault
from tools.plant import ROOT, check, copied, failing, place_of, planted

PACKAGE = "def double(number):\n    return 2 * number\n\n\ndef half(number):\n    return number / 2\n"
CONFTEST = """
from hypothesis import settings

settings.register_profile("unshrunk")
"""
TESTS = """
import os
import time

import pytest
from torch_table_loader.testing import double, half


@pytest.mark.parametrize("number", [1, 2])
def test_twice(number):
    assert double(number) == number + number


def test_zero_is_its_double():
    assert double(0) == 0


def test_half():
    assert half(4) == 2


def test_the_double_of_a_half():
    if double(half(8)) != 8:
        os._exit(1)


class TestBoth:
    def test_the_half_of_a_double(self):
        assert half(double(3)) == 3
"""


def fault(name: str, old: str, new: str) -> Fault:
    return Fault(1, name, "testing.py", old, new, ("tests/test_numbers.py",))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    texts = {"torch_table_loader/testing.py": PACKAGE, "tests/conftest.py": CONFTEST, "tests/test_numbers.py": TESTS}
    texts |= {"torch_table_loader/__init__.py": "", "tests/__init__.py": "", ".gitignore": "ignored\n", "ignored": ""}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = ["git", "init", "--quiet", str(tmp_path)]
    subprocess.run(command, check=True)
    return tmp_path


@pytest.mark.parametrize("known", FAULTS, ids=lambda known: known.name)
def test_a_fault_fits_the_code_and_its_tests_are_there(known: Fault) -> None:
    text = place_of(known, ROOT).read_text("utf-8")
    assert known.old != known.new
    ast.parse(text.replace(known.old, known.new))
    for test in known.tests:
        path, _, name = test.partition("::")
        names = {part.name for part in ast.parse((ROOT / path).read_text("utf-8")).body if hasattr(part, "name")}
        assert not name or name in names, test


def test_each_promise_has_faults_and_each_fault_a_name_of_its_own() -> None:
    assert {known.promise for known in FAULTS} == set(range(1, 11))
    assert max(Counter(known.name for known in FAULTS).values()) == 1
    assert max(Counter((known.file, known.old, known.new) for known in FAULTS).values()) == 1


def test_a_fault_stands_in_the_code_as_long_as_it_is_planted(checkout: Path) -> None:
    path = checkout / "torch_table_loader" / "testing.py"
    with planted(fault("thrice", "2 * number", "3 * number"), checkout):
        assert path.read_text() == PACKAGE.replace("2 * number", "3 * number")
    assert path.read_text() == PACKAGE
    with pytest.raises(LookupError, match="must have its text once, has it 2 times: 'return'"):
        place_of(fault("twice", "return", "yield"), checkout)


def test_a_copy_leaves_out_what_git_ignores(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = copied(checkout, tmp_path_factory.mktemp("copy"))
    assert sorted(path.name for path in copy.iterdir()) == [".gitignore", "tests", "torch_table_loader"]


@pytest.mark.slow
def test_functions_that_fail_or_end_the_process_have_seen_a_fault(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [
        fault("a half is a third", "number / 2", "number / 3"),
        fault("the double of zero is one", "2 * number", "2 * number or 1"),
        fault("nothing is returned", "return 4", "return 5"),
    ]
    assert not check(faults, checkout)
    shown = capsys.readouterr().out
    assert "seen   a half is a third: by 2 test functions, 2 of them public" in shown
    assert "MISSED the double of zero is one: by 1 test functions, 1 of them public" in shown
    assert "GONE   nothing is returned" in shown
    with planted(faults[0], checkout):
        seen = failing(checkout, ["tests/test_numbers.py"])
    assert seen == {f"tests/test_numbers.py::{name}" for name in ("test_half", "test_the_double_of_a_half")}


@pytest.mark.slow
def test_what_pytest_cannot_run_is_no_result(checkout: Path) -> None:
    with planted(fault("no Python", "def half", "def half half"), checkout), pytest.raises(RuntimeError, match="ended"):
        failing(checkout, ["tests/test_numbers.py"])
