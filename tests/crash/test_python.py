"""`broker.run` inside programs: a running event loop, threads, several processes, and a DBOS of the user's own."""

from __future__ import annotations

import json
import subprocess

import pytest
from crash.harness import Site, wait_for

from broker import brokers

HEAD = """
import json, sys
from pathlib import Path
import broker
from broker.task import Task

TASKS = {tasks}

def task_of(name):
    return Task.from_json({**TASKS[name], "workdir": sys.argv[1]})

def said(**what):
    with Path(sys.argv[2]).open("a") as file:
        file.write(json.dumps(what) + "\\n")
"""

IN_A_LOOP = """
import asyncio

async def cell():
    beats = 0
    async def alive():
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.05)
    other = asyncio.create_task(alive())
    await asyncio.sleep(0.2)
    job = broker.run(task_of("count"))
    before = beats
    await asyncio.sleep(0.3)
    other.cancel()
    said(id=job.id, status=job.status, loop_lives=beats > before)
    again = broker.run(task_of("again"))
    said(id=again.id, status=again.status, loop_lives=True)

asyncio.run(cell())
"""

IN_THREADS = """
import threading

def run(name):
    job = broker.run(task_of(name))
    said(id=job.id, status=job.status)

threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

ALONE = """
job = broker.run(task_of(sys.argv[3]))
said(id=job.id, status=job.status)
"""

LEFT = """
import os, signal, threading

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may have had it ignored
def on_event(event):
    if event.kind == "running":
        if sys.argv[3] == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            raise ValueError("in the caller's own code")

try:
    broker.run(task_of("count"), on_event=on_event)
except BaseException as error:
    said(kind=type(error).__name__, notes=error.__notes__)
"""

KEPT = """
from dataclasses import replace
from broker.keeping import Keep

job = broker.run(replace(task_of("fails"), run="exit 3", keep_on_failure=Keep(600.0)))
said(status=job.status, code=job.exit_code)
"""

BESIDE_A_DBOS = """
from dbos import DBOS, SetWorkflowID

DBOS(config={"name": "theirs", "system_database_url": f"sqlite:///{sys.argv[3]}"})

@DBOS.workflow()
def theirs(number):
    return number + 1

DBOS.launch()
assert theirs(1) == 2
try:
    broker.run(task_of("count"))
    said(refused=False)
except broker.errors.ConfigError as error:
    said(refused=True, text=str(error), fix=error.fix)
with SetWorkflowID("after"):
    assert theirs(2) == 3
assert DBOS.get_workflow_status("after").status == "SUCCESS"
job = broker.run(task_of("detached"), detach=True)
job.wait(timeout=60)
assert theirs(3) == 4
said(id=job.id, status=job.status)
DBOS.destroy()
"""


class Program:
    """A user's Python program on a site."""

    def __init__(self, site: Site, text: str, *names: str, steps: int = 40) -> None:
        self.site = site
        self.answers = site.folder / "answers"
        self.file = site.folder / f"{names[0]}.py"
        tasks = {name: site.task(name, steps=steps).to_json() for name in names}
        self.file.write_text(HEAD.replace("{tasks}", repr(tasks)) + text)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        return self.site.python(str(self.file), str(self.site.work), str(self.answers), *more)

    def said(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.answers.read_text().splitlines()] if self.answers.exists() else []


def adopt(site: Site, *, count: int) -> None:
    """Take the programs' jobs for the audit."""
    from broker.job import Job

    site.jobs[:] = [Job(row, site.config, site.store) for row in site.store.jobs()]
    assert len(site.jobs) == count


def test_inside_a_running_loop(site: Site) -> None:
    """As in a notebook's cell: the loop of the calling thread is neither needed nor harmed, twice in a row."""
    program = Program(site, IN_A_LOOP, "count", "again")
    assert program.start().wait(90) == 0, site.log.read_text()
    assert [answer["status"] for answer in program.said()] == ["succeeded"] * 2
    assert all(answer["loop_lives"] for answer in program.said())
    adopt(site, count=2)
    site.audit(lost_at_most=0)


def test_in_two_threads_at_once(site: Site) -> None:
    program = Program(site, IN_THREADS, "one", "two")
    assert program.start().wait(90) == 0, site.log.read_text()
    assert [answer["status"] for answer in program.said()] == ["succeeded"] * 2
    adopt(site, count=2)
    site.audit(lost_at_most=0)


def test_in_two_processes_at_once(site: Site) -> None:
    """On one state folder, from its very first use on."""
    programs = [Program(site, ALONE, "one"), Program(site, ALONE, "two", steps=120)]
    running = [program.start(name) for program, name in zip(programs, ("one", "two"), strict=True)]
    assert [process.wait(90) for process in running] == [0, 0], site.log.read_text()
    assert [answer["status"] for answer in programs[0].said()] == ["succeeded"] * 2
    adopt(site, count=2)
    site.audit(lost_at_most=0)


@pytest.mark.parametrize(("how", "kind"), [("interrupt", "KeyboardInterrupt"), ("raise", "ValueError")])
def test_a_program_that_leaves_its_job_leaves_it_to_a_broker(site: Site, how: str, kind: str) -> None:
    program = Program(site, LEFT, "count", steps=150)
    assert program.start(how).wait(90) == 0, site.log.read_text()
    (left,) = program.said()
    assert left["kind"] == kind
    adopt(site, count=1)
    (job,) = site.jobs
    assert f"{job.id} goes on in the background; `broker stop {job.id}` ends it" in str(left["notes"])
    site.done(job)
    site.audit(lost_at_most=0)
    wait_for(lambda: not (site.config.state / "up.lock").exists(), "the background broker to end", 30)


def test_a_machine_that_is_kept_has_a_broker_after_the_program(site: Site) -> None:
    """`broker.run` comes back with the failure, and somebody else sees to the machine's end."""
    program = Program(site, KEPT, "fails")
    assert program.start().wait(90) == 0, site.log.read_text()
    assert program.said() == [{"status": "kept", "code": 100}]
    assert brokers.alive(site.config)
    adopt(site, count=1)
    (job,) = site.jobs
    job.stop()
    site.done(job)
    assert job.status == "failed"
    wait_for(lambda: not (site.config.state / "up.lock").exists(), "the background broker to end", 30)


@pytest.mark.slow
def test_beside_a_dbos_of_the_users_own(site: Site) -> None:
    """One process holds one DBOS: ours says what to do and leaves theirs alone; detached it works from there."""
    program = Program(site, BESIDE_A_DBOS, "count", "detached")
    assert program.start(str(site.folder / "theirs.db")).wait(120) == 0, site.log.read_text()
    refused, ended = program.said()
    assert refused["refused"] is True
    assert "DBOS" in str(refused["text"])
    assert "detach=True" in str(refused["fix"])
    assert ended["status"] == "succeeded"
    wait_for(lambda: not (site.config.state / "up.lock").exists(), "the background broker to end", 30)
