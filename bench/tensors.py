"""Tensor shards of ONNX against two bare threads that parse them with onnx; prints seconds as JSON.

The other side reads a file, walks over its lengths, parses each TensorProto with the onnx package and makes numpy
arrays of it. It cuts no batch and makes no tensor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, numpy_helper

from bench.ours import rows_of
from bench.pairing import ROUNDS, interleave
from torch_table_loader import StructuredDataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMS = ("fixed", "ragged", "typed")
"""Sequences of 128 tokens, masks and a label, as BERT is trained on; of 1 to 128 tokens; with `int64_data` in place of
`raw_data`."""

_FILES, _SAMPLES, _TOKENS = 4, 10_000, 128
_LENGTH = struct.Struct("<I")


def shards(form: str, root: Path) -> Path:
    """Return the folder of a form's shards; they are written first, where they are not there."""
    folder = root / f"tensors-{form}-v1"
    if folder.is_dir():
        return folder
    unfinished = root / f"{folder.name}.{os.getpid()}.tmp"
    unfinished.mkdir(parents=True)
    try:
        for number in range(_FILES):
            rng = np.random.default_rng([7, number])
            with (unfinished / f"{number:03}.pb").open("wb") as file:
                for _ in range(_SAMPLES):
                    length = int(rng.integers(1, _TOKENS + 1)) if form == "ragged" else _TOKENS
                    tokens = rng.integers(0, 30_000, length)
                    columns = {"input_ids": tokens, "mask": np.ones_like(tokens), "label": rng.integers(0, 2, 1)}
                    features = [_framed(_message(name, values, form)) for name, values in columns.items()]
                    file.write(_framed(b"".join(features)))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _framed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _message(name: str, values: NDArray[Any], form: str) -> bytes:
    if form == "typed":
        proto = TensorProto(name=name, data_type=TensorProto.INT64, dims=values.shape, int64_data=values.tolist())
    else:
        proto = numpy_helper.from_array(values, name)
    return bytes(proto.SerializeToString())


def ours(folder: Path) -> Callable[[], int]:
    """Open the shards once; each call of what comes back is one epoch and returns its rows."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder), "tensorproto", batch_size=1024, num_workers=2, ragged="offsets"
    )
    return lambda: sum(rows_of(batch) for batch in loader)


def bare(folder: Path) -> Callable[[], int]:
    """Parse the shards in two threads; each call of what comes back is one epoch and returns its rows."""
    files = sorted(folder.glob("*.pb"))

    def run() -> int:
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda file: sum(1 for _ in _parsed(file)), files))

    return run


def _parsed(file: Path) -> Iterator[list[NDArray[Any]]]:
    data, place = file.read_bytes(), 0
    while place < len(data):
        stop = place + _LENGTH.size + _LENGTH.unpack_from(data, place)[0]
        place += _LENGTH.size
        arrays = []
        while place < stop:
            begin = place + _LENGTH.size
            place = begin + _LENGTH.unpack_from(data, place)[0]
            arrays.append(numpy_helper.to_array(TensorProto.FromString(data[begin:place])))
        yield arrays


def main() -> None:
    """Read the command line, race both, print the samples of both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=FORMS, default="fixed")
    parser.add_argument("--root", type=Path, default=Path("build/bench"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    folder = shards(options.form, options.root)
    pairs = interleave(ours(folder), bare(folder), options.rounds)
    found = {side: [dataclasses.asdict(sample) for sample in getattr(pairs, side)] for side in ("left", "right")}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stderr.write(
        f"speed over bare onnx: median {pairs.median:.3f}, {min(pairs.ratios):.3f} to {max(pairs.ratios):.3f}\n"
    )


if __name__ == "__main__":
    main()
