"""Services beside stores, such as catalogs: their clients are asked as stores are, and their errors hide secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import StorageError, TableLoaderError
from torch_table_loader.option_values import RemoteOptions
from torch_table_loader.scrubbing import scrub, secrets_of
from torch_table_loader.source.retrying import Attempts, RetryPolicy, TrafficCounter


@dataclass(frozen=True, slots=True)
class Service:
    """A service that a table format's own library asks, such as a catalog.

    Args:
        name: for messages.
        retry_seconds: how long to repeat a request that it does not serve.
    """

    name: str
    retry_seconds: float

    @classmethod
    def of(cls, name: str, storage_options: Mapping[str, Any] | None) -> Self:
        """Return a service that is asked as the caller's stores are."""
        return cls(name, RemoteOptions.of(storage_options).retry_seconds)

    def attempts(self, say: Callable[[BaseException], str]) -> Attempts:
        """Prepare a request, which is repeated while its failure may pass; `say` is what messages say of a failure."""
        return Attempts(RetryPolicy(self.retry_seconds), TrafficCounter(), self.name, say)

    @staticmethod
    def scrubbed(text: str, options: Mapping[str, Any]) -> str:
        """Return a text without the secrets in options."""
        return scrub(text, secrets_of(options))

    @staticmethod
    def error_type(cause: BaseException) -> type[TableLoaderError]:
        """Return the error that fits what the service's client raised, for whatever reason."""
        return store_error_type(cause, missing=StorageError)
