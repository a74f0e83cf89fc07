"""`Preparation`: everything between boot and the program: fetch, set up, wait for the predecessor, restore."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from broker.guest import environment
from broker.guest.cache import Keeper
from broker.guest.container import ContainedProgram, TaskContainer
from broker.guest.context import TICK, Context, Refused, SetupFailed
from broker.guest.disk import install_library
from broker.guest.ending import Cause
from broker.guest.engine import Engine, HostUnfit, ImageRefused, find
from broker.guest.fetch import fetch_mounts, fetch_spec, fetch_workdir
from broker.guest.hardware import difference
from broker.guest.opening import Opening
from broker.guest.places import Places, boxed
from broker.guest.predecessor import succeeded_before, wait_for_predecessor
from broker.guest.program import Exit, Program
from broker.guest.shell import say_way
from broker.guest.spec import Spec
from broker.manifest import Manifest
from broker.restore import restore_newest, write_parent

BOOT_OBJECT = 10.0  # seconds for which the deletion of the boot object is tried; the broker deletes it too


class Preparation:
    """`restored` is the snapshot that lies in the checkpoint folder, None where the job starts from nothing.

    checkpoint: that folder on the machine; saves: the same as the program sees it. container: the one that setup and
    run share, None where they run bare. cache: what keeps the task's cache folders, None where it names none.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.restored: Manifest | None = None
        self.avoid: set[tuple[int, int]] = set()
        self.waited = False
        self.spec: Spec
        self.checkpoint: Path
        self.saves: Path
        self.container: TaskContainer | None = None
        self.cache: Keeper | None = None
        self._opening: Opening | None = None

    def run(self) -> Mapping[str, Any] | None:
        """Prepare all; an earlier generation's result where that had succeeded, else None.

        Raises Stale, Interrupted, Refused, and what the home, the disk and a wrong task raise.
        """
        c = self.context
        c.uplink.guarded("the boot object's deletion", self._forget_boot, until=time.monotonic() + BOOT_OBJECT)
        self.spec = spec = c.aside("the task", lambda: fetch_spec(c.home, c.keys, c.boot))
        c.mask.extend(environment.masked_values(c.boot, spec))
        c.steps.total = spec.steps
        if wrong := c.aside("the hardware", lambda: difference(c.boot.offer)):
            c.interrupt(Cause("hardware", "hardware", f"not what was rented: {wrong}"))
        work = c.folder / "work"
        shutil.rmtree(work, ignore_errors=True)  # a machine that came back starts from its snapshot, not from ruins
        install_library(c.folder / "lib")
        engine = self._engine()
        places = Places.of(c.boot, c.folder, c.environ, as_root=engine is None or engine.as_root)
        cached = self._bring_cache(places)  # first, so that what the task brings along lies on top of it
        with self.cache.laying() if self.cache is not None else nullcontext():
            c.aside("the workdir", lambda: fetch_workdir(c.home, c.boot, c.folder / "workdir.tar.gz", work))
            archive = c.folder / "mount.tar.gz"
            mounted = c.aside("file_mounts", lambda: fetch_mounts(c.home, c.boot, archive, places))
        self.saves = spec.checkpoint_folder(c.folder, places.home, bare=places.shared)
        self.checkpoint = places.here(self.saves)
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        if engine is not None:
            self._open_container(engine, places, [self.saves, *mounted, *cached])
        self._setup()
        if self.cache is not None:
            self.cache.start()
        c.status.set(state="waiting")
        c.aside("the predecessor", lambda: wait_for_predecessor(c.home, c.keys, c.uplink, c.clock))
        self.waited = True
        before = c.aside("earlier results", lambda: succeeded_before(c.home, c.keys, c.generation))
        if before is None:
            self.restore()
        return before

    def close(self) -> None:
        """End the task's container, if there is one or one is about to be."""
        if self._opening is not None:
            self._opening.close()

    def _bring_cache(self, places: Places) -> list[Path]:
        """Put the cache folders back where that pays; where the program sees them."""
        if not self.spec.cache:
            return []
        self.cache = keeper = Keeper(self.context, self.spec, places)
        self.context.aside("the cache", keeper.restore)
        return [seen for _, seen in keeper.folders.folders.values()]

    def _engine(self) -> Engine | None:
        """What starts the task's container; None where setup and run are bare. Raises Interrupted without one."""
        c = self.context
        if not boxed(c.boot):
            return None
        try:
            return find(((c.boot.offer or {}).get("extra") or {}).get("engine"), c.environ)
        except HostUnfit as error:
            c.interrupt(Cause("hardware", "hardware", f"not what was rented: {error}"))
            raise

    def _open_container(self, engine: Engine, places: Places, brought: list[Path]) -> None:
        """Bring the image here and start the container. brought: paths of the program that must lie outside it."""
        c = self.context
        c.status.set(state="pulling")
        self._opening = opening = Opening(c, engine, places, brought)
        try:
            self.container = c.aside("the image", opening.open)
        except HostUnfit as error:
            c.interrupt(Cause("hardware", "hardware", f"not what was rented: {error}"))
        except ImageRefused as error:
            raise Refused(str(error)) from error

    @property
    def cleared(self) -> bool:
        """Is every earlier program known to have ended?"""
        order = self.context.uplink.order
        return self.waited or order is None or order.after is None or order.go

    def _forget_boot(self) -> bool:
        self.context.home.delete([self.context.keys.boot(self.context.generation)])
        return True

    def _setup(self) -> None:
        c = self.context
        if not self.spec.setup.strip():
            return
        c.status.set(state="setup")
        ended = self._setup_once()
        if ended.code != 0 and not c.notice_before(ended) and self.cache is not None and self.cache.take_out():
            ended = self._setup_once()
        if self.cache is not None and ended.code == 0:
            self.cache.ready(ended.seconds, setup=True)
        if ended.code != 0:
            if c.notice_before(ended):
                c.interrupt(Cause("notice", "notice", f"setup exited {ended.code}, after a notice"))
            raise SetupFailed(f"setup exited {ended.code}" + (", out of memory" if ended.oom else ""))

    def _setup_once(self) -> Exit:
        c = self.context
        program = self.start("setup", self.spec.setup)
        while (ended := program.wait(TICK)) is None:
            if (cause := c.watchman.cause()) is not None:
                program.kill()
                c.interrupt(cause)
        c.log.end()
        c.status.timing("setup", ended.seconds)
        return ended

    def restore(self) -> None:
        """Put the newest snapshot of the lineage into the checkpoint folder, and record once where this one starts.

        Raises SnapshotCorrupt where there were snapshots and none can be restored.
        """
        c = self.context
        if self.spec.checkpoint:
            c.status.set(state="restoring")
            begun = time.monotonic()
            control = c.uplink.control
            parents, seqs = (dict(control.parents), dict(control.seqs)) if control else ({}, {})
            # Below the next one: a machine that came back goes on from its own snapshots.
            self.restored, problems = c.aside(
                "the snapshot",
                lambda: restore_newest(
                    c.home,
                    c.keys,
                    c.generation + 1,
                    self.checkpoint,
                    parents,
                    expected=seqs,
                    avoid=self.avoid,
                    held=self.container is not None,
                ),
            )
            for problem in problems:
                c.status.warn(problem)
                c.log.say(problem)
            c.status.timing("restore", time.monotonic() - begun)
        if (manifest := self.restored) is not None:
            at = "" if manifest.step is None else f", step {manifest.step}"
            c.log.say(f"restored snapshot {manifest.generation}/{manifest.seq}{at}")
            own = manifest.seq if manifest.generation == c.generation else 0
            c.status.set(restored=[manifest.generation, manifest.seq], seq=max(own, c.status.get("seq")))
        if not c.status.get("parent_written"):
            self._write_parent()

    def _write_parent(self) -> None:
        c, manifest = self.context, self.restored
        if manifest is None or manifest.generation != c.generation:
            parent = (manifest.generation, manifest.seq) if manifest else None
            c.aside("parent", lambda: write_parent(c.home, c.keys, c.generation, parent))
        c.status.set(parent_written=True)

    def start(self, name: str, text: str) -> Program | ContainedProgram:
        """Start setup or run, contained, with the task's environment."""
        c = self.context
        script = c.folder / "task" / name
        script.write_text(text, encoding="utf-8")
        env = environment.program(
            c.environ if self.container is None else self.container.environ,
            c.boot,
            self.spec,
            lib=c.folder / "lib",
            checkpoint=self.saves,
            progress=c.steps.file,
            resumed=name == "run" and self.restored is not None,
        )
        work, box = c.folder / "work", self.container
        say_way(c.folder, c.boot.job, env, box.engine if box else None, box.wanted.name if box else "")
        if box is None:
            return Program(script, cwd=work, env=env, contain=c.contain, output=c.log.write)
        try:
            return box.start(script, cwd=work, env=env)
        except HostUnfit as error:
            raise Refused(str(error)) from error
