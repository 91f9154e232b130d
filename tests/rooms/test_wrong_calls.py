"""Wrong calls of new users: each is refused at construction, with what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    IcebergDataset,
    MixedDataset,
    RowBalancedStrategy,
    SizeBalancedStrategy,
    StructuredDataset,
    TableLoaderError,
    TargetSizeStrategy,
    Vocabulary,
)

ROWS = 20


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("wrong")
    columns = {
        "x": pa.array(range(ROWS), pa.int64()),
        "f": pa.array([row / 2 for row in range(ROWS)]),
        "s": pa.array([f"s{row % 3}" for row in range(ROWS)]),
    }
    pq.write_table(pa.table(columns), root / "0.parquet", row_group_size=6)
    return str(root)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"columns": "label"}, r"columns must be a list of strings, got 'label'; pass columns=\['label'\]"),
    ({"columns": {"x"}}, r"columns must be a list of strings, got \{'x'\}"),
    ({"columns": ["x", None]}, "columns must be a list of strings, got "),
    ({"columns": ["lable", "x"]}, "the table has no column 'lable'; did you mean"),
    ({"columns": []}, "columns is empty.*name at least one"),
    ({"batch_size": "32"}, "batch_size must be an int, got str '32'"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"batch_size": 2.0}, "batch_size must be an int, got float 2.0"),
    ({"batch_size": None}, "batch_size must be an int, got None: batches are made here"),
    ({"batch_size": np.float32(8)}, "batch_size must be an int, got float32"),
    ({"batch_size": np.array([8, 9])}, "batch_size must be an int, got ndarray"),
    ({"split_size": np.array([8, 9])}, "split_size must be an int, got ndarray"),
    ({"batch_size": 10**30}, "batch_size must be at most"),
    ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
    ({"num_workers": "auto"}, "num_workers must be an int, got str 'auto'"),
    ({"num_workers": 10**6}, "num_workers must be at most 65536, got 1000000"),
    ({"filters": "x > red"}, "expected a number, .* or a string in quotes, got 'red'"),
    ({"filters": [("x", "approaches", 3)]}, "filters as tuples must be .*approaches"),
    ({"filters": len}, "got builtin_function_or_method.*collate_fn="),
    ({"filters": {"x": 3}}, "filters must be a pyarrow compute Expression.*got dict"),
    ({"filters": pc.field("y") > 3}, "filters name the column 'y'"),
    ({"path": "/nowhere/at/all"}, "path matches nothing: /nowhere/at/all.*check the spelling"),
    ({"path": []}, "path is an empty list; name at least one"),
    ({"path": ""}, "a path must be a non-empty string"),
    ({"path": None}, "path must be a string, an os.PathLike, or a list of them, got NoneType"),
    ({"path": [None]}, "a path must be a string or os.PathLike, got NoneType"),
    ({"path": pa.table({"x": [1]})}, "a list of them, got Table; pass source= for rows in memory"),
    ({"device": "cuda:99"}, "device='cuda:99' must be one of the .* CUDA devices"),
    ({"device": "gpu"}, "device must be one that torch knows, such as 'cuda:0', got 'gpu'"),
    ({"split_size": "-1"}, "split_size must look like '128MiB', '512mb' or '4096', got '-1'"),
    ({"split_size": 1.5}, "split_size must be an int, got float 1.5"),
    ({"split_size": "lots"}, "split_size must look like '128MiB'"),
    ({"strings": ["a"]}, r"strings must be one of .*, got \['a'\]; pass strings=\{\"column\": Vocabulary\(values\)\}"),
    (
        {"strings": {"s": ["a"]}},
        r"strings\['s'\] must be one of .* a Vocabulary\(values\) or a Hash\(",
    ),
    ({"strings": {"t": Vocabulary(["a"])}}, "strings names 't', which is not a column here"),
    ({"vocabulary": {"s": ["a"]}}, r"here it is strings=\{column: Vocabulary\(values\)\}"),
    ({"nulls": {"y": 0}}, "nulls names 'y', which is not a column here; the nearest are"),
    ({"nulls": {"x": "a"}}, "does not fit the column's type int64"),
    ({"nulls": 0}, r"nulls must be None, 'mask' or \{column: fill\}, got 0"),
    ({"schema": {"x": "int64"}}, r"schema must be a pyarrow Schema such as pa.schema.*got dict"),
    ({"schema": pa.schema([("y", pa.int64())])}, r"column 'y' has nulls in '0.parquet'.*pass nulls=\{'y': fill\}"),
    ({"num_ranks": 2, "rank": 2}, r"rank must be in \[0, num_ranks\), got rank=2 num_ranks=2; pass the global rank"),
    ({"num_ranks": 2}, "num_ranks=2 needs rank="),
    ({"rank": 1}, "rank=1 needs num_ranks=.*pass num_ranks=dist.get_world_size"),
    ({"num_ranks": "two"}, "num_ranks must be an int, got str 'two'"),
    ({"num_ranks": "auto", "rank": 0}, 'rank=0 was given beside num_ranks="auto", which determines it; leave rank out'),
    ({"mesh": "dp"}, "here it is num_ranks=: a number, beside which rank= says which one this is, or a mesh"),
    ({"storage_options": ["anon"]}, "storage_options must be a mapping of names to values, got list"),
    ({"files": []}, "no data file"),
    ({"files": [1]}, "files must be a list of strings"),
    ({"files": ["9.parquet"]}, "9.parquet: expected a file, found none"),
    ({"format": 3}, "format must be one of 'parquet', .*got 3"),
    ({"format": 3, "path": "x.orc"}, "got 3; the path ends as files of format='orc' do"),
    ({"format": "csv.gz", "path": ["a.pq"]}, "got 'csv.gz'; the path ends as files of format='parquet' do"),
    ({"format": "PARQUET"}, "got 'PARQUET'; did you mean parquet?"),
    ({"format": ["parquet"]}, "format must be one of"),
    (
        {"shuffle": "mixed", "batch_by": "file"},
        r'shuffle="mixed" mixes rows .* but batches end with files .*leave batch_by out, or pass shuffle="splits"',
    ),
    (
        {"shuffle": "mixed", "filters": "x > 1", "count_filtered": False},
        "rows that pass the filter are not counted: leave count_filtered out",
    ),
    (
        {"shuffle": "mixed", "split_strategy": "round_robin"},
        "RoundRobinStrategy deals splits itself: leave split_strategy out",
    ),
    ({"shuffle": "row"}, "shuffle must be one of False, True, 'splits', 'rows', 'mixed', got 'row'"),
    ({"shuffle_buffer_size": -1}, "shuffle_buffer_size must be at least 0, got -1"),
    ({"shuffle_seed": "a"}, "shuffle_seed must be an int, got str 'a'"),
    ({"split_strategy": TargetSizeStrategy}, "must be an instance, got the class TargetSizeStrategy; call it first"),
    ({"split_strategy": lambda files: None}, "must return a list of splits, got NoneType"),
    ({"output_format": "pandas"}, "output_format must be one of 'torch', 'numpy', 'arrow', 'dict', got 'pandas'"),
    ({"collate_fn": "stack"}, "collate_fn must be callable, got str"),
    ({"partitioning": "hive"}, "leave it out; key=value folders become columns by themselves"),
    ({"raw_files": True}, r"source=pyarrow.dataset.dataset\(path\) reads the files"),
    ({"max_steps": 10}, r"itertools.islice\(loader, n\) takes n batches"),
    ({"pin_memory": True}, "leave it out; device='cuda' copies each batch ahead"),
    ({"verify_checksums": False}, r"it goes into storage_options=\{'verify_checksums': ...\}"),
    ({"micro_batches": 2}, "batch_size= beside global_batch_size= says how many batches"),
    ({"row_store_memory": "4GiB"}, r'row_store=RowStore\(place, memory="4GiB"\) has both'),
    ({"drop_last": "yes"}, "drop_last must be True or False, got 'yes'"),
    ({"worker_type": "fiber"}, "worker_type must be one of 'thread', 'process', .*, got 'fiber'"),
    ({"prefetch_batches": 0}, "prefetch_batches must be at least 1, got 0"),
    ({"worker_type": "threads"}, "worker_type must be one of"),
    ({"plan_cache": True}, "plan_cache must be a directory's path or URL, got True"),
    ({"global_batch_size": 8, "batch_size": 4}, 'a stream takes one batch of each rank .*shuffle="rows"'),
    ({"decimals": "float64"}, 'unsupported="float64" makes doubles of decimals'),
    ({"unsupported": float}, 'unsupported must be "list" or "float64", or {column: one of these}, got'),
    ({"unsupported": {"x": "skip"}}, r"unsupported\['x'\] must be \"list\" or \"float64\", got 'skip'"),
    ({"unsupported": {"x": "list"}}, "unsupported names 'x', which has a form as a tensor"),
    ({"unsupported": {"y": "list"}}, "unsupported names 'y', which is not a column here"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=lambda value: str(value).partition(" at 0x")[0][:60])
def test_wrong_calls_are_refused(table: str, options: dict[str, Any], said: str) -> None:
    keywords: dict[str, Any] = {"path": table, "check_plan": False} | options
    with pytest.raises(TableLoaderError, match=said):
        StructuredDataset.create_dataloader(**keywords)


RIGHT: list[dict[str, Any]] = [
    {"batch_size": np.int64(8), "num_workers": np.int32(2), "split_size": np.uint8(4), "prefetch_batches": np.int16(1)},
    {"num_ranks": np.int64(1), "rank": np.int64(0), "shuffle_seed": np.int64(7), "shuffle": "splits"},
    {"columns": ("x",)},
    {"split_size": "128 MB"},
    {"split_size": "1.5GiB"},
    {"split_size": np.int64(100)},
    {"shuffle_buffer_size": 0},
    {"shuffle": "rows", "shuffle_buffer_size": 0},
    {"split_strategy": TargetSizeStrategy("1KiB")},
    {"split_strategy": SizeBalancedStrategy("100 B")},
    {"split_strategy": RowBalancedStrategy(np.int64(3))},  # type: ignore[arg-type]
]


@pytest.mark.parametrize("options", RIGHT, ids=str)
@pytest.mark.parametrize("as_path", [str, Path])
def test_right_calls_are_accepted(table: str, options: dict[str, Any], as_path: type) -> None:
    loader, dataset = StructuredDataset.create_dataloader(as_path(table), check_plan=False, **options)
    assert sorted(row for batch in loader for row in batch["x"].tolist()) == list(range(ROWS))
    for name, value in options.items():
        if isinstance(value, np.integer):
            assert type(getattr(dataset.options, name)) is int
    assert dataset.options.shuffle_buffer_size is None


def test_sizes_of_strategies_are_parsed_like_those_of_options() -> None:
    assert TargetSizeStrategy("128MiB") == TargetSizeStrategy(128 << 20)
    assert SizeBalancedStrategy("1KiB").target_bytes == 1024
    with pytest.raises(ConfigError, match="TargetSizeStrategy: target_bytes must look like '128MiB'"):
        TargetSizeStrategy("big")
    with pytest.raises(ConfigTypeError, match="RowBalancedStrategy: target_rows must be an int, got str '5'"):
        RowBalancedStrategy("5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="TargetSizeStrategy: target_rows must be at least 1, got 0"):
        TargetSizeStrategy(target_rows=0)


# ---- unknown keywords ------------------------------------------------------------------------------------

WORDS = {
    "batchsize": "did you mean batch_size?",
    "seed": "here it is shuffle_seed=",
    "world_size": "here it is num_ranks=: a number, beside which rank= says which one this is, or a mesh",
    "num_replicas": "here it is num_ranks=",
    "prefetch_factor": "here it is prefetch_batches=",
    "persistent_workers": "leave it out: threads wait for the next epoch",
    "sampler": "shuffle= and split_strategy= choose the order",
    "batch_sampler": "shuffle= and split_strategy= choose the order",
    "worker_init_fn": "there is none; collate_fn= runs in the worker",
    "timeout": "there is none for batches",
    "generator": "here it is shuffle_seed=",
    "transform": "here it is collate_fn=, which is called with each batch",
    "local_rank": "here it is rank=, the rank in the whole job",
    "num_epochs": "here it is epochs=",
    "dtype": "types are the table's",
    "drop_last_batch": "here it is drop_last=",
    "limit_rows": r"itertools.islice\(loader, n\) takes the first n batches; with .*Weights\(samples=n\) takes n other",
    "sample": r"filters=part_of\(columns, shares, part\) takes a part of the rows",
    "zzz": r"help\({call}\) lists those that it takes",
}
"""By word: what every dataset says of it."""

OF_TABLES = {
    "cache": r"storage_options=\{{'cache_dir': ..., 'cache_bytes': ...\}} keeps what was fetched",
    "retry_seconds": r"it goes into storage_options=\{{'retry_seconds': ...\}}",
    "buffer_size": "here it is shuffle_buffer_size=",
    "anon": r"it goes into storage_options=\{{'anon': ...\}}",
    "usecols": "here it is columns=",
    "predicate": "here it is filters=, a pyarrow expression, text or tuples",
    "colums": r"did you mean columns\?",
}
"""What those of one table say."""


def of_files(**options: Any) -> Any:
    return StructuredDataset.create_dataloader("somewhere", **options)


def of_iceberg(**options: Any) -> Any:
    return IcebergDataset.create_dataloader("db.table", {"type": "in-memory"}, **options)


def of_mixture(**options: Any) -> Any:
    return MixedDataset.create_dataloader({}, {}, **options)


CALLS = {"StructuredDataset": of_files, "IcebergDataset": of_iceberg, "MixedDataset": of_mixture}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("word", [*WORDS, *OF_TABLES])
def test_an_unknown_keyword_is_refused_with_our_name_for_it(call: str, word: str) -> None:
    if call == "MixedDataset" and word == "buffer_size":
        with pytest.raises(TypeError, match="= belongs to the sources of a mixture: pass it to each of them"):
            of_mixture(**{word: 1})
        return
    method = rf"{call}\.create_dataloader"
    said = (WORDS | OF_TABLES)[word].replace("{call}", method).replace("{{", "{").replace("}}", "}")
    with pytest.raises(ConfigTypeError, match=rf"^{method}\(\) got an unexpected keyword argument '{word}'; {said}"):
        CALLS[call](**{word: 1})


def test_the_call_that_was_made_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    wrong: dict[str, Any] = {"seed": 1}

    def mixed() -> Any:
        return MixedDataset.create_dataloader({"a": lambda **_: StructuredDataset(str(tmp_path), **wrong)}, {"a": 1})

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("StructuredDataset", lambda: StructuredDataset("somewhere", **wrong)),
        ("StructuredDataset.create_dataloader", lambda: of_files(**wrong)),
        ("StructuredDataset.with_options", lambda: StructuredDataset(str(tmp_path)).with_options(**wrong)),
        ("StructuredDataset", mixed),
    ]
    for name, call in calls:
        with pytest.raises(ConfigTypeError, match=rf"^{name}\(\) got an unexpected"):
            call()


def test_a_near_value_is_suggested() -> None:
    with pytest.raises(ConfigError, match="got 'row'; did you mean 'rows'"):
        of_files(shuffle="row")


def test_several_unknown_keywords_are_reported_together() -> None:
    said = (
        "StructuredDataset.create_dataloader() got unexpected keyword arguments: 'seed' (here it is shuffle_seed=), "
        "'batchsize' (did you mean batch_size?)"
    )
    with pytest.raises(ConfigTypeError, match=re.escape(said)):
        of_files(seed=1, batchsize=2)


@pytest.mark.parametrize(
    ("call", "word", "said"),
    [
        ("StructuredDataset", "fmt", "here it is format="),
        ("IcebergDataset", "fmt", "the format of the files is known here, so leave it out"),
        ("IcebergDataset", "row_filter", "here it is scan_filter="),
        ("StructuredDataset", "row_filter", "here it is filters=, a pyarrow expression, text or tuples"),
        ("IcebergDataset", "catalog_name", "here it is catalog="),
        ("IcebergDataset", "table_name", "here it is table="),
        ("IcebergDataset", "path", "here it is metadata_location="),
        ("StructuredDataset", "sample_weights", "here it is weights="),
        ("StructuredDataset", "snapshot_id", "IcebergDataset takes it, and reads Iceberg tables"),
        ("MixedDataset", "stopping_strategy", "here it is stop="),
        ("MixedDataset", "probabilities", "here it is weights="),
        ("MixedDataset", "fmt", "the format of the files is known here"),
    ],
)
def test_suggested_keywords_depend_on_the_dataset(call: str, word: str, said: str) -> None:
    with pytest.raises(ConfigTypeError, match=rf"'{word}'; {said}"):
        CALLS[call](**{word: "x"})


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"a": 0, "b": 0}, "weights are all 0, so no source gives a row.*give at least one"),
        ({"a": -1, "b": 1}, "weights must be numbers by source name, at least 0"),
        ({"a": "1", "b": 1}, "weights must be numbers by source name"),
        ([1, 2], r"weights must be numbers by source name, got \[1, 2\]"),
        ({"a": 1}, "weights must name every source, and 'b' is not in it"),
    ],
    ids=str,
)
def test_invalid_mixture_weights_are_refused(table: str, weights: Any, said: str) -> None:
    sources = {name: StructuredDataset(table, shuffle="rows") for name in ("a", "b")}
    with pytest.raises(ConfigError, match=said):
        MixedDataset(sources, weights)
