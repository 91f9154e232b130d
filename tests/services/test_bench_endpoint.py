"""The endpoint that `bench` measures with is a store as others are, and counts what it serves."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from bench.endpoint import Endpoint, endpoint
from tests.effort import daily

BODY = bytes(range(256)) * 2000
NAMES = [f"t/day={day}/{part:04}.bin" for day in (1, 2) for part in range(600)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("bucket")
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "big").write_bytes(BODY)
    with endpoint(folder) as running:
        yield running


def _get(served: Endpoint, key: str, method: str = "GET", **headers: str) -> tuple[int, bytes, str]:
    asked = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        request = Request(f"{served.url}/any/{key}", headers=asked, method=method)  # noqa: S310
        with urlopen(request) as answer:  # noqa: S310
            return answer.status, answer.read(), answer.headers["ETag"]
    except HTTPError as error:
        with error:
            return error.code, error.read(), ""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("bytes=3-9", BODY[3:10]), ("bytes=7-", BODY[7:]), ("bytes=-5", BODY[-5:]), ("bytes=5-99999999", BODY[5:])],
)
@daily(2)
def test_a_range_is_those_bytes(served: Endpoint, asked: str, expected: bytes) -> None:
    assert _get(served, "big", Range=asked)[:2] == (206, expected)


def test_a_whole_object_comes_whole_at_any_speed(served: Endpoint) -> None:
    for each in (0, 50):
        served.ask("conf", each=each, together=each)
        assert _get(served, "big")[:2] == (200, BODY)
    served.ask("conf", each=0, together=0)


def test_what_it_refuses(served: Endpoint) -> None:
    assert _get(served, "big", Range="bytes=99999999-")[0] == 416
    assert _get(served, "nothing")[0] == 404
    assert _get(served, "../../etc/passwd")[0] == 404
    tag = _get(served, "big", "HEAD")[2]
    assert _get(served, "big", If_Match=tag)[0] == 200
    assert _get(served, "big", If_Match='"other"')[0] == 412


def test_a_listing_has_every_key_once_over_pages_and_folders(served: Endpoint) -> None:
    place = served.url.removeprefix("http://")
    keys = {"access_key": "k", "secret_key": "s", "region": "us-east-1"}
    store = S3FileSystem(scheme="http", endpoint_override=place, **keys)
    found = store.get_file_info(FileSelector("any/t", recursive=True))
    assert sorted(each.path for each in found if each.is_file) == [f"any/{name}" for name in NAMES]
    assert {each.path for each in store.get_file_info(FileSelector("any/t"))} == {"any/t/day=1", "any/t/day=2"}


def test_it_counts_and_logs_what_it_served(served: Endpoint) -> None:
    served.ask("reset")
    _get(served, "big", Range="bytes=3-9")
    _get(served, "big", "HEAD")
    told, log = served.ask("stats"), served.ask("log")
    assert (told["requests"], told["bytes"], told["most_in_flight"]) == ({"GET": 1, "HEAD": 1, "LIST": 0}, 7, 1)
    assert [(each["method"], each["key"], each["start"], each["stop"]) for each in log] == [
        ("GET", "big", 3, 10),
        ("HEAD", "big", 0, 0),
    ]
    assert all(each["began"] <= each["ended"] for each in log)
