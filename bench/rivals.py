"""Other ways from Parquet to tensors, each at its best setting; each run is one epoch and returns its rows.

Each opens its table once, as ours does, in the run that does not count: opening costs Hugging Face datasets more than
an epoch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench import iceberg
from bench.ours import rows_of
from bench.tables import BenchTable

Run = Callable[[], int]


def torch_dataloader_utils(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """torch-dataloader-utils 0.2.0: worker counts and split sizes; its batches may be short at split ends."""
    from torch_dataloader_utils.dataset.structured import StructuredDataset

    def setting(**options: Any) -> Run:
        @cache
        def loader() -> Any:
            return StructuredDataset.create_dataloader(str(table.folder), "parquet", batch_size=batch_size, **options)[
                0
            ]

        def run() -> int:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return sum(rows_of(batch) for batch in loader())

        return run

    return {
        "num_workers=0": setting(num_workers=0),
        "num_workers=1": setting(num_workers=1),
        "num_workers=2": setting(num_workers=2),
        "num_workers=0 split_bytes=4GiB": setting(num_workers=0, split_bytes="4GiB"),
        "num_workers=2 split_bytes=4GiB": setting(num_workers=2, split_bytes="4GiB"),
        "num_workers=2 split_bytes=8MiB": setting(num_workers=2, split_bytes="8MiB"),
    }


def packed_by_hand(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """torch-dataloader-utils 0.2.0 and a packer over its rows, as one writes it: the same tensors of 4,096 tokens.

    Its runs return the tokens that came, those of the last batches too, which have fewer sequences or padding.
    """
    from torch_dataloader_utils.dataset.structured import StructuredDataset

    def setting(**options: Any) -> Run:
        def run() -> int:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loader, _ = StructuredDataset.create_dataloader(
                    str(table.folder), "parquet", batch_size=256, columns=["tokens"], **options
                )
                documents = (document for rows in loader for document in rows["tokens"])
                return sum(int((batch["doc_ids"] >= 0).sum()) for batch in _packed(documents, batch_size))

        return run

    return {
        "num_workers=0": setting(num_workers=0),
        "num_workers=2": setting(num_workers=2),
        "num_workers=2 split_bytes=8MiB": setting(num_workers=2, split_bytes="8MiB"),
    }


def _packed(documents: Iterable[list[int]], batch_size: int, seq_len: int = 4096) -> Iterator[dict[str, Any]]:
    """Cut documents, one behind the other, into batches of sequences with what a loss and attention need."""
    most = batch_size * seq_len
    fills = {"input_ids": 0, "labels": -100, "position_ids": 0, "doc_ids": -1}
    waiting: dict[str, list[int]] = {name: [] for name in fills}

    def add(document: list[int]) -> None:
        """Add a part of a document that lies in one sequence."""
        number = waiting["doc_ids"][-1] + 1 if waiting["doc_ids"] else 0
        waiting["input_ids"] += document
        waiting["labels"] += [-100, *document[1:]]
        waiting["position_ids"] += range(len(document))
        waiting["doc_ids"] += [number] * len(document)

    def batch() -> dict[str, Any]:
        import torch

        doc_ids = waiting["doc_ids"]
        starts = [place for place in range(len(doc_ids)) if waiting["position_ids"][place] == 0]
        ends = [*starts[1:], len(doc_ids)]
        missing = -len(doc_ids) % seq_len
        found: dict[str, Any] = {
            name: torch.tensor(values + [fills[name]] * missing).view(-1, seq_len) for name, values in waiting.items()
        }
        found["doc_ids"] = found["doc_ids"].int()
        edges = starts + ([len(doc_ids)] if missing else []) + [len(doc_ids) + missing]
        found["cu_seqlens"] = torch.tensor(edges, dtype=torch.int32)
        found["max_seqlen"] = max(end - start for start, end in zip(starts, ends, strict=True))
        for values in waiting.values():
            values.clear()
        return found

    for document in documents:
        rest = document
        while rest:
            room = seq_len - len(waiting["input_ids"]) % seq_len
            add(rest[:room])
            rest = rest[room:]
            if len(waiting["input_ids"]) == most:
                yield batch()
    if waiting["input_ids"]:
        yield batch()


def hugging_face(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """Hugging Face datasets, streaming Parquet: one process, and two DataLoader workers."""
    import datasets
    from torch.utils.data import DataLoader

    files = [str(file) for file in table.files]

    @cache
    def stream() -> Any:
        datasets.disable_progress_bars()
        return datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True, cache_dir=str(table.folder / ".cache")
        )

    def iterate() -> int:
        batches = stream().with_format("torch").iter(batch_size=batch_size)
        return sum(rows_of(batch) for batch in batches)

    def arrow_to_torch() -> int:
        batches = stream().with_format("arrow").iter(batch_size=batch_size)
        return sum(rows_of(tensors_of(batch)) for batch in batches)

    def workers() -> int:
        loader = DataLoader(stream().with_format("torch").batch(batch_size), batch_size=None, num_workers=2)
        return sum(rows_of(batch) for batch in loader)

    return {
        'with_format("torch")': iterate,
        'with_format("arrow"), tensors by hand': arrow_to_torch,
        "DataLoader(num_workers=2)": workers,
    }


def hugging_face_iceberg(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """Hugging Face datasets, streaming an Iceberg table by pyiceberg's scan."""
    import datasets

    @cache
    def stream() -> Any:
        datasets.disable_progress_bars()
        catalog = iceberg.catalog_of(table)
        return datasets.load_dataset("iceberg", catalog=catalog, table=iceberg.PLAIN, split="train", streaming=True)

    def arrow(size: int) -> Iterator[Any]:
        return stream().with_format("arrow").iter(batch_size=size)  # type: ignore[no-any-return]

    return {
        'with_format("torch")': lambda: sum(map(rows_of, stream().with_format("torch").iter(batch_size=batch_size))),
        'with_format("arrow"), tensors by hand': lambda: sum(rows_of(tensors_of(each)) for each in arrow(batch_size)),
        'with_format("arrow"), its own batches': lambda: sum(each.num_rows for each in arrow(_OWN_BATCH)),
    }


_OWN_BATCH = 131_072
"""Rows of the batches that pyiceberg's scan gives to datasets: handed on as they are, they cost least."""


def polars(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """polars: a lazy scan collected in batches on all cores, sliced and made tensors by hand."""
    import polars as pl

    def run() -> int:
        rows = 0
        for frame in pl.scan_parquet(table.folder / "*.parquet").collect_batches(chunk_size=batch_size):
            for piece in frame.iter_slices(batch_size):
                rows += rows_of(tensors_of(piece.to_arrow()))
        return rows

    def one_file_at_a_time() -> int:
        rows = 0
        for file in table.files:
            for piece in pl.read_parquet(file).iter_slices(batch_size):
                rows += rows_of(tensors_of(piece.to_arrow()))
        return rows

    return {"scan_parquet.collect_batches": run, "read_parquet, a file at a time": one_file_at_a_time}


def lance(table: BenchTable, batch_size: int) -> Mapping[str, Run]:
    """Lance's own format, which a table must first be converted to (not timed), through its torch loader."""
    import lance as lance_format
    from lance.torch.data import LanceDataset

    folder = lance_folder(table)

    stored = lance_format.dataset(folder)

    def run() -> int:
        return sum(rows_of(batch) for batch in LanceDataset(stored, batch_size=batch_size))

    def by_hand() -> int:
        return sum(rows_of(tensors_of(batch)) for batch in stored.to_batches(batch_size=batch_size))

    return {"lance.torch.data.LanceDataset": run, "to_batches, tensors by hand": by_hand}


RIVALS: dict[str, Callable[[BenchTable, int], Mapping[str, Run]]] = {
    "torch-dataloader-utils": torch_dataloader_utils,
    "torch-dataloader-utils, packed by hand": packed_by_hand,
    "datasets": hugging_face,
    "datasets, Iceberg": hugging_face_iceberg,
    "polars": polars,
    "lance": lance,
}
"""By package: the settings that are tried, each one epoch of a table at a batch size."""


def tensors_of(batch: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    from torch.utils.dlpack import from_dlpack

    tensors: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if pa.types.is_primitive(column.type):
            tensors[name] = from_dlpack(column)
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            tensors[name] = (
                from_dlpack(column.values),
                from_dlpack(column.offsets),
            )
        else:
            tensors[name] = column.to_pylist()
    return tensors


def lance_folder(table: BenchTable) -> str:
    """Say where a table lies in Lance's own format, written when it is asked for first."""
    import lance as lance_format

    folder = table.folder.with_name(f"{table.folder.name}.lance")
    if not folder.is_dir():
        unfinished = folder.with_suffix(".tmp.lance")
        batches = (batch for file in table.files for batch in pq.ParquetFile(file).iter_batches(65_536))
        lance_format.write_dataset(batches, str(unfinished), schema=pq.read_schema(table.files[0]), mode="overwrite")
        unfinished.rename(folder)
    return str(folder)


__all__ = ["RIVALS", "Run", "hugging_face", "lance", "packed_by_hand", "polars", "torch_dataloader_utils"]
