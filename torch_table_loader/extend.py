"""What plug-ins are built on: the sockets and their nouns, what this library itself puts into them, and pure values.

The contracts of the sockets are checks in `torch_table_loader.testing`. These names change only in a new minor version,
and the changelog names each change. Those of a guest are imported when they are asked for.

A contract is here if others can hold it and pass what holds it to a dataset: a storage, with or without ranges of
bytes, a source, a table format, a format with what its reader may do beyond, a split strategy. Those between parts of
this library are not: orders and draws of rows, items that are gathered, samples that batches count, records of states.
The core finds what holds them in its own table of guests.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from torch_table_loader import format_contracts
from torch_table_loader.contracts import (
    HistorySource,
    RangeStorage,
    SnapshotSource,
    Source,
    SplitStrategy,
    Storage,
    TimeTravelSource,
)
from torch_table_loader.format_contracts import FormatReader, OpenFile, Sidecar, Traits
from torch_table_loader.planning.exclusion import Exclusions, ExclusionVersions, Remaining
from torch_table_loader.planning.global_batches import GlobalBatches
from torch_table_loader.planning.keys import Key, derive_key
from torch_table_loader.planning.lanes import longest_first
from torch_table_loader.planning.layout import TableLayout
from torch_table_loader.planning.lists import Slices
from torch_table_loader.planning.permutation import Permutation
from torch_table_loader.planning.ranks import Topology
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
from torch_table_loader.planning.splits import SegmentTable, SplitTable
from torch_table_loader.planning.strategies import resolve_strategy
from torch_table_loader.read.formats import FORMATS, reader_for
from torch_table_loader.records import (
    DataFile,
    DataFileInfo,
    FileMeta,
    FileVersion,
    RowGroupInfo,
    RowRange,
    Shard,
    Split,
    Traffic,
)
from torch_table_loader.source.listing import PathSource
from torch_table_loader.source.storage import FileStorage, open_storage
from torch_table_loader.units import parse_bytes

if TYPE_CHECKING:
    from torch_table_loader import table_formats
    from torch_table_loader.far.requests import plan_pieces
    from torch_table_loader.mixtures.mixture import Mixture, SourceOrder
    from torch_table_loader.mixtures.quotas import Quotas
    from torch_table_loader.mixtures.stop import StopRule
    from torch_table_loader.order.weighted_rows import WeightedRows, WeightSums, cumulate
    from torch_table_loader.planning.value_sums import ValueSums
    from torch_table_loader.text.packing import Packer, packer_of

__all__ = [
    "FORMATS",
    "DataFile",
    "DataFileInfo",
    "ExclusionVersions",
    "Exclusions",
    "FileMeta",
    "FileStorage",
    "FileVersion",
    "FormatReader",
    "GlobalBatches",
    "HistorySource",
    "Key",
    "LiveSpan",
    "Mixture",
    "OpenFile",
    "Packer",
    "PathSource",
    "Permutation",
    "Quotas",
    "RangeStorage",
    "Remaining",
    "RowGroupInfo",
    "RowRange",
    "RowSpan",
    "SegmentTable",
    "Shard",
    "Sidecar",
    "Slices",
    "SnapshotSource",
    "Source",
    "SourceOrder",
    "SourceRow",
    "Split",
    "SplitStrategy",
    "SplitTable",
    "StopRule",
    "Storage",
    "TableLayout",
    "TimeTravelSource",
    "Topology",
    "Traffic",
    "Traits",
    "ValueSums",
    "WeightSums",
    "WeightedRows",
    "cumulate",
    "derive_key",
    "format_contracts",
    "longest_first",
    "open_storage",
    "packer_of",
    "parse_bytes",
    "plan_pieces",
    "reader_for",
    "resolve_strategy",
    "table_formats",
]

_LAZY = {
    "Mixture": "mixtures.mixture",
    "Quotas": "mixtures.quotas",
    "SourceOrder": "mixtures.mixture",
    "StopRule": "mixtures.stop",
    "Packer": "text.packing",
    "ValueSums": "planning.value_sums",
    "WeightSums": "order.weighted_rows",
    "WeightedRows": "order.weighted_rows",
    "cumulate": "order.weighted_rows",
    "packer_of": "text.packing",
    "plan_pieces": "far.requests",
    "table_formats": "",
}
"""Names that are imported when they are asked for, and where they are: a build may lack that, or few need it."""


def __getattr__(name: str) -> object:
    """Import a name. Raises MissingExtraError if it is of a guest that this build does not have."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _LAZY[name]:
        return import_module(f"{__package__}.{name}")
    return getattr(import_module(f"{__package__}.{_LAZY[name]}"), name)
