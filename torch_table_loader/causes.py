"""Which of this library's errors fits what the client of a store or of another service raised."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator

from torch_table_loader.errors import (
    AccessRefusedError,
    MissingFileError,
    StorageError,
    StorageTimeoutError,
    TableLoaderError,
)

_MISSING_STATUS = frozenset({404, 410})
_REFUSED_STATUS = frozenset({401, 403, 407})
_REDIRECT_STATUS = frozenset({301, 302, 303, 307, 308})
_TIMEOUT_STATUS = frozenset({408, 504})

_REFUSED_CODES = frozenset(
    {"AccessDenied", "AccessDeniedException", "AllAccessDisabled", "ExpiredToken", "ExpiredTokenException"}
    | {"InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "UnrecognizedClientException"}
)
"""Of AWS's services, some of which refuse access with HTTP status 400."""

_REFUSED_NAMES = frozenset({"ForbiddenError", "UnauthorizedError", "AuthorizationExpiredError", "NoCredentialsError"})
"""Exceptions of pyiceberg and botocore that carry no status."""

_ARROW_REFUSED = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|INVALID_SIGNATURE|SIGNATURE_DOES_NOT_MATCH"
    r"|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN)|HTTP (status|response code):? 40[13]\b"
)
_ARROW_TIMEOUT = re.compile(r"AWS Error REQUEST_TIMEOUT|curlCode: 28\b|HTTP (status|response code):? (408|504)\b")
"""What pyarrow's S3 client, which pyiceberg uses, writes into the text of an OSError, which carries no errno."""

NOWHERE = "127.0.0.1:0"
"""Where requests go that a redirect would take to another host: nothing listens there, since 0 is no port."""

_OBSTORE = "obstore.exceptions"
_OBSTORE_REFUSED = frozenset({"PermissionDeniedError", "UnauthenticatedError"})
_OBSTORE_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_OBSTORE_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_OBSTORE_DETAILS = "\n\nDebug source:"
_OBSTORE_TIMEOUT = re.compile(r"non-2xx status code: (408|504)\b|kind: Timeout")
"""What obstore's errors, which carry nothing but a text, say of the answer; of time that ran out only the details."""

_XML = re.compile(r"(<\?xml|<Error>).*</Error>", re.DOTALL)

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509, *range(520, 528), 529, 530, 598, 599})
"""Beside the standard ones, those of Cloudflare and other proxies before stores."""

_PASSING_CODES = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "RequestTimeout", "RequestTimeoutException", "InternalError"}
    | {"InternalFailure", "ServiceUnavailable", "ServerBusy", "ServiceUnavailableException", "OperationTimedOut"}
    | {"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"}
    | {"TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded"}
    | {"ProvisionedThroughputExceededException", "PriorRequestNotComplete", "TransactionInProgressException"}
)
"""Of AWS's services, some of which come with HTTP status 400; as botocore's own retries have them."""

_PASSING_ERRNO = frozenset(
    {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}
    | {errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTDOWN, errno.EAGAIN, errno.EBUSY}
    | {getattr(errno, "EREMOTEIO", errno.ECONNRESET)}
)
"""EBUSY and EREMOTEIO are what s3fs makes of the statuses 503 and 500."""

_PASSING_NAMES = frozenset(
    # botocore, and our client of S3
    {"ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseParserError", "NoListing"}
    # aiohttp
    | {"ClientConnectionError", "ClientPayloadError"}
    # requests, urllib3, http.client
    | {"ChunkedEncodingError", "ProtocolError", "IncompleteRead", "RemoteDisconnected", "BadStatusLine"}
    # azure, google, thrift
    | {"ServiceRequestError", "ServiceResponseError", "TransportError", "TTransportException"}
)
"""Exceptions by name, since none of their packages need be installed; subclasses count as well."""

_LASTING_NAMES = frozenset(
    # obstore
    {"PermissionDeniedError", "UnauthenticatedError", "PreconditionError", "NotModifiedError", "NotSupportedError"}
    | {"InvalidPathError", "AlreadyExistsError", "UnknownConfigurationKeyError"}
    # others
    | {"SSLError", "ClientSSLError", "ClientConnectorCertificateError", "InvalidURL", "NoCredentialsError"}
)

_LASTING = (
    TableLoaderError,
    PermissionError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
_TEXT_REDIRECTED = re.compile(rf"\b{re.escape(NOWHERE)}\b|redirect without LOCATION")
_TEXT_NO_KEY = re.compile(r"contained empty path segment|illegal character sequence \"\.{1,2}\"")
_TEXT_LASTS = re.compile(
    r"Name or service not known|nodename nor servname|No address associated|No such host is known|curlCode: 60?\b"
    r"|invalid peer certificate|certificate verify failed|RequestTimeTooSkewed|" + _TEXT_REDIRECTED.pattern
)
_TEXT_STATUS = re.compile(r"(?:non-2xx status code|HTTP status|HTTP response code):? (\d{3})\b")
_TEXT_BUSY = re.compile(
    r"\b(SlowDown|RequestTimeout|ServerBusy)\b|[Rr]educe your request rate"
    r"|AWS Error (SLOW_DOWN|NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|THROTTLING|REQUEST_TIMEOUT)\b"
)
_TEXT_NETWORK = re.compile(
    r"kind: (Timeout|Interrupted|Connect|Request)\b|error sending request|request or response body error"
    r"|connection closed before message completed|[Cc]onnection (reset|refused|closed|aborted)"
    r"|curlCode: (5|7|16|18|28|35|52|55|56|92)\b|Temporary failure in name resolution"
)
"""What obstore and pyarrow write into the text of an error, which carries nothing else."""


def store_error_type(
    cause: BaseException, missing: type[TableLoaderError] = MissingFileError
) -> type[TableLoaderError]:
    """Return the error that fits what a store, or another service, raised.

    Args:
        cause: what was raised; what caused it counts as well.
        missing: the error for what is not there.

    Returns:
        `missing`, AccessRefusedError, StorageTimeoutError, or, for any other failure, StorageError.

    >>> store_error_type(TimeoutError("connect")).__name__
    'StorageTimeoutError'
    """
    if isinstance(cause, FileNotFoundError | NotADirectoryError):
        return missing
    for link in _chain(cause):
        if _is_refusal(link):
            return AccessRefusedError
        if _is_timeout(link):
            return StorageTimeoutError
        if _status(link) in _MISSING_STATUS:
            return missing
    return StorageError


def is_led_away(error: BaseException) -> bool:
    """Return whether a store, as obstore or botocore asked it, redirected a request that was not sent again.

    >>> is_led_away(OSError("tcp connect error, 127.0.0.1:0")), is_led_away(OSError("tcp connect error, 127.0.0.1:80"))
    (True, False)
    """
    return any(_is_led_away(link) for link in _chain(error))


def _is_led_away(error: BaseException) -> bool:
    asked = _is_obstore(error) or isinstance(getattr(error, "response", None), dict)
    by_status = asked and _status(error) in _REDIRECT_STATUS
    return by_status or _TEXT_REDIRECTED.search(str(error)) is not None


def is_no_key(error: BaseException) -> bool:
    """Return whether obstore knows no request for a key: it takes none with a part that is empty, or of dots alone.

    >>> is_no_key(ValueError('Could not parse path: Path "t//a" contained empty path segment'))
    True
    """
    return any(_TEXT_NO_KEY.search(str(link)) for link in _chain(error))


def may_be_refusal(error: BaseException) -> bool:
    """Return whether other credentials might be served.

    S3 answers 400 to tokens that have expired, and an answer to HEAD does not say why:
    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html

    >>> may_be_refusal(PermissionError()), may_be_refusal(FileNotFoundError())
    (True, False)
    """
    return store_error_type(error) is AccessRefusedError or any(_status(link) == 400 for link in _chain(error))


def may_pass(error: BaseException) -> bool:
    """Return whether the same request may be served later: the store is busy, or the network failed.

    Args:
        error: what the client of a store or service raised; what caused it counts as well.

    >>> may_pass(ConnectionResetError()), may_pass(FileNotFoundError()), may_pass(OSError("AWS Error SLOW_DOWN"))
    (True, False, True)
    """
    links = list(_chain(error))
    if any(_never_passes(link) for link in links):
        return False
    return next((known for link in links if (known := _passes(link)) is not None), False)


def _never_passes(error: BaseException) -> bool:
    """Whether there is no such host, or none that may be trusted: what is raised on top of that says less."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return True
    says_why = isinstance(error, OSError) or _is_plain(error)
    return says_why and _TEXT_LASTS.search(str(error)) is not None


def _passes(error: BaseException) -> bool | None:
    """Return whether what one error says may pass; None where it does not say."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, _LASTING) or names & _LASTING_NAMES:
        return False
    if _code(error) in _PASSING_CODES:
        return True
    if (status := _status(error)) is not None and status >= 400:
        return status in _PASSING_STATUS
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if _is_of_network(error, names):
        return True
    return _text_passes(str(error)) if _is_plain(error) else None


def _is_of_network(error: BaseException, names: set[str]) -> bool:
    """Whether no answer came, or half of one."""
    known = isinstance(error, ConnectionError | TimeoutError) or any("Timeout" in name for name in names)
    return known or bool(names & _PASSING_NAMES) or (isinstance(error, OSError) and error.errno in _PASSING_ERRNO)


def _is_plain(error: BaseException) -> bool:
    """Whether an error says what happened in its text alone: obstore's and pyarrow's."""
    return type(error) is OSError or "GenericError" in {kind.__name__ for kind in type(error).__mro__}


def _text_passes(text: str) -> bool | None:
    if _TEXT_BUSY.search(text):
        return True
    if (status := _TEXT_STATUS.search(text)) is not None and int(status[1]) >= 400:
        return int(status[1]) in _PASSING_STATUS
    if _TEXT_NETWORK.search(text):
        return True
    return None


def _is_refusal(error: BaseException) -> bool:
    names = _REFUSED_NAMES | _OBSTORE_REFUSED if _is_obstore(error) else _REFUSED_NAMES
    known = isinstance(error, PermissionError) or type(error).__name__ in names
    by_code = _status(error) in _REFUSED_STATUS or _code(error) in _REFUSED_CODES
    return known or by_code or (type(error) is OSError and _ARROW_REFUSED.search(str(error)) is not None)


def _is_timeout(error: BaseException) -> bool:
    # botocore, requests, urllib3 and httpx have roots of their own, and "Timeout" in the names.
    named = isinstance(error, TimeoutError) or any("Timeout" in kind.__name__ for kind in type(error).__mro__)
    by_code = _status(error) in _TIMEOUT_STATUS or (
        _is_obstore(error) and _OBSTORE_TIMEOUT.search(str(error)) is not None
    )
    return named or by_code or (type(error) is OSError and _ARROW_TIMEOUT.search(str(error)) is not None)


def _is_obstore(error: BaseException) -> bool:
    return type(error).__module__ == _OBSTORE


def in_brief(text: str) -> str:
    """Return what a client says of a failure, without the details of its insides, and of an answer in XML the code.

    >>> in_brief("status code: 403 Forbidden: <Error><Code>AccessDenied</Code><HostId>x</HostId></Error>")
    'status code: 403 Forbidden: AccessDenied'
    """
    text = text.partition(_OBSTORE_DETAILS)[0]
    return _XML.sub(lambda found: _first(_OBSTORE_CODE, found[0]) or "", text).rstrip(": \n")


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    if found is None:
        return None
    return found[1]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of obstore, aiohttp, requests, azure, gcsfs or botocore."""
    if _is_obstore(error):
        found = _first(_OBSTORE_STATUS, str(error))
        if found is None:
            return None
        return int(found)
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
        return None
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int | str) and str(value).isdecimal():
                return int(value)
    return None


def _code(error: BaseException) -> str | None:
    """Return the word by which a service of AWS, or a store, names an error."""
    if _is_obstore(error):
        return _first(_OBSTORE_CODE, str(error))
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None
