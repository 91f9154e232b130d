"""A loader that is prepared, as Accelerate finds it, and that does itself what Accelerate's wrapper would do.

The wrapper would shard the batches of a rank once more, and rows would be lost. Accelerate is looked up among the
modules that were imported, and never imported.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any


class PreparedForAccelerate:
    """The attributes by which Accelerate knows a loader that it need not wrap."""

    use_stateful_dataloader = True
    """That an Accelerator's `save_state` and `load_state` keep the loader's state."""

    end_of_dataloader = False
    """Whether the newest iterator has given its last batch, with which gradients are synchronised."""

    remainder = -1
    """Real rows of all ranks in the last step, where `gather_for_metrics` cuts; −1 where padding is not at the end."""

    _device_of_accelerate: Any = None
    _epochs_entered = 0

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, which keeps `Accelerator.prepare` from wrapping the loader.

        Where the wrapper would put batches is known to the function that asks this and to no other: it is read from
        its frame.
        """
        asking = sys._getframe(1).f_locals
        accelerator: Any = asking.get("self")
        if hasattr(accelerator, "device_placement") and hasattr(accelerator, "device"):
            places = asking.get("device_placement")
            if places is None:
                places = accelerator.device_placement
            self._device_of_accelerate = None
            if places:
                self._device_of_accelerate = accelerator.device
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Accelerate says it of all that it prepared; here it was so before."""

    def _leave_accelerate(self, number: int) -> None:
        state = _gradient_state()
        if state is not None and number == self._epochs_entered:
            state._remove_dataloader(self)


class EpochOfAccelerate:
    """An iterator's entry in Accelerate's gradient state; it leaves when the iterator ends or goes."""

    def __init__(self, loader: PreparedForAccelerate, remainder: int) -> None:
        """Enter, where Accelerate runs: its gradient state asks the loader that entered last."""
        loader.end_of_dataloader, loader.remainder = False, remainder
        loader._epochs_entered += 1
        state = _gradient_state()
        self.runs = state is not None
        if state is not None:
            state._remove_dataloader(loader)
            state._add_dataloader(loader)
        self.leave = weakref.finalize(self, loader._leave_accelerate, loader._epochs_entered)
        self.leave.atexit = False


def _gradient_state() -> Any:
    """Return Accelerate's gradient state; None where no Accelerator was made."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if kind is None or not kind._shared_state:
        return None
    return kind()
