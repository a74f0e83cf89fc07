"""Rehearses a task on this computer: it loses its machine by force, must go on from its snapshots, and gets a verdict.

::

    from broker.rehearse import rehearse

    result = rehearse("task.yaml", preemptions=2, notices=("aws", "vast"), seed=7)
    result.verdict.text            # "survives preemption", or exactly why not

Nothing is rented. Everything happens in a folder of its own below the state folder, with its own database, home and
machines of the `local` provider, so nothing mixes with real jobs.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.config import Config
from broker.errors import TaskError
from broker.rehearse.check import Check
from broker.rehearse.compare import Difference, compared
from broker.rehearse.hand import NOTICES, SECONDS, Hand, TakeBack
from broker.rehearse.verdict import Verdict, judge, of_baseline, without_checkpoint
from broker.task import Resources, Task

if TYPE_CHECKING:
    from broker.job import Job
    from broker.report import Report

__all__ = [
    "NOTICES",
    "SECONDS",
    "Check",
    "Difference",
    "Hand",
    "Rehearsal",
    "Result",
    "TakeBack",
    "Verdict",
    "rehearse",
]

BASELINE, REHEARSED = "baseline", "rehearsal"
GONE_LIMIT = 20.0

Follow = Callable[[str, "Job", "Hand | None"], None]
"""Called with the phase, its job and who takes it back; returns when the job has ended."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a rehearsal found. report: of the job that was taken back; baseline: of the one that was not.

    notes: what it cannot show here. limit, spent: USD that it could cost at most, and that it
    has cost, where machines were rented for it.
    """

    verdict: Verdict
    seed: int
    folder: Path
    report: Report | None = None
    baseline: Report | None = None
    taken: tuple[TakeBack, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    limit: float | None = None
    spent: float | None = None


@dataclass
class Rehearsal:
    """One rehearsal in its throw-away folder. `task` and `given` are the user's, `rehearsed` and `config` its own."""

    task: Task
    rehearsed: Task
    config: Config
    folder: Path
    preemptions: int
    notices: tuple[str, ...]
    seed: int
    given: Config
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, task: Task, config: Config, *, preemptions: int = 2, notices: tuple[str, ...] = ("aws", "vast"),
        seed: int | None = None, container: bool = False,
    ) -> Rehearsal:  # fmt: skip
        """Prepare one; makes nothing yet. notices: whose way of taking back, in turn. container: in the task's image.

        Raises TaskError for mounts that cannot be had, and for a container of a task that names no image.
        """
        from broker.mounts import measure
        from broker.planning import home_of
        from broker.taskfile import placing

        with placing(task):
            measure(task.file_mounts, config, home_of(task, config), min(wish.disk for wish in task.resources))
            rehearsed, notes = _adapted(task, container=container)
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        folder = config.state / "rehearsals" / stamp
        # Disks stay until the rehearsal is over: what a failed one leaves behind is what its user wants to see.
        own = {**config.provider("local"), "root": str(folder / "local"), "keep_disks": True}
        throwaway = dataclasses.replace(
            config, state=folder, home="", home_config={}, database="", providers={"local": own}, changed_limits={}
        )
        chosen = random.SystemRandom().randrange(1_000_000) if seed is None else seed
        return cls(task, rehearsed, throwaway, folder, preemptions, notices, chosen, config, notes)

    @property
    def compares(self) -> bool:
        """Is there a run without interruption to compare with?"""
        wish = self.task.rehearse
        return wish is not None and (wish.deterministic or bool(wish.compare))

    def perform(self, follow: Follow) -> Result:
        """Run it. `follow` shows each job until it has ended; leaving it by an exception ends everything."""
        from broker import engine, report
        from broker.rehearse.evidence import gather, told

        if self.rehearsed.checkpoint is None:
            return Result(without_checkpoint(), self.seed, self.folder)
        baseline: Job | None = None
        with self._cleared(), engine.running(self.config) as live:
            self._bring()
            if self.compares:
                baseline = self._submit(dataclasses.replace(self.rehearsed, name=f"{self.task.name}-baseline"))
                live.drive(baseline.id)
                follow(BASELINE, baseline, None)
                if (problem := of_baseline(baseline.refresh().row)) is not None:
                    return Result(problem, self.seed, self.folder, baseline=report.of(baseline))
            job = self._submit(self.rehearsed)
            hand = Hand(
                job, self._root, count=self.preemptions, notices=self.notices, seed=self.seed, baseline=baseline
            )
            live.drive(job.id)
            with hand:
                follow(REHEARSED, job, hand)
            job.refresh()
            differences = compared(self.task.rehearse.compare, baseline, job) if baseline and self.task.rehearse else ()
            story = report.of(job, reached=hand.reached)
            evidence = gather(job, self._root, hand.taken, self.rehearsed)
            verdict = judge(
                job.row,
                story,
                hand.taken,
                wanted=self.preemptions,
                interval=hand.interval,
                differences=differences,
                compared=self.task.rehearse.compare if baseline and self.task.rehearse else (),
                evidence=evidence,
            )
            before = report.of(baseline) if baseline else None
        shown = told(story, evidence)
        return Result(verdict, self.seed, self.folder, shown, before, tuple(hand.taken), differences, self.notes)

    @property
    def _root(self) -> Path:
        return self.folder / "local"

    def _bring(self) -> None:
        """Fetch what the task mounts from buckets, with the user's own key: the rehearsal's machines have none."""
        from broker import mounts
        from broker.planning import home_of

        home = home_of(self.task, self.given)
        found = mounts.brought(self.rehearsed.file_mounts, self.given, home, self.folder / "mounts")
        self.rehearsed = dataclasses.replace(self.rehearsed, file_mounts=found)

    def _submit(self, task: Task) -> Job:
        from broker.job import submit
        from broker.store import open_store

        return submit(task, config=self.config, store=open_store(self.config.state))

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """Whatever happens inside, no machine of the rehearsal is left running."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            yield
        finally:
            self.end_machines()

    def end_machines(self) -> None:
        """Terminate every machine that is left and wait until they are gone."""
        from broker import registry

        provider = registry.get("local", self.config)
        deadline = time.monotonic() + GONE_LIMIT
        while alive := [i for i in provider.instances() if i.alive]:
            for instance in alive:
                provider.terminate(instance)
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)

    def remove(self) -> None:
        """Remove the rehearsal's folder, and the folder of all rehearsals once it is empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:
            return


def _adapted(task: Task, *, container: bool) -> tuple[Task, tuple[str, ...]]:
    """The task as this computer can run it, and what had to be changed for that."""
    wish = task.rehearse
    asked = wish.resources if wish and wish.resources else task.resources
    image = asked[0].image if container else None
    if container and image is None:
        raise TaskError(
            "names no container image to be rehearsed in",
            field="resources.image_id",
            fix="name one, such as `resources: {image_id: docker:python:3.12}`, or leave out --container",
        )
    notes = [*_unshown(task.resources[0], asked[0], bare=image is None)]
    if task.spot == "never" and task.checkpoint is not None:
        notes.append("spot: never is set aside, or there would be nothing to take back")
    wish = task.rehearse
    envs = {**_pip_cache(task), **task.envs, **(wish.envs if wish else {})}
    outputs = (*task.outputs, *(path for path in (wish.compare if wish else ()) if path not in task.outputs))
    adapted = dataclasses.replace(
        task,
        resources=(Resources(disk=asked[0].disk, infra=("local",), image=image),),
        spot="never" if task.checkpoint is None else "auto",
        max_price=None,
        ordered=False,
        deadline="",
        budget=None,
        schedule=None,
        keep_on_failure=None,
        home="",
        envs=envs,
        outputs=outputs,
        warnings=(),
    )
    return adapted, tuple(notes)


def _unshown(wanted: Resources, asked: Resources, *, bare: bool) -> Iterator[str]:
    """What a rehearsal on this computer says nothing about."""
    if wanted.gpu:
        count = wanted.gpu_count or 1
        yield f"this computer stands in for {wanted.gpu}:{count}; rehearse.envs can make the run small enough for it"
        if not Path("/dev/nvidiactl").exists():
            nccl = "whether its processes find each other again by NCCL, " if count > 1 else ""
            yield (
                "without a GPU it cannot show whether CUDA starts on the next machine, whether the GPU's random state "
                f"and the gradient scaler come back, {nccl}whether the GPU's memory is enough, nor how long a save of "
                "the full size takes against a notice"
            )
    if asked.image and bare:
        yield f"the image {asked.image} is not used; --container runs it in that, by docker or podman"


def _pip_cache(task: Task) -> dict[str, str]:
    """Each machine has an empty HOME: without a shared cache every setup would download the same packages again."""
    import platformdirs

    if "PIP_CACHE_DIR" in task.envs:
        return {}
    folder = os.environ.get("PIP_CACHE_DIR") or platformdirs.user_cache_dir("pip")
    return {"PIP_CACHE_DIR": folder}


def rehearse(
    task: Task | Path | str,
    *,
    preemptions: int = 2,
    notices: tuple[str, ...] = ("aws", "vast"),
    seed: int | None = None,
    config: Config | None = None,
    follow: Follow | None = None,
    keep: bool = False,
) -> Result:
    """Rehearse a task and return what was found, whatever that is; its folder is removed if it survives.

    Raises TaskError and ConfigError before anything runs.
    """
    from broker.config import load
    from broker.task import load as load_task

    def wait(_phase: str, job: Job, _hand: Hand | None) -> None:
        job.wait()

    rehearsal = Rehearsal.of(load_task(task), config or load(), preemptions=preemptions, notices=notices, seed=seed)
    result = rehearsal.perform(follow or wait)
    if result.verdict.code == 0 and not keep:
        rehearsal.remove()
    return result
