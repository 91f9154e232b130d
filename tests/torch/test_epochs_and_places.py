"""An iteration over several epochs, beginning anywhere in one, and the end of a loader's threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.effort import daily
from tests.torch.all_modes import MODES
from tests.torch.modes import MIXTURE, ROWS, SPLITS, Mode
from tests.waiting import until_only
from torch_table_loader import ConfigError
from torch_table_loader.engine import machine
from torch_table_loader.engine.jobs import job as jobs

pytestmark = pytest.mark.usefixtures("small_gathers")


def epoch_by_epoch(mode: Mode, tables: Path, epochs: range, **options: Any) -> list[list[int]]:
    """List the batches of some epochs, each of which is set."""
    loader, batches = mode.make(tables, **options), []
    for epoch in epochs:
        loader.set_epoch(epoch)
        batches += mode.read(loader)
    return batches


# ---- several epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(3)
def test_an_iteration_runs_through_its_epochs(mode: Mode, tables: Path) -> None:
    loader = mode.make(tables, epochs=3)
    for epochs in (range(3), range(3, 6)):
        wanted = epoch_by_epoch(mode, tables, epochs)
        assert len(loader) == len(wanted)
        assert mode.read(loader) == wanted
        assert loader.state_dict()["epoch"] == epochs.stop


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(3)
def test_one_epoch_an_iteration_shuffles_each_anew(mode: Mode, tables: Path, recwarn: pytest.WarningsRecorder) -> None:
    loader = mode.make(tables, epochs=1)
    assert [mode.read(loader) for _ in range(2)] == [
        epoch_by_epoch(mode, tables, range(epoch, epoch + 1)) for epoch in range(2)
    ]
    assert not [str(entry.message) for entry in recwarn if "iterated again" in str(entry.message)]


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(4)
def test_an_epoch_asks_the_system_and_the_schema_for_nothing_that_the_last_one_knew(
    mode: Mode, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide tables and short epochs would pay for it: both take milliseconds."""
    asked: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            asked.append(name)
            return function(*args)

        return noted

    for module, name in ((jobs, "make_codec"), (machine, "_cpu_quotas")):
        monkeypatch.setattr(module, name, noting(name, getattr(module, name)))
    loader = mode.make(tables, epochs=1)
    mode.read(loader)
    assert "make_codec" in asked
    asked.clear()
    mode.read(loader)
    assert not asked


@pytest.mark.parametrize("epochs", [3, "forever"])
@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(2)
def test_a_state_of_any_step_gives_the_rest(mode: Mode, tables: Path, epochs: Any) -> None:
    whole = epoch_by_epoch(mode, tables, range(3))
    for taken in range(0, len(whole) + 1, 11):
        loader = mode.make(tables, epochs=epochs)
        before = mode.read(itertools.islice(loader, taken))
        resumed = mode.make(tables, epochs=epochs)
        resumed.load_state_dict(loader.state_dict())
        if taken < len(whole) or epochs == "forever":
            assert before + mode.read(itertools.islice(resumed, len(whole) - taken)) == whole
        else:
            assert resumed.state_dict()["epoch"] == 2  # its last batch was given, and its end was not seen


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(3)
def test_another_number_of_ranks_goes_on_in_a_later_epoch(mode: Mode, tables: Path) -> None:
    steps = len(mode.make(tables, num_ranks=2, rank=0, even_ranks="pad")) + 2
    ranks = [mode.make(tables, num_ranks=2, rank=rank, even_ranks="pad", epochs=2) for rank in range(2)]
    before = [mode.read(itertools.islice(loader, steps)) for loader in ranks]
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1]
    assert states[0]["epoch"] == 1
    alone = mode.make(tables, epochs=2)
    alone.load_state_dict(states[0])
    rest = mode.read(alone)
    of_epoch = [row for batches in before for batch in batches[-2:] for row in batch]
    mode.check_whole(of_epoch + sum(rest, []), mode.live(tables))


def test_forever_has_no_length_and_goes_on(tables: Path) -> None:
    loader = ROWS.make(tables, epochs="forever")
    with pytest.raises(TypeError, match='epochs="forever"'):
        len(loader)
    steps = len(ROWS.make(tables))
    taken = ROWS.read(itertools.islice(loader, 7 * steps))
    assert loader.state_dict()["epoch"] == 6
    assert taken == epoch_by_epoch(ROWS, tables, range(7))


def test_forever_on_a_rank_without_a_batch_is_refused(tables: Path) -> None:
    with pytest.warns(UserWarning, match="leaves rank 0 no step"):
        loader = SPLITS.make(tables, epochs="forever", batch_size=1000, drop_last=True)
    with pytest.raises(ConfigError, match="never gives a batch on rank 0"):
        next(iter(loader))


def test_a_mixture_without_an_end_stays_in_its_epoch(tables: Path) -> None:
    loader = MIXTURE.make(tables, epochs=2, stop="forever")
    list(itertools.islice(loader, 100))
    assert loader.state_dict()["epoch"] == 0


def test_metrics_count_all_epochs(tables: Path) -> None:
    loader = SPLITS.make(tables, epochs=2)
    batches = SPLITS.read(loader)
    assert loader.metrics().batches == len(batches)
    assert loader.metrics().rows == sum(map(len, batches))


def test_a_loader_of_the_callers_own_sets_epochs_itself(tables: Path) -> None:
    own = DataLoader(SPLITS.open(tables, epochs=2), batch_size=None)
    with pytest.raises(ConfigError, match=r"call dataset\.set_epoch\(epoch\)"):
        next(iter(own))


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "for ever"])
def test_wrong_epochs_are_refused(tables: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="epochs must be"):
        SPLITS.make(tables, epochs=wrong)


# ---- a place in an epoch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(3)
def test_a_loader_begins_where_it_is_told(mode: Mode, tables: Path) -> None:
    whole, loader = epoch_by_epoch(mode, tables, range(2, 3)), mode.make(tables)
    for step in (0, 1, len(whole) // 2, len(whole)):
        assert loader.seek(epoch=2, step=step) == step
        assert mode.read(loader) == whole[step:]
        assert loader.seek(epoch=2, sample=5 * step + 4 * (step < len(whole))) == step
        assert mode.read(loader) == whole[step:]
    assert loader.seek(epoch=2, fraction=0.5) == len(whole) // 2
    state = loader.state_dict()
    assert mode.read(loader) == whole[len(whole) // 2 :]
    resumed = mode.make(tables)
    resumed.load_state_dict(state)
    assert mode.read(resumed) == whole[len(whole) // 2 :]


@pytest.mark.parametrize("mode", MODES, ids=str, scope="session")
@daily(3)
def test_ranks_that_seek_alike_deliver_the_rest_once(mode: Mode, tables: Path) -> None:
    ranks = [mode.make(tables, num_ranks=2, rank=rank, even_ranks="pad") for rank in range(2)]
    whole = [mode.read(loader) for loader in ranks]
    assert {loader.seek(sample=30) for loader in ranks} == {3}
    assert [mode.read(loader) for loader in ranks] == [batches[3:] for batches in whole]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ({"step": 1, "sample": 5}, "in one way, got step and sample"),
        ({"step": 1000}, "after its end"),
        ({"sample": 100_000}, "after its end"),
        ({"step": -1}, "step must be"),
        ({"fraction": 1.5}, "from 0 to 1"),
        ({"fraction": True}, "from 0 to 1"),
        ({"epoch": -1}, "epoch must be"),
    ],
)
def test_places_that_are_not_there_are_refused(tables: Path, place: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SPLITS.make(tables).seek(**place)


def test_half_of_what_has_no_end_is_refused(tables: Path) -> None:
    with pytest.raises(TypeError, match="pass step= or sample="):
        MIXTURE.make(tables, stop="forever").seek(fraction=0.5)


# ---- the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"worker_type": "fork"}], ids=str)
def test_a_closed_loader_leaves_no_worker_and_goes_on_where_it_was(tables: Path, options: dict[str, Any]) -> None:
    whole = SPLITS.read(SPLITS.make(tables))
    threads = set(threading.enumerate())
    with SPLITS.make(tables, **options) as loader:
        batches = iter(loader)
        before = SPLITS.read(itertools.islice(batches, 2))
        state = loader.state_dict()
    until_only(threads)  # those of torch's queues end a moment later
    assert next(batches, None) is None
    assert loader.state_dict() == state
    loader.load_state_dict(state)
    assert before + SPLITS.read(loader) == whole
