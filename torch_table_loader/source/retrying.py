"""Retries failed requests to a store, and counts all: one policy, on top of what the store's client does by itself."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch_table_loader.cancellation import cancelled
from torch_table_loader.causes import may_be_refusal, may_pass
from torch_table_loader.option_values import DEFAULT_RETRY_SECONDS
from torch_table_loader.records import Traffic
from torch_table_loader.sizes import sizes

T = TypeVar("T")

_SLICE_S = 0.1
"""Seconds within which a wait ends once nobody needs the answer."""

_LEAST_S = 0.001
"""If less time remains, another try is not worthwhile."""

_log = logging.getLogger(__name__)
_random = random.SystemRandom()  # leaves the caller's random numbers alone, and differs between ranks


class WrongLengthError(OSError):
    """A response to a request for the bytes from `start` to `stop` had another number of bytes."""

    def __init__(self, start: int, stop: int, num_bytes: int) -> None:
        super().__init__(
            f"bytes {start} to {stop} were asked for, and {num_bytes} bytes came; the server must answer requests for "
            "ranges, and the file must be as long as it was"
        )
        # A server that ignores ranges will continue to do so; a body that was cut may arrive whole.
        self.most_tries = 3 if num_bytes > stop - start else 10


def of_length(data: Any, start: int, stop: int) -> Any:
    """Return the response to a request for the bytes from `start` to `stop`, after checking its length.

    >>> of_length(b"abc", 5, 8)
    b'abc'
    """
    if len(data) != stop - start:
        raise WrongLengthError(start, stop, len(data))
    return data


def patience(num_bytes: int = 0) -> float:
    """Return the seconds that an answer of so many bytes may take: `answer_s`, and their own at the least rate.

    >>> patience(), patience(1 << 20)
    (60.0, 124.0)
    """
    return sizes().answer_s + num_bytes / sizes().least_bytes_per_s


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long, and how often, a failed request is repeated.

    Waits are random and grow (exponential backoff with full jitter), so that many ranks do not retry at the same time.

    Args:
        retry_seconds: from the first failure of a request to the last time it is sent.
        fraction: returns a random number in [0, 1): the share of the longest wait to wait.
    """

    retry_seconds: float = DEFAULT_RETRY_SECONDS
    now: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)
    fraction: Callable[[], float] = field(default=_random.random, repr=False, compare=False)

    def wait_after(self, tries: int, left: float) -> float:
        """Return the seconds to wait after so many tries, when `left` seconds remain."""
        most = min(sizes().longest_wait_s, sizes().first_wait_s * 2.0 ** min(tries - 1, 30))
        return min(most * self.fraction(), left)

    def pause(self, seconds: float) -> bool:
        """Wait, and return whether to continue: False once nobody needs the answer."""
        end = self.now() + seconds
        while not (over := cancelled()) and (left := end - self.now()) > 0:
            self.sleep(min(left, _SLICE_S))
        return not over


class TrafficCounter:
    """Counts for one storage in one process; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Traffic()
        self._failing_since: float | None = None
        self._warned = False

    def total(self) -> Traffic:
        """Return the counts so far."""
        return self._total

    def add(self, more: Traffic) -> None:
        """Count what comes on top."""
        with self._lock:
            self._total += more

    def served(self, num_bytes: int, now: float) -> float | None:
        """Count an answer of so many bytes.

        Returns:
            Seconds since the first of the failed requests before it, if the caller was warned of them.
        """
        self.add(Traffic(num_bytes=num_bytes))
        if self._failing_since is None:
            return None
        with self._lock:
            since, warned = self._failing_since, self._warned
            self._failing_since, self._warned = None, False
        if warned and since is not None:
            return now - since
        return None

    def failed(self, began: float, now: float, patience: float) -> float | None:
        """Record a failed request.

        Returns:
            Seconds without a successful request, if the caller should be warned now: once `patience` seconds have
            passed, and only once until a request succeeds.
        """
        with self._lock:
            if self._failing_since is None:
                self._failing_since = began
            seconds = now - self._failing_since
            if self._warned or seconds < patience:
                return None
            self._warned = True
            return seconds


class Attempts:
    """The tries of one request."""

    def __init__(
        self,
        policy: RetryPolicy,
        counter: TrafficCounter,
        what: str,
        say: Callable[[BaseException], str],
        renew: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start without a try.

        `what` names the object of the request in messages. `renew` gets other credentials after a refusal, and returns
        whether there are any; it is called once.
        """
        self._policy, self._counter, self._what, self._say = policy, counter, what, say
        self._renew: Callable[[], bool] | None = renew
        self._tries = 0
        self._wrong = 0
        self._failing_since = math.inf
        self._seconds = 0.0

    @property
    def note(self) -> str:
        """A summary of the tries, for an error message."""
        if self._tries > 1:
            return f"; tried {self._tries} times over {self._seconds:.0f} s"
        return ""

    def make(self, ask: Callable[[], T], num_bytes: Callable[[T], int] = lambda _: 0) -> T:
        """Send a request, repeat it while its failure may be temporary, and return its result."""
        while True:
            began = self._policy.now()
            self._counter.add(Traffic(requests=1, retries=int(self._tries > 0)))
            self._tries += 1
            try:
                answer = ask()
            except Exception as error:
                if not self._goes_on(error, began):
                    raise
            else:
                outage = self._counter.served(num_bytes(answer), self._policy.now())
                if outage is not None:
                    _log.info("%s: the store answers again, after %.0f s", self._what, outage)
                return answer

    def _goes_on(self, error: Exception, began: float) -> bool:
        """Wait after a failed try, and return whether there is another."""
        now = self._policy.now()
        self._failing_since = min(self._failing_since, now)
        self._seconds = now - self._failing_since
        left = self._policy.retry_seconds - self._seconds
        if isinstance(error, WrongLengthError):
            self._wrong += 1
            passes = self._wrong < error.most_tries
        else:
            passes = may_pass(error)
        if not passes and self._renew is not None and may_be_refusal(error):
            renew, self._renew = self._renew, None
            return renew()
        if not passes or left < _LEAST_S or cancelled():
            return False
        reason = self._say(error)
        if (seconds := self._counter.failed(began, now, sizes().store_warning_s)) is not None:
            _log.warning(
                "still waiting for the store: %s: %s, for %.0f s; gives up after %.0f s",
                *(self._what, reason, seconds, self._policy.retry_seconds),
            )
        wait = self._policy.wait_after(self._tries, left)
        _log.debug("%s: %s; attempt %d follows in %.1f s", self._what, reason, self._tries + 1, wait)
        goes_on = self._policy.pause(wait)
        waited = self._policy.now() - now
        self._seconds += waited
        self._counter.add(Traffic(seconds_waiting=waited))
        return goes_on
