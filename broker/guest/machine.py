"""`Machine`: one placement from boot to its end, in the protocol's order.

Threads: this one owns the program and decides; `Uplink` talks with the home; `Publisher` uploads snapshots; `Notices`
asks the provider. What may block before the program runs is done aside, so that a notice or an order is never missed.
"""

from __future__ import annotations

import json
import pkgutil
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from broker.errors import BrokerError, HomeUnavailable, SnapshotCorrupt
from broker.guest import environment
from broker.guest.bootfile import Boot
from broker.guest.clock import Clock
from broker.guest.contain import Containment
from broker.guest.control import Stop, Watchman
from broker.guest.ending import Cause, Verdict, describe, judge
from broker.guest.fetch import fetch_spec, fetch_workdir
from broker.guest.log import Log
from broker.guest.mask import Mask
from broker.guest.notice import Notices
from broker.guest.predecessor import succeeded_before, wait_for_predecessor
from broker.guest.program import Exit, Program
from broker.guest.provider import ProviderHalf
from broker.guest.publisher import Publisher
from broker.guest.restarts import Again, Restarts
from broker.guest.spec import Spec
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.guest.uplink import Uplink, reachable
from broker.home import Home, JobKeys
from broker.restore import restore_newest, upload_tree, write_parent
from broker.snapshot import Manifest, Snapshotter

T = TypeVar("T")
TICK = 0.1
AFTER_NOTICE = 60.0  # seconds past a notice's end for which last words are tried, should the machine still be there
LAST_BEAT = 10.0


class Stale(Exception):  # noqa: N818 - a state, not an error
    """This generation does not stand: run nothing, write nothing, end the machine."""


class Interrupted(Exception):  # noqa: N818
    """Something asked for the end before a program ran."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.reason)
        self.cause = cause


class Refused(Exception):  # noqa: N818
    """The job cannot be run here; the text is the result's reason."""


class Machine:
    """Built from what the boot file says; `run` returns once the machine may end."""

    def __init__(self, boot: Boot, folder: Path, provider: ProviderHalf, environ: dict[str, str]) -> None:
        self.boot, self.folder, self.provider, self.environ = boot, folder, provider, environ
        self.keys = JobKeys(boot.job)
        self.clock = Clock(boot.end_by, boot.end_why, boot.frozen_at)
        self.contain = Containment.open(environment.mark(boot.job, boot.generation))
        if environ.get("SPOTBROKER_TIMER", "").isdigit():
            self.contain.spared.add(int(environ["SPOTBROKER_TIMER"]))
        self.steps = Steps(folder / "progress", None)
        self.mask = Mask(boot.secrets.values())
        self.status = Status(self.clock, self.steps.file, self.mask.text)
        self.log = Log(folder / "log", self.mask)
        self.notices = Notices(provider.notice, usual=boot.notice, seen=self._noticed, warn=self.status.warn)
        self.restarts = Restarts(boot.restarts_left)
        self.publisher: Publisher | None = None
        self.restored: Manifest | None = None
        self.last_step: int | None = None
        self.avoid: set[tuple[int, int]] = set()

    # --- the sequence -------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Do it all; returns why the machine ends."""
        self.notices.start()
        home = self._open_home()
        if home is None:
            return f"the home could not be read for {self.boot.patience:.0f} s"
        self.home = home
        self.uplink = Uplink(home, self.keys, self.boot, self.status, self.log, self.clock)
        self.uplink.heard = self._arm
        self.watchman = Watchman(self.boot, self.clock, self.status, self.uplink, self.notices)
        try:
            return self._placement()
        except Stale:
            return f"generation {self.boot.generation} no longer stands"
        finally:
            self.contain.kill()
            self.contain.close()

    def _placement(self) -> str:
        if not self._control_at_start():
            return f"control could not be read for {self.boot.patience:.0f} s"
        self.uplink.start()
        ended: Exit | None = None
        cause: Cause | None = None
        outputs: dict[str, Any] = {}
        try:
            prepared = self._prepare()
            if isinstance(prepared, dict):
                return self._finish(Verdict(prepared["outcome"], prepared["reason"]), None, prepared["outputs"], None)
            verdict, ended, cause = self._program(prepared)
            if verdict.outcome == "succeeded":
                verdict, outputs = self._outputs(prepared, verdict)
        except Interrupted as interrupted:
            cause = interrupted.cause
            verdict = Verdict(cause.outcome, cause.reason)
        except (Refused, BrokerError, OSError, ValueError) as error:
            verdict = Verdict("failed", str(error))
        return self._finish(verdict, ended, outputs, cause)

    # --- before the program -------------------------------------------------------------------------------------------

    def _open_home(self) -> Home | None:
        until = time.monotonic() + self.boot.patience
        while True:
            try:
                reachable(self.boot.home.url)
                return Home(self.boot.home)
            except (BrokerError, OSError):
                if time.monotonic() >= min(until, self.clock.deadline):
                    return None
                time.sleep(min(2.0, max(0.1, until - time.monotonic())))

    def _control_at_start(self) -> bool:
        """Read control before anything else; False where it stays unreadable. Raises Stale."""
        until = min(time.monotonic() + self.boot.patience, self.clock.deadline)
        read = self.uplink.guarded("control", self.uplink.read_control, until=until)
        if self.uplink.stale:
            raise Stale
        if not read:
            return False
        if self.uplink.guarded(
            "closed", lambda: (self.home.find(self.keys.closed(self.boot.generation)),), until=until
        ) != (None,):
            raise Stale  # the machine came back after its job had ended here
        return True

    def _prepare(self) -> Spec | dict[str, Any]:
        """Everything up to the program; a dict where an earlier generation's result says there is nothing to do."""
        self.spec = spec = self._aside("the task", lambda: fetch_spec(self.home, self.keys, self.boot))
        self._aside("the boot object", lambda: self.home.delete([self.keys.boot(self.boot.generation)]))
        self.mask.extend(environment.masked_values(self.boot, spec))
        self.steps.total = spec.steps
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)  # a machine that came back starts from its snapshot, not from ruins
        self._aside("the workdir", lambda: fetch_workdir(self.home, self.boot, self.folder / "workdir.tar.gz", work))
        self._library()
        home_folder = Path(self.environ.get("HOME") or self.folder)
        bare = self.boot.provider == "local"
        self.checkpoint = spec.checkpoint_folder(self.folder, home_folder, bare=bare)
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self._setup(spec)
        self.status.set(state="waiting")
        self._aside("the predecessor", lambda: wait_for_predecessor(self.home, self.keys, self.uplink, self.clock))
        before = self._aside(
            "earlier results", lambda: (succeeded_before(self.home, self.keys, self.boot.generation),)
        )[0]
        if before is not None:
            return before
        self._restore()
        return spec

    def _setup(self, spec: Spec) -> None:
        if not spec.setup.strip():
            return
        self.status.set(state="setup")
        program = self._start("setup", spec.setup)
        while (ended := program.wait(TICK)) is None:
            if (cause := self.watchman.cause()) is not None:
                program.kill()
                self._interrupt(cause)
        self.log.end()
        self.status.timing("setup", ended.seconds)
        if ended.code != 0:
            if self._notice_before(ended):
                self._interrupt(Cause("notice", "notice", "noticed during setup"))
            raise Refused(
                f"setup exited {ended.code}: {describe(ended)}" if ended.oom else f"setup exited {ended.code}"
            )

    def _restore(self) -> None:
        """Put the newest snapshot of the lineage into the checkpoint folder and record, once, where this one starts."""
        if not self.spec.checkpoint:
            self._parent(None)
            return
        self.status.set(state="restoring")
        begun = time.monotonic()
        control = self.uplink.control
        parents = dict(control.parents) if control else {}
        # Below the next one: a machine that came back goes on from its own snapshots.
        manifest, problems = self._aside(
            "the snapshot",
            lambda: restore_newest(
                self.home, self.keys, self.boot.generation + 1, self.checkpoint, parents, avoid=self.avoid
            ),
        )
        for problem in problems:
            self.status.warn(problem)
            self.log.say(problem)
        self.restored = manifest
        self.status.timing("restore", time.monotonic() - begun)
        if manifest is not None:
            self.log.say(f"restored snapshot {manifest.generation}/{manifest.seq}, step {manifest.step}")
            own = max(manifest.seq if manifest.generation == self.boot.generation else 0, self.status.get("seq"))
            self.status.set(restored=[manifest.generation, manifest.seq], seq=own)
        self._parent(manifest)

    def _parent(self, manifest: Manifest | None) -> None:
        if not self.status.get("parent_written"):
            parent = (manifest.generation, manifest.seq) if manifest else None
            if parent is None or parent[0] != self.boot.generation:
                self._aside("parent", lambda: write_parent(self.home, self.keys, self.boot.generation, parent))
            self.status.set(parent_written=True)

    def _aside(self, what: str, call: Callable[[], T]) -> T:
        """Do something that may block, in a thread of its own, until it works; an interruption leaves it behind."""
        box: list[T] = []
        failed: list[Exception] = []

        def work() -> None:
            pause = 0.2
            while True:
                try:
                    box.append(call())
                    return
                except SnapshotCorrupt as error:
                    failed.append(error)
                    return
                except HomeUnavailable as error:
                    self.status.warn(f"{what}: {error}")
                except Exception as error:  # noqa: BLE001 - handed to the thread that waits for it
                    failed.append(error)
                    return
                time.sleep(pause)
                pause = min(5.0, 2 * pause)

        thread = threading.Thread(target=work, name=f"fetch {what}", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(TICK)
            if thread.is_alive() and (cause := self.watchman.cause()) is not None:
                self._interrupt(cause)
        if failed:
            raise failed[0]
        return box[0]

    def _interrupt(self, cause: Cause) -> None:
        if cause.kind == "stale":
            raise Stale
        raise Interrupted(cause)

    # --- the program --------------------------------------------------------------------------------------------------

    def _program(self, spec: Spec) -> tuple[Verdict, Exit, Cause | None]:
        """Run it, and once more where a failure may be the restored snapshot's or restarts are allowed."""
        while True:
            if (cause := self.watchman.cause()) is not None:
                self._interrupt(cause)
            self.steps.fresh()
            self.publisher = self._publisher(spec)
            program = self._start("run", spec.run)
            self.status.set(state="running", program_started_at=self.clock.now(), first_step=None)
            if self.publisher:
                self.publisher.start()
            ended, cause = self._watch(program)
            now = self.steps.sample()
            self.last_step = now.step if now else self.last_step
            noticed = self._notice_before(ended)
            verdict = judge(ended, cause, noticed=noticed, at_total=self.steps.at_total())
            self.log.end()
            self.log.say(f"the program has ended: {verdict.outcome}: {verdict.reason}")
            if verdict.outcome != "failed":
                return verdict, ended, cause
            again = self.restarts.next(
                verdict.reason,
                seconds=ended.seconds,
                restored=self.restored is not None,
                new_snapshot=bool(self.publisher and self.publisher.published),
            )
            if again is None:
                story = self.restarts.story()
                return (
                    Verdict("failed", f"{verdict.reason} (tried before: {story})" if story else verdict.reason),
                    ended,
                    None,
                )
            try:
                self._again(again)
            except SnapshotCorrupt as error:
                return Verdict("failed", f"{verdict.reason} (tried: {self.restarts.story()}; {error})"), ended, None

    def _again(self, again: Again) -> None:
        self.log.say(f"starting again from {again}")
        self.status.set(restarts=self.restarts.used)
        if self.publisher:
            self.publisher.stop(self.clock.deadline)
            if again is Again.NEWEST:
                self.uplink.guarded(
                    "a snapshot", lambda: self._final(self.publisher, killed=True), until=time.monotonic() + 60
                )
        if again is Again.PREVIOUS and self.restored is not None:
            self.avoid.add((self.restored.generation, self.restored.seq))
        self._restore()

    def _publisher(self, spec: Spec) -> Publisher | None:
        if not spec.checkpoint:
            return None
        snapshotter = Snapshotter(
            self.home,
            self.keys,
            self.boot.generation,
            self.checkpoint,
            marker=spec.marker,
            keep=spec.keep,
            quiet=self.boot.quiet,
            verified=self.restored,
        )
        return Publisher(
            snapshotter,
            scan=self.boot.scan,
            every=spec.every,
            status=self.status,
            steps=self.steps,
            expired=self.uplink.renew,
        )

    def _start(self, name: str, text: str) -> Program:
        script = self.folder / name
        script.write_text(text, encoding="utf-8")
        env = environment.program(
            self.environ,
            self.boot,
            self.spec,
            lib=self.folder / "lib",
            checkpoint=self.checkpoint,
            progress=self.steps.file,
            resumed=name == "run" and self.restored is not None,
        )
        return Program(script, cwd=self.folder / "work", env=env, contain=self.contain, output=self.log.write)

    def _watch(self, program: Program) -> tuple[Exit, Cause | None]:
        """Stay with the program to its end; returns how it ended and what had asked for that."""
        stop: Stop | None = None
        while True:
            ended = program.wait(TICK)
            self.steps.sample()
            if ended is not None:
                return ended, stop.cause if stop and ended.after_term else None
            cause = self.watchman.cause()
            if cause is None:
                continue
            if cause.kind == "stale":
                program.kill()
                raise Stale
            if stop is None:
                stop = self.watchman.plan(cause)
                self._say_stop(stop)
                if stop.ask:
                    program.terminate()
            elif cause != stop.cause:
                self.watchman.hurry(stop, cause)
            nothing_to_wait_for = not stop.ask and not (self.publisher and self.publisher.uploading)
            if nothing_to_wait_for or time.monotonic() >= stop.kill_at:
                program.kill()

    def _say_stop(self, stop: Stop) -> None:
        left = stop.kill_at - time.monotonic()
        self.log.say(
            f"{stop.cause.reason}; the program {f'has {left:.0f} s to save and end' if stop.ask else 'is ended'}"
        )
        self.steps.say_stop({"why": stop.cause.why, "ends_at": time.time() + left})
        self.status.set(state="stopping")

    def _notice_before(self, ended: Exit) -> bool:
        word = self.notices.look() if ended.code != 0 else self.notices.word
        return word is not None and word.at <= ended.at

    def _outputs(self, spec: Spec, verdict: Verdict) -> tuple[Verdict, dict[str, Any]]:
        if not spec.outputs:
            return verdict, {}
        self.status.set(state="closing")
        work = self.folder / "work"
        found = self.uplink.guarded(
            "outputs",
            lambda: upload_tree(self.home, self.keys, work, spec.outputs),
            until=self.clock.deadline - LAST_BEAT,
        )
        if found is None:
            return Verdict(verdict.outcome, f"{verdict.reason}; its outputs could not be uploaded"), {}
        files = {path: {"sha256": f.sha256, "size": f.size, "mode": f.mode} for path, f in found.items()}
        return verdict, files

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, verdict: Verdict, ended: Exit | None, outputs: dict[str, Any], cause: Cause | None) -> str:
        """Last snapshot, `closed`, `result`, last beat; each tried as long as it may matter."""
        self.status.set(state="closing")
        until = self._until(verdict, cause)
        if self.publisher is not None:
            if not self.publisher.stop(until):
                self.status.warn("the last upload did not end in time")
            else:
                killed = ended is None or ended.forced
                self.uplink.guarded(
                    "the last snapshot", lambda: self._final(self.publisher, killed=killed), until=until
                )
        seq = self.status.get("seq")
        why = cause.why if cause else verdict.outcome
        closed = {"seq": seq, "why": why, "at": self.clock.now()}
        result = {
            "outcome": verdict.outcome,
            "exit": ended.code if ended else None,
            "signal": ended.signal if ended else None,
            "reason": self.mask.text(verdict.reason),
            "at": self.clock.now(),
            "seq": seq,
            "outputs": outputs,
            "restarts": self.restarts.used,
            "last_step": self.last_step,
        }
        until = max(until, time.monotonic() + LAST_BEAT)
        self._write_once("closed", self.keys.closed(self.boot.generation), closed, until)
        self.status.set(closed={"seq": seq, "why": why})
        self._write_once("result", self.keys.result(self.boot.generation), result, until)
        self.status.set(result=result, state="ended")
        if self.uplink.stale:
            raise Stale
        self.uplink.flush(max(LAST_BEAT, min(until - time.monotonic(), 60.0)))
        return f"{verdict.outcome}: {result['reason']}"

    def _until(self, verdict: Verdict, cause: Cause | None) -> float:
        """How long last words are tried on a silent store: a finished job's as long as the machine may be there."""
        now = time.monotonic()
        if cause is not None and cause.kind == "notice":
            return max(cause.ends or now, now) + AFTER_NOTICE
        if verdict.outcome in ("succeeded", "failed"):
            return max(now, self.clock.deadline)
        return min(self.clock.deadline, now + self.boot.patience)

    def _final(self, publisher: Publisher | None, *, killed: bool) -> bool:
        return publisher is None or publisher.final(killed=killed)

    def _write_once(self, what: str, key: str, content: dict[str, Any], until: float) -> None:
        raw = json.dumps(content).encode()
        self.uplink.guarded(what, lambda: (self.home.create(key, raw),), until=until)

    # --- small things -------------------------------------------------------------------------------------------------

    def _noticed(self) -> None:
        word = self.notices.word
        assert word is not None
        self.status.set(notice=word.to_json())

    def sigterm(self) -> None:
        """This process was told to end: the machine is going."""
        self.notices.signalled(self.provider.sigterm_seconds())

    def _arm(self) -> None:
        """Tell the boot script's timer, which outlives this process, when the machine must be gone."""
        file = self.folder / "deadline"
        text = f"{int(uptime() + max(0.0, self.clock.left))}\n"
        try:
            if abs(int(file.read_text() or 0) - int(text)) > 2:
                new = self.folder / "deadline.new"
                new.write_text(text)
                new.rename(file)
        except (OSError, ValueError) as error:
            self.status.warn(f"the boot timer could not be set: {error}")

    def _library(self) -> None:
        """The part of this package that a job may import, where its PYTHONPATH finds it."""
        package = self.folder / "lib" / "broker" / "guest"
        package.mkdir(mode=0o755, parents=True, exist_ok=True)
        source = pkgutil.get_data("broker.guest", "__init__.py")
        assert source is not None
        (package.parent / "__init__.py").write_bytes(b"")
        (package / "__init__.py").write_bytes(source)
        for path in (self.folder, *package.parents[:2], package, *package.parent.glob("*.py"), *package.glob("*.py")):
            path.chmod(0o755 if path.is_dir() else 0o644)


def uptime() -> float:
    """Seconds by the clock that the boot script's timer counts by: since boot, where /proc says so, else the wall's."""
    try:
        return float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
