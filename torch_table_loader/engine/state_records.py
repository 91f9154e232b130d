"""Records: what a guest, or an order, adds to states under its own key, and how one is found by that key.

A record owns the form of what it adds, its validation and its refusals. The core asks for it by the key that it finds
in a state, and knows none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch_table_loader.engine.state_forms import Form, Named, refuse
from torch_table_loader.errors import MissingExtraError, ResumeError
from torch_table_loader.installed import RECORDS, load_module
from torch_table_loader.option_checks import MOST_ROWS
from torch_table_loader.planning.ranks import MOST_SPLITS

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import Kind, SavedState


MIXING = Named(
    {"rows": range(1, MOST_ROWS + 1), "splits": range(1, MOST_SPLITS + 1)}, {"first": range(1, MOST_ROWS + 1)}
)
"""How a rank mixes splits, as `Mixing` writes it."""


class Written(NamedTuple):
    """What a record adds to a state that is written: plain data, in which dicts may stand for names and values.

    Args:
        stages: what it says of each stage, oldest first.
        whole: what it says beside that.
    """

    stages: Sequence[Any]
    whole: Any = None


class StageForms(NamedTuple):
    """The forms of what a record says of stages.

    Args:
        past: of earlier stages; None: the same.
    """

    newest: Form
    past: Form | None = None

    def of(self, *, newest: bool) -> Form:
        """Return the form of the newest stage, or of an earlier one."""
        if newest or self.past is None:
            return self.newest
        return self.past


class StateRecord(ABC):
    """What a guest or an order adds to a state: a column of the history, and perhaps a key of the state."""

    key: ClassVar[str]
    """Names the column, and the key of the state."""

    forms: ClassVar[Mapping[Kind, StageForms]]
    """What the column has, by what jobs count; others do not have it."""

    whole: ClassVar[Form | None] = None
    """What the key of the state has; None if there is none."""

    without: ClassVar[tuple[str, ...]] = ()
    """Optional columns of the core that a state with this record does not have."""

    names_tables: ClassVar[bool] = False
    """Whether the tables of the state have names."""

    @abstractmethod
    def read(self, saved: SavedState, stages: Sequence[Any], whole: Any) -> SavedState:
        """Return a state with what this record says, whose form is checked: in its position, or in its `records`.

        Raises:
            ResumeError: there is no such position.
        """

    def check(self, saved: SavedState) -> None:  # noqa: B027 a form may say all
        """Refuse a state whose parts do not fit what this record says; all records are read.

        Raises:
            ResumeError: names them.
        """

    def check_job(self, saved: SavedState, job: Any) -> None:  # noqa: B027 the options of tables may say all
        """Refuse a state for a job, of which at least one has this record.

        Raises:
            ResumeError: names what differs.
        """


def find_record(key: str) -> StateRecord:
    """Return a record by its key.

    Raises:
        ResumeError: this release has none, or this build lacks the guest that has it.
    """
    if not is_record(key):
        refuse("history", "without columns that this release does not know", key)
    try:
        record: StateRecord = load_module(RECORDS[key]).RECORD
    except MissingExtraError as error:
        raise ResumeError(f"the state says {key!r}, which this build cannot read: {error}") from error
    return record


def is_record(key: str) -> bool:
    """Return whether this release knows a record, whatever this build lacks."""
    return key in RECORDS
