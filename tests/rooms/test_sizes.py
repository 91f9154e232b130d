"""The sizes that tests make small: one record, all of which is documented and used."""

from __future__ import annotations

import ast
import multiprocessing
import re
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import torch_table_loader
from torch_table_loader import sizes as module
from torch_table_loader.sizes import Sizes, sizes
from torch_table_loader.testing import small_sizes

PACKAGE = Path(torch_table_loader.__file__).parent
NAMES = {field.name for field in fields(Sizes)}


def test_a_block_has_its_sizes_and_the_defaults_come_back() -> None:
    assert sizes() == Sizes()
    with small_sizes(gather_rows=12, late_s=0.5) as small:
        assert sizes() is small
        assert asdict(small) == asdict(Sizes()) | {"gather_rows": 12, "late_s": 0.5}
    assert sizes() == Sizes()


def test_an_inner_block_keeps_what_the_outer_one_set() -> None:
    with small_sizes(gather_rows=12, far_gap_bytes=5):
        with small_sizes(gather_rows=3):
            assert (sizes().gather_rows, sizes().far_gap_bytes) == (3, 5)
        assert (sizes().gather_rows, sizes().far_gap_bytes) == (12, 5)


def test_the_defaults_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), small_sizes(gather_rows=12):
        raise ZeroDivisionError
    assert sizes() == Sizes()


def test_a_function_has_the_sizes_at_each_call() -> None:
    @small_sizes(gather_rows=12)
    def measured() -> int:
        return sizes().gather_rows

    assert [measured(), sizes().gather_rows, measured()] == [12, Sizes().gather_rows, 12]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="_GATHER_ROWS"), small_sizes(_GATHER_ROWS=12):
        raise AssertionError("the block must not begin")
    assert sizes() == Sizes()


def test_threads_and_forked_processes_have_the_sizes_of_the_block() -> None:
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    tellers: list[Any] = [Thread(target=_tell, args=(answers,)), context.Process(target=_tell, args=(answers,))]
    with small_sizes(gather_rows=12):
        for teller in tellers:
            teller.start()
            teller.join()
    assert [answers.get() for _ in tellers] == [12, 12]


def _tell(answers: Any) -> None:
    answers.put(sizes().gather_rows)


def test_the_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        sizes().gather_rows = 12  # type: ignore[misc]


def test_every_size_is_documented() -> None:
    [record] = [
        node
        for node in ast.parse(Path(module.__file__).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == Sizes.__name__
    ]
    documented = set()
    for field, text in zip(record.body, record.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            documented.add(field.target.id)
    assert documented == NAMES


def test_every_size_is_read_in_the_package_and_no_other() -> None:
    others = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py") if path != Path(module.__file__)]
    assert {name for text in others for name in re.findall(r"\bsizes\(\)\.(\w+)", text)} == NAMES
