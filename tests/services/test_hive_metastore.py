"""Tables that a Hive metastore knows: a real one, of the jars that PySpark brings, on Derby."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from demo.moto import held_port
from tests.launchers.java import HERE, jars_of, java
from tests.services.catalogs_page import example, run
from tests.tables.catalogs import load_catalog
from torch_table_loader import ConfigError, IcebergDataset, StorageError

pytestmark = pytest.mark.heavy

PATIENCE_S = 120


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run a metastore; gives its catalog as pyiceberg takes it."""
    folder = tmp_path_factory.mktemp("hive")
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "datanucleus.connectionPoolingType": "HikariCP",
        "hive.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": f"{folder}/warehouse",
        "java.io.tmpdir": str(folder),
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    command = [java(), *defined, "-cp", jars_of("pyspark", "jars"), str(HERE / "Metastore.java")]
    log = folder / "metastore.log"
    with held_port() as port, log.open("wb") as output:
        command += ["-p", str(port)]
        with subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as process:
            try:
                wait_until_it_listens(port, process, log)
                yield {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", "warehouse": f"file://{folder}/lake"}
            finally:
                process.terminate()


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the metastore ended with {process.returncode}: {log.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the metastore did not listen within {PATIENCE_S} s: {log.read_text()}")


@pytest.fixture(scope="module")
def catalog(metastore: dict[str, str]) -> Catalog:
    """A table of three commits, the last of which deletes."""
    found = load_catalog("hive", **metastore)
    found.create_namespace("db")
    rows = pa.table({"x": pa.array(range(60), pa.int64()), "s": [f"s{i % 3}" for i in range(60)]})
    table = found.create_table("db.clicks", rows.schema)
    table.append(rows.slice(0, 30))
    table.append(rows.slice(30))
    table.delete("x < 3")
    return found


def rows_of(*table: Any, **options: Any) -> list[int]:
    loader, _ = IcebergDataset.create_dataloader(*table, **{"num_workers": 2, "batch_size": 7, **options})
    return sorted(int(x) for batch in loader for x in batch["x"])


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_table_of_a_metastore(metastore: dict[str, str], catalog: Catalog, worker_type: str) -> None:
    assert rows_of("db.clicks", metastore, worker_type=worker_type) == list(range(3, 60))
    first = catalog.load_table("db.clicks").snapshots()[0].snapshot_id
    assert rows_of("db.clicks", metastore, snapshot_id=first) == list(range(30))
    assert rows_of("db.clicks", catalog, worker_type=worker_type) == list(range(3, 60))


def test_the_example_of_the_page(metastore: dict[str, str], catalog: Catalog) -> None:
    named = {"shop.clicks": "db.clicks", "thrift://metastore.example.com:9083": metastore["uri"]}
    code = example("Hive").replace("config)", 'config, columns=["x"])')
    assert run(code, named) == list(range(3, 60))


def test_what_is_missing_is_named(metastore: dict[str, str], catalog: Catalog) -> None:
    assert catalog.list_tables("db") == [("db", "clicks")]
    with pytest.raises(ConfigError, match=r"no table 'db.click'; the nearest are 'db.clicks'"):
        rows_of("db.click", metastore)
    with pytest.raises(ConfigError, match=r"no namespace 'bd'; the nearest are 'db'"):
        rows_of("bd.clicks", metastore)


def test_a_metastore_that_is_not_there() -> None:
    with held_port() as port, pytest.raises(StorageError, match=r"the catalog .*'db.clicks'|does not answer"):
        rows_of("db.clicks", {"type": "hive", "uri": f"thrift://127.0.0.1:{port}"})
