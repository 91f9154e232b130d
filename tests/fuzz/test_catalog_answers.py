"""The law of catalogs: whatever a REST catalog answers, the right rows or an error of this library; no code is loaded.

To repeat a case that failed: ``python -m tests.fuzz.test_catalog_answers 17``.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.effort import daily, examples
from tests.fuzz.catalog_cases import PLANTED, Answers, Handler, read_answers, read_watched
from tests.fuzz.mutations import damaged, damaged_tree
from tests.fuzz.tables_to_damage import Lake, make_lake
from tests.launchers.sandbox import Outcome, Sandbox, outcome_of
from tests.servers.folders import answering
from torch_table_loader import TableLoaderError
from torch_table_loader.source.table_storage import TableStorage

FEW, MANY = 60, 600
"""Cases in every run, and in long ones, which effort multiplies."""

CONFIG, TOKENS, TABLE = "/v1/config", "/v1/oauth/tokens", "/v1/namespaces/db/tables/t"
SPACES, NAMES = "/v1/namespaces", "/v1/namespaces/db/tables"
CODE: Sequence[tuple[str, Any]] = (
    ("py-io-impl", "subprocess.Popen"),
    ("py-io-impl", f"{PLANTED}.f"),
    ("py-catalog-impl", f"{PLANTED}.f"),
    ("s3.retry-strategy-impl", f"{PLANTED}.f"),
    ("write.py-location-provider.impl", f"{PLANTED}.f"),
    ("auth", {"type": "custom", "impl": f"{PLANTED}.f"}),
    ("auth", {"type": "custom", "impl": "subprocess.Popen", "custom": {"args": ["/bin/true"]}}),
)
HEADERS = ("Location", "Content-Encoding", "Content-Type", "Content-Length", "Transfer-Encoding", "Set-Cookie")
VALUES = ("", "gzip", "br", "chunked", "-1", "99999999999999999999", "text/html; charset=utf-7", "http://127.0.0.1:9/")


def sound_answers(lake: Lake) -> dict[str, Any]:
    """What a catalog that is right answers, by path."""
    properties = {"s3.session-token-expires-at-ms": "4102444800000", "s3.region": "r", "client.region": "r"}
    metadata = json.loads(lake.files["metadata"].read_text())
    return {
        CONFIG: {"defaults": {"warehouse": "w"}, "overrides": {"prefix": ""}, "endpoints": None},
        TOKENS: {"access_token": "token", "token_type": "bearer", "expires_in": 3600},
        TABLE: {
            "metadata-location": lake.location,
            "metadata": metadata | {"properties": {"owner": "me"}},
            "config": dict(properties),
            "storage-credentials": [{"prefix": "file:", "config": dict(properties)}],
        },
        SPACES: {"namespaces": [["db"]], "next-page-token": None},
        NAMES: {"identifiers": [{"namespace": ["db"], "name": "t"}], "next-page-token": None},
    }


def named_code(answers: dict[str, Any], random: Random) -> str:
    """Name code in one of the answers."""
    place, key = random.choice(
        (
            (answers[CONFIG], "defaults"),
            (answers[CONFIG], "overrides"),
            (answers[TABLE], "config"),
            (answers[TABLE]["metadata"], "properties"),
            (answers[TABLE]["storage-credentials"][0], "config"),
        )
    )
    name, value = random.choice(CODE)
    place[key][name] = value
    return f"{name} = {value} in {key}"


def damage(lake: Lake, seed: int) -> tuple[str, Answers, str]:
    """Return which table is asked for, damaged answers, and what was done."""
    random = Random(seed)
    answers = sound_answers(lake)
    done = [named_code(answers, random)] if seed % 4 == 0 else []
    name = "db.u" if seed % 5 == 4 else "db.t"
    path = random.choice((CONFIG, TOKENS, TABLE, TABLE, TABLE) if name == "db.t" else (SPACES, NAMES))
    if seed % 4:
        answers[path], what = damaged_tree(answers[path], seed)
        done.append(f"{path}: {what}")
    written: dict[str, tuple[int, dict[str, str], bytes]] = {
        each: (200, {}, json.dumps(said).encode()) for each, said in answers.items()
    }
    status, headers, body = written[path]
    if seed % 3 == 0:
        body, what = damaged(body, seed)
        done.append(what)
    if seed % 7 == 0:
        status = random.choice((201, 204, 206, 301, 302, 304, 307, 400, 401, 404, 409, 419, 429, 500, 503, 999))
        done.append(f"status {status}")
    if seed % 6 == 1:
        headers = {random.choice(HEADERS): random.choice(VALUES)}
        done.append(f"{headers}")
    written[path] = status, headers, body
    return name, written, ", ".join(done)


Run = Callable[[Sequence[tuple[Any, ...]]], Sequence[Outcome]]
"""Reads tables, given the arguments of `read_watched`."""


def faults(run: Run, folder: Path, seeds: range) -> list[str]:
    """Read a table as often as there are seeds; what breaks the law."""
    lake = make_lake("v2", folder)
    written: Answers = {path: (200, {}, json.dumps(said).encode()) for path, said in sound_answers(lake).items()}
    [sound] = run([(str(lake.root), "db.t", written, "")])
    assert sound.kind == "value", sound
    assert sound.value.count > 0
    cases = [damage(lake, seed) for seed in seeds]
    outcomes = run([(str(lake.root), name, answers, sound.value.digest) for name, answers, _ in cases])
    return [
        f"seed {seed} ({what}): {outcome.kind}: {outcome.error} {outcome.text}\n{outcome.trace}"
        for seed, (_, _, what), outcome in zip(seeds, cases, outcomes, strict=True)
        if outcome.kind not in ("value", "ours")
    ]


def test_whatever_a_catalog_answers_gives_the_rows_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    load = importlib.import_module

    def noted(name: str, package: str | None = None) -> Any:
        asked.append(name)
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", noted)
    with answering(Handler) as host:
        read = partial(outcome_of, partial(read_answers, f"http://{host}"))
        assert faults(lambda cases: list(map(read, cases)), tmp_path, range(FEW)) == []
    assert {name.partition(".")[0] for name in asked}.isdisjoint({PLANTED, "subprocess"})


STORE = {"s3.endpoint": "http://127.0.0.1:9", "s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "r"}
VALUES_OF: Mapping[str, Sequence[Any]] = {
    "s3.endpoint": (5, True, [], {}, "http://[", "9" * 400, "a\nb"),
    **dict.fromkeys(("s3.region", "s3.access-key-id", "s3.session-token"), ("\ud800", "a\nb")),
    "s3.session-token-expires-at-ms": ("x", [], float("nan"), 10**400, "9" * 400),
    "s3.force-virtual-addressing": (True,),
    "s3.connect-timeout": ("soon",),
}
STRANGE = [(name, value) for name, values in VALUES_OF.items() for value in values]


@pytest.mark.parametrize(("name", "value"), STRANGE, ids=lambda value: repr(value)[:20])
@daily(8)
def test_what_a_catalog_says_of_a_store_is_read_or_refused(name: str, value: Any) -> None:
    place = "s3://bucket/metadata/v1.metadata.json"
    for provider in (None, dict):
        storage = TableStorage(place, STORE | {name: value}, provider=provider, retry_seconds=0)
        with pytest.raises(TableLoaderError):
            storage.open(place)


@pytest.mark.slow
def test_many_answers(sandbox: Sandbox, tmp_path: Path) -> None:
    run = partial(sandbox.run_all, read_watched)
    assert faults(run, tmp_path, range(FEW, FEW + examples(MANY))) == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        table = make_lake("v2", Path(made))
        asked, damaged_answers, said = damage(table, int(sys.argv[1]))
        print(said)
        print(outcome_of(read_watched, (str(table.root), asked, damaged_answers, "")))
