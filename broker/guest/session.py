"""`Session`: the program's runs on one machine, its snapshots beside it, from its start to its end as it is read."""

from __future__ import annotations

import time

from broker.entries import containers_of, entry_of
from broker.errors import SnapshotCorrupt
from broker.guest import environment
from broker.guest.activity import Activity
from broker.guest.container import ContainedProgram
from broker.guest.context import TICK, Context, Stale
from broker.guest.control import Stop
from broker.guest.ending import Cause, Verdict, judge
from broker.guest.log import STARTS
from broker.guest.opened import Opened
from broker.guest.preparation import Preparation
from broker.guest.program import Exit, Program
from broker.guest.publisher import Publisher
from broker.guest.restarts import Again, Restarts
from broker.snapshot import Snapshotter

INCOMPLETE_FOR = 60.0  # seconds after which something that does not become complete is worth a word
LAST_OF_FAILED = 60.0  # seconds for which a failed run's last snapshot is tried before the next run


class Session:
    """`publisher` is that of the last run, None where the task has no checkpoint folder."""

    def __init__(self, context: Context, preparation: Preparation) -> None:
        self.context, self.preparation = context, preparation
        self.restarts = Restarts(context.boot.restarts_left)
        self.publisher: Publisher | None = None
        self.last_step: int | None = None
        self.opened: Opened | None = None
        self._saves: tuple[float | None, ...] = ()

    def run(self) -> tuple[Verdict, Exit, Cause | None]:
        """Run the program, and again where a failure may be the restored snapshot's or restarts are allowed.

        Raises Stale and Interrupted.
        """
        c = self.context
        while True:
            c.check()
            verdict, ended, cause = self._once()
            if verdict.outcome != "failed":
                return verdict, ended, cause
            again = self.restarts.next(
                verdict.reason,
                seconds=ended.seconds,
                restored=self.preparation.restored is not None,
                new_snapshot=bool(self.publisher and self.publisher.published),
                free=ended.code in self.preparation.spec.recover_on,
            )
            tried = f" (before: {self.restarts.story()})" if self.restarts.tried else ""
            if again is None:
                return Verdict("failed", verdict.reason + tried), ended, None
            try:
                self._again(again)
            except SnapshotCorrupt as error:
                return Verdict("failed", f"{verdict.reason}{tried}; {error}", error.fix), ended, None

    def _once(self) -> tuple[Verdict, Exit, Cause | None]:
        c = self.context
        c.steps.fresh()
        self.publisher = self._publisher()
        self.opened = self._opened()
        c.log.say(STARTS)
        self._say_every()
        program = self.preparation.start("run", self.preparation.spec.run)
        c.status.set(state="running", program_started_at=c.clock.now(), first_step=None)
        if self.publisher:
            self.publisher.snapshotter.steady = program.steady
            self.publisher.start()
        if self.preparation.cache is not None and self.publisher is not None:
            self.preparation.cache.busy = lambda publisher=self.publisher: publisher.uploading  # type: ignore[misc]
        ended, cause = self._watch(program)
        self._look_opened(ended=True)
        if now := c.steps.sample():
            self.last_step = now.step
        verdict = judge(ended, cause, noticed=c.notice_before(ended), at_total=c.steps.at_total())
        c.log.end()
        c.log.say(f"the program has ended: {verdict.outcome}: {verdict.reason}")
        return verdict, ended, cause

    def _say_every(self) -> None:
        """Keep the file that says how often to save in step with what a save takes here."""
        c = self.context
        took = [seconds for name in ("save", "upload") if (seconds := c.status.measured(name)) is not None]
        measured = sum(took) if took else None
        if (measured,) != self._saves:
            self._saves = (measured,)
            environment.say_every(c.steps.file, c.boot, self.preparation.spec, measured)

    def _again(self, again: Again) -> None:
        c, publisher, preparation = self.context, self.publisher, self.preparation
        c.log.say(f"starting again from {again}")
        c.status.set(restarts=self.restarts.used)
        until = time.monotonic() + LAST_OF_FAILED
        if publisher is not None and publisher.stop(until) and again is Again.NEWEST:
            c.uplink.guarded("a snapshot", lambda: publisher.final(killed=True), until=until)
        if again is Again.PREVIOUS and preparation.restored is not None:
            preparation.avoid.add((preparation.restored.generation, preparation.restored.seq))
        preparation.restore()

    def _publisher(self) -> Publisher | None:
        c, spec = self.context, self.preparation.spec
        if not spec.checkpoint:
            return None
        snapshotter = Snapshotter(
            c.home,
            c.keys,
            c.generation,
            self.preparation.checkpoint,
            marker=spec.marker,
            keep=spec.keep,
            quiet=c.boot.quiet,
            verified=self.preparation.restored,
            seen=self.preparation.saves,
        )
        patience = 6 * c.boot.quiet
        return Publisher(
            snapshotter,
            scan=c.boot.scan,
            every=spec.every,
            patience=patience if c.boot.provider == "local" else max(INCOMPLETE_FOR, patience),
            status=c.status,
            steps=c.steps,
            expired=c.uplink.renew,
        )

    def _opened(self) -> Opened | None:
        """What is to tell whether the program reads the snapshot that was restored for it."""
        c, manifest = self.context, self.preparation.restored
        c.status.set(opened=None)
        if manifest is None or self.publisher is None:
            return None
        # The guest's own look into the restored files comes first, so that every later one is the program's.
        self.publisher.snapshotter.scan()
        rank = {name: place for place, name in enumerate(manifest.entries)}
        containers = containers_of(manifest.entries)
        newest_first = sorted(manifest.files, key=lambda path: -rank.get(entry_of(path, containers), -1))
        opened = Opened(self.preparation.checkpoint, newest_first)
        c.status.set(opened=opened.to_json())
        return opened

    def _look_opened(self, *, ended: bool = False) -> None:
        """Say at once that the program has read the first restored file; how many in all, when it has ended."""
        if self.opened is None:
            return
        known = bool(self.opened.read)
        news = self.opened.poll() and not known
        if ended:
            self.opened.end()
        if news or ended:
            self.context.status.set(opened=self.opened.to_json())

    def _watch(self, program: Program | ContainedProgram) -> tuple[Exit, Cause | None]:
        """Stay with the program to its end: how it ended, and what had asked for that. Raises Stale."""
        c, stop = self.context, None
        offer = c.boot.offer if isinstance(c.boot.offer, dict) else {}
        activity = Activity(gpus=bool(offer.get("gpu_count")))
        while True:
            ended = program.wait(TICK)
            if (now := c.steps.sample()) is not None and c.status.get("first_step") is None:
                c.status.set(first_step=now.first_step)
                if self.preparation.cache is not None:
                    self.preparation.cache.ready(time.monotonic() - program.started, setup=False)
            self._look_opened()
            self._say_every()
            if ended is not None:
                return ended, stop.cause if stop and ended.after_term else None
            cause = c.watchman.cause() or self._stuck(activity)
            if cause is None:
                continue
            if cause.kind == "stale":
                program.kill()
                raise Stale
            if stop is None:
                stop = c.watchman.plan(cause)
                self._say_stop(stop)
                if stop.ask:
                    program.terminate()
            elif cause != stop.cause:
                c.watchman.hurry(stop, cause)
            nothing_to_wait_for = not stop.ask and not (self.publisher and self.publisher.uploading)
            if nothing_to_wait_for or time.monotonic() >= stop.kill_at:
                program.kill()

    def _stuck(self, activity: Activity) -> Cause | None:
        """A program that has given no sign of life for as long as its task allows."""
        c, limit = self.context, self.preparation.spec.stuck
        if limit is None:
            return None
        now = c.steps.sample()
        idle = activity.idle(now and now.step, c.log.written, c.status.get("seq"))
        if idle < limit:
            return None
        return Cause("stuck", "stuck", f"stuck: no step, output, snapshot or GPU at work for {limit:.0f} s")

    def _say_stop(self, stop: Stop) -> None:
        c, left = self.context, stop.kill_at - time.monotonic()
        what = f"has {left:.0f} s to save and end" if stop.ask else "is ended: a save would not arrive in time"
        c.log.say(f"{stop.cause.reason}; the program {what}")
        c.steps.say_stop({"why": stop.cause.why, "ends_at": time.time() + left})
        c.status.set(state="stopping")
