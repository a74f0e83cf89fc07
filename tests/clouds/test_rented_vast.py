"""A rehearsal on Vast's stand-in: two contracts that really run, a move without a notice, and never above the limit."""

from __future__ import annotations

from typing import Any

import pytest
from clouds.machine import IMAGE
from clouds.test_vast_job import PROGRAM, site, vast
from clouds.vast.stage import Stage
from crash.harness import Site

from broker.policy.budget import SETTLING
from broker.rehearse.rented import Rented
from broker.resources import Resources

__all__ = ["PROGRAM", "site", "vast"]


def ended(_phase: str, job: Any, _mover: Any) -> None:
    job.wait(180.0)


@pytest.mark.slow
def test_a_rehearsal_on_vast_bids_less_than_its_limit_and_leaves_no_contract(vast: Stage, site: Site) -> None:
    task = site.task(
        "count",
        run="exec python3 program.py",
        envs={"STEPS": "2000"},
        resources=(Resources(gpu="RTX4090", gpu_count=1, infra=("vast",), image=IMAGE),),
    )
    rented = Rented.of(task, site.config, on=["vast"], max_usd=0.30)
    assert rented.notice == "vast", "Vast gives no notice"
    result = rented.perform(ended)
    assert result.verdict.code == 0, result.verdict
    assert [take.notice for take in result.taken] == ["vast"]
    assert rented.left() == []
    assert not vast.account.contracts
    contracts = vast.account.past
    assert len(contracts) == 2, site.story(rented.job)
    assert result.spent is not None
    assert vast.account.spent() <= 0.30
    assert result.spent <= 0.30
    assert rented.job is not None
    frozen = [row.request for row in rented.job.placements() if row.launched_at is not None]
    worst = sum(
        (request["offer"]["price"] + request["offer"]["disk_price"])
        * (request["end_by"] - request["frozen_at"] + SETTLING) / 3600
        for request in frozen
    )  # fmt: skip
    assert worst <= 0.30, "with the broker dead, too"
    rented.remove()
    assert rented.job.home.list(f"jobs/{rented.job.id}/") == []
