"""What ONNX Runtime's `DataLoader` does with a directory of tensor shards, as recipes: docs/tensor-shards.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.effort import daily
from tests.tables.plain import meant_warnings
from tests.tables.tensor_shards import tensor, write_shard
from tests.waiting import until
from torch_table_loader import StructuredDataset, TableLoader
from torch_table_loader.extend import FileStorage

FILES, ROWS = 7, 5


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Write files of five samples; a sample's id has its file's number and its own."""
    for file in range(FILES):
        values = np.full(1000, file, np.float32)
        write_shard(
            tmp_path / f"{file:02}.pb",
            [[tensor("id", np.int64(10 * file + k)), tensor("x", values)] for k in range(ROWS)],
        )
    return tmp_path


def make(path: Path, **options: Any) -> TableLoader:
    chosen: dict[str, Any] = {"batch_size": 2, "num_workers": 1, "batch_by": "file", "columns": ["id"]}
    with meant_warnings():
        return StructuredDataset.create_dataloader(str(path), "tensorproto", check_plan=False, **chosen | options)[0]


def files_of(loader: TableLoader) -> list[int]:
    return [int(batch["id"][0]) // 10 for batch in loader]


def in_files(*files: int) -> list[int]:
    """Give the file of each batch, of which a file has three."""
    return [file for file in files for _ in range(3)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@daily(1)
def test_file_i_goes_whole_to_rank_i_mod_r_one_after_the_other(shards: Path, ranks: int) -> None:
    for rank in range(ranks):
        loader = make(shards, num_ranks=ranks, rank=rank, even_ranks=False)
        assert files_of(loader) == in_files(*range(FILES)[rank::ranks])


def test_reading_begins_at_file_k(shards: Path) -> None:
    loader = make(shards)
    assert loader.seek(file="04.pb") == 12
    assert files_of(loader) == in_files(4, 5, 6)


def test_files_go_round_for_ever_and_a_killed_job_goes_on_inside_one(shards: Path) -> None:
    loader = make(shards, epochs="forever")
    steps = 2 * 3 * FILES + 4
    taken = [batch["id"].tolist() for batch in islice(loader, steps)]
    assert loader.current_file == "01.pb"
    again = make(shards, epochs="forever")
    again.load_state_dict(loader.state_dict())
    taken += [batch["id"].tolist() for batch in islice(again, 3 * FILES)]
    once = [batch["id"].tolist() for batch in make(shards)]
    assert taken == [once[step % len(once)] for step in range(steps + 3 * FILES)]


def test_one_file_is_evaluated_on_one_process_beside_a_job_of_several(shards: Path) -> None:
    for rank in range(2):
        training = make(shards, num_ranks=2, rank=rank)
        next(iter(training))
        evaluation = make(shards, files=["03.pb"], num_workers=0)
        assert (len(evaluation), files_of(evaluation)) == (3, in_files(3))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["near", "far"])
def test_k_files_are_fetched_ahead_within_so_many_bytes(
    shards: Path, far: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, where: str, workers: int
) -> None:
    size, ahead = (shards / "00.pb").stat().st_size, 3
    asked: list[int] = []
    batches: list[list[int]] = []
    read_range = FileStorage.read_range

    def noted(self: FileStorage, path: str, start: int, stop: int, version: Any = None) -> Any:
        asked.append(int(Path(path).stem))
        assert stop - start == size, "a small file comes whole"
        return read_range(self, path, start, stop, version)

    with far() if where == "far" else nullcontext():
        loader = make(shards, num_workers=workers, storage_options={"read_ahead_bytes": ahead * size})
        monkeypatch.setattr(FileStorage, "read_range", noted)
        for step, batch in enumerate(loader):
            current = int(batch["id"][0]) // 10
            wanted = min(current + ahead, FILES)
            until(lambda: len(asked) >= wanted)  # noqa: B023 it is waited for here
            assert workers or len(asked) <= current + 1 + ahead, f"at step {step}"
            batches.append(batch["id"].tolist())
    assert sorted(asked) == list(range(FILES))
    assert batches == [batch["id"].tolist() for batch in make(shards, num_workers=workers)]


def test_k_files_are_open_at_once_where_there_are_k_workers(shards: Path) -> None:
    loader = make(shards, num_workers=3)
    assert sorted(files_of(loader)) == in_files(*range(FILES))
    assert {len(set(files_of(loader)[start : start + 3])) for start in range(0, 12, 3)} == {3}


def test_samples_are_shuffled_inside_their_file_anew_in_each_epoch(shards: Path) -> None:
    loader = make(shards, batch_size=ROWS, shuffle_buffer_size=ROWS, epochs=2)
    batches = [batch["id"].tolist() for batch in loader]
    assert [sorted(ids) for ids in batches] == [[10 * file + k for k in range(ROWS)] for file in range(FILES)] * 2
    assert batches[:FILES] != batches[FILES:]
