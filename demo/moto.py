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
    """Start a server on a port of this machine, and stop it at the end.

    Args:
        log: where its output goes.

    Yields:
        The endpoint of all its services.
    """
    with held_port() as port, log.open("wb") as output:
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603
            try:
                _wait_until_it_answers(url, process, log)
                yield url
            finally:
                process.terminate()


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port of this machine, so that nobody else gets it; a server that reuses addresses can listen there.

    Yields:
        The port. As long as no server listens there, connections are refused.
    """
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        yield port


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


__all__ = ["held_port", "serving_moto"]
