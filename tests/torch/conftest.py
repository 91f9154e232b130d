"""What the laws of every mode and of every kind of table share: the mode, or kind, and the tables of modes."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.tables.kinds import KINDS, TableKind
from tests.torch.all_modes import MODES, write_all_tables
from tests.torch.modes import MIXED, MIXTURES, ROWS, SPLITS, Mode
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
