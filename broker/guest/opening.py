"""`Opening`: from an image's name to the task's running container."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from broker.guest import environment
from broker.guest.container import NoPython, TaskContainer, Wanted, unpack_python
from broker.guest.context import Context
from broker.guest.engine import Engine, ImageRefused, container_name
from broker.guest.fetch import fetch
from broker.guest.places import Places

PASSED = ("SPOTBROKER_MACHINE",)  # by which `local` finds what belongs to one of its machines


class Opening:
    """Pulls, starts and closes. `open` may run in a thread that is left behind; `close` ends what it started."""

    def __init__(self, context: Context, engine: Engine, places: Places, brought: Sequence[Path]) -> None:
        """brought: what the program sees at paths outside the guest's folder."""
        c, boot = context, context.boot
        assert boot.container is not None
        offer = boot.offer or {}
        self.context, self.engine, self.image = c, engine, boot.container
        self.wanted = Wanted(
            image=boot.container,
            name=container_name(boot.job, boot.generation),
            mark=environment.mark(boot.job, boot.generation),
            folder=c.folder,
            mounts=places.mounts([*brought, c.folder / "ckpt", *([] if engine.as_root else [places.home])]),
            home=places.home,
            gpus=bool(offer.get("gpu_count")),
            disk=float(offer.get("disk") or 0.0),
            user="0:0" if engine.as_root else f"{os.getuid()}:{os.getgid()}",
            passed={name: c.environ[name] for name in PASSED if name in c.environ},
        )
        self._closed = False
        self._made: TaskContainer | None = None

    def open(self) -> TaskContainer:
        """Raises ImageRefused, HostUnfit, and HomeError where the static Python is wanted and cannot be had."""
        c = self.context
        for here, _ in self.wanted.mounts:
            if not here.exists():
                here.mkdir(mode=0o755, parents=True)
        seconds = self.engine.pull(self.image, self.wanted.disk)
        c.status.timing("pull", seconds)
        if seconds:
            c.log.say(f"pulled {self.image} in {seconds:.0f} s")
        try:
            self._made = self._start()
        except NoPython:
            self._bring_python()
            try:
                self._made = self._start()
            except NoPython:
                text = f"the image {self.image} has no Python from 3.8 on, and ours does not run in it"
                raise ImageRefused(f"{text}: it needs an image that is built on glibc, not on musl") from None
        if self._closed:
            self._made.close()
        return self._made

    def close(self) -> None:
        self._closed = True
        if self._made is not None:
            self._made.close()
        else:
            self.engine.remove(self.wanted.name)

    def _start(self) -> TaskContainer:
        return TaskContainer(self.engine, self.wanted, self.context.log.write)

    def _bring_python(self) -> None:
        """The static Python, for an image without any. Raises ImageRefused where none was sent along."""
        c = self.context
        python = (c.boot.runtime or {}).get("python")
        if (c.folder / "python").is_dir():
            return
        if python is None:
            raise ImageRefused(f"the image {self.image} has no Python from 3.8 on, and none was sent along for it")
        archive = c.folder / "python.tar.gz"
        fetch(c.home, python["key"], python["sha256"], archive)
        unpack_python(archive, c.folder)
        archive.unlink()
