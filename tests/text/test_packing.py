"""Documents of a stream become sequences: what of them comes, in which tensors, and what is refused."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.effort import daily
from tests.states import options_of, with_options
from tests.tables.parquet_reader import PARQUET_READER
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import (
    BOS,
    EOS,
    GROUPS,
    LENGTHS,
    MOST_TOKENS,
    SEP,
    check_batch,
    delivered_by,
    documents_of,
    full_pack,
    places_of,
    write_documents,
)
from torch_table_loader import ConfigError, Pack, ResumeError, StructuredDataset, TableError, TableLoader
from torch_table_loader.extend import FileMeta
from torch_table_loader.sizes import small_sizes


def make(root: Path, pack: Pack, **options: Any) -> TableLoader:
    with meant_warnings():
        asked: dict[str, Any] = {"check_plan": False, "columns": ["id"]} | options
        return StructuredDataset.create_dataloader(str(root), "parquet", **({"pack": pack} | asked))[0]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("documents")
    write_documents(root, GROUPS)
    return root


def test_packs_of_a_shuffled_stream_differ_in_each_epoch(tmp_path: Path) -> None:
    lengths: list[int | None] = [int(each) for each in np.random.default_rng(2).integers(1, 60, 200)]
    write_documents(tmp_path, [lengths], files=1)
    pack = full_pack(seq_len=64, strategy="best_fit", block_docs=50)
    wholes = documents_of([lengths], pack)

    def packs(loader: TableLoader, epoch: int) -> set[frozenset[int]]:
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert sorted(delivered_by(batches, wholes, pack)) == sorted(places_of(wholes))
        together = [frozenset(batch["documents"]["id"].tolist()) for batch in batches]
        return {pack for pack in together if len(pack) > 1}

    shuffled, plain = (make(tmp_path, pack, batch_size=1, num_workers=1, shuffle=shuffle) for shuffle in (True, False))
    one, two = packs(shuffled, 0), packs(shuffled, 1)
    assert len(one & two) < 0.7 * len(one)  # blocks of 50 leave little choice
    assert packs(shuffled, 0) == one
    assert packs(plain, 0) == packs(plain, 1)
    state = shuffled.state_dict()
    state = with_options(state, stage=options_of(state)["stage"].removesuffix("-shuffled"))  # of a release without
    with pytest.raises(ResumeError, match="stage"):
        make(tmp_path, pack, batch_size=1, num_workers=1, shuffle="splits").load_state_dict(state)


def test_another_length_of_sequences_goes_on_where_documents_are_cut_anywhere(table: Path) -> None:
    wholes = documents_of(GROUPS, full_pack(seq_len=8))
    first, second = (make(table, full_pack(seq_len=seq_len), batch_size=2, num_workers=2) for seq_len in (8, 5))
    before = delivered_by(islice(first, 3), wholes, full_pack(seq_len=8))
    second.load_state_dict(first.state_dict())
    after = delivered_by(second, wholes, full_pack(seq_len=5))
    assert sorted(before + after) == sorted(places_of(wholes))


def test_a_state_is_bound_to_what_decides_the_tokens(table: Path) -> None:
    state = make(table, full_pack(seq_len=8)).state_dict()
    with pytest.raises(ResumeError, match="stage"):
        make(table, full_pack(seq_len=8, eos_id=EOS)).load_state_dict(state)
    with pytest.raises(ResumeError):
        make(table, full_pack(seq_len=8, strategy="best_fit")).load_state_dict(state)


def test_a_state_is_bound_to_the_documents_that_are_shuffled_together(table: Path) -> None:
    for before, after in ((3, 5), (3, None), (None, 5)):
        state = make(table, full_pack(seq_len=8), shuffle="splits", shuffle_buffer_size=before).state_dict()
        said = f"other options: shuffle_buffer_size was {before} and is {after}; give the loader"
        with pytest.raises(ResumeError, match=said):
            make(table, full_pack(seq_len=8), shuffle="splits", shuffle_buffer_size=after).load_state_dict(state)


def test_a_long_document_is_refused_if_asked(table: Path) -> None:
    with pytest.raises(TableError, match="17 tokens, more than seq_len=11"):
        make(table, full_pack(seq_len=11, strategy="pad", long_docs="error"))


def test_begin_and_end_tokens_are_added_only_where_they_lack(tmp_path: Path) -> None:
    lists = [[BOS, 10, EOS], [11, EOS], [BOS, 12], [13], [BOS]]
    pq.write_table(pa.table({"input_ids": pa.array(lists, pa.list_(pa.uint16()))}), tmp_path / "0.parquet")
    pack = full_pack(seq_len=4, strategy="pad", bos_id=BOS, eos_id=EOS)
    [batch] = make(tmp_path, pack, columns=None, batch_size=8)
    assert batch["input_ids"].tolist() == [[1, 10, 2, 0], [1, 11, 2, 0], [1, 12, 2, 0], [1, 13, 2, 0], [1, 2, 0, 0]]


def test_aligned_columns_have_their_type_and_the_loss_mask_does_not_come(table: Path) -> None:
    for batch in make(table, full_pack(seq_len=7, aligned=["weight"], loss_mask="trained"), batch_size=3):
        assert batch["weight"].dtype == torch.float32
        assert "trained" not in batch


def test_columns_of_documents_come_once_a_part(table: Path) -> None:
    pack = full_pack(seq_len=7)
    for batch in make(table, pack, columns=["title", "id", "input_ids"], row_id=True, batch_size=3):
        documents = batch["documents"]
        assert documents["title"] == [f"document {number}" for number in documents["id"].tolist()]
        assert len(documents["row_id"]) == int(batch["doc_ids"].max()) + 1


PRESETS = {
    "hf": {"input_ids", "labels", "position_ids"},
    "flash": {
        "input_ids",
        "labels",
        "position_ids",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
    },
    "flex": {"input_ids", "labels", "position_ids", "doc_ids"},
    "megatron": {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"},
    "segment_ids": {"input_ids", "labels", "position_ids", "segment_ids"},
}


@pytest.mark.parametrize("output", PRESETS)
@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_presets_have_the_names_of_their_field(table: Path, output: Any, form: Any) -> None:
    pack = full_pack(seq_len=9, strategy="best_fit", output=output)
    own = full_pack(seq_len=9, strategy="best_fit", labels=pack.labels)
    options: dict[str, Any] = {"columns": None, "batch_size": 3, "output_format": form}
    for batch, base in zip(make(table, pack, **options), make(table, own, **options), strict=True):
        assert set(batch) == PRESETS[output]
        ids = batch["tokens" if output == "megatron" else "input_ids"]
        assert np.array_equal(np.asarray(ids).reshape(-1), np.asarray(base["input_ids"]).reshape(-1))
        if output == "segment_ids":
            for row, numbers in zip(np.asarray(batch["segment_ids"]), np.asarray(base["doc_ids"]), strict=True):
                assert ((row == 0) == (numbers < 0)).all()
                assert sorted(set(row.tolist()) - {0}) == list(range(1, len(set(numbers.tolist()) - {-1}) + 1))
        if output == "megatron":
            assert np.array_equal(np.asarray(batch["loss_mask"]) > 0, np.asarray(base["labels"]) != -100)
        if output == "flash":
            assert np.asarray(ids).shape[0] == 1
            assert np.array_equal(np.asarray(batch["cu_seq_lens_q"]), np.asarray(base["cu_seqlens"]))


def test_only_the_tensors_that_are_named_come_out(table: Path) -> None:
    whole = full_pack(seq_len=9, aligned=["weight"])
    for names in (["input_ids"], ["labels", "input_ids"], ["input_ids", "doc_ids", "max_seqlen"]):
        some = full_pack(seq_len=9, aligned=["weight"], output=names)
        loaders = make(table, some, columns=None), make(table, whole, columns=None)
        for batch, base in zip(*loaders, strict=True):
            assert set(batch) == {*names, "weight"}
            assert all(torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(base[name])) for name in batch)


@pytest.mark.parametrize("shuffle", [False, "splits"])
def test_a_window_of_documents_is_shuffled_before_it_is_cut(tmp_path: Path, shuffle: Any) -> None:
    groups = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7], [9, 3, 2, 3, 8, 4, 6]]
    write_documents(tmp_path, groups, files=1)
    pack, orders = Pack(seq_len=7), set()
    loader = make(tmp_path, pack, shuffle=shuffle, shuffle_buffer_size=4, num_workers=1, batch_size=1)
    again = make(tmp_path, pack, shuffle=shuffle, shuffle_buffer_size=4, num_workers=1, batch_size=1)
    plain = make(tmp_path, pack, shuffle=shuffle, num_workers=1, batch_size=1)
    assert len(loader) == len(plain)
    for epoch in range(3):
        loader.set_epoch(epoch)
        again.set_epoch(epoch)
        batches = list(loader)
        assert [batch["input_ids"].tolist() for batch in again] == [batch["input_ids"].tolist() for batch in batches]
        for step, batch in enumerate(batches):
            spans: Any = again.rows_of(step)
            assert [span.row_start for span in spans] == batch["documents"]["id"].tolist()
        tokens = [token for batch in batches for token in batch["input_ids"].reshape(-1).tolist() if token]
        documents = list(dict.fromkeys((token - 1000) // MOST_TOKENS for token in tokens))
        sizes = dict(enumerate(length for group in groups for length in group))
        assert tokens == [1000 + number * MOST_TOKENS + at for number in documents for at in range(sizes[number])]
        orders.add(tuple(documents))
        firsts = {0: 8, 8: 6, 14: 7}
        while documents:  # each row group comes whole, and window by window
            first = max(start for start in firsts if start <= documents[0])
            group, documents = documents[: firsts[first]], documents[firsts[first] :]
            for at in range(0, len(group), 4):
                assert sorted(group[at : at + 4]) == list(range(first + at, first + min(at + 4, len(group))))
    assert len(orders) == 3


def test_a_batch_has_ids_and_labels_unless_more_is_asked_for(table: Path) -> None:
    def names(**options: Any) -> set[str]:
        columns = options.pop("columns", None)
        return set(next(iter(make(table, Pack(seq_len=9, **options), columns=columns))))

    assert names() == names(strategy="best_fit") == {"input_ids", "labels"}
    assert names(labels=None, aligned=["weight"]) == {"input_ids", "weight"}
    assert names(columns=["title"]) == {"input_ids", "labels", "doc_ids", "documents"}
    assert names(spans=["spans"]) == {"input_ids", "labels", "doc_ids", "spans"}
    assert names(columns=["title"], output=["input_ids"]) == {"input_ids", "documents"}


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_ids_come_in_the_type_that_is_asked_for(tmp_path: Path, shuffle: bool | str) -> None:
    ids = [[0, 7, 2**31 - 1], [5]]
    for kind in (pa.int32(), pa.int64(), pa.uint32()):
        root = tmp_path / str(kind)
        root.mkdir()
        pq.write_table(pa.table({"input_ids": pa.array(ids, pa.list_(kind))}), root / "0.parquet")
        wide, narrow = (
            make(root, Pack(seq_len=4, dtype=dtype), columns=None, shuffle=shuffle) for dtype in ("int64", "int32")
        )
        for batch, base in zip(narrow, wide, strict=True):
            assert (batch["input_ids"].dtype, batch["labels"].dtype) == (torch.int32, torch.int64)
            assert batch["input_ids"].tolist() == base["input_ids"].tolist()
    pq.write_table(pa.table({"input_ids": pa.array([[2**31]], pa.list_(pa.uint32()))}), root / "0.parquet")
    with pytest.raises(TableError, match="2147483648 does not fit into int32"):
        list(make(root, Pack(seq_len=4, dtype="int32"), columns=None, shuffle=shuffle))


@pytest.mark.parametrize("shuffle", [True, "rows"])
def test_the_column_of_tokens_is_found(tmp_path: Path, shuffle: bool | str) -> None:
    for names in (["tokens"], ["tokens", "input_ids"], ["n"]):
        root = tmp_path / "-".join(names)
        root.mkdir()
        columns = {name: pa.array([[number] * 4], pa.list_(pa.int32())) for number, name in enumerate(names)}
        pq.write_table(pa.table(columns), root / "0.parquet")
    for names, found in ((["tokens"], 0), (["tokens", "input_ids"], 1)):
        [batch] = make(tmp_path / "-".join(names), Pack(seq_len=4), columns=None, shuffle=shuffle)
        assert batch["input_ids"].tolist() == [[found] * 4]
    with pytest.raises(ConfigError, match="no column 'input_ids' or 'tokens', but 'n'; name the one of token ids"):
        make(tmp_path / "n", Pack(seq_len=4), columns=None, shuffle=shuffle)


def test_edges_have_one_size_where_documents_are_bounded(table: Path) -> None:
    pack = full_pack(seq_len=20, strategy="best_fit", max_docs_per_row=2)
    wholes = documents_of(GROUPS, pack)
    sizes = set()
    for batch in make(table, pack, batch_size=2, drop_last=True, num_workers=1):
        check_batch(batch, wholes, pack)
        sizes.add(len(batch["cu_seqlens"]))
    assert sizes == {2 * 3 + 1}
    with pytest.raises(TableError, match="max_docs_per_row=2, but a sequence has"):
        list(make(table, full_pack(seq_len=30, max_docs_per_row=2), batch_size=2))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1, None]], pa.list_(pa.int32())), "null inside the list of row 0"),
        (pa.array([["a"]], pa.list_(pa.string())), "must be a list of numbers"),
        (pa.array([[0.5]], pa.list_(pa.float32())), "must be a list of integers"),
        (pa.array([3], pa.int32()), "must be a list of numbers"),
    ],
)
def test_columns_that_are_no_tokens_are_refused(tmp_path: Path, column: pa.Array, message: str) -> None:
    pq.write_table(pa.table({"input_ids": column}), tmp_path / "0.parquet")
    with pytest.raises((ConfigError, TableError), match=message):
        list(make(tmp_path, full_pack(seq_len=4), columns=None))


def test_lists_of_other_lengths_are_refused(tmp_path: Path) -> None:
    columns = {"input_ids": [[1, 2], [3]], "weight": [[0.5, 1.0], [1.0, 2.0]]}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    with pytest.raises(TableError, match="got 1 and 2 in row 1"):
        list(make(tmp_path, full_pack(seq_len=4, aligned=["weight"]), columns=None))


@pytest.mark.parametrize("strategy", ["concat", "best_fit", "windows"])
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, strategy: Any) -> None:
    ids = pa.array([[1, 2], [3, 2**63]], pa.list_(pa.uint64()))
    pq.write_table(pa.table({"input_ids": ids}), tmp_path / "0.parquet")
    rows: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"} if strategy == "windows" else {}
    with pytest.raises(TableError, match="token id 9223372036854775808 in row 1 of this batch, which does not fit"):
        list(make(tmp_path, full_pack(seq_len=2, strategy=strategy), columns=None, **rows))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int16(), pa.uint32(), pa.uint64()])
@pytest.mark.parametrize("shuffle", [False, "rows"])
@daily(3)
def test_spans_have_integers_of_any_type(tmp_path: Path, kind: pa.DataType, shuffle: Any) -> None:
    spans = pa.list_(pa.struct([("start", kind), ("end", kind)]))
    columns = {"input_ids": [[5, 6, 7]], "spans": pa.array([[{"start": 1, "end": 3}]], spans)}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    rows: dict[str, Any] = {"shuffle": "rows", "row_store": "memory"} if shuffle else {}
    for first in (None, 1):  # a begin token moves spans
        (batch,) = make(tmp_path, full_pack(seq_len=4, spans=["spans"], bos_id=first), columns=None, **rows)
        assert batch["spans"]["spans"].index.tolist() == [[-1, 0, 0, -1] if first is None else [-1, -1, 0, 0]]


@pytest.mark.parametrize("kind", [pa.float32(), pa.string()])
def test_spans_of_other_types_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    spans = pa.array([[]], pa.list_(pa.struct([("start", pa.int32()), ("end", kind)])))
    pq.write_table(pa.table({"input_ids": [[5, 6, 7]], "spans": spans}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match=r"'spans' must have integers as 'end', got (float|string)"):
        make(tmp_path, full_pack(seq_len=4, spans=["spans"]), columns=None)


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (0, 9), (2, 1)])
def test_spans_outside_their_document_are_refused(tmp_path: Path, start: int, end: int) -> None:
    columns = {"input_ids": [[1, 2, 3]], "spans": [[{"start": start, "end": end}]]}
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    with pytest.raises(TableError, match=r"spans.*row 0"):
        list(make(tmp_path, full_pack(seq_len=4, spans=["spans"]), columns=None))


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"seq_len": 4, "strategy": "first_fit"}, "strategy must be one of"),
        ({"seq_len": 4, "stride": 2}, "stride is for"),
        ({"seq_len": 4, "long_docs": "drop"}, "does not work"),
        ({"seq_len": 4, "output": "flash", "aligned": ["max_length_q"]}, "a batch has 'max_length_q' of its own"),
        ({"seq_len": 4, "tokens": "weight", "aligned": ["weight"]}, "named twice"),
        ({"seq_len": 4, "labels": None, "loss_mask": "trained"}, "hides labels"),
        ({"seq_len": 4, "aligned": ["doc_ids"]}, "of its own"),
        ({"seq_len": 4, "output": "olmo"}, "output must be None"),
        ({"seq_len": 4, "output": ["labels"]}, "with 'input_ids' among them"),
        ({"seq_len": 4, "eos_id": -1}, "eos_id must be at least 0"),
        ({"seq_len": 4, "output": 3}, "output must be None"),
        ({"seq_len": 4, "aligned": None}, "aligned must be a list of column names"),
    ],
)
def test_what_does_not_fit_is_refused(given_options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        full_pack(**given_options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_format": "arrow"}, "leave pack out"),
        ({"pack": {"seq_len": 4}}, "must be a Pack"),
        ({"pack": full_pack(seq_len=4, strategy="windows")}, 'needs shuffle="rows"'),
        ({"pack": full_pack(seq_len=4, tokens="tokens")}, "no column 'tokens'"),
        ({"pack": full_pack(seq_len=4, tokens="title")}, "is text.*torch-table-loader tokenize"),
        ({"pack": full_pack(seq_len=4, tokens="title"), "shuffle": "rows"}, "is text.*torch-table-loader tokenize"),
        ({"pack": full_pack(seq_len=4, spans=["weight"])}, "list<struct<start, end"),
    ],
)
def test_options_that_do_not_fit_are_refused(table: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(table, **{"pack": full_pack(seq_len=4), **options})


def test_documents_are_small_enough_for_their_numbers() -> None:
    assert max(length or 0 for length in LENGTHS) < MOST_TOKENS


@pytest.mark.parametrize("sep_id", [None, SEP])
@pytest.mark.parametrize("files", [1, 3])
def test_footers_tell_the_tokens_of_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sep_id: int | None, files: int
) -> None:
    write_documents(tmp_path, GROUPS, files)
    pack = full_pack(seq_len=8, sep_id=sep_id)

    def unreadable(*_: Any) -> Any:
        raise AssertionError("a file was opened")

    with monkeypatch.context() as patched:
        patched.setattr(PARQUET_READER, "open", unreadable)
        loader, dataset = StructuredDataset.create_dataloader(
            str(tmp_path), "parquet", pack=pack, batch_size=2, num_workers=0
        )
        steps = len(loader)
    assert dataset.explain().live_rows == len(places_of(documents_of(GROUPS, pack)))
    assert len(list(loader)) == steps


def test_a_footer_that_counts_wrong_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(tmp_path, GROUPS)
    counts = PARQUET_READER.list_values

    def one_more(reader: Any, meta: FileMeta, column: str) -> Any:
        found = counts(reader, meta, column)
        assert found is not None
        return [values + 1 for values in found[0]], found[1]

    monkeypatch.setattr(PARQUET_READER, "list_values", one_more)
    with pytest.raises(TableError, match="as was counted"):
        list(make(tmp_path, full_pack(seq_len=8), columns=None))


def test_positions_are_right_however_many_integers_are_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2, 3], [4, 5], [6, 7, 8, 9]]}), tmp_path / "a.parquet")
    for kept in (0, 4, 1 << 21):
        loader = StructuredDataset.create_dataloader(
            str(tmp_path), batch_size=3, num_workers=0, pack=full_pack(seq_len=3)
        )[0]
        with small_sizes(kept_integers=kept):
            (batch,) = loader
        assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 1, 0], [0, 1, 2]]
