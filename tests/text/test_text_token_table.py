"""The token table law: each row once, in order, with the tokens of its text; the same bytes however it was ended."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.leaks import children
from tests.tables.catalogs import load_catalog
from tests.text.word_tokenizers import STOP_FILE, words
from torch_table_loader import (
    ConfigError,
    ConfigTypeError,
    IcebergDataset,
    Pack,
    ResumeError,
    StorageError,
    StructuredDataset,
    TableError,
    WorkerError,
    tokenize_table,
)
from torch_table_loader.testing import small_sizes

NAME = "tests.text.word_tokenizers"


def texts(number: int) -> list[str]:
    return [" ".join(f"w{row * i}" for i in range(row % 5)) + f" é{row}" * (row % 3) for row in range(number)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three files of 100 rows in row groups of 30."""
    root = tmp_path / "table"
    root.mkdir()
    all_texts = texts(300)
    for file in range(3):
        part = slice(100 * file, 100 * file + 100)
        columns = {"text": all_texts[part], "id": list(range(300))[part], "day": [file] * 100}
        pq.write_table(pa.table(columns), root / f"{file}.parquet", row_group_size=30)
    return root


def opened(table: Path, **options: Any) -> StructuredDataset:
    own: dict[str, Any] = {"split_size": 60, "output_format": "arrow", "check_plan": False}
    return StructuredDataset(str(table), **own | options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.parquet"))
    return list(itertools.chain.from_iterable(pq.read_table(file).to_pylist() for file in files))


def test_each_row_comes_once_in_order_with_the_tokens_of_its_text(table: Path, tmp_path: Path) -> None:
    share = tokenize_table(opened(table, columns=["id", "text"]), tmp_path / "out", words, lengths="n")
    expected = words(texts(300))
    assert rows_of(tmp_path / "out") == [
        {"input_ids": ids, "id": number, "n": len(ids)} for number, ids in enumerate(expected)
    ]
    assert (share.finished, share.num_parts, share.written) == (True, 6, 6)
    assert (share.documents, share.tokens, share.dropped) == (300, sum(map(len, expected)), 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[:2] == ["_tokens.json", "part-00000.parquet"]
    assert not (tmp_path / "out.unfinished").exists()
    schema = pq.read_schema(tmp_path / "out" / "part-00000.parquet")
    assert schema.field("input_ids").type == pa.list_(pa.field("element", pa.int32(), nullable=False))


def test_a_loader_reads_it(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table), tmp_path / "out", f"{NAME}:sized")
    loader, dataset = StructuredDataset.create_dataloader(
        str(tmp_path / "out"), batch_size=7, num_workers=1, output_format="arrow"
    )
    assert dataset.schema.field("input_ids").type.value_type == pa.uint16()
    batches = list(loader)
    assert [ids for batch in batches for ids in batch["input_ids"].to_pylist()] == words(texts(300))


@given(
    rows=st.lists(st.text(max_size=8) | st.none(), max_size=30),
    group=st.integers(1, 12),
    split=st.integers(1, 15),
    ranks=st.integers(1, 4),
    nulls=st.sampled_from(["drop", "empty"]),
)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_table_in_any_splits_on_any_ranks(
    rows: list[str | None], group: int, split: int, ranks: int, nulls: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "table").mkdir()
    given_rows = pa.table({"text": pa.array(rows, pa.string()), "id": pa.array(range(len(rows)), pa.int64())})
    pq.write_table(given_rows, root / "table" / "a.parquet", row_group_size=group)
    shares = []
    for rank in reversed(range(ranks)):
        dataset = opened(root / "table", split_size=split, num_ranks=ranks, rank=rank, drop_last=True)
        shares.append(tokenize_table(dataset, root / "out", "bytes", nulls=nulls))
    assert [share.finished for share in shares].count(True) >= 1
    assert shares[-1].finished
    kept = [(number, text or "") for number, text in enumerate(rows) if text is not None or nulls == "empty"]
    assert rows_of(root / "out") == [{"input_ids": list(text.encode()), "id": number} for number, text in kept]
    assert sum(share.dropped for share in shares) == len(rows) - len(kept)
    assert sum(share.documents for share in shares) == len(kept)


@small_sizes(text_group_tokens=50, text_batch_rows=25)
def test_what_is_written_depends_on_neither_ranks_nor_ends(table: Path, tmp_path: Path) -> None:
    whole, ended, unfinished = tmp_path / "whole", tmp_path / "ended", tmp_path / "ended.unfinished"
    tokenize_table(opened(table), whole, words)
    assert pq.ParquetFile(whole / "part-00000.parquet").num_row_groups > 1
    for fails_at in (3, 1, 2, None):
        calls = itertools.count(1)

        def failing(given: list[str], calls: Any = calls, fails_at: int | None = fails_at) -> list[list[int]]:
            if next(calls) == fails_at:
                raise OSError("ended here")
            return words(given)

        failing.__module__, failing.__qualname__ = words.__module__, words.__qualname__
        times = {path: path.stat().st_mtime_ns for path in unfinished.glob("*.parquet")}
        if fails_at is None:
            tokenize_table(opened(table), ended, failing)
            continue
        with pytest.raises(ConfigError, match=f"the tokenizer '{NAME}:words' failed: OSError: ended here"):
            tokenize_table(opened(table), ended, failing)
        assert not ended.exists()
        assert {path: path.stat().st_mtime_ns for path in times} == times, "what was there is not written again"
        assert list(unfinished.glob(".*")) == []
    assert contents(ended) == contents(whole)


def test_a_table_that_nulls_ended_goes_on_without_them(tmp_path: Path) -> None:
    """What was written has no such row, and stays; back to "error" it does not go, since rows may have been dropped."""
    pq.write_table(pa.table({"text": ["a", "b", None, "c"]}), tmp_path / "a.parquet", row_group_size=1)

    def written(out: str, nulls: Any) -> Any:
        dataset = StructuredDataset(str(tmp_path / "a.parquet"), columns=["text"], output_format="arrow", split_size=1)
        return tokenize_table(dataset, tmp_path / out, "bytes", nulls=nulls)

    with pytest.raises(TableError, match='pass nulls="drop" or nulls="empty"'):
        written("out", "error")
    first = tmp_path / "out.unfinished" / "part-00000.parquet"
    before = first.stat().st_mtime_ns
    (tmp_path / "other.unfinished").mkdir()
    (tmp_path / "other.unfinished" / "_tokens.json").write_bytes(first.with_name("_tokens.json").read_bytes())
    share = written("out", "drop")
    assert (share.finished, share.dropped, share.written) == (True, 1, 2)
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == before
    written("whole", "drop")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    for nulls in ("error", "empty"):
        with pytest.raises(ResumeError, match=f"nulls was 'drop', is '{nulls}'"):
            written("out", nulls)
    assert written("other", "empty").finished


@pytest.mark.slow
def test_processes_write_the_same(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table), tmp_path / "one", f"{NAME}:words")
    share = tokenize_table(opened(table), tmp_path / "two", f"{NAME}:words", num_workers=2)
    assert not children()
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert (share.written, share.documents) == (6, 300)


@pytest.mark.slow
def test_a_process_that_dies_is_named_and_the_work_goes_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    monkeypatch.setenv(STOP_FILE, str(stop))
    with pytest.raises(WorkerError, match=r"ended before its work did.*Run again to continue"):
        tokenize_table(opened(table), tmp_path / "out", f"{NAME}:dying", num_workers=2)
    assert not children()
    stop.unlink()
    assert tokenize_table(opened(table), tmp_path / "out", f"{NAME}:dying", num_workers=2).finished
    assert list((tmp_path / "out").glob(".*")) == [], "what the dead left is gone"
    assert [row["input_ids"] for row in rows_of(tmp_path / "out")] == words(texts(300))


def test_a_table_that_is_finished_is_left_alone(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table), tmp_path / "out", words)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    share = tokenize_table(opened(table), tmp_path / "out", words)
    assert (share.finished, share.written, share.tokens) == (True, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer": "bytes"}, "tokenizer was 'tests.text.word_tokenizers:words', is 'bytes'"),
        ({"ids": "tokens"}, "tokens was 'input_ids: int32', is 'tokens: int32'"),
        ({"dtype": "uint32"}, "tokens was 'input_ids: int32', is 'input_ids: uint32'"),
        ({"lengths": "n"}, "lengths was None, is 'n'"),
        ({"split_size": 30}, "splits was"),
        ({"filters": pc.field("id") < 5}, "filter was None"),
        ({"columns": ["text"]}, "columns was"),
    ],
)
@daily(3)
def test_other_options_are_not_mixed_with_what_is_there(
    table: Path, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    asked: dict[str, Any] = {"tokenizer": words}

    def run(out: str, **change: Any) -> None:
        options = {name: change.pop(name) for name in ("split_size", "filters", "columns") if name in change}
        tokenize_table(opened(table, **options), tmp_path / out, **asked | change)

    run("finished")
    tokenize_table(opened(table, num_ranks=2, rank=1, drop_last=True), tmp_path / "begun", words)
    for out in ("finished", "begun"):
        with pytest.raises(ResumeError, match=named):
            run(out, **change)
    assert not (tmp_path / "begun").exists()


def test_a_table_that_changed_is_refused(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table, num_ranks=2, rank=1, drop_last=True), tmp_path / "out", words)
    os.utime(table / "1.parquet", ns=(1, 1))
    with pytest.raises(ResumeError, match="table was '"):
        tokenize_table(opened(table, num_ranks=2, rank=0, drop_last=True), tmp_path / "out", words)


# ---- rows that cannot be tokenized -----------------------------------------------------------------------


def write_texts(root: Path, rows: Sequence[str | None], kind: pa.DataType | None = None) -> Path:
    (root / "t").mkdir()
    columns = {"text": pa.array(rows, kind or pa.string()), "x": list(range(len(rows)))}
    pq.write_table(pa.table(columns), root / "t" / "a.parquet", row_group_size=4)
    return root / "t"


@pytest.mark.parametrize("options", [{}, {"filters": pc.field("x") > 2}, {"split_size": 3}, {"row_id": True}])
def test_a_null_is_an_error_that_names_file_and_row(tmp_path: Path, options: dict[str, Any]) -> None:
    table = write_texts(tmp_path, [*"aaaaaaaaa", None, "b"])
    with pytest.raises(TableError, match=r"^a\.parquet, row 9: the column 'text' is null; pass nulls=\"drop\""):
        tokenize_table(opened(table, **options), tmp_path / "out", words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("word", "dtype", "message"),
    [
        ("65536", "uint16", "made the id 65536 of its text, and uint16 holds 0 to 65535"),
        ("2147483648", "auto", "made the id 2147483648 of its text, and int32 holds 0 to 2147483647"),
        ("4294967296", "uint32", "made the id 4294967296 of its text, and uint32 holds 0 to 4294967295"),
        ("-1", "uint16", "made the id -1"),
        ("-1", "int32", "made the id -1"),
        ("9223372036854775808", "int32", "made the id 9223372036854775808"),
    ],
)
def test_an_id_that_does_not_fit_is_named_with_file_and_row(
    tmp_path: Path, word: str, dtype: Any, message: str
) -> None:
    table = write_texts(tmp_path, ["1", "2 3"] * 3 + [f"4 {word}"])
    with pytest.raises(TableError, match=f"a.parquet, row 6: the tokenizer '{NAME}:numbers' {message}"):
        tokenize_table(opened(table), tmp_path / "out", f"{NAME}:numbers", dtype=dtype)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (f"{NAME}:too_few", "must return a list of ids for each text, got 1 for 2 texts"),
        (lambda given: [None] * len(given), "must return a list of ids for each text, got 0 for 2 texts"),
        (lambda given: [[1], [2, None]], "must return lists of ids, got None in one of them"),
        (lambda given: [[1.5], [2.0]], r"must return lists of ids, got 1\.5 in one of them"),
        (lambda given: ["1", "2"], "must return lists of ids, got '1' in one of them"),
    ],
)
def test_a_tokenizer_must_return_lists_of_ids(tmp_path: Path, tokenizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenize_table(opened(write_texts(tmp_path, ["1", "2"])), tmp_path / "out", tokenizer)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_strings_of_any_layout(tmp_path: Path, kind: pa.DataType) -> None:
    table = write_texts(tmp_path, ["a b", None, "c"], kind)
    tokenize_table(opened(table), tmp_path / "out", words, nulls="empty")
    assert [row["input_ids"] for row in rows_of(tmp_path / "out")] == words(["a b", "", "c"])


def test_a_row_without_text_has_no_tokens_even_if_the_tokenizer_begins_every_text_with_one(tmp_path: Path) -> None:
    table = write_texts(tmp_path, ["a", None, ""])
    tokenize_table(
        opened(table), tmp_path / "out", lambda given: [[7, *map(ord, text)] for text in given], nulls="empty"
    )
    assert [row["input_ids"] for row in rows_of(tmp_path / "out")] == [[7, ord("a")], [], [7]]


# ---- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokenizer", "dtype", "expected"),
    [
        ("bytes", "auto", pa.uint16()),
        (f"{NAME}:sized", "auto", pa.uint16()),
        (f"{NAME}:words", "auto", pa.int32()),
        (f"{NAME}:words", "uint32", pa.uint32()),
    ],
)
def test_ids_take_the_narrowest_type_that_is_known_to_fit(
    table: Path, tmp_path: Path, tokenizer: str, dtype: Any, expected: pa.DataType
) -> None:
    tokenize_table(opened(table), tmp_path / "out", tokenizer, dtype=dtype)
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").field("input_ids").type.value_type == expected


class _Large:
    vocab_size = 70_000

    def __call__(self, given: list[str]) -> list[list[int]]:
        return words(given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"column": "txt"}, ConfigError, "no column 'txt'; did you mean text"),
        ({"column": "id"}, ConfigError, "must be text for a tokenizer, got int64"),
        ({"ids": "id"}, ConfigError, "would have two columns 'id'"),
        ({"lengths": "input_ids"}, ConfigError, "would have two columns 'input_ids'"),
        ({"nulls": "skip"}, ConfigError, "nulls must be one of 'error', 'drop', 'empty', got 'skip'"),
        ({"dtype": "int64"}, ConfigError, "dtype must be one of 'auto', 'uint16', 'uint32', 'int32', got 'int64'"),
        ({"dtype": "uint16", "tokenizer": _Large()}, ConfigError, "has ids up to 69999, which uint16 does not hold"),
        ({"num_workers": 0}, ConfigError, "num_workers"),
        ({"num_workers": "two"}, ConfigTypeError, "num_workers"),
        ({"out": "s3://bucket/out"}, ConfigError, "got a URL"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    table: Path, tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    out = tmp_path / "out"
    asked: dict[str, Any] = {"out": out, "tokenizer": words}
    with pytest.raises(error, match=message):
        tokenize_table(opened(table), **asked | given)
    assert not out.exists()
    assert not (tmp_path / "out.unfinished").exists()


def test_rows_of_a_row_store_are_refused(table: Path, tmp_path: Path) -> None:
    dataset = StructuredDataset(str(table), shuffle="rows", row_store="memory", columns=["id"])
    with pytest.raises(ConfigError, match="leave shuffle= out"):
        tokenize_table(dataset, tmp_path / "out", words)


def _a_file(path: Path) -> None:
    path.write_text("mine")


def _a_folder(path: Path) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("mine")


def _torn(path: Path) -> None:
    path.mkdir()
    (path / "_tokens.json").write_text("{")


@pytest.mark.parametrize("make", [_a_file, _a_folder, _torn])
def test_what_is_not_ours_is_not_touched(table: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "out")
    with pytest.raises((ConfigError, StorageError)):
        tokenize_table(opened(table), tmp_path / "out", words)
    if make is not _torn:
        assert (tmp_path / "out").read_text() == "mine" if make is _a_file else (tmp_path / "out" / "mine.txt").exists()


def test_an_empty_folder_may_be_there(table: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert tokenize_table(opened(table), tmp_path / "out", words).finished
    assert len(rows_of(tmp_path / "out")) == 300


def test_a_folder_that_cannot_be_written_is_named(table: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"the token table '.*file/out' cannot be written"):
        tokenize_table(opened(table), tmp_path / "file" / "out", words)


def test_a_table_without_files_makes_one_without_rows(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    dataset = opened(tmp_path / "empty", schema=pa.schema([("text", pa.string()), ("x", pa.int8())]))
    assert tokenize_table(dataset, tmp_path / "out", words).num_parts == 1
    (made,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(made).to_pylist() == []
    assert pq.read_schema(made).names == ["input_ids", "x"]


def test_row_ids_say_where_documents_came_from(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table, columns=["text"], row_id=True, filters=pc.field("id") >= 290), tmp_path / "out", words)
    assert [row["row_id"] for row in rows_of(tmp_path / "out")] == list(range(290, 300))


def test_sequences_are_packed_of_it(table: Path, tmp_path: Path) -> None:
    tokenize_table(opened(table), tmp_path / "out", words)
    pack = Pack(seq_len=16, strategy="best_fit", labels=None)
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path / "out"), pack=pack, batch_size=8, num_workers=1)
    found = [token for batch in loader for token in batch["input_ids"].flatten().tolist()]
    expected = list(itertools.chain.from_iterable(words(texts(300))))
    assert Counter(found) - Counter({0: len(found) - len(expected)}) == Counter(expected)
    with pytest.raises(ConfigError, match="pass it to the dataset of the token table"):
        tokenize_table(StructuredDataset(str(tmp_path / "out"), pack=pack), tmp_path / "again", words)


def test_other_formats(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts(50))
    (tmp_path / "lines" / "a.jsonl").write_text(lines)
    tokenize_table(StructuredDataset(str(tmp_path / "lines"), format="json"), tmp_path / "out", words)
    assert [row["input_ids"] for row in rows_of(tmp_path / "out")] == words(texts(50))


def test_an_iceberg_table_goes_on_at_its_snapshot(tmp_path: Path) -> None:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("db")
    rows = pa.table({"text": texts(40), "id": list(range(40))})
    made = catalog.create_table("db.docs", rows.schema)
    made.append(rows.slice(0, 15))
    made.append(rows.slice(15))

    def share(rank: int, **snapshot: Any) -> Any:
        given: dict[str, Any] = {
            "num_ranks": 2,
            "rank": rank,
            "drop_last": True,
            "check_plan": False,
            "output_format": "arrow",
        }
        dataset = IcebergDataset("db.docs", catalog, columns=["text", "id"], split_size=10, **given, **snapshot)
        return tokenize_table(dataset, tmp_path / "out", words)

    assert not share(1).finished
    first = made.current_snapshot()
    made.append(rows)
    assert first is not None
    with pytest.raises(ResumeError, match=f"snapshot was {first.snapshot_id}, is"):
        share(0)
    assert share(0, snapshot_id=first.snapshot_id).finished
    found = sorted(rows_of(tmp_path / "out"), key=lambda row: row["id"])
    assert found == [{"input_ids": ids, "id": number} for number, ids in enumerate(words(texts(40)))]
