"""Iceberg's REST catalog with timeouts: pyiceberg's own requests wait for an answer forever."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import Session

CONNECT_SECONDS = 10.0
"""Seconds to connect; ``rest.client.connection-timeout-ms`` overrides it."""

ANSWER_SECONDS = 60.0
"""Seconds without a byte after which a request has failed; ``rest.client.socket-timeout-ms`` overrides it."""

_CONNECT, _ANSWER = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
"""The names that Iceberg's own Java client uses."""


class LimitedRestCatalog(RestCatalog):
    """A REST catalog with a timeout on every request, including those for tokens."""

    def _config_headers(self, session: Session) -> None:
        """Prepare a session before its first request."""
        limits = (
            _seconds(self.properties, _CONNECT, CONNECT_SECONDS),
            _seconds(self.properties, _ANSWER, ANSWER_SECONDS),
        )
        session.request = partial(session.request, timeout=limits)  # type: ignore[method-assign]
        super()._config_headers(session)


def is_rest(properties: Mapping[str, Any]) -> bool:
    """Return whether pyiceberg would open its REST catalog.

    Args:
        properties: a catalog's properties, including those of ``.pyiceberg.yaml``.

    >>> is_rest({"uri": "http://host"}), is_rest({"type": "REST", "uri": "x"}), is_rest({"uri": "sqlite://"})
    (True, True, False)
    """
    kind, uri = properties.get("type"), properties.get("uri")
    if not isinstance(uri, str) or "py-catalog-impl" in properties:
        return False
    return uri.startswith("http") if not kind else isinstance(kind, str) and kind.lower() == "rest"


def _seconds(properties: Mapping[str, Any], name: str, otherwise: float) -> float:
    given = properties.get(name)
    if given is None:
        return otherwise
    try:
        seconds = float(given) / 1000
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name} must be a number of milliseconds above 0, got {given!r}")
    return seconds
