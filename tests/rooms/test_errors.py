"""Errors that are also Python's own: the type for each failure, which survives crossing processes."""

from __future__ import annotations

import ast
import errno
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import aiohttp
import botocore.exceptions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError
from torch.utils.data import DataLoader, Dataset

from torch_table_loader import StructuredDataset, errors
from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import (
    AccessRefusedError,
    ConfigError,
    MissingFileError,
    MissingPathError,
    OutOfMemoryError,
    StorageError,
    StorageTimeoutError,
    TableError,
    TableLoaderError,
)
from torch_table_loader.extend import open_storage

BOTH = [
    (MissingPathError, ConfigError, FileNotFoundError, errno.ENOENT),
    (MissingFileError, TableError, FileNotFoundError, errno.ENOENT),
    (AccessRefusedError, StorageError, PermissionError, errno.EACCES),
    (StorageTimeoutError, StorageError, TimeoutError, errno.ETIMEDOUT),
    (OutOfMemoryError, StorageError, MemoryError, errno.ENOMEM),
]


@pytest.mark.parametrize(("kind", "ours", "pythons", "number"), BOTH)
def test_an_error_has_our_type_and_pythons_and_survives_pickling(
    kind: Any, ours: Any, pythons: Any, number: int
) -> None:
    error: Any
    for error in (kind("what to do", "t/a.parquet"), pickle.loads(pickle.dumps(kind("what to do", "t/a.parquet")))):  # noqa: S301
        assert isinstance(error, ours)
        assert isinstance(error, pythons)
        assert (type(error), str(error), error.args) == (kind, "what to do", ("what to do",))
        assert (error.errno, error.filename, error.strerror) == (number, "t/a.parquet", "what to do")
    assert kind("alone").filename is None


def test_every_error_survives_pickling() -> None:
    for name in errors.__all__:
        again = pickle.loads(pickle.dumps(getattr(errors, name)("a\nb")))  # noqa: S301
        assert (type(again).__name__, str(again)) == (name, "a\nb")


def _send(storage: Any, path: str, answers: Any) -> None:
    try:
        storage.version(path)
    except TableLoaderError as error:
        answers.put(error)


@pytest.mark.slow
def test_an_error_arrives_complete_from_a_spawned_process(tmp_path: Path) -> None:
    storage, path = open_storage(tmp_path / "gone.parquet")
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_send, args=(storage, path, answers))
    child.start()
    error = answers.get()
    child.join()
    assert type(error) is MissingFileError
    assert (error.filename, error.errno) == (path, errno.ENOENT)


class _Raises(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        raise StorageTimeoutError("late", "t/a.parquet")

    def __len__(self) -> int:
        return 1


def test_torch_reraises_it_with_its_own_type() -> None:
    with pytest.raises(StorageTimeoutError, match="late"):
        next(iter(DataLoader(_Raises(), num_workers=1)))


def _client_error(code: str, status: int) -> Any:
    return botocore.exceptions.ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject"
    )


def _http_error(status: int) -> Exception:
    return aiohttp.ClientResponseError(None, (), status=status)  # type: ignore[arg-type]


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class _ForbiddenError(Exception):
    status_code = 403


CAUSES: list[tuple[Exception, type[TableLoaderError]]] = [
    (OSError(errno.ENOENT, "x"), MissingFileError),
    (OSError(errno.ENOTDIR, "x"), MissingFileError),
    (_http_error(404), MissingFileError),
    (_client_error("NoSuchKey", 404), MissingFileError),
    (OSError(errno.EACCES, "x"), AccessRefusedError),
    (OSError(errno.EPERM, "x"), AccessRefusedError),
    (_http_error(401), AccessRefusedError),
    (_http_error(403), AccessRefusedError),
    (_client_error("AccessDenied", 403), AccessRefusedError),
    (_client_error("ExpiredToken", 400), AccessRefusedError),
    (_ForbiddenError(), AccessRefusedError),
    (botocore.exceptions.NoCredentialsError(), AccessRefusedError),
    (OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body."), AccessRefusedError),
    (OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation"), AccessRefusedError),
    (OSError(errno.ETIMEDOUT, "x"), StorageTimeoutError),
    (TimeoutError(), StorageTimeoutError),
    (_http_error(408), StorageTimeoutError),
    (botocore.exceptions.ConnectTimeoutError(endpoint_url="http://h"), StorageTimeoutError),
    (botocore.exceptions.ReadTimeoutError(endpoint_url="http://h"), StorageTimeoutError),
    (GenericError("Generic S3 error: error sending request\n\nDebug source:\nkind: Timeout,"), StorageTimeoutError),
    (GenericError("Generic S3 error - Server returned non-2xx status code: 504 Gateway Timeout"), StorageTimeoutError),
    (GenericError("... status code: 400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"), AccessRefusedError),
    (GenericError("Server returned non-2xx status code: 404 Not Found: <Error/>"), MissingFileError),
    (GenericError("Server returned non-2xx status code: 503 Slow Down"), StorageError),
    (PermissionDeniedError("The operation lacked the necessary privileges"), AccessRefusedError),
    (UnauthenticatedError("The operation lacked valid authentication credentials"), AccessRefusedError),
    (OSError("AWS Error NETWORK_CONNECTION: curlCode: 28, Timeout was reached"), StorageTimeoutError),
    (_caused(OSError("reading failed"), TimeoutError()), StorageTimeoutError),
    (_caused(RuntimeError("reading failed"), _http_error(403)), AccessRefusedError),
    (OSError("AWS Error NETWORK_CONNECTION: curlCode: 7, Couldn't connect to server"), StorageError),
    (OSError(errno.ECONNREFUSED, "x"), StorageError),
    (_http_error(500), StorageError),
    (_client_error("InternalError", 500), StorageError),
    (OSError("a page does not decode, in 403 bytes"), StorageError),
    (_caused(OSError("the server fails"), FileNotFoundError()), StorageError),
]


@pytest.mark.parametrize(("cause", "expected"), CAUSES, ids=lambda value: repr(value)[:60])
def test_the_cause_decides_the_type(cause: Exception, expected: type[TableLoaderError]) -> None:
    assert store_error_type(cause) is expected
    assert store_error_type(cause, missing=StorageError) is (StorageError if expected is MissingFileError else expected)


def test_an_error_that_is_its_own_cause_does_not_loop() -> None:
    error = OSError("x")
    error.__cause__ = error
    assert store_error_type(error) is StorageError


def test_a_path_that_matches_nothing_is_a_file_not_found_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "gone", tmp_path / "*.parquet", tmp_path / "empty"):
        with pytest.raises(FileNotFoundError, match="matches nothing") as caught:
            StructuredDataset(str(path))
        assert isinstance(caught.value, ConfigError)
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_file_that_disappears_is_a_file_not_found_error(tmp_path: Path, worker_type: Any) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), worker_type=worker_type, num_workers=1)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.parquet") as caught:
        list(loader)
    assert isinstance(caught.value, TableError)


@pytest.mark.parametrize("call", ["stat", "version", "open", "read_bytes", "walk"])
def test_an_inaccessible_folder_is_a_permission_error(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, path = open_storage(tmp_path / "a")
    if os.geteuid() == 0:  # root may do anything: let the kernel's answer be another's
        client = storage._connection(path).client

        def refuse(*_: Any, **__: Any) -> Any:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

        monkeypatch.setattr(client, {"version": "stat", "read_bytes": "read"}.get(call, call), refuse)
    else:
        tmp_path.chmod(0)
    try:
        with pytest.raises(PermissionError, match="refuses access") as caught:
            getattr(storage, call)(path)
    finally:
        tmp_path.chmod(0o700)
    assert isinstance(caught.value, StorageError)
    assert caught.value.filename == path


def test_no_part_of_a_message_stands_alone() -> None:
    """A text on a line of its own that is no docstring: a message of two lines lacks its parentheses."""
    folder, alone = Path(errors.__file__).parent, []
    for path in sorted(folder.rglob("*.py")):
        lines = path.read_bytes().splitlines()
        for node in ast.walk(ast.parse(b"\n".join(lines))):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str)):
                said = lines[value.lineno - 1][value.col_offset :].lstrip(b"r")
                alone += [] if said.startswith(b'"""') else [f"{path.relative_to(folder)}:{value.lineno}"]
    assert alone == []
