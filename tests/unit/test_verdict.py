"""The verdict counts moves, not attempts to cause one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.rehearse.check import SURVIVES, UNPROVEN
from broker.rehearse.hand import TakeBack
from broker.rehearse.verdict import judge
from broker.report import Move, Report
from broker.store import JobRow


def report(stays: int, moves: tuple[Move, ...]) -> Report:
    stay: Any = SimpleNamespace(first_step=1, saves=2, last_step=9, generation=1, marks=(), segments=())
    return Report("j", "j", "succeeded", "", 0.0, 9.0, (stay,) * stays, moves, 0.0, 0.0, simulated=True)


@pytest.mark.parametrize(("moved", "code"), [(False, UNPROVEN), (True, SURVIVES)])
def test_a_machine_taken_back_when_all_was_done_proves_nothing(moved: bool, code: int) -> None:
    row = JobRow("j", "j", 0.0, "succeeded", "file:///h", {})
    taken = [TakeBack(1, 1, "aws", 5.0, 9, (1, 2), 8)]
    move = Move(1, 2, "notice", 9, (1, 2), 9, 10, 0, 1.0, 1.0)
    verdict = judge(row, report(1 + moved, (move,) if moved else ()), taken, wanted=1, interval=4)
    assert verdict.code == code, verdict.text
    assert moved or "it ended before it was taken back" in verdict.text
