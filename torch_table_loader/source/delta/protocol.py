"""Which Delta Lake tables can be read: the protocol of a table against the reader features that are known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_table_loader.errors import TableError

_NEWEST_READER = 3
_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Those of variants say that there may be columns of a type that is refused where it is met; deltalake names them in
tables that have none."""

_MODE = "delta.columnMapping.mode"
_MODES = ("none", "name", "id")


def check_protocol(reader: int, features: Sequence[str], where: str) -> None:
    """Refuse a table that says that it takes more to read it than is known here.

    Args:
        reader: the version of the protocol that a reader must know.
        features: reader features that the table names.

    Raises:
        TableError: names the version or the features.
    """
    if reader > _NEWEST_READER:
        raise TableError(
            f"{where} needs reader version {reader} of the Delta Lake protocol, and {_NEWEST_READER} is the newest "
            "that this library reads; update it, or write the table's rows into another table"
        )
    if unknown := sorted(set(features) - _FEATURES):
        raise TableError(
            f"{where} needs the reader feature{'s' if len(unknown) > 1 else ''} {', '.join(unknown)} of Delta Lake, "
            f"which this library does not read (it reads {', '.join(sorted(_FEATURES))}); drop the feature from the "
            "table (ALTER TABLE … DROP FEATURE), or write its rows into another table"
        )


def mapping_mode(reader: int, features: Sequence[str], settings: Mapping[str, str], where: str) -> str:
    """Return how columns are found: "none" and "name" by names, "id" by the ids in Parquet files.

    Raises:
        TableError: a mode that the protocol does not have.

    >>> mapping_mode(2, (), {"delta.columnMapping.mode": "name"}, "t"), mapping_mode(1, (), {}, "t")
    ('name', 'none')
    """
    mode = settings.get(_MODE, "none")
    if mode not in _MODES:
        raise TableError(f"{_MODE} of {where} must be one of {', '.join(_MODES)}, got {mode!r}; fix the table")
    return mode if reader == 2 or "columnMapping" in features else "none"
