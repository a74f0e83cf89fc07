"""How much work is left, and who says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.policy.work import UNKNOWN, Stay, lag, left

HOUR = 3600.0


def stay(hours: float, **more: Any) -> Stay:
    return Stay(began=1e9, until=1e9 + hours * HOUR, **more)


def test_the_task_says_it() -> None:
    found = left(6.0, None, on="A100")
    assert (found.hours, found.on, found.source) == (6.0, "A100", "work.hours: 6")


def test_progress_says_how_much_of_it_is_done() -> None:
    found = left(6.0, None, stays=[stay(2.0, first=0, step=250, total=1000, saved=200, live=True)])
    assert found.hours == pytest.approx(4.5)
    assert found.source == "work.hours: 6, of which 250 of 1000 steps are done"
    gone = left(6.0, None, stays=[stay(2.0, first=0, step=250, total=1000, saved=200)])
    assert gone.hours == pytest.approx(4.8)  # what was not saved is done again


def test_without_progress_what_has_run_counts() -> None:
    found = left(6.0, None, stays=[stay(1.5), stay(0.5)])
    assert found.hours == pytest.approx(4.0)
    assert "less the 2 h that it has run" in found.source
    assert left(1.0, None, stays=[stay(5.0)]).hours == 0.0
    stays = [stay(2.0, card="L4"), stay(0.5, card="H100-SXM")]
    other = left(6.0, None, on="H100", stays=stays, speed={"H100": 1.0, "L4": 0.25})
    assert other.hours == pytest.approx(5.0), "two hours of a slow card are half an hour of the other"
    assert other.source == "work.hours: 6, less the 2.5 h that it has run, worth 1 on H100"


def test_progress_alone_says_it_by_its_pace() -> None:
    found = left(None, None, stays=[stay(2.0, first=100, step=300, total=1000, saved=250, card="H100", live=True)])
    assert found.hours == pytest.approx(7.0)
    assert found.source == "its progress: 700 steps left at 100 an hour on H100"
    assert found.on == "H100"
    own = left(None, 500, stays=[stay(2.0, first=100, step=300, total=1000, live=True)])
    assert own.hours == pytest.approx(2.0)  # the task's word on the number of steps wins
    assert own.source.startswith("work.steps: ")


def test_a_checkpoint_says_it() -> None:
    stays = [stay(2.0, first=0, step=400, saved=400)]
    found = left(None, None, stays=stays, checkpoint=(400, 1000))
    assert found.hours == pytest.approx(3.0)
    assert found.source == "its checkpoint (step 400 of 1000): 600 steps left at 200 an hour"
    assert left(6.0, None, checkpoint=(250, 1000)).hours == pytest.approx(4.5)


def test_earlier_jobs_say_it() -> None:
    found = left(None, 1000, paces={"A100": 250.0})
    assert found.hours == pytest.approx(4.0)
    assert found.source.endswith("at 250 an hour on A100, as earlier jobs of this task made them")


@pytest.mark.parametrize(
    "stays", [(), [stay(2.0)], [stay(1.0, first=0, step=1, total=100)], [stay(0.0, first=0, step=50, total=100)]]
)
def test_nothing_says_it(stays: list[Stay]) -> None:
    assert left(None, None, stays=stays) is UNKNOWN


def test_how_a_machine_compares_with_its_card() -> None:
    at, card = 1e9, "A100"
    live = Stay(at, at + 3600, first=0, step=100, card=card, live=True)
    before = Stay(at - 7200, at - 3600, first=0, step=200, card=card)
    assert lag([before, live]) == pytest.approx(0.5)
    assert lag([live], {card: 400.0}) == pytest.approx(0.25)
    assert lag([before, live], {card: 50.0}) == pytest.approx(0.5), "the job's own machines go before other jobs'"
    assert lag([replace(before, card="H100"), live]) is None, "another card"
    assert lag([replace(before, until=at - 6900), live]) is None, "five minutes show no pace"
    assert lag([before, replace(live, step=19)]) is None
    assert lag([before, replace(live, until=at + 500)]) is None
    assert lag([live]) is None
    assert lag([before]) is None
