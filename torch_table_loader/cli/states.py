"""``torch-table-loader skip``: a state in a file, and some steps after it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torch_table_loader.cli.terminal import number_of, show
from torch_table_loader.engine.state import left_out, read_state
from torch_table_loader.errors import ConfigError
from torch_table_loader.local_files import write_whole
from torch_table_loader.nesting import load_json
from torch_table_loader.units import integer


def skip(typed: argparse.Namespace) -> None:
    """Write a state of a job that leaves out steps, and print where it goes on."""
    steps = integer("--steps", typed.steps, 1)
    rows = None if typed.rows_per_step is None else integer("--rows-per-step", typed.rows_per_step, 1)
    path, out = Path(typed.state), Path(typed.out)
    try:
        state = load_json(path.read_bytes(), str(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"STATE must be a file with what state_dict() returned, as JSON ({error})") from error
    after = left_out(state, steps, rows)
    write_whole(out, json.dumps(after).encode())
    taken = read_state(after).taken
    value = {"out": str(out), "epoch": taken.epoch, "steps_taken": taken.steps_taken}
    place = f"{number_of(taken.steps_taken, 'step')} into epoch {taken.epoch}"
    show(typed, value, f"{out} goes on {number_of(steps, 'step')} after {path}: {place}")
