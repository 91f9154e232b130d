"""Promises 1, 2 and 4 on real ranks: torchrun, four processes, gloo."""

from __future__ import annotations

import re

import pytest

from tests.launchers.scenes import GROUPS, TOTAL, Seen, own_rows, play, values
from tests.tables.plain import write_table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of four ranks saw in each scene."""
    root = tmp_path_factory.mktemp("ranks")
    write_table(root / "grown", [*GROUPS, [17]])
    write_table(root / "shrunk", GROUPS[:-1])
    write_table(root / "rewritten", [*GROUPS[:-1], [0, 5]])
    return play("four_ranks.py", root, 4)


@pytest.mark.parametrize(
    "scene", ["plain", "explicit", "processes", "balance", "pad", "rows_of_one_store", "rows_in_memory"]
)
def test_every_row_comes_once(seen: Seen, scene: str) -> None:
    epochs = values(seen[scene])
    assert own_rows(epochs) == list(range(TOTAL))
    assert all(each["told"] == each["steps"] for each in epochs)
    if scene in ("explicit", "processes"):
        plain = values(seen["plain"])
        assert [sorted(each["rows"]) for each in epochs] == [sorted(each["rows"]) for each in plain]


def test_ranks_that_share_a_row_store_have_one_order(seen: Seen) -> None:
    shared, alone = values(seen["rows_of_one_store"]), values(seen["rows_in_memory"])
    full = TOTAL // (4 * 7) * 7
    assert [each["rows"][:full] for each in shared] == [each["rows"][:full] for each in alone]
    assert len({each["steps"] for each in shared}) == 1


def test_ranks_build_a_store_together_each_chunk_once(seen: Seen) -> None:
    epochs = values(seen["rows_of_a_store_that_all_build"])
    built = [each["built"] for each in epochs]
    assert all(built), "each rank its share"
    assert sorted(sum(built, [])) == list(range(max(map(max, built)) + 1))
    assert own_rows(epochs) == list(range(TOTAL))
    assert [each["rows"] for each in epochs] == [each["rows"] for each in values(seen["rows_of_one_store"])]


def test_a_mixture_is_one_order_that_four_ranks_share(seen: Seen) -> None:
    epochs = values(seen["mixture"])
    assert len({each["steps"] for each in epochs}) == len({each["told"] for each in epochs}) == 1
    assert all(each["state"] == epochs[0]["state"] for each in epochs)
    own = [tuple(row) for each in epochs for row, pads in zip(each["rows"], each["padding"], strict=True) if not pads]
    assert {x for source, x in own if source == 0} == set(range(TOTAL))
    assert sorted(x for source, x in own if source == 1) == list(range(TOTAL + 17))
    assert seen["mixture"][0]["warnings"] == []


def test_ranks_with_other_weights_are_told(seen: Seen) -> None:
    said = "TableError: rank 2 plans another epoch than rank 0: they differ in weights (there {"
    assert all(rank["error"].startswith(said) for rank in seen["other_weights_on_rank_2"])


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        (
            "with_another_seed_on_rank_3",
            "rank 3 plans another epoch than rank 0: they differ in shuffle_seed (there 7)",
        ),
        (
            "with_another_stop_on_rank_1",
            "rank 1 plans another epoch than rank 0: they differ in stop (there 'forever')",
        ),
        (
            "with_another_name_on_rank_2",
            "rank 2 plans another epoch than rank 0: they differ in exclusions (there {'a'",
        ),
        ("with_another_table_on_rank_1", "rank 1 plans another epoch than rank 0: they differ in sources (there {'a'"),
        (
            "in_another_order_on_rank_2",
            "rank 2 plans another epoch than rank 0: they differ in names (there ['b', 'a'])",
        ),
        (
            "with_names_that_do_not_fit_on_rank_3",
            "rank 3 could not make its loader: ConfigError: weights must name every source, and 'b' is not in it",
        ),
        (
            "in_two_forms_on_rank_1",
            "rank 1 could not make its loader: ConfigError: the sources of a mixture must come in",
        ),
        ("with_a_block_that_cannot_be_on_rank_2", "rank 2 could not make its loader: ConfigError: block must be"),
    ],
)
def test_a_mixture_that_differs_is_told_on_every_rank(seen: Seen, scene: str, said: str) -> None:
    own = said.partition(": ConfigError: ")[2]
    of_itself = int(said.split()[1]) if own else None
    for rank, each in enumerate(seen[f"mixed_{scene}"]):
        assert each["error"].startswith(f"ConfigError: {own}" if rank == of_itself else f"TableError: {said}")


@pytest.mark.parametrize(
    ("scene", "different", "said"),
    [
        ("other_weights_later_on_rank_1", 1, "mixes by weights {'a': 1, 'b': 5} from sample 0 of epoch 1 on, and the"),
        (
            "other_weights_at_step_2_on_rank_3",
            3,
            "mixes by weights {'a': 2, 'b': 3} from sample 56 of epoch 0 on, and the rank that was first by {'a': 2, '",
        ),
    ],
)
def test_a_rank_that_mixes_otherwise_is_told_when_it_does(seen: Seen, scene: str, different: int, said: str) -> None:
    for rank, each in enumerate(seen[f"mixed_with_{scene}"]):
        if rank == different:
            assert each["error"].startswith(f"TableError: rank {rank} {said}")
        else:
            assert each["error"] is None


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("mixed_with_other_exclusions_on_rank_2", "leaves other rows of source 'b' out of epoch 1 than the rank that"),
        ("rows_with_other_exclusions_on_rank_2", "leaves other rows out of epoch 0 than the rank that began it first"),
    ],
)
def test_every_rank_is_told_where_one_leaves_other_rows_out(seen: Seen, scene: str, said: str) -> None:
    for each in seen[scene]:
        assert re.match(rf"TableError: rank \d {said}", each["error"] or ""), each


@pytest.mark.parametrize(
    ("scene", "gone"),
    [
        ("gathered", {5, 15, 25, 100}),
        ("gathered_without_a_comparison", {5, 15, 25, 100}),
        ("gathered_in_a_tensor_parallel_mesh", {30, 31, 32, 33}),
    ],
)
def test_rows_that_any_rank_names_leave_on_all(seen: Seen, scene: str, gone: set[int]) -> None:
    ranks = values(seen[scene])
    assert [each["excluded"] for each in ranks] == [sorted(gone)] * 4
    if scene.endswith("mesh"):
        assert ranks[0] == ranks[1]
        assert ranks[2] == ranks[3]
        ranks = ranks[::2]
    assert own_rows(ranks) == sorted(set(range(TOTAL)) - gone)


def test_rows_of_different_sources_that_ranks_name_leave_on_all(seen: Seen) -> None:
    ranks = values(seen["gathered_of_a_mixture"])
    assert ranks == [{"steps": ranks[0]["steps"], "excluded": {"a": [0, 20], "b": [1, 3, 20]}}] * 4


@pytest.mark.parametrize("wrong", [0, 2])
def test_a_rank_that_names_a_wrong_row_refuses_it_on_all(seen: Seen, wrong: int) -> None:
    for rank, each in enumerate(seen[f"gathered_with_a_row_that_is_not_there_on_rank_{wrong}"]):
        told = "" if rank == wrong else f"rank {wrong} could not name its rows: ConfigError: "
        assert each["error"].startswith(f"ConfigError: {told}row ids must be in [0, {TOTAL})")


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_gather_is_not_waited_for_forever(seen: Seen, absent: int) -> None:
    """All hear the same, the rank that came too late too, and can go on together from there."""
    ranks = values(seen[f"gathered_without_rank_{absent}"])
    assert ranks == [{"said": ranks[0]["said"], "before": [], "after": [0, 1, 2, 3]}] * 4
    waited = "rank 0 to join the rows of all ranks" if absent == 0 else "rank (0 to join|2 to name)"
    assert re.match(rf"rank \d waited 0:00:02 for {waited}.*; every rank must make this call", ranks[0]["said"])


def test_ranks_that_did_not_wait_are_told_when_they_begin_their_next_epoch(seen: Seen) -> None:
    for rank, (first, second) in enumerate(values(seen["rows_with_other_exclusions_on_a_rank_that_begins_late"])):
        told = first if rank == 2 else second
        assert re.match(r"rank 2 leaves other rows out of epoch 0", str(told)), (first, second)
        assert isinstance(first, str) == (rank == 2)


def test_balance_takes_equal_steps_and_no_more_than_needed(seen: Seen) -> None:
    assert [each["steps"] for each in values(seen["balance"])] == [-(-TOTAL // (4 * 7))] * 4
    assert seen["balance"][0]["warnings"] == []


def test_drop_stops_at_the_smallest_and_pad_goes_to_the_largest(seen: Seen) -> None:
    uneven = [each["steps"] for each in values(seen["plain"])]
    assert len(set(uneven)) > 1
    dropped, padded = values(seen["drop"]), values(seen["pad"])
    assert len({each["steps"] for each in dropped}) == len({each["steps"] for each in padded}) == 1
    assert dropped[0]["steps"] < padded[0]["steps"]
    assert len(set(own_rows(dropped))) == len(own_rows(dropped))


def test_unequal_steps_are_said_with_the_remedy_in_the_callers_line(seen: Seen) -> None:
    steps = ", ".join(str(each["steps"]) for each in values(seen["plain"]))
    for rank in seen["plain"]:
        assert len(rank["warnings"]) == 1
        assert rank["warnings"][0].startswith("stage.py: ranks take different numbers of steps: " + steps)
        assert "leave even_ranks=False out" in rank["warnings"][0]


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("another_seed_on_rank_3", "rank 3 plans another epoch than rank 0: they differ in shuffle_seed (there 7)"),
        ("other_columns_on_rank_1", "rank 1 plans another epoch than rank 0: they differ in columns (there ['f: "),
        ("another_filter_on_rank_2", "rank 2 plans another epoch than rank 0: they differ in filters"),
        ("another_batch_size_on_rank_1", "rank 1 plans another epoch than rank 0: they differ in batch_size (there 8)"),
        ("rank_1_misses_a_file", "rank 0 found 7 files, of which rank 1 misses '006.parquet'"),
        ("rank_1_sees_a_file_of_another_size", "rank 1 plans another epoch than rank 0: they differ in bytes"),
        (
            "another_seed_in_a_tensor_parallel_pair",
            "rank 3 plans another epoch than rank 0: they differ in shuffle_s",
        ),
    ],
)
def test_what_differs_is_said_on_every_rank(seen: Seen, scene: str, said: str) -> None:
    errors = [rank["error"] for rank in seen[scene]]
    assert all(error == errors[0] for error in errors)
    assert errors[0].startswith("TableError: " + said)


def test_a_difference_that_is_not_looked_for_is_not_found(seen: Seen) -> None:
    assert values(seen["another_seed_unchecked"])


def test_a_rank_that_sees_more_files_takes_those_of_rank_0(seen: Seen) -> None:
    assert own_rows(values(seen["rank_2_sees_one_file_more"])) == list(range(TOTAL))


def test_one_rank_by_default_in_a_job_of_four_is_warned_about(seen: Seen) -> None:
    for rank in seen["default_of_one_rank"]:
        assert any("reads the whole table (num_ranks=1) in a job of 4 ranks" in text for text in rank["warnings"])
        assert all(text.startswith("stage.py") for text in rank["warnings"])


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("environment_that_disagrees", 'ConfigError: num_ranks="auto" found ranks that disagree'),
    ],
)
def test_numbers_that_disagree_are_refused_on_every_rank(seen: Seen, scene: str, said: str) -> None:
    for rank in seen[scene]:
        assert rank["error"].startswith(said)


def test_a_rank_0_that_says_nothing_is_not_waited_for_forever(seen: Seen) -> None:
    errors = [rank["error"] for rank in seen["silent_rank_0"]]
    assert errors[0] is None
    assert all("StorageTimeoutError: rank" in error and "waited 0:00:01 for rank 0" in error for error in errors[1:])


def test_a_rank_that_never_comes_is_not_waited_for_forever(seen: Seen) -> None:
    errors = [rank["error"] for rank in seen["absent_rank_3"]]
    assert errors[3] is None
    assert all("waited 0:00:01 for all 4 ranks to compare what they plan" in error for error in errors[:3])


@pytest.mark.parametrize(
    ("scene", "failed", "said"),
    [
        ("rank_1_asks_for_a_column_that_is_not_there", 1, "ConfigError: the table has no column 'nope'"),
        ("rank_0_finds_no_table", 0, "MissingPathError: "),
    ],
)
def test_a_rank_that_fails_is_not_waited_for(seen: Seen, scene: str, failed: int, said: str) -> None:
    for rank, saw in enumerate(seen[scene]):
        told = f"TableError: rank {failed} could not make its loader: "
        assert saw["error"].startswith(said if rank == failed else told + said)


def test_ranks_that_are_not_in_the_group_are_not_waited_for(seen: Seen) -> None:
    for rank in seen["more_ranks_than_processes"]:
        assert rank["error"] is None
        assert "there is no process group through which they could compare" in rank["warnings"][0]
