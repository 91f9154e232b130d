"""Tensor shards: how a damaged one is refused, what is left out of it, and that forms parsed once are right."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.effort import examples
from tests.tables.reading import LocalStorage, data_file
from tests.tables.tensor_shards import WIDTHS, Tensor, sample, tensor, write_shard
from torch_table_loader import ConfigError, ResumeError, StructuredDataset, TableError
from torch_table_loader.errors import MissingExtraError, MissingFileError
from torch_table_loader.format_contracts import (
    NullProvingReader,
    RangedReader,
    SalvagingReader,
    SettlingReader,
    SidecarReader,
)
from torch_table_loader.formats.tensorproto import TensorProtoReader
from torch_table_loader.formats.tensorproto.protos import FeatureParser
from torch_table_loader.testing import check_format_reader, stored_files


def good(number: int) -> list[Tensor]:
    return [tensor("x", np.full(2, number, np.float32)), tensor("id", np.int64(number))]


def shard(path: Path, samples: Sequence[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(samples))
    return path


def framed(*messages: bytes) -> bytes:
    features = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    return struct.pack("<I", len(features)) + features


def ids(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch["id"].tolist()]


def make(path: Path, form: Any = "tensorproto", **options: Any) -> Any:
    chosen: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "columns": ["id"]} | options
    return StructuredDataset.create_dataloader(str(path), form, **chosen)


def external() -> bytes:
    proto = TensorProto(name="x", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="../secret")
    return bytes(proto.SerializeToString())


X, ID = (each.message() for each in good(5))
TORN: dict[str, tuple[bytes, str]] = {
    "a feature fewer": (framed(X), "it has 1 features, and the first sample has 2"),
    "a feature more": (framed(X, ID, ID), "it has 3 features, and the first sample has 2"),
    "no feature": (framed(), "it has no features"),
    "another type": (framed(tensor("x", np.zeros(2, np.int8)).message(), ID), "feature 0 ('x') is INT8, and FLOAT"),
    "another name": (framed(tensor("y", np.zeros(2, np.float32)).message(), ID), "feature 0 is called 'y', and 'x'"),
    "too few values": (
        framed(Tensor("x", "FLOAT", (3,), b"12345678").message(), ID),
        "feature 0: it has 8 bytes of values, and FLOAT of the shape [3] has 12",
    ),
    "no protobuf": (framed(b"\xff\xff\xff", ID), "feature 0: it is not an onnx.TensorProto"),
    "values elsewhere": (framed(external(), ID), "feature 0: its values are in another file (external data)"),
    "a long feature": (struct.pack("<II", 9, 99) + b"12345", "feature 0 says 99 bytes, and 5 remain"),
    "a cut length": (struct.pack("<I", 2) + b"12", "feature 0: its length is cut off"),
    "a negative shape": (
        framed(TensorProto(name="x", data_type=1, dims=[-2]).SerializeToString(), ID),
        "feature 0: its shape is [-2]",
    ),
    "typed values that do not fit": (
        framed(TensorProto(name="x", data_type=1, dims=[2], float_data=[1.0]).SerializeToString(), ID),
        "feature 0: it has 4 bytes of values, and FLOAT of the shape [2] has 8",
    ),
    "typed values that are too few": (
        framed(TensorProto(name="x", data_type=9, dims=[2], int32_data=[1]).SerializeToString(), ID),
        "feature 0: it has 1 bytes of values, and BOOL of the shape [2] has 2",
    ),
}


@pytest.mark.parametrize("how", TORN)
def test_a_damaged_sample_is_named_or_left_out(tmp_path: Path, how: str) -> None:
    torn, says = TORN[how]
    shard(tmp_path / "a.pb", [*(sample(good(number)) for number in range(3)), torn, sample(good(4))])
    shard(tmp_path / "b.pb", [sample(good(number)) for number in (5, 6)])
    with pytest.raises(TableError) as caught:
        make(tmp_path)
    assert "a.pb, sample 3 " in str(caught.value)
    assert says in str(caught.value)
    with pytest.warns(UserWarning, match="leaves out 1 damaged part .*sample 3 of a.pb"):
        loader, dataset = make(tmp_path, on_error="skip")
    assert len(loader) == 2
    assert ids(loader) == [0, 1, 2, 4, 5, 6]
    (part,) = dataset.left_out
    assert (part.file, part.stop - part.start) == ("a.pb", len(torn))
    assert "sample 3 of a.pb" in str(dataset.explain())


@pytest.mark.parametrize("cut", [1, 4, 9, 30])
def test_a_file_that_ends_inside_a_sample_is_named_or_left_out_from_there(tmp_path: Path, cut: int) -> None:
    whole = [sample(good(number)) for number in range(3)]
    shard(tmp_path / "a.pb", [*whole, sample(good(3))[:-cut]])
    with pytest.raises(TableError, match=r"a.pb, sample 3 .* it says \d+ bytes"):
        make(tmp_path)
    with pytest.warns(UserWarning, match="sample 3 and what follows it of a.pb"):
        loader, _ = make(tmp_path, on_error="skip")
    assert ids(loader) == [0, 1, 2]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_cut_of_a_shard_is_an_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = b"".join(sample(good(number)) for number in range(4))
    size = len(whole) // 4
    length = data.draw(st.integers(1, len(whole) - 1).filter(lambda each: each % size))
    path = shard(tmp_path_factory.mktemp("cut") / "a.pb", [whole[:length]])
    with pytest.raises(TableError, match=f"a.pb, sample {length // size} "):
        TensorProtoReader().inspect(LocalStorage(), data_file(path, "tensorproto"), None)


def test_left_out_parts_are_recorded_in_the_state(tmp_path: Path) -> None:
    torn = TORN["no protobuf"][0]
    samples = [sample(good(number)) for number in range(8)]
    shard(tmp_path / "one/a.pb", [*samples[:2], torn, *samples[2:]])
    shard(tmp_path / "two/a.pb", [*samples[:4], torn, *samples[4:]])
    loaders = []
    for folder in ("one", "one", "two"):
        with pytest.warns(UserWarning, match="leaves out"):
            loaders.append(make(tmp_path / folder, on_error="skip")[0])
    first, same, other = loaders
    batches = iter(first)
    begun = next(batches)["id"].tolist()
    state = first.state_dict()
    same.load_state_dict(state)
    assert begun + ids(same) == list(range(8))
    with pytest.raises(ResumeError, match="left out 1 damaged parts, but here it leaves out 1, or others"):
        other.load_state_dict(state)
    shard(tmp_path / "one/a.pb", samples)
    sound, _ = make(tmp_path / "one", on_error="skip")
    with pytest.raises(ResumeError, match="left out 1 damaged parts, but here it leaves out 0"):
        sound.load_state_dict(state)


@pytest.mark.parametrize("mode", [{}, {"shuffle": "splits"}, {"shuffle": "rows", "row_store": "memory"}], ids=str)
def test_a_parquet_file_without_its_footer_is_left_out_whole(tmp_path: Path, mode: dict[str, Any]) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 5)}), tmp_path / f"{number}.parquet")
    torn = tmp_path / "1.parquet"
    torn.write_bytes(torn.read_bytes()[:-9])
    with pytest.raises(TableError, match=r"1\.parquet"):
        make(tmp_path, "parquet", **mode)
    with pytest.warns(UserWarning, match=r"all of 1\.parquet"):
        loader, dataset = make(tmp_path, "parquet", on_error="skip", **mode)
    assert len(loader) == 3
    assert sorted(ids(loader)) == [*range(5), *range(20, 25)]
    assert [part.file for part in dataset.left_out] == ["1.parquet"]
    (tmp_path / "0.parquet").write_bytes(b"torn")
    (tmp_path / "2.parquet").write_bytes(b"torn")
    with pytest.raises(TableError, match="every file of the table is damaged"):
        make(tmp_path, "parquet", on_error="skip", **mode)


def test_a_plan_cache_does_not_hide_damage(tmp_path: Path) -> None:
    import pyarrow.compute as pc

    shard(tmp_path / "t/a.pb", [sample(good(0)), TORN["no protobuf"][0], sample(good(1))])
    options = {"plan_cache": str(tmp_path / "plans"), "filters": pc.field("id") >= 0}
    for _ in range(2):
        with pytest.warns(UserWarning, match="leaves out"):
            assert ids(make(tmp_path / "t", on_error="skip", **options)[0]) == [0, 1]
        with pytest.raises(TableError, match="sample 1"):
            make(tmp_path / "t", **options)


def test_a_missing_or_changed_file_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard(tmp_path / "a.pb", [sample(good(0))])
    inspect = TensorProtoReader.inspect

    def meanwhile(change: Callable[[], Any]) -> None:
        def changed(self: Any, *args: Any) -> Any:
            change()
            return inspect(self, *args)

        monkeypatch.setattr(TensorProtoReader, "inspect", changed)

    meanwhile(path.unlink)
    with pytest.raises(MissingFileError):
        make(tmp_path, on_error="skip")
    shard(path, [sample(good(0))])
    meanwhile(lambda: shard(path, [sample(good(0)), b"abc"]))
    with pytest.raises(TableError, match="chang"):
        make(tmp_path, on_error="skip")


RANGES = {
    "UINT8": (0, 255),
    "INT8": (-128, 127),
    "UINT16": (0, 65_535),
    "INT16": (-32_768, 32_767),
    "BOOL": (0, 1),
    "FLOAT16": (0, 65_535),
    "BFLOAT16": (0, 65_535),
    "FLOAT8E4M3FN": (0, 255),
    "FLOAT8E5M2FNUZ": (0, 255),
    **({"FLOAT8E8M0": (0, 255)} if hasattr(torch, "float8_e8m0fnu") else {}),
    "UINT32": (0, 2**32 - 1),
}
"""The numbers that typed fields may hold: floats are there as their bits."""


@pytest.mark.parametrize("kind", RANGES)
def test_typed_values_out_of_range_are_refused_by_file_and_sample(tmp_path: Path, kind: str) -> None:
    def typed(*values: int) -> bytes:
        number = TensorProto.DataType.Value(kind)
        proto = TensorProto(name="id", data_type=number, dims=[len(values)])
        (proto.uint64_data if kind == "UINT32" else proto.int32_data).extend(values)
        return framed(proto.SerializeToString())

    least, most = RANGES[kind]
    shard(tmp_path / "a.pb", [typed(least, most), typed(most, least)])
    form = WIDTHS[kind]
    [batch] = make(tmp_path / "a.pb")[0]
    expected = {0: 0, **dict.fromkeys((255, 65_535, 2**32 - 1), -1)}
    if kind in ("UINT8", "UINT16", "UINT32", "INT8", "INT16"):
        assert batch["id"].tolist() == [[least, most], [most, least]]
    else:
        bits = batch["id"].contiguous().view(getattr(torch, f"int{8 * form[1]}"))
        assert bits.tolist() == [[expected.get(each, each) for each in row] for row in ([least, most], [most, least])]
    for wrong in (most + 1, *([] if kind == "UINT32" else [least - 1])):
        shard(tmp_path / "b.pb", [typed(least, most), typed(least, wrong)])
        named = (
            rf"b\.pb, sample 1 .* feature 0: \w+_data has the value {wrong}, and those of {kind} are {least} to {most};"
        )
        with pytest.raises(TableError, match=named):
            list(make(tmp_path / "b.pb")[0])


def test_types_that_torch_lacks_are_refused_or_left_out(tmp_path: Path) -> None:
    text = TensorProto(name="text", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]).SerializeToString()
    shard(tmp_path / "a.pb", [framed(text, ID)])
    with pytest.raises(TableError, match=r"a.pb, sample 0: feature 0 \('text'\) is STRING, which torch does not have"):
        make(tmp_path)
    assert ids(make(tmp_path, TensorProtoReader(names={"text": None}))[0]) == [5]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"z": "a"}, r"names has 'z', but the features of a.pb are, from 0, \['x', 'id'\]"),
        ({2: "a"}, "names has 2"),
        ({"x": "id"}, "two features for the column 'id'"),
        ({0: "a", 1: "a"}, "names calls two features 'a'"),
        ({True: "a"}, "names must be"),
        (["a"], "names must be"),
        ({0: ""}, "names must be"),
    ],
)
def test_wrong_names_are_refused(tmp_path: Path, names: Any, says: str) -> None:
    write_shard(tmp_path / "a.pb", [good(0)])
    with pytest.raises(ConfigError, match=says):
        make(tmp_path, TensorProtoReader(names=names))


def test_on_error_is_checked() -> None:
    with pytest.raises(ConfigError, match="on_error must be one of 'raise', 'skip', got 'ignore'"):
        make(Path("nowhere"), on_error="ignore")


def test_the_reader_keeps_the_contract(tmp_path: Path) -> None:
    for name, numbers in (("a", range(70)), ("b", range(70, 73))):
        samples = [
            [*good(k), tensor("r", np.zeros((k % 3, 2), np.uint8)), tensor("t", np.bool_(k % 2))] for k in numbers
        ]
        write_shard(tmp_path / f"{name}.pb", samples)
    reader = TensorProtoReader(group_bytes=512)
    for contract in (NullProvingReader, RangedReader, SalvagingReader, SettlingReader, SidecarReader):
        assert isinstance(reader, contract)
    check_format_reader(reader, *stored_files(tmp_path, "tensorproto"))
    meta = reader.inspect(LocalStorage(), data_file(tmp_path / "a.pb", "tensorproto"), None)
    assert len(meta.group_rows) > 5
    assert meta.group_ranges is not None
    assert meta.group_ranges[0][0] == 0
    assert meta.group_ranges[-1][1] == (tmp_path / "a.pb").stat().st_size


def test_it_is_found_by_name_and_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_table_loader.contracts import load_installed

    assert load_installed("torch_table_loader.formats", "tensorproto", "format reader") is TensorProtoReader
    for module in [name for name in sys.modules if name.startswith("torch_table_loader.formats.tensorproto")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torch-table-loader\[onnx\]'"):
        load_installed("torch_table_loader.formats", "tensorproto", "format reader")


# What is parsed once.

fields = st.lists(
    st.one_of(
        st.tuples(st.just("dims"), st.integers(0, 3)),
        st.tuples(st.just("name"), st.text(max_size=2)),
        st.tuples(st.just("raw_data"), st.binary(max_size=12)),
        st.tuples(st.just("data_type"), st.sampled_from([1, 2, 6, 9])),
        st.tuples(st.just("doc_string"), st.text(max_size=2)),
    ),
    min_size=1,
    max_size=6,
)


def concatenated(parts: Sequence[tuple[str, Any]]) -> bytes:
    """Write fields in any order, also more than once: what protobuf allows."""
    message = b""
    for name, value in parts:
        proto = TensorProto()
        if name == "dims":
            proto.dims.append(value)
        else:
            setattr(proto, name, value)
        message += proto.SerializeToString()
    return message


@settings(max_examples=examples(400), deadline=None)
@given(messages=st.lists(fields.map(concatenated), min_size=1, max_size=4), noise=st.data())
def test_a_known_form_gives_the_same_as_parsing(messages: list[bytes], noise: st.DataObject) -> None:
    """Messages like one that was parsed, with other bytes at their ends."""
    known = FeatureParser()
    for message in messages:
        tail = noise.draw(st.binary(max_size=6))
        variants = [message, message[: len(message) - len(tail)] + tail]
        for each in variants:
            assert outcome(known, each) == outcome(FeatureParser(), each)


def test_values_that_stand_in_a_message_twice_are_those_of_the_tensor(tmp_path: Path) -> None:
    """A text may follow the values, and be the same bytes: the text of the next sample is not its values."""

    def message(text: str) -> bytes:
        proto = TensorProto(name="x", data_type=TensorProto.UINT8, dims=[4], raw_data=b"abcd", doc_string=text)
        return bytes(proto.SerializeToString())

    shard(tmp_path / "a.pb", [framed(message(text)) for text in ("abcd", "efgh", "abcd")])
    loader, _ = make(tmp_path / "a.pb", columns=["x"])
    assert [batch["x"].tolist() for batch in loader] == [[list(b"abcd")] * 3]


def outcome(parser: FeatureParser, message: bytes) -> Any:
    try:
        feature = parser.parse(0, message)
    except ValueError:
        return "refused"
    values = message[feature.start :] if feature.values is None else feature.values
    return feature.name, feature.code, feature.dims, values
