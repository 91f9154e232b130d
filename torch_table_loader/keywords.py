"""The options as keyword arguments: those a class takes, what its signature shows, and how others are refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from multiprocessing.context import BaseContext
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

import pyarrow as pa
import torch

from torch_table_loader.errors import ConfigError, ConfigTypeError, MissingExtraError
from torch_table_loader.installed import has
from torch_table_loader.messages import nearest
from torch_table_loader.option_checks import WorkerType
from torch_table_loader.option_values import (
    OWN,
    Budget,
    ColumnFunctions,
    ColumnsOption,
    RaggedOption,
    RowStore,
    StringsOption,
    UnsupportedOption,
    Weights,
)
from torch_table_loader.options import BatchBy, EvenRanks, LoaderOptions, OnError, OutputFormat
from torch_table_loader.predicates.filter_text import filter_of
from torch_table_loader.ranges import far
from torch_table_loader.samples import SamplesOption
from torch_table_loader.schedules import Schedule


class OtherMixedKeywords(TypedDict, total=False):
    """Options of mixtures that do not say what a batch is; ``python -m tools.options_table`` writes them."""

    batch_size: int | Budget
    global_batch_size: int | Mapping[int, int] | Schedule | None
    columns: ColumnsOption | None
    filters: Any
    shuffle_seed: int
    drop_last: bool
    epochs: int | Literal["forever"] | None
    row_id: bool
    pack: SamplesOption | None
    num_workers: int | None
    worker_type: WorkerType | BaseContext
    device: Any
    prefetch_batches: int | None
    show_progress: bool | float | str
    num_ranks: int | Literal["auto"] | Any
    rank: int | None
    even_ranks: EvenRanks | Literal[False] | None
    check_plan: bool
    row_store: RowStore | str | None
    nulls: Mapping[str, Any] | Literal["mask"] | None
    ragged: RaggedOption | None
    strings: StringsOption
    unsupported: UnsupportedOption | None
    transforms: ColumnFunctions | None
    decode: ColumnFunctions | None
    storage_options: Mapping[str, Any] | None
    plan_cache: str | None


class MixedKeywords(OtherMixedKeywords, total=False):
    """The options that a mixture takes."""

    output_format: OutputFormat
    collate_fn: Callable[[Any], Any] | None


class OtherKeywords(OtherMixedKeywords, total=False):
    """Options that do not say what a batch is: those of mixtures, and those that are for one table alone."""

    shuffle: bool | Literal["splits", "rows", "mixed"]
    weights: Weights | str | None
    split_size: int | str | None
    split_strategy: Any
    shuffle_buffer_size: int | str | None
    count_filtered: bool
    batch_by: BatchBy | None
    schema: Any
    files: Sequence[str] | str | None
    on_error: OnError
    on_growth: Literal["continue"] | None


class LoaderKeywords(MixedKeywords, OtherKeywords, total=False):
    """The options as keyword arguments: those of mixtures, and those that are for one table alone."""


_FIELDS = {entry.name: entry for entry in fields(LoaderOptions)}

_HERE: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch", "bs", "chunksize"),
    "catalog": ("catalog_name",),
    "collate_fn": ("map_fn", "transform"),
    "columns": ("features", "usecols"),
    "device": ("pin_memory_device",),
    "drop_last": ("drop_last_batch",),
    "epochs": ("num_epochs", "repeat"),
    "scan_filter": ("row_filter",),
    "filters": ("filter", "predicate", "row_filter", "where"),
    "format": ("file_format", "fmt"),
    "num_ranks": ("device_mesh", "mesh", "num_replicas", "num_shards", "world_size"),
    "num_workers": ("num_proc", "num_threads", "worker", "workers"),
    "output_format": ("batch_format", "with_format"),
    "path": ("data_dir", "data_files", "paths", "root", "urls"),
    "prefetch_batches": ("prefetch", "prefetch_factor"),
    "rank": ("local_rank", "shard_index"),
    "shuffle_buffer_size": ("buffer_size", "shuffle_buffer"),
    "shuffle_seed": ("generator", "random_state", "seed"),
    "show_progress": ("progress", "verbose"),
    "split_size": ("split_bytes", "split_rows"),
    "snapshot_id": ("snapshot", "version"),
    "sources": ("datasets", "tables"),
    "stop": ("stopping_strategy",),
    "table": ("identifier", "table_name"),
    "metadata_location": ("location", "path"),
    "strings": ("vocabulary",),
    "weights": ("probabilities", "sample_weights"),
    "worker_type": ("mp_context", "multiprocessing_context"),
}
"""By option: what PyTorch and the nearest loaders call it. The first option that a dataset takes is the one meant."""

_ORDER = (
    "shuffle= and split_strategy= choose the order, and weights= how often each row comes; as_map() of a dataset with "
    'shuffle="rows" takes samplers'
)
_OWN_FORMATS = "the format of the files is known here, so leave it out"
_FIRST = (
    'itertools.islice(loader, n) takes the first n batches; with shuffle="rows", weights=Weights(samples=n) takes n '
    "other rows each epoch"
)

_CACHE = "storage_options={'cache_dir': ..., 'cache_bytes': ...} keeps what was fetched on a local disk"

_FOLDERS = "leave it out; key=value folders become columns by themselves, and columns= chooses among them"
_STEPS = "batch_size= beside global_batch_size= says how many batches make up a step of the optimizer"

_PARTS = 'dataset.split({"train": 0.8, "val": 0.2}, by=column) gives a dataset for each part of the rows'
_KEYS = 'columns= takes labels, too: columns={"x": ["age", "income"], "y": "churn"} names the keys of a batch'

_ANSWERS: dict[str, str] = {
    **dict.fromkeys(("split", "split_by", "test_size", "train", "train_size", "val_split"), _PARTS),
    **dict.fromkeys(("label", "labels", "target", "targets"), _KEYS),
    "target_transform": "transforms={column: function} is for single columns",
    **dict.fromkeys(("distributed", "shard", "sharded", "split_by_node"), 'num_ranks="auto" gives each rank its part'),
    **dict.fromkeys(("max_rows", "n_rows", "nrows"), _FIRST),
    "deterministic": "leave it out: shuffle_seed= and the epoch alone decide the order",
    "map_style": 'as_map() of a dataset with shuffle="rows" gives rows by number',
    "streaming": "leave it out: tables are always read while training runs",
    "cache": _CACHE,
    "cache_limit": _CACHE,
    "local": _CACHE,
    "batch_sampler": _ORDER,
    "sampler": _ORDER,
    "persistent_workers": "leave it out: threads wait for the next epoch, and processes start anew in each",
    "worker_init_fn": "there is none; collate_fn= runs in the worker and can set things up when it is first called; "
    "row_seeds(row_ids, epoch=...) gives each row a seed",
    "timeout": "there is none for batches; those of S3 are connect_timeout and request_timeout in storage_options=",
    "decimals": 'unsupported="float64" makes doubles of decimals, or unsupported={column: "float64"} of some',
    "gradient_accumulation_steps": _STEPS,
    "hive_partitioning": _FOLDERS,
    "micro_batches": _STEPS,
    "partitioning": _FOLDERS,
    "pin_memory": "leave it out; device='cuda' copies each batch ahead, from page-locked memory",
    "raw_files": "source=pyarrow.dataset.dataset(path) reads the files of any table into memory as they are",
    "row_store_memory": 'row_store=RowStore(place, memory="4GiB") has both',
    "max_steps": "itertools.islice(loader, n) takes n batches, and a state resumes after them; epochs= bounds epochs",
    "in_order": "leave it out: batches always come in order",
    "dtype": "types are the table's; collate_fn= can convert them",
    "file_format": _OWN_FORMATS,
    "fmt": _OWN_FORMATS,
    "format": _OWN_FORMATS,
    "limit": _FIRST,
    "limit_rows": _FIRST,
    "num_samples": _FIRST,
    "take": _FIRST,
    "sample": "filters=part_of(columns, shares, part) takes a part of the rows",
    "filesystem": "pass a URL, such as s3://bucket/table, and storage_options=",
}
"""By word: what there is instead of an option."""

_COLLATE = "collate_fn= is called with each batch, in the workers, and transforms= with a column's values"
_NAMES = "dataset.schema.names are the columns of a batch"
INSTEAD: dict[str, str] = {
    "get_metrics": "metrics() has them, at any time",
    "map": _COLLATE,
    "with_transform": _COLLATE,
    "filter": 'filters="price >= 2" keeps the rows for which it is true',
    "shuffle": 'shuffle=True mixes the rows of splits, and shuffle="rows" permutes all rows, again in each epoch',
    "batch": "batch_size= says how many rows a batch has",
    "shard": 'num_ranks="auto" gives each rank its part',
    "take": _FIRST,
    "skip": "loader.seek(step=n) begins after n batches",
    "select": _ORDER,
    "train_test_split": _PARTS,
    "random_split": _PARTS,
    "with_format": "output_format= says what a batch is made of",
    "state": "state_dict() returns it",
    "load_state": "load_state_dict(state) does it",
    "column_names": _NAMES,
    "features": _NAMES,
}
"""By attribute of datasets and loaders of others: what there is here."""

_NOTES = {
    "collate_fn": ", which is called with each batch; transforms={column: function} is for single columns",
    "decode": "{column: function}, called with each value",
    "transforms": "{column: function}, called with a column's values in each batch",
    "filters": ", a pyarrow expression, text or tuples",
    "rank": ", the rank in the whole job",
    "strings": "{column: Vocabulary(values)}",
    "num_ranks": ": a number, beside which rank= says which one this is, or a mesh",
}

_OF_ICEBERG = frozenset(
    {
        *("as_of", "branch", "catalog", "catalog_config", "changelog", "end_snapshot_id", "footers"),
        *("location_override", "metadata_location", "snapshot_id", "start_snapshot_id", "tag"),
    }
)


def make_options(keywords: LoaderKeywords, owner: type) -> LoaderOptions:
    """Check the keyword arguments of a dataset, and return them as options."""
    check_names(keywords, owner)
    options = LoaderOptions(**keywords)
    if options.schema is not None and not isinstance(options.schema, pa.Schema):
        raise ConfigTypeError(
            f"schema must be a pyarrow Schema such as pa.schema([('x', pa.int64())]), got {_shown(options.schema)}"
        )
    if options.even_ranks is not None and options.num_ranks is None and options.rank is None:
        options = options.with_checked(num_ranks="auto")  # there is nothing to even out but the ranks of the job
    if options.filters is not None:
        options = options.with_checked(filters=filter_of(options.filters))
    if options.device is not None:
        try:
            torch.device(options.device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"device must be one that torch knows, such as 'cuda:0', got {options.device!r}"
            ) from error
    if options.show_progress:
        try:
            import tqdm  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                "show_progress=True needs tqdm; pip install 'torch-table-loader[progress]'"
            ) from error
    return options


_called: ContextVar[tuple[type, str] | None] = ContextVar("_called", default=None)
"""The class whose method the user called, and the method."""


@contextmanager
def called(owner: type, method: str) -> Iterator[None]:
    """Let messages about keyword arguments name a method of a class, where the class would be named."""
    token = _called.set((owner, method))
    try:
        yield
    finally:
        _called.reset(token)


def check_names(keywords: Any, owner: type) -> None:
    """Refuse keyword arguments that are not options."""
    if unknown := [name for name in keywords if name not in _FIELDS]:
        takes, call = list(inspect.signature(owner).parameters), owner.__name__
        if (now := _called.get()) is not None and now[0] is owner:  # not of a source that a mixture opens
            call += f".{now[1]}"
        raise _unknown(unknown, call, takes)


def _unknown(names: Sequence[str], call: str, takes: Collection[str]) -> ConfigTypeError:
    """Return the error for keyword arguments that a call does not take."""
    if len(names) == 1:
        return ConfigTypeError(
            f"{call}() got an unexpected keyword argument {names[0]!r}; {_hint(names[0], call, takes)}"
        )
    given = ", ".join(f"{name!r} ({_hint(name, call, takes)})" for name in names)
    return ConfigTypeError(f"{call}() got unexpected keyword arguments: {given}")


def _hint(name: str, call: str, takes: Collection[str]) -> str:
    word = name.lower()
    meant = [option for option, words in _HERE.items() if word in words]
    if option := next((option for option in meant if option in takes), None):
        return f"here it is {option}={_NOTES.get(option, '')}"
    if word in OWN or (has("far") and word in far().option_names()):
        if "storage_options" in takes:
            return f"it goes into storage_options={{{name!r}: ...}}"
        meant.append("storage_options")
    if word in _ANSWERS:
        return _ANSWERS[word]
    if name in _OF_ICEBERG:
        return "IcebergDataset takes it, and reads Iceberg tables"
    if of_sources := next((option for option in meant if option in _FIELDS), None):
        return f"{of_sources}= belongs to the sources of a mixture: pass it to each of them"
    return _guess(name, call, takes)


def _guess(name: str, call: str, takes: Collection[str]) -> str:
    if near := nearest(name, takes, spare=0, least=0.7):
        return f"did you mean {near[0]}?"
    return f"help({call}) lists those that it takes"


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{type(value).__name__} {text}"


def with_options(
    function: Callable[..., Any], base: Callable[..., Any], takes: frozenset[str] | None = None
) -> inspect.Signature:
    """Return a function's signature with each option in the place of its ``**options``.

    Args:
        function: an ``__init__``; one without ``**options`` is shown as it is.
        base: the one that it hands them to.
        takes: the options that the class takes; None for all.
    """
    own = inspect.signature(function)
    parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(parameters) == len(own.parameters):
        return own
    of_base = [p for p in inspect.signature(base).parameters.values() if p.kind is p.KEYWORD_ONLY]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=entry.default, annotation=entry.type)
        for name, entry in _FIELDS.items()
        if takes is None or name in takes
    ]
    names = {p.name for p in parameters}
    for parameter in (*of_base, *options):
        if parameter.name not in names:
            names.add(parameter.name)
            parameters.append(parameter)
    return own.replace(parameters=parameters)


P = ParamSpec("P")
T = TypeVar("T")


def with_example(example: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a method answer calls that do not fit its signature with an example of one that does."""

    def decorated(method: Callable[P, T]) -> Callable[P, T]:
        signature, name = inspect.signature(method), method.__name__

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ConfigTypeError(f"{type(args[0]).__name__}.{name}(): {error}; write {example}") from None
            return method(*args, **kwargs)

        return call

    return decorated


if TYPE_CHECKING:
    shown_classmethod = classmethod
else:

    class shown_classmethod(classmethod):  # noqa: N801 - a decorator
        """A class method that takes what the class takes, and has the signature of the class it is looked up on.

        Messages about its arguments name it.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Bind to the class."""
            make = self.__func__
            cls = owner
            if owner is None:
                cls = type(instance)

            @functools.wraps(make)
            def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
                with called(cls, make.__name__):
                    return make(cls, *args, **kwargs)

            returns = inspect.signature(make).return_annotation
            call.__signature__ = inspect.signature(cls.__init__).replace(return_annotation=returns)
            return MethodType(call, cls)
