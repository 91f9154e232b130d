"""Subclasses of the datasets, with their own parameters that have names of options."""

from __future__ import annotations

import inspect
import pickle
import pydoc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tables.plain import DEFAULTS, write_table
from torch_table_loader import ConfigTypeError, IcebergDataset, MixedDataset, StructuredDataset


class Bare(StructuredDataset):
    """Adds nothing."""


class Sized(StructuredDataset):
    """Has a batch size of its own."""

    def __init__(self, path: str, batch_size: int = 6, **options: Any) -> None:
        """Open the table."""
        super().__init__(path, batch_size=batch_size, **options)


class Named(StructuredDataset):
    """Has only options, and a parameter that is not an option."""

    def __init__(self, root: str, *, name: str, shuffle: bool = True, **options: Any) -> None:
        """Open a table below a root."""
        self.name = name
        super().__init__(Path(root) / name, shuffle=shuffle, **options)


class Closed(StructuredDataset):
    """Takes no options."""

    def __init__(self, path: str, batch_size: int = 5) -> None:
        """Open the table."""
        super().__init__(path, batch_size=batch_size, check_plan=False)


class Passing(StructuredDataset):
    """Passes everything on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open the table."""
        super().__init__(*args, **kwargs)


class Twice(Sized):
    """A subclass of a subclass, which creates its own loader."""

    def __init__(self, path: str, num_workers: int = 0, **options: Any) -> None:
        """Open the table."""
        super().__init__(path, num_workers=num_workers, **options)

    @classmethod
    def create_dataloader(cls, path: str, **options: Any) -> Any:  # type: ignore[override]
        """Make a loader that drops the last batch."""
        return super().create_dataloader(path, drop_last=True, **options)


@dataclass(eq=False)
class Record(StructuredDataset):
    """Is a dataclass."""

    path: str
    batch_size: int = 4

    def __post_init__(self) -> None:
        """Open the table."""
        super().__init__(self.path, batch_size=self.batch_size)


class Lake(IcebergDataset):
    """Knows its catalog."""

    def __init__(self, name: str, batch_size: int = 512, **options: Any) -> None:
        """Open the table."""
        super().__init__(f"db.{name}", {"type": "in-memory"}, batch_size=batch_size, **options)


class Blend(MixedDataset):
    """Knows its sources."""

    def __init__(self, path: str, batch_size: int = 3, **options: Any) -> None:
        """Open two tables."""
        sources = {name: StructuredDataset(path, shuffle="rows") for name in ("a", "b")}
        super().__init__(sources, {"a": 1, "b": 2}, batch_size=batch_size, **options)


@pytest.fixture
def table(tmp_path: Path) -> str:
    write_table(tmp_path / "table", [[9, 7]])
    return str(tmp_path / "table")


def sizes(made: tuple[Any, Any]) -> list[int]:
    return [len(batch["x"]) for batch in made[0]]


def test_subclasses_open_tables_and_create_loaders(table: str, tmp_path: Path) -> None:
    assert sizes(Bare.create_dataloader(table, "parquet", batch_size=16)) == [16]
    assert sizes(Sized.create_dataloader(table)) == [6, 6, 4]
    assert sizes(Sized.create_dataloader(table, 10, num_workers=0)) == [10, 6]
    assert sizes(Sized.create_dataloader(table, batch_size=8, format="parquet")) == [8, 8]
    made: Any = Named.create_dataloader(str(tmp_path), name="table", batch_size=16)
    assert (sizes(made), made[1].name, made[1].options.shuffle) == ([16], "table", True)
    assert sizes(Closed.create_dataloader(table)) == [5, 5, 5, 1]
    assert sizes(Passing.create_dataloader(table, "parquet", batch_size=16)) == [16]
    assert sizes(Twice.create_dataloader(table)) == [6, 6]
    assert sizes(Record.create_dataloader(table, 12)) == [12, 4]
    assert sum(sizes(Blend.create_dataloader(table, batch_size=3))[:4]) == 12
    kinds: list[Any] = [Bare, Sized, Closed, Passing, Twice, Record, Blend]
    for kind in kinds:
        made = kind.create_dataloader(table)
        assert type(made[1]) is kind
        if kind is not Blend:  # its sources are in memory, which another process would build again
            assert type(pickle.loads(pickle.dumps(kind(table)))) is kind  # noqa: S301 - our own


@pytest.mark.parametrize("kind", [Bare, Sized, Named, Closed, Passing, Twice, Record, Lake, Blend])
def test_signatures_and_help_show_own_parameters_once(kind: Any) -> None:
    shown = inspect.signature(kind).parameters
    assert f"class {kind.__name__}" in pydoc.plain(pydoc.render_doc(kind))
    if kind is not Twice:
        assert list(inspect.signature(kind.create_dataloader).parameters) == list(shown)
    if kind not in (Closed, Record):
        assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
        assert set(DEFAULTS) <= set(shown) or kind is Blend
    if kind is Blend:
        assert set(shown) >= {"stop", "unit", "block", "num_workers", "row_store"}
        assert not {"split_size", "shuffle", "files"} & set(shown)
    if kind is Lake:
        assert set(shown) >= {"name", "scan_filter", "snapshot_id", "columns"}


def test_own_defaults_are_shown() -> None:
    assert inspect.signature(Sized).parameters["batch_size"].default == 6
    assert inspect.signature(Sized.create_dataloader).parameters["batch_size"].default == 6
    assert inspect.signature(Named).parameters["shuffle"].default is True
    assert inspect.signature(Twice).parameters["num_workers"].default == 0
    assert list(inspect.signature(Record).parameters) == ["path", "batch_size"]
    assert list(inspect.signature(Closed).parameters) == ["path", "batch_size"]
    assert inspect.signature(StructuredDataset).parameters["batch_size"].default == 1024


def test_an_unknown_keyword_is_reported_with_the_name_of_the_subclass(table: str) -> None:
    with pytest.raises(
        ConfigTypeError,
        match=r"^Named\.create_dataloader\(\) got an unexpected keyword argument 'seed'; here it is shuf",
    ):
        Named.create_dataloader(table, name="x", seed=3)
    with pytest.raises(ConfigTypeError, match=r"^Lake\(\) got .* 'nmae'; did you mean name\?"):
        Lake("x", nmae="y")
