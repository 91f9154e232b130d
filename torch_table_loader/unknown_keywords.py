"""Keyword arguments that a dataset does not take, and what callers who write them are looking for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields

from torch_table_loader.errors import ConfigTypeError
from torch_table_loader.options import LoaderOptions
from torch_table_loader.spelling import nearest

_HERE: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_rows", "bs", "rows_per_batch"),
    "collate_fn": (
        *("collate", "decode", "decode_fn", "map", "map_fn", "preprocess", "transform", "transform_fn"),
        *("transform_spec", "transforms"),
    ),
    "columns": ("features", "fields", "include_columns", "schema_fields", "selected_fields", "usecols"),
    "decimals": ("decimal", "decimal_as"),
    "device": ("pin_memory_device", "to"),
    "drop_last": ("drop_last_batch", "drop_remainder"),
    "files": ("file_list", "filenames"),
    "scan_filter": ("row_filter",),
    "filters": ("filter", "filter_expr", "predicate", "row_filter", "scan_filter", "where"),
    "format": ("data_format", "file_format", "fmt", "input_format"),
    "global_batch_size": ("total_batch_size",),
    "mesh": ("device_mesh",),
    "multiprocessing_context": ("mp_context", "start_method"),
    "nulls": ("fill_null", "fillna", "na_value", "null_fill"),
    "num_ranks": ("num_processes", "num_replicas", "num_shards", "process_count", "shard_count", "world_size"),
    "num_workers": ("n_workers", "num_proc", "num_threads", "workers", "workers_count"),
    "output_format": ("batch_format", "return_format", "return_type", "with_format"),
    "partitioning": ("hive_partitioning", "partition", "partition_cols"),
    "path": (
        "data_dir",
        "data_files",
        "data_path",
        "dataset_url",
        "path_or_paths",
        "paths",
        "root",
        "uri",
        "url",
        "urls",
    ),
    "prefetch_batches": ("prefetch", "prefetch_factor", "prefetch_size"),
    "rank": ("cur_shard", "global_rank", "local_rank", "process_index", "shard_index"),
    "shuffle_buffer_size": (
        *("buffer_size", "local_shuffle_buffer_size", "shuffle_buffer", "shuffle_size", "shuffling_queue_capacity"),
    ),
    "shuffle_seed": ("data_seed", "generator", "random_seed", "random_state", "seed"),
    "show_progress": ("progress", "progress_bar", "verbose"),
    "snapshot_id": ("snapshot", "version"),
    "sources": ("datasets", "tables"),
    "stop": ("stop_on", "stopping_strategy"),
    "storage_options": ("client_kwargs", "credentials", "fs_kwargs"),
    "table": ("identifier", "name", "table_name"),
    "catalog_config": ("catalog", "catalog_name", "catalog_properties"),
    "metadata_location": ("location", "metadata_file", "path"),
    "weights": ("probabilities", "ratios"),
    "worker_type": ("backend", "worker_mode"),
}
"""By option: what others call it. The first option that a dataset takes is the one that a word means."""

_STORAGE = frozenset(
    {
        *("access_key", "account_key", "account_name", "anon", "aws_access_key_id", "aws_secret_access_key"),
        *("aws_session_token", "connection_string", "endpoint_override", "endpoint_url", "key", "profile", "region"),
        *("region_name", "request_timeout", "requester_pays", "role_arn", "sas_token", "secret", "secret_key"),
        *("session_token", "token", "connect_timeout"),
    }
)
"""Options of file systems."""

_AGAIN = "an iteration is one epoch: loop over the loader again, after loader.set_epoch(epoch)"
_MIXTURE = "MixedDataset(sources, weights) mixes tables"
_NO_CACHE = 'each epoch reads the store; plan_cache= keeps footers and counts, row_store= the rows of shuffle="rows"'
_ORDER = 'shuffle= and split_strategy= choose the order; as_map() of a dataset with shuffle="rows" takes samplers'
_OWN_FORMATS = "the format of the files is known here, so leave it out"
_FIRST = "itertools.islice(loader, n) takes the first n batches"

_ANSWERS: dict[str, str] = {
    "batch_sampler": _ORDER,
    "sampler": _ORDER,
    "persistent_workers": "leave it out: threads wait for the next epoch, and processes start anew in each",
    "worker_init_fn": "there is none; collate_fn= runs in the worker and can set things up when it is first called",
    "timeout": "there is none for batches; those of S3 are connect_timeout and request_timeout in storage_options=",
    "in_order": "leave it out: batches always come in order",
    "dtype": "types are the table's; collate_fn= can convert them",
    "epochs": _AGAIN,
    "max_epochs": _AGAIN,
    "num_epochs": _AGAIN,
    "repeat": _AGAIN,
    "cache": _NO_CACHE,
    "cache_dir": _NO_CACHE,
    "cache_limit": _NO_CACHE,
    "cache_size_limit": _NO_CACHE,
    "data_format": _OWN_FORMATS,
    "file_format": _OWN_FORMATS,
    "fmt": _OWN_FORMATS,
    "format": _OWN_FORMATS,
    "limit": _FIRST,
    "max_rows": _FIRST,
    "take": _FIRST,
    "probabilities": _MIXTURE,
    "weights": _MIXTURE,
    "filesystem": "pass a URL, such as s3://bucket/table, and storage_options=",
    "fs": "pass a URL, such as s3://bucket/table, and storage_options=",
}
"""By word: what there is instead of an option."""

_NOTES = {
    "collate_fn": ", which is called with each batch",
    "filters": ", a pyarrow expression",
    "rank": ", the rank in the whole job",
    "num_ranks": ", beside which rank= says which one this is",
}

_OF_ICEBERG = frozenset(
    {"as_of", "branch", "catalog_config", "footers", "location_override", "metadata_location", "snapshot_id", "tag"}
)
_OF_LOADERS = frozenset(entry.name for entry in fields(LoaderOptions))


def refuse_unknown(names: Sequence[str], call: str, takes: Collection[str]) -> ConfigTypeError:
    """Make the error for keyword arguments that a call does not take.

    Args:
        names: at least one.
        call: the class that was called.
        takes: the parameters that it has.
    """
    if len(names) == 1:
        return ConfigTypeError(
            f"{call}() got an unexpected keyword argument {names[0]!r}; {_hint(names[0], call, takes)}"
        )
    said = ", ".join(f"{name!r} ({_hint(name, call, takes)})" for name in names)
    return ConfigTypeError(f"{call}() got unexpected keyword arguments: {said}")


def _hint(name: str, call: str, takes: Collection[str]) -> str:
    word = name.lower()
    meant = [option for option, words in _HERE.items() if word in words]
    if option := next((option for option in meant if option in takes), None):
        return f"here it is {option}={_NOTES.get(option, '')}"
    if word in _STORAGE:
        if "storage_options" in takes:
            return f"it goes into storage_options={{{name!r}: ...}}"
        meant.append("storage_options")
    if word in _ANSWERS:
        return _ANSWERS[word]
    if name in _OF_ICEBERG:
        return "IcebergDataset takes it, and reads Iceberg tables"
    if of_sources := next((option for option in meant if option in _OF_LOADERS), None):
        return f"{of_sources}= is for the sources of a mixture to say: pass it to each of them"
    near = nearest(name, takes, spare=0)
    return f"did you mean {near[0]}?" if near else f"help({call}) lists those that it takes"
