"""Draw how a state goes on: ``docs/images/resume.svg`` on other ranks, ``docs/images/growing.svg`` in a larger table.

Run it where the library can be imported: ``python -m tools.state_pictures docs/images``.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.concepts_picture import FILES, GROUPS, LEFT, ROWS, WIDTH, Rows, arrow, card, strip, svg, text, write_file
from torch_table_loader import StructuredDataset
from torch_table_loader.loader import TableLoader

TAKEN, PITCH = 2, 31


def _loader(folder: str, rank: int, num_ranks: int, batch_size: int, **options: Any) -> TableLoader:
    return StructuredDataset.create_dataloader(
        folder,
        columns=["row"],
        split_size=ROWS,
        shuffle="splits",
        num_workers=1,
        rank=rank,
        num_ranks=num_ranks,
        batch_size=batch_size,
        check_plan=False,
        **options,
    )[0]


def _stopped(loader: TableLoader) -> tuple[Rows, Any]:
    """Return the rows of all batches of an epoch, and the state after the first of them."""
    with loader:
        batches = (batch["row"].tolist() for batch in loader)
        taken = list(itertools.islice(batches, TAKEN))
        state = loader.state_dict()
        return [*taken, *batches], state


def _continued(loader: TableLoader, state: Any) -> Rows:
    """Return the rows of the batches that come after a state."""
    with loader:
        loader.load_state_dict(state)
        return [batch["row"].tolist() for batch in loader]


def resumed() -> tuple[list[Rows], list[Rows]]:
    """Return the batches of two ranks, of which each takes two, and of three that go on."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            write_file(folder, number)
        before = [_stopped(_loader(folder, rank, 2, 3)) for rank in range(2)]
        after = [_continued(_loader(folder, rank, 3, 2), before[0][1]) for rank in range(3)]
    return [batches for batches, _ in before], after


def grown() -> tuple[Rows, Rows]:
    """Return the batches of two files, of which two are taken, and of three files that go on."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES - 1):
            write_file(folder, number)
        before, state = _stopped(_loader(folder, 0, 1, ROWS))
        write_file(folder, FILES - 1)
        return before, _continued(_loader(folder, 0, 1, ROWS, on_growth="continue"), state)


def _steps(left: int, top: int, width: int, title: str, batches: Rows, first: int = 0) -> list[str]:
    """Draw batches below each other, from a step on; an epoch's that are not taken are faint."""
    body = [card(left, top, width, 44 + PITCH * len(batches)), text(left + 10, top + 22, title, "title")]
    for place, rows in enumerate(batches):
        below = top + 34 + place * PITCH
        opacity = 1.0
        if first == 0 and place >= TAKEN:
            opacity = 0.3
        drawn = [text(left + 10, below + 16, f"step {first + place}", "note"), *strip(left + 76, below, rows)]
        body += [f'<g opacity="{opacity}">', *drawn, "</g>"]
    return body


def resume() -> str:
    """Return the picture of a state on other ranks."""
    before, after = resumed()
    title = "Two ranks stop after two steps, and three go on with the rows that were left"
    body = [text(LEFT, 26, "Two ranks stop after two steps", "title")]
    for rank, batches in enumerate(before):
        body += _steps(LEFT + rank * 300, 38, 284, f"Rank {rank}", batches)
    top = 38 + 44 + PITCH * len(before[0]) + 8
    body += [arrow(WIDTH // 2, top), text(LEFT, top + 52, "Three ranks load the state, and take the rest", "title")]
    for rank, batches in enumerate(after):
        body += _steps(LEFT + rank * 200, top + 64, 184, f"Rank {rank}", batches, TAKEN)
    return svg(title, top + 64 + 44 + PITCH * len(after[0]) + 12, body)


def growing() -> str:
    """Return the picture of a state in a table that has grown."""
    before, after = grown()
    title = "A job stops after two steps; the table gets a file, and the rest of the epoch has its rows too"
    return svg(
        title,
        318,
        [
            text(LEFT, 26, "Monday: two files", "title"),
            *_table(38, FILES - 1),
            *_steps(LEFT, 140, 284, "Stopped after two steps", before),
            text(LEFT + 300, 26, "Tuesday: a third file", "title"),
            *_table(38, FILES, left=LEFT + 300),
            *_steps(LEFT + 300, 140, 284, "The epoch goes on", after, TAKEN),
        ],
    )


def _table(top: int, files: int, left: int = LEFT) -> list[str]:
    """Draw the rows of files, one below the other."""
    return [
        drawn
        for number in range(files)
        for drawn in strip(left, top + number * PITCH, range(number * GROUPS * ROWS, (number + 1) * GROUPS * ROWS))
    ]


PICTURES = {"resume.svg": resume, "growing.svg": growing}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        Path(sys.argv[1], name).write_text(picture())
