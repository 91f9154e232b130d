"""Lists that a store keeps flat: parts of them come from memory, files and URLs alike, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.effort import daily
from tests.tables.row_stores import MemoryTable, flip, folder_in_memory, in_memory
from torch_table_loader.errors import MissingFileError, TableError
from torch_table_loader.extend import FileStorage
from torch_table_loader.far import remote
from torch_table_loader.far.fetcher import reading_parts
from torch_table_loader.far.remote import RemoteRows, open_remote, row_width, upload_store
from torch_table_loader.ranges import FetchSettings
from torch_table_loader.store import builder, manifest
from torch_table_loader.store.builder import build_files, write_lengths
from torch_table_loader.store.gather import Spans, StoredRows
from torch_table_loader.store.manifest import read_manifest
from torch_table_loader.store.opened import open_store
from torch_table_loader.store.record_layout import LENGTHS, MANIFEST, PARTS, StoreSpec, values_file
from torch_table_loader.testing import small_sizes

Ints = NDArray[np.int64]


class Documents(MemoryTable):
    """Documents of two flat columns and a title, whose lists contain their own positions."""

    def __init__(self, lengths: list[int], bounds: list[int], ids: Any = None) -> None:
        """Write them."""
        self.lengths = np.array(lengths, dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        self.tokens, self.weights = np.arange(offsets[-1]) % 60_000, np.arange(offsets[-1]) / 8
        lists = [
            pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(self.tokens, pa.uint16())),
            pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(self.weights, pa.float32())),
        ]
        titles = [f"document {number}" for number in range(len(lengths))]
        columns = [*lists, pa.array(titles), pa.array(np.arange(len(lengths)))]
        batch = pa.RecordBatch.from_arrays(columns, names=["tokens", "weights", "title", "number"])
        super().__init__(batch, bounds, ids, read_rows=13)

    @property
    def spec(self) -> StoreSpec:
        """What a store of them holds."""
        sizes = tuple(stop - start for start, stop in pairwise(self.bounds))
        return StoreSpec("documents", None, self.batch.schema, sizes, keeps_ids=self.ids is not None, flat=2)

    def check_parts(self, rows: StoredRows, local: Ints, documents: Ints, spans: Spans) -> None:
        """Compare parts of lists, and the other columns of their documents, with the table."""
        assert rows.values is not None
        length = spans.stop - spans.start
        wanted = np.concatenate([np.arange(*span) for span in zip(*spans, strict=True)] or [spans.start])
        assert rows.values.take(0, spans.start, length, np.int64).tolist() == self.tokens[wanted].tolist()
        assert rows.values.take(1, spans.start, length, np.float64).tolist() == self.weights[wanted].tolist()
        titles, numbers = rows.gather(local)
        assert titles.to_pylist() == [f"document {number}" for number in documents.tolist()]
        assert numbers.to_pylist() == documents.tolist()
        assert rows.ids(local).tolist() == (documents if self.ids is None else self.ids[documents]).tolist()


def some_parts(made: Documents, seed: int, count: int) -> tuple[Ints, Spans]:
    """Choose parts of documents, in any order and more than once."""
    rng = np.random.default_rng(seed)
    documents = rng.choice(np.flatnonzero(made.lengths), count)
    begins = (np.cumsum(made.lengths) - made.lengths)[documents]
    start = (rng.random(count) * made.lengths[documents]).astype(np.int64)
    length = 1 + (rng.random(count) * (made.lengths[documents] - start)).astype(np.int64)
    stop = np.minimum(start + length, made.lengths[documents])
    return documents, Spans(begins + start, begins + stop)


LENGTHS_OF = [(number * 37) % 90 for number in range(200)]


def documents(ids: Any = None) -> Documents:
    return Documents(LENGTHS_OF, [0, 0, 70, 71, 200, 200], ids)


@pytest.fixture
def root() -> Iterator[str]:
    with folder_in_memory() as folder:
        yield f"{folder}/stores"


def opened_far(root: str, spec: StoreSpec) -> RemoteRows:
    storage = FileStorage("memory")
    reader = partial(reading_parts, storage, FetchSettings(1 << 20))
    with small_sizes(window_rows=64):
        rows = open_remote(storage, root, spec, reader, 256 * row_width(spec.layout))
    assert rows is not None
    return rows


def far(made: Documents, place: Path, root: str) -> RemoteRows:
    build_files(place, made.spec, made.read, 2)
    upload_store(place, FileStorage("memory"), root, made.spec)
    return opened_far(root, made.spec)


@pytest.mark.parametrize("ids", [None, np.arange(200) * 3], ids=["places", "ids"])
@pytest.mark.parametrize("where", ["memory", "files", "url", "url, whole"])
def test_parts_of_lists_do_not_depend_on_the_stores_location(tmp_path: Path, root: str, where: str, ids: Any) -> None:
    made = documents(ids)
    if where == "memory":
        rows: Any = in_memory(made)
    elif where == "files":
        build_files(tmp_path, made.spec, made.read, 3)
        rows = open_store(tmp_path, made.spec, 1)
    else:
        rows = far(made, tmp_path, root)
        rows = rows.fetch_all() if where == "url, whole" else rows
    assert rows.lengths.count == 200
    assert rows.lengths.take(np.arange(200)).tolist() == LENGTHS_OF
    for seed, count in ((0, 400), (1, 1), (2, 0)):
        wanted, spans = some_parts(made, seed, count)
        stored, local = rows.fetch(wanted, spans)
        made.check_parts(stored, local, wanted, spans)


def test_builders_that_come_and_go_build_one_store(tmp_path: Path) -> None:
    made = documents(np.arange(200) * 2)
    for round_ in range(8):
        place = tmp_path / f"{round_}"
        with ThreadPoolExecutor(4) as pool:
            for built in [pool.submit(build_files, place, made.spec, made.read, 2) for _ in range(4)]:
                built.result()
        rows = open_store(place, made.spec, 1)
        assert rows is not None
        wanted, spans = some_parts(made, round_, 50)
        made.check_parts(rows, wanted, wanted, spans)
        assert not (place / PARTS).exists(), "nothing of the build is left"


def test_a_builder_finds_a_store_that_was_finished_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another builder removes the notes of the chunks between two checks."""
    made = documents()
    place = tmp_path / "store"
    check_room = builder._check_room

    def first_another(*args: Any) -> None:
        monkeypatch.setattr(builder, "_check_room", check_room)
        build_files(place, made.spec, made.read, 1)

    monkeypatch.setattr(builder, "_check_room", first_another)
    build_files(place, made.spec, made.read, 1)
    assert open_store(place, made.spec, 1) is not None
    assert not (place / PARTS).exists()


@pytest.mark.parametrize("request_bytes", [40, 1 << 20])
@pytest.mark.parametrize("gap", [0, 100, 1 << 20])
@daily(2)
def test_windows_have_the_parts_of_their_blocks(tmp_path: Path, root: str, gap: int, request_bytes: int) -> None:
    made = documents()
    rows = far(made, tmp_path, root)
    blocks = [some_parts(made, seed, 20 if seed % 4 else 0) for seed in range(30)]
    found = rows.windows(iter([(wanted, (wanted, spans)) for wanted, spans in blocks]), spans=lambda note: note[1])
    count = 0
    with small_sizes(far_gap_bytes=gap, far_request_bytes=request_bytes):
        for stored, local, (wanted, spans) in found:
            made.check_parts(stored, local, wanted, spans)
            count += 1
    assert count == 30


@small_sizes(far_gap_bytes=0)
def test_a_part_of_a_long_list_is_read_without_the_rest(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Documents([10, 500_000, 10], [0, 3])
    rows = far(made, tmp_path, root)
    asked: list[tuple[str, int, int]] = []
    expect = remote.RemoteFiles.expect

    def noting(self: Any, reader: Any, name: str, parts: Any, rows_before: int) -> Any:
        asked.extend((name, start, stop) for start, stop in parts)
        return expect(self, reader, name, parts, rows_before)

    monkeypatch.setattr(remote.RemoteFiles, "expect", noting)
    spans, wanted = Spans(np.array([300_000, 12]), np.array([300_100, 20])), np.array([1, 1])
    for lengths in (1, 0):  # they come once
        stored, local = rows.fetch(wanted, spans)
        made.check_parts(stored, local, wanted, spans)
        assert [part[0] for part in asked].count(LENGTHS) == lengths
        assert [part for part in asked if part[0] == values_file(0)] == [
            (values_file(0), 12 * 6, 20 * 6),
            (values_file(0), 300_000 * 6, 300_100 * 6),
        ]
        asked.clear()


@pytest.mark.parametrize(("longest", "width"), [(255, 1), (256, 2), (70_000, 4)])
def test_lengths_are_stored_in_the_smallest_integers(tmp_path: Path, longest: int, width: int) -> None:
    made = Documents([1] * 640 + [longest] + [0] * 63, [0, 300, 704])
    build_files(tmp_path, made.spec, made.read, 2)
    assert (tmp_path / LENGTHS).stat().st_size == 704 * width + 8 * 12
    assert sum(path.stat().st_size for path in tmp_path.glob("values-*.bin")) == (640 + longest) * 6
    rows = open_store(tmp_path, made.spec, 1)
    assert rows is not None
    assert rows.lengths is not None
    assert rows.lengths.longest == (longest, 640)


@small_sizes(list_values=80)
def test_a_list_that_is_too_long_is_refused(tmp_path: Path) -> None:
    made = documents()
    with pytest.raises(TableError, match=r"a list of column 'tokens' has \d+ elements, .* fewer than 80; cut it"):
        build_files(tmp_path, made.spec, made.read, 1)


# ---- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "what"), [(LENGTHS, LENGTHS), (values_file(3), f"chunk 3 of {values_file(3)}")])
@pytest.mark.parametrize("fault", ["flipped", "shorter", "gone"])
def test_damage_on_a_disk_is_named(tmp_path: Path, name: str, what: str, fault: str) -> None:
    made = documents()
    build_files(tmp_path, made.spec, made.read, 1)
    path = tmp_path / name
    if fault == "flipped":
        flip(path)
        expected = f"is damaged: {what} is not what was written; remove it with"
    elif fault == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
        expected = rf"is damaged: {name} must have \d+ bytes, got \d+; remove it with"
    else:
        path.unlink()
        expected = f"lacks {name}; remove it with"
    with pytest.raises(TableError, match=expected):
        open_store(tmp_path, made.spec, 1)


@pytest.mark.parametrize("name", [LENGTHS, values_file(3)])
def test_damage_at_a_url_is_named(tmp_path: Path, root: str, name: str) -> None:
    made = documents()
    far(made, tmp_path, root)
    memory = fsspec.filesystem("memory")
    whole = memory.cat_file(f"{root}/{name}")
    memory.pipe_file(f"{root}/{name}", whole[:-1])
    with pytest.raises(TableError, match=rf"is damaged: {name} must have {len(whole)} bytes, got {len(whole) - 1}"):
        opened_far(root, made.spec)
    memory.rm_file(f"{root}/{name}")
    with pytest.raises(MissingFileError, match=rf"{name}: expected a file, found none"):
        opened_far(root, made.spec)


def test_lengths_at_a_url_are_checked_on_arrival(tmp_path: Path, root: str) -> None:
    made = documents()
    far(made, tmp_path, root)
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file(f"{root}/{LENGTHS}"))
    data[-70] ^= 1
    memory.pipe_file(f"{root}/{LENGTHS}", bytes(data))
    rows = opened_far(root, made.spec)
    with pytest.raises(TableError, match=rf"the row store 'memory://.*' is damaged: {LENGTHS} is not what was written"):
        _ = rows.lengths


def test_lengths_that_contradict_the_chunks_stop_the_build(tmp_path: Path) -> None:
    made = documents()
    build_files(tmp_path, made.spec, made.read, 1)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    lengths = made.lengths.copy()
    lengths[100] += 1
    with pytest.raises(TableError, match=r"chunk 3 of the row store .* elements of lists, and lengths for"):
        write_lengths(tmp_path, lengths, manifest.parts)


def test_a_store_of_another_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = documents()
    build_files(tmp_path, made.spec, made.read, 1)
    whole = json.loads((tmp_path / MANIFEST).read_text())
    whole["store"]["format"] = 6
    whole["crc"] = manifest._crc(whole["store"])
    (tmp_path / MANIFEST).write_text(json.dumps(whole))
    with pytest.raises(TableError, match=r"is of format 6, expected 5; .*the version that built it, or remove"):
        open_store(tmp_path, made.spec, 1)


def test_names_of_row_stores_never_change() -> None:
    """Otherwise a new version would build each of them again."""
    schema = pa.schema([("x", pa.int64()), ("l", pa.large_list(pa.int32()))])
    assert StoreSpec("t", None, schema, (5, 6)).name == "rows-c356a627c72db58b6a1e30c48c6dc9e7"
    made = StoreSpec("t", None, schema, (5, 6), made="documents")
    assert made.name == "rows-239d0e91fac6434f44ce9df15b52fbdf"
    assert StoreSpec("t", None, schema, (5, 6), made="documents", flat=1).name != made.name
