"""A table format of somebody else: written on `extend.table_formats` and the errors alone, it is read like ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_table_loader import ConfigError, LoaderOptions, StructuredDataset
from torch_table_loader.extend import table_formats as tables
from torch_table_loader.testing import ContractError, check_table_request

COLUMN = tables.Column(-1, "x", pa.int64(), required=False)
COLUMNS = tables.TableColumns((COLUMN,), {}, tables.NamedIds({"x": (-1, tables.NamedIds({}))}), by_name=True)


@dataclass(frozen=True, eq=False)
class ListRequest(tables.TableRequest):
    """A folder with a list of files for each version: `0.json` has their names, rows, and least and greatest `x`."""

    root: str
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True)

    pin = "version"
    format = "list"
    title = "table of lists"

    def open(
        self, chosen: Mapping[str, Any], agree: Callable[[str, Any], Any] = lambda _, value: value
    ) -> tables.SnapshotFiles:
        storage = tables.TableStorage.at(self.root, {}, self.storage_options, None)
        newest = max(int(path.stem) for path in Path(self.root).glob("*.json"))
        wanted = chosen.get("version")
        version = agree("snapshot", newest if wanted is None else wanted)
        files = [self._file(entry) for entry in self._entries(storage, version) if self._may_pass(entry)]
        schema = tables.arrow_schema(COLUMNS.current)
        return self.made(
            self.root,
            "the only one",
            version,
            storage=storage,
            files=self.listed(files, storage),
            schema=schema,
            notes=(),
            partition_schema=pa.schema([]),
            cache=self.cache_of(storage, self.storage_options, str(schema)),
            row_filter=self.filters,
            pinned=wanted is not None,
        )

    def commits(self, start: int, end: int) -> Sequence[tables.Commit]:
        if not 0 <= start <= end:
            raise ConfigError(f"version {start} must be one of 0 to {end}")
        return [tables.Commit(version, version - 1, "write", "append") for version in range(start + 1, end + 1)]

    def _entries(self, storage: tables.TableStorage, version: int) -> list[dict[str, Any]]:
        name = f"{self.root}/{version}.json"
        found: list[dict[str, Any]] = tables.load_json(storage.read_whole(name), name)
        return found

    def _may_pass(self, entry: dict[str, Any]) -> bool:
        if self.filters is None:
            return True
        low, high = (pa.scalar(entry[name], pa.int64()) for name in ("low", "high"))
        facts: dict[tuple[str, ...], tables.Facts] = {
            ("x",): tables.Facts.of_statistics(pa.int64(), entry["rows"], 0, low, high)
        }
        return tables.predicate_of(self.filters, tables.arrow_schema(COLUMNS.current)).can_pass(facts, {})

    def _file(self, entry: dict[str, Any]) -> tables.DataFile:
        version = tables.FileVersion(entry["bytes"], immutable=True)
        columns = tables.FileColumns(COLUMNS)
        return tables.DataFile(
            f"{self.root}/{entry['name']}", entry["name"], version, "parquet", (), columns, (), entry["rows"]
        )


class ListDataset(tables.SnapshotDataset):
    """One version of such a table."""

    title = "a table of lists"
    pin = "version"

    def __init__(self, root: str, *, version: int | None = None, **options: Unpack[tables.LoaderKeywords]) -> None:
        asked, version = self._understood(options, (None, None, version), changelog=False, footers="eager")
        request = partial(ListRequest, root)
        self._open(asked, options, request, {"version": version}, footers="eager", split_deletes=False)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Two versions: of four files, and of six."""
    entries = []
    for number in range(6):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"x": range(number * 10, number * 10 + 10)}), path)
        ends = {"low": number * 10, "high": number * 10 + 9}
        entries.append({"name": path.name, "rows": 10, "bytes": path.stat().st_size, **ends})
    (tmp_path / "0.json").write_text(json.dumps(entries[:4]))
    (tmp_path / "1.json").write_text(json.dumps(entries))
    return str(tmp_path)


def test_rows_come_once_and_a_state_goes_on_at_its_snapshot(root: str) -> None:
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True}
    loader, _ = ListDataset.create_dataloader(root, **options)
    older, _ = ListDataset.create_dataloader(root, version=0, **options)
    with loader, older:
        assert sorted(x for batch in loader for x in batch["x"].tolist()) == list(range(60))
        had = next(iter(older))["x"].tolist()
        state = older.state_dict()
    newer, _ = ListDataset.create_dataloader(root, **options)
    with newer:
        newer.load_state_dict(state)
        rest = [x for batch in newer for x in batch["x"].tolist()]
    assert sorted([*had, *rest]) == list(range(40)), "the rest of version 0, though version 1 is the newest"


def test_options_are_checked_once(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[LoaderOptions] = []
    check = LoaderOptions.__post_init__

    def counted(options: LoaderOptions) -> None:
        checked.append(options)
        check(options)

    monkeypatch.setattr(LoaderOptions, "__post_init__", counted)
    options: dict[str, Any] = {"batch_size": 7, "filters": "x > 15", "even_ranks": "balance"}
    assert ListDataset(root, **options).num_rows == 44
    assert len(checked) == 1
    assert StructuredDataset(f"{root}/*.parquet", **options).num_rows == 44
    assert len(checked) == 2


def test_facts_leave_files_out_and_changes_have_their_commits(root: str) -> None:
    dataset = ListDataset(root, batch_size=7, filters=pc.field("x") < 15)
    assert dataset.num_rows == 15
    request = ListRequest(root)
    assert len(replace(request, filters=pc.field("x") < 15).open({}).files) == 2
    assert request.open({}).changes_since(0) == []


def test_its_request_keeps_the_contract(root: str) -> None:
    check_table_request(ListRequest(root))
    check_table_request(ListRequest(root), {"version": 0})


@dataclass(frozen=True, eq=False)
class Forgetful(ListRequest):
    """Leaves a file out under any filter."""

    def _may_pass(self, entry: dict[str, Any]) -> bool:
        return self.filters is None or entry["name"] != "0.parquet"


@dataclass(frozen=True, eq=False)
class Repeating(ListRequest):
    """Lists a commit between a snapshot and itself."""

    def commits(self, start: int, end: int) -> Sequence[tables.Commit]:
        return super().commits(start - 1, end)


@pytest.mark.parametrize(
    ("wrong", "said"), [(Forgetful, "under a filter of 'x'"), (Repeating, "changes_since|commits after")]
)
def test_a_request_that_breaks_the_contract_is_named(root: str, wrong: type[ListRequest], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_table_request(wrong(root))
