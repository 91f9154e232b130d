"""Flat arrays of tokens without an index, held against numpy, and against Megatron's files of the same documents."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import daily, examples
from tests.tables.plain import meant_warnings
from tests.tables.token_files import write_megatron
from torch_table_loader import (
    ConfigError,
    FlatTokens,
    Pack,
    ResumeError,
    RowStore,
    StructuredDataset,
    TableError,
    TableLoader,
)
from torch_table_loader.cli.main import main
from torch_table_loader.testing import check_format_reader, small_sizes, stored_files
from torch_table_loader.text import flat_tokens

END = 3
DTYPES = ("uint8", "int16", "uint16", "int32", "uint32", "int64")
ROWS: dict[str, Any] = {"output_format": "dict", "num_workers": 1}
SIZES = (700, 1, 0, 90, 400)
ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"shuffle": "splits", "split_size": 20},
    {"shuffle": "rows"},
    {"shuffle": "rows", "row_store": RowStore(memory=64)},
]


def write_saved(path: Path, tokens: Any) -> None:
    with path.open("wb") as file:
        np.save(file, tokens)


def write_raw(path: Path, tokens: Any) -> None:
    tokens.tofile(path)


def write_mapped(path: Path, tokens: Any) -> None:
    if len(tokens):
        mapped = np.memmap(path, tokens.dtype, "w+", shape=tokens.shape)
        mapped[:] = tokens
        mapped.flush()


WRITERS: dict[str, list[Callable[[Path, Any], None]]] = {
    "saved": [write_saved],
    "raw": [write_raw],
    "mapped": [write_mapped],
    "both": [write_saved, write_raw, write_saved],
}


def write(folder: Path, form: str = "both", dtype: str = "uint16") -> list[Any]:
    """Write flat files, and return what each holds."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    found = [rng.integers(0, 30, size).astype(dtype) for size in SIZES]
    found[0][-1] = END  # others end inside of a document
    for number, tokens in enumerate(found):
        WRITERS[form][number % len(WRITERS[form])](folder / f"{number}.npy", tokens)
    return found


def cut(tokens: Any, *, eos_id: int | None = None, document_tokens: int | None = None) -> list[list[int]]:
    """Cut an array into documents."""
    if document_tokens is not None:
        edges = np.arange(document_tokens, len(tokens), document_tokens)
    else:
        edges = np.flatnonzero(tokens == eos_id) + 1
    return [part.tolist() for part in np.split(tokens, edges) if len(part)]


def make(path: Path, form: Any, **options: Any) -> tuple[TableLoader, StructuredDataset]:
    asked: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "check_plan": False, **options}
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(path), form, **asked)


def ids_of(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.mark.parametrize("cuts", [{"eos_id": END}, {"document_tokens": 13}, {"document_tokens": 1}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", WRITERS)
@daily(6)
def test_rows_are_the_documents_that_numpy_cuts(tmp_path: Path, form: str, dtype: str, cuts: dict[str, Any]) -> None:
    arrays = write(tmp_path / "t", form, dtype)
    wanted = [document for tokens in arrays for document in cut(tokens, **cuts)]
    with small_sizes(far_request_bytes=64):
        loader, dataset = make(tmp_path / "t", FlatTokens(dtype, **cuts), **ROWS)
    assert [row for batch in loader for row in batch["tokens"]] == wanted
    assert dataset.schema.field("tokens").type.value_type == pa.from_numpy_dtype(dtype)


@settings(max_examples=examples(50), deadline=None)
@given(
    tokens=st.lists(st.integers(0, 5), max_size=60),
    cuts=st.sampled_from([{"eos_id": END}, {"document_tokens": 4}]),
    saved=st.booleans(),
    group_bytes=st.integers(1, 50),
    block=st.sampled_from([8, 16, 1 << 20]),
)
def test_the_contract_holds_at_every_edge(
    tmp_path_factory: pytest.TempPathFactory, tokens: Any, cuts: Any, saved: bool, group_bytes: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "x.bin"
    array = np.array([*tokens, 1], np.int32)
    (write_saved if saved else write_raw)(path, array)
    reader = FlatTokens(np.int32, **cuts, group_bytes=group_bytes)
    with small_sizes(far_request_bytes=block):
        storage, (file,) = stored_files(path, reader)
        meta = reader.inspect(storage, file, None)
        check_format_reader(reader, storage, [file])
    groups = reader.open(storage, file, meta).batches(range(len(meta.group_rows)), ["tokens"], 9)
    assert [row for batch in groups for row in batch["tokens"].to_pylist()] == cut(array, **cuts)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("where", ["near", "far"])
@pytest.mark.parametrize("strategy", ["concat", "windows", "pad", "best_fit"])
@pytest.mark.parametrize("put_in", [{}, {"sep_id": 31}, {"bos_id": 1, "eos_id": END, "min_length": 3}], ids=str)
@daily(8)
def test_sequences_are_those_of_megatrons_files(
    tmp_path: Path, far: Callable[[], Any], put_in: dict[str, Any], strategy: Any, where: str, order: dict[str, Any]
) -> None:
    if strategy == "windows" and order["shuffle"] != "rows":
        return
    arrays = write(tmp_path / "t")
    (tmp_path / "m").mkdir()
    for number, tokens in enumerate(arrays):
        if len(tokens):
            write_megatron(tmp_path / "m" / f"{number}.bin", cut(tokens, eos_id=END))
    world: dict[str, Any] = {"num_ranks": 2, "rank": 1, "even_ranks": "pad", "row_id": True}
    pack, flat = Pack(seq_len=9, strategy=strategy, **put_in), FlatTokens("uint16", eos_id=END)
    wanted = ids_of(make(tmp_path / "m", "megatron", pack=pack, **order, **world)[0])
    with far() if where == "far" else nullcontext():
        loader, dataset = make(tmp_path / "t", flat, pack=pack, **order, **world)
        with loader:
            assert ids_of(loader) == wanted
    if order["shuffle"] == "rows" and (where == "near" or "row_store" in order):
        assert "from the table's own files" in dataset.explain().notes[0]


@pytest.mark.parametrize("order", ORDERS[1:3], ids=str)
def test_a_state_goes_on_with_the_same_settings_alone(tmp_path: Path, order: dict[str, Any]) -> None:
    write(tmp_path / "t")
    pack = Pack(seq_len=9)

    def fresh(form: Any) -> TableLoader:
        return make(tmp_path / "t", form, pack=pack, **order)[0]

    whole = ids_of(fresh(FlatTokens("uint16", eos_id=END)))
    loader = fresh(FlatTokens("uint16", eos_id=END))
    taken, state = ids_of(islice(loader, 5)), loader.state_dict()
    again = fresh(f"flat:dtype=uint16,eos_id={END}")
    again.load_state_dict(state)
    assert taken + ids_of(again) == whole
    for other in (FlatTokens("uint16", eos_id=END + 1), FlatTokens("uint16", document_tokens=40)):
        with pytest.raises(ResumeError, match="another table, or of other settings of format="):
            fresh(other).load_state_dict(state)


def test_ends_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = write(tmp_path / "t")
    looked: list[Any] = []
    find = flat_tokens._found

    def looking(*given: Any) -> Any:
        looked.append(given)
        return find(*given)

    monkeypatch.setattr(flat_tokens, "_found", looking)
    for count in (4, 4, 8):
        eos_id = END if count == 4 else END + 1
        form = FlatTokens("uint16", eos_id=eos_id)
        loader, dataset = make(tmp_path / "t", form, plan_cache=str(tmp_path / "plans"), **ROWS)
        assert len(looked) == count
        wanted = [document for tokens in arrays for document in cut(tokens, eos_id=eos_id)]
        assert [row for batch in loader for row in batch["tokens"]] == wanted
        assert dataset.table.layout.num_rows == len(wanted)


def test_a_long_file_is_looked_through_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    with small_sizes(far_request_bytes=1 << 17):
        storage, (listed,) = stored_files(path, reader := FlatTokens("uint16", eos_id=END))
        tracemalloc.start()
        meta = reader.inspect(storage, listed, None)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert meta.num_rows == 1
    assert most < 4 << 20


def test_a_folder_may_hold_other_files(tmp_path: Path) -> None:
    arrays = write(tmp_path / "t")
    (tmp_path / "t" / "notes.csv.gz").write_bytes(b"odd")
    loader, _ = make(tmp_path / "t", FlatTokens("uint16", eos_id=END, suffix=".npy"), **ROWS)
    wanted = [document for tokens in arrays for document in cut(tokens, eos_id=END)]
    assert [row for batch in loader for row in batch["tokens"]] == wanted


def test_the_command_line_takes_it_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = write(tmp_path / "t")
    assert main(["inspect", str(tmp_path / "t"), "--format", f"flat:dtype=uint16,eos_id={END}"]) == 0
    assert f"{sum(len(cut(tokens, eos_id=END)) for tokens in arrays)} rows" in capsys.readouterr().out


WRONG: list[tuple[Any, str]] = [
    (lambda: FlatTokens("float32"), "dtype=.*little-endian integers such as 'uint16', got 'float32'"),
    (lambda: FlatTokens(">u2"), "dtype=.*little-endian"),
    (lambda: FlatTokens("tokens"), "dtype=.*got 'tokens'"),
    (lambda: FlatTokens("uint16", eos_id=1 << 16), "eos_id=.*must be a uint16.*got 65536"),
    (lambda: FlatTokens("uint16", eos_id="2"), "eos_id=.*must be an int, got str '2'"),  # type: ignore[arg-type]
    (lambda: FlatTokens("uint16", document_tokens=0), "document_tokens=.*at least 1, got 0"),
    (lambda: FlatTokens("uint16", eos_id=1, document_tokens=2), "not both"),
    (lambda: FlatTokens("uint16", suffix=None), "suffix=.*must be a string"),  # type: ignore[arg-type]
    (lambda: FlatTokens.parse("flat:eos=2"), "settings such as dtype=uint16,eos_id=2 .*got 'flat:eos=2'"),
    (lambda: FlatTokens.parse("flat:eos_id=2,eos_id=3"), "each once"),
    (lambda: make(Path(), "flat:dtype=text"), "got 'text'"),
]


@pytest.mark.parametrize(("call", "said"), WRONG)
def test_wrong_settings_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()


def saved(tokens: Any) -> Callable[[Path], None]:
    return lambda path: write_saved(path, tokens)


DAMAGED: list[tuple[Callable[[Path], Any], FlatTokens, str]] = [
    (lambda path: path.write_bytes(b"abc"), FlatTokens("uint16"), "3 bytes.*not a multiple of the 2"),
    (lambda path: path.write_bytes(b"abcd"), FlatTokens(), r"no header.*FlatTokens\('uint16'\)"),
    (saved(np.ones(4, np.int32)), FlatTokens("uint16"), "says int32, and FlatTokens.* uint16"),
    (saved(np.ones((2, 2), np.int32)), FlatTokens(), r"'shape': \(2, 2\).*one dimension"),
    (saved(np.ones(2, np.float32)), FlatTokens(), "'<f4'.*little-endian integers"),
    (saved(np.ones(2, ">i4")), FlatTokens(), "'>i4'.*little-endian integers"),
    (saved(np.ones(2, np.uint8)), FlatTokens(eos_id=400), "uint8, which cannot hold eos_id=400"),
    (lambda path: path.write_bytes(b"\x93NUMPY\1\0\2\0{}"), FlatTokens("uint16"), r"header says '\{\}'"),
    (lambda path: path.write_bytes(b"\x93NUMPY"), FlatTokens("uint16"), "header says ''"),
]


@pytest.mark.parametrize(("damage", "form", "said"), DAMAGED)
def test_files_that_cannot_be_such_are_errors_that_name_them(
    tmp_path: Path, damage: Callable[[Path], Any], form: FlatTokens, said: str
) -> None:
    damage(tmp_path / "x.npy")
    with pytest.raises(TableError, match=rf"x\.npy.*{said}"):
        make(tmp_path, form)


def test_a_saved_file_that_was_cut_is_an_error(tmp_path: Path) -> None:
    write_saved(tmp_path / "x.npy", np.ones(9, np.uint16))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-2])
    with pytest.raises(TableError, match=r"x\.npy.*its header says 9 tokens of uint16, and it has \d+ bytes"):
        make(tmp_path, FlatTokens())
