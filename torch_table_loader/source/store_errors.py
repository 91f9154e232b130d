"""What is said of the errors of a store's client: the library's own errors, without a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_table_loader.causes import in_brief, is_led_away, is_no_key, store_error_type
from torch_table_loader.errors import (
    AccessRefusedError,
    ConfigError,
    MissingFileError,
    StorageError,
    StorageTimeoutError,
    TableLoaderError,
)
from torch_table_loader.scrubbing import HIDDEN, scrub, secrets_of
from torch_table_loader.source.address import HTTP_PROTOCOLS, shown

_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")


@dataclass(frozen=True, slots=True)
class StoreErrors:
    """The errors of a store's client.

    Args:
        options: that the storage was made with; never shown.
        renewed: those that its client connected with; never shown.
    """

    protocol: str
    options: Mapping[str, Any] = field(repr=False)
    renewed: Mapping[str, Any] = field(repr=False)

    def first_line(self, error: BaseException, path: str) -> str:
        """Return the first line of the client's error."""
        lines = self._scrub(str(error), path).splitlines()
        return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"

    def failure(self, error: Exception, path: str, tried: str) -> TableLoaderError:
        """Return the library's error for a client's error, with a note of how often it was tried."""
        place, kind = shown(self.protocol, path), store_error_type(error)
        if kind is MissingFileError:
            return MissingFileError(
                f"{place}: expected a file, found none; restore it, or make a new loader, which lists the table again",
                place,
            )
        details = f"{type(error).__name__}: {self._scrub(str(error), path)}{tried}"
        if is_led_away(error):
            return StorageError(
                f"{place}: the store redirects the request to another place, to which no login is sent ({details}); "
                "pass the endpoint, and for S3 the region, where the data is, in storage_options"
            )
        if is_no_key(error):
            return StorageError(
                f"{place}: the client of this store cannot ask for this key ({details}): keys have empty parts (//) "
                "on S3 alone, and parts of dots nowhere; copy the object to another key"
            )
        if kind is AccessRefusedError:
            return AccessRefusedError(
                f"{place}: the store refuses access ({details}); grant it, or pass credentials in storage_options",
                place,
            )
        if kind is StorageTimeoutError:
            return StorageTimeoutError(
                f"{place}: the store did not answer in time ({details}); check the network and the endpoint in "
                "storage_options",
                place,
            )
        return kind(
            f"{place}: the request to the store failed: {details}; "
            "check the path, the network, and endpoint and credentials in storage_options"
        )

    def misfit(self, error: BaseException, client_name: str) -> ConfigError:
        """Return the library's error for options that a client does not take."""
        names = ", ".join(sorted(self.options)) or "none"
        return ConfigError(
            f"storage_options do not fit {client_name} ({self.protocol}://), given: {names}; "
            f"it says: {self._scrub(str(error), '')}"
        )

    def _scrub(self, text: str, path: str, *, whole: bool = False) -> str:
        of_url = secrets_of({"path": path}) if self.protocol in HTTP_PROTOCOLS else ()
        if not whole:
            text = in_brief(text)
        if self.protocol in HTTP_PROTOCOLS and "?" in path:  # its client may encode it in another way
            text = _QUERY.sub(rf"\1?{HIDDEN}", text)
        return scrub(text, (*secrets_of(self.options), *secrets_of(self.renewed), *of_url))

    def scrubbed(self, error: BaseException, path: str) -> BaseException:
        """Return the error itself or, if it or its causes show a secret, a copy without it.

        A cause may show in its repr, which crash reports contain, the headers that it sent.
        """
        seen: set[int] = set()
        link: BaseException | None = error
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            told = self._scrub(str(link), path) == str(link) and self._scrub(repr(link), path, whole=True) == repr(link)
            if not told:
                return OSError(f"{type(error).__name__}: {self._scrub(str(error), path)}")
            link = link.__cause__ or link.__context__
        return error
