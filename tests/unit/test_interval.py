"""How often a program should save, and how it is told."""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest

from broker.guest import environment
from broker.guest.bootfile import Boot
from broker.guest.spec import Spec
from broker.home import Access
from broker.interval import LONGEST, SHORTEST, UNMEASURED, interval


@pytest.mark.parametrize(
    ("hazard", "save", "every", "want"),
    [
        (0.041, None, None, UNMEASURED),
        (0.041, 4.0, None, 838.0),  # sqrt(2 * 4 s * 3600 / 0.041)
        (0.0, 4.0, None, LONGEST),
        (0.001, 30.0, None, LONGEST),
        (40.0, 1.0, None, SHORTEST),
        (0.041, 4.0, 120.0, 120.0),
        (0.041, None, 2.5, 2.5),
    ],
)
def test_the_interval(hazard: float, save: float | None, every: float | None, want: float) -> None:
    assert interval(hazard, save, every=every) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize(("hazard", "save"), [(0.041, 4.0), (0.2, 20.0), (1.0, 10.0)])
def test_no_other_interval_wastes_less(hazard: float, save: float) -> None:
    def wasted(every: float) -> float:
        """Seconds per second of progress: saves, and what is done again after losses (Daly, exact)."""
        rate = hazard / 3600
        return (exp(rate * (every + save)) - 1) / rate / every - 1

    best = interval(hazard, save)
    assert SHORTEST < best < LONGEST
    assert wasted(best) <= 1.02 * min(wasted(seconds) for seconds in range(10, 7200, 10))


def test_the_program_is_told_at_its_start_and_by_a_file(tmp_path: Path) -> None:
    boot = Boot("j", 1, "i", "local", Access("file:///h", {}), "", 1.0, "max_hours", "", "", hazard=0.041, save=4.0)
    boot = Boot.from_bytes(boot.to_bytes())
    spec, progress = Spec("j", "true"), tmp_path / "progress"
    env = environment.program({}, boot, spec, lib=tmp_path, checkpoint=tmp_path, progress=progress, resumed=False)
    file = Path(env[b"BROKER_CHECKPOINT_EVERY_FILE"].decode())
    assert env[b"BROKER_CHECKPOINT_EVERY"] == b"838"
    environment.say_every(progress, boot, spec, None)
    assert file.read_text() == "838\n"
    environment.say_every(progress, boot, spec, 1.0)
    assert file.read_text() == "419\n"
    environment.say_every(progress, boot, Spec("j", "true", every=0.5), 1.0)
    assert file.read_text() == "1\n"
