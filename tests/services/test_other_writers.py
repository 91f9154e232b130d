"""Tables that others wrote: DuckDB through our REST catalog, ClickHouse's library, and Java's iceberg-core."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog

from tests.launchers.java import jars_of, run
from tests.servers.rest_catalog import RestCatalog, serving
from tests.servers.rest_commits import keep_version_3
from tests.tables.catalogs import load_catalog
from tests.tables.iceberg import Deleted, IcebergWriter, Row, Written, deletes_in_their_partition, some
from torch_table_loader import IcebergDataset

pytestmark = pytest.mark.heavy


def read(*table: Any, worker_type: str = "thread", **options: Any) -> list[Row]:
    """Read a table on three ranks, without what is padding."""
    options |= {"output_format": "arrow", "num_workers": 2, "batch_size": 7, "shuffle": "splits", "check_plan": False}
    options["worker_type"] = worker_type
    rows = []
    for rank in range(3):
        loader, _ = IcebergDataset.create_dataloader(*table, **options, num_ranks=3, rank=rank)
        rows += [row for batch in loader for row in batch.to_pylist() if not row.pop("padding")]
    return rows


def same(found: Sequence[Row], expected: Sequence[Row]) -> None:
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


# DuckDB


@contextmanager
def duckdb_on(uri: str, folder: Path) -> Iterator[Callable[[str], Any]]:
    """Give DuckDB's SQL, with a REST catalog attached as `lake`."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"SET extension_directory = '{folder}/extensions'")
        for name in ("httpfs", "icu", "avro", "iceberg"):
            connection.execute(f"LOAD '{extension(name)}'")
        connection.execute(
            f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{uri}', CLIENT_ID 'me', CLIENT_SECRET 'secret', "
            f"OAUTH2_SERVER_URI '{uri}/v1/oauth/tokens')"
        )
        yield connection.execute


def extension(name: str) -> Path:
    """Find an extension in the wheel that brings it."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension"))


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    keep_version_3()
    return load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")


def written_by_duckdb(lake: Catalog, folder: Path, version: int) -> Iterator[dict[str, Any]]:
    """Write, delete and update; gives how to reach the table, while its catalog serves."""
    with serving(RestCatalog(lake, credential="me:secret")) as uri, duckdb_on(uri, folder) as sql:
        sql("CREATE SCHEMA lake.db")
        sql(f"CREATE TABLE lake.db.clicks (x BIGINT, k INT, s VARCHAR) WITH ('format-version' = '{version}')")
        for start in (0, 100):
            numbers = f"range({start}, {start + 100}) t(i)"
            sql(f"INSERT INTO lake.db.clicks SELECT i, i % 7, 's' || (i % 3) FROM {numbers}")  # noqa: S608
        sql("DELETE FROM lake.db.clicks WHERE x % 10 = 3")
        sql("UPDATE lake.db.clicks SET s = 'new' WHERE x % 25 = 0")
        sql("DELETE FROM lake.db.clicks WHERE x % 10 = 4")
        yield {"type": "rest", "uri": uri, "credential": "me:secret", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}


LEFT = [{"x": x, "k": x % 7, "s": "new" if x % 25 == 0 else f"s{x % 3}"} for x in range(200) if x % 10 not in (3, 4)]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_and_vectors_of_duckdb(lake: Catalog, tmp_path: Path, version: int, worker_type: str) -> None:
    for config in written_by_duckdb(lake, tmp_path, version):
        same(read("db.clicks", config, worker_type=worker_type), LEFT)
        files = lake.load_table(("db", "clicks")).inspect.files().to_pylist()
        deletes = {file["file_format"] for file in files if file["content"] == 1}
        assert deletes == {"PARQUET" if version == 2 else "PUFFIN"}


def test_row_lineage_of_duckdb(lake: Catalog, tmp_path: Path) -> None:
    for config in written_by_duckdb(lake, tmp_path, 3):
        found = {row["x"]: row for row in read("db.clicks", config, columns=["x", "s", "_row_id"])}
        assert sorted(found) == [row["x"] for row in LEFT]
        # Rows keep their ids when they are updated, as DuckDB writes them: the ids are their places in the inserts.
        assert {x: row["_row_id"] for x, row in found.items()} == {x: x for x in found}


TYPES = """
    CREATE TABLE lake.db.types WITH ('format-version' = '{version}') AS SELECT
        i AS x, i % 2 = 0 AS b, i::INT AS i4, (i / 3)::FLOAT AS f4, i / 7 AS f8, (i / 10)::DECIMAL(9, 2) AS m9,
        (i * 1000003)::DECIMAL(30, 5) AS m30, DATE '2020-02-28' + i::INT AS d,
        TIME '23:59:00' + to_microseconds(i) AS t,
        TIMESTAMP '1969-12-31 23:59:59' + to_seconds(i) AS ts, TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_hours(i) AS tz,
        CASE WHEN i % 3 > 0 THEN 'text' || i END AS s, md5(i::VARCHAR)::UUID AS u, ('blob' || i)::BLOB AS bl,
        CASE WHEN i % 4 > 0 THEN range(i % 5) END AS l, CASE WHEN i % 5 > 0 THEN {{'a': i, 'b': [{{'c': i}}]}} END AS o,
        CASE WHEN i % 6 > 0 THEN MAP {{'k' || i: {{'v': i}}}} END AS p
    FROM range(60) t(i)
"""


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_duckdb(lake: Catalog, tmp_path: Path, version: int) -> None:
    """DuckDB reads what it wrote: its own rows are the answer."""
    for config in written_by_duckdb(lake, tmp_path, version):
        with duckdb_on(config["uri"], tmp_path) as sql:
            sql("SET TimeZone = 'UTC'")
            for folder in ("data", "metadata"):  # DuckDB takes the disk for a store, where folders need no making
                (tmp_path / "lake" / "db" / "types" / folder).mkdir(parents=True)
            sql(TYPES.format(version=version))
            sql("DELETE FROM lake.db.types WHERE x % 10 = 3")
            expected = sql("SELECT * REPLACE (u::VARCHAR AS u) FROM lake.db.types ORDER BY x").to_arrow_table()
        found = [row | {"u": str(uuid.UUID(bytes=row["u"]))} for row in read("db.types", config)]
        assert sorted(found, key=lambda row: row["x"]) == expected.to_pylist()


EVOLVING = (
    "INSERT INTO lake.db.p SELECT i, nullif(i % 5, 0), 's' || (i % 3), {day} + to_hours(i * 5) FROM range(100) t(i)",
    "DELETE FROM lake.db.p WHERE x % 10 = 3",
    "ALTER TABLE lake.db.p RENAME COLUMN s TO text",
    "ALTER TABLE lake.db.p ADD COLUMN new INT",
    "INSERT INTO lake.db.p SELECT i, nullif(i % 5, 0), '', {day}, i FROM range(100, 150) t(i)",
    "DELETE FROM lake.db.p WHERE k IS NULL AND x > 50",
)


@pytest.mark.parametrize("version", [2, 3])
def test_partitions_and_evolution_of_duckdb(lake: Catalog, tmp_path: Path, version: int) -> None:
    with serving(RestCatalog(lake, credential="me:secret")) as uri, duckdb_on(uri, tmp_path) as sql:
        sql("CREATE SCHEMA lake.db")
        sql(
            "CREATE TABLE lake.db.p (x BIGINT, k INT, s VARCHAR, ts TIMESTAMP) "
            f"PARTITIONED BY (k, bucket(4, x), day(ts)) WITH ('format-version' = '{version}')"
        )
        (tmp_path / "lake" / "db" / "p" / "data").mkdir()
        for each in EVOLVING:
            sql(each.format(day="TIMESTAMP '2020-01-01'"))
        same(read("db.p", lake), sql("FROM lake.db.p").to_arrow_table().to_pylist())
        wanted = (pc.field("k") == 2) & (pc.field("x") > 30)
        same(
            read("db.p", lake, filters=wanted),
            sql("FROM lake.db.p WHERE k = 2 AND x > 30").to_arrow_table().to_pylist(),
        )


# ClickHouse


CLICKHOUSE = """
import sys
import uuid
from chdb.session import Session

folder, form = sys.argv[1:]
query = Session("state").query
query("SET allow_experimental_insert_into_iceberg = 1")
query("CREATE DATABASE db")
columns = "x Int64, k Nullable(Int32), s Nullable(String)"
query(f"CREATE TABLE db.t ({columns}) ENGINE = IcebergLocal('{folder}/table/', '{form}')")
for start in (0, 100):
    rows = f"number + {start}, if(number % 7 = 0, NULL, number % 7), concat('s', toString(number % 3))"
    query(f"INSERT INTO db.t SELECT {rows} FROM numbers(100)")
if form == "Parquet":
    query("ALTER TABLE db.t DELETE WHERE x % 10 = 3 OR k = 2")
"""


@pytest.mark.parametrize("form", ["Parquet", "ORC", "Avro"])
def test_tables_of_clickhouse(tmp_path: Path, form: str) -> None:
    """It deletes, by position, from tables of Parquet alone."""
    done = subprocess.run(
        [sys.executable, "-c", CLICKHOUSE, str(tmp_path), form],
        cwd=tmp_path,  # it writes nowhere else
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    newest = max((tmp_path / "table" / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:-14]))
    rows = [
        {"x": start + i, "k": i % 7 or None, "s": f"s{i % 3}"}
        for start in (0, 100)
        for i in range(100)
        if form != "Parquet" or not (i % 10 == 3 or i % 7 == 2)
    ]
    same(read(metadata_location=f"file://{newest}"), rows)


# Java


def committed_by_java(table: IcebergWriter, folder: Path, script: Callable[[int], Sequence[str]] = lambda _: ()) -> str:
    """Commit the files of a table by Java; gives the location of its metadata.

    Args:
        table: whose files are written; each of its commits becomes one of Java's.
        folder: where the table of Java's metadata is to be.
        script: further lines after a commit, by its number.
    """
    by = next((c["name"] for c in table.columns if c["id"] == table.partition_by), "-")
    lines = [f"create\t{json.dumps(table.schemas[0])}\t{by}"]
    kinds = {0: "data", 1: "position", 2: "equality"}
    written: list[Written | Deleted] = [*table.data, *table.deletes]
    entries = {id(each.entry): each for each in written}.values()
    for number in range(1, len(table.snapshots) + 1):
        for each in (each for each in entries if each.sequence == number):
            entry = each.entry
            fields = [kinds[entry["content"]], entry["file_path"], entry["file_format"]]
            fields += [str(entry["file_size_in_bytes"]), str(entry["record_count"])]
            fields.append("-" if by == "-" else f"{by}={_HIVE_NULL if each.partition is None else each.partition}")
            fields += [",".join(map(str, entry["equality_ids"]))] if entry["content"] == 2 else []
            lines.append("\t".join(fields))
        lines += ["commit\tmain", *script(number)]
    path = folder / "script.txt"
    path.write_text("\n".join(lines))
    jars = ":".join(jars_of("bodo_iceberg_connector", f"jars{inner}") for inner in ("", "/libs"))
    return run("Commit.java", jars, f"file://{folder}/java", str(path)).strip().splitlines()[-1]


_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_deletes_tags_and_branches_of_java(tmp_path: Path, worker_type: str) -> None:
    table = IcebergWriter(tmp_path)
    first = table.append(some(0, 40), group=7)
    table.append(some(40, 60), "orc")
    table.append(some(60, 80), "avro")
    table.commit()
    old = table.live()
    table.delete_keys([2, 3], [{"k": None, "s": "s0"}, {"k": 1, "s": "s1"}])
    table.append(some(80, 100))
    table.commit()
    side = table.live()
    table.delete_rows({first: [1, 7, 39]}, "avro")
    table.delete_keys([1], [{"x": 41}, {"x": 99}], "orc")
    table.commit()
    names = {1: ["tag\told"], 2: ["branch\tside"]}
    location = committed_by_java(table, tmp_path, lambda number: names.get(number, ()))
    same(read(metadata_location=location, worker_type=worker_type), table.live())
    same(read(metadata_location=location, worker_type=worker_type, tag="old"), old)
    same(read(metadata_location=location, worker_type=worker_type, branch="side"), side)


def test_deletes_of_java_stay_in_their_partition(tmp_path: Path) -> None:
    table = deletes_in_their_partition(tmp_path)
    same(read(metadata_location=committed_by_java(table, tmp_path)), table.live())
