"""What the caller asked for: each option declared once, validated once, then frozen.

A declaration has the name, the type, the default, the meaning, the check, and who takes the option. Keyword arguments,
signatures, help, the table of options in the documentation and the flags of the command line are made from it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from multiprocessing.context import BaseContext
from typing import Any, Literal, Self, cast, get_args

from torch_table_loader import option_checks as checks
from torch_table_loader.errors import ConfigError
from torch_table_loader.option_checks import Check, WorkerType
from torch_table_loader.option_values import (
    DEFAULT_MEMORY,
    Budget,
    ColumnFunctions,
    ColumnsOption,
    RaggedOption,
    RemoteOptions,
    RowStore,
    StringsOption,
    UnsupportedOption,
    Weights,
    as_row_store,
    names_of,
)
from torch_table_loader.samples import LENGTH, ONE_BY_ONE, FilledSamples, Samples, SamplesOption
from torch_table_loader.schedules import Schedule
from torch_table_loader.sizes import sizes
from torch_table_loader.units import parse_bytes

OutputFormat = Literal["torch", "numpy", "arrow", "dict"]
DictFormat = Literal["torch", "numpy", "dict"]
"""Those whose batches are dicts."""
EvenRanks = Literal["balance", "drop", "pad"]
OnError = Literal["raise", "skip"]
BatchBy = Literal["file"]

DEFAULT_LANES = 4
"""Lanes of a rank where the caller names none: the same everywhere, since lanes are part of the order."""

DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024

BATCHES = "Batches and their order"
WORKERS = "Workers and progress"
RANKS = "Ranks"
ROWS = "Rows in any order"
SPLITS = "Splits"
COLUMNS = "Types of columns"
FILES = "Files and stores"


@dataclass(frozen=True, slots=True)
class About:
    """What a declaration says of an option beside its type and its default.

    Args:
        group: the title under which the option is listed. Those of `ROWS` need ``shuffle="rows"``, and those of
            `SPLITS` anything else.
        check: of values other than a default of None.
        mixture: which part of a mixture takes it: the job, the sources (the mixture hands it to those that it opens),
            or both; None: neither, so each source is given its own.
        form: whether it says in what form rows come, which the sources of a mixture have in common.
    """

    group: str
    check: Check | None
    mixture: Literal["job", "sources", "both"] | None
    form: bool


def _option(
    default: Any,
    group: str,
    check: Check | None = None,
    *,
    mixture: Literal["job", "sources", "both"] | None = None,
    form: bool = False,
    shown: bool = True,
) -> Any:
    """Declare an option, whose docstring follows; its value stays out of the repr where it may be secret or long."""
    return field(default=default, repr=shown, metadata={"about": About(group, check, mixture, form)})


class _Follows:
    """What follows from the options, with the defaults: `LoaderOptions` works it out once, for all who ask."""

    budget: Budget | None
    """What a batch holds, where that is no number of rows."""

    most_rows: int
    """The most rows of a batch."""

    samples: Samples
    """What a batch counts."""

    batch_rows: int
    """Rows of a stream that a batch is made of."""

    schedules: Mapping[str, Schedule]
    """What changes at a step of an epoch, by the option that says so."""

    column_names: Sequence[str] | None
    """The columns that are read, in order; None for all."""

    reads: Sequence[str] | None
    """The columns that samples are made of, in order; None for all."""

    may_mix: bool
    """Whether rows of several splits are mixed, where nothing keeps them from it."""

    window: int | None
    """Rows, or documents, that are shuffled together; None where nobody said how many."""

    row_window: int | None
    """Rows that are shuffled together; None where they are parts of samples, of which the whole is shuffled."""

    split_rows: int | None
    split_bytes: int | None
    """Target size of a split, in rows or in bytes; None for the other, and where none was given."""

    lanes: int
    """Lanes of a rank: at least one."""

    processes: bool
    """Whether processes of their own make batches."""

    limits_memory: bool
    """Whether the caller says how many bytes a rank may hold."""

    memory: int
    """Bytes of a rank by which windows, reads and what is fetched ahead are sized."""

    remote: RemoteOptions
    """How files of stores are read, as `storage_options` says it."""

    ahead_bytes: int
    """Compressed bytes that each process fetches ahead of decoding."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(_Follows):
    """The options of all datasets; each field is a keyword argument."""

    batch_size: int | Budget = _option(1024, BATCHES, checks.batch_size, mixture="job")
    """Rows per batch on this rank; or a `Budget` of tokens; see
    docs/language-models.md#batches-by-tokens."""

    global_batch_size: int | Mapping[int, int] | Schedule | None = _option(
        None, BATCHES, checks.batch_sizes, mixture="job"
    )
    """Rows over all ranks in one step of the optimizer. Without `batch_size`, each rank gives one batch; with it, and
    shuffle="rows", several of that size, and the optimizer accumulates their gradients. A dict gives the size by the
    step from which it holds, and a `Schedule` by samples or tokens: ``{0: 256, 1000: 512}``."""

    columns: ColumnsOption | None = _option(None, BATCHES, checks.columns, mixture="sources")
    """Names to deliver, in this order; None for all. A dict gives the keys of a batch: a column each, or a list of
    columns of numbers that become one float32 tensor [batch, k]: ``{"x": ["age", "income"], "y": "churn"}``."""

    filters: Any = _option(None, BATCHES, mixture="sources")
    """A pyarrow compute Expression, text or tuples; leaves out rows for which it is false or null; see
    docs/filters.md."""

    shuffle: bool | Literal["splits", "rows", "mixed"] = _option(
        False, BATCHES, checks.one_of(False, True, "splits", "rows", "mixed")
    )
    """False: table order. True: rows of up to 16 splits mixed in windows, where nothing keeps them from it. "mixed":
    the same, or an error. "splits": splits permuted in each epoch. "rows": all rows permuted; see docs/order.md."""

    shuffle_seed: int = _option(42, BATCHES, checks.whole(None, None), mixture="job")
    """The key of every permutation."""

    drop_last: bool = _option(False, BATCHES, checks.switch, mixture="job")
    """Drop the last batch of a rank if it is short."""

    epochs: int | Literal["forever"] | None = _option(None, BATCHES, checks.epochs, mixture="job")
    """Number of epochs in one iteration, or "forever"; each is shuffled again. None: the epoch that was set; see
    docs/state.md."""

    output_format: OutputFormat = _option(
        "torch", BATCHES, checks.one_of(*get_args(OutputFormat)), mixture="sources", form=True
    )
    """"torch", "numpy", "arrow" (RecordBatch) or "dict" (Python lists); see docs/types.md."""

    collate_fn: Callable[[Any], Any] | None = _option(None, BATCHES, checks.function, mixture="job")
    """Function called with each batch, in the worker, one batch at a time."""

    row_id: bool = _option(False, BATCHES, checks.switch, mixture="sources", form=True)
    """Add the int64 column ``row_id``: the position of the row in the table."""

    pack: SamplesOption | None = _option(None, BATCHES, checks.pack, mixture="sources", form=True)
    """`Pack(seq_len=...)`: documents of tokens become sequences, which `batch_size` then counts; see
    docs/language-models.md."""

    num_workers: int | None = _option(None, WORKERS, checks.whole(0, checks.MOST_LANES), mixture="both")
    """Lanes of this rank, part of the order. None is 4; 0 is one lane in the caller's thread."""

    worker_type: WorkerType | BaseContext = _option("thread", WORKERS, checks.workers, mixture="both")
    """"thread" or "process"; batches and order are the same. "fork", "spawn", "forkserver" or a context of
    multiprocessing: processes, started this way; see docs/engines.md."""

    device: Any = _option(None, WORKERS, mixture="job")
    """Device to which batches are moved; to CUDA each is copied ahead, from page-locked memory."""

    prefetch_batches: int | None = _option(None, WORKERS, checks.whole(1, checks.MOST_ROWS), mixture="job")
    """Maximum number of finished batches of a lane that wait. None: 2 if you pass functions, such as `collate_fn`;
    otherwise the batches of 2 reads."""

    show_progress: bool | float | str = _option(False, WORKERS, checks.progress, mixture="both")
    """Draw a progress bar, with the MB/s from an object store; "workers": also one for each worker (needs tqdm). A
    number: the seconds from one drawing to the next. Any other text, such as "train", names the bar."""

    num_ranks: int | Literal["auto"] | Any = _option(None, RANKS, checks.ranks, mixture="both")
    """Number of ranks of the job; or "auto" to find it and the rank; or a DeviceMesh, whose data-parallel dimensions
    give both. None: 1, and a warning in a job of several; see docs/distributed.md."""

    rank: int | None = _option(None, RANKS, checks.whole(0, None), mixture="both")
    """Global number of this rank; leave it out with "auto" or a mesh, which find it."""

    even_ranks: EvenRanks | Literal[False] | None = _option(
        None, RANKS, checks.one_of(None, False, *get_args(EvenRanks)), mixture="job"
    )
    """"balance", "drop" or "pad": how to make ranks take equally many steps; without `num_ranks` and `rank`, it finds
    the ranks as num_ranks="auto" does. None: "balance" where rows are counted. False: not; see docs/order.md."""

    check_plan: bool = _option(True, RANKS, checks.switch, mixture="both")
    """Compare the plans of the ranks of a process group when the loader is made."""

    row_store: RowStore | str | None = _option(None, ROWS, checks.row_store, mixture="sources", shown=False)
    """"memory", a directory or a URL, or `RowStore(place, memory="4GiB")`; None: memory if the store fits into 1GiB and
    the free memory, else a cache directory; see docs/shuffle.md."""

    weights: Weights | str | None = _option(None, ROWS, checks.weights)
    """With shuffle="rows", how often each row comes: `Weights`, or the name of a weight column; see docs/weights.md."""

    split_size: int | str | None = _option(None, SPLITS, checks.split_size)
    """Target size of a split: rows as an int, or bytes before compression as text. None is "128MiB", or what a strategy
    of its own chooses."""

    split_strategy: Any = _option(None, SPLITS)
    """An object, the name of an installed entry point, or None: target size; see docs/strategies.md."""

    shuffle_buffer_size: int | str | None = _option(None, SPLITS, checks.window)
    """Number of rows of a lane in each window whose rows are permuted; None or 0: no windows. As text, such as "2GiB":
    the memory of a rank, by which reads, and windows of what is shuffled, are sized; see docs/engines.md#memory. Where
    documents are cut anywhere, `Pack(strategy="concat")`, about so many documents are permuted before they are cut,
    and with "splits" or False exactly so many of a row group."""

    count_filtered: bool = _option(True, SPLITS, checks.switch)
    """Count the rows that pass a row filter before training."""

    batch_by: BatchBy | None = _option(None, SPLITS, checks.one_of(None, *get_args(BatchBy)))
    """"file": no batch mixes rows of two files; None: batches are filled across files; see
    docs/order.md#batches-of-one-file."""

    nulls: Mapping[str, Any] | Literal["mask"] | None = _option(
        None, COLUMNS, checks.fills, mixture="sources", form=True
    )
    """``{column: fill}`` or "mask"; None: nulls in ints and bools are errors. The fills "nan" and the column's
    statistics (their mean) turn ints into floats."""

    ragged: RaggedOption | None = _option(None, COLUMNS, checks.layouts, mixture="sources", form=True)
    """Form of lists: "nested" (None for torch), "offsets" (None for numpy), "pad" or a `Pad`, or ``{column: one of
    these}``."""

    strings: StringsOption = _option("list", COLUMNS, checks.strings, mixture="sources", form=True)
    """"list", "codes", `Vocabulary` or `Hash`, or ``{column: one of these}``."""

    unsupported: UnsupportedOption | None = _option(None, COLUMNS, checks.unsupported, mixture="sources", form=True)
    """What a column that has no form as a tensor becomes: "list" of Python values, or "float64" for decimals, or
    ``{column: one of these}``; None refuses it."""

    transforms: ColumnFunctions | None = _option(
        None, COLUMNS, checks.functions, mixture="sources", form=True, shown=False
    )
    """``{column: function}``: called with the column's values in each batch, in the worker, before `collate_fn`;
    returns their replacement, one entry per row; see docs/columns.md."""

    decode: ColumnFunctions | None = _option(None, COLUMNS, checks.functions, mixture="sources", form=True, shown=False)
    """``{column: function}``: called with each string or bytes that is not null, before `transforms`."""

    schema: Any = _option(None, FILES)
    """Arrow schema with which to read the table."""

    files: Sequence[str] | str | None = _option(None, FILES, checks.files, shown=False)
    """The table's files, instead of listing `path`: names, or the path of a list written by `save_files`."""

    storage_options: Mapping[str, Any] | None = _option(None, FILES, checks.storage, mixture="sources", shown=False)
    """Options of the file system, as fsspec takes them, and how its files are read: retries, read-ahead, a cache on a
    local disk, and whether checksums are compared; see docs/object-stores.md."""

    plan_cache: str | None = _option(None, FILES, checks.directory, mixture="sources", shown=False)
    """Directory on any fsspec file system that keeps footers, counts and plans."""

    on_error: OnError = _option("raise", FILES, checks.one_of(*get_args(OnError)))
    """"raise", or "skip" to leave out, count and report the damage that planning finds; see
    docs/errors.md#leaving-damage-out."""

    on_growth: Literal["continue"] | None = _option(None, FILES, checks.one_of(None, "continue"))
    """What to do with a state from before the table grew: "continue" its epoch with the new rows; None: read the
    state's own snapshot, or refuse the state if the table has no snapshots; see docs/growing.md."""

    def __post_init__(self) -> None:
        """Check every option that is not its default, and then those that depend on each other."""
        for entry in fields(self):
            value, check = getattr(self, entry.name), entry.metadata["about"].check
            if check is not None and value is not entry.default:
                object.__setattr__(self, entry.name, check(entry.name, value))
        self._work_out()
        for check_together in _TOGETHER:
            check_together(self)

    def _work_out(self) -> None:
        """Note what follows from the options; see `_Follows`."""
        budget, most_rows = None, self.batch_size
        if isinstance(most_rows, Budget):
            budget, most_rows = most_rows, most_rows.at_most
        split_rows, split_bytes = _rows_or_bytes(self.split_size)
        window, given_memory = _rows_or_bytes(self.shuffle_buffer_size)
        memory = given_memory or DEFAULT_MEMORY
        lanes = DEFAULT_LANES
        if self.num_workers is not None:
            lanes = max(1, self.num_workers)
        remote, column_names = RemoteOptions.of(self.storage_options), names_of(self.columns)
        ahead_bytes = remote.ahead_bytes(memory)
        samples = self._samples(budget, column_names)
        reads, batch_rows, row_window = samples.reads(column_names), most_rows * samples.rows_of(samples.width), window
        if samples.are_batches:
            batch_rows = 1
        if samples.joins_rows:
            row_window = None
        by_step = {LENGTH: samples.lengths, "global_batch_size": self.global_batch_size}
        vars(self).update(
            budget=budget,
            most_rows=most_rows,
            samples=samples,
            batch_rows=batch_rows,
            schedules={name: value for name, value in by_step.items() if isinstance(value, Schedule)},
            column_names=column_names,
            reads=reads,
            may_mix=self.shuffle is True or self.shuffle == "mixed",
            window=window,
            row_window=row_window,
            split_rows=split_rows,
            split_bytes=split_bytes,
            lanes=lanes,
            processes=self.worker_type != "thread" and self.num_workers != 0,
            limits_memory=given_memory is not None,
            memory=memory,
            remote=remote,
            ahead_bytes=ahead_bytes,
        )

    def _samples(self, budget: Budget | None, names: Sequence[str] | None) -> Samples:
        indexed = self.shuffle == "rows"
        if self.pack is not None:
            return self.pack.samples(indexed=indexed)
        if indexed or budget is None:
            return ONE_BY_ONE
        return FilledSamples(budget, budget.counted_pad(self.ragged), names is None or budget.length in names)

    @property
    def calls_functions(self) -> bool:
        """Whether functions of the caller's are called with each batch."""
        return self.collate_fn is not None or bool(self.transforms or self.decode)

    @property
    def each_row_once(self) -> bool:
        """Whether each row of the table comes once an epoch, of a table that does not grow."""
        return self.weights is None and self.on_growth is None

    @property
    def continues(self) -> bool:
        """Whether an epoch of before the table grew goes on with the new rows."""
        return self.on_growth == "continue"

    @property
    def compared(self) -> dict[str, Any]:
        """What ranks compare that no state is bound to, by name."""
        return {name: getattr(self, name) for name in ("on_growth", "epochs", "count_filtered")}

    @property
    def needing_rows_once(self) -> list[str]:
        """The options given here that need splits which hold each row once."""
        return [name for name in ("on_growth", "pack") if getattr(self, name) is not None]

    def bytes_to_keep(self, num_ranks: int) -> int:
        """Return how much of far files planning keeps for the first epoch: nothing unless this process reads all."""
        if not self.samples.are_rows:
            return 0
        some = self.column_names is not None or self.filters is not None or self.schema is not None
        elsewhere = num_ranks > 1 or self.processes or self.remote.cache_dir is not None
        if some or elsewhere:
            return 0
        return self.ahead_bytes // 2

    @property
    def start_method(self) -> Literal["fork", "spawn", "forkserver"] | BaseContext | None:
        """How worker processes start; None: as multiprocessing does."""
        if self.worker_type in ("thread", "process"):
            return None
        return self.worker_type  # type: ignore[return-value]

    def with_checked(self, **values: Any) -> Self:
        """Return these options with other values that fit all the rest, so that nothing is checked again."""
        made = object.__new__(type(self))
        vars(made).update({entry.name: getattr(self, entry.name) for entry in fields(self)} | values)
        made._work_out()
        return made

    def of_columns(self, names: Sequence[str]) -> Self:
        """Return the options as they are for a table with some columns."""
        if self.pack is None:
            return self
        return self.with_checked(pack=self.pack.of_columns(names))

    def of_length(self, length: int) -> Self:
        """Return the options with samples of one width."""
        if self.pack is None or (own := self.pack.of_length(length)) is self.pack:
            return self
        return self.with_checked(pack=own)

    @property
    def progress_interval(self) -> float:
        """Seconds from one drawing of a progress bar to the next."""
        if isinstance(self.show_progress, float):
            return self.show_progress
        return sizes().progress_s

    @property
    def rows_kept(self) -> RowStore:
        """Where the row store is kept, and how much of it in memory, the default resolved."""
        if self.row_store is None:
            return RowStore()
        return as_row_store(self.row_store)


def _rows_or_bytes(given: int | str | None) -> tuple[int | None, int | None]:
    """Return a size in rows, or in bytes where it is text; None for the other, and for what was not given."""
    if isinstance(given, str):
        return None, parse_bytes(given)
    return given, None


def _check_rank(options: LoaderOptions) -> None:
    if options.rank is None:
        return
    if options.num_ranks is not None and not isinstance(options.num_ranks, int):
        beside = 'num_ranks="auto"'
        if checks.is_mesh(options.num_ranks):
            beside = "a mesh"
        raise ConfigError(f"rank={options.rank} was given beside {beside}, which determines it; leave rank out")
    if options.num_ranks in (None, 1) and options.rank:
        raise ConfigError(
            f"rank={options.rank} needs num_ranks=, which is 1 by default; pass "
            'num_ranks=dist.get_world_size(), or num_ranks="auto" and no rank'
        )
    if options.rank >= (options.num_ranks or 1):
        raise ConfigError(
            f"rank must be in [0, num_ranks), got rank={options.rank} num_ranks={options.num_ranks}; "
            "pass the global rank (dist.get_rank()), not the local one"
        )


def _check_output(options: LoaderOptions) -> None:
    if options.output_format in ("arrow", "dict") and options.collate_fn is None and options.device is not None:
        raise ConfigError(
            f"output_format={options.output_format!r} holds no tensors that device= could move; pass a collate_fn "
            "that makes tensors, or leave device out"
        )


def _check_rows(options: LoaderOptions) -> None:
    if options.weights is not None and options.on_growth is not None:
        raise ConfigError("on_growth and weights do not go together: new rows change every share; leave one out")
    rows = options.shuffle == "rows"
    unfit, remedy = ROWS, 'leave it out, or pass shuffle="rows"'
    if rows:
        unfit, remedy = SPLITS, "leave it out"
    for entry in fields(options):
        value = getattr(options, entry.name)
        if entry.metadata["about"].group == unfit and value != entry.default:
            raise ConfigError(
                f"{entry.name}={checks.shown(value)} does not work with shuffle={options.shuffle!r}; {remedy}"
            )
    if rows and options.even_ranks == "drop":
        raise ConfigError(
            f'even_ranks={options.even_ranks!r} is for splits: with shuffle="rows" ranks differ only in the last '
            "step; leave it out, or pass drop_last=True"
        )


_AGAINST_BUDGETS = {
    "pack": "sequences of pack have seq_len tokens each, so that a number of them is a budget already",
    "global_batch_size": "global_batch_size counts the rows of all ranks, where a budget is of a rank: for tokens of a "
    "step, pass Budget(tokens=) with those of a step over the number of ranks",
    "batch_by": "batch_by ends batches with files, where a budget fills them from blocks of rows",
}
"""Options that do not go with a budget, and why."""


def _check_budget(options: LoaderOptions) -> None:
    if options.budget is None:
        return
    if not options.count_filtered:
        raise ConfigError(
            "batch_size=Budget(...) counts the rows that pass the filter; leave count_filtered=True, or pass a "
            "number of rows"
        )
    for name, reason in _AGAINST_BUDGETS.items():
        if getattr(options, name) is not None:
            raise ConfigError(
                f"batch_size=Budget(...) fills each batch with rows up to its tokens, and {reason}; leave {name} out, "
                "or pass a number of rows"
            )


def _check_files(options: LoaderOptions) -> None:
    if options.batch_by is None:
        return
    if not options.count_filtered:
        raise ConfigError(
            'batch_by="file" needs the number of rows that pass the filter; leave count_filtered=True, or batch_by out'
        )
    if options.split_strategy is None and options.split_size is not None:
        raise ConfigError(
            'batch_by="file" splits a table into whole files; leave split_size out, or pass '
            'split_strategy="target_size", which then batches each split by itself'
        )


def _check_cache(options: LoaderOptions) -> None:
    remote = options.remote
    if remote.cache_dir is None or remote.read_ahead_bytes != 0:
        return
    if "://" not in str(options.rows_kept.place):  # far rows are fetched all the same
        raise ConfigError(
            "storage_options: cache_dir keeps what is fetched ahead of decoding, and read_ahead_bytes=0 fetches "
            "nothing ahead; leave one of the two out"
        )


def _check_samples(options: LoaderOptions) -> None:
    asked = options.pack
    if asked is None:
        return
    if options.weights is not None and (why := asked.why_rows_come_once) is not None:
        raise ConfigError(f"weights repeats documents, but {why}, or leave weights out")
    if options.continues and options.shuffle == "rows":
        raise ConfigError('on_growth and pack go together without shuffle="rows"; leave one of them out')
    asked.check_beside({entry.name: getattr(options, entry.name) for entry in fields(options)})


_TOGETHER = (_check_rank, _check_output, _check_rows, _check_budget, _check_files, _check_cache, _check_samples)
"""Refuse options that depend on each other and do not fit."""


ABOUT: Mapping[str, About] = {entry.name: entry.metadata["about"] for entry in fields(LoaderOptions)}
"""What is said of each option, by name."""


def meanings() -> dict[str, str]:
    """Return the docstring of each option in one line, by name, from the source, since Python keeps none of fields."""
    tree = ast.parse(inspect.getsource(LoaderOptions))
    body = cast("ast.ClassDef", tree.body[0]).body
    return {
        str(declared.target.id): " ".join(str(words.value.value).split())
        for declared, words in pairwise(body)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(declared.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }


class _Help:
    """The docstring of `LoaderOptions` with all options, made when help asks for it: few programs do."""

    def __get__(self, instance: object, owner: type) -> str:
        options = [f"    {name}: {meaning}" for name, meaning in meanings().items()]
        return "\n".join(["The options of all datasets; each field is a keyword argument.", "", "Args:", *options])


LoaderOptions.__doc__ = _Help()  # type: ignore[assignment]


def defaults() -> dict[str, Any]:
    """Return every option's default by name.

    >>> defaults()["batch_size"]
    1024
    """
    return {entry.name: entry.default for entry in fields(LoaderOptions)}
