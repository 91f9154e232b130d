"""Real device meshes as `num_ranks=`, of four gloo ranks, and training under DDP and FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.launchers.scenes import TOTAL, Seen, own_rows, play, values

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of four ranks saw in each scene."""
    return play("meshes.py", tmp_path_factory.mktemp("meshes"), 4)


@pytest.mark.parametrize("scene", ["pairs", "pairs_by_their_submesh", "pairs_of_rows", "a_dimension_of_another_name"])
def test_ranks_of_one_tensor_parallel_group_share_a_part(seen: Seen, scene: str) -> None:
    epochs = values(seen[scene])
    assert epochs[0] == epochs[1]
    assert epochs[2] == epochs[3]
    assert own_rows([epochs[0], epochs[2]]) == list(range(TOTAL))
    assert epochs[0]["steps"] == epochs[2]["steps"] == epochs[0]["told"]


@pytest.mark.parametrize("scene", ["data_parallel", "hybrid_sharding", "without_names"])
def test_ranks_of_data_parallel_dimensions_read_the_table_once_together(seen: Seen, scene: str) -> None:
    epochs = values(seen[scene])
    assert own_rows(epochs) == list(range(TOTAL))
    assert {each["steps"] for each in epochs} == {-(-TOTAL // (4 * 7))}
    assert epochs == values(seen["data_parallel"])


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("no_dimension_is_data_parallel", "mesh has the dimensions ('batch', 'tp'), of which none is data-parallel"),
        ("a_dimension_that_is_not", "mesh has the dimensions ('tp',), of which none is data-parallel"),
        ("mesh_and_rank", "rank={rank} was given beside a mesh, which determines it; leave rank out"),
        ("auto_and_rank", 'rank={rank} was given beside num_ranks="auto", which determines it; leave rank out'),
    ],
)
def test_what_cannot_be_meant_is_refused_on_every_rank(seen: Seen, scene: str, said: str) -> None:
    for rank, saw in enumerate(seen[scene]):
        assert saw["error"].startswith("ConfigError: " + said.replace("{rank}", str(rank)))


@pytest.mark.parametrize("scene", ["ddp", "fsdp", "fsdp_of_hybrid_shards"])
def test_training_takes_equal_steps_every_row_once_an_epoch_and_one_model_on_all_ranks(seen: Seen, scene: str) -> None:
    ranks: list[Any] = values(seen[scene])
    weights = [rank[1] for rank in ranks]
    assert weights == [weights[0]] * 4
    for epoch in range(2):
        epochs = [rank[0][epoch] for rank in ranks]
        assert own_rows(epochs) == list(range(TOTAL))
        assert [each["steps"] for each in epochs] == [-(-TOTAL // (4 * 7))] * 4
    assert [rank[0][0]["rows"] for rank in ranks] != [rank[0][1]["rows"] for rank in ranks]


def test_ddp_and_fsdp_train_the_same_model(seen: Seen) -> None:
    models = [values(seen[scene])[0][1] for scene in ("ddp", "fsdp", "fsdp_of_hybrid_shards")]
    assert models[1] == pytest.approx(models[0])
    assert models[2] == pytest.approx(models[0])


def test_ranks_of_unequal_steps_train_under_join(seen: Seen) -> None:
    epochs = [rank[0] for rank in values(seen["ddp_with_unequal_steps_under_join"])]
    assert own_rows(epochs) == list(range(TOTAL))
    assert len({each["steps"] for each in epochs}) > 1
