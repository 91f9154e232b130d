"""The picture of how a table becomes batches shows what the library does."""

from __future__ import annotations

from pathlib import Path

from tools.concepts_picture import BATCH, FILES, GROUPS, ROWS, delivered, drawn

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "concepts.svg"


def test_the_picture_is_up_to_date_with_its_script() -> None:
    assert PICTURE.read_text() == drawn(), "run: python tools/concepts_picture.py docs/images/concepts.svg"


def test_each_level_has_every_row_once() -> None:
    splits, lanes, batches = delivered()
    rows = list(range(FILES * GROUPS * ROWS))
    assert sorted(sum(splits, [])) == rows
    assert sorted(sum(sum(lanes, []), [])) == rows
    assert sorted(sum(sum(batches, []), [])) == rows


def test_batches_are_runs_of_the_lanes_and_their_tails() -> None:
    _, lanes, batches = delivered()
    for mine, taken in zip(lanes, batches, strict=True):
        cut = [[lane[at : at + BATCH] for at in range(0, len(lane), BATCH)] for lane in mine]
        full = [batch for parts in cut for batch in parts if len(batch) == BATCH]
        tails = sum((parts[-1] for parts in cut if len(parts[-1]) < BATCH), [])
        assert sorted([*full, tails]) == sorted(taken)
