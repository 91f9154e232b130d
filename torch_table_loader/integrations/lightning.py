"""Lightning: going on inside an epoch on another number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from torch_table_loader.loader import TableLoader

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class ResumeOnAnyRanks(Callback):
    """Lets a run resume inside an epoch with exactly the rows that are left, on any number of ranks.

    Lightning counts batches of the epoch, and ends it at the length of the loader. On more ranks a batch of all ranks
    is larger, so that the batches counted so far are too many, and rows are left over; on fewer ranks they are too few.
    This callback counts them again from the rows that are left. On as many ranks as before it changes nothing.

    Pass it to the run that continues: ``Trainer(callbacks=[ResumeOnAnyRanks()])``; it does no harm in other runs.
    """

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        resumed = [
            loader
            for loader in _loaders_of(trainer)
            if (progress := loader._position.newest) is not None and progress.resumed
        ]
        if not resumed:
            return
        taken = min(len(loader) - loader.remaining for loader in resumed)
        counted = trainer.fit_loop.epoch_loop.batch_progress.current
        more = max(0, taken) - counted.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(counted, name, getattr(counted, name) + more)


def _loaders_of(trainer: Trainer) -> list[TableLoader]:
    combined: Any = trainer.fit_loop._combined_loader
    return [] if combined is None else [loader for loader in combined.flattened if isinstance(loader, TableLoader)]
