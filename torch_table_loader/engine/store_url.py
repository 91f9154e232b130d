"""Row stores behind URLs: where they are, and what serves them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_table_loader.errors import ConfigError
from torch_table_loader.source.address import HTTP_PROTOCOLS, parse_address
from torch_table_loader.source.storage import FileStorage, open_storage

if TYPE_CHECKING:
    from torch_table_loader.options import LoaderOptions


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's folder behind a URL."""

    storage: FileStorage
    root: str

    @property
    def shown(self) -> str:
        """The URL as messages may show it."""
        return self.storage.shown(self.root)

    def check_writable(self) -> None:
        """Refuse a store that takes no files.

        Raises:
            ConfigError: with the command that builds the store elsewhere.
        """
        if self.storage.protocol in HTTP_PROTOCOLS:
            raise ConfigError(
                f"there is no whole row store at {self.shown}, and it cannot be written over {self.storage.protocol}; "
                "build it with `torch-table-loader store build --store DIR`, and put the folder that this makes there"
            )


def store_url(options: LoaderOptions, table_protocol: str | None, name: str) -> StoreUrl | None:
    """Return behind which URL a store is; None where `row_store` names no URL.

    Args:
        options: the caller's; `storage_options` are used where the table is on the same kind of store, or local.
        table_protocol: of the table's storage; None where it is not one protocol.

    Raises:
        ConfigError: a URL that cannot be the folder of stores.
    """
    if options.row_store is None or options.row_store == "memory":
        return None
    address = parse_address(options.row_store)
    if address.protocol == "file":
        return None
    if address.protocol in HTTP_PROTOCOLS and "?" in address.path:
        raise ConfigError(
            f"row_store must be the URL of a folder, got {address.shown} with a query; pass headers in storage_options"
        )
    same = table_protocol in (None, "file", address.protocol)
    storage, root = open_storage(options.row_store, options.storage_options if same else None, options.retry_seconds)
    return StoreUrl(storage, f"{root.rstrip('/')}/{name}")


def local_path(row_store: str | os.PathLike[str]) -> str:
    """Return the path of a ``file://`` URL; a path as it is."""
    return parse_address(row_store).path if "://" in str(row_store) else str(row_store)
