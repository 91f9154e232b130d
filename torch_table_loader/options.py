"""What the caller asked for: validated once, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.context import BaseContext
from os import PathLike
from typing import Any, Literal, get_args

from torch_table_loader.column_options import (
    ColumnFunctions,
    StringsOption,
    check_functions,
    check_strings,
)
from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.pack import Pack
from torch_table_loader.ragged import RaggedOption, check_ragged
from torch_table_loader.remote_options import RemoteOptions
from torch_table_loader.scrubbing import shown_url
from torch_table_loader.sizes import sizes
from torch_table_loader.units import integer, parse_bytes, seconds
from torch_table_loader.weights import Weights, as_weights

OutputFormat = Literal["torch", "numpy", "arrow", "dict"]
WorkerType = Literal["thread", "process", "fork", "spawn", "forkserver"]
EvenRanks = Literal["balance", "drop", "pad"]
OnError = Literal["raise", "skip"]
BatchBy = Literal["file"]

DEFAULT_LANES = 4
"""Lanes of a rank where the caller names none: the same everywhere, since lanes are part of the order."""

DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024

DEFAULT_ROW_STORE_MEMORY = "1GiB"

_SWITCHES = ("drop_last", "pin_memory", "row_id", "check_plan", "count_filtered", "raw_files")
MOST_ROWS = 2**40
MOST_LANES = 2**16

ROWS_ONLY = {
    "global_batch_size": None,
    "micro_batches": 1,
    "row_store": None,
    "row_store_memory": DEFAULT_ROW_STORE_MEMORY,
    "weights": None,
}
"""The options for ``shuffle="rows"`` only, and their defaults."""

SPLITS_ONLY = {
    "split_size": None,
    "split_strategy": None,
    "shuffle_buffer_size": None,
    "count_filtered": True,
    "batch_by": None,
}
"""The options of splits, which ``shuffle="rows"`` does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The options of all datasets; each field is a keyword argument.

    Args:
        batch_size: rows per batch on this rank; with `global_batch_size`, leave it out or let it agree.
        columns: names to deliver, in this order; None for all.
        filters: a pyarrow compute Expression, text or tuples; leaves out rows for which it is false or null; see
            docs/filters.md.
        shuffle: False: table order. True or "splits": splits permuted in each epoch. "rows": all rows permuted; see
            docs/order.md and docs/shuffle.md.
        shuffle_seed: the key of every permutation.
        split_size: target size of a split: rows as an int, or bytes before compression as text. None is "128MiB", or
            what a strategy of its own chooses.
        split_strategy: an object, the name of an installed entry point, or None: target size; see docs/strategies.md.
        num_workers: lanes of this rank, part of the order. None is 4; 0 is one lane in the caller's thread.
        output_format: "torch", "numpy", "arrow" (RecordBatch) or "dict" (Python lists); see docs/types.md.
        storage_options: options of the file system, as fsspec takes them, and how its files are read: retries,
            read-ahead, and a cache on a local disk; see docs/object-stores.md.
        collate_fn: function called with each batch, in the worker, one batch at a time.
        transforms: ``{column: function}``: called with the column's values in each batch, in the worker, before
            `collate_fn`; returns their replacement, one entry per row; see docs/columns.md.
        decode: ``{column: function}``: called with each string or bytes that is not null, before `transforms`.
        partitioning: "hive" to decode ``key=value`` segments of paths, including those at the end of `path`.
        num_ranks: number of ranks of the job; or "auto" to find it and the rank; or a DeviceMesh, whose data-parallel
            dimensions give both. None: 1, and a warning in a job of several; see docs/distributed.md.
        rank: global number of this rank; leave it out with "auto" or a mesh, which find it.
        show_progress: draw a progress bar, with the MB/s from an object store; "workers": also one for each worker
            (needs tqdm). A number: the seconds from one drawing to the next, such as 60 where a log keeps each.
        shuffle_buffer_size: number of rows of a lane in each window whose rows are permuted; None or 0: no windows.
        drop_last: drop the last batch of a rank if it is short.
        worker_type: "thread" or "process": the same batches in the same order; "fork", "spawn" and "forkserver", or a
            context of multiprocessing, are processes that start in this way; see docs/engines.md.
        even_ranks: None, "balance", "drop" or "pad": how to make ranks take equally many steps; see docs/order.md.
        prefetch_batches: maximum number of finished batches of a lane that wait; None: 2 with functions of yours, else
            the batches of 2 reads.
        nulls: ``{column: fill}`` or "mask"; None: nulls in ints and bools are errors. The fills "nan" and the column's
            statistics (their mean) make floats of ints.
        ragged: form of lists: "nested" (None for torch), "offsets" (None for numpy), "pad" or a `Pad`, or
            ``{column: one of these}``.
        strings: "list", "codes", `Vocabulary` or `Hash`, or ``{column: one of these}``.
        decimals: "float64" to convert decimals to doubles; None refuses them.
        unsupported: "list": a column that has no form as a tensor comes as a list of Python values; None refuses it.
        pin_memory: copy batches into page-locked memory.
        device: device to which batches are moved.
        row_id: add the int64 column ``row_id``: the position of the row in the table.
        schema: Arrow schema with which to read the table.
        files: the table's files, instead of listing `path`: names, or the path of a list written by `save_files`.
        plan_cache: directory on any fsspec file system that keeps footers, counts and plans.
        check_plan: compare the plans of the ranks of a process group when the loader is made.
        count_filtered: count the rows that pass a row filter before training.
        global_batch_size: with shuffle="rows", rows per step over all ranks, instead of `batch_size`; the dataset's
            `options.batch_size` is then this rank's part.
        micro_batches: with shuffle="rows", batches per rank in one step of the optimizer, which accumulates gradients
            over them; they divide `global_batch_size` further.
        row_store: "memory", a directory or a URL; None: memory if the store fits into `row_store_memory` and the free
            memory, else a cache directory; see docs/shuffle.md.
        row_store_memory: maximum bytes of a store that a rank keeps in memory: int or "1GiB".
        raw_files: read the files of an Iceberg, Delta Lake or Hudi table as they are, including deleted rows.
        verify_checksums: refuse pages of Parquet files, and files of row stores, that differ from their checksums;
            `"all"` compares row stores whole whenever they are opened; see docs/shuffle.md#what-is-checked.
        pack: `Pack(seq_len=...)`: documents of tokens become sequences, which `batch_size` then counts; see
            docs/language-models.md.
        epochs: number of epochs in one iteration, each shuffled again, or "forever"; None: the epoch that was set; see
            docs/state.md.
        on_growth: what to do with a state from before the table grew: "continue" its epoch with the new rows; None:
            read the state's own snapshot, or refuse the state if the table has no snapshots; see docs/growing.md.
        on_error: "raise", or "skip" to leave out, count and report the damage that planning finds; see
            docs/errors.md#leaving-damage-out.
        weights: with shuffle="rows", how often each row comes: `Weights`, or the name of a weight column; see
            docs/weights.md.
        batch_by: "file": no batch mixes rows of two files; None: batches are filled across files; see
            docs/order.md#batches-of-one-file.
    """

    batch_size: int = 1024
    columns: Sequence[str] | None = None
    filters: Any = None
    shuffle: bool | Literal["splits", "rows"] = False
    shuffle_seed: int = 42
    split_size: int | str | None = None
    split_strategy: Any = None
    num_workers: int | None = None
    output_format: OutputFormat = "torch"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    collate_fn: Callable[[Any], Any] | None = None
    transforms: ColumnFunctions | None = field(default=None, repr=False)
    decode: ColumnFunctions | None = field(default=None, repr=False)
    partitioning: Literal["hive"] | None = None
    num_ranks: int | Literal["auto"] | Any = None
    rank: int | None = None
    show_progress: bool | float | Literal["workers"] = False
    shuffle_buffer_size: int | None = None
    drop_last: bool = False
    worker_type: WorkerType | BaseContext = "thread"
    even_ranks: EvenRanks | None = None
    prefetch_batches: int | None = None
    nulls: Mapping[str, Any] | Literal["mask"] | None = None
    ragged: RaggedOption | None = None
    strings: StringsOption = "list"
    decimals: Literal["float64"] | None = None
    unsupported: Literal["list"] | None = None
    pin_memory: bool = False
    device: Any = None
    row_id: bool = False
    schema: Any = None
    files: Sequence[str] | str | None = field(default=None, repr=False)
    plan_cache: str | None = field(default=None, repr=False)
    check_plan: bool = True
    count_filtered: bool = True
    global_batch_size: int | None = None
    micro_batches: int = 1
    row_store: str | None = field(default=None, repr=False)
    row_store_memory: int | str = DEFAULT_ROW_STORE_MEMORY
    raw_files: bool = False
    verify_checksums: bool | Literal["all"] = True
    pack: Pack | None = None
    epochs: int | Literal["forever"] | None = None
    on_growth: Literal["continue"] | None = None
    on_error: OnError = "raise"
    weights: Weights | str | None = None
    batch_by: BatchBy | None = None

    def __post_init__(self) -> None:
        """Check every option."""
        self._check_numbers()
        self._check_choices()
        self._check_switches()
        self._check_cache()
        self._check_names()
        check_beside_pack({entry.name: getattr(self, entry.name) for entry in fields(self)})

    def _check_numbers(self) -> None:
        self._take_integer("batch_size", least=1, most=MOST_ROWS)
        self._take_integer("micro_batches", least=1, most=MOST_ROWS)
        self._take_integer("shuffle_seed")
        for name, least, most in (
            ("num_workers", 0, MOST_LANES),
            ("shuffle_buffer_size", 0, MOST_ROWS),
            ("prefetch_batches", 1, MOST_ROWS),
            ("global_batch_size", 1, MOST_ROWS),
        ):
            if getattr(self, name) is not None:
                self._take_integer(name, least, most)
        if self.epochs not in (None, "forever"):
            self._take_integer("epochs", least=1, most=MOST_ROWS)
        if self.shuffle_buffer_size == 0:
            object.__setattr__(self, "shuffle_buffer_size", None)
        if isinstance(self.split_size, str):
            parse_bytes(self.split_size, "split_size")
        elif self.split_size is not None:
            self._take_integer("split_size", 1, MOST_ROWS)
        self._take_size("row_store_memory")
        self._check_ranks()

    def _take_integer(self, name: str, least: int | None = None, most: int | None = None) -> None:
        """Check an integer, and keep it as Python's own: numpy's do not print or serialize as one."""
        object.__setattr__(self, name, integer(name, getattr(self, name), least, most))

    def _take_size(self, name: str) -> None:
        """Check a size; one in bytes is kept as Python's own integer, one in words as it was written."""
        given = getattr(self, name)
        num_bytes = parse_bytes(given, name)
        if not isinstance(given, str):
            object.__setattr__(self, name, num_bytes)

    def _check_ranks(self) -> None:
        found = self.takes_mesh or (isinstance(self.num_ranks, str) and self.num_ranks == "auto")
        if self.num_ranks is not None and not found:
            self._take_integer("num_ranks", 1, MOST_ROWS)
        if self.rank is None:
            return
        self._take_integer("rank", 0)
        if found:
            beside = "a mesh" if self.takes_mesh else 'num_ranks="auto"'
            raise ConfigError(f"rank={self.rank} was given beside {beside}, which determines it; leave rank out")
        if self.num_ranks in (None, 1) and self.rank:
            raise ConfigError(
                f"rank={self.rank} needs num_ranks=, which is 1 by default; pass "
                'num_ranks=dist.get_world_size(), or num_ranks="auto" and no rank'
            )
        if isinstance(self.num_ranks, int) and self.rank >= self.num_ranks:
            raise ConfigError(
                f"rank must be in [0, num_ranks), got rank={self.rank} num_ranks={self.num_ranks}; "
                "pass the global rank (dist.get_rank()), not the local one"
            )

    def _check_choices(self) -> None:
        for name, allowed in (
            ("output_format", get_args(OutputFormat)),
            ("even_ranks", (None, *get_args(EvenRanks))),
            ("on_error", get_args(OnError)),
            ("batch_by", (None, *get_args(BatchBy))),
            ("decimals", (None, "float64")),
            ("unsupported", (None, "list")),
            ("partitioning", (None, "hive")),
            ("on_growth", (None, "continue")),
            ("shuffle", (False, True, "splits", "rows")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        if self.output_format in ("arrow", "dict") and self.collate_fn is None and (self.pin_memory or self.device):
            raise ConfigError(
                f"output_format={self.output_format!r} holds no tensors that device or pin_memory could place; pass a "
                "collate_fn that makes tensors, or leave both out"
            )
        if self.nulls is not None and self.nulls != "mask" and not isinstance(self.nulls, Mapping):
            raise ConfigError(f"nulls must be None, 'mask' or {{column: fill}}, got {self.nulls!r}")
        check_ragged(self.ragged)
        check_strings(self.strings)
        check_functions("transforms", self.transforms)
        check_functions("decode", self.decode)
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigTypeError(f"collate_fn must be callable, got {type(self.collate_fn).__name__}")
        self._check_rows()
        self._check_files()

    def _check_files(self) -> None:
        if self.batch_by is None:
            return
        if not self.count_filtered:
            raise ConfigError(
                'batch_by="file" needs the number of rows that pass the filter; leave count_filtered=True, or batch_by '
                "out"
            )
        if self.split_strategy is None and self.split_size is not None:
            raise ConfigError(
                'batch_by="file" splits a table into whole files; leave split_size out, or pass '
                'split_strategy="target_size", which then batches each split by itself'
            )

    def _check_rows(self) -> None:
        rows = self.shuffle == "rows"
        if self.weights is not None:
            object.__setattr__(self, "weights", as_weights(self.weights))
            if self.on_growth is not None:
                raise ConfigError(
                    "on_growth and weights do not go together: new rows change every share; leave one out"
                )
        alien = ROWS_ONLY if not rows else SPLITS_ONLY
        for name, neutral in alien.items():
            if getattr(self, name) != neutral:
                raise ConfigError(
                    f"{name}={_shown(getattr(self, name))} does not work with shuffle={self.shuffle!r}; "
                    + ("leave it out" if rows else 'leave it out, or pass shuffle="rows"')
                )
        if rows and self.even_ranks not in (None, "pad"):
            raise ConfigError(
                f'even_ranks={self.even_ranks!r} is for splits: with shuffle="rows" ranks differ only in the last '
                'step; pass even_ranks="pad", or drop_last=True'
            )
        if self.row_store is not None and (not self.row_store or not isinstance(self.row_store, str | PathLike)):
            raise ConfigTypeError(f'row_store must be "memory", a directory, or a URL, got {self.row_store!r}')

    def _check_switches(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigTypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        shown: object = self.show_progress
        if isinstance(shown, str | None) and shown != "workers":
            raise ConfigTypeError(f'show_progress must be True or False, seconds, or "workers", got {shown!r}')
        if not isinstance(shown, bool | str):
            object.__setattr__(self, "show_progress", seconds("show_progress", shown))
        if not isinstance(self.verify_checksums, bool) and self.verify_checksums != "all":
            raise ConfigTypeError(f'verify_checksums must be True or False, or "all", got {self.verify_checksums!r}')
        if self.plan_cache is not None and not isinstance(self.plan_cache, str | PathLike):
            raise ConfigTypeError(f"plan_cache must be a directory's path or URL, got {self.plan_cache!r}")
        if self.worker_type not in (kinds := get_args(WorkerType)) and not hasattr(
            self.worker_type, "get_start_method"
        ):
            raise ConfigError(
                f"worker_type must be one of {', '.join(map(repr, kinds))}, or a context of "
                f"multiprocessing.get_context(), got {self.worker_type!r}"
            )

    def _check_cache(self) -> None:
        remote = self.remote
        far_rows = self.row_store is not None and "://" in str(self.row_store)  # these are fetched all the same
        if remote.cache_dir is not None and remote.read_ahead_bytes == 0 and not far_rows:
            raise ConfigError(
                "storage_options: cache_dir keeps what is fetched ahead of decoding, and read_ahead_bytes=0 fetches "
                "nothing ahead; leave one of the two out"
            )

    def _check_names(self) -> None:
        for name in ("columns", "files"):
            value = getattr(self, name)
            if value is None or (name == "files" and isinstance(value, str)):
                continue
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            if not listed or not all(isinstance(entry, str) for entry in value):
                remedy = f"; pass {name}=[{_shown(value)}]" if isinstance(value, str) else ""
                raise ConfigTypeError(f"{name} must be a list of strings, got {_shown(value)}{remedy}")
            if twice := sorted({entry for entry in value if list(value).count(entry) > 1}):
                raise ConfigError(f"{name} names {_shown(twice[0])} twice; name each once")

    @property
    def calls_functions(self) -> bool:
        """Whether functions of the caller's are called with each batch."""
        return self.collate_fn is not None or bool(self.transforms or self.decode)

    @property
    def takes_mesh(self) -> bool:
        """Whether `num_ranks` is a DeviceMesh, or has the methods of one that are needed."""
        return all(hasattr(self.num_ranks, name) for name in ("ndim", "size", "get_coordinate"))

    @property
    def processes(self) -> bool:
        """Whether processes of their own make batches."""
        return self.worker_type != "thread" and self.num_workers != 0

    @property
    def start_method(self) -> Literal["fork", "spawn", "forkserver"] | BaseContext | None:
        """How worker processes start; None: as multiprocessing does."""
        return None if self.worker_type in ("thread", "process") else self.worker_type  # type: ignore[return-value]

    @property
    def batch_rows(self) -> int:
        """Rows that a batch is made of: tokens, where documents are cut anywhere."""
        tokens = self.pack is not None and self.pack.strategy == "concat" and self.shuffle != "rows"
        return self.batch_size * self.pack.seq_len if tokens and self.pack is not None else self.batch_size

    @property
    def lanes(self) -> int:
        """Lanes of a rank: at least one."""
        return max(1, DEFAULT_LANES if self.num_workers is None else self.num_workers)

    @property
    def split_rows(self) -> int | None:
        """Target rows of a split; None where its size is in bytes."""
        return self.split_size if isinstance(self.split_size, int) else None

    @property
    def split_bytes(self) -> int | None:
        """Target bytes of a split; None where its size is in rows, or was not given."""
        return parse_bytes(self.split_size) if isinstance(self.split_size, str) else None

    @property
    def progress_interval(self) -> float:
        """Seconds from one drawing of a progress bar to the next."""
        return self.show_progress if isinstance(self.show_progress, float) else sizes().progress_s

    @property
    def remote(self) -> RemoteOptions:
        """How files of stores are read, as `storage_options` says it."""
        return RemoteOptions.of(self.storage_options)


def defaults() -> dict[str, Any]:
    """Return every option's default by name.

    >>> defaults()["batch_size"]
    1024
    """
    return {entry.name: entry.default for entry in fields(LoaderOptions)}


def _shown(value: object) -> str:
    """Return a value as messages may show it: of URLs, also in lists, without their secrets.

    >>> _shown(["https://me:word@host/a", 5])
    "['https://host/a', 5]"
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(shown_url(value) if isinstance(value, str) else value)


def check_beside_pack(options: Mapping[str, Any]) -> None:
    """Refuse a `pack` that is none, and options that do not go with it.

    Args:
        options: all of them by name, as the caller gave them.

    Raises:
        ConfigError: names the two, and the remedy.
    """
    pack = options["pack"]
    if pack is None:
        return
    if not isinstance(pack, Pack):
        raise ConfigTypeError(f"pack must be a Pack(seq_len=..., ...), got {type(pack).__name__} {pack!r}")
    if options["weights"] is not None:
        raise ConfigError(
            "weights draws rows, and pack makes sequences of each document once; leave one of them out, or weight "
            "whole tables of documents with MixedDataset(sources, weights)"
        )
    if options["output_format"] not in ("torch", "numpy"):
        raise ConfigError(
            f"output_format={options['output_format']!r} delivers rows of the table as they are, and pack makes "
            'sequences of them; leave pack out, or use output_format="torch" or "numpy"'
        )
    if options["on_growth"] is not None and options["shuffle"] == "rows":
        raise ConfigError('on_growth and pack go together without shuffle="rows"; leave one of them out')
    if options["transforms"] or options["decode"]:
        raise ConfigError(
            "pack makes sequences of the rows whose columns transforms= and decode= are for; leave these out, and "
            "change the batches of sequences with collate_fn="
        )
    if pack.strategy == "concat" and options["batch_by"] is not None:
        raise ConfigError(
            'strategy="concat" runs sequences on over the ends of files, where batch_by="file" ends batches; leave '
            'batch_by out, or use strategy="best_fit" or "pad"'
        )
    if uneven := [step for step, _ in pack.schedule if step % options["micro_batches"]]:
        raise ConfigError(
            f"pack: steps of seq_len_from must be multiples of micro_batches={options['micro_batches']}, got "
            f"{uneven[0]}"
        )
    if pack.strategy == "concat" and options["shuffle_buffer_size"] is not None:
        raise ConfigError(
            "shuffle_buffer_size permutes rows, which would be single tokens of sequences; leave it out, or use "
            'strategy="best_fit" or "pad", or shuffle="rows"'
        )
