"""`Machine`: one placement from boot to its end, in the protocol's order.

Threads: this one owns the program and decides; `Uplink` talks with the home; `Publisher` uploads snapshots; `Notices`
asks the provider. What may block before the program runs is done aside, so that a notice or an order is never missed.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from broker.errors import BrokerError
from broker.guest import environment
from broker.guest.bootfile import Boot
from broker.guest.cache import LAST_SAVE
from broker.guest.clock import Clock
from broker.guest.contain import Containment
from broker.guest.context import Context, Interrupted, Refused, SetupFailed, Stale
from broker.guest.control import Watchman
from broker.guest.disk import arm_timer
from broker.guest.ending import Verdict
from broker.guest.farewell import LAST_BEAT, Ending, close, publish_last
from broker.guest.keeping import LATE, kept_until, stay
from broker.guest.log import Log
from broker.guest.mask import Mask
from broker.guest.notice import Notices
from broker.guest.preparation import Preparation
from broker.guest.provider import ProviderHalf
from broker.guest.session import Session
from broker.guest.status import Status
from broker.guest.steps import Steps
from broker.guest.uplink import Uplink, reachable
from broker.home import Home, JobKeys
from broker.restore import unmatched, upload_tree


class Machine:
    """Built from what the boot file says; `run` returns why the machine ends, once it may.

    kept: the monotonic moment up to which it stays for a person to look; None for one that is not kept.
    """

    def __init__(self, boot: Boot, folder: Path, provider: ProviderHalf, environ: dict[str, str]) -> None:
        self.boot, self.folder, self.provider, self.environ = boot, folder, provider, environ
        self.clock = Clock(boot.end_by, boot.end_why, boot.frozen_at)
        self.kept: float | None = None
        self.contain = Containment.open(environment.mark(boot.job, boot.generation))
        if environ.get("SPOTBROKER_TIMER", "").isdigit():
            self.contain.spared.add(int(environ["SPOTBROKER_TIMER"]))
        (folder / "task").mkdir(mode=0o755, parents=True, exist_ok=True)
        self.steps = Steps(folder / "task" / "progress", None)
        self.mask = Mask(boot.secrets.values())
        self.status = Status(self.clock, self.steps.file, self.mask.text)
        self.notices = Notices(
            provider.notice, usual=boot.notice, now=self.clock.latest, seen=self._noticed, warn=self.status.warn
        )

    def run(self) -> str:
        """Do it all."""
        self.notices.start()
        home = self._open_home()
        if home is None:
            return f"the home could not be opened for {self.boot.patience:.0f} s"
        context = self._context(home)
        try:
            if not self._may_run(context):
                return f"control could not be read for {self.boot.patience:.0f} s"
            context.uplink.start()
            return self._placement(context)
        except Stale:
            return f"generation {self.boot.generation} no longer stands"
        finally:
            self.contain.kill()
            self.contain.close()

    def sigterm(self) -> None:
        """This process was told to end: the machine is going."""
        self.notices.signalled(self.provider.sigterm_seconds())

    def _context(self, home: Home) -> Context:
        keys, log = JobKeys(self.boot.job), Log(self.folder / "log", self.mask)
        uplink = Uplink(home, keys, self.boot, self.status, log, self.clock)
        uplink.heard = self._arm
        return Context(
            boot=self.boot,
            folder=self.folder,
            environ=self.environ,
            keys=keys,
            home=home,
            clock=self.clock,
            contain=self.contain,
            steps=self.steps,
            mask=self.mask,
            status=self.status,
            log=log,
            notices=self.notices,
            uplink=uplink,
            watchman=Watchman(self.boot, self.clock, self.status, uplink, self.notices),
        )

    def _open_home(self) -> Home | None:
        until = min(time.monotonic() + self.boot.patience, self.clock.deadline)
        while True:
            try:
                reachable(self.boot.home.url)
                return Home(self.boot.home, make=False)
            except (BrokerError, OSError):
                if time.monotonic() >= until:
                    return None
                time.sleep(min(2.0, max(0.1, until - time.monotonic())))

    def _may_run(self, c: Context) -> bool:
        """Read control before anything else; False where it stays unreadable.

        Raises Stale where this generation does not stand, or had ended before this machine came back.
        """
        until = min(time.monotonic() + self.boot.patience, self.clock.deadline)
        if c.uplink.guarded("control", c.uplink.read_control, until=until) is None:
            if c.uplink.stale:
                raise Stale
            return False
        closed = c.uplink.guarded("closed", lambda: (c.home.find(c.keys.closed(c.generation)),), until=until)
        if c.uplink.stale or (closed is not None and closed[0] is not None):
            raise Stale
        return closed is not None

    def _placement(self, c: Context) -> str:
        preparation = Preparation(c)
        session = Session(c, preparation)
        try:
            ending, own = self._ending(c, preparation, session)
            kept = kept_until(c) if own and ending.verdict.outcome == "failed" else None
            if kept is None:
                # A program that failed or was ended has gone already; nothing of it stays in a container of its own.
                preparation.close()
            why = self._close(c, session, ending, kept)
            if kept is None:
                return why
            self.kept = max(kept, time.monotonic())
            self._arm()
            return f"{why}; {stay(c, kept)}"
        finally:
            preparation.close()

    def _ending(self, c: Context, preparation: Preparation, session: Session) -> tuple[Ending, bool]:
        """Prepare and run, to the end; and whether what has ended is of the task's own. Raises Stale."""
        ended = cause = None
        own = False
        outputs: dict[str, Any] = {}
        note = ""
        try:
            before = preparation.run()
            if before is not None:
                verdict, outputs = Verdict("succeeded", before["reason"]), before["outputs"]
            else:
                verdict, ended, cause = session.run()
                own = True
                if preparation.cache is not None:
                    preparation.cache.hold()
                if verdict.outcome == "succeeded" and preparation.spec.outputs:
                    note, outputs = self._outputs(c, preparation.spec.outputs)
        except Interrupted as interrupted:
            cause = interrupted.cause
            verdict = Verdict(cause.outcome, cause.reason)
        except Stale:
            raise
        except (Refused, BrokerError, OSError, ValueError) as error:
            verdict = Verdict("failed", str(error), getattr(error, "fix", ""))
            own = isinstance(error, SetupFailed)
        except Exception as error:  # noqa: BLE001 - said as the result, or the job would be moved for ever
            traceback.print_exc()
            self.contain.kill()
            verdict = Verdict("failed", f"the guest failed: {type(error).__name__}: {error}")
        return (
            Ending(verdict, ended, cause, outputs, session.last_step, session.restarts.used, preparation.cleared, note),
            own,
        )

    def _close(self, c: Context, session: Session, ending: Ending, kept: float | None) -> str:
        """Hand everything over; why the machine ends. kept: when it does, on the monotonic clock, where not now."""
        c.status.set(state="closing")
        locked = c.uplink.expired and bool(self.boot.access_url)
        until = ending.until(self.clock, self.boot.patience, locked=locked)
        if session.publisher is not None:
            publish_last(session.publisher, c.uplink, c.status, torn=ending.torn, until=until)
        if (keeper := session.preparation.cache) is not None:
            own_end = ending.ended is not None and ending.cause is None
            keeper.finish(min(LAST_SAVE, self.clock.deadline - LAST_BEAT - time.monotonic()) if own_end else 0.0)
        why = close(ending, c.uplink, c.status, self.clock, until=until, kept=kept)
        if c.uplink.stale:
            raise Stale
        return why

    def _outputs(self, c: Context, patterns: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """What to say of the outputs, empty where all are kept; and their files."""
        c.status.set(state="closing")
        work = self.folder / "work"
        until = self.clock.deadline - LAST_BEAT
        found = c.uplink.guarded("outputs", lambda: upload_tree(c.home, c.keys, work, patterns), until=until)
        if found is None:
            return "its outputs could not be uploaded", {}
        none = ", ".join(unmatched(found, patterns))
        note = f"no file was there that outputs names as {none}" if none else ""
        if note:
            c.log.say(note)
        return note, {path: {"sha256": f.sha256, "size": f.size, "mode": f.mode} for path, f in found.items()}

    def _noticed(self) -> None:
        word = self.notices.word
        assert word is not None
        self.status.set(notice=word.to_json())

    def _arm(self) -> None:
        """Also should this process stand still, the machine ends."""
        left = self.clock.left
        if self.kept is not None:
            left = min(left, self.kept + LATE - time.monotonic())
        try:
            arm_timer(self.folder, left)
        except OSError as error:
            self.status.warn(f"the boot script's timer could not be set: {error}")
