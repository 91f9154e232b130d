"""The contract of split strategies, over a zoo of tables, ranks, workers and epochs.

The zoo holds every shape of table that has broken a split strategy before.
"""

from __future__ import annotations

import copy
import datetime as dt
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_table_loader.planning.cutting import as_layout
from torch_table_loader.planning.splits import SplitTable
from torch_table_loader.planning.strategies import Strategy, resolve_strategy
from torch_table_loader.records import DataFileInfo, RowGroupInfo
from torch_table_loader.testing.rules import ContractError, contract_errors, pickled, require

if TYPE_CHECKING:
    from torch_table_loader.planning.layout import TableLayout
    from torch_table_loader.records import DataFileInfo

Tables = Mapping[str, Sequence["DataFileInfo"]]
Answer = list[tuple[int, str, int, int]]
"""``(worker, path, row_start, row_stop)`` of each split of one rank, in reading order."""

_CHILD = "import sys; from torch_table_loader.testing.split_strategies import _answer_file; _answer_file(*sys.argv[1:])"
_CHILD_SECONDS = 300

_WORDS = ("plain", "with space", "ünïcode-文", "k=v", "percent%2Fname")


class World(NamedTuple):
    """The arguments that a generator is called with."""

    num_ranks: int
    num_workers: int
    epoch: int


def check_split_strategy(
    strategy: Any,
    files: Sequence[DataFileInfo] | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    ranks: Sequence[int] = (1, 2, 3, 8),
    workers: Sequence[int] = (1, 2, 5),
    epochs: Sequence[int] = (0, 1, 7),
    other_process: bool = True,
) -> None:
    """Check a split strategy of either form.

    It must have a valid form, be picklable, leave its input unchanged, name shards in ``[0, num_workers)``, report
    correct row counts if any, cover each row once unless its `coverage` is "any", and give the same answer each time:
    called again, in another order, after pickling, and in a process with another ``hash()`` of strings.

    Args:
        strategy: the object, or the name under which it is installed.
        files: a table of your own; None for all tables of `zoo`.
        arguments: options that the caller of a loader may set for a strategy found by name: shuffle, seed,
            target_bytes, target_rows.
        ranks: numbers of ranks to check.
        workers: numbers of workers of a rank to check.
        epochs: epochs to check.
        other_process: whether to check in a fresh Python too (takes seconds).

    Raises:
        ContractError: a rule is broken; the message names the rule, the table, and the ranks, workers and epoch.
        ConfigError: the object has no valid form, or no strategy is installed under the name.

    >>> from torch_table_loader import TargetSizeStrategy
    >>> check_split_strategy(TargetSizeStrategy(target_rows=7), other_process=False)
    """
    resolved = resolve_strategy(strategy, arguments or {})
    tables: Tables = zoo()
    if files is not None:
        tables = {"files": list(files)}
    worlds = [World(*sizes) for sizes in itertools.product(ranks, workers, epochs)]
    expected = _answers(resolved, tables, worlds)
    backwards = dict(reversed(list(tables.items())))
    _check_same(resolved, expected, _answers(resolved, backwards, worlds[::-1]), "asked again, in another order")
    unpickled = resolve_strategy(pickled(resolved.target, resolved.name), {})
    require(
        unpickled.coverage == resolved.coverage,
        f"{resolved.name} declares coverage={resolved.coverage!r}, and {unpickled.coverage!r} after pickling; declare "
        "it where the class or function is defined",
    )
    _check_same(resolved, expected, _answers(unpickled, tables, worlds), "pickled")
    for table, entries in tables.items():
        _check_input_is_left_alone(resolved, table, entries, worlds)
    if other_process:
        _check_same(resolved, expected, _answers_elsewhere(resolved, tables, worlds), "asked in another process")


def _answers(strategy: Strategy, tables: Tables, worlds: Sequence[World]) -> dict[str, Answer]:
    """Return all answers, each under the location that a message names."""
    answers: dict[str, Answer] = {}
    for table, files in tables.items():
        layout = as_layout(list(files))
        if strategy.cuts:
            where = f"table {table!r}"
            with contract_errors(strategy.name, f"on {where}"):
                answers[where] = _normal(strategy.cut(layout), itertools.repeat(0))
            continue
        for world in worlds:
            answers |= _dealt(strategy, table, layout, world)
    return answers


def _dealt(strategy: Strategy, table: str, layout: TableLayout, world: World) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    parts = []
    for rank in range(world.num_ranks):
        where = _where(table, world, rank)
        with contract_errors(strategy.name, f"on {where}"):
            splits, lane_of = strategy.deal(layout, world.num_workers, world.epoch, world.num_ranks, rank)
        answers[where] = _normal(splits, lane_of.tolist())
        parts.append(splits)
    with contract_errors(strategy.name, f"on {_where(table, world)}"):
        strategy.check_coverage(parts)
    return answers


def _normal(splits: SplitTable, lane_of: Any) -> Answer:
    names = [splits.layout.files[file].name for file in splits.file.tolist()]
    return list(zip(lane_of, names, splits.row_start.tolist(), splits.row_stop.tolist(), strict=False))


def _check_input_is_left_alone(
    strategy: Strategy, table: str, files: Sequence[DataFileInfo], worlds: Sequence[World]
) -> None:
    for world in worlds[:: max(1, len(worlds) - 1)] if not strategy.cuts else [None]:
        given = copy.deepcopy(list(files))
        where = f"table {table!r}" if world is None else _where(table, world, 0)
        with contract_errors(strategy.name, f"on {where}"):
            if world is None:
                splits = SplitTable.of(as_layout(list(files)), strategy.target(given), strategy.name)
                same = _normal(splits, itertools.repeat(0)) == _normal(strategy.cut(splits.layout), itertools.repeat(0))
                require(same, f"{strategy.name} on {where} must cut a list of files as it cuts any other sequence")
            else:
                _check_counts(strategy, given, world, where)
        require(given == list(files), f"{strategy.name} on {where} must not change the files it is given, but did")


def _check_counts(strategy: Strategy, files: list[DataFileInfo], world: World, where: str) -> None:
    rows_of = {file.path: sum(group.num_rows for group in file.row_groups) for file in files}
    for shard in strategy.shards(files, world.num_workers, world.epoch, world.num_ranks, 0):
        rows = sum(rows_of[s.file.path] if s.row_range is None else s.row_range.length for s in shard.splits)
        require(
            shard.row_count in (None, rows),
            f"{strategy.name} on {where} says row_count={shard.row_count} of shard {shard.id}, whose splits have "
            f"{rows} rows; count right, or leave it None",
        )


def _check_same(strategy: Strategy, expected: dict[str, Answer], found: dict[str, Answer], when: str) -> None:
    for where, answer in expected.items():
        if found[where] == answer:
            continue
        pairs = itertools.zip_longest(answer, found[where])
        number, (before, after) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ContractError(
            f"{strategy.name} on {where} must be pure, but {when} it answers otherwise: split {number} (worker, path, "
            f"row_start, row_stop) was {before} and is now {after}; use nothing but the arguments: no random state, "
            "time, environment, counter, set order or hash() of strings"
        )


def _answers_elsewhere(strategy: Strategy, tables: Tables, worlds: Sequence[World]) -> dict[str, Answer]:
    """Return the answers of a fresh Python, in which strings have other hashes."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment["PYTHONHASHSEED"] = "1" if environment.get("PYTHONHASHSEED") == "0" else "0"
    with TemporaryDirectory() as folder:
        question, answer = Path(folder, "question"), Path(folder, "answer")
        question.write_bytes(pickle.dumps((strategy, dict(tables), list(worlds))))
        child = subprocess.run(  # noqa: S603 - our own interpreter and our own words
            [sys.executable, "-c", _CHILD, str(question), str(answer)],
            env=environment, capture_output=True, text=True, timeout=_CHILD_SECONDS, check=False,
        )  # fmt: skip
        require(
            child.returncode == 0,
            f"{strategy.name} must work in another process, as workers are, but there: "
            f"{child.stderr.strip().rpartition(chr(10))[2]}; define it in a module that can be imported",
        )
        answers: dict[str, Answer] = pickle.loads(answer.read_bytes())  # noqa: S301 - our own bytes
    return answers


def _answer_file(question: str, answer: str) -> None:
    strategy, tables, worlds = pickle.loads(Path(question).read_bytes())  # noqa: S301 - our own bytes
    Path(answer).write_bytes(pickle.dumps(_answers(strategy, tables, worlds)))


def _where(table: str, world: World, rank: int | None = None) -> str:
    place = f"table {table!r}, num_ranks={world.num_ranks}"
    if rank is not None:
        place += f" rank={rank}"
    return f"{place} num_workers={world.num_workers} epoch={world.epoch}"


def data_file(
    path: str,
    rows: Sequence[int],
    *,
    partition: dict[str, object] | None = None,
    pruned: Sequence[int] = (),
    row_bytes: int = 100,
) -> DataFileInfo:
    """Describe a file that need not exist.

    Args:
        path: relative to the table's root.
        rows: rows of each row group.
        partition: partition values by column.
        pruned: the row groups that statistics prune.
        row_bytes: bytes of a row, before compression.

    >>> data_file("a.parquet", [3, 4]).record_count
    7
    """
    groups = tuple(RowGroupInfo(count, count * row_bytes, at not in pruned) for at, count in enumerate(rows))
    return DataFileInfo(path, sum(rows) * row_bytes // 2 + 4, sum(rows), partition or {}, groups)


def zoo() -> dict[str, list[DataFileInfo]]:
    """Return fresh tables by name, from the fewest possible files, rows and row groups to many.

    >>> ", ".join(sorted(zoo())[:3])
    'empty files, empty row groups, hive partitions'
    """
    return {
        "no files": [],
        "one row": [data_file("only.parquet", [1])],
        "empty files": [data_file("0.parquet", []), data_file("1.parquet", [5]), data_file("2.parquet", [])],
        "nothing but empty files": [data_file(f"{at}.parquet", []) for at in range(3)],
        "empty row groups": [data_file("0.parquet", [0, 4, 0, 0, 3, 0]), data_file("1.parquet", [0])],
        "one-row files": [data_file(f"{at:02}.parquet", [1]) for at in range(13)],
        "one big file": [data_file("big.parquet", [1000] * 7)],
        "uneven files": [data_file(f"{at}.parquet", [3**at, 1]) for at in range(9)],
        "pruned row groups": [data_file(f"{at}.parquet", [10, 20, 30], pruned=[at % 3, 1]) for at in range(6)],
        "hive partitions": _partitioned(),
        "odd names": [data_file(f"dir/{word}/{word}.parquet", [at, 7]) for at, word in enumerate(_WORDS)],
        "many files": [data_file(f"part-{at * 37 % 101:05}.parquet", [at % 5, 40 - at % 7]) for at in range(101)],
    }


def _partitioned() -> list[DataFileInfo]:
    """Return files partitioned by two columns, interleaved, with nulls."""
    first = dt.date(2024, 2, 27)
    days = [None if at == 3 else first + dt.timedelta(days=at) for at in range(5)]
    regions = ("eu", None, "us")
    return [
        data_file(
            f"day={day or '__HIVE_DEFAULT_PARTITION__'}/region={region or '__HIVE_DEFAULT_PARTITION__'}/{part}.parquet",
            [part + at, 6],
            partition={"day": day, "region": region},
        )
        for part in range(2)
        for at, day in enumerate(reversed(days))
        for region in regions
    ]
