"""Take each guest off a copy of the checkout, and see that the rest works and that the guest is refused clearly.

    python -m tools.guests [NAME ...] [--list]

A guest is a part of the package that the core does not import; `torch_table_loader/installed.py` has the table of
them, this module their tests and pages. For each, its modules, tests and pages are deleted from a copy.
There the tests of levels run, some of the core, and some of each other guest. The command fails where a test fails, or
where what the guest served is not refused by one error that says "this build has no …".
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.plant import ROOT, copied
from torch_table_loader.installed import GUESTS

PACKAGE = "torch_table_loader"

MODULES = {name: guest.modules for name, guest in GUESTS.items()}
"""The modules and folders of each guest, relative to the package."""

FRONT = ("", "extend", "installed", "keywords", "options")
"""Modules that may name guests: what users type, what authors import, and the table of what is installed."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a guest has beside its modules.

    Args:
        asks: a program that must be refused where the guest is off.
        chosen: some of its tests, which need no other guest; they run where another one is off.
        tests: all files of its tests, as patterns; they go with it.
        pages: of the documentation, which go with it.
        shared: tests of the core that need the guest too; the beginnings of their names, as pytest writes them.
    """

    asks: str
    chosen: tuple[str, ...]
    tests: tuple[str, ...]
    pages: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


CORE = (
    "tests/laws/test_levels.py",
    "tests/torch/test_frozen_order.py",
    "tests/torch/test_rows.py",
    "tests/torch/test_state.py",
)
"""What runs whichever guest is off."""

_READER = "from torch_table_loader.extend import reader_for\nreader_for({!r})"

BESIDE = {
    "cli": Beside(
        "from torch_table_loader.cli.main import main",
        ("tests/rooms/test_cli_main.py::test_numbers_agree_with_their_nouns",),
        ("tests/rooms/test_cli_*.py", "tests/rooms/test_registry.py"),
        ("cli",),
    ),
    "integrations": Beside(
        "from torch_table_loader.integrations.transformers import TableTrainer",
        ("tests/torch/test_resume_table.py",),
        (
            *("tests/torch/test_lightning.py", "tests/torch/test_resume_table.py", "tests/torch/test_trainer.py"),
            *("tests/launchers/scripts/lightning_scenes.py", "tests/launchers/scripts/trainer_scenes.py"),
        ),
    ),
    "testing": Beside(
        "from torch_table_loader.testing import check_split_strategy",
        (
            "tests/rooms/test_testing.py::test_a_sound_reader_passes",
            "tests/rooms/test_testing.py::test_faulty_sources_are_refused",
        ),
        ("tests/rooms/test_testing*.py", "tests/rooms/test_plug_ins.py"),
    ),
    "report": Beside(
        "import pyarrow as pa\n"
        "from torch_table_loader import StructuredDataset\n"
        'StructuredDataset.from_arrow(pa.table({"x": [1]})).explain().to_html()',
        (
            "tests/rooms/test_report.py::test_a_page_is_self_contained",
            "tests/rooms/test_report.py::test_notebooks_show_the_same_as_repr",
        ),
        ("tests/rooms/test_report.py", "tests/products/test_report_*.py"),
    ),
    "delta": Beside(
        "from torch_table_loader import DeltaDataset",
        ("tests/rooms/test_delta_tables.py::test_deletion_vectors",),
        ("tests/rooms/test_delta_*.py", "tests/torch/test_delta_*.py", "tests/services/test_delta_*.py"),
        ("delta",),
    ),
    "iceberg": Beside(
        "from torch_table_loader import IcebergDataset",
        (
            "tests/rooms/test_iceberg_tables.py::test_a_schema_that_evolves",
            "tests/rooms/test_iceberg_tables.py::test_rows_that_pyiceberg_deletes_or_overwrites",
        ),
        (
            *("tests/rooms/test_iceberg_*.py", "tests/torch/test_iceberg_*.py", "tests/services/test_iceberg_*.py"),
            *(
                "tests/rooms/test_named_code.py",
                "tests/rooms/test_rest_client.py",
                "tests/fuzz/test_damaged_iceberg.py",
            ),
            *("tests/products/test_*_of_iceberg.py", "tests/products/test_mixed_iceberg.py"),
        ),
        ("catalogs", "iceberg"),
    ),
    "far": Beside(
        "from torch_table_loader import StructuredDataset\n"
        'StructuredDataset("s3://bucket/table", format="parquet", batch_size=2)',
        (
            "tests/far/test_fetch_fetcher.py::test_each_read_gets_its_bytes_within_the_budget",
            "tests/far/test_store_remote.py::test_windows_deliver_the_order_and_join_neighbours",
        ),
        (
            *("tests/far/*.py", "tests/products/test_*_of_far.py"),
            *("tests/servers/simulated.py", "tests/servers/buckets.py"),
            *("tests/fuzz/store_cases.py", "tests/fuzz/test_damaged_stores.py"),
            *("tests/torch/test_disk_cache.py", "tests/torch/test_fetching.py", "tests/torch/test_leaving_far.py"),
            *("tests/text/test_packed_far.py", "tests/torch/test_read_ahead.py", "tests/torch/test_rows_url.py"),
            *("tests/rooms/test_listing_rounds.py", "tests/rooms/test_store_lists.py"),
            "tests/rooms/test_source_table_formats.py",
            *("tests/services/test_*s3*.py", "tests/services/test_aws_environment.py"),
            *("tests/services/test_other_clouds.py", "tests/services/test_read_ahead_faults.py"),
            *("tests/services/test_renewed_logins.py", "tests/services/test_source_faults.py"),
        ),
        ("object-stores",),
    ),
    "avro": Beside(
        _READER.format("avro"),
        ("tests/formats/test_avro.py::test_every_type_round_trips",),
        ("tests/formats/test_avro.py", "tests/fuzz/test_damaged_avro_schemas.py"),
    ),
    "csv_json": Beside(
        _READER.format("jsonl"),
        (
            "tests/formats/test_csv.py::test_types_come_from_the_whole_file_not_from_its_first_block",
            "tests/formats/test_json.py::test_types_come_from_the_whole_file_and_blocks_follow_them",
        ),
        ("tests/formats/test_compressed.py", "tests/formats/test_csv.py", "tests/formats/test_json.py"),
        shared=(
            "tests/torch/test_frozen_order.py::test_frozen_words_and_orders[a mixture",
            "tests/torch/test_frozen_order.py::test_frozen_words_of_what_follows_a_state[a mixture",
        ),
    ),
    "ipc": Beside(
        _READER.format("arrow"),
        ("tests/formats/test_ipc.py::test_single_columns_are_read_in_the_requested_order",),
        ("tests/formats/test_ipc.py",),
    ),
    "orc": Beside(
        _READER.format("orc"),
        ("tests/formats/test_orc.py::test_stripe_rows_come_from_the_footer_under_every_compression",),
        ("tests/formats/test_orc.py",),
    ),
    "statistics": Beside(
        "import pyarrow as pa\n"
        "from torch_table_loader import StructuredDataset\n"
        'StructuredDataset.from_arrow(pa.table({"x": [1]})).statistics(["x"])',
        (
            "tests/laws/test_value_sums.py::test_many_values_are_summed_in_exact_runs",
            "tests/laws/test_value_sums.py::test_non_finite_numbers_are_counted",
        ),
        ("tests/laws/test_value_sums.py", "tests/torch/test_measuring.py"),
    ),
    "budgets": Beside(
        "import pyarrow as pa\n"
        "from torch_table_loader import Budget, StructuredDataset\n"
        'StructuredDataset.from_arrow(pa.table({"x": [1]}), batch_size=Budget(tokens=8, length="x"))',
        (),
        ("tests/torch/test_budget_streams.py",),
        (),
    ),
    "order": Beside(
        "import pyarrow as pa\n"
        "from torch_table_loader import StructuredDataset\n"
        'StructuredDataset.from_arrow(pa.table({"x": [1]}), shuffle="rows", weights="x")',
        (
            "tests/order/test_weights.py::test_repeats_say_how_often_each_row_comes",
            "tests/order/test_grown_order.py::test_old_rows_keep_their_order_and_new_rows_follow",
        ),
        ("tests/order/*.py", "tests/products/test_weights_of_*.py"),
        ("weights",),
        shared=(
            "tests/torch/test_frozen_order.py::test_frozen_words_and_orders[rows by weight",
            "tests/torch/test_frozen_order.py::test_frozen_words_and_orders[a mixture that draws by weight",
        ),
    ),
    "text": Beside(
        "import pyarrow as pa\n"
        "from torch_table_loader import StructuredDataset\n"
        'StructuredDataset.from_arrow(pa.table({"x": [1]}), pack={"seq_len": 8})',
        (
            "tests/text/test_packing.py::test_presets_have_the_names_of_their_field",
            "tests/text/test_pack_schedule.py::test_seek_and_rows_of_count_steps_over_lengths",
        ),
        (
            *("tests/text/*.py", "tests/text/states", "tests/products/test_*_of_packing.py"),
            *("tests/products/test_mixed_lengths.py", "tests/products/test_mixed_packed_streams.py"),
            *("tests/products/test_mixed_ends.py", "tests/products/test_mixed_schedules.py"),
            *("tests/products/test_mixed_options.py", "tests/products/test_taken_sources.py"),
        ),
        ("language-models",),
    ),
    "mixtures": Beside(
        "from torch_table_loader import MixedDataset",
        (
            "tests/mixtures/test_mixed_jobs.py::test_the_order_does_not_depend_on_the_topology",
            "tests/mixtures/test_quotas.py::test_natural_shares_deliver_each_row_once",
        ),
        (
            *("tests/mixtures/*.py", "tests/products/test_mixed_*.py", "tests/products/test_taken_sources.py"),
            "tests/products/test_*_of_mixtures.py",
        ),
        ("api-mixed-dataset", "mixing"),
        shared=(
            "tests/torch/test_frozen_order.py::test_frozen_words_and_orders[a mixture",
            "tests/torch/test_frozen_order.py::test_frozen_words_of_what_follows_a_state[a mixture",
        ),
    ),
    "tensorproto": Beside(
        _READER.format("tensorproto"),
        ("tests/torch/test_tensor_shards.py::test_numbers_that_arrow_has_not_are_padded_with_zeros",),
        (
            *("tests/formats/test_tensorproto.py", "tests/torch/test_tensor_shards.py"),
            *("tests/torch/test_shard_habits.py", "tests/services/test_s3_tensor_shards.py"),
        ),
        ("tensor-shards",),
    ),
}
"""By guest."""

_ASKING = """
try:
    exec({!r})
except ImportError as error:
    print(type(error).__name__, error)
"""
_DAILY = ("-m", "not slow and not rare and not kills and not heavy")


def files_of(name: str, root: Path) -> Iterator[Path]:
    """Yield the files and folders of a guest: modules, tests and pages."""
    for module in GUESTS[name].modules:
        place = root / PACKAGE / module.replace(".", "/")
        yield place if place.is_dir() else place.with_suffix(".py")
    for pattern in BESIDE[name].tests:
        yield from sorted(root.glob(pattern))
    yield from (root / "docs" / f"{page}.md" for page in BESIDE[name].pages)


def take_off(name: str, root: Path) -> int:
    """Delete the files of a guest from a checkout; return how many lines of Python went."""
    lines = 0
    for place in files_of(name, root):
        modules = place.rglob("*.py") if place.is_dir() else [place] * (place.suffix == ".py")
        lines += sum(len(each.read_text("utf-8").splitlines()) for each in modules)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
    return lines


def ran(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a checkout."""
    paths = {"PYTHONPATH": os.pathsep.join([str(root), str(root / "strategies")])}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=root, env=os.environ | paths, capture_output=True, check=False, text=True, encoding="utf-8"
    )


def faults_without(name: str, root: Path) -> list[str]:
    """Return what is wrong in a checkout from which a guest was taken."""
    asked = ran(root, "-c", _ASKING.format(BESIDE[name].asks))
    refusal = f"MissingExtraError this build has no {GUESTS[name].title}: "
    found = []
    if not asked.stdout.startswith(refusal):
        found.append(f"expected {refusal!r}, got {asked.stdout + asked.stderr[-500:]!r}")
    chosen = [test for other, beside in BESIDE.items() if other != name for test in beside.chosen]
    shared = [f"--deselect={beginning}" for beginning in BESIDE[name].shared]
    tests = ran(root, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *_DAILY, *shared, *CORE, *chosen)
    if tests.returncode:
        found.append(tests.stdout[-3000:] + tests.stderr[-1000:])
    return found


def check(names: Sequence[str], root: Path) -> bool:
    """Take guests off copies of a checkout, one at a time, print a line for each, and return whether all came off."""
    good = True
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(root, Path(folder))
            lines = take_off(name, copy)
            faults = faults_without(name, copy)
        took = f"{lines:,} lines of modules and tests ({time.monotonic() - began:.0f} s)"
        print("\n".join([f"{'STAYS' if faults else 'off  '} {name}: {took}", *faults]), flush=True)
        good &= not faults
    return good


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit with 1 unless each guest came off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the guests to take off; without, all")
    parser.add_argument("--list", action="store_true", help="list the guests")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.names) - GUESTS.keys():
        parser.error(f"no such guest: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        print("\n".join(f"{name}: {guest.title}" for name, guest in GUESTS.items()))
        return
    sys.exit(not check(asked.names or list(GUESTS), ROOT))


if __name__ == "__main__":
    main()
