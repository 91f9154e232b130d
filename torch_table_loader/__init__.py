"""Reads a table, as it stands in the lake, into a PyTorch training loop."""

from torch_table_loader.contracts import (
    HistorySource,
    SnapshotSource,
    Source,
    SplitStrategy,
    Storage,
    TimeTravelSource,
)
from torch_table_loader.dataset import StructuredDataset
from torch_table_loader.delta import DeltaDataset
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
from torch_table_loader.explain import Explanation
from torch_table_loader.format_contracts import FormatReader, OpenFile, Sidecar, Traits
from torch_table_loader.iceberg import IcebergDataset
from torch_table_loader.loader import TableLoader
from torch_table_loader.metrics import Metrics
from torch_table_loader.mixed import MixedDataset
from torch_table_loader.options import LoaderOptions
from torch_table_loader.pack import Pack
from torch_table_loader.planning.cutting import (
    RoundRobinStrategy,
    RowBalancedStrategy,
    SizeBalancedStrategy,
    TargetSizeStrategy,
)
from torch_table_loader.planning.rows_of import LiveSpan, RowSpan, SourceRow
from torch_table_loader.ragged import Pad
from torch_table_loader.read.hash_parts import part_of
from torch_table_loader.records import (
    DataFile,
    DataFileInfo,
    FileMeta,
    FileVersion,
    RowGroupInfo,
    RowRange,
    Shard,
    Split,
)
from torch_table_loader.text.token_table import tokenize_table
from torch_table_loader.units import parse_bytes

__all__ = [
    "AccessRefusedError",
    "ConfigError",
    "ConfigTypeError",
    "DataFile",
    "DataFileInfo",
    "DeltaDataset",
    "Explanation",
    "FileMeta",
    "FileVersion",
    "FormatReader",
    "HistorySource",
    "IcebergDataset",
    "LiveSpan",
    "LoaderOptions",
    "Metrics",
    "MissingExtraError",
    "MissingFileError",
    "MissingPathError",
    "MixedDataset",
    "OpenFile",
    "OutOfMemoryError",
    "Pack",
    "Pad",
    "ResumeError",
    "RoundRobinStrategy",
    "RowBalancedStrategy",
    "RowGroupInfo",
    "RowRange",
    "RowSpan",
    "Shard",
    "Sidecar",
    "SizeBalancedStrategy",
    "SnapshotSource",
    "Source",
    "SourceRow",
    "Split",
    "SplitStrategy",
    "Storage",
    "StorageError",
    "StorageTimeoutError",
    "StructuredDataset",
    "TableError",
    "TableLoader",
    "TableLoaderError",
    "TargetSizeStrategy",
    "TimeTravelSource",
    "Traits",
    "WorkerError",
    "parse_bytes",
    "part_of",
    "tokenize_table",
]
