"""Properties that name code: the caller's are followed, and those of a catalog or a table are data.

pyiceberg imports and calls what some properties name, whoever wrote them: a table's come together with a catalog's. So
a catalog is asked through one of the same class that looks at a table's properties before it loads a `FileIO` by them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, FileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from torch_table_loader.errors import TableError, TableLoaderError

_AUTH = "auth"

_OF_WRITERS = frozenset({"write.py-location-provider.impl", "py-location-provider-impl"})
"""Nothing that reads a table looks at these, and tables may well have them."""

_OF_READERS = frozenset({"py-io-impl", "py-catalog-impl", "s3.retry-strategy-impl", _AUTH})

CODE_NAMES = _OF_WRITERS | _OF_READERS
"""The properties by which pyiceberg loads code; tests/laws/test_loaded_code.py finds what it imports."""

_HARMLESS = (ARROW_FILE_IO, FSSPEC_FILE_IO)
"""pyiceberg's own, which some catalogs name; files are read without them."""


def names_code(name: str) -> bool:
    """Return whether a property names code, or how to log in, which is code as well.

    >>> names_code("py-io-impl"), names_code("auth.impl"), names_code("io-impl")
    (True, True, False)
    """
    return name in CODE_NAMES or name.startswith(f"{_AUTH}.")


def without_code(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that name no code."""
    return {name: value for name, value in properties.items() if not names_code(name)}


def refuse_code(
    said: Mapping[str, Any], own: Mapping[str, Any], origin: str, error: type[TableLoaderError] = TableError
) -> None:
    """Refuse properties that name code, unless the caller wrote the same.

    Args:
        said: the properties, by others than the caller.
        own: the caller's.
        origin: of the first, for the message.
        error: what to raise.
    """
    for name, value in said.items():
        if not names_code(name) or name in _OF_WRITERS or value in (None, "", *_HARMLESS) or own.get(name) == value:
            continue
        shown = f" = {value[:60]!r}" if isinstance(value, str) and not name.startswith(_AUTH) else ""
        raise error(
            f"{origin} must not name code, which only the caller may, got the property {name!r}{shown}; nothing was "
            "imported: remove the property there, or, if you trust it, write it into catalog_config too"
        )


def callers_of(catalog: Catalog) -> Mapping[str, Any]:
    """Return the properties that a catalog was made with, as far as it is known which these are."""
    callers: Mapping[str, Any] = vars(catalog).get("callers", catalog.properties)
    return callers


class _OnlyTheCallersCode(Catalog):
    """Mixed into the class of a catalog."""

    callers: Mapping[str, Any]
    """The properties that it was made with."""

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        refuse_code(properties, self.callers, "the answer of the catalog, or the table's properties,")
        return super()._load_file_io(without_code(properties), location)


def guarded(catalog: Catalog) -> Catalog:
    """Return a catalog like one that exists, with all that this one holds, that loads no code by a table's properties.

    A REST catalog's own properties may come from its answers, too, and it reads no file: nothing is loaded by them.
    """
    kind = type(catalog)
    twin: _OnlyTheCallersCode = object.__new__(types.new_class(kind.__name__, (_OnlyTheCallersCode, kind)))
    vars(twin).update(vars(catalog))
    twin.callers = callers_of(catalog)
    if isinstance(catalog, RestCatalog):
        twin.properties = without_code(catalog.properties)
    return twin
