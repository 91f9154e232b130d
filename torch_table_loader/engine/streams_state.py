"""The state of a mixture of streams: what the job did of the epoch, stage by stage, and of which tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_table_loader.engine.state import STATE_VERSION, Weights, check_mixture, pairs_of, read_weights
from torch_table_loader.errors import ResumeError
from torch_table_loader.planning.mixed_stages import MixedPosition, read_history, write_history


@dataclass(frozen=True, slots=True)
class StreamsState:
    """A state of a mixture of streams, read.

    Args:
        position: where the job was.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
        sources: for each, table and options of a state of it alone, by name.
    """

    position: MixedPosition
    given: Weights
    newest: Weights
    sources: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_state(cls, own: Mapping[str, Any], state: Mapping[str, Any]) -> StreamsState:
        """Read what `write_streams_state` wrote.

        Args:
            own: the options that decide the order.
            state: of the current version, written on any rank.

        Raises:
            ResumeError: it is something else, or of other options.
        """
        check_mixture(own, state)
        try:
            epoch = state["epoch"]
            if isinstance(epoch, bool) or epoch < 0:
                raise ValueError(f"epoch={epoch!r}")  # noqa: TRY301 the message below says the rest
            position = read_history(state["history"], own["shuffle_seed"], epoch)
            sources = {
                name: {"table": dict(table), "options": dict(options)} for name, table, options in state["sources"]
            }
            if tuple(sorted(sources)) != position.deal.names:
                raise ValueError(f"the sources {sorted(sources)}")  # noqa: TRY301
            given, newest = read_weights(state["given"]), read_weights(state["newest"])
            return cls(position, given, newest, sources)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ResumeError(
                f"the state must be that of a mixture of streams, as state_dict() writes it, got {error!r}; pass the "
                "value of state_dict() of a MixedDataset's loader unchanged"
            ) from error

    def source_state(self, name: str, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Write what a state of a source alone would say of its table and options.

        Args:
            name: of the source.
            identity: of the source here, whose own shuffling a mixture does not use.
        """
        source = self.sources[name]
        options = {"shuffle_seed": identity["options"]["shuffle_seed"], **source["options"]}
        return {"version": STATE_VERSION, "table": source["table"], "options": options}


def write_streams_state(
    bound: Mapping[str, Any], position: MixedPosition, given: Weights, newest: Weights
) -> dict[str, Any]:
    """Write where a job of a mixture of streams is.

    Args:
        bound: the job's `identity`.
        position: what the trainer took.
        given: the weights that the loader was made with.
        newest: the weights of the epochs to come.
    """
    return {
        "version": STATE_VERSION,
        "mixture": dict(bound["options"]),
        "sources": [
            [name, pairs_of(source["table"]), pairs_of(source["options"])]
            for name, source in sorted(bound["sources"].items())
        ],
        "given": given if isinstance(given, str) else pairs_of(given),
        "newest": newest if isinstance(newest, str) else pairs_of(newest),
        "epoch": position.epoch,
        "history": write_history(position),
    }
