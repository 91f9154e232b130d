"""The options: names, defaults, and every value that is refused, with what came and what to do."""

from __future__ import annotations

import inspect
import pickle
from typing import Any, get_type_hints

import pytest

import torch_table_loader
from tests.tables.plain import DEFAULTS
from tools.options_table import CALL, FIRST, MODULE, explained, typed
from torch_table_loader import ConfigError, IcebergDataset, LoaderOptions, MixedDataset, RowStore, StructuredDataset
from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.extend import parse_bytes
from torch_table_loader.keywords import LoaderKeywords, MixedKeywords
from torch_table_loader.options import ABOUT, _Follows, meanings

PROMISED = {
    "batch_size": 1024,
    "columns": None,
    "filters": None,
    "shuffle": False,
    "shuffle_seed": 42,
    "split_size": None,
    "split_strategy": None,
    "num_workers": None,
    "output_format": "torch",
    "storage_options": None,
    "collate_fn": None,
    "num_ranks": None,
    "show_progress": False,
    "shuffle_buffer_size": None,
    "drop_last": False,
    "worker_type": "thread",
    "even_ranks": None,
    "nulls": None,
    "ragged": None,
    "device": None,
    "row_id": False,
    "schema": None,
    "files": None,
    "plan_cache": None,
    "check_plan": True,
    "count_filtered": True,
}
"""Of the facade; `rank` is 0 where it is left out, and `prefetch_batches` has no promised default."""


@pytest.mark.parametrize("function", [StructuredDataset, StructuredDataset.create_dataloader, LoaderOptions])
def test_the_signature_shows_every_name_and_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    for name, default in PROMISED.items():
        assert shown[name].default == default, name
    assert {"rank", "prefetch_batches"} <= set(shown)
    if function is not LoaderOptions:
        assert list(shown)[:2] == ["path", "format"]
        assert not any(p.kind is p.VAR_KEYWORD or p.kind is p.VAR_POSITIONAL for p in shown.values())


def test_the_keywords_are_made_of_the_declarations() -> None:
    assert MODULE.read_text() == typed(MODULE.read_text()), "run: python -m tools.options_table"
    assert set(get_type_hints(LoaderKeywords)) == set(DEFAULTS)
    assert set(get_type_hints(MixedKeywords)) == MixedDataset._takes


@pytest.mark.parametrize("dataset", [StructuredDataset, IcebergDataset, MixedDataset])
def test_help_on_a_call_begins_with_an_example_and_the_twelve_options_of_most_calls(dataset: Any) -> None:
    assert CALL.read_text() == explained(CALL.read_text()), "run: python -m tools.options_table"
    told = inspect.getdoc(dataset.create_dataloader) or ""
    example, twelve, others = (
        told.index("create_dataloader("),
        told.index(f"* `{FIRST[0]}`: "),
        told.index("explains the"),
    )
    assert example < twelve < others
    assert len(FIRST) == 12
    assert [name for name in FIRST if not twelve <= told.find(f"* `{name}`: ") < others] == []
    assert [name for name in DEFAULTS if name not in FIRST and told.find(f"`{name}`", others) < 0] == []


def test_every_option_is_documented() -> None:
    assert meanings().keys() == DEFAULTS.keys()
    assert all(len(told) > 20 for told in meanings().values())
    told = inspect.getdoc(LoaderOptions) or ""
    assert [name for name in DEFAULTS if f"\n    {name}: " not in told] == []


def test_a_cache_that_could_hold_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache_dir keeps what is fetched ahead .*leave one of the two out"):
        LoaderOptions(storage_options={"cache_dir": "cache", "read_ahead_bytes": 0})
    far: dict[str, Any] = {"shuffle": "rows", "row_store": "s3://bucket/rows"}
    for ahead, kept in ((1, {}), (0, far)):
        options = LoaderOptions(storage_options={"cache_dir": "cache", "read_ahead_bytes": ahead}, **kept)
        assert (options.remote.cache_dir, options.remote.read_ahead_bytes) == ("cache", ahead)


@pytest.mark.parametrize("name", [name for name, default in DEFAULTS.items() if default is not None])
def test_a_default_passes_its_check_as_it_is(name: str) -> None:
    """For it is not checked where the caller leaves the option out."""
    check = ABOUT[name].check
    assert check is None or check(name, DEFAULTS[name]) is DEFAULTS[name]


def test_options_are_frozen_and_pickle() -> None:
    options = LoaderOptions(batch_size=3, columns=["a"])
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own
    with pytest.raises(AttributeError):
        options.batch_size = 4  # type: ignore[misc]


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(LoaderOptions(storage_options={"secret": "hidden"}))


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("batch_size", 0, ConfigError, "batch_size must be at least 1, got 0"),
        ("batch_size", -5, ConfigError, "batch_size must be at least 1, got -5"),
        ("batch_size", 2.0, ConfigTypeError, "batch_size must be an int, got float 2.0"),
        ("batch_size", "8", ConfigTypeError, "batch_size must be an int, got str '8'"),
        ("batch_size", True, ConfigTypeError, "batch_size must be an int, got bool True"),
        ("batch_size", None, ConfigTypeError, "batch_size must be an int, got None: batches are made here"),
        ("shuffle_seed", 1.5, ConfigTypeError, "shuffle_seed must be an int"),
        ("shuffle_seed", None, ConfigTypeError, "shuffle_seed must be an int"),
        ("num_workers", -1, ConfigError, "num_workers must be at least 0, got -1"),
        ("num_workers", "two", ConfigTypeError, "num_workers must be an int"),
        ("split_size", 0, ConfigError, "split_size must be at least 1, got 0"),
        ("split_size", "0MiB", ConfigError, "split_size must be positive, got '0MiB'"),
        ("split_size", "lots", ConfigError, "split_size must look like '128MiB', '512mb' or '4096', got 'lots'"),
        ("split_size", 1.5, ConfigTypeError, "split_size must be an int, got float 1.5"),
        ("shuffle_buffer_size", -1, ConfigError, "shuffle_buffer_size must be at least 0, got -1"),
        ("prefetch_batches", 0, ConfigError, "prefetch_batches must be at least 1, got 0"),
        ("num_ranks", 0, ConfigError, "num_ranks must be at least 1, got 0"),
        ("num_ranks", "many", ConfigTypeError, "num_ranks must be an int"),
        ("rank", -1, ConfigError, "rank must be at least 0, got -1"),
        ("rank", 1, ConfigError, "rank=1 needs num_ranks="),
        ("rank", "0", ConfigTypeError, "rank must be an int"),
        ("output_format", "tensorflow", ConfigError, "output_format must be one of 'torch', 'numpy', 'arrow', 'dict'"),
        ("worker_type", "fiber", ConfigError, "worker_type must be one of 'thread', 'process', .*, got 'fiber'"),
        (
            "even_ranks",
            "equal",
            ConfigError,
            "even_ranks must be one of None, False, 'balance', 'drop', 'pad', got 'equal'",
        ),
        ("even_ranks", True, ConfigError, "even_ranks must be one of"),
        ("ragged", "square", ConfigError, "ragged must be one of None, 'nested', 'pad', 'offsets'"),
        ("ragged", ["pad"], ConfigError, "ragged must be one of"),
        ("strings", "utf8", ConfigError, "strings must be one of 'list', 'codes'"),
        ("unsupported", "float32", ConfigError, 'unsupported must be "list" or "float64", or {column: one of these}'),
        ("unsupported", {3: "list"}, ConfigTypeError, "unsupported must name columns by str, got int 3"),
        ("row_store", 3, ConfigTypeError, 'row_store must be "memory", a directory, or a URL, got 3'),
        ("row_store", "", ConfigTypeError, 'row_store must be "memory", a directory, or a URL'),
        ("shuffle", "row", ConfigError, "shuffle must be one of .*, got .row.; did you mean .rows.?"),
        ("shuffle", None, ConfigError, "shuffle must be one of"),
        ("nulls", "fill", ConfigError, "nulls must be None, 'mask' or {column: fill}, got 'fill'"),
        ("collate_fn", 3, ConfigTypeError, "collate_fn must be callable, got int"),
        ("columns", "a", ConfigTypeError, "columns must be a list of strings, got 'a'"),
        ("columns", [1], ConfigTypeError, "columns must be a list of strings"),
        ("columns", ["a", "b", "a"], ConfigError, "columns names 'a' twice; name each once"),
        ("columns", 7, ConfigTypeError, "columns must be a list of strings, got 7"),
        ("worker_type", 3, ConfigError, "worker_type must be one of .thread."),
        ("files", [1], ConfigTypeError, "files must be a list of strings"),
        ("files", ["a", "a"], ConfigError, "files names 'a' twice"),
        ("drop_last", "no", ConfigTypeError, "drop_last must be True or False, got 'no'"),
        ("row_id", 1, ConfigTypeError, "row_id must be True or False, got 1"),
        ("check_plan", 0, ConfigTypeError, "check_plan must be True or False"),
        (
            "storage_options",
            {"verify_checksums": "no"},
            ConfigTypeError,
            r"verify_checksums\'\] must be True or False, or \"all\", got",
        ),
        (
            "storage_options",
            {"retry_seconds": "60"},
            ConfigTypeError,
            r"\'retry_seconds\'\] must be a number of seconds, got str '60'",
        ),
        (
            "storage_options",
            {"retry_seconds": True},
            ConfigTypeError,
            r"\'retry_seconds\'\] must be a number of seconds, got bool True",
        ),
        (
            "storage_options",
            {"retry_seconds": None},
            ConfigTypeError,
            r"\'retry_seconds\'\] must be a number of seconds",
        ),
        ("storage_options", {"retry_seconds": -1}, ConfigError, r"\'retry_seconds\'\] must be at least 0, got -1"),
        (
            "storage_options",
            {"retry_seconds": float("nan")},
            ConfigError,
            r"\'retry_seconds\'\] must be at least 0, got nan",
        ),
        ("count_filtered", "yes", ConfigTypeError, "count_filtered must be True or False"),
        ("show_progress", "worker", ConfigError, 'seconds, "workers", or what the bar says in front, such as .train.,'),
        ("show_progress", " ", ConfigError, "such as 'train', got ' '"),
        ("show_progress", None, ConfigTypeError, "what the bar says in front, got None"),
        ("show_progress", [1], ConfigTypeError, "show_progress must be a number of seconds, got list"),
        ("show_progress", -1, ConfigError, "show_progress must be at least 0"),
        ("plan_cache", 5, ConfigTypeError, "plan_cache must be"),
        ("worker_type", None, ConfigError, "worker_type must be one of .*, or a context of multiprocessing"),
    ],
)
def test_invalid_options_are_refused(name: str, value: Any, error: type[ConfigError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        LoaderOptions(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError) == (error is ConfigTypeError)


def test_an_unknown_name_is_a_type_error_like_that_of_any_function() -> None:
    with pytest.raises(TypeError, match="batchsize"):
        StructuredDataset("somewhere", batchsize=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "num_bytes"),
    [
        (1, 1),
        ("1", 1),
        ("128MiB", 128 << 20),
        ("512mb", 512_000_000),
        ("1 GB", 10**9),
        (" 2gib ", 2 << 30),
        ("1.5k", 1500),
        ("0.5 KiB", 512),
        ("3T", 3 * 10**12),
        ("7B", 7),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_parsed(given: int | str, num_bytes: int) -> None:
    assert parse_bytes(given) == num_bytes


@pytest.mark.parametrize("given", ["", "MiB", "1 XB", "-1", "1e9", "0.1B", "0", True, None, 2.0, b"1"])
def test_invalid_sizes_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="a size must"):
        parse_bytes(given)


@pytest.mark.parametrize(("num_workers", "lanes"), [(None, 4), (0, 1), (1, 1), (7, 7)])
def test_workers_are_lanes_and_none_is_four(num_workers: int | None, lanes: int) -> None:
    assert LoaderOptions(num_workers=num_workers).lanes == lanes


def test_what_follows_from_options_is_there_and_follows_other_values() -> None:
    options = LoaderOptions(num_workers=3, shuffle=True, batch_size=7)
    following = {name for name in get_type_hints(_Follows) if name in vars(options)}
    assert following == set(get_type_hints(_Follows))
    other = options.with_checked(num_workers=0, batch_size=9, shuffle_buffer_size="1MiB")
    assert (options.lanes, options.batch_rows, options.limits_memory) == (3, 7, False)
    assert (other.lanes, other.batch_rows, other.limits_memory, other.memory) == (1, 9, True, 1 << 20)
    assert options.may_mix
    assert other.may_mix


@pytest.mark.parametrize("form", ["arrow", "dict"])
def test_batches_without_tensors_cannot_be_moved_to_a_device(form: Any) -> None:
    with pytest.raises(ConfigError, match="holds no tensors that device= could move"):
        LoaderOptions(output_format=form, device="cpu")
    LoaderOptions(output_format=form, device="cpu", collate_fn=dict)


def test_there_are_at_most_forty_options_and_forty_five_names() -> None:
    assert len(DEFAULTS) <= 40
    assert len(set(torch_table_loader.__all__) - {"__version__"}) <= 45


def test_a_row_store_has_a_place_and_a_size() -> None:
    assert LoaderOptions().rows_kept == RowStore(None, "1GiB")
    assert LoaderOptions(shuffle="rows", row_store="memory").rows_kept == RowStore("memory")
    assert LoaderOptions(shuffle="rows", row_store=RowStore("s3://b/s", memory="2KiB")).rows_kept.memory_bytes == 2048
    with pytest.raises(ConfigError, match=r"RowStore\(memory=\) must look like"):
        RowStore(memory="much")
    assert "b/s" not in repr(RowStore("s3://b/s"))
