"""Lightning: going on inside an epoch on another number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from torch.distributed.checkpoint.stateful import Stateful
from typing_extensions import override

from torch_table_loader.loader import TableLoader

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class ResumeOnAnyRanks(Callback):
    """Lets a run resume inside an epoch with exactly the rows that are left, on any number of ranks.

    Lightning counts batches of the epoch, and ends it at the length of the loader. On more ranks a batch of all ranks
    is larger, so that the batches counted so far are too many, and rows are left over; on fewer ranks they are too few.
    This callback counts them again from the rows that are left. On as many ranks as before it changes nothing.

    Where the loader has no length, since its epoch has no end or rows are not counted, Lightning reads a batch ahead.
    The callback saves the place before that batch.

    Pass it to runs that are saved and to those that continue: ``Trainer(callbacks=[ResumeOnAnyRanks()])``.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        lefts = [
            (loader, left)
            for loader in _loaders_of(trainer)
            if (progress := loader._position.newest) is not None and progress.resumed
            if (left := loader._position.left) is not None
        ]
        if not lefts:
            return
        taken = min(len(loader) - left for loader, left in lefts)
        counted = trainer.fit_loop.epoch_loop.batch_progress.current
        more = max(0, taken) - counted.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(counted, name, getattr(counted, name) + more)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        ahead = len(getattr(trainer.fit_loop._data_fetcher, "batches", ()))
        saved = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {}).get("combined_loader", [])
        combined: Any = trainer.fit_loop._combined_loader
        if not ahead or combined is None:
            return
        stateful = [loader for loader in combined.flattened if isinstance(loader, Stateful)]
        for number, loader in enumerate(stateful[: len(saved)]):
            if isinstance(loader, TableLoader):
                saved[number] = loader._position.state(ahead)


def _loaders_of(trainer: Trainer) -> list[TableLoader]:
    combined: Any = trainer.fit_loop._combined_loader
    if combined is None:
        return []
    return [loader for loader in combined.flattened if isinstance(loader, TableLoader)]
