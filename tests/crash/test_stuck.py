"""A program that gives no sign of life is saved, moved once, and ended where that does not help."""

from __future__ import annotations

import sys

from crash.harness import Site, wait_for

# Saves ten steps and stands still, in silence, on the machines whose generation HANGS names.
HANGING = """
import json, os, pathlib, signal, sys, time
from broker.guest import progress
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
state = pathlib.Path(os.environ["BROKER_CHECKPOINT_DIR"], "state.json")
step = json.loads(state.read_text())["step"] if state.exists() else 0
print("starts at", step, flush=True)
while step < 40:
    step += 1
    new = state.with_name("new.part")
    new.write_text(json.dumps({"step": step}))
    new.replace(state)
    progress(step, 40)
    time.sleep(0.1)
    while step % 10 == 0 and os.environ["BROKER_GENERATION"] in os.environ["HANGS"].split():
        if asked:
            sys.exit(143)
        time.sleep(0.1)
"""


def submitted(site: Site, hangs: str) -> object:
    (site.work / "hang.py").write_text(HANGING)
    task = site.task("hang", run=f"exec {sys.executable} hang.py", envs={"HANGS": hangs}, stuck=3.0)
    return site.submit(task)


def test_it_goes_on_elsewhere_from_its_last_save(site: Site) -> None:
    job = submitted(site, "1")
    with site.up():
        wait_for(lambda: job.refresh().done, "the end", 90)
    assert job.status == "succeeded", site.story(job)
    first, second = job.placements()
    assert first.cause != "preempted"
    offers = [row.request["offer"]["region"] for row in (first, second)]
    assert offers[0] != offers[1], "a machine on which the program stood still is not taken again at once"
    said = "".join(text for _, _, text in job.logs())
    assert "stuck: no step, output, snapshot or GPU at work for 3 s" in said
    assert "starts at 10" in said
    assert not site.machines()


def test_where_a_second_machine_does_not_help_it_ends_with_its_snapshot(site: Site) -> None:
    job = submitted(site, "1 2")
    with site.up():
        wait_for(lambda: job.refresh().done, "the end", 90)
    assert (job.status, job.exit_code) == ("failed", 100), site.story(job)
    assert "on a second machine too; the newest snapshot is safe" in job.message
    assert f"broker resume {job.id}" in job.row.fix
    assert len(job.placements()) == 2
    job.resume()
    with site.up():
        wait_for(lambda: job.refresh().done, "the end", 90)
    assert job.status == "succeeded", site.story(job)
