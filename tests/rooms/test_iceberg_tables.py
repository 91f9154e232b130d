"""Tables written by pyiceberg in a SQLite catalog: snapshots, columns and errors."""

from __future__ import annotations

import datetime as dt
import gc
import gzip
import json
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType

from tests.effort import daily
from tests.states import table_of
from tests.tables.catalogs import load_catalog
from tests.tables.iceberg import IcebergWriter, column
from torch_table_loader import ConfigError, ConfigTypeError, IcebergDataset, TableError

ROWS = pa.table(
    {
        "x": pa.array(range(20), pa.int64()),
        "n": pa.array([None if i % 5 == 0 else i for i in range(20)], pa.int32()),
        "s": [f"s{i % 3}" for i in range(20)],
        "at": pa.array(
            [dt.datetime(2020, 1, 1 + i % 3, i, tzinfo=dt.UTC) for i in range(20)], pa.timestamp("us", "UTC")
        ),
        "o": pa.array(
            [{"a": i, "l": [i] * (i % 3)} for i in range(20)],
            pa.struct([("a", pa.int32()), ("l", pa.list_(pa.int64()))]),
        ),
    }
)

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


def config(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = load_catalog("default", **config(tmp_path))
    found.create_namespace("db")
    return found


@pytest.fixture
def table(catalog: Catalog) -> Table:
    made = catalog.create_table("db.clicks", ROWS.schema)
    made.append(ROWS.slice(0, 12))
    made.append(ROWS.slice(12))
    return made


def read(*table: Any, **options: Any) -> pa.Table:
    loader, dataset = IcebergDataset.create_dataloader(
        *table, **{"output_format": "arrow", "num_workers": 2, "batch_size": 7, **options}
    )
    found = pa.Table.from_batches(list(loader), dataset.schema)
    return found.sort_by("x") if "x" in found.column_names else found


def same(found: pa.Table, expected: pa.Table) -> None:
    """Compare content with what pyiceberg reads."""
    assert found.column_names == expected.column_names
    assert found.to_pylist() == expected.sort_by(expected.column_names[0]).to_pylist()


def test_a_table_by_every_name(tmp_path: Path, catalog: Catalog, table: Table) -> None:
    for found in (
        read("db.clicks", config(tmp_path)),
        read(("db", "clicks"), catalog),
        read(table),
        read(catalog_config=catalog, table="db.clicks"),
        read(metadata_location=table.metadata_location),
    ):
        same(found, ROWS)


def test_a_catalog_of_the_configuration_file(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"    {name}: {value}" for name, value in config(tmp_path).items()]
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  default:\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    same(read("db.clicks", "default"), ROWS)
    same(read("db.clicks", catalog="default"), ROWS)
    with pytest.raises(ConfigError, match=r"neither .* has a catalog 'defualt'; the nearest are 'default'"):
        read("db.clicks", "defualt")
    with pytest.raises(ConfigError, match="catalog= and catalog_config= name one catalog"):
        read("db.clicks", "default", catalog="default")
    with pytest.raises(ConfigError, match="catalog= and catalog_config="):
        IcebergDataset("db.clicks", config(tmp_path), catalog=config(tmp_path))


def test_a_catalog_of_the_environment(tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "nothing here"))
    with pytest.raises(ConfigError, match=r"neither .* has a catalog"):
        read("db.clicks", catalog="default")
    for name, value in config(tmp_path).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}", value)
    same(read("db.clicks", catalog="default"), ROWS)


def _hadoop_folder(folder: Path, table: Table, versions: dict[int, str]) -> Path:
    """Lay out the table's metadata like Hadoop tables; a name may have a compression suffix."""
    (folder / "metadata").mkdir(parents=True)
    for number, name in versions.items():
        entry = table.metadata.metadata_log[number] if number < len(table.metadata.metadata_log) else None
        place = table.metadata_location if entry is None else entry.metadata_file
        data = Path(place.removeprefix("file://")).read_bytes()
        (folder / "metadata" / name).write_bytes(gzip.compress(data) if "gz" in name else data)
    return folder


@pytest.mark.parametrize(
    ("hint", "last"),
    [
        ("2", "v2.metadata.json"),
        ("1\n", "v2.gz.metadata.json"),
        ("0", "v2.metadata.json.gz"),
        ("v2", "v2.metadata.json"),
    ],
)
@daily(2)
def test_a_folder_with_a_version_hint(tmp_path: Path, table: Table, hint: str, last: str) -> None:
    names = {0: "v0.metadata.json", 1: "v1.metadata.json", 2: last}
    folder = _hadoop_folder(tmp_path / "hadoop", table, names)
    (folder / "metadata" / "version-hint.text").write_text(hint)
    same(read(metadata_location=folder), ROWS)  # a hint that is old is no harm
    same(read(metadata_location=f"{folder}/"), ROWS)
    same(read(metadata_location=f"file://{folder}"), ROWS)
    loader, _ = IcebergDataset.create_dataloader(metadata_location=folder, columns=["x"], batch_size=4)
    next(iter(loader))
    again, _ = IcebergDataset.create_dataloader(metadata_location=folder, columns=["x"], batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert sum(len(batch["x"]) for batch in again) == 16


def test_folders_of_unknown_version_are_refused(tmp_path: Path, table: Table) -> None:
    folder = _hadoop_folder(tmp_path / "hadoop", table, {2: "v2.metadata.json"})
    with pytest.raises(ConfigError, match=r"folder that holds metadata/version-hint\.text, and .*hadoop is neither"):
        read(metadata_location=folder)
    for text in ("7", "", "../v2", "9" * 30, "v2/..", "é"):
        (folder / "metadata" / "version-hint.text").write_text(text)
        with pytest.raises(TableError, match="must name a version whose metadata file is beside it"):
            read(metadata_location=folder)


def test_the_metadata_of_a_view_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "v1.metadata.json"
    path.write_text(json.dumps({"view-uuid": "u", "format-version": 1, "location": "x", "versions": []}))
    with pytest.raises(TableError, match=r"v1\.metadata\.json is the metadata of an Iceberg view"):
        read(metadata_location=path)


def test_snapshots_branches_tags_and_times(tmp_path: Path, table: Table) -> None:
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    with table.manage_snapshots() as manage:
        manage.create_tag(first, "old").create_branch(first, "side")
    with table.manage_snapshots():
        table.append(ROWS.slice(0, 1))
    where = ("db.clicks", config(tmp_path))
    assert read(*where).num_rows == 21
    assert read(*where, snapshot_id=second).num_rows == 20
    assert read(*where, tag="old").num_rows == 12
    assert read(*where, branch="side").num_rows == 12
    assert read(*where, branch="main").num_rows == 21
    then = table.snapshots()[0].timestamp_ms
    assert read(*where, as_of=then).num_rows == 12
    assert read(*where, as_of=dt.datetime.fromtimestamp(then / 1000, dt.UTC)).num_rows == 12
    for wrong, said in (
        ({"snapshot_id": 5}, rf"no snapshot 5: it has expired, or is of another table; the newest of 3 are .*{second}"),
        ({"branch": "sid"}, "no branch 'sid'; the nearest are 'side'"),
        ({"branch": "old"}, "'old' is a tag of the table, not a branch; pass tag='old'"),
        ({"tag": "x"}, "no tag 'x'; the nearest are 'old'"),
        ({"as_of": 5}, "had no snapshot at 1970-01-01"),
        ({"as_of": "2020-01-01"}, "must say its time zone"),
        ({"as_of": "yesterday"}, "must look like"),
        ({"snapshot_id": first, "tag": "old"}, "snapshot_id and tag each choose"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(*where, **wrong)


def test_the_snapshot_stays_when_the_table_moves_on(table: Table) -> None:
    loader, dataset = IcebergDataset.create_dataloader(table, output_format="arrow")
    table.append(ROWS.slice(0, 3))
    assert sum(batch.num_rows for batch in loader) == 20
    assert dataset.snapshot_id is not None
    assert f"snapshot {dataset.snapshot_id}" in str(dataset.explain())
    assert table_of(loader.state_dict())["snapshot_id"] == dataset.snapshot_id


def test_a_table_without_a_snapshot_is_empty(catalog: Catalog) -> None:
    made = catalog.create_table("db.empty", ROWS.schema)
    loader, dataset = IcebergDataset.create_dataloader(made, output_format="arrow")
    assert (len(loader), list(loader), dataset.snapshot_id) == (0, [], None)
    assert dataset.schema.names == ROWS.schema.names


def test_rows_that_pyiceberg_deletes_or_overwrites(table: Table) -> None:
    table.delete("x < 5")
    same(read(table), table.scan().to_arrow())
    table.overwrite(ROWS.slice(3, 2), overwrite_filter="x = 19")
    same(read(table), table.scan().to_arrow())


def test_a_schema_that_evolves(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("s", "text").add_column("new", LongType())
        change.move_first("at")
        change.update_column("n", LongType())
        change.rename_column(("o", "a"), "b")
        change.add_column(("o", "c"), LongType())
    with table.update_schema() as change:
        change.delete_column("new")
    with table.update_schema() as change:
        change.add_column("new", LongType())
    expected = table.scan().to_arrow()
    found = read(table)
    assert found.schema.names == ["at", "x", "n", "text", "o", "new"]
    assert found.sort_by("x").to_pylist() == expected.sort_by("x").to_pylist()
    assert found.schema.field("n").type == pa.int64()
    wanted = (pc.field("text") == "s1") & pc.field("new").is_null()
    rows = read(table, filters=wanted, columns=["x"])["x"].to_pylist()
    assert rows == expected.filter(wanted).sort_by("x")["x"].to_pylist()
    table.append(expected.slice(0, 4))
    assert read(table).num_rows == 24
    assert read(table, columns=["o"]).column("o").type.field(0).name == "b"


@pytest.mark.parametrize("change_spec", [False, True])
def test_partitions_of_every_kind(table: Table, change_spec: bool) -> None:
    with table.update_spec() as spec:
        spec.add_field("at", DayTransform()).add_field("x", BucketTransform(4)).add_identity("s")
    table.append(ROWS)
    if change_spec:
        with table.update_spec() as spec:
            spec.remove_field("s").add_field("n", IdentityTransform(), "n_part")
        table.append(ROWS)
    assert read(table).num_rows == (60 if change_spec else 40)
    for wanted in (
        pc.field("x") == 7,
        pc.field("s") == "s1",
        pc.field("at") < pa.scalar(dt.datetime(2020, 1, 2, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        pc.field("n").is_null() | (pc.field("n") > 17),
        ~pc.field("s").isin(["s1", "s2"]),
    ):
        expected = table.scan().to_arrow().filter(wanted)
        found = read(table, filters=wanted)
        assert sorted(found["x"].to_pylist()) == sorted(expected["x"].to_pylist())


def test_a_table_that_was_moved(tmp_path: Path, table: Table) -> None:
    (tmp_path / "lake").rename(tmp_path / "moved")
    location = table.metadata_location.replace("/lake/", "/moved/")
    with pytest.raises(TableError, match="is gone"):
        read(metadata_location=location)
    override = {f"file://{tmp_path}/lake/": f"file://{tmp_path}/moved/"}
    same(read(metadata_location=location, location_override=override), ROWS)
    with pytest.raises(ConfigError, match="end both with a slash"):
        read(metadata_location=location, location_override={"s3://a/": "file:///b"})


def test_missing_names_are_reported(
    tmp_path: Path, catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout in which the README was tried has a folder of that name
    where = config(tmp_path)
    with pytest.raises(ConfigError, match=r"no table 'db.click'; the nearest are 'db.clicks'"):
        read("db.click", where)
    with pytest.raises(ConfigError, match=r"no namespace 'bd'; the nearest are 'db'"):
        read("bd.clicks", where)
    with pytest.raises(ConfigError, match=r"the catalog has no namespace 'db', nor any other"):
        read("db.clicks", {**where, "name": "other"})
    with pytest.raises(ConfigError, match=r"a name of two or more parts, such as \"db.table\", got 'clicks'"):
        read("clicks", where)
    with pytest.raises(ConfigError, match="no catalog can be opened with catalog_config"):
        read("db.clicks", {"type": "squirrel"})
    with pytest.raises(ConfigTypeError, match="name of a catalog"):
        read("db.clicks", 5)
    with pytest.raises(ConfigError, match="catalog_config is empty"):
        read("db.clicks", {})
    with pytest.raises(ConfigTypeError, match="table must be a name"):
        read(None, where)
    with pytest.raises(ConfigError, match="the table has no column 'y'"):
        read(table, columns=["y"])
    for name, value in (("schema", ROWS.schema), ("files", ["a"])):
        with pytest.raises(ConfigError, match=f"{name}= is for tables of plain files"):
            read(table, **{name: value})


def test_names_of_three_parts(tmp_path: Path, catalog: Catalog) -> None:
    where = config(tmp_path)
    catalog.create_namespace("db.inner")
    catalog.create_table("db.inner.clicks", ROWS.schema).append(ROWS)
    same(read("db.inner.clicks", where), ROWS)
    same(read(("db", "inner", "clicks"), where), ROWS)
    with pytest.raises(ConfigError, match=r"no table 'db.inner.click'; the nearest are 'db.inner.clicks'"):
        read("db.inner.click", where)
    with pytest.raises(ConfigError, match=r"no namespace 'db.iner'; the nearest are 'db.inner'"):
        read("db.iner.clicks", where)


def test_a_format_that_is_not_read_is_named(tmp_path: Path) -> None:
    writer = IcebergWriter(tmp_path)
    writer.append([{"x": 1, "k": 2, "s": "s"}])
    writer.data[0].entry["file_format"] = "LANCE"
    writer.commit()
    with pytest.raises(TableError, match=r"LANCE|lance"):
        read(metadata_location=writer.metadata)


def test_option_names_that_pyiceberg_would_ignore_are_reported(tmp_path: Path, table: Table) -> None:
    with pytest.warns(UserWarning, match="does not read 'warehuose'; did you mean warehouse") as said:
        read("db.clicks", {**config(tmp_path), "warehuose": "x"})
    assert said[0].filename == __file__, "a warning must point at the caller, not into the library"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read("db.clicks", {**config(tmp_path), "region_name": "us-east-1", "aws_access_key_id": "k"})


def test_missing_or_damaged_files_are_reported(table: Table) -> None:
    [path, _] = sorted(task.file.file_path for task in table.scan().plan_files())
    here = Path(path.removeprefix("file://"))
    loader, _ = IcebergDataset.create_dataloader(table, output_format="arrow")
    data = here.read_bytes()
    here.write_bytes(data[:-20])
    with pytest.raises(TableError, match=here.name):
        list(loader)
    with pytest.raises(TableError, match=here.name):
        read(table)
    here.unlink()
    with pytest.raises(TableError, match=here.name):
        read(table)


def test_a_plan_cache_is_used(tmp_path: Path, table: Table) -> None:
    cache = str(tmp_path / "cache")
    wanted = pc.field("n") > 3
    before = read(table, plan_cache=cache, filters=wanted)
    assert len(list((tmp_path / "cache").iterdir())) == 3  # of two files, and of the plan
    assert read(table, plan_cache=cache, filters=wanted).equals(before)


def test_required_columns_stay_so(catalog: Catalog) -> None:
    schema = Schema.model_validate(
        {"type": "struct", "fields": [{"id": 1, "name": "x", "required": True, "type": "long"}]}
    )
    made = catalog.create_table("db.required", schema)
    made.append(pa.table({"x": [1]}, schema=pa.schema([pa.field("x", pa.int64(), nullable=False)])))
    assert not read(made).schema.field("x").nullable


def test_version_3_through_a_catalog(tmp_path: Path, catalog: Catalog) -> None:
    writer = IcebergWriter(tmp_path / "v3", version=3)
    path = writer.append([{"x": x, "k": 1, "s": "s"} for x in range(10)])
    writer.delete_vector(path, [0, 9])
    writer.commit()
    writer.evolve([*writer.columns, column(9, "d", "long", **{"initial-default": 5})])
    raw = json.loads(Path(writer.metadata.removeprefix("file://")).read_text())
    location = tmp_path / "v3" / "metadata" / "v9.metadata.json"
    location.write_text(json.dumps({**raw, "next-row-id": 10}))
    catalog.register_table("db.v3", f"file://{location}")
    found = read("db.v3", config(tmp_path))
    assert found["x"].to_pylist() == list(range(1, 9))
    assert set(found["d"].to_pylist()) == {5}


def test_unsupported_types_are_refused_only_if_requested(tmp_path: Path) -> None:
    writer = IcebergWriter(tmp_path, version=3)
    writer.append([{"x": 1, "k": 2, "s": "s"}])
    writer.evolve([*writer.columns, column(9, "v", "variant"), column(10, "g", "geometry")])
    writer.commit()
    with pytest.raises(TableError, match="column 'v' is of the type variant, which this library does not read"):
        read(metadata_location=writer.metadata)
    with pytest.raises(TableError, match="column 'g' is of the type geometry"):
        read(metadata_location=writer.metadata, columns=["x", "g"])
    assert read(metadata_location=writer.metadata, columns=["x", "s"]).num_rows == 1


@pytest.mark.parametrize(
    "kind",
    ["variant", "geometry", "geometry(OGC:CRS84)", "geography", "geography(OGC:CRS84, vincenty)", "timestamp_ps"],
)
@pytest.mark.parametrize("inside", ["column", "struct", "list"])
@daily(6)
def test_unknown_types_are_refused_by_name(tmp_path: Path, catalog: Catalog, kind: str, inside: str) -> None:
    writer = IcebergWriter(tmp_path / "v3", version=3)
    writer.append([{"x": 1, "k": 2, "s": "s"}])
    around: dict[str, Any] = {
        "column": kind,
        "struct": {"type": "struct", "fields": [column(11, "inner", kind)]},
        "list": {"type": "list", "element-id": 11, "element": kind, "element-required": False},
    }
    writer.evolve([*writer.columns, column(9, "odd", around[inside])])
    writer.commit()
    with pytest.raises(TableError, match=re.escape(kind.partition("(")[0])) as refused:
        read(metadata_location=writer.metadata)
    assert "'odd'" in str(refused.value)
    assert read(metadata_location=writer.metadata, columns=["x"])["x"].to_pylist() == [1]
    made = catalog.create_table("db.odd", ROWS.schema)
    raw = json.loads(Path(writer.metadata.removeprefix("file://")).read_text())
    Path(made.metadata_location.removeprefix("file://")).write_text(json.dumps({**raw, "next-row-id": 10}))
    with pytest.raises(TableError, match=re.escape(kind.partition("(")[0])):
        read("db.odd", config(tmp_path))


def of_int96(catalog: Catalog, when: dt.datetime) -> tuple[Table, Path]:
    """Return a table of one time, and its file, which stores it as INT96."""
    made = catalog.create_table("db.old", pa.schema([("x", pa.int64()), ("at", pa.timestamp("us"))]))
    rows = pa.table({"x": [1], "at": pa.array([when], pa.timestamp("us"))})
    made.append(rows)
    [task] = made.scan().plan_files()
    ids = [pa.field(f.name, f.type, metadata={"PARQUET:field_id": str(i)}) for i, f in enumerate(rows.schema, start=1)]
    path = Path(task.file.file_path.removeprefix("file://"))
    pq.write_table(
        rows.cast(pa.schema(ids)),
        path,
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        write_statistics=False,
        compression="none",
    )
    return made, path


def test_int96_represents_years_that_nanoseconds_cannot(catalog: Catalog) -> None:
    far = dt.datetime(9999, 12, 31, 23, 59, 59)  # noqa: DTZ001 - INT96 has no zone
    made, _ = of_int96(catalog, far)
    assert read(made)["at"].to_pylist() == [far]


@pytest.mark.parametrize("days", [-2_440_588, 10**9])
def test_int96_is_never_another_time(catalog: Catalog, days: int) -> None:
    made, path = of_int96(catalog, dt.datetime(2000, 1, 2))  # noqa: DTZ001 - INT96 has no zone
    stored, data = bytes(8) + (2_440_588 + 10_958).to_bytes(4, "little"), path.read_bytes()
    assert data.count(stored) == 1
    path.write_bytes(data.replace(stored, bytes(8) + (2_440_588 + days).to_bytes(4, "little")))
    if days < 0:
        assert read(made)["at"].cast(pa.int64()).to_pylist() == [days * 86_400_000_000]
    else:
        with pytest.raises(TableError, match=r"INT96\) that microseconds do not hold; leave it out of columns="):
            read(made)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"not json", b"\x1f\x8bnothing", b'{"location": "x", "format-version": 9}']
)
def test_files_that_are_not_metadata_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "v1.metadata.json"
    path.write_bytes(data)
    with pytest.raises(TableError, match=r"metadata"):
        read(metadata_location=str(path))
    with pytest.raises(TableError, match="expected a file, found none"):
        read(metadata_location=str(tmp_path / "v2.metadata.json"))


def test_a_catalog_created_by_the_loader_is_closed(tmp_path: Path, catalog: Catalog, table: Table) -> None:
    catalog.close()

    def connections() -> list[str]:
        found = []
        for file in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one that lists them is gone again
                found += [name for name in [str(file.readlink())] if name.startswith(f"{tmp_path}/catalog.db")]
        return found

    assert connections() == []
    loader, _ = IcebergDataset.create_dataloader("db.clicks", config(tmp_path), output_format="arrow", num_workers=0)
    assert connections() == []
    assert sum(batch.num_rows for batch in loader) == 20
    with pytest.raises(ConfigError, match="no table"):
        IcebergDataset("db.click", config(tmp_path))
    assert connections() == []
    theirs = load_catalog("default", **config(tmp_path))
    IcebergDataset("db.clicks", theirs, columns=["x"])
    assert theirs.list_tables("db") == [("db", "clicks")], "a catalog of the caller's stays open"
    assert connections() != []
    theirs.close()


@pytest.mark.parametrize("path", ["/lake/t", "lake/t", "s3://me:hunter2@bucket/t", "v3.metadata.json", "somewhere"])
def test_a_path_is_sent_to_metadata_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "somewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"got the path .*IcebergDataset\(metadata_location=") as refused:
        IcebergDataset(path)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="metadata_location="):
        IcebergDataset(path, config(tmp_path))


def test_a_name_may_begin_with_the_catalogs(tmp_path: Path, catalog: Catalog, table: Table) -> None:
    where = config(tmp_path)
    same(read("default.db.clicks", where), ROWS)
    same(read(("default", "db", "clicks"), catalog), ROWS)
    with pytest.raises(ConfigError, match="no namespace 'other'"):
        read("other.db.clicks", where)
    catalog.create_namespace("default")
    catalog.create_namespace("default.db")
    catalog.create_table("default.db.clicks", ROWS.schema).append(ROWS.slice(0, 3))
    same(read("default.db.clicks", where), ROWS.slice(0, 3))


def test_a_catalog_that_was_opened_here_is_closed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.engine import Engine

    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/lake"}
    mine = load_catalog("default", **config)
    mine.create_namespace("db")
    mine.create_table("db.t", pa.schema([("x", pa.int64())])).append(pa.table({"x": [1]}))
    mine.close()
    opened, closed = list[int](), list[int]()
    connect, dispose = Engine.connect, Engine.dispose

    def connecting(engine: Engine) -> Any:
        opened.append(id(engine))
        return connect(engine)

    def disposing(engine: Engine) -> None:
        closed.append(id(engine))
        dispose(engine)

    monkeypatch.setattr(Engine, "connect", connecting)
    monkeypatch.setattr(Engine, "dispose", disposing)
    assert IcebergDataset("db.t", config).num_rows == 1
    gc.collect()
    assert opened
    assert set(opened) <= set(closed)
