"""The loader under the Hugging Face Trainer, with the library's mixin."""

from __future__ import annotations

import pytest

from tests.launchers.scenes import Seen, play, values
from tests.torch.training_laws import EVERY, TrainingLaws

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Give what each of two ranks saw in each scene."""
    return play("trainer_scenes.py", tmp_path_factory.mktemp("trainer"), 2)


class TestTrainer(TrainingLaws):
    """Four batches make an update, fewer the last one of an epoch; a checkpoint comes after each."""

    every = 4


def test_max_steps_stops_inside_an_epoch(seen: Seen) -> None:
    for whole, ends in zip(values(seen["whole"]), values(seen["some_steps"]), strict=True):
        assert (ends["steps"], ends["batches"]) == (13, whole[:13])


def test_max_steps_come_on_another_number_of_ranks(seen: Seen) -> None:
    for steps in values(seen["so_many_steps_on_fewer_ranks"]):
        assert steps == {"checkpoint-6": 14, "checkpoint-12": 14, "checkpoint-14": 14}


def test_tables_are_evaluated_and_predicted_with_each_row_once(seen: Seen) -> None:
    ranks = values(seen["evaluated"])
    for rank in ranks:
        few = EVERY[:10]
        assert rank["evaluated"] == [{"few_rows": few, "whole_rows": EVERY, "few_labels": 10}] * 2
        assert rank["predicted"] == few
        assert rank["loss"] == ranks[0]["loss"]
