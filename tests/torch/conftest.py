"""What the laws of every mode and of every kind of table share: the mode, or kind, and the tables of modes."""

from __future__ import annotations

import sys
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.tables.kinds import KINDS, TableKind
from tests.torch.all_modes import MODES, write_all_tables
from tests.torch.modes import MIXED, MIXTURES, ROWS, SPLITS, Mode, RowMode
from torch_table_loader.extend import FileStorage
from torch_table_loader.sizes import small_sizes
from torch_table_loader.source.table_storage import TableStorage

EVERY_DAY = [SPLITS, MIXED, ROWS, *MIXTURES]


@pytest.fixture(
    scope="session",
    params=[pytest.param(mode, id=str(mode), marks=[] if mode in EVERY_DAY else pytest.mark.slow) for mode in MODES],
)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Each mode in turn; Iceberg tables and packs, which their own laws look at every day, are slow here."""
    found: Mode = request.param
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each law of every mode see two modes a day, one of streams and one of rows, and the others be slow.

    Which two depends on its name, so that all laws together see all modes of every day.
    """
    kinds = [[mode for mode in EVERY_DAY if isinstance(mode, RowMode) == of_rows] for of_rows in (False, True)]
    for item in items:
        if not isinstance(item, pytest.Function) or not _draws_a_mode(item):
            continue
        number = zlib.crc32(item.originalname.encode())
        if item.callspec.params["mode"] not in [modes[number % len(modes)] for modes in kinds]:
            item.add_marker(pytest.mark.slow)


def _draws_a_mode(item: pytest.Function) -> bool:
    """Whether a test has its mode from the fixture, and says not itself which cases are those of a day."""
    given = any("mode" in mark.args[0] for mark in item.iter_markers("parametrize"))
    drawn = hasattr(item, "callspec") and "mode" in item.callspec.params
    return drawn and not given and not item.get_closest_marker("daily")


@pytest.fixture(autouse=True)
def no_accelerator_left() -> Iterator[None]:
    """Leave no accelerator behind, which would say to later tests which rank they are."""
    yield
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture(scope="session", params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> TableKind:
    """Each format of tables that keep their history, in turn."""
    found: TableKind = request.param
    return found


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of `all_modes`."""
    root = tmp_path_factory.mktemp("modes")
    write_all_tables(root)
    return root


@pytest.fixture
def small_gathers() -> Iterator[None]:
    """So small tables would come with one gather."""
    with small_sizes(gather_rows=12):
        yield


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Give what makes files of this machine those of an object store, until it ends."""

    @contextmanager
    def elsewhere() -> Iterator[None]:
        with monkeypatch.context() as patch:
            for kind in (FileStorage, TableStorage):
                patch.setattr(kind, "is_local", property(lambda self: False))
            yield

    return elsewhere


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Give a function that goes on as another machine: with another cache directory."""

    def be(name: str) -> None:
        monkeypatch.setenv("TORCH_TABLE_LOADER_CACHE", str(tmp_path / name))

    be("first")
    return be


@pytest.fixture
def url() -> Iterator[str]:
    """Give a URL for row stores, which is emptied at the end."""
    folder = uuid.uuid4().hex
    yield f"memory://{folder}/stores"
    fsspec.filesystem("memory").rm(f"/{folder}", recursive=True)
