"""Blocks that replace errors: they do as those of contextlib do, and leave nothing to the garbage collector."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

from torch_table_loader.errors import TableError, TableLoaderError
from torch_table_loader.read.failures import naming, reading
from torch_table_loader.records import DataFile, FileVersion
from torch_table_loader.source.storage import open_storage
from torch_table_loader.translating import translating


class Held:
    """What a frame holds while it reads."""


def replaced() -> Iterator[str]:
    try:
        yield "given"
    except KeyError as error:
        raise TableError("another") from error
    except ZeroDivisionError:
        pass


def come(error: type[BaseException] | None) -> None:
    if error is not None:
        raise error("came")


STORAGE, _ = open_storage("/")
FILE = DataFile(path="x.parquet", name="x.parquet", version=FileVersion(1), format="parquet")

BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "any": translating(replaced),
    "reading": lambda: reading(STORAGE, FILE),
    "naming": lambda: naming(STORAGE, FILE),
    "storage": lambda: STORAGE._own_errors("x.parquet", None),
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_an_error_that_was_replaced_is_gone_at_once(block: Callable[[], AbstractContextManager[Any]]) -> None:
    gone = []

    def read() -> None:
        held = Held()
        gone.append(weakref.ref(held))
        with block():
            raise KeyError(1)

    gc.disable()
    try:
        with suppress(TableLoaderError):
            read()
        assert [each() for each in gone] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [contextmanager, translating])
@pytest.mark.parametrize("error", [None, KeyError, ValueError, ZeroDivisionError, KeyboardInterrupt])
def test_a_block_does_what_one_of_contextlib_does(
    make: Callable[..., Callable[[], AbstractContextManager[str]]], error: type[BaseException] | None
) -> None:
    caught = None
    try:
        with make(replaced)() as given:
            assert given == "given"
            come(error)
    except BaseException as raised:  # noqa: BLE001 looked at below
        caught = raised
    wanted: dict[Any, type] = {None: type(None), KeyError: TableError, ZeroDivisionError: type(None)}
    assert type(caught) is wanted.get(error, error)
    if error is KeyError:
        assert isinstance(caught, TableError)
        assert repr(caught.__cause__) == "KeyError('came')"
    if error in (ValueError, KeyboardInterrupt):
        assert caught is not None
        assert [frame.name for frame in traceback.extract_tb(caught.__traceback__)] == [
            "test_a_block_does_what_one_of_contextlib_does",
            "come",
        ]


def test_a_block_yields_once() -> None:
    with pytest.raises(RuntimeError, match="once"), translating(lambda: iter([1, 2]))():
        pass
