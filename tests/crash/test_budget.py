"""A budget on real machines: it holds with the broker dead, over a handover, and the job can be resumed."""

from __future__ import annotations

import pytest
from crash.harness import Site, kill, wait_for

from broker.job import Job
from broker.task import Work
from broker_local.cloud import refuse, take_back


def spent(site: Site, job: Job) -> float:
    """USD by the provider's own list, the broker's books aside."""
    mine = [machine for machine in site.provider.instances() if machine.job == job.id]
    stays = [(m.hourly, m.launched_at, m.ended_at) for m in mine]
    assert all(ended is not None for _, _, ended in stays)
    return sum(hourly * ((ended or 0.0) - (began or 0.0)) / 3600 for hourly, began, ended in stays)


def test_a_budget_holds_with_the_broker_dead_and_the_job_goes_on_with_a_higher_one(site: Site) -> None:
    budget = 8.0 * 0.02 / 3600  # some thirteen seconds of the cheapest machine
    job = site.submit(site.task("thrifty", steps=700, pause=0.02, budget=budget))
    with site.up() as process:
        site.event(job, "snapshot", 1)
        kill(process)
        machine = site.machine(job, 1)
        wait_for(lambda: not site.machines(), "the machine to end itself", 60.0)
        assert 0.4 * budget < spent(site, job) <= budget
    with site.up():
        site.done(job)
        assert (job.status, job.exit_code) == ("limit", 104), site.story(job)
        assert job.row.fix.startswith(f"broker resume {job.id} --budget USD")
        assert len({row.instance for row in job.placements()}) == 1
        assert machine.id == job.placements()[0].instance
        job.resume(budget=1.0)
        site.done(job)
    site.audit(lost_at_most=10)
    assert job.spent > budget


@pytest.mark.slow
def test_two_machines_in_a_handover_keep_the_budget(site: Site) -> None:
    budget = 10.0 * 0.02 / 3600
    job = site.submit(site.task("moved", steps=5000, pause=0.02, budget=budget))
    with site.up():
        site.event(job, "snapshot", 1)
        take_back(site.root, site.machine(job, 1).id, "aws", seconds=3.0)
        site.done(job)
    assert (job.status, job.exit_code) == ("limit", 104), site.story(job)
    assert len([row for row in job.placements() if row.instance]) >= 2
    assert 0.4 * budget < spent(site, job) <= budget


@pytest.mark.slow
def test_a_job_goes_back_to_spot_and_works_on_until_the_new_machine_is_ready(site: Site) -> None:
    """Spot is refused everywhere at first. What is lost by the move back is one save and one start, no start-up."""
    site.config.file.write_text(site.config.file.read_text().replace("[limits]", "[limits]\nweigh = 1.0"))
    for zone in ("north", "south", "east"):
        refuse(site.root, f"local/{zone}/{zone}-1/*/spot", times=1)
    job = site.submit(site.task("returns", steps=2000, pause=0.02, setup="sleep 2", work=Work(hours=1.0)))
    with site.up():
        site.event(job, "weighed", timeout=90.0)
        wait_for(lambda: len({line["generation"] for line in site.of("returns", "start")}) > 1, "the move", 90.0)
        job.stop(now=True)
        site.done(job)
    rows = [row for row in job.placements() if row.instance]
    assert [row.market for row in rows] == ["on_demand", "spot"]
    assert not site.of("returns", "two at once")
    reached = max(line["step"] for line in site.of("returns", "step", rows[0].generation))
    (start,) = site.of("returns", "start", rows[1].generation)
    assert reached - 10 <= start["step"] <= reached
    told = {event.kind: event.at for event in job.events() if event.generation == rows[1].generation}
    ended = next(
        event.at for event in job.events() if event.kind == "closed" and event.generation == rows[0].generation
    )
    assert ended >= told["waiting"] - 1.0  # setup and restore ran beside the old program
