"""Runs moto's server, which plays S3 and Glue, for as long as something needs it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_S = 60


@contextmanager
def serving_moto(log: Path) -> Iterator[str]:
    """Start a server on a free port of this machine, and stop it at the end.

    Args:
        log: where its output goes.

    Yields:
        The endpoint of all its services.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603
        try:
            _wait_until_it_answers(url, process, log)
            yield url
        finally:
            process.terminate()


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"moto_server ended with {process.returncode}: {log.read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=5):  # noqa: S310 - our own
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError(f"moto_server did not answer within {_PATIENCE_S} s: {log.read_text()}")


__all__ = ["free_port", "serving_moto"]
