"""Reads a table, as it stands in the lake, into a PyTorch training loop."""

from torch_table_loader.column_options import Hash
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
from torch_table_loader.explanation import Explanation
from torch_table_loader.format_contracts import FormatReader, OpenFile, Sidecar, Traits
from torch_table_loader.iceberg import IcebergDataset
from torch_table_loader.loader import TableLoader
from torch_table_loader.metrics import Metrics
from torch_table_loader.mixed import MixedDataset
from torch_table_loader.option_groups import Distributed, Memory, Reading, RowMode, SplitMode, Types
from torch_table_loader.options import LoaderOptions
from torch_table_loader.pack import Pack
from torch_table_loader.planning.column_statistics import ColumnStatistics
from torch_table_loader.planning.cutting import (
    RoundRobinStrategy,
    RowBalancedStrategy,
    SizeBalancedStrategy,
    TargetSizeStrategy,
    WholeFileStrategy,
)
from torch_table_loader.planning.row_seeds import row_seeds
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
from torch_table_loader.weights import Weights

__version__ = "0.1.0"

__all__ = [
    "AccessRefusedError",
    "ColumnStatistics",
    "ConfigError",
    "ConfigTypeError",
    "DataFile",
    "DataFileInfo",
    "DeltaDataset",
    "Distributed",
    "Explanation",
    "FileMeta",
    "FileVersion",
    "FormatReader",
    "Hash",
    "HistorySource",
    "IcebergDataset",
    "LiveSpan",
    "LoaderOptions",
    "Memory",
    "Metrics",
    "MissingExtraError",
    "MissingFileError",
    "MissingPathError",
    "MixedDataset",
    "OpenFile",
    "OutOfMemoryError",
    "Pack",
    "Pad",
    "Reading",
    "ResumeError",
    "RoundRobinStrategy",
    "RowBalancedStrategy",
    "RowGroupInfo",
    "RowMode",
    "RowRange",
    "RowSpan",
    "Shard",
    "Sidecar",
    "SizeBalancedStrategy",
    "SnapshotSource",
    "Source",
    "SourceRow",
    "Split",
    "SplitMode",
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
    "Types",
    "Weights",
    "WholeFileStrategy",
    "WorkerError",
    "__version__",
    "parse_bytes",
    "part_of",
    "row_seeds",
    "tokenize_table",
]
