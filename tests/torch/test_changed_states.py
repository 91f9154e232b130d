"""States that were changed: each is refused, or continues as the state of a real job that says the same."""

from __future__ import annotations

import copy
import json
import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.effort import daily
from tests.states import State, is_ended, named, newest, record_of, samples_of, stages_of
from tests.tables.plain import meant_warnings
from tests.text.packing_reference import write_documents
from tests.torch.modes import LAKE, MIXTURE, ROWS, SOME, SPLITS, STREAMS, Mode, write_rows
from torch_table_loader import ConfigError, MixedDataset, Pack, ResumeError, StructuredDataset, TableLoader

OTHERS: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 10**6, 2**31, 2**40, 2**62, 2**63, 10**40, 0.5, float("inf"), float("nan")),
    *("", "xxx", b"x", [], [1], [[]], {}, {"a": 1}),
]
DOCUMENTS: dict[str, list[list[int | None]]] = {
    "a": [[5, 0, 17, 1], [None, 40, 3], [9, 9, 2, 2, 30], [12, 33, 4, 6]],
    "b": [[7, 8, 9], [3, 3, 3, 50], [16, 16]],
}
GIB = 1 << 30
_MOST = 60
"""Batches that are read at most."""

Make = Callable[..., TableLoader]
"""Makes a loader of a case; takes options of a job's shape."""
Place = tuple[str | int, ...]
"""Where a value stands in a state: keys and numbers, from the outside in."""


@dataclass(frozen=True)
class Case:
    """A job that is stopped, and the loader that continues it.

    Args:
        make: makes a loader.
        stages: options and steps of each part of the epoch before the state was saved.
        rows: lists what a batch has.
    """

    make: Make
    stages: list[tuple[dict[str, Any], int]]
    rows: Callable[[Any], list[Any]]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the last stage, with which the job goes on."""
        return self.stages[-1][0]

    def state(self, epoch: int = 0) -> State:
        state = None
        for options, steps in self.stages:
            state = self.after(state, epoch, steps, options)
        assert state is not None
        return state

    def after(self, state: State | None, epoch: int, steps: int, options: dict[str, Any]) -> State:
        """Return the state that a job saves after more steps, on a rank that has not ended before others."""
        for rank in range(options.get("num_ranks", 1)):
            loader = self.make(**options, **({"rank": rank} if "num_ranks" in options else {}))
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            found = len(list(islice(loader, steps)))
            after = plain(loader.state_dict())
            if found == steps and not is_ended(after):
                return after
        raise AssertionError(f"no rank takes {steps} steps under {options}")

    def read(self, loader: TableLoader) -> list[Any]:
        """List what is left; of what goes on for long, enough to tell it from others."""
        return [row for batch in islice(loader, _MOST) for row in self.rows(batch)]

    def real(self, state: State, other: State) -> list[Any] | str:
        """List what a job gives that really was at the place of a changed state, or why there is none.

        Args:
            state: before it was changed.
            other: the state, which was accepted and gives other rows.
        """
        fresh = self.make(**self.options)
        if other["kind"] == "splits":
            try:
                fresh.load_state_dict(self.replayed(other))
            except (AssertionError, ConfigError) as error:
                return f"cannot be: {error}"
            return self.read(fresh)
        fresh.set_epoch(other["epoch"])
        rows = [row for batch in islice(fresh, 2 * _MOST) for row in self.rows(batch)]
        return rows[samples_of(other) :][: 2 * _MOST]

    def replayed(self, state: State) -> State:
        """Return the state of a real job that took the stages of a history."""
        found: State | None = None
        before: Any = None
        for entry in stages_of(state):
            steps, options = self.stage_of(entry)
            job = self.job_of(entry)
            if not steps and found is not None:
                break
            if (job, options) == before:  # a stage of no steps lies between
                found = job.after(found, state["epoch"], 0, options | {"num_workers": options["num_workers"] + 1})
            found, before = job.after(found, state["epoch"], steps, options), (job, options)
        assert found is not None
        return found

    def job_of(self, entry: dict[str, Any]) -> Case:
        """Return the job that took a stage."""
        return self

    def stage_of(self, entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Read the steps of a stage, and the options of its job."""
        ranks, size, shares = entry["num_ranks"], entry["batch_size"], named(entry.get("mixture"))
        options = {
            "num_ranks": ranks,
            "num_workers": entry["lanes"],
            "batch_size": size,
            "even_ranks": entry["even_ranks"] or False,
            "drop_last": entry["drop_last"],
        }
        if shares is not None:
            return entry["steps"], options | {"global_batch_size": shares.get("micro_batches", 1) * ranks * size}
        return entry["steps"], options | {"shuffle_buffer_size": entry.get("shuffle_buffer_size") or 0}


class Tokens(Case):
    """A job of sequences, as long as the state says: they count by tokens."""

    def stage_of(self, entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        steps, options = super().stage_of(entry)
        options.pop("shuffle_buffer_size")
        return steps, options | {"batch_size": 1, "pack": Pack(seq_len=options["batch_size"])}

    def real(self, state: State, other: State) -> list[Any] | str:
        if (
            other["kind"] == "splits"
            or "mixture" in other
            or self.make(**self.options).options.pack != Pack(seq_len=6, tokens="input_ids")
        ):
            return super().real(state, other)
        fresh = self.make(**self.options)
        fresh.set_epoch(other["epoch"])
        flat = [token for batch in fresh for row in self.rows(batch) for token in row if token]
        packing = record_of(other, "packing")
        taken = packing["origin"] + samples_of(other) * packing["seq_len"]
        rows = [flat[at : at + 6] for at in range(taken, len(flat), 6)]
        return [row + [0] * (6 - len(row)) for row in rows]


@dataclass(frozen=True)
class Grown(Case):
    """A job whose table grew after some steps."""

    old: Make | None = None

    def state(self, epoch: int = 0) -> State:
        assert self.old is not None
        before = Case(self.old, self.stages, self.rows).state(epoch)
        return self.after(before, epoch, 1, self.options)

    def job_of(self, entry: dict[str, Any]) -> Case:
        assert self.old is not None
        return Case(self.old, [], self.rows) if entry.get("extent") else self

    def real(self, state: State, other: State) -> list[Any] | str:
        if other["kind"] == "splits" or not newest(other).get("extents"):
            return super().real(state, other)
        assert self.old is not None
        fresh = self.make(**self.options)
        fresh.load_state_dict(Case(self.old, [({}, 0)], self.rows).state(other["epoch"]))
        return self.read(fresh)[samples_of(other) :]


def plain(state: State) -> State:
    return dict(json.loads(json.dumps(state)))


def of_mode(mode: Mode, root: Path, **fixed: Any) -> tuple[Make, Callable[[Any], list[Any]]]:
    def make(**options: Any) -> TableLoader:
        return mode.make(root, **(fixed | options))

    return make, mode.rows


def of_tokens(root: Path, **fixed: Any) -> Make:
    """Return what makes loaders of one table of documents, or of two with ``weights``."""

    def make(**options: Any) -> TableLoader:
        chosen: dict[str, Any] = (
            {"num_workers": 2, "batch_size": 2, "columns": ["id"], "check_plan": False} | fixed | options
        )
        with meant_warnings():
            if "weights" not in chosen:
                return StructuredDataset.create_dataloader(str(root / "a"), **chosen)[0]
            own: dict[str, Any] = {"shuffle": chosen.pop("shuffle"), "check_plan": False}
            sources = {name: StructuredDataset(str(root / name), pack=chosen["pack"], **own) for name in "ab"}
            chosen.pop("columns")
            return MixedDataset.create_dataloader(sources, **chosen)[0]

    return make


def tokens(batch: Any) -> list[Any]:
    found: list[Any] = batch["input_ids"].tolist()
    return found


RESHAPED: list[tuple[dict[str, Any], int]] = [({"num_ranks": 3}, 1), ({"num_workers": 1, "batch_size": 4}, 2)]
NAMES = [
    "splits",
    "splits, windows and other shapes",
    "splits, filtered",
    "splits, not counted",
    "splits, growing",
    "rows",
    "rows, other shapes",
    "rows, growing",
    "iceberg",
    "mixture",
    "mixture, natural, other shapes",
    "streams",
    "streams, natural, other shapes",
    "packed stream",
    "packed concat",
    "packed pad",
    "packed best_fit",
    "packed windows",
    "packed mixture concat",
    "packed mixture best_fit",
    "packed mixture of streams",
]

LONG = (
    {"splits, windows and other shapes", "splits, filtered", "splits, not counted"}
    | {"streams", "streams, natural, other shapes", "mixture, natural, other shapes"}
    | {name for name in NAMES if "packed mixture" in name}
)


@pytest.fixture(scope="module")
def cases(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return what gives a case by its name."""
    documents = tmp_path_factory.mktemp("documents")
    for number, (name, groups) in enumerate(DOCUMENTS.items()):
        write_documents(documents / name, groups, first=100 * number)

    def growing(mode: Mode) -> Case:
        """Write a table, and the same one with a file more."""
        root = tmp_path_factory.mktemp("growing")
        groups = [[9, 4, 11], [1], [7, 7]]
        write_rows(root / "old" / "a", groups[:2])
        write_rows(root / "new" / "a", groups)
        for at in range(3):
            os.utime(root / "new" / "a" / f"{at:03}.parquet", (1000 + at, 1000 + at))
        (make, rows), (old, _) = (of_mode(mode, root / name, on_growth="continue") for name in ("new", "old"))
        return Grown(make, [({}, 2)], rows, old=old)

    def find(name: str) -> Case:
        plain_modes = {"splits": SPLITS, "rows": ROWS, "iceberg": LAKE, "mixture": MIXTURE, "streams": STREAMS}
        kind, _, how = name.partition(", ")
        if kind in plain_modes:
            mode = plain_modes[kind]
            if how == "growing":
                return growing(mode)
            fixed: dict[str, dict[str, Any]] = {
                "windows and other shapes": {"shuffle_buffer_size": 7},
                "filtered": {"filters": SOME},
                "not counted": {"filters": SOME, "count_filtered": False},
                "natural, other shapes": {"weights": "rows"},
            }
            make, rows = of_mode(mode, tables, **fixed.get(how, {}))
            return Case(make, RESHAPED if "shapes" in how else [({}, 4)], rows)
        *_, how = name.split()
        if name == "packed stream":
            make = of_tokens(documents, shuffle="splits", split_size=4, pack=Pack(seq_len=6))
            return Tokens(make, [({}, 4)], tokens)
        if name == "packed mixture of streams":
            options: dict[str, Any] = {"shuffle": "splits", "pack": Pack(seq_len=6), "weights": {"a": 2, "b": 1}}
            return Case(of_tokens(documents, stop="all_exhausted", **options), [({}, 4)], tokens)
        packing: dict[str, Any] = {"seq_len": 6, "strategy": how}
        packing |= {} if how in ("concat", "windows") else {"long_docs": "split"}
        packing |= {"block_docs": 5} if how == "best_fit" else {}
        mixed: dict[str, Any] = {"weights": {"a": 1, "b": 3}, "stop": "all_exhausted"} if "mixture" in name else {}
        make = of_tokens(documents, shuffle="rows", pack=Pack(**packing), **mixed)
        return Tokens(make, [({}, 7 if mixed else 4)], tokens)

    return find


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let the process take four more GiB at most, so that numbers that take more are errors of memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * GIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def places_of(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield where each value of a state stands, those that hold others too."""
    if at:
        yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from places_of(entry, (*at, name))


def changes_of(state: State) -> Iterator[tuple[str, State]]:
    """Yield what was changed, and the state after it: every value by others, and what holds values by more or fewer."""
    for at in places_of(state):
        if at[0] == "history" and at[1:2] != (len(state["history"]) - 1,) and len(at) == 7 and at[-1] == 0:
            continue  # the name of a source in a stage that is over: it may be gone since, which nobody can tell
        before = value_at(state, at)
        others = [*OTHERS, *(before + by for by in (-1, 1, 7) if type(before) is int)]
        if isinstance(before, dict):
            others += [{**before, "another": 1}]
        if isinstance(before, list):
            others += [[*before, more] for more in (0, None, True, "x", *before[-1:])]
            others += [before[::-1], before[:-1]]
        for other in others:
            if repr(other) != repr(before):
                yield f"{at} = {other!r}", with_value(state, at, other)
        changed = copy.deepcopy(state)
        del value_at(changed, at[:-1])[at[-1]]
        yield f"{at} deleted", changed


def value_at(state: Any, at: Place) -> Any:
    for name in at:
        state = state[name]
    return state


def with_value(state: State, at: Place, value: Any) -> State:
    changed = copy.deepcopy(state)
    value_at(changed, at[:-1])[at[-1]] = copy.deepcopy(value)
    return changed


@pytest.mark.usefixtures("little_memory")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES])
@daily(2)
def test_a_changed_state_is_refused_or_continues_as_that_of_a_real_job(cases: Callable[[str], Case], name: str) -> None:
    case = cases(name)
    loader, state = case.make(**case.options), case.state()
    loader.load_state_dict(state)
    rest = case.read(loader)
    assert rest
    wrong = []
    for what, other in changes_of(state):
        try:
            loader.load_state_dict(other)
            found = case.read(loader)
        except ResumeError:
            continue
        except Exception as error:  # noqa: BLE001 whatever it is, it is what this test looks for
            wrong.append(f"{what}: {type(error).__name__} {error}")
            continue
        if found != rest and found != (real := case.real(state, other)):
            wrong.append(
                f"{what}: it gives {len(found)} rows, and a real job {real if isinstance(real, str) else len(real)}"
            )
    assert not wrong, f"{len(wrong)} of these: " + "\n".join(wrong[:40])
