"""Storages: what they open, how they name versions and errors, and that they keep secrets and survive forks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.waiting import PATIENCE_S
from torch_table_loader.contracts import Storage
from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError, StorageError, TableError
from torch_table_loader.extend import FileStorage, open_storage
from torch_table_loader.ranges import Found

SECRET = "hunter2/with+slash"  # noqa: S105 - it stands for one


@pytest.fixture
def memory() -> Any:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def as_contract(storage: FileStorage) -> Storage:
    """Let the type checker compare the class with its socket."""
    return storage


def test_local_files_are_read_and_distinguished(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"0123456789")
    storage, path = open_storage(file)
    assert as_contract(storage).is_local
    with storage.open(path) as opened:
        opened.seek(4)
        assert (opened.read(3), opened.size()) == (b"456", 10)
    version = storage.version(path)
    assert (version.num_bytes, version.mtime_ns) == (10, file.stat().st_mtime_ns)


def test_a_file_rewritten_with_equal_size_is_another_version(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    os.utime(file, ns=(1, 1_000_000_001))
    storage, path = open_storage(file)
    before = storage.version(path)
    file.write_bytes(b"new")
    os.utime(file, ns=(1, 1_000_000_002))
    assert storage.version(path) != before


def test_paths_are_accepted_in_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = str(tmp_path / "t")
    for spelled in ("t", "./t/", "x/../t", tmp_path / "t", f"file://{tmp_path}/t", f"file:{tmp_path}/t"):
        assert open_storage(spelled) == (FileStorage("file"), expected), spelled


def test_memory_files_can_be_read_by_several_threads(memory: Any) -> None:
    memory.pipe_file("/dir/a", bytes(range(256)) * 4096)
    storage, path = open_storage("memory://dir/a")
    start = threading.Barrier(4, timeout=PATIENCE_S)

    def read(shift: int) -> bool:
        with storage.open(path) as file:
            start.wait()
            return all(file.read_at(256, at * 256 + shift)[0] == shift for at in range(1000))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))


def test_memory_versions_agree_between_listing_and_asking(memory: Any) -> None:
    memory.pipe_file("/dir/a", b"old")
    storage, _ = open_storage("memory://dir")
    (listed,) = storage.walk("/dir")
    assert storage.version("/dir/a") == listed.version
    memory.pipe_file("/dir/a", b"new")
    assert storage.version("/dir/a") != listed.version


@pytest.mark.parametrize("call", ["open", "version", "read_bytes"])
@pytest.mark.parametrize("url", ["{tmp}/gone.parquet", "{tmp}/file/gone.parquet", "memory://gone.parquet"])
def test_a_missing_file_is_a_table_error_that_names_it(call: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no directory")
    storage, path = open_storage(url.format(tmp=tmp_path))
    with pytest.raises(TableError, match=r"gone\.parquet.*restore it") as caught:
        getattr(storage, call)(path)
    assert isinstance(caught.value.__cause__, OSError)
    assert storage.stat(path) is None


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    storage, path = open_storage(tmp_path)
    assert storage.stat(path) == Found(str(tmp_path), None)
    with pytest.raises(TableError, match="found a directory"):
        storage.version(path)
    with pytest.raises(StorageError, match="is a directory"):
        storage.open(path)


@pytest.mark.parametrize(
    ("refusal", "message"),
    [(PermissionError(13, "denied"), "refuses access"), (TimeoutError("late"), "TimeoutError: late")],
)
def test_a_refusal_is_a_storage_error(
    refusal: OSError, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise refusal

    storage, path = open_storage(tmp_path / "a")
    monkeypatch.setattr("torch_table_loader.source.local_client.os.stat", refuse)
    with pytest.raises(StorageError, match=message) as caught:
        storage.version(path)
    assert str(tmp_path / "a") in str(caught.value)
    assert caught.value.__cause__ is refusal


def test_errors_for_unknown_protocols_and_missing_packages_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        open_storage("nosuch://x")
    with pytest.raises(ConfigError, match="chained"):
        open_storage("simplecache::s3://bucket/x")

    def missing(protocol: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingExtraError, match="Install s3fs"):
        open_storage("s3://bucket/x", {"version_aware": True})
    with pytest.raises(MissingExtraError, match="Install s3fs"):
        open_storage("other://bucket/x")


@pytest.mark.parametrize(
    ("url", "packages", "extra"),
    [
        ("s3://bucket/x", ["botocore", "obstore"], "s3"),
        ("gs://bucket/x", ["obstore"], "gcs"),
        ("abfss://box@account.dfs.core.windows.net/x", ["obstore"], "azure"),
        ("https://host/x.parquet", ["aiohttp"], "http"),
    ],
)
def test_a_store_whose_packages_are_missing_is_refused_with_its_extra(
    url: str, packages: list[str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    said = rf"^{url.partition(':')[0]}:// needs {' and '.join(packages)}; pip install 'torch-table-loader\[{extra}\]'$"
    with pytest.raises(MissingExtraError, match=said):
        open_storage(url)


@pytest.mark.parametrize("path", ["", b"bytes", 3, None])
def test_invalid_paths_are_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path must be"):
        open_storage(path)


def test_options_must_be_a_mapping() -> None:
    with pytest.raises(ConfigTypeError, match="mapping"):
        open_storage("s3://bucket", [("key", "x")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "path", "shown"),
    [
        ("s3://AKIAME:hunter2%2Fwith+slash@bucket/t", "bucket/t", "s3://bucket/t"),
        ("https://me:hunter2%2Fwith+slash@host/t?sig=hunter2", "https://host/t?sig=hunter2", "https://host/t"),
        ("ftp://me:hunter2%2Fwith+slash@host/t", "/t", "ftp://t"),
    ],
)
def test_a_login_in_the_url_goes_to_the_options_and_is_never_shown(url: str, path: str, shown: str) -> None:
    storage, opened = open_storage(url)
    assert opened == path
    assert storage.shown(opened) == shown
    assert storage.options
    for text in (repr(storage), repr(pickle.loads(pickle.dumps(storage))), storage.place, shown):  # noqa: S301
        assert "hunter2" not in text
        assert "AKIAME" not in text


@pytest.mark.parametrize("protocol", ["s3", "https"])
def test_a_url_with_a_bare_slash_in_its_secret_is_refused_without_showing_it(protocol: str) -> None:
    url = f"{protocol}://AKIAME:{SECRET}@bucket/t"
    with pytest.raises(ConfigError, match="%2F") as caught:
        open_storage(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_underlying_errors_that_quote_a_secret_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise OSError("cannot connect") from RuntimeError(f"signed with {SECRET}")

    monkeypatch.setattr("torch_table_loader.source.storage.connect", connect)
    storage, path = open_storage("s3://bucket/t", {"key": "AKIAME", "secret": SECRET})
    with pytest.raises(StorageError, match="cannot connect") as caught:
        storage.open(path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_options_that_do_not_fit_are_named_without_their_values() -> None:
    storage, path = open_storage("s3://bucket/t", {"key": "AKIAMEMEME", "region": "eu-west-1"})
    with pytest.raises(ConfigError, match="access key and secret key together") as caught:
        storage.open(path)
    assert "AKIAMEMEME" not in str(caught.value)


def test_a_storage_pickles_without_its_client(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    storage, path = open_storage(tmp_path / "a")
    storage.version(path)
    again = pickle.loads(pickle.dumps(storage))  # noqa: S301
    assert again == storage
    assert hash(again) == hash(storage)
    assert not has_client(again)
    assert again.read_bytes(path) == b"abc"


def has_client(storage: FileStorage) -> bool:
    return storage._process.connection is not None


def test_closing_drops_the_client_and_the_next_call_opens_another(tmp_path: Path) -> None:
    storage, _ = open_storage(tmp_path)
    storage.walk(str(tmp_path))
    assert has_client(storage)
    storage.close()
    storage.close()
    assert not has_client(storage)
    assert storage.walk(str(tmp_path)) == []


def _read_in_child(storage: FileStorage, path: str, answers: Any) -> None:
    inherits = has_client(storage)
    answers.put((inherits, storage.read_bytes(path), has_client(storage)))


@pytest.mark.parametrize("url", ["{tmp}/a", "memory://fork/a"])
def test_a_forked_child_opens_its_own_client(url: str, tmp_path: Path, memory: Any) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    memory.pipe_file("/fork/a", b"abc")
    storage, path = open_storage(url.format(tmp=tmp_path))
    assert storage.fork_safe
    storage.read_bytes(path)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(storage, path, answers))
    child.start()
    assert answers.get() == (False, b"abc", True)
    child.join()
    assert child.exitcode == 0


def test_only_stores_without_threads_are_fork_safe() -> None:
    assert not open_storage("s3://bucket/x")[0].fork_safe
    assert not open_storage("https://host/x")[0].fork_safe


def test_memory_refuses_to_leave_its_process(memory: Any) -> None:
    storage, path = open_storage("memory://stay/a")
    assert pickle.loads(pickle.dumps(storage)) == storage  # noqa: S301
    child = multiprocessing.get_context("spawn").Process(target=_read_in_child, args=(storage, path, None))
    with pytest.raises(ConfigError, match=r"memory:// .*worker_type"):
        child.start()
    carried = pickle.dumps(storage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_table_loader.source.storage._MEMORY_OF", "another process")
        with pytest.raises(ConfigError, match="memory://"):
            pickle.loads(carried)  # noqa: S301


def test_writing_is_atomic_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    storage, path = open_storage(tmp_path / "new" / "dir" / "a")
    storage.write_bytes(path, b"one")
    storage.write_bytes(path, b"two")
    assert storage.read_bytes(path) == b"two"
    assert [entry.name for entry in (tmp_path / "new" / "dir").iterdir()] == ["a"]


def test_walking_follows_links_but_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "b").write_bytes(b"b")
    table = tmp_path / "table"
    table.mkdir()
    (table / "a").write_bytes(b"a")
    (table / "linked").symlink_to(tmp_path / "far")
    (table / "circle").symlink_to(table)
    storage, path = open_storage(table)
    assert {entry.path for entry in storage.walk(path)} == {f"{table}/a", f"{table}/linked/b"}


def test_a_dangling_link_is_an_error_that_names_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").symlink_to(tmp_path / "gone")
    storage, path = open_storage(tmp_path)
    with pytest.raises(TableError, match=str(tmp_path)):
        storage.walk(path)


def test_places_differ_by_endpoint_and_not_by_login() -> None:
    def place(key: str, endpoint: str) -> str:
        return open_storage("s3://bucket", {"key": key, "endpoint_url": endpoint})[0].place

    assert place("a", "http://one") == place("b", "http://one")
    assert place("a", "http://one") != place("a", "http://two")
