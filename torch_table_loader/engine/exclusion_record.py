"""What a state says of excluded rows: the record of every job whose rows can be excluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch_table_loader.engine.state_forms import ListOf, Named, refuse
from torch_table_loader.engine.state_records import StageForms, StateRecord, Written
from torch_table_loader.planning.exclusion import ExclusionVersions

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import Kind, SavedState


class ExclusionRecord(StateRecord):
    """By source: what is excluded from the running epoch, and from the next one if that differs.

    A source of which nothing was ever excluded is left out, and so is the record if there is no other.
    """

    key = "exclusions"
    forms: ClassVar[Mapping[Kind, StageForms]] = {
        "items": StageForms(
            Named({}, others=ListOf(Named({"ids": "text", "digest": "text"}), least=1, most=2)),
        )
    }

    def read(self, saved: SavedState, stages: Sequence[Any], whole: Any) -> SavedState:
        """Keep the versions of each source; their ids are decoded where the table is known."""
        del whole
        [versions] = stages
        return replace(saved, records={**saved.records, self.key: versions})

    def check(self, saved: SavedState) -> None:
        """Refuse exclusions of a table that the state does not name."""
        if stray := [name for name in saved.records[self.key] if name not in saved.tables]:
            refuse("exclusions", f"of the tables {', '.join(map(repr, saved.tables))}", stray[0])


RECORD = ExclusionRecord()


def written_exclusions(versions: Mapping[str, ExclusionVersions]) -> dict[str, Written]:
    """Return the record of what is excluded from each source; nothing if nothing is."""
    found = {name: each.to_state() for name, each in versions.items() if each != ExclusionVersions()}
    if found:
        return {RECORD.key: Written([found])}
    return {}


def saved_exclusions(saved: SavedState, name: str, num_rows: int) -> ExclusionVersions:
    """Return what a state excludes from a source with so many physical rows.

    Raises:
        ResumeError: the table has no such rows.
    """
    return ExclusionVersions.from_state(saved.records.get(RECORD.key, {}).get(name, []), num_rows)
