"""A REST catalog whose answers are bounded, decide nothing about its client, and send it to no other host."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urljoin, urlsplit

from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import AuthManagerAdapter
from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from torch_table_loader.errors import StorageError, StorageTimeoutError
from torch_table_loader.iceberg.named_code import names_code, refuse_code
from torch_table_loader.table_formats import cancellable, check_nesting, interruptibly, sizes

CONNECT_SECONDS = 10.0
"""Seconds to connect; ``rest.client.connection-timeout-ms`` overrides it."""

ANSWER_SECONDS = 60.0
"""Seconds without a byte after which a request has failed; ``rest.client.socket-timeout-ms`` overrides it."""

_CONNECT, _ANSWER = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"
"""The names that Iceberg's own Java client uses."""

_LOGIN_SERVER = "oauth2-server-uri"
_ADDRESSES = ("uri", _LOGIN_SERVER)
_OF_CLIENT = ("ssl", "rest.sigv4-enabled")
"""Whether certificates are checked, and whether requests are signed with the caller's keys of AWS."""

_ENCODINGS = "gzip, deflate"
_PIECE = 1 << 14
"""Bytes that are decompressed at once: they become 16 MiB at the most."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Where a request goes; messages may show it, unlike a path, which may hold a token."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: Any) -> Origin:
        """Return the origin of a URL.

        >>> str(Origin.of("HTTPS://me:secret@Host/a?b")), str(Origin.of("http://h:8181"))
        ('https://host', 'http://h:8181')
        """
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            port = parts.port
        except ValueError:  # like no other
            return cls("", "", None)
        scheme = parts.scheme.lower()
        if port is None:
            port = _DEFAULT_PORTS.get(scheme)
        return cls(scheme, parts.hostname or "", port)

    def leads_to(self, other: Origin) -> bool:
        """Return whether what was meant for this origin may go to another: the same, or with encryption.

        >>> plain = Origin.of("http://h")
        >>> plain.leads_to(Origin.of("https://h")), Origin.of("https://h").leads_to(plain)
        (True, False)
        """
        encrypted = Origin("https", self.host, 443)
        return other == self or (self == Origin("http", self.host, 80) and other == encrypted)

    def __str__(self) -> str:
        """The origin as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port in (None, _DEFAULT_PORTS.get(self.scheme)) else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


class _Pieces:
    """The body of an answer, whose pieces are counted as they are decompressed."""

    def __init__(self, raw: Any, say: str, end: float) -> None:
        self._raw, self._say, self._end = raw, say, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        read = getattr(self._raw, "read1", self._raw.read)  # the first does not wait for a whole piece
        total = 0
        while piece := read(_PIECE, decode_content=True):
            total += len(piece)
            if total > sizes().catalog_answer_bytes:
                raise StorageError(
                    f"{self._say} must have at most {sizes().catalog_answer_bytes:,} bytes, decompressed, and has "
                    "more; if its table is sound, let the table's snapshots expire, or pass its metadata file as "
                    "metadata_location="
                )
            if time.monotonic() > self._end:
                raise _too_slow(self._say)
            yield piece


def _too_slow(say: str) -> StorageTimeoutError:
    return StorageTimeoutError(
        f"{say} must come within {sizes().catalog_answer_s:g} s, and has not; look at the catalog"
    )


class _Watched(BaseAdapter):
    """What a session sends its requests through: another adapter, of which it watches the answers.

    Args:
        inner: sends them.
        known: where requests may go.
        limits: seconds to connect, and without a byte, of requests that have none.
    """

    def __init__(self, inner: BaseAdapter, known: tuple[Origin, ...], limits: tuple[float, float] | None) -> None:
        super().__init__()
        self.inner, self._known, self._limits = inner, known, limits
        self._pages = self._page_bytes = 0

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,  # noqa: ARG002 - the whole answer comes in any case
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        """Send a request, and return the whole answer."""
        asked = Origin.of(request.url)
        if not any(known.leads_to(asked) for known in self._known):
            raise _elsewhere(self._known[0], asked)
        if "Accept-Encoding" in request.headers:
            request.headers["Accept-Encoding"] = _ENCODINGS
        say, end = f"an answer of the catalog at {asked}", time.monotonic() + sizes().catalog_answer_s
        call = partial(self.inner.send, request, stream=True, timeout=timeout or self._limits)
        answer = partial(_whole, partial(call, verify=verify, cert=cert, proxies=proxies), asked, say, end)
        try:
            with cancellable(lambda: time.monotonic() > end):
                response = interruptibly(answer)
        except StorageError as error:
            if type(error) is StorageError and time.monotonic() > end:
                raise _too_slow(say) from None
            raise
        self._count(request, response)
        return response

    def _count(self, request: PreparedRequest, response: Response) -> None:
        """Refuse pages without end."""
        if "pageToken" not in parse_qs(urlsplit(request.url or "").query):
            return
        self._pages += 1
        self._page_bytes += len(response.content)
        if self._pages > sizes().catalog_pages or self._page_bytes > sizes().catalog_answer_bytes:
            raise StorageError(
                f"the catalog at {self._known[0]} must list its names on at most {sizes().catalog_pages:,} pages of "
                f"{sizes().catalog_answer_bytes:,} bytes in all, and goes on"
            )

    def close(self) -> None:
        """Close the connections."""
        self.inner.close()


def _whole(send: Any, asked: Origin, say: str, end: float) -> Response:
    """Return an answer with its body, after a look at where it leads and how deep it nests."""
    response: Response = send()
    try:
        _check_head(response, asked, say)
        response.encoding = "utf-8"  # of JSON; to guess it could take minutes
        response.raw = _Pieces(response.raw, say, end)
        check_nesting(response.content, say)
    except BaseException:
        response.close()
        raise
    return response


def _check_head(response: Response, asked: Origin, say: str) -> None:
    if response.is_redirect:
        location = response.headers["location"]
        try:
            target = Origin.of(urljoin(response.request.url or "", location))
        except ValueError:
            target = Origin.of(location)
        if not asked.leads_to(target):
            raise _elsewhere(asked, target)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise StorageError(f"{say} must be plain or compressed as {_ENCODINGS}, got {encoding[:40]!r}")


def _elsewhere(asked: Origin, target: Origin) -> StorageError:
    return StorageError(
        f"the catalog at {asked} sends this client to {target}, to which its login does not go; if the catalog is "
        "there, write that into catalog_config yourself: as uri, or, for the server of logins, as oauth2-server-uri"
    )


class _PatientAdapter(AuthManagerAdapter):
    """Logs a request in; a server of logins has as long as an answer."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        end = time.monotonic() + sizes().catalog_answer_s
        login = super().__call__
        try:
            with cancellable(lambda: time.monotonic() > end):
                return interruptibly(partial(login, request))
        except StorageError:
            if time.monotonic() > end:
                raise _too_slow("the token of a login") from None
            raise


class LimitedRestCatalog(RestCatalog):
    """A REST catalog with limits on every request, including those for tokens.

    Attributes:
        callers: the properties that it was made with, without those that the catalog adds.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        """Connect, and ask for the catalog's configuration."""
        self.callers = dict(properties)
        self._sessions: list[Session] = []
        try:
            super().__init__(name, **properties)
        except BaseException:
            for session in self._sessions:
                session.close()
            raise

    def _config_headers(self, session: Session) -> None:
        """Prepare a session before its first request."""
        self._sessions.append(session)
        self._watch(session)
        super()._config_headers(session)

    def _create_session(self) -> Session:
        session = super()._create_session()
        self._watch(session)
        if isinstance(session.auth, AuthManagerAdapter):
            session.auth = _PatientAdapter(session.auth.auth_manager)
        return session

    def _watch(self, session: Session) -> None:
        limits = _seconds(self.callers, _CONNECT, CONNECT_SECONDS), _seconds(self.callers, _ANSWER, ANSWER_SECONDS)
        known = tuple(Origin.of(self.callers[name]) for name in _ADDRESSES if self.callers.get(name))
        session.adapters = _watched(session, known, limits)

    def _fetch_config(self) -> None:
        """Ask for the catalog's configuration, of which what concerns the caller alone is refused."""
        here = Origin.of(self.callers["uri"])
        try:
            super()._fetch_config()
        except (ValidationError, AttributeError, TypeError) as error:
            why = "; ".join(each["msg"] for each in error.errors()) if isinstance(error, ValidationError) else error
            raise StorageError(
                f"the catalog at {here} must answer with the configuration of an Iceberg REST catalog, and does not: "
                f"{why}; check the uri"
            ) from None
        self._check_config(here)
        self.properties = {
            **{name: value for name, value in self.properties.items() if not _is_callers(name)},
            **{name: value for name, value in self.callers.items() if _is_callers(name)},
        }

    def _check_config(self, here: Origin) -> None:
        """Refuse what the catalog adds to the caller's properties and may not."""
        origin = f"the configuration that the catalog at {here} answers with"
        said = {name: value for name, value in self.properties.items() if self.callers.get(name) != value}
        refuse_code(said, self.callers, origin, StorageError)
        for name in _ADDRESSES:
            known = Origin.of(self.callers.get(name, self.callers["uri"]))
            if name in said and not known.leads_to(Origin.of(said[name])):
                raise _elsewhere(here, Origin.of(said[name]))
        for name in _OF_CLIENT:
            if name in said and str(said[name]).lower() not in ("false", str(self.callers.get(name)).lower()):
                raise StorageError(
                    f"{origin} must not set {name!r}, which is the caller's; if you mean it, put it into catalog_config"
                )


def _is_callers(name: str) -> bool:
    """Return whether a property is the caller's alone."""
    return names_code(name) or name in _OF_CLIENT


def _watched(
    session: Session, known: tuple[Origin, ...], limits: tuple[float, float] | None
) -> OrderedDict[str, BaseAdapter]:
    return OrderedDict(
        (prefix, each if isinstance(each, _Watched) else _Watched(each, known, limits))
        for prefix, each in session.adapters.items()
    )


def watch(catalog: RestCatalog) -> None:
    """Bound the answers to a catalog that the caller made; its time-outs stay as they are.

    Args:
        catalog: gets a session of its own, which shares connections and login with the one that it had.
    """
    session = vars(catalog).get("_session")
    if isinstance(catalog, LimitedRestCatalog) or not isinstance(session, Session):
        return
    twin: Session = object.__new__(type(session))
    vars(twin).update(vars(session))
    twin.adapters = _watched(session, (Origin.of(catalog.uri),), None)
    catalog._session = twin


def is_rest(properties: Mapping[str, Any]) -> bool:
    """Return whether pyiceberg would open its REST catalog, given properties with those of ``.pyiceberg.yaml``.

    >>> is_rest({"uri": "http://host"}), is_rest({"type": "REST", "uri": "x"}), is_rest({"uri": "sqlite://"})
    (True, True, False)
    """
    kind, uri = properties.get("type"), properties.get("uri")
    if not isinstance(uri, str) or "py-catalog-impl" in properties:
        return False
    if not kind:
        return uri.startswith("http")
    return isinstance(kind, str) and kind.lower() == "rest"


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
