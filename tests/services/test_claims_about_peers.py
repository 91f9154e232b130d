"""Each claim that our page makes about another loader is run against that loader, as it is installed.

A test names the sentences that it shows. `make test-all` runs those that need packages of others, under build/peers;
every day a test checks that the sentences still stand on the page, and that no row of its tables lacks a test.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.services.claims import ROOT, assert_page_and_tests_agree, shows, words_of
from tests.tables.catalogs import load_catalog
from torch_table_loader import StructuredDataset

PEERS = ROOT / "build" / "peers"
"""Where the Makefile installs the group `peers`, apart from .venv: they ask for older versions of what is there."""

MOVING = "moving.md"

pytestmark = pytest.mark.filterwarnings("ignore")  # what others warn of is theirs


@pytest.fixture(scope="module", autouse=True)
def peers_found() -> Iterator[None]:
    """Let this file alone import the peers."""
    sys.path.append(str(PEERS))
    yield
    sys.path.remove(str(PEERS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of ten rows, each in row groups of two."""
    for file in range(2):
        pq.write_table(
            pa.table({"x": range(file * 10, file * 10 + 10)}), tmp_path / f"{file}.parquet", row_group_size=2
        )
    return tmp_path


def worker() -> int:
    """Return which worker of a DataLoader this is."""
    info = get_worker_info()
    assert info is not None
    return info.id


def test_the_page_and_its_tests_agree() -> None:
    assert_page_and_tests_agree(MOVING)


def test_the_page_names_the_versions_that_are_installed() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["peers"]
    said = {"torch-dataloader-utils", "mosaicml-streaming", "litdata", "webdataset"}
    assert said <= {each.partition("==")[0] for each in group}
    listed = re.search(r"for (torch-dataloader-utils.*?);", words_of(MOVING))
    assert listed is not None
    versions = {name: pins[name] for name in ("datasets", *said)}
    assert sorted(re.findall(r"\d+\.\d+\.\d+", listed[1])) == sorted(versions.values())


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["torch-dataloader-utils", "mosaicml-streaming", "litdata", "webdataset", "datasets"])
def test_what_runs_here_is_the_version_that_the_page_names(name: str) -> None:
    assert distribution(name).version in words_of(MOVING)


# torch-dataloader-utils


def utils_loader(path: Path, **options: Any) -> Any:
    utils: Any = importlib.import_module("torch_dataloader_utils")
    return utils.StructuredDataset.create_dataloader(
        str(path), "parquet", **{"batch_size": 4, "num_workers": 0, **options}
    )


def xs(batches: Any, name: str = "x") -> list[int]:
    return [int(x) for batch in batches for x in batch[name]]


@shows(MOVING, "The call is the same, and so is what it returns.")
def test_the_same_call_of_torch_dataloader_utils_gives_a_loader_and_a_dataset(folder: Path) -> None:
    utils: Any = importlib.import_module("torch_dataloader_utils")
    given = {"path": str(folder), "format": "parquet", "batch_size": 4, "num_workers": 0}
    theirs = utils.StructuredDataset.create_dataloader(**given)
    ours: Any = StructuredDataset.create_dataloader(**given)  # type: ignore[call-overload]
    for loader, dataset in (theirs, ours):
        assert isinstance(loader, DataLoader)
        assert isinstance(dataset, IterableDataset)
        assert sorted(xs(loader)) == list(range(20))


@shows(MOVING, "`IcebergDataset.create_dataloader(table=..., catalog_config=...)` works too")
def test_icebergs_call_takes_a_table_and_a_catalog() -> None:
    utils: Any = importlib.import_module("torch_dataloader_utils")
    asked = inspect.signature(utils.IcebergDataset.create_dataloader).parameters
    assert {"table", "catalog_config"} <= set(asked)


class Noting:
    """A strategy of torch-dataloader-utils: one split a worker, and what it was given."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def generate(self, files: list[Any], num_workers: int, epoch: int, **others: Any) -> list[Any]:
        splits: Any = importlib.import_module("torch_dataloader_utils.splits.core")
        self.paths = [file.path for file in files]
        return [splits.Shard(0, [splits.Split(file) for file in files])]


@shows(
    MOVING,
    "so do strategies with `generate(files, num_workers, epoch)`",
    "`DataFileInfo.path` is a whole path or URI",
)
def test_a_strategy_is_given_whole_paths_and_uris(folder: Path) -> None:
    fsspec: Any = importlib.import_module("fsspec")
    strategy = Noting()
    assert len(xs(utils_loader(folder, split_strategy=strategy)[0])) == 20
    assert sorted(strategy.paths) == [f"{folder}/0.parquet", f"{folder}/1.parquet"]
    with fsspec.open("memory://peers/0.parquet", "wb") as file:
        file.write((folder / "0.parquet").read_bytes())
    discovery: Any = importlib.import_module("torch_dataloader_utils.filesystem.discovery")
    assert [file.path for file in discovery.discover_files("memory://peers")] == ["memory://peers/0.parquet"]


@shows(MOVING, "reads only the files directly in a folder")
def test_subfolders_are_not_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "1.parquet").rename(folder / "sub" / "1.parquet")
    assert xs(utils_loader(folder)[0]) == list(range(10))


@shows(MOVING, "hive values are strings; integers with nulls become float64")
def test_hive_values_are_strings_and_integers_with_nulls_are_float64(tmp_path: Path) -> None:
    (tmp_path / "day=2026-01-01").mkdir()
    pq.write_table(pa.table({"x": pa.array([1, None], pa.int64())}), tmp_path / "day=2026-01-01" / "0.parquet")
    (batch,) = utils_loader(tmp_path / "day=2026-01-01", partitioning="hive")[0]
    assert list(batch["day"]) == ["2026-01-01", "2026-01-01"]
    assert batch["x"].dtype == torch.float64
    assert batch["x"].isnan().tolist() == [False, True]


@shows(MOVING, "the end of each split is a short batch; in files read whole, of each row group")
def test_splits_end_with_short_batches_and_row_groups_of_whole_files_too(tmp_path: Path) -> None:
    for file in range(2):
        pq.write_table(pa.table({"x": range(10)}), tmp_path / f"{file}.parquet", row_group_size=5)
    assert [len(batch["x"]) for batch in utils_loader(tmp_path)[0]] == [4, 4, 2] * 2
    whole, _ = utils_loader(tmp_path, split_strategy=Noting())
    assert [len(batch["x"]) for batch in whole] == [4, 1, 4, 1] * 2


@shows(MOVING, "`len(loader)` is unknown")
def test_the_loader_of_torch_dataloader_utils_has_no_length(folder: Path) -> None:
    with pytest.raises(TypeError):
        len(utils_loader(folder)[0])


@shows(MOVING, "workers are processes, one per CPU but one")
def test_workers_are_processes_one_per_cpu_but_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    loader, _ = utils_loader(folder, num_workers=None)
    assert loader.num_workers == 2
    batches = iter(loader)
    assert os.getpid() not in {worker.pid for worker in batches._workers}
    assert len(xs(batches)) == 20


@shows(MOVING, "`get_metrics()` after an epoch")
def test_metrics_come_after_an_epoch(folder: Path) -> None:
    loader, dataset = utils_loader(folder)
    batches = iter(loader)
    next(batches)
    assert dataset.get_metrics() == []
    list(batches)
    assert len(dataset.get_metrics()) == 1


# Hugging Face datasets


@pytest.fixture
def hf() -> Any:
    return importlib.import_module("datasets")


@pytest.fixture
def streamed(hf: Any, folder: Path) -> Callable[[], Any]:
    files = [str(file) for file in sorted(folder.glob("*.parquet"))]
    return lambda: hf.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache")
    )


@shows(MOVING, '`with_format("torch")`: all floats are float32, all integers int64')
def test_the_torch_format_makes_float32_and_int64(hf: Any) -> None:
    columns = {"d": pa.array([1.5], pa.float64()), "h": pa.array([1], pa.float16()), "i": pa.array([1], pa.int8())}
    row = hf.Dataset(pa.table(columns)).with_format("torch")[0]
    assert [value.dtype for value in row.values()] == [torch.float32, torch.float32, torch.int64]


@shows(MOVING, "`shuffle(buffer_size=n)`", "a state inside a shuffled epoch loses the buffer")
def test_a_state_loses_the_rows_of_the_shuffle_buffer(streamed: Callable[[], Any]) -> None:
    first, then = (streamed().shuffle(seed=1, buffer_size=5) for _ in range(2))
    rows = iter(first)
    got = [next(rows)["x"] for _ in range(8)]
    then.load_state_dict(first.state_dict())
    lost = set(range(20)) - set(got) - {row["x"] for row in then}
    assert 0 < len(lost) <= 5


@shows(MOVING, "no more workers than files, until `reshard()`")
def test_a_file_goes_to_one_worker_until_reshard(streamed: Callable[[], Any]) -> None:
    def workers(rows: Any) -> set[int]:
        named = rows.map(lambda row: {"worker": worker()})
        return {int(row["worker"]) for row in DataLoader(named, batch_size=None, num_workers=3)}

    assert len(workers(streamed())) == 2
    assert len(workers(streamed().reshard())) == 3


@shows(MOVING, "`split_dataset_by_node`")
def test_split_dataset_by_node_gives_uneven_ranks(hf: Any, streamed: Callable[[], Any]) -> None:
    split = importlib.import_module("datasets.distributed").split_dataset_by_node
    counts = [len(list(split(streamed(), rank=rank, world_size=3))) for rank in range(3)]
    assert sum(counts) == 20
    assert len(set(counts)) == 2


@shows(MOVING, "`map`", "`filter(fn)`", "`interleave_datasets`")
def test_rows_are_mapped_filtered_and_interleaved(hf: Any, streamed: Callable[[], Any]) -> None:
    few = streamed().map(lambda row: {"x": -row["x"]}).filter(lambda row: row["x"] > -2)
    mixed = hf.interleave_datasets([few, streamed()])
    assert [row["x"] for row in mixed][:3] == [0, 0, -1]


@shows(MOVING, '`load_dataset("iceberg", …)`: no equality deletes, no splits of a file')
def test_iceberg_is_read_by_whole_files_without_equality_deletes(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pa.table({"k": range(40)})
    catalog = load_catalog("one", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", data.schema, properties={"write.parquet.row-group-limit": "10"})
    table.append(data)

    def loaded() -> Any:
        # A catalog of its own would be pickled, and this one is a connection.
        stands_for = SimpleNamespace(
            name="one", load_table=lambda _: StaticTable.from_metadata(table.metadata_location)
        )
        return hf.load_dataset(
            "iceberg", catalog=stands_for, table="n.t", split="train", streaming=True, cache_dir=str(tmp_path / "cache")
        )

    monkeypatch.chdir(tmp_path)  # it looks for files in the folder where it is called
    (file,) = tmp_path.glob("n/t/data/*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 4
    assert loaded().reshard().num_shards == 1

    # pyiceberg writes no equality deletes, but records a file as one.
    counts = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    deleted = DataFile.from_args(
        _table_format_version=2, content=DataFileContent.EQUALITY_DELETES, file_path=str(file),
        file_format=FileFormat.PARQUET, partition=Record(), record_count=1, file_size_in_bytes=100, equality_ids=[1],
        key_metadata=None, split_offsets=None, sort_order_id=None, **{name: {} for name in counts},
    )  # fmt: skip
    deleted.spec_id = 0
    with table.transaction() as changes, changes.update_snapshot().fast_append() as added:
        added.append_data_file(deleted)
    with pytest.raises(ValueError, match="equality deletes"):
        loaded()


@shows(MOVING, "a `Dataset` in memory or on disk")
def test_a_dataset_lies_in_memory_or_on_disk(hf: Any, tmp_path: Path) -> None:
    in_memory = hf.Dataset.from_dict({"x": [1, 2, 3]})
    in_memory.save_to_disk(str(tmp_path / "saved"))
    for rows in (in_memory, hf.load_from_disk(str(tmp_path / "saved"))):
        assert rows["x"][:] == [1, 2, 3]


@shows(MOVING, "columns of maps are refused")
def test_columns_of_maps_are_refused(hf: Any) -> None:
    with pytest.raises(ValueError, match="does not have a datasets dtype equivalent"):
        hf.Dataset(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}))


# MosaicML Streaming


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MosaicML Streaming, whose import asks for torchvision, though its tables of numbers use nothing of it."""
    for name in ("feature_extraction_utils", "tokenization_utils_base"):
        importlib.import_module(f"transformers.{name}")
    assert not importlib.import_module("transformers.utils").is_torchvision_available()  # it remembers the answer
    names = {"datasets": "VisionDataset", "transforms": "", "transforms.functional": "to_tensor"}
    for name, member in {"": "", **names}.items():
        module = ModuleType(f"torchvision.{name}".rstrip("."))
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        setattr(module, member or "nothing", type(member, (), {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return importlib.import_module("streaming")


@pytest.fixture
def mds(streaming: Any, tmp_path: Path) -> Path:
    """Two folders of samples, one a shard: 21 of 0 and more, and 10 of 100 and more."""
    for name, samples in {"a": range(21), "b": range(100, 110)}.items():
        with streaming.MDSWriter(out=str(tmp_path / name), columns={"x": "int"}, size_limit=100) as writer:
            for x in samples:
                writer.write({"x": x})
    return tmp_path


@shows(MOVING, "You need no copy in MDS.")
def test_streaming_reads_mds_and_no_parquet(streaming: Any, folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"index\.json"):
        streaming.StreamingDataset(local=str(folder), batch_size=2)


@shows(MOVING, "`local=`, `cache_limit=`", "`predownload=` in samples")
def test_the_local_copy_has_a_limit_and_is_read_ahead_by_samples(streaming: Any, mds: Path) -> None:
    def opened(local: str, **options: Any) -> Any:
        return streaming.StreamingDataset(
            remote=str(mds / "a"), local=str(mds / local), batch_size=2, predownload=3, **options
        )

    def copied(local: str) -> int:
        return len(list((mds / local).glob("*.mds")))

    rows = iter(opened("ahead"))
    next(rows)
    assert copied("ahead") <= 1 + 3 + 1
    rows.close()
    size = max(shard.stat().st_size for shard in (mds / "a").glob("*.mds"))
    limit = (mds / "a" / "index.json").stat().st_size + 6 * size
    assert len(list(opened("limited", cache_limit=limit))) == 21
    assert 0 < copied("limited") < 21


@shows(MOVING, "samples are repeated to even out ranks")
def test_samples_come_on_two_ranks(streaming: Any) -> None:
    parts = importlib.import_module("streaming.base.partition").get_partitions("orig", 21, 1, 1, 4, 1, 2)
    ranks = parts.reshape(4, -1)
    assert ranks.shape == (4, 6)
    times = np.bincount(ranks.flatten())
    assert (len(times), times.sum(), times.max()) == (21, 24, 2)


@shows(MOVING, "streams with `proportion=`", "`repeat=` and `choose=` become shares")
def test_streams_have_proportions_repeats_and_choices(streaming: Any, mds: Path) -> None:
    def from_b(**shares: dict[str, float]) -> list[bool]:
        streams = [streaming.Stream(local=str(mds / name), **share) for name, share in shares.items()]
        return [row["x"] >= 100 for row in streaming.StreamingDataset(streams=streams, batch_size=2, epoch_size=size)]

    size: int | None = 20
    assert sum(from_b(a={"proportion": 0.5}, b={"proportion": 0.5})) == 10
    size = None
    both = from_b(a={"choose": 5}, b={"repeat": 2})
    assert (sum(both), len(both)) == (20, 25)


@shows(MOVING, "`replication=`")
def test_replicated_ranks_get_the_same_samples(streaming: Any) -> None:
    world = importlib.import_module("streaming.base.world").World
    assert [world(1, 4, 1, rank).replicate(2).rank for rank in range(4)] == [0, 0, 1, 1]
    assert "replication" in inspect.signature(streaming.StreamingDataset).parameters


# litData


@pytest.fixture
def litdata() -> Any:
    return importlib.import_module("litdata")


@pytest.fixture
def chunks(litdata: Any, tmp_path: Path) -> str:
    """The numbers below 48 in litData's format."""
    cache = importlib.import_module("litdata.streaming.cache").Cache(input_dir=str(tmp_path / "chunks"), chunk_size=6)
    for x in range(48):
        cache[x] = x
    cache.done()
    cache.merge()
    return str(tmp_path / "chunks")


@shows(MOVING, "`drop_last` is on in a distributed job")
def test_litdata_drops_rows_in_a_distributed_job(litdata: Any, chunks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not litdata.StreamingDataset(chunks).drop_last
    monkeypatch.setenv("WORLD_SIZE", "5")
    got: list[int] = []
    for rank in range(5):
        monkeypatch.setenv("GLOBAL_RANK", str(rank))
        dataset = litdata.StreamingDataset(chunks)
        assert dataset.drop_last
        got += dataset
    assert len(got) == len(set(got)) == 45


@shows(MOVING, "a state on other ranks resumes at a whole global batch")
def test_litdata_gives_rows_again_on_other_ranks(litdata: Any, chunks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_ranks(number: int, size: int, state: Any = None) -> tuple[list[int], Any]:
        got: list[int] = []
        monkeypatch.setenv("WORLD_SIZE", str(number))
        for rank in range(number):
            monkeypatch.setenv("GLOBAL_RANK", str(rank))
            loader = litdata.StreamingDataLoader(litdata.StreamingDataset(chunks), batch_size=size, num_workers=0)
            batches = iter(loader)
            if state is None:
                got += [x for _ in range(3) for x in next(batches).tolist()]
                last = loader.state_dict()
            else:
                loader.load_state_dict(state)
                got += [x for batch in loader for x in batch.tolist()]
        return got, last if state is None else None

    first, state = on_ranks(2, 3)
    then, _ = on_ranks(4, 2, state)
    assert set(first + then) == set(range(48))
    assert len(set(first) & set(then)) == len(first) % (4 * 2) == 2


@shows(MOVING, "at the next row, for [mixtures](mixing.md#state) too")
def test_litdata_refuses_the_state_of_a_mixture_on_other_ranks(
    litdata: Any, chunks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader() -> Any:
        sources = [litdata.StreamingDataset(chunks), litdata.StreamingDataset(chunks)]
        mixed = litdata.CombinedStreamingDataset(sources, weights=[0.5, 0.5], iterate_over_all=False, seed=1)
        return litdata.StreamingDataLoader(mixed, batch_size=2, num_workers=0)

    first = loader()
    next(iter(first))
    state = first.state_dict()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="resume only when world_size"):
        loader().load_state_dict(state)


@shows(MOVING, "`TokensLoader(block_size=...)`")
def test_the_tokens_loader_cuts_blocks(litdata: Any, tmp_path: Path) -> None:
    cache: Any = importlib.import_module("litdata.streaming.cache").Cache
    writer = cache(input_dir=str(tmp_path), chunk_size=100, item_loader=litdata.TokensLoader(4))
    for at in range(10):
        writer[at] = torch.arange(at * 4, at * 4 + 4)
    writer.done()
    writer.merge()
    blocks = list(litdata.StreamingDataset(str(tmp_path), item_loader=litdata.TokensLoader(block_size=8)))
    assert [block.tolist() for block in blocks[:2]] == [list(range(8)), list(range(8, 16))]


@shows(MOVING, "`CombinedStreamingDataset(weights=...)`", "`subsample=0.1`", "`transform=` of one item")
def test_litdata_mixes_chooses_and_changes_items(litdata: Any, chunks: str) -> None:
    changed = litdata.StreamingDataset(chunks, transform=lambda x: -x)
    assert list(changed) == [-x for x in range(48)]
    mixed = litdata.CombinedStreamingDataset(
        [changed, litdata.StreamingDataset(chunks)], weights=[0.5, 0.5], iterate_over_all=False, seed=1
    )
    assert {x > 0 for x in mixed} == {True, False}
    assert len(list(litdata.StreamingDataset(chunks, subsample=0.1))) == 4


# WebDataset


@pytest.fixture
def wds() -> Any:
    return importlib.import_module("webdataset")


@pytest.fixture
def tars(wds: Any, tmp_path: Path) -> Callable[..., Any]:
    """Two shards of ten numbers, opened with some options."""
    shards = [str(tmp_path / f"{shard}.tar") for shard in range(2)]
    for number, shard in enumerate(shards):
        with wds.TarWriter(shard) as writer:
            for x in range(number * 10, number * 10 + 10):
                writer.write({"__key__": str(x), "x.txt": str(x)})
    return lambda **options: wds.WebDataset(shards, **{"shardshuffle": False, "empty_check": False, **options}).decode()


def numbers(samples: Any) -> list[int]:
    return [int(sample["x.txt"]) for sample in samples]


@shows(MOVING, "`shuffle(1000)`, seeded by clock and process")
def test_webdatasets_order_is_another_one_in_each_run(tars: Callable[..., Any]) -> None:
    orders = [numbers(tars().shuffle(1000)) for _ in range(3)]
    assert [sorted(order) for order in orders] == [list(range(20))] * 3
    assert len({tuple(order) for order in orders}) > 1


@shows(MOVING, "a shard goes to one worker")
def test_a_third_worker_has_no_shard(tars: Callable[..., Any]) -> None:
    samples = tars().map(lambda sample: {**sample, "worker": worker()})
    got = [(sample["worker"], int(sample["x.txt"]) // 10) for sample in DataLoader(samples, None, num_workers=3)]
    assert len(got) == 20
    assert sorted(set(got)) == [(0, 0), (1, 1)]


@shows(MOVING, "`with_epoch(n)` repeats and skips rows")
def test_with_epoch_repeats_and_skips_rows(tars: Callable[..., Any]) -> None:
    assert numbers(tars().with_epoch(25)) == [*range(20), *range(5)]
    short = tars().with_epoch(15)
    assert [numbers(short) for _ in range(2)] == [list(range(15))] * 2


@shows(MOVING, "`resampled=True`")
def test_resampled_shards_come_by_chance(tars: Callable[..., Any]) -> None:
    shards = [x // 10 for x in numbers(tars(resampled=True, seed=1).with_epoch(400))][::10]
    assert len(shards) == 40
    assert 0 < sum(shards) < 40
    assert shards != [0, 1] * 20


@shows(MOVING, "`warn_and_continue` skips samples uncounted")
def test_warn_and_continue_tells_no_number(wds: Any, tars: Callable[..., Any]) -> None:
    def even(sample: Any) -> Any:
        if int(sample["x.txt"]) % 2:
            raise ValueError("odd")
        return sample

    samples = tars().map(even, handler=wds.warn_and_continue)
    before = {name: repr(value) for name, value in vars(samples).items()}
    with pytest.warns(UserWarning, match="odd") as warned:
        left = numbers(samples)
    assert left == list(range(0, 20, 2))
    assert {name: repr(value) for name, value in vars(samples).items()} == before
    assert not any("10" in str(warning.message) for warning in warned)


@shows(MOVING, '`decode("torchrgb")`, `.map(fn)`')
def test_pictures_are_decoded_and_samples_mapped(wds: Any, tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "0.tar")) as writer:
        writer.write({"__key__": "0", "png": np.full((4, 5, 3), 255, np.uint8)})
    pictures = wds.WebDataset(str(tmp_path / "0.tar"), shardshuffle=False).decode("torchrgb")
    (picture,) = pictures.map(lambda sample: sample["png"])
    assert (picture.shape, picture.dtype, float(picture.min())) == ((3, 4, 5), torch.float32, 1.0)


@shows(MOVING, "`wds.RandomMix`")
def test_random_mix_draws_from_both(wds: Any, tars: Callable[..., Any]) -> None:
    mixed = wds.RandomMix([tars(), tars().map(lambda sample: {"x.txt": -1})], [0.5, 0.5], longest=True)
    assert sorted(numbers(mixed)) == [-1] * 20 + list(range(20))
