"""Ranks that open an Iceberg table at different moments read one snapshot of it: rank 0's."""

from __future__ import annotations

import pytest

from tests.launchers.scenes import LAUNCHERS, Seen, own_rows, play, values


@pytest.fixture(scope="module", params=LAUNCHERS)
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Seen:
    """Give what each of two ranks saw in each scene."""
    return play("two_ranks.py", tmp_path_factory.mktemp("agreement"), 2, request.param)


@pytest.mark.parametrize(
    ("scene", "num_rows"),
    [
        ("rank_1_sees_a_newer_snapshot", 40),
        ("rank_0_sees_a_newer_snapshot", 50),
        ("rank_0_has_a_newer_table_object", 50),
        ("rank_1_sees_a_new_column", 40),
        ("rank_0_sees_the_first_rows", 30),
    ],
)
def test_the_snapshot_of_rank_0_is_read_once_by_both(seen: Seen, scene: str, num_rows: int) -> None:
    epochs = values(seen[scene])
    for each in epochs:
        each["padding"] = each["padding"] or [False] * len(each["rows"])
    assert own_rows(epochs) == list(range(num_rows))
    assert epochs[0]["snapshot"] == epochs[1]["snapshot"]
    assert epochs[0]["steps"] == epochs[1]["steps"]
    assert epochs[0]["columns"] == epochs[1]["columns"] == ["x"]
