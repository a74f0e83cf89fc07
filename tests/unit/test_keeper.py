"""When a machine's cache goes up: only when nothing more important does, and never when the machine is about to go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.boot import Boot
from broker.cache import Times, newest
from broker.guest.cache import Keeper
from broker.guest.machine import Machine
from broker.guest.places import Places
from broker.guest.provider import ProviderHalf
from broker.guest.spec import Spec
from broker.home import Access, Home, JobKeys

KEYS = JobKeys("j")


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def holds(condition: Callable[[], object], seconds: float = 0.5) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition()
        time.sleep(0.02)


@pytest.fixture
def machine(home: Home, tmp_path: Path) -> Iterator[Machine]:
    boot = Boot(
        "j", 1, "inst", "local", Access(home.url), "", time.time() + 300, "max_hours", "", "", scan=0.01,
        offer={"price": 1.0, "disk_price": 0.0},
    )  # fmt: skip
    made = Machine(boot, tmp_path / "disk", ProviderHalf(lambda: None, lambda _: None), {"HOME": str(tmp_path)})
    yield made
    made.contain.close()


def keeper_of(machine: Machine, home: Home, place: Path) -> Keeper:
    places = Places(machine.folder, place, boxed=False, shared=True)
    return Keeper(machine._context(home), Spec("t", "run", setup="setup", cache=("~/models", "/models")), places)


@pytest.fixture
def keeper(machine: Machine, home: Home, tmp_path: Path) -> Iterator[Keeper]:
    made = keeper_of(machine, home, tmp_path)
    made.restore()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").write_text("a")
    yield made
    made.finish(0)
    wait_for(lambda: not made.is_alive())


def times(home: Home) -> Times | None:
    found = newest(home, KEYS)
    return found[1].times if found else None


def saved(home: Home) -> set[str]:
    found = newest(home, KEYS)
    return set(found[1].folders["~/models"].manifest.files) if found else set()


def test_it_waits_while_a_snapshot_goes_up(keeper: Keeper, home: Home) -> None:
    uploading = threading.Event()
    uploading.set()
    keeper.busy = uploading.is_set
    keeper.start()
    holds(lambda: not home.list(KEYS.root))
    uploading.clear()
    wait_for(lambda: saved(home) == {"a"})


def test_nothing_goes_up_once_the_program_is_to_end(keeper: Keeper, machine: Machine, home: Home) -> None:
    uploading = threading.Event()
    uploading.set()
    keeper.busy = uploading.is_set
    keeper.start()
    holds(lambda: not home.list(KEYS.root))
    machine.status.set(state="stopping")  # as on a notice
    uploading.clear()
    holds(lambda: not home.list(KEYS.root))


def test_what_is_written_all_the_time_is_saved_when_it_has_come_to_rest(
    keeper: Keeper, home: Home, tmp_path: Path
) -> None:
    keeper.start()
    wait_for(lambda: saved(home) == {"a"})
    made = set("a")

    def goes_on() -> bool:
        made.add(f"b{len(made)}")
        for name in made:
            (tmp_path / "models" / name).touch()
        return saved(home) == {"a"}

    holds(goes_on, 2.0)
    wait_for(lambda: saved(home) == made)


def test_the_last_save_waits_for_outputs_and_snapshot_and_for_nothing_else(keeper: Keeper, home: Home) -> None:
    keeper.hold()
    keeper.start()
    holds(lambda: not home.list(KEYS.root))
    keeper.finish(20.0)
    assert saved(home) == {"a"}


def test_what_setup_fetches_is_timed_by_setup(keeper: Keeper, machine: Machine, home: Home, tmp_path: Path) -> None:
    keeper.ready(5.0, setup=True)
    keeper.start()
    wait_for(lambda: times(home) == Times(5.0))
    keeper.finish(20.0)
    again = keeper_of(machine, home, tmp_path / "another")
    again.restore()
    again.ready(0.5, setup=True)
    again.start()
    again.ready(9.0, setup=False)
    wait_for(lambda: times(home) == Times(5.0, 0.5))
    again.finish(20.0)


def test_what_the_program_fetches_is_timed_to_its_first_step(
    keeper: Keeper, machine: Machine, home: Home, tmp_path: Path
) -> None:
    """A setup that fetched nothing says nothing: with it as the measure no cache would ever seem worth its way."""
    (tmp_path / "models" / "a").rename(tmp_path / "a")
    keeper.ready(5.0, setup=True)
    keeper.start()
    holds(lambda: not home.list(KEYS.root))
    (tmp_path / "a").rename(tmp_path / "models" / "a")
    wait_for(lambda: times(home) == Times())
    keeper.ready(60.0, setup=False)
    wait_for(lambda: times(home) == Times(65.0, None, by_setup=False))
    keeper.finish(20.0)
    again = keeper_of(machine, home, tmp_path / "another")
    again.restore()
    again.ready(5.0, setup=True)
    again.ready(8.0, setup=False)
    again.start()
    wait_for(lambda: times(home) == Times(65.0, 13.0, by_setup=False))
    again.finish(20.0)


def test_a_machine_that_came_back_times_nothing(machine: Machine, home: Home, tmp_path: Path) -> None:
    """Its setup finds everything there, which says nothing of a machine where it does not."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").write_text("a")
    keeper = keeper_of(machine, home, tmp_path)
    keeper.restore()
    keeper.ready(0.5, setup=True)
    keeper.start()
    wait_for(lambda: saved(home) == {"a"})
    assert times(home) == Times()
    keeper.finish(20.0)


def test_a_folder_that_is_not_kept_here_is_told(keeper: Keeper, machine: Machine) -> None:
    """`local` shares its computer with its owner: nothing is read or written at absolute paths there."""
    assert keeper.folders.folders.keys() == {"~/models"}
    assert machine.status.get("cache") == ("cache: /models: absolute, so not kept on a machine shared with its owner")
