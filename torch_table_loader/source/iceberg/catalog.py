"""From a catalog's configuration, or a bare metadata file, to a table's metadata and where its files are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog, list_catalogs, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import StaticTable, Table
from pyiceberg.typedef import IcebergBaseModel

from torch_table_loader.calling import warn_caller
from torch_table_loader.causes import store_error_type
from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError, StorageError, TableError
from torch_table_loader.source.iceberg.metadata import TableMetadata, read_metadata
from torch_table_loader.source.iceberg.storage import IcebergStorage, read_overrides
from torch_table_loader.spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from torch_table_loader.source.iceberg.address import TableAddress

_SHORT = {
    "region_name": ("glue.region", "s3.region"),
    "region": ("glue.region", "s3.region"),
    "profile_name": ("glue.profile-name", "s3.profile-name"),
    "aws_access_key_id": ("glue.access-key-id", "s3.access-key-id"),
    "aws_secret_access_key": ("glue.secret-access-key", "s3.secret-access-key"),
    "aws_session_token": ("glue.session-token", "s3.session-token"),
    "aws_region": ("glue.region", "s3.region"),
    "endpoint_url": ("s3.endpoint",),
}
"""What people write, and what pyiceberg reads: it ignores other names without a word."""

_KNOWN = frozenset(
    [
        "type",
        "uri",
        "warehouse",
        "name",
        "token",
        "credential",
        "scope",
        "audience",
        "resource",
        "oauth2-server-uri",
        "prefix",
        "ssl",
        "py-io-impl",
        "py-catalog-impl",
        "py-location-provider-impl",
        "location",
        "echo",
        "pool_pre_ping",
        "init_catalog_tables",
        "ugi",
        "cache-enabled",
        "auth",
        "client",
        "auth-manager",
        "view-endpoints-supported",
        "metrics-reporting-enabled",
        "snapshot-loading-mode",
        "default-warehouse-location",
        "downcast-ns-timestamp-to-us-on-write",
    ]
)
_KNOWN_PREFIXES = (
    "s3.", "glue.", "hive.", "rest.", "header.", "client.", "dynamodb.", "adls.", "gcs.", "hf.", "gcp.", "hdfs.",
    "oss.", "write.", "sql.", "ssl.", "auth.", "table-default.", "table-override.", "namespace-separator",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class OpenTable:
    """A table that was found.

    Args:
        name: what messages call it.
        metadata: of its version when it was found.
        storage: where its files are.
    """

    name: str
    metadata: TableMetadata = field(repr=False)
    storage: IcebergStorage


def open_table(at: TableAddress) -> OpenTable:
    """Find a table.

    Args:
        at: where.

    Raises:
        ConfigError: no such catalog, namespace or table (the nearest are named), or arguments that do not fit.
        StorageError: the catalog does not answer.
    """
    overrides = read_overrides(at.location_override)
    options = dict(at.storage_options or {})
    table, catalog_config, credentials = at.table, at.catalog_config, at.credentials
    if credentials is not None and not callable(credentials):
        raise ConfigTypeError(f"credentials must be callable, got {type(credentials).__name__}")
    given = {} if credentials is None else dict(credentials())
    if at.metadata_location is not None:
        properties = {**(_properties(catalog_config) if isinstance(catalog_config, Mapping) else {}), **given}
        location = os.fspath(at.metadata_location)
        storage = IcebergStorage(location, properties, options, overrides, credentials)
        metadata = read_metadata(storage, location)
        name = table if isinstance(table, str) else metadata.location.rpartition("/")[2]
        found_at = IcebergStorage(metadata.location, storage.known(), options, overrides, credentials)
        return OpenTable(name, metadata, found_at)
    found = table if isinstance(table, Table) else _from_catalog(table, catalog_config)
    # pyiceberg reads metadata of version 3, and refuses to write it: its base class does.
    metadata = TableMetadata(json.loads(IcebergBaseModel.model_dump_json(found.metadata, by_alias=True)))
    provider = credentials or _reloading(table, catalog_config)
    storage = IcebergStorage(metadata.location, {**found.io.properties, **given}, options, overrides, provider)
    return OpenTable(".".join(found.name()), metadata, storage)


def as_it_is_now(at: TableAddress) -> TableAddress:
    """Load a pyiceberg Table anew, where it has a catalog; a name stays a name."""
    table = at.table
    known = isinstance(table, Table) and not isinstance(table, StaticTable)
    return replace(at, table=_from_catalog(table.name(), table.catalog)) if known else at


@dataclass(frozen=True, slots=True)
class _Reloading:
    """Asks a catalog for a table anew, and so for fresh credentials."""

    table: Any
    catalog_config: Any = field(repr=False)

    def __call__(self) -> Mapping[str, Any]:
        return dict(_from_catalog(self.table, self.catalog_config).io.properties)


def _reloading(table: Any, catalog_config: Any) -> _Reloading | None:
    known = isinstance(table, str | tuple) and isinstance(catalog_config, str | Mapping)
    return (
        _Reloading(table, dict(catalog_config) if isinstance(catalog_config, Mapping) else catalog_config)
        if known
        else None
    )


def _from_catalog(table: Any, catalog_config: Any) -> Table:
    if not isinstance(table, str | tuple) or not table:
        raise ConfigTypeError(
            f'table must be a name such as "db.table" or a pyiceberg Table, got {type(table).__name__} {table!r}'
        )
    if len(table.split(".") if isinstance(table, str) else table) < 2:
        raise ConfigError(f'a table has a name of two or more parts, such as "db.table", got {table!r}')
    catalog = _catalog(catalog_config)
    try:
        return catalog.load_table(table)
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise ConfigError(_missing(catalog, table, error)) from error
    except (ValueError, TypeError) as error:
        raise TableError(f"the catalog gives metadata for {table!r} that pyiceberg does not read: {error}") from error
    except Exception as error:  # noqa: BLE001 - each catalog's client has roots of its own
        raise store_error_type(error, missing=StorageError)(
            f"the catalog did not give the table {table!r}: {type(error).__name__}: {_scrubbed(error, catalog)}; "
            "check that the name has two or more parts, the catalog's address, and the credentials"
        ) from None


def _catalog(config: Any) -> Catalog:
    if isinstance(config, Catalog):
        return config
    if isinstance(config, str):
        known = list_catalogs()
        if config.lower() not in known:
            raise ConfigError(
                f"neither .pyiceberg.yaml nor the environment has a catalog {config!r}; {_near(config, known)}"
            )
        return _loaded(config, {})
    if not isinstance(config, Mapping) or not config:
        raise ConfigTypeError(
            'catalog_config must be a mapping such as {"type": "sql", "uri": …}, the name of a catalog in '
            f".pyiceberg.yaml, or a pyiceberg Catalog, got {config!r}"
            if not isinstance(config, Mapping)
            else 'catalog_config is empty; pass {"type": "sql", "uri": …}, or metadata_location='
        )
    properties = _properties(config)
    return _loaded(str(properties.pop("name", "default")), properties)


def _loaded(name: str, properties: Mapping[str, Any]) -> Catalog:
    try:
        return load_catalog(name, **properties)
    except ImportError as error:
        raise MissingExtraError(f"the catalog needs a package that is not installed ({error})") from error
    except Exception as error:  # noqa: BLE001 - each catalog's client has roots of its own
        kind = properties.get("type", "of .pyiceberg.yaml")
        text = _scrub(str(error), properties)
        if isinstance(error, ValueError | TypeError | KeyError):
            raise ConfigError(f"catalog_config does not make a catalog ({kind}): {text}") from None
        failure = store_error_type(error, missing=StorageError)
        raise failure(f"the catalog ({kind}) does not answer: {type(error).__name__}: {text}") from None


def _properties(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate short names, and name in a warning what nobody will read."""
    properties: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in config.items():
        if name in _SHORT:
            for theirs in _SHORT[name]:
                if theirs not in config:
                    properties[theirs] = value
            continue
        properties[name] = value
        if name not in _KNOWN and not name.startswith(_KNOWN_PREFIXES):
            unknown.append(name)
    if unknown:
        warn_caller(
            f"catalog_config: pyiceberg does not read {', '.join(map(repr, unknown))}"
            + did_you_mean(unknown[0], [*_KNOWN, *_SHORT])
        )
    return properties


def _missing(catalog: Catalog, table: str | tuple[str, ...], error: Exception) -> str:
    parts = tuple(table.split(".")) if isinstance(table, str) else table
    shown = ".".join(parts)
    try:
        for depth in range(1, len(parts)):
            above = parts[: depth - 1]
            known = [
                ".".join(each) for each in (catalog.list_namespaces(above) if above else catalog.list_namespaces())
            ]
            space = ".".join(parts[:depth])
            if not known and not above:
                return (
                    f"the catalog {catalog.name!r} has no namespace {space!r}, nor any other; check its address, and "
                    "its name, to which the tables of a SQL catalog belong"
                )
            if space not in known:
                return f"the catalog has no namespace {space!r}; {_near(space, known)}"
        names = [".".join(each) for each in catalog.list_tables(parts[:-1])]
    except Exception as other:  # noqa: BLE001 - some catalogs list nothing; the table is missing all the same
        return (
            f"the catalog has no table {shown!r}: {_scrubbed(error, catalog)} (it lists none: {type(other).__name__})"
        )
    return f"the catalog has no table {shown!r}; {_near(shown, names)}"


def _near(name: str, known: Sequence[str]) -> str:
    return f"the nearest are {', '.join(map(repr, nearest(name, sorted(known)))) or 'none'}"


def _scrubbed(error: BaseException, catalog: Catalog) -> str:
    return _scrub(str(error), catalog.properties)


def _scrub(text: str, properties: Mapping[str, Any]) -> str:
    for name, value in properties.items():
        secret = any(
            word in name.lower() for word in ("secret", "token", "credential", "password", "access-key", "uri")
        )
        if secret and isinstance(value, str) and len(value) > 3 and (name != "uri" or "@" in value):
            text = text.replace(value, "***")
    return text


__all__ = ["OpenTable", "as_it_is_now", "open_table"]
