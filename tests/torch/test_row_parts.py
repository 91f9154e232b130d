"""Parts of a table by the places of its rows: each row in exactly one, held against plain Python and Megatron's cut."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.tables.token_files import LAYOUTS, LISTS, some_documents
from torch_table_loader import (
    ConfigError,
    FlatTokens,
    MixedDataset,
    Pack,
    ResumeError,
    RowStore,
    StructuredDataset,
    TableLoader,
)

SHARES = {"train": 0.6, "val": 0.3, "test": 0.1}
WRITERS = {**LAYOUTS, **LISTS}
FORMS = (*WRITERS, "flat", "parquet")
CUTS: list[dict[str, Any]] = [{}, {"seed": 5}, {"ranges": True}]
ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "splits", "split_size": 7},
    {"shuffle": "rows"},
    {"shuffle": "rows", "row_store": RowStore(memory=64)},
]
SIZES = (50, 1, 33)
END = 3


def documents_of(number: int, size: int) -> list[list[int]]:
    """Documents with a number of their own in front, which hold no end token."""
    found = some_documents(number, size)
    return [[1000 * number + at + 10, *(token + 4 for token in each)] for at, each in enumerate(found)]


def write(folder: Path, form: str, tables: dict[str, list[list[int]]]) -> None:
    folder.mkdir()
    for name, documents in tables.items():
        if form == "flat":
            np.array([token for each in documents for token in (*each, END)], np.uint16).tofile(folder / f"{name}.bin")
        elif form == "parquet":
            lists = pa.array(documents, pa.list_(pa.uint16()))
            pq.write_table(pa.table({"tokens": lists}), folder / f"{name}.parquet", row_group_size=8)
        else:
            suffix, writer = WRITERS[form]
            writer(folder / f"{name}{suffix}", documents)


def open_table(path: Path, form: str, **options: Any) -> StructuredDataset:
    reader: Any = FlatTokens("uint16", eos_id=END) if form == "flat" else form
    asked: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        return StructuredDataset(str(path), reader, **asked)


def part_of_rows(name: str, rows: int, part: str, *, seed: int = 0, ranges: bool = False) -> list[int]:
    """Say which rows of a file are in a part, in Python's own integers, or as Megatron-LM cuts a data set."""
    at = list(SHARES).index(part)
    if ranges:  # megatron/core/datasets: convert_split_vector_to_split_matrix, _build_megatron_dataset_splits
        bookends = list(itertools.accumulate([0, *SHARES.values()]))
        begin, end = (round(edge * float(rows)) for edge in bookends[at : at + 2])
        return np.arange(begin, end).tolist()
    wraps = (1 << 64) - 1
    purpose = f"part {name}".encode()
    fields = [seed.to_bytes(seed.bit_length() // 8 + 1, "little"), bytes(1), purpose]
    message = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    digest = blake2b(message, digest_size=64, person=b"ttl order v1").digest()
    words = [int.from_bytes(digest[begin : begin + 8], "little") for begin in (32, 40)]

    def hash_of(number: int) -> int:
        found = number * 0x9E3779B97F4A7C15 & wraps
        for word in words:
            found = found + word & wraps
            found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 & wraps
            found = (found ^ found >> 27) * 0x94D049BB133111EB & wraps
            found ^= found >> 31
        return found

    low, high = sum(list(SHARES.values())[:at]), sum(list(SHARES.values())[: at + 1])
    return [row for row in range(rows) if low <= hash_of(row) / 2**64 < high]


def wanted(tables: dict[str, list[list[int]]], ending: str, part: str, cut: dict[str, Any]) -> dict[str, Any]:
    chosen = {
        name: [documents[row] for row in part_of_rows(name + ending, len(documents), part, **cut)]
        for name, documents in tables.items()
    }
    return {name: documents for name, documents in chosen.items() if documents}


def ending_of(form: str) -> str:
    return {"flat": ".bin", "parquet": ".parquet"}.get(form) or WRITERS[form][0]


def ids_of(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("strategy", ["concat", "windows", "pad", "best_fit"])
@pytest.mark.parametrize("where", ["near", "far"])
@pytest.mark.parametrize("form", FORMS)
@daily(4)
def test_sequences_of_a_part_are_those_of_a_table_of_its_documents(
    tmp_path: Path, far: Callable[[], Any], form: str, where: str, strategy: Any, cut: dict[str, Any]
) -> None:
    tables = {f"{number}": documents_of(number, size) for number, size in enumerate(SIZES)}
    write(tmp_path / "t", form, tables)
    put_ins: list[dict[str, Any]] = [{}, {"sep_id": 1}, {"bos_id": 2, "min_length": 3}]
    for order, put_in in itertools.product(ORDERS[2:], put_ins):
        pack = Pack(seq_len=9, tokens="tokens", strategy=strategy, **put_in)
        found: dict[str, Any] = {}
        for part in SHARES:
            chosen = wanted(tables, ending_of(form), part, cut)
            write(tmp_path / f"{part}-{len(put_in)}-{len(order)}", form, chosen)
            alone = open_table(tmp_path / f"{part}-{len(put_in)}-{len(order)}", form, pack=pack, **order)
            found[part] = ids_of(TableLoader(alone))
        with far() if where == "far" else meant_warnings():
            parts = open_table(tmp_path / "t", form, pack=pack, **order).split(SHARES, **cut)
            for part, dataset in parts.items():
                loader = TableLoader(dataset)
                assert len(loader) == len(found[part])
                assert ids_of(loader) == found[part]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("form", FORMS)
@daily(5)
def test_each_document_comes_once_in_one_part_on_any_world(
    tmp_path: Path, form: str, order: dict[str, Any], cut: dict[str, Any]
) -> None:
    tables = {f"{number}": documents_of(number, size) for number, size in enumerate(SIZES)}
    write(tmp_path / "t", form, tables)
    pack = Pack(seq_len=100, tokens="tokens", strategy="pad", labels=None)
    for part in SHARES:
        came: Counter[int] = Counter()
        for rank in range(3):
            whole = open_table(tmp_path / "t", form, pack=pack, num_ranks=3, rank=rank, even_ranks="pad", **order)
            loader = TableLoader(whole.split(SHARES, **cut)[part])
            batches = ids_of(loader)
            assert len(batches) == len(loader)
            came.update(row[0] for batch in batches for row in batch if row[0])
        chosen = wanted(tables, ending_of(form), part, cut)
        assert came == Counter(each[0] for documents in chosen.values() for each in documents)


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("form", ["megatron", "flat", "parquet"])
@daily(6)
def test_a_part_goes_on_where_it_was(tmp_path: Path, form: str, order: dict[str, Any], strategy: Any) -> None:
    write(tmp_path / "t", form, {f"{number}": documents_of(number, size) for number, size in enumerate(SIZES)})
    pack = Pack(seq_len=9, tokens="tokens", strategy=strategy)

    def parts() -> dict[Any, Any]:
        return open_table(tmp_path / "t", form, pack=pack, **order).split(SHARES)

    loader = TableLoader(parts()["train"])
    batches = iter(loader)
    taken = ids_of(islice(batches, 4))
    state, rest = loader.state_dict(), ids_of(batches)
    fresh = TableLoader(parts()["train"])
    fresh.load_state_dict(state)
    assert len(taken) == 4
    assert rest
    assert ids_of(fresh) == rest
    other = TableLoader(parts()["val"])
    with pytest.raises(ResumeError, match=r"of another table.*, or of another part of it"):
        other.load_state_dict(state)


def test_rows_of_a_part_keep_their_ids_and_are_excluded_by_them(tmp_path: Path) -> None:
    tables = {"a": documents_of(0, 40), "b": documents_of(1, 30)}
    write(tmp_path / "t", "megatron", tables)
    all_firsts = [each[0] for documents in tables.values() for each in documents]
    pack = Pack(seq_len=100, tokens="tokens", strategy="pad")
    for order in ORDERS:
        options = {"pack": pack, "row_id": True, **order}
        for dataset in open_table(tmp_path / "t", "megatron", **options).split(SHARES).values():
            for batch in TableLoader(dataset):
                ids = batch["documents"]["row_id"].tolist()
                assert [all_firsts[row] for row in ids] == batch["input_ids"][:, 0].tolist()
    train = open_table(tmp_path / "t", "megatron", pack=pack, shuffle="rows").split(SHARES)["train"]
    train.exclude(range(60))
    came = {row[0] for batch in TableLoader(train) for row in batch["input_ids"].tolist()}
    assert came
    assert came <= set(all_firsts[60:])


def test_parts_of_parts_and_of_more_files_stay_what_they_are(tmp_path: Path) -> None:
    tables = {f"{number}": documents_of(number, 60) for number in range(3)}
    write(tmp_path / "t", "megatron", tables)
    write(tmp_path / "fewer", "megatron", {"1": tables["1"]})
    pack = Pack(seq_len=100, tokens="tokens", strategy="pad", labels=None)

    def firsts(dataset: Any) -> set[int]:
        return {row[0] for batch in ids_of(TableLoader(dataset)) for row in batch}

    whole = open_table(tmp_path / "t", "megatron", pack=pack, shuffle=False).split(SHARES)
    fewer = open_table(tmp_path / "fewer", "megatron", pack=pack, shuffle=False).split(SHARES)
    ones = {each[0] for each in tables["1"]}
    for part, dataset in whole.items():
        assert firsts(dataset) & ones == firsts(fewer[part])
    again = whole["train"].with_options(shuffle="rows").split({"a": 0.5, "b": 0.5}, seed=1)
    a, b = firsts(again["a"]), firsts(again["b"])
    assert a
    assert b
    assert not a & b
    assert a | b == firsts(whole["train"])


def test_a_blend_for_each_part_counts_each_document_in_one(tmp_path: Path) -> None:
    names = ("books", "web")
    for number, name in enumerate(names):
        write(tmp_path / name, "megatron", {"0": documents_of(number, 80)})
    for order in ({"shuffle": True}, {"shuffle": "rows"}):
        pack = Pack(seq_len=100, tokens="tokens", strategy="pad", labels=None)
        with meant_warnings():
            parts = {
                name: open_table(tmp_path / name, "megatron", pack=pack, **order).split(SHARES, ranges=True)
                for name in names
            }
            came: Counter[int] = Counter()
            for part in SHARES:
                sources = {name: parts[name][part] for name in names}
                loader, _ = MixedDataset.create_dataloader(sources, "rows", batch_size=3, check_plan=False)
                came.update(row[0] for batch in loader for row in batch["input_ids"].tolist())
        assert came == Counter(each[0] for number in range(2) for each in documents_of(number, 80))


def test_row_groups_of_other_parts_are_not_read(tmp_path: Path, far: Callable[[], Any]) -> None:
    rng = np.random.default_rng(3)
    documents = rng.integers(0, 60_000, (100, 500)).tolist()
    write(tmp_path / "t", "parquet", {"0": documents})
    asked: dict[str, Any] = {"shuffle": False, "output_format": "dict"}
    read = {}
    with far():
        parts = open_table(tmp_path / "t", "parquet", **asked).split({"train": 0.9, "val": 0.1}, ranges=True)
        for part, dataset in parts.items():
            with TableLoader(dataset) as loader:
                rows = [row for batch in loader for row in batch["tokens"]]
                read[part] = loader.metrics().fetch.num_bytes
            assert rows == (documents[:90] if part == "train" else documents[90:])
    assert read["val"] < 0.25 * read["train"]


def documents_by_megatron(split: str, rows: int) -> dict[str, range]:
    """Say what Megatron-LM has in its parts.

    Its lines in megatron/core/datasets: parse_and_normalize_split, convert_split_vector_to_split_matrix,
    _build_megatron_dataset_splits.
    """
    weights = list(map(float, re.findall(r"[.0-9]+", split)))
    weights += [0.0] * (3 - len(weights))
    array = np.array(weights, dtype=np.float64)
    vector = (array / np.sum(array)).tolist()
    expansion = functools.reduce(lambda found, share: [*found, found[-1] + share], [[0], *vector])
    bookends = itertools.pairwise(expansion)
    bounds = [(round(begin * float(rows)), round(end * float(rows))) for begin, end in bookends]
    return {name: range(*bound) for name, bound in zip(("train", "valid", "test"), bounds, strict=True)}


@pytest.mark.parametrize(
    ("typed", "weights"),
    [
        ("969,30,1", [969, 30, 1]),
        ("98, 2", (98, 2)),
        ("1,1,1", [1.0, 1.0, 1.0]),
        ("0.5,0.25,0.25", [2, 1, 1]),
        ("7,0,3", np.array([0.7, 0, 0.3]).tolist()),
        ("100", [1]),
    ],
)
@pytest.mark.parametrize("form", ["megatron", "flat", "parquet"])
@daily(6)
def test_weights_of_megatrons_split_give_its_parts(tmp_path: Path, form: str, typed: str, weights: Any) -> None:
    tables = {f"{number}": documents_of(number, size) for number, size in enumerate((250, 1, 33, 999))}
    write(tmp_path / "t", form, tables)
    pack = Pack(seq_len=100, tokens="tokens", strategy="pad", labels=None)
    dataset = open_table(tmp_path / "t", form, pack=pack, shuffle=False)
    names = ["train", "valid", "test"][: typed.count(",") + 1]
    for given in (typed, weights):
        parts = dataset.split(given, ranges=True)
        assert list(parts) == names
        for part, own in parts.items():
            wanted = [
                documents[row][0]
                for documents in tables.values()
                for row in documents_by_megatron(typed, len(documents))[part]
            ]
            assert sorted(row[0] for batch in ids_of(TableLoader(own)) for row in batch) == sorted(wanted)
    came: Counter[int] = Counter()
    for own in dataset.split(typed).values():  # by hashes, in the same shares
        came.update(row[0] for batch in ids_of(TableLoader(own)) for row in batch)
    assert came == Counter(each[0] for documents in tables.values() for each in documents)


@pytest.mark.parametrize("given", ["", "a,b", "1,1,1,1", "-1,2", "0,0", "nan,1", "inf,1", [], [1, "x"], [None]])
def test_weights_that_divide_nothing_are_refused(tmp_path: Path, given: Any) -> None:
    write(tmp_path / "t", "parquet", {"0": documents_of(0, 9)})
    with pytest.raises(ConfigError, match=r"up to three weights of at least 0, .* pass \{name: share\} for other"):
        open_table(tmp_path / "t", "parquet").split(given)


@pytest.mark.parametrize(
    ("parts", "asked", "message"),
    [
        (SHARES, {"by": "tokens", "ranges": True}, "ranges=True cuts each file by the places of its rows, got by="),
        (SHARES, {"ranges": True, "seed": 3}, "got seed=3"),
        ({"a": 0.5}, {}, "must sum to 1"),
        ({"a": 0.5, "b": -0.5}, {}, "must be a number of at least 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, parts: Any, asked: Any, message: str) -> None:
    write(tmp_path / "t", "parquet", {"0": documents_of(0, 9)})
    with pytest.raises(ConfigError, match=message):
        open_table(tmp_path / "t", "parquet").split(parts, **asked)
