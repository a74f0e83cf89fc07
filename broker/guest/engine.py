"""`Engine`: docker or podman on this machine, and what its refusals mean: the task's fault, or this machine's."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAMES = ("docker", "podman")
PULL_WITHIN = 3600.0  # seconds; the boot limit and the broker's patience usually end sooner
# Of a pull that failed for no reason of the image: about five minutes, as another machine would meet the same registry.
TRIES, PAUSE = 6, 10.0  # PAUSE: seconds between the first two, then twice as long each time
QUICKLY = 120.0  # seconds for what asks the engine about what it has
# The engines' and registries' own words, docker 20-28 and podman 4-5.
NO_DISK = re.compile(r"no space left on device|not enough space|disk quota exceeded", re.IGNORECASE)
NOT_FOR_US = re.compile(
    r"pull access denied|unauthorized|authentication required|requested access to the resource is denied|"
    r"denied: .*(access|permission)|no basic auth credentials",
    re.IGNORECASE,
)
NOT_THERE = re.compile(
    r"manifest unknown|manifest for .* not found|name unknown|repository .* not found|not found: manifest|"
    r"repository does not exist|no such image|invalid reference format|image not known|"
    r"short-name .* did not resolve",
    re.IGNORECASE,
)
OTHER_MACHINE = re.compile(
    r"no matching manifest|no image found in (image index|manifest list)|exec format error", re.IGNORECASE
)


class ImageRefused(Exception):  # noqa: N818 - a state, not an error
    """The task's image cannot be had, by anybody who asks for it like this: the text says why and what to do."""


class HostUnfit(Exception):  # noqa: N818
    """This machine cannot do it, another one may."""


@dataclass(frozen=True, slots=True)
class Engine:
    """argv: the program with its own options. run_options: more for each `run`. environ: what it runs with."""

    argv: tuple[str, ...]
    run_options: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.argv[0])  # noqa: PTH119

    @property
    def is_podman(self) -> bool:
        return "podman" in self.name

    @property
    def as_root(self) -> bool:
        """Is the program root in its container? Everywhere, but where the engine's root is this machine's and the guest
        is somebody else, who could not read then what the program saves."""
        return os.getuid() == 0 or self.is_podman

    def has(self, image: str) -> bool:
        return self._ask("image", "inspect", "--format", "x", image).returncode == 0

    def pull(self, image: str, disk: float) -> float:
        """Bring the image here; seconds that it took, 0 where it was here. disk: GiB, for what is said.

        Raises ImageRefused or HostUnfit.
        """
        if self.has(image):
            return 0.0
        begun, pause = time.monotonic(), PAUSE
        for tried in range(1, TRIES + 1):
            done = self._ask("pull", "--quiet", image, timeout=PULL_WITHIN)
            if done.returncode == 0:
                return time.monotonic() - begun
            said = (done.stderr or done.stdout).strip()
            self.judge(said, image, disk)
            if tried < TRIES:
                time.sleep(pause)
                pause *= 2
        raise HostUnfit(f"the image {image} could not be pulled here: {last_line(said)}")

    def judge(self, said: str, image: str, disk: float) -> None:
        """Raise what an engine's refusal surely means; return where it may mean anything."""
        if NO_DISK.search(said):
            raise ImageRefused(f"the image {image} does not fit the disk of {disk:g} GiB: raise resources.disk_size")
        if OTHER_MACHINE.search(said):
            raise HostUnfit(f"the image {image} is not built for this machine's processor")
        if NOT_FOR_US.search(said):
            text = f"the image {image} is private, or there is none of that name: {last_line(said)}"
            raise ImageRefused(f"{text}; machines pull without a login, so make it public")
        if NOT_THERE.search(said):
            raise ImageRefused(f"there is no image {image}: {last_line(said)}; check its name and tag in image_id")

    def remove(self, name: str) -> None:
        """End a container with all in it and forget it; without effect where there is none. Never raises."""
        for _ in range(2):  # podman's first try fails where its monitor has been killed
            if self._ask("rm", "--force", *(("--time", "0") if self.is_podman else ()), name).returncode == 0:
                return

    def sweep(self, label: str) -> None:
        """Forget what containers with this label have left that have ended. Never raises."""
        synced = ("--sync",) if self.is_podman else ()  # one whose monitor was killed looks alive until asked
        done = self._ask("ps", "--all", *synced, "--quiet", "--filter", f"label={label}", "--filter", "status=exited")
        for name in done.stdout.split():
            self._ask("rm", "--force", name)

    def _ask(self, *arguments: str, timeout: float = QUICKLY) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.argv, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
                env=self.environ,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return subprocess.CompletedProcess([*self.argv, *arguments], 125, "", str(error))


def container_name(job: str, generation: int) -> str:
    """What a placement's container is called."""
    return f"spotbroker-{re.sub('[^A-Za-z0-9_.-]', '-', job)}-{generation}"


def find(settings: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Engine:
    """The machine's engine. settings: an offer's own word (`argv`, `run`, `environ`), where it has one.

    Raises HostUnfit where there is none.
    """
    env = {**environ, **_users(environ)}
    if settings:
        return Engine(tuple(settings["argv"]), tuple(settings.get("run", ())), {**env, **settings.get("environ", {})})
    for name in NAMES:
        if (found := shutil.which(name, path=environ.get("PATH"))) is not None:
            return Engine((found,), (), env)
    raise HostUnfit("this machine has neither docker nor podman to start the task's container with")


def _users(environ: Mapping[str, str]) -> dict[str, str]:
    """An engine keeps its images in its user's own home, whatever HOME the machine was given."""
    found = {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    runtime = f"/run/user/{os.getuid()}"
    if os.getuid() and "XDG_RUNTIME_DIR" not in environ and os.path.isdir(runtime):  # noqa: PTH112
        found["XDG_RUNTIME_DIR"] = runtime
    return found


def last_line(text: str) -> str:
    lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no word of why"
