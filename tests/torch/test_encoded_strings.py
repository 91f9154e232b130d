"""Strings that become integers: where a file has them in a dictionary, each is looked up once, with the same result."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conversions import value_of
from tests.effort import daily, examples
from tests.tables.iceberg import COLUMNS, IcebergWriter
from tests.tables.reading import open_parquet
from torch_table_loader import Hash, IcebergDataset, MixedDataset, StructuredDataset, TableError, Vocabulary
from torch_table_loader.batching import decoders
from torch_table_loader.batching.decoders import HashCoder, VocabularyCoder
from torch_table_loader.batching.outputs import cut_values

WORDS = [f"word {number}" for number in range(40)]
FORMS: list[dict[str, Any]] = [
    {"strings": {"a": Vocabulary(WORDS[:25]), "b": Vocabulary(WORDS)}},
    {"strings": {"a": Vocabulary(WORDS[:25]), "b": Vocabulary(WORDS)}, "nulls": {"a": "word 3", "b": "nothing"}},
    {"strings": Hash(buckets=17)},
    {"strings": Hash(buckets=17), "nulls": {"a": "word 3", "b": "nothing"}},
]


def codes(values: pa.ChunkedArray, column: str, form: dict[str, Any]) -> list[int]:
    """Give the codes of whole columns: of a vocabulary as Python says, of a hash as of one array of plain strings."""
    plain = values.combine_chunks().cast(pa.large_string())
    fill = form.get("nulls", {}).get(column)
    plain = plain if fill is None else plain.fill_null(fill)
    if isinstance(form["strings"], Hash):
        found: list[int] = value_of(plain, strings=form["strings"]).tolist()
        return found
    places = {word: place for place, word in enumerate(form["strings"][column].values)}
    return [places.get(word, -1) for word in plain.to_pylist()]


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Collect of each array of strings whether it came in a dictionary."""
    found: list[bool] = []
    into = decoders.CodesDecoder.into

    def noted(self: Any, array: pa.Array, *args: Any) -> None:
        found.append(isinstance(array, pa.DictionaryArray))
        into(self, array, *args)

    monkeypatch.setattr(decoders.CodesDecoder, "into", noted)
    return found


columns = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 300),
        "distinct": st.integers(1, 40),
        "nulls": st.sampled_from([0.0, 0.2, 1.0]),
        "group_rows": st.integers(1, 300),
        "use_dictionary": st.sampled_from([True, False, ["a"], ["b"]]),
        "seed": st.integers(0, 99),
    }
)


def table(rows: int, distinct: int, nulls: float, seed: int, start: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    words = pa.array(WORDS[:distinct])
    taken = [words.take(pa.array(rng.integers(0, distinct, rows), mask=rng.random(rows) < nulls)) for _ in range(2)]
    return pa.table({"a": taken[0], "x": np.arange(start, start + rows), "b": taken[1]})


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    made=st.lists(columns, min_size=1, max_size=3),
    form=st.sampled_from(FORMS),
    options=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 90),
            "num_workers": st.integers(0, 2),
            "row_id": st.booleans(),
            "filters": st.sampled_from([None, "x >= 20", "a != 'word 1'", "x < 9 or b == 'word 2'"]),
            "columns": st.sampled_from([None, ["b", "x", "a"], ["x", "a"]]),
        }
    ),
)
def test_codes_are_those_of_the_plain_strings(
    tmp_path_factory: pytest.TempPathFactory, made: list[dict[str, Any]], form: dict[str, Any], options: dict[str, Any]
) -> None:
    root, parts = tmp_path_factory.mktemp("table"), []
    for number, entry in enumerate(made):
        how = dict(entry)
        group_rows, use = how.pop("group_rows"), how.pop("use_dictionary")
        parts.append(table(start=1000 * number, **how))
        pq.write_table(parts[-1], root / f"{number}.parquet", row_group_size=group_rows, use_dictionary=use)
    whole = pa.concat_tables(parts)
    masks = {
        "x >= 20": pc.field("x") >= 20,
        "a != 'word 1'": pc.field("a") != "word 1",
        "x < 9 or b == 'word 2'": (pc.field("x") < 9) | (pc.field("b") == "word 2"),
    }
    if options["filters"]:
        whole = whole.filter(masks[options["filters"]])
    names = options["columns"] or whole.column_names
    form = {
        key: {name: value for name, value in given.items() if name in names} if isinstance(given, dict) else given
        for key, given in form.items()
    }
    loader, _ = StructuredDataset.create_dataloader(
        str(root), "parquet", check_plan=False, shuffle=False, **form, **options
    )
    found = sorted(row for batch in loader for row in zip(*(batch[name].tolist() for name in names), strict=True))
    expected = [whole[name].to_pylist() if name == "x" else codes(whole[name], name, form) for name in names]
    assert found == sorted(zip(*expected, strict=True))


def test_only_what_a_file_has_in_a_dictionary_is_looked_up_by_it(tmp_path: Path, looked_up: list[bool]) -> None:
    many = pa.table({"a": [f"https://example.com/{number:08}" for number in range(70_000)]})
    few = pa.table({"a": WORDS * 1750})
    form: dict[str, Any] = {"strings": {"a": Vocabulary(WORDS)}}
    expected = []
    for name, part, use in (("few", few, True), ("plain", few, False), ("many", many, True)):
        pq.write_table(part, tmp_path / f"{name}.parquet", use_dictionary=use)
        loader, _ = StructuredDataset.create_dataloader(str(tmp_path / f"{name}.parquet"), batch_size=1000, **form)
        assert [code for batch in loader for code in batch["a"].tolist()] == codes(part["a"], "a", form)
        expected.append(set(looked_up))
        looked_up.clear()
    assert expected == [{True}, {False}, {False}]


def test_columns_that_the_caller_gives_in_dictionaries_are_looked_up_so(looked_up: list[bool]) -> None:
    plain = table(200, 10, 0.2, 1)
    encoded = plain.set_column(0, "a", plain["a"].dictionary_encode())
    dataset = StructuredDataset.from_arrow(encoded, batch_size=30, num_workers=0, **FORMS[1])
    found = [code for batch in dataset for code in batch["a"].tolist()]
    assert found == codes(plain["a"], "a", FORMS[1])
    assert set(looked_up) == {True, False}


def test_a_dictionary_is_looked_up_once_for_all_arrays_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look_up = VocabularyCoder.codes

    def noted(self: VocabularyCoder, array: pa.Array) -> Any:
        looked.append(len(array))
        return look_up(self, array)

    monkeypatch.setattr(VocabularyCoder, "codes", noted)
    vocabulary = pa.array(WORDS, pa.large_string())
    decoder = decoders.CodesDecoder("a", pa.large_string(), cut_values, VocabularyCoder(vocabulary))
    first, second = pa.array(WORDS[:9]), pa.array(WORDS[9:18])
    for number, words in enumerate([first, first, second, first.slice(1), first.slice(0, 8)]):
        indices = pa.array([number, None, 0, 3, 3, 2, 7, 7, 7, 7])
        sink: list[Any] = []
        decoder.into(pa.DictionaryArray.from_arrays(indices, words), sink, set())
        expected = [-1 if index is None else WORDS.index(words[index].as_py()) for index in indices.to_pylist()]
        assert sink[0].tolist() == expected
        assert sink[0].flags.writeable
    assert looked == [10, 10, 9, 9]
    again = pickle.loads(pickle.dumps(decoder))  # noqa: S301 it is ours
    assert again == decoder
    again.into(pa.DictionaryArray.from_arrays(pa.array([1] * 9), first.slice(0, 8)), sink := [], set())
    assert sink[0].tolist() == [1] * 9
    assert looked[4:] == [9], "what was looked up stays in its process"


def test_an_index_beyond_its_dictionary_is_refused() -> None:
    decoder = decoders.CodesDecoder("a", pa.large_string(), cut_values, HashCoder(7))
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 1, 5]), pa.array(["x", "y"]), safe=False)
    with pytest.raises(pa.ArrowIndexError):
        decoder.into(wrong, [], set())


def test_row_groups_of_dictionaries_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = pa.table({f"w{number}": WORDS * 2000 for number in range(8)})
    pq.write_table(part, tmp_path / "a.parquet")
    sizes: list[int] = []
    batches = open_parquet().batches

    def noted(self: Any, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches(self, *args):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(open_parquet(), "batches", noted)
    form: dict[str, Any] = {"strings": Vocabulary(WORDS)}
    loader, dataset = StructuredDataset.create_dataloader(str(tmp_path), batch_size=1000, **form)
    assert sum(len(batch["w0"]) for batch in loader) == len(part)
    assert sizes == [len(part)]
    assert dataset.job.row_bytes == 8 * 8


@pytest.mark.parametrize("deletes", ["none", "positions", "keys", "other keys"])
@pytest.mark.parametrize("form", FORMS)
@daily(6)
def test_codes_of_an_iceberg_table_whose_column_was_renamed(
    tmp_path: Path, deletes: str, form: dict[str, Any], looked_up: list[bool]
) -> None:
    form = {key: {"word": given["a"]} if isinstance(given, dict) else given for key, given in form.items()}
    writer = IcebergWriter(tmp_path)
    rows = [{"x": x, "k": x % 5, "s": WORDS[x % 30] if x % 7 else None} for x in range(400)]
    path = writer.append(rows[:250], group=100)
    writer.commit()
    x_column, k_column, s_column = COLUMNS
    writer.evolve([s_column | {"name": "word"}, x_column, k_column])
    writer.append([{"word": row["s"], "x": row["x"], "k": row["k"]} for row in rows[250:]])
    if deletes == "positions":
        writer.delete_rows({path: range(3, 90, 4)})
    elif deletes != "none":
        keys: Any = [{"word": WORDS[4]}] if deletes == "keys" else [{"k": 3}]
        writer.delete_keys([3 if deletes == "keys" else 2], keys)
    writer.commit()
    loader, _ = IcebergDataset.create_dataloader(
        metadata_location=writer.metadata, columns=["word", "x"], batch_size=64, check_plan=False, **form
    )
    found: dict[int, int] = {}
    for batch in loader:
        found |= dict(zip(batch["x"].tolist(), batch["word"].tolist(), strict=True))
    live = sorted((row["x"], row["word"]) for row in writer.live())
    expected = codes(pa.chunked_array([pa.array([word for _, word in live], pa.string())]), "word", form)
    assert sorted(found.items()) == list(zip([x for x, _ in live], expected, strict=True))
    assert True in looked_up
    assert deletes != "keys" or False in looked_up, "keys are compared as they are"


@pytest.mark.parametrize("shuffle", [True, False, "rows"])
def test_codes_of_a_mixture(tmp_path: Path, shuffle: Any) -> None:
    form, sources = FORMS[0], {}
    parts = {name: table(120, 9, 0.1, seed) for seed, name in enumerate(("one", "two"))}
    for name, part in parts.items():
        pq.write_table(part, tmp_path / f"{name}.parquet", row_group_size=50)
        sources[name] = StructuredDataset(str(tmp_path / f"{name}.parquet"), shuffle=shuffle, check_plan=False, **form)
    loader, dataset = MixedDataset.create_dataloader(sources, "rows", batch_size=16, check_plan=False)
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for batch in loader:
        names = [dataset.source_names[source] for source in batch["source"].tolist()]
        keys = zip(names, batch["x"].tolist(), strict=True)
        found |= dict(zip(keys, zip(batch["a"].tolist(), batch["b"].tolist(), strict=True), strict=True))
    for name, part in parts.items():
        both = zip(codes(part["a"], "a", form), codes(part["b"], "b", form), strict=True)
        assert [found[name, x] for x in range(120)] == list(both)


def test_a_damaged_index_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": WORDS * 20}), tmp_path / "part.parquet")
    read = pq.ParquetFile.iter_batches

    def damaged(*args: Any, **how: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(*args, **how):
            found = batch.column("a")
            indices = pc.add(found.indices, pa.scalar(30, pa.int32()))
            yield pa.record_batch({"a": pa.DictionaryArray.from_arrays(indices, found.dictionary, safe=False)})

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", damaged)
    form: dict[str, Any] = {"strings": {"a": Vocabulary(WORDS)}, "num_workers": 0}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "parquet", batch_size=800, **form)
    with pytest.raises(TableError, match=r"part\.parquet"):
        list(loader)


def test_a_column_of_dictionaries_stands_beside_one_of_strings_that_a_file_has_encoded(tmp_path: Path) -> None:
    words = [WORDS[number % 7] for number in range(400)]
    dictionaries = pa.table({"a": pa.array(words).dictionary_encode(), "b": words})
    pq.write_table(dictionaries, tmp_path / "x.parquet", row_group_size=100)
    options: dict[str, Any] = {"strings": Vocabulary(WORDS), "check_plan": False}
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=50, num_workers=0, **options)
    for name in ("a", "b"):
        assert [code for batch in loader for code in batch[name].tolist()] == [number % 7 for number in range(400)]
