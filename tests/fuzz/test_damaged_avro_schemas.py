"""The law of damaged files for the schema in an Avro file's header, which is a tree and not bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.effort import examples
from tests.fuzz.cases import read_damaged
from tests.fuzz.mutations import damaged_tree
from tests.fuzz.test_damaged_files import FILE, case, options_of
from tests.launchers.sandbox import Sandbox
from tests.tables.every_format import SAMPLES

KEY = b"avro.schema"


def zigzag(number: int) -> bytes:
    """A count of Avro, which is not negative."""
    value, out = number << 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def with_schema(data: bytes, old: bytes, new: bytes) -> bytes:
    """Put another schema into the header of a file."""
    before, after = KEY + zigzag(len(old)) + old, KEY + zigzag(len(new)) + new
    assert data.count(before) == 1
    return data.replace(before, after)


def faults(sandbox: Sandbox, path: Path, seeds: range) -> list[str]:
    sample = SAMPLES["avro"]()
    start = sample.data.index(b"{", sample.data.index(KEY))
    tree, stop = json.JSONDecoder().raw_decode(sample.data[start:].decode("utf-8", "replace"))
    old = sample.data[start : start + stop]
    damages = [damaged_tree(tree, seed) for seed in seeds]
    assert with_schema(sample.data, old, old) == sample.data
    outcomes = sandbox.run_all(
        read_damaged,
        [
            case(str(path), sample, with_schema(sample.data, old, json.dumps(damage).encode()), options_of(seed))
            for seed, (damage, _) in zip(seeds, damages, strict=True)
        ],
    )
    # Of another schema other rows may come.
    return [
        f"seed {seed} ({what}): {outcome}"
        for seed, (_, what), outcome in zip(seeds, damages, outcomes, strict=True)
        if not (
            outcome.kind == "value"
            or (outcome.kind == "ours" and (FILE in outcome.text or outcome.error == "ConfigError"))
        )
    ]


def test_a_damaged_schema_of_avro_is_an_error_that_names_the_file(sandbox: Sandbox, tmp_path: Path) -> None:
    assert faults(sandbox, tmp_path, range(20)) == []


@pytest.mark.slow
def test_many_damaged_schemas_of_avro(sandbox: Sandbox, tmp_path: Path) -> None:
    assert faults(sandbox, tmp_path, range(20, 20 + examples(30))) == []
