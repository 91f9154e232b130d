"""Which of this library's errors fits what the client of a store or of another service raised."""

from __future__ import annotations

import re
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

_OBSTORE = "obstore.exceptions"
_OBSTORE_REFUSED = frozenset({"PermissionDeniedError", "UnauthenticatedError"})
_OBSTORE_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_OBSTORE_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_OBSTORE_DETAILS = "\n\nDebug source:"
_OBSTORE_TIMEOUT = "kind: Timeout"
"""What obstore's errors, which carry nothing but a text, say of the answer; of time that ran out only the details."""

_XML = re.compile(r"(<\?xml|<Error>).*</Error>", re.DOTALL)


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


def _is_refusal(error: BaseException) -> bool:
    names = _REFUSED_NAMES | _OBSTORE_REFUSED if _is_obstore(error) else _REFUSED_NAMES
    known = isinstance(error, PermissionError) or type(error).__name__ in names
    said = _status(error) in _REFUSED_STATUS or _code(error) in _REFUSED_CODES
    return known or said or (type(error) is OSError and _ARROW_REFUSED.search(str(error)) is not None)


def _is_timeout(error: BaseException) -> bool:
    # botocore, requests, urllib3 and httpx have roots of their own, and "Timeout" in the names.
    named = isinstance(error, TimeoutError) or any("Timeout" in kind.__name__ for kind in type(error).__mro__)
    said = _status(error) in _TIMEOUT_STATUS or (_is_obstore(error) and _OBSTORE_TIMEOUT in str(error))
    return named or said or (type(error) is OSError and _ARROW_TIMEOUT.search(str(error)) is not None)


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
    return None if found is None else found[1]


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
        return None if found is None else int(found)
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
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
