"""From a catalog's configuration, a bare metadata file, or a folder of them, to a table's metadata and storage."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
)
from pyiceberg.exceptions import ValidationError as UnreadError
from pyiceberg.table import StaticTable, Table
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.utils.config import Config, merge_config

from torch_table_loader.errors import (
    ConfigError,
    ConfigTypeError,
    MissingExtraError,
    MissingFileError,
    TableError,
    TableLoaderError,
)
from torch_table_loader.iceberg.metadata import TableMetadata, read_metadata
from torch_table_loader.iceberg.named_code import callers_of, guarded, refuse_code
from torch_table_loader.iceberg.rest_client import LimitedRestCatalog, is_rest, watch
from torch_table_loader.table_formats import (
    Service,
    TableStorage,
    cancellable,
    did_you_mean,
    shown_url,
    sizes,
    the_nearest,
    warn_caller,
)

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
"""Names that people write, and the names that pyiceberg reads: it silently ignores all others."""

_KNOWN = frozenset((
    "type", "uri", "warehouse", "name", "token", "credential", "scope", "audience", "resource", "oauth2-server-uri",
    "prefix", "ssl", "py-io-impl", "py-catalog-impl", "py-location-provider-impl", "location", "echo", "pool_pre_ping",
    "init_catalog_tables", "ugi", "cache-enabled", "auth", "client", "auth-manager", "view-endpoints-supported",
    "metrics-reporting-enabled", "snapshot-loading-mode", "default-warehouse-location",
    "downcast-ns-timestamp-to-us-on-write",
))  # fmt: skip
_KNOWN_PREFIXES = (
    "s3.", "glue.", "hive.", "rest.", "header.", "client.", "dynamodb.", "adls.", "gcs.", "hf.", "gcp.", "hdfs.",
    "oss.", "write.", "sql.", "ssl.", "auth.", "table-default.", "table-override.", "namespace-separator",
)  # fmt: skip

_NAMES = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
"""Possible names of a version's file; Iceberg used the last one before the one above."""

_MOST_DIGITS = 18

_QUOTED = re.compile(r"(unexpected JSON Payload|not decode json payload): .*", re.DOTALL)
"""How pyiceberg quotes an answer that is no error as it knows them: a token, or the keys of a store, may be in it."""

_MOST_TEXT = 2000
"""Characters of an error of a catalog that are shown: it may be as long as an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class TableAddress:
    """A table, and how to reach it; checked when it is opened.

    Args:
        table: its name with two or more parts ("db.table"), or a pyiceberg Table.
        catalog_config: arguments for pyiceberg's ``load_catalog``, the name of a catalog in ``.pyiceberg.yaml``, or a
            pyiceberg Catalog.
        metadata_location: a metadata.json, or a folder with a version hint, instead of a catalog.
        location_override: prefixes of the metadata's paths, and their replacements.
        storage_options: for the file system; they take precedence over the catalog's. How long to repeat requests holds
            for the catalog too.
        credentials: returns fresh storage properties, as pyiceberg names them, whenever the current ones expire.
        allow_locations: URLs of other places where the table's files may be.
    """

    table: Any = None
    catalog_config: Any = field(default=None, repr=False)
    metadata_location: str | os.PathLike[str] | None = field(default=None, repr=False)
    location_override: Mapping[str, str] | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    credentials: Callable[[], Mapping[str, Any]] | None = field(default=None, repr=False)
    allow_locations: Sequence[str] | None = None

    @property
    def catalog(self) -> Service:
        """The catalog, which is asked as the stores are."""
        return Service.of("the catalog", self.storage_options)


@dataclass(frozen=True, slots=True, eq=False)
class OpenTable:
    """A table that was found."""

    name: str
    metadata: TableMetadata = field(repr=False)
    storage: TableStorage


def open_table(at: TableAddress) -> OpenTable:
    """Return the table at an address."""
    callers = TableStorage.at("", None, at.storage_options, at.allow_locations, location_override=at.location_override)
    table, catalog_config, credentials = at.table, at.catalog_config, at.credentials
    given = _given_by(credentials)
    if at.metadata_location is not None:
        return _from_metadata(at, os.fspath(at.metadata_location), given, callers)
    found = _from_catalog(table, catalog_config, at.catalog)
    location = found.metadata_location
    if not isinstance(location, str) or not location:
        raise TableError(
            f"the catalog must give the metadata-location of {'.'.join(found.name())!r}, and gives none, so that its "
            "place is not known; if the table was created and not committed yet, commit it, or pass metadata_location="
        )
    # pyiceberg reads metadata of version 3 but refuses to write it; its base class can write it.
    raw = json.loads(IcebergBaseModel.model_dump_json(found.metadata, by_alias=True))
    metadata = TableMetadata(raw, shown_url(location))
    refuse_code(metadata.properties, callers_of(found.catalog), f"the metadata {metadata.place}")
    provider = credentials or _reloading(table, catalog_config, at.catalog)
    known = {**_storage_properties(found), **given}
    storage = replace(callers, location=location, properties=known, provider=provider)
    return OpenTable(".".join(found.name()), metadata, storage)


def _given_by(credentials: Any) -> dict[str, Any]:
    """Return the properties that the caller's `credentials` give now; none without them."""
    if credentials is None:
        return {}
    if not callable(credentials):
        raise ConfigTypeError(f"credentials must be callable, got {type(credentials).__name__}")
    return dict(credentials())


def _from_metadata(at: TableAddress, location: str, given: Mapping[str, Any], callers: TableStorage) -> OpenTable:
    """Return the table of a metadata file, or of the newest one of a folder."""
    properties: dict[str, Any] = {}
    if isinstance(at.catalog_config, Mapping):
        properties = _properties(at.catalog_config)
    properties |= given
    storage = replace(callers, location=location, properties=properties, provider=at.credentials)
    if is_folder(location):
        location = newest_metadata(replace(storage, location=hint_of(location)), location)
        storage = replace(storage, location=location)
    metadata = read_metadata(storage, location)
    refuse_code(metadata.properties, properties, f"the metadata {metadata.place}")
    name = shown_url(metadata.location).rpartition("/")[2]
    if isinstance(at.table, str):
        name = at.table
    return OpenTable(name, metadata, storage)


def as_it_is_now(at: TableAddress) -> TableAddress:
    """Reload a pyiceberg Table if it has a catalog; a name stays a name."""
    table = at.table
    known = isinstance(table, Table) and not isinstance(table, StaticTable)
    if known:
        return replace(at, table=_from_catalog(table.name(), table.catalog, at.catalog))
    return at


@dataclass(frozen=True, slots=True)
class _Reloading:
    """Reloads a table from its catalog, and so fetches fresh credentials."""

    table: Any
    catalog_config: Any = field(repr=False)
    service: Service

    def __call__(self) -> Mapping[str, Any]:
        return _storage_properties(_from_catalog(self.table, self.catalog_config, self.service))


def _reloading(table: Any, catalog_config: Any, service: Service) -> _Reloading | None:
    if isinstance(catalog_config, Mapping):
        catalog_config = dict(catalog_config)
    if isinstance(table, str | tuple) and isinstance(catalog_config, str | dict):
        return _Reloading(table, catalog_config, service)
    return None


def _storage_properties(found: Table) -> dict[str, Any]:
    """Return the properties for a table's files, without those that its metadata file sets.

    pyiceberg lets them take precedence over the catalog's: whoever writes the metadata could name the endpoint to
    which requests go. A REST catalog's answer comes from the catalog itself, and a static table's properties from the
    caller.
    """
    merged = dict(found.io.properties)
    if isinstance(found.catalog, RestCatalog) or isinstance(found, StaticTable):
        return merged
    own = {name: value for name, value in merged.items() if name not in found.metadata.properties}
    return {**own, **found.catalog.properties}


def _from_catalog(table: Any, catalog_config: Any, service: Service) -> Table:
    if isinstance(table, Table):
        return table
    if not isinstance(table, str | tuple) or not table:
        raise ConfigTypeError(
            f'table must be a name such as "db.table" or a pyiceberg Table, got {type(table).__name__}'
            + ("" if table is None else "; the configuration of the catalog comes second")
        )
    if isinstance(table, str) and _is_path(table):
        raise ConfigError(
            f'table must be a name such as "db.table", got the path {shown_url(table)!r}; pass the path of its newest '
            'metadata file: IcebergDataset(metadata_location="…/metadata/….metadata.json"), or the folder itself where '
            "it holds metadata/version-hint.text"
        )
    name = tuple(table.split(".")) if isinstance(table, str) else table
    if len(name) < 2:
        raise ConfigError(f'a table has a name of two or more parts, such as "db.table", got {table!r}')
    with _opened(catalog_config, service) as catalog:
        asked = guarded(catalog)
        if isinstance(asked, RestCatalog):
            watch(asked)
        return _loaded_table(asked, name, service)


def _opened(config: Any, service: Service) -> AbstractContextManager[Catalog]:
    """Open a catalog; one that is created here is closed again, together with its connections."""
    if isinstance(config, Catalog):
        return nullcontext(config)
    return closing(_made(config, service))


def _is_path(table: str) -> bool:
    slashes = "/" in table or "\\" in table
    return slashes or table.endswith(".metadata.json") or ("." not in table and Path(table).is_dir())


def _loaded_table(catalog: Catalog, name: tuple[str, ...], service: Service) -> Table:
    attempts = service.attempts(partial(_error_text, properties=catalog.properties))

    def load() -> Table:
        try:
            return catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            if len(name) < 3 or name[0] != catalog.name:
                raise
            return catalog.load_table(name[1:])  # a name as SQL engines write it begins with the catalog's

    try:
        return attempts.make(load)
    except TableLoaderError:
        raise
    except (NoSuchIcebergTableError, NoSuchPropertyException) as error:  # Glue and Hive list other tables, too
        raise ConfigError(
            f"{'.'.join(name)!r} is in the catalog, but is not an Iceberg table "
            f"({_error_text(error, catalog.properties)}); a view has no files of its own: read the tables that it is "
            "made of, or write its rows into a table. Parquet files of a Hive table are read by StructuredDataset"
        ) from None
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise ConfigError(_missing(catalog, name, error)) from None
    except (ValueError, TypeError, UnreadError) as error:
        raise TableError(
            f"the catalog gives metadata for {'.'.join(name)!r} that pyiceberg does not read: "
            f"{_error_text(error.__cause__ or error, catalog.properties)}; where this is a type of a column, pass the "
            "table's metadata file as metadata_location=, and columns= without that column"
        ) from None
    except Exception as error:  # noqa: BLE001 - each catalog's client has roots of its own
        raise service.error_type(error)(
            f"the catalog did not return the table {'.'.join(name)!r}: {_error_text(error, catalog.properties)}"
            f"{attempts.note}; check that the name has two or more parts, the catalog's address, and the credentials"
        ) from None


def _made(config: Any, service: Service) -> Catalog:
    if isinstance(config, str):
        own = Config()  # the file and environment as they are now: pyiceberg keeps what they were when it was imported
        known = own.get_known_catalogs()
        if config.lower() not in known:
            # Text that resembles no name may be a secret instead of a name.
            named = repr(config) if did_you_mean(config, known) else "of that name"
            near = the_nearest(config, sorted(known))
            raise ConfigError(f"neither .pyiceberg.yaml nor the environment has a catalog {named}; {near}")
        return _loaded(config, own.get_catalog_config(config) or {}, service)
    if not isinstance(config, Mapping):
        raise ConfigTypeError(
            'catalog_config must be a mapping such as {"type": "sql", "uri": …}, the name of a catalog in '
            f".pyiceberg.yaml, or a pyiceberg Catalog, got {type(config).__name__}"
        )
    if not config:
        raise ConfigTypeError('catalog_config is empty; pass {"type": "sql", "uri": …}, or metadata_location=')
    properties = _properties(config)
    return _loaded(str(properties.pop("name", "default")), properties, service)


def _loaded(name: str, properties: Mapping[str, Any], service: Service) -> Catalog:
    known: dict[str, Any] = merge_config(Config().get_catalog_config(name) or {}, dict(properties))
    attempts = service.attempts(partial(_error_text, properties=known))

    def load() -> Catalog:
        if is_rest(known):
            return LimitedRestCatalog(name, **known)
        return load_catalog(name, **properties)

    try:
        return attempts.make(load)
    except TableLoaderError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"the catalog needs a package that is not installed ({error})") from error
    except Exception as error:  # noqa: BLE001 - each catalog's client has roots of its own
        kinds = [kind.value for kind in CatalogType]
        kind = known.get("type", "of .pyiceberg.yaml")
        shown = kind if kind in (*kinds, "of .pyiceberg.yaml") else f"of an unknown type; known are {', '.join(kinds)}"
        text = _error_text(error, {**known, "type-token": kind, "name-token": name})
        if isinstance(error, ValueError | TypeError | KeyError):
            raise ConfigError(f"no catalog can be opened with catalog_config ({shown}): {text}") from None
        raise service.error_type(error)(f"the catalog ({shown}) does not answer: {text}{attempts.note}") from None


def _properties(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate short names, and warn of options that nothing will read."""
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


def _missing(catalog: Catalog, parts: tuple[str, ...], error: Exception) -> str:
    end = time.monotonic() + sizes().names_s
    with cancellable(lambda: time.monotonic() > end):
        return _nearest_names(catalog, parts, error)


def _nearest_names(catalog: Catalog, parts: tuple[str, ...], error: Exception) -> str:
    shown = ".".join(parts)
    if _is_view(catalog, parts):
        return (
            f"{shown!r} is a view, which has no files of its own; read the tables that it is made of, or write its "
            "rows into a table"
        )
    try:
        for depth in range(1, len(parts)):
            above = parts[: depth - 1]
            known = [".".join(each) for each in catalog.list_namespaces(above)]
            space = ".".join(parts[:depth])
            if not known and not above:
                return (
                    f"the catalog has no namespace {space!r}, nor any other; check its address, and its name, to which "
                    "the tables of a SQL catalog belong"
                )
            if space not in known:
                return f"the catalog has no namespace {space!r}; {the_nearest(space, sorted(known))}"
        names = [".".join(each) for each in catalog.list_tables(parts[:-1])]
    except Exception as other:  # noqa: BLE001 - some catalogs list nothing; the table is missing all the same
        details = _error_text(error, catalog.properties)
        return f"the catalog has no table {shown!r}: {details} (it lists none: {type(other).__name__})"
    return f"the catalog has no table {shown!r}; {the_nearest(shown, sorted(names))}"


def _is_view(catalog: Catalog, parts: tuple[str, ...]) -> bool:
    try:
        return catalog.view_exists(parts)
    except Exception:  # noqa: BLE001 - most catalogs know no views; the table is missing all the same
        return False


def _error_text(error: BaseException, properties: Mapping[str, Any]) -> str:
    """Return an error of a catalog as text without secrets, which the catalog's answer, quoted at length, may hold."""
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        text = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
    else:
        text = f"{type(error).__name__}: {error}"
    text = _QUOTED.sub(r"\1, which is not shown", Service.scrubbed(text, properties))
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT]}…"


def is_folder(location: str) -> bool:
    """Return whether a location is a table's folder rather than a metadata file.

    >>> is_folder("s3://b/t"), is_folder("/t/metadata/v3.metadata.json.gz")
    (True, False)
    """
    return ".json" not in location.rstrip("/").rpartition("/")[2]


def hint_of(folder: str) -> str:
    """Return the path of the version hint in a table's folder.

    >>> hint_of("/lake/t/")
    '/lake/t/metadata/version-hint.text'
    """
    return f"{folder.rstrip('/')}/metadata/version-hint.text"


def newest_metadata(storage: TableStorage, folder: str) -> str:
    """Return the newest metadata file of a folder.

    A writer commits by creating the file of the next version, and updates the hint afterwards. The hint may therefore
    be old, so later versions are looked up one by one, as Iceberg's own reader does.
    """
    hint = hint_of(folder)
    try:
        text = storage.read_whole(hint).decode("ascii", "replace").strip()
    except MissingFileError as error:
        raise ConfigError(
            f"metadata_location must be a metadata.json, or a folder that holds metadata/version-hint.text, and "
            f"{shown_url(folder)} is neither; pass the path of the newest metadata file, or the table's catalog"
        ) from error
    above = hint.rpartition("/")[0]
    if not text.isdecimal():
        name = text
        if not text.endswith(".json"):
            name += ".metadata.json"
        if "/" in name or not _is_there(storage, f"{above}/{name}"):
            raise _wrong(hint, text)
        return f"{above}/{name}"
    if len(text) > _MOST_DIGITS or (found := _version(storage, above, int(text))) is None:
        raise _wrong(hint, text)
    number = int(text)
    while (later := _version(storage, above, number + 1)) is not None:
        found, number = later, number + 1
    return found


def _version(storage: TableStorage, above: str, number: int) -> str | None:
    return next((path for name in _NAMES if _is_there(storage, path := f"{above}/{name.format(number)}")), None)


def _is_there(storage: TableStorage, path: str) -> bool:
    try:
        storage.version(path)
    except MissingFileError:
        return False
    return True


def _wrong(hint: str, text: str) -> TableError:
    return TableError(
        f"{shown_url(hint)} must name a version whose metadata file is beside it, got {text[:40]!r}; restore that "
        "file, or pass the path of the newest metadata file as metadata_location="
    )
