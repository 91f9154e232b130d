"""Reads a table, as it stands in the lake, into a PyTorch training loop.

Names are imported when they are first asked for, so that a process begins with what it uses.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_table_loader.installed import refuse_missing_guests

if TYPE_CHECKING:
    from torch_table_loader.dataset import StructuredDataset
    from torch_table_loader.delta import DeltaDataset
    from torch_table_loader.engine.explanation import Explanation
    from torch_table_loader.errors import (
        AccessRefusedError,
        ConfigError,
        ConfigTypeError,
        MissingExtraError,
        MissingFileError,
        MissingPathError,
        OutOfMemoryError,
        ResumeError,
        StorageError,
        StorageTimeoutError,
        TableError,
        TableLoaderError,
        WorkerError,
    )
    from torch_table_loader.iceberg import IcebergDataset
    from torch_table_loader.keywords import LoaderKeywords
    from torch_table_loader.loader import Batch, TableLoader
    from torch_table_loader.metrics import Metrics
    from torch_table_loader.mixtures.mixed import MixedDataset
    from torch_table_loader.mixtures.stop import Stop
    from torch_table_loader.option_values import Budget, ColumnStatistics, Hash, Pad, RowStore, Vocabulary, Weights
    from torch_table_loader.options import LoaderOptions
    from torch_table_loader.planning.cutting import (
        RoundRobinStrategy,
        RowBalancedStrategy,
        SizeBalancedStrategy,
        TargetSizeStrategy,
        WholeFileStrategy,
    )
    from torch_table_loader.planning.keys import row_seeds
    from torch_table_loader.predicates.hash_parts import part_of
    from torch_table_loader.read.text_options import Csv, Json
    from torch_table_loader.schedules import Schedule
    from torch_table_loader.text.chat import Chat
    from torch_table_loader.text.flat_tokens import FlatTokens
    from torch_table_loader.text.pack import Pack
    from torch_table_loader.text.token_table import tokenize_table

_HOMES = {
    "AccessRefusedError": "errors",
    "Batch": "loader",
    "Budget": "option_values",
    "ColumnStatistics": "option_values",
    "ConfigError": "errors",
    "ConfigTypeError": "errors",
    "Csv": "read.text_options",
    "DeltaDataset": "delta",
    "Explanation": "engine.explanation",
    "Chat": "text.chat",
    "FlatTokens": "text.flat_tokens",
    "Hash": "option_values",
    "IcebergDataset": "iceberg",
    "Json": "read.text_options",
    "LoaderKeywords": "keywords",
    "LoaderOptions": "options",
    "Metrics": "metrics",
    "MissingExtraError": "errors",
    "MissingFileError": "errors",
    "MissingPathError": "errors",
    "MixedDataset": "mixtures.mixed",
    "OutOfMemoryError": "errors",
    "Pack": "text.pack",
    "Pad": "option_values",
    "ResumeError": "errors",
    "RoundRobinStrategy": "planning.cutting",
    "RowBalancedStrategy": "planning.cutting",
    "RowStore": "option_values",
    "Schedule": "schedules",
    "SizeBalancedStrategy": "planning.cutting",
    "Stop": "mixtures.stop",
    "StorageError": "errors",
    "StorageTimeoutError": "errors",
    "StructuredDataset": "dataset",
    "TableError": "errors",
    "TableLoader": "loader",
    "TableLoaderError": "errors",
    "TargetSizeStrategy": "planning.cutting",
    "Vocabulary": "option_values",
    "Weights": "option_values",
    "WholeFileStrategy": "planning.cutting",
    "WorkerError": "errors",
    "part_of": "predicates.hash_parts",
    "row_seeds": "planning.keys",
    "tokenize_table": "text.token_table",
}
"""The module of each public name."""

__version__ = "0.1.0"

__all__ = [
    "AccessRefusedError",
    "Batch",
    "Budget",
    "Chat",
    "ColumnStatistics",
    "ConfigError",
    "ConfigTypeError",
    "Csv",
    "DeltaDataset",
    "Explanation",
    "FlatTokens",
    "Hash",
    "IcebergDataset",
    "Json",
    "LoaderKeywords",
    "LoaderOptions",
    "Metrics",
    "MissingExtraError",
    "MissingFileError",
    "MissingPathError",
    "MixedDataset",
    "OutOfMemoryError",
    "Pack",
    "Pad",
    "ResumeError",
    "RoundRobinStrategy",
    "RowBalancedStrategy",
    "RowStore",
    "Schedule",
    "SizeBalancedStrategy",
    "Stop",
    "StorageError",
    "StorageTimeoutError",
    "StructuredDataset",
    "TableError",
    "TableLoader",
    "TableLoaderError",
    "TargetSizeStrategy",
    "Vocabulary",
    "Weights",
    "WholeFileStrategy",
    "WorkerError",
    "__version__",
    "part_of",
    "row_seeds",
    "tokenize_table",
]

refuse_missing_guests()


def __getattr__(name: str) -> Any:
    """Import a public name, and keep it here.

    Raises:
        MissingExtraError: this build lacks the part that has it.

    Python's garbage collector rests meanwhile: it would look several times through all that torch makes, and find none.
    What came is old then, else the first objects of an epoch would let it look through all of that once.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()
    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    finally:
        if collects:
            if not gc.get_freeze_count():  # what the caller has frozen stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
