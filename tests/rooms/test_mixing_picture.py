"""The picture of how well orders mix shows what the bench measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from bench.mixing import READERS
from bench.results import machines
from bench.shuffle_pictures import MIXED, PANELS, mixed, orders

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "mixing.svg"


def test_the_picture_is_what_the_script_draws() -> None:
    assert PICTURE.read_text() == mixed(machines()), "run: python -m bench.shuffle_pictures"


def test_it_is_one_file_that_is_readable_in_light_and_dark() -> None:
    root = ET.fromstring(mixed(machines()))  # noqa: S314 we drew it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in mixed(machines())
    assert not re.search(r"href|url\(|<image|<script", mixed(machines()))


def test_the_bench_measures_what_is_drawn() -> None:
    shown = {who for each in MIXED.values() for who in each}
    assert shown <= READERS.keys()
    assert orders(machines()).keys() == shown


def test_the_machine_that_measured_all_orders_last_is_drawn() -> None:
    def machine(at: str, spread: float, orders: list[str]) -> dict[str, Any]:
        figures = dict.fromkeys(PANELS, spread) | {"held": 1 << 20}
        return {"orders": [{"table": "sorted", "ranks": 1, "who": who, "at": at, "figures": figures} for who in orders]}

    whole = [who for each in MIXED.values() for who in each]
    measured = [
        machine("2026-01-02", 0.2, whole),
        machine("2026-01-01", 0.1, whole),
        machine("2026-01-03", 0.3, whole[1:]),
    ]
    assert {entry["figures"]["spread"] for entry in orders(measured).values()} == {0.2}
