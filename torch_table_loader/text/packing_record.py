"""What a state says of sequences that are gathered: how long they are, and where the walk over documents goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch_table_loader.engine.state_forms import COUNT, Named, refuse
from torch_table_loader.engine.state_records import StageForms, StateRecord, Written
from torch_table_loader.option_checks import MOST_ROWS
from torch_table_loader.samples import LENGTH

if TYPE_CHECKING:
    from torch_table_loader.engine.saved_state import Kind, SavedState
    from torch_table_loader.planning.stages import SamplePosition

_ANCHOR = ("round", "place", "before", "seal")
_ORIGIN = ("round", "tokens")


class PackingRecord(StateRecord):
    """The record of packed items, alone or mixed; a stream counts steps, and says nothing of its sequences.

    `origin` is how many tokens came in sequences of other lengths, or before a mixture's newest weights. `origins` are
    those of the sources of a mixture. `anchors` say from where a walk finds the next items; see `TurnStream.anchor`.
    """

    key = "packing"
    forms: ClassVar[Mapping[Kind, StageForms]] = {
        "items": StageForms(
            Named(
                {LENGTH: range(1, 1 << 31), "origin": COUNT},
                {
                    "anchors": Named({}, others=Named(dict.fromkeys(_ANCHOR, COUNT))),
                    "origins": Named({}, others=Named({"round": COUNT, "tokens": range(-MOST_ROWS, MOST_ROWS + 1)})),
                },
            )
        )
    }
    without = ("extents",)

    def read(self, saved: SavedState, stages: Sequence[Any], whole: Any) -> SavedState:
        """Put lengths and origins into the position, and keep the anchors."""
        del whole
        [fields] = stages
        origins = {name: (own["round"], own["tokens"]) for name, own in fields.get("origins", {}).items()}
        taken = replace(saved.taken, width=fields[LENGTH], origin=fields["origin"])
        if origins and not taken.of_sources:
            refuse("history.packing.origins", "left out where there is one table", origins)
        if taken.of_sources:
            taken = replace(taken, origins=origins)
        anchors = {name: [own[part] for part in _ANCHOR] for name, own in fields.get("anchors", {}).items()}
        return replace(saved, taken=taken, records={**saved.records, self.key: anchors})

    def check(self, saved: SavedState) -> None:
        """Refuse other lengths than the options of tables say, sources without tables, and origins that none has."""
        taken: SamplePosition = saved.taken
        length, since = taken.width, taken.begins
        if any(
            "stage" not in own.options or own.options.get(LENGTH, length) != length for own in saved.tables.values()
        ):
            refuse("history", "of sequences as long as the options of tables say", length)
        names = {**saved.records[self.key], **taken.origins}
        if stray := [name for name in names if name not in saved.tables]:
            refuse("history.packing", f"of the tables {', '.join(map(repr, saved.tables))}", stray[0])
        if taken.of_sources and (taken.origin < since or bool(taken.origin) != bool(since)):
            refuse("history.packing.origin", f"that of weights which begin at {since}", taken.origin)

    def check_job(self, saved: SavedState, job: Any) -> None:
        """Refuse rows for sequences; what else differs, the options of tables say."""
        if self.key not in saved.records and any(name in job.tables for name in saved.tables):
            refuse("history", f"one with a column {self.key!r}, since this job packs", sorted(saved.records))


RECORD = PackingRecord()


def written_packing(position: SamplePosition, anchors: Mapping[str, Sequence[int]]) -> dict[str, Written]:
    """Return the record of a position, with the anchors of sources that are walked."""
    fields: dict[str, Any] = {LENGTH: position.width, "origin": position.origin}
    if anchors:
        fields["anchors"] = {name: dict(zip(_ANCHOR, anchor, strict=True)) for name, anchor in anchors.items()}
    if position.origins:
        fields["origins"] = {name: dict(zip(_ORIGIN, origin, strict=True)) for name, origin in position.origins.items()}
    return {RECORD.key: Written([fields])}


def saved_anchors(saved: SavedState) -> Mapping[str, list[int]]:
    """Return the anchors of a state, by source."""
    found: Mapping[str, list[int]] = saved.records.get(RECORD.key, {})
    return found
