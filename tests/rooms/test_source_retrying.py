"""The retry policy under a fake clock, which errors are temporary, and what is counted and reported meanwhile."""

from __future__ import annotations

import errno
import logging
import pickle
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.effort import daily
from tests.logs import said_by
from torch_table_loader import StorageError
from torch_table_loader.cancellation import cancellable
from torch_table_loader.causes import may_pass
from torch_table_loader.errors import AccessRefusedError, StorageTimeoutError
from torch_table_loader.extend import FileStorage, open_storage
from torch_table_loader.ranges import Client
from torch_table_loader.records import Traffic
from torch_table_loader.sizes import sizes
from torch_table_loader.source.retrying import (
    Attempts,
    RetryPolicy,
    TrafficCounter,
    WrongLengthError,
    of_length,
)


class Clock:
    """A clock that advances during sleeps and tries."""

    def __init__(self, takes: float = 0.0) -> None:
        self.time, self.takes = 1000.0, takes
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.time += seconds

    def policy(self, retry_seconds: float, fraction: float = 0.99) -> RetryPolicy:
        return RetryPolicy(retry_seconds, self.now, self.sleep, lambda: fraction)


class Store:
    """Raises one error for each try, then serves."""

    def __init__(self, clock: Clock, errors: Iterator[Exception]) -> None:
        self.clock, self.errors = clock, errors
        self.asked: list[float] = []

    def __call__(self) -> bytes:
        self.asked.append(self.clock.time)
        self.clock.time += self.clock.takes
        for error in self.errors:
            raise error
        return b"rows"


def attempts(policy: RetryPolicy, counter: TrafficCounter | None = None) -> Attempts:
    return Attempts(policy, counter or TrafficCounter(), "s3://b/f", str)


def forever(error: Callable[[], Exception] = ConnectionResetError) -> Iterator[Exception]:
    while True:
        yield error()


@given(
    retry_seconds=st.floats(0, 500),
    fraction=st.floats(0.01, 0.999),
    takes=st.floats(0, 40),
)
def test_a_failing_store_is_retried_for_the_configured_time(
    retry_seconds: float, fraction: float, takes: float
) -> None:
    clock = Clock(takes)
    store, counter = Store(clock, forever()), TrafficCounter()
    made = attempts(clock.policy(retry_seconds, fraction), counter)
    with pytest.raises(ConnectionResetError):
        made.make(store)
    assert sum(clock.slept) <= retry_seconds + 1e-6
    assert store.asked[-1] <= store.asked[0] + takes + retry_seconds + 1e-6
    total = counter.total()
    assert (total.requests, total.retries) == (len(store.asked), len(store.asked) - 1)
    assert total.seconds_waiting == pytest.approx(sum(clock.slept))
    assert made.note == "" or f"tried {len(store.asked)} times" in made.note


@given(fraction=st.floats(0, 0.999), tries=st.integers(1, 2000), left=st.floats(0, 1e6))
def test_waits_grow_up_to_a_maximum_and_the_remaining_time(fraction: float, tries: int, left: float) -> None:
    policy = RetryPolicy(fraction=lambda: fraction)
    wait = policy.wait_after(tries, left)
    assert 0 <= wait <= min(left, sizes().longest_wait_s)
    assert wait <= policy.wait_after(tries + 1, left)
    assert policy.wait_after(1, left) <= sizes().first_wait_s


@given(failures=st.integers(0, 12))
def test_the_final_answer_is_returned(failures: int) -> None:
    clock, counter = Clock(), TrafficCounter()
    store = Store(clock, iter([TimeoutError()] * failures))
    assert attempts(clock.policy(120), counter).make(store, len) == b"rows"
    assert len(store.asked) == failures + 1
    assert counter.total().num_bytes == 4


@given(after=st.floats(0, 60))
def test_a_cancelled_request_does_not_sleep(after: float) -> None:
    clock = Clock()
    store = Store(clock, forever())
    end = clock.time + after
    with cancellable(lambda: clock.time >= end), pytest.raises(ConnectionResetError):
        attempts(clock.policy(500)).make(store)
    assert clock.time <= end + 0.1 + 1e-6
    assert store.asked[-1] <= end


def test_permanent_errors_are_tried_once() -> None:
    clock = Clock()
    store = Store(clock, forever(PermissionError))
    with pytest.raises(PermissionError):
        attempts(clock.policy(500)).make(store)
    assert len(store.asked) == 1


@pytest.mark.parametrize(("num_bytes", "most"), [(1000, 3), (3, 10)], ids=["ignored", "short"])
def test_bodies_of_the_wrong_length_are_not_retried_for_long(num_bytes: int, most: int) -> None:
    clock = Clock()
    store = Store(clock, forever(lambda: WrongLengthError(5, 15, num_bytes)))
    with pytest.raises(WrongLengthError, match=f"bytes 5 to 15 were asked for, and {num_bytes} bytes came"):
        attempts(clock.policy(500)).make(store)
    assert len(store.asked) == most


@given(start=st.integers(0, 50), length=st.integers(1, 50), came=st.integers(0, 150))
def test_only_a_body_of_the_ranges_length_is_accepted(start: int, length: int, came: int) -> None:
    data = bytes(came)
    if came == length:
        assert of_length(data, start, start + length) is data
    else:
        with pytest.raises(WrongLengthError):
            of_length(data, start, start + length)


def test_a_long_wait_gives_one_warning_until_the_store_answers(caplog: pytest.LogCaptureFixture) -> None:
    clock, counter = Clock(), TrafficCounter()
    caplog.set_level(logging.INFO, "torch_table_loader.source.retrying")
    for _ in range(2):
        store = Store(clock, iter([OSError("AWS Error SLOW_DOWN")] * 9))
        attempts(clock.policy(120), counter).make(store)
    warned = said_by(caplog, "source.retrying")
    assert len(warned) == 2
    assert warned[0].startswith("still waiting for the store: s3://b/f: AWS Error SLOW_DOWN, for ")
    assert warned[0].endswith("gives up after 120 s")
    assert sum("answers again, after" in message for message in said_by(caplog, "source.retrying", logging.INFO)) == 2


def test_short_waits_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    caplog.set_level(logging.INFO, "torch_table_loader.source.retrying")
    attempts(clock.policy(120)).make(Store(clock, iter([ConnectionResetError()] * 4)))
    assert clock.time - 1000 < sizes().store_warning_s
    assert said_by(caplog, "source.retrying", logging.INFO) == []


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status = status


class ClientError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


class GenericError(Exception):
    """Like obstore's."""


class ClientPayloadError(Exception):
    """Like aiohttp's."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def answered(status: int) -> GenericError:
    return GenericError(f"Error performing GET http://h/b/a in 1ms - Server returned non-2xx status code: {status} X: ")


PASS: list[Exception] = [
    *(HttpError(status) for status in (408, 429, 500, 502, 503, 504)),
    *(answered(status) for status in (408, 429, 500, 502, 503, 504)),
    ClientError(503, "SlowDown"),
    ClientError(400, "RequestTimeout"),
    ClientError(503, "503"),
    ConnectionResetError(),
    ConnectionRefusedError(),
    BrokenPipeError(),
    TimeoutError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    OSError(errno.EBUSY, "Please reduce your request rate."),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    ClientPayloadError("Response payload is not completed"),
    OSError("When reading: AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate."),
    OSError("When reading: AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."),
    OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 56, Failure when receiving data"),
    GenericError("Generic S3 error: HTTP error: error sending request\n\nkind: Timeout"),
    GenericError("Generic S3 error: HTTP error: request or response body error\n\nkind: Interrupted"),
    GenericError('error sending request ... ConnectError( "dns error", "Temporary failure in name resolution"'),
    caused(OSError(errno.EIO, "An error occurred"), ClientError(429, "TooManyRequests")),
    caused(OSError("answered"), HttpError(503)),
]

LAST: list[Exception] = [
    *(HttpError(status) for status in (400, 401, 403, 404, 410, 412, 416, 501)),
    *(answered(status) for status in (400, 401, 403, 404, 412, 416, 501)),
    ClientError(403, "RequestTimeTooSkewed"),
    ClientError(400, "ExpiredToken"),
    FileNotFoundError(),
    PermissionError(),
    IsADirectoryError(),
    TypeError("unexpected keyword"),
    ValueError("no"),
    OSError(errno.ENOSPC, "disk full"),
    OSError("Unexpected end of stream"),
    socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    caused(ConnectionError("Cannot connect"), socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
    caused(ConnectionError("Cannot connect"), ssl.SSLCertVerificationError("certificate verify failed")),
    GenericError('error sending request ... "dns error" ... "Name or service not known"'),
    GenericError("error sending request ... invalid peer certificate: UnknownIssuer"),
    GenericError("Generic S3 error: Received non-partial response when range requested"),
    OSError("AWS Error ACCESS_DENIED during HeadObject operation"),
    AccessRefusedError("refused"),
    StorageTimeoutError("given up"),
]


@pytest.mark.parametrize("error", PASS, ids=repr)
def test_temporary_errors_are_recognized(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize("error", LAST, ids=repr)
def test_permanent_errors_are_recognized(error: Exception) -> None:
    assert not may_pass(error)


class Failing(Client):
    """A client that always fails."""

    def __init__(self, error: Exception) -> None:
        self.error, self.tries = error, 0

    def _fail(self, *_: Any, **__: Any) -> Any:
        self.tries += 1
        raise self.error

    open = stat = walk = read = write = put_file = read_range = _fail


CALLS: dict[str, Callable[[FileStorage, str], Any]] = {
    "open": lambda storage, path: storage.open(path),
    "version": lambda storage, path: storage.version(path),
    "stat": lambda storage, path: storage.stat(path),
    "walk": lambda storage, path: storage.walk(path),
    "read_bytes": lambda storage, path: storage.read_bytes(path),
    "read_range": lambda storage, path: storage.read_range(path, 0, 4),
    "write_bytes": lambda storage, path: storage.write_bytes(path, b"x"),
    "put_file": lambda storage, path: storage.put_file(__file__, path),
}


@pytest.mark.parametrize("call", CALLS)
@daily(2)
def test_every_call_is_retried_and_reported_without_secrets(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(OSError("AWS Error SLOW_DOWN for hidden/secret"))
    monkeypatch.setattr("torch_table_loader.source.storage.connect", lambda *_: failing)
    storage, path = open_storage("s3://bucket/t/f", {"key": "AKIAME", "secret": "hidden/secret", "retry_seconds": 0.3})
    with pytest.raises(StorageError, match=r"s3://bucket/t/f: .*; tried \d+ times over \d s") as caught:
        CALLS[call](storage, path)
    assert "hidden/secret" not in str(caught.value)
    assert failing.tries > 1
    assert storage.traffic().retries == failing.tries - 1


@pytest.mark.parametrize("call", CALLS)
def test_zero_seconds_try_once(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(ConnectionResetError("reset"))
    monkeypatch.setattr("torch_table_loader.source.storage.connect", lambda *_: failing)
    storage, path = open_storage("s3://bucket/t/f", {"key": "AKIAME", "retry_seconds": 0})
    with pytest.raises(StorageError) as caught:
        CALLS[call](storage, path)
    assert "tried" not in str(caught.value)
    assert failing.tries == 1


def test_local_files_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(ConnectionResetError("reset"))
    monkeypatch.setattr("torch_table_loader.source.storage.connect", lambda *_: failing)
    storage, path = open_storage(tmp_path / "f")
    with pytest.raises(StorageError):
        storage.read_bytes(path)
    assert failing.tries == 1
    assert storage.traffic() == Traffic()


def test_the_policy_is_pickled_but_not_part_of_the_place() -> None:
    patient, hasty = (open_storage("s3://bucket/t", {"key": "K", "retry_seconds": seconds})[0] for seconds in (60, 1))
    assert patient == hasty
    assert patient.place == hasty.place
    assert pickle.loads(pickle.dumps(patient)).retry_seconds == 60  # noqa: S301 - our own
