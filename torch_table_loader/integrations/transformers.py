"""The Hugging Face Trainer: rows from a table, and going on inside an epoch on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import transformers
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from torch_table_loader.errors import MissingExtraError
from torch_table_loader.loader import TableLoader
from torch_table_loader.rank_dataset import RankDataset

_TRAINER_STATE = "trainer_state.json"


class TableLoaderState(TrainerCallback, ExportableState):
    """Keeps the loader's state in ``trainer_state.json`` of each checkpoint."""

    loader: TableLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"args": {}, "attributes": {"saved": None if self.loader is None else self.loader.state_dict()}}


@dataclass(frozen=True, slots=True)
class _Resumed:
    """In which epoch of the Trainer a run continues, with so many batches of this rank trained, in whole steps.

    Args:
        left: batches to come in it; None where nobody knows, or it has no end.
    """

    epoch: int
    trained: int
    left: int | None

    @classmethod
    def of(cls, loader: TableLoader, in_epoch: int, made: int, accumulated: int) -> _Resumed:
        """Return where a loader that has loaded a state continues.

        Args:
            in_epoch: batches of an epoch.
            made: steps that the run has made.
            accumulated: batches of a step.
        """
        position, epochs = loader._position, loader.options.epochs
        epoch = position.epoch
        if isinstance(epochs, int):
            epoch //= epochs
        elif epochs == "forever":
            epoch = 0
        if (left := position.left) is not None:
            taken = max(0, in_epoch - left)
        elif epoch:
            taken = position.now.steps_taken
        else:
            taken = made * accumulated
        return cls(epoch, taken // accumulated * accumulated, left)


class TableTrainerMixin:
    """Gives a Trainer class the rows of a table; put it before that class among the bases.

    `make_loader` returns the rows to train on. To evaluate or predict, pass datasets of tables where the Trainer takes
    a dataset: ``eval_dataset=StructuredDataset(...)``.

    A run resumes at the next row, on any number of ranks, and no row is read twice. Another number of ranks takes
    another number of steps: unless ``max_steps`` is given, the run and its learning-rate schedule then end after the
    steps that were taken and those that are left.
    """

    def __init__(self, *args: Any, make_loader: Callable[[], TableLoader], **options: Any) -> None:
        """Make a Trainer, with its own arguments.

        Args:
            make_loader: returns the loader; it is called once training begins, when the ranks know each other.

        Raises:
            MissingExtraError: this version of transformers has no epochs that can be gone on with.
        """
        if not hasattr(Trainer, "_run_epoch"):
            raise MissingExtraError(
                f"TableTrainerMixin needs a transformers whose Trainer has _run_epoch, such as 5.23, and this is "
                f"{transformers.__version__}; upgrade it, or return the loader from get_train_dataloader yourself"
            )
        super().__init__(*args, **options)
        self._make_loader = make_loader
        self._checkpoint: str | None = None
        self._resumed: _Resumed | None = None
        self.add_callback(TableLoaderState)  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> TableLoader:
        """Return the loader, which places its batches as the accelerator would."""
        loader: TableLoader = self.accelerator.prepare(self._make_loader())  # type: ignore[attr-defined]
        for callback in self.callback_handler.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, TableLoaderState):
                callback.loader = loader
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Return the loader of a dataset of a table, at the start of its epoch; of another, what the Trainer makes."""
        table = eval_dataset
        if table is None:
            table = self.eval_dataset  # type: ignore[attr-defined]
        if isinstance(table, str):
            table = self.eval_dataset[table]  # type: ignore[attr-defined]
        found: DataLoader[Any] | None = self._table_loader(table)
        if found is None:
            found = super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return found

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Return the loader of what `predict` was given, likewise."""
        found: DataLoader[Any] | None = self._table_loader(test_dataset)
        if found is None:
            found = super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return found

    def _table_loader(self, dataset: Any) -> TableLoader | None:
        if not isinstance(dataset, RankDataset):
            return None
        dataset.set_epoch(0)
        loader: TableLoader = self.accelerator.prepare(dataset.loader())  # type: ignore[attr-defined]
        return loader

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **options: Any) -> Any:
        """Evaluate, and count rows where the Trainer would count the batches of a table."""
        output = super().evaluation_loop(dataloader, *args, **options)  # type: ignore[misc]
        is_table = isinstance(dataloader, TableLoader)
        if is_table:
            return output._replace(num_samples=self.num_examples(dataloader))
        return output

    def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Train on a batch without the mark of padding, which models do not take."""
        return super().training_step(model, _unmarked(inputs), *args, **options)  # type: ignore[misc]

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Evaluate a batch without the mark of padding, which the Trainer cuts off itself."""
        return super().prediction_step(model, _unmarked(inputs), *args, **options)  # type: ignore[misc]

    def num_examples(self, dataloader: Any) -> int:
        """Return the rows of an epoch, over all ranks."""
        rows: int | None = None
        if (explain := getattr(dataloader.dataset, "explain", None)) is not None:
            rows = explain().live_rows
        if rows is None:
            rows = super().num_examples(dataloader)  # type: ignore[misc]
        return rows

    def set_initial_training_values(self, args: Any, dataloader: TableLoader) -> tuple[Any, ...]:
        """Load the checkpoint's state into the loader; return the Trainer's numbers, for the steps that are left."""
        values = super().set_initial_training_values(args, dataloader)  # type: ignore[misc]
        epochs, updates_each, examples, samples, batch, in_epoch, max_steps = values
        checkpoint = _saved(self._checkpoint)
        kept = checkpoint.get("stateful_callbacks", {}).get(TableLoaderState.__name__)
        self._resumed = None
        if kept is None or kept["attributes"]["saved"] is None:
            return tuple(values)
        dataloader.load_state_dict(kept["attributes"]["saved"])
        accumulated, made = args.gradient_accumulation_steps, checkpoint["global_step"]
        self._resumed = resumed = _Resumed.of(dataloader, in_epoch, made, accumulated)
        if args.max_steps > 0 or resumed.left is None:  # ends the run, and every epoch has a step at least
            epochs = resumed.epoch + (max_steps - made + 1 if made < max_steps else 0)
        else:
            max_steps = made + -(-resumed.left // accumulated) + max(0, epochs - resumed.epoch - 1) * updates_each
        return epochs, updates_each, examples, samples, batch, in_epoch, max_steps

    def _inner_training_loop(self, *args: Any, resume_from_checkpoint: str | None = None, **options: Any) -> Any:
        self._checkpoint = resume_from_checkpoint
        return super()._inner_training_loop(  # type: ignore[misc]
            *args, resume_from_checkpoint=resume_from_checkpoint, **options
        )

    def _init_training_state(self, *args: Any, **options: Any) -> tuple[int, int]:
        epochs, steps = super()._init_training_state(*args, **options)  # type: ignore[misc]
        if self._resumed is None:
            return (epochs, steps)
        return (self._resumed.epoch, self._resumed.trained)

    def _run_epoch(self, *, epoch: int, train_dataloader: TableLoader, **numbers: Any) -> None:
        resumed, batches = self._resumed, train_dataloader
        if resumed is None or resumed.epoch != epoch:
            train_dataloader.set_epoch(epoch)
        else:
            accumulated = self.args.gradient_accumulation_steps  # type: ignore[attr-defined]
            if resumed.left is not None:
                numbers["steps_in_epoch"] = resumed.trained + resumed.left
                numbers["num_update_steps_per_epoch"] = -(-numbers["steps_in_epoch"] // accumulated)
            if resumed.trained or train_dataloader._position.epoch != epoch:  # the Trainer would begin the epoch anew
                batches = DataLoader(_Left(train_dataloader, resumed.trained), batch_size=None)  # type: ignore[assignment]
        super()._run_epoch(epoch=epoch, train_dataloader=batches, **numbers)  # type: ignore[misc]


class TableTrainer(TableTrainerMixin, Trainer):  # type: ignore[misc]
    """A Trainer whose rows come from a table; see `TableTrainerMixin`."""


class _Left(IterableDataset[Any]):
    """What is left of an epoch, after as many empty places as the Trainer steps over."""

    def __init__(self, loader: TableLoader, trained: int) -> None:
        super().__init__()
        self._loader = loader
        self._trained = trained

    def __iter__(self) -> Iterator[Any]:
        yield from repeat(None, self._trained)
        yield from self._loader


def _unmarked(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch without the mark of padding."""
    return {name: value for name, value in batch.items() if name != "padding"}


def _saved(checkpoint: str | None) -> dict[str, Any]:
    """Return what the Trainer wrote of its state; nothing where there is none."""
    if checkpoint is None or not (path := Path(checkpoint) / _TRAINER_STATE).is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found
