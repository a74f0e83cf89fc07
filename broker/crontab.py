"""Who wakes a schedule: one marked line in the user's crontab, or a systemd user timer.

Both only wake `broker schedule fire NAME`, at every minute of the hour at which a run may come by this computer's
clock; whether one is due the timetable says. So a zone that is not the computer's, a change of clocks and a night
asleep are all one thing, and a missed run is seen within the hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from broker.config import Config
from broker.errors import ConfigError
from broker.schedule import Schedule, minutes

ELSE = "add --systemd, or add --up and keep `broker up` running on this computer"
NO_CRON = f"install cron (Debian: apt-get install cron), or {ELSE}"
LONGEST = 998
"""Bytes of a command: Debian's crontab(5)."""


def command(name: str, config: Config) -> list[str]:
    """What is woken: everything that it needs said in it, since cron gives it nothing."""
    kept = {"SPOTBROKER_STATE": str(config.state), "SPOTBROKER_CONFIG": str(config.file)}
    if os.environ.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    assigned = [f"{key}={value}" for key, value in kept.items()]
    return ["/usr/bin/env", *assigned, sys.executable, "-m", "broker", "schedule", "fire", name]


def line(name: str, schedule: Schedule, config: Config, mark: str, now: float) -> str:
    """The crontab's line. In it a `%` would end the command, so it is escaped (crontab(5))."""
    shell = " ".join(map(shlex.quote, command(name, config))).replace("%", r"\%")
    return f"{_listed(minutes(schedule, None, now))} * * * * {shell} {_marked(name, mark)}"


def _listed(found: Sequence[int]) -> str:
    return "*" if len(found) == 60 else ",".join(map(str, found))


def _marked(name: str, mark: str) -> str:
    return f"# spotbroker:{mark}:{plain(name)}"


def plain(name: str) -> str:
    """A schedule's name as a comment or a file's name holds it: another one for every name."""
    from broker.task import slug_of

    slug = slug_of(name)
    return slug if slug == name else f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def install(text: str, name: str, mark: str) -> None:
    """Put a line into the crontab, in the place of the one that was there for it.

    Raises ConfigError without cron, or where it does not keep the line.
    """
    if (size := len(os.fsencode(text.split(" ", 5)[5]))) > LONGEST:
        raise ConfigError(
            f"the command in the crontab would be {size} bytes long, and cron takes {LONGEST}",
            fix=f"a shorter SPOTBROKER_STATE, SPOTBROKER_CONFIG or PYTHONPATH; or {ELSE}",
        )
    _edit(name, mark, [text])
    if text not in _read():
        raise ConfigError("the crontab does not keep the schedule's line", fix=ELSE)


def uninstall(name: str, mark: str) -> bool:
    """Take a schedule's line out of the crontab; False where there was none, or is no cron."""
    return shutil.which("crontab") is not None and _edit(name, mark, [])


def daemon_runs() -> bool:
    """Does a cron daemon run here, as far as can be seen? True where nothing says that it does not."""
    for path in (Path("/run/crond.pid"), Path("/var/run/cron.pid")):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(path.read_text()), 0)
            return True
    with contextlib.suppress(OSError):
        names = {entry.read_text().strip() for entry in Path("/proc").glob("[0-9]*/comm") if entry.exists()}
        return bool({"cron", "crond", "fcron"} & names)
    return True


def _edit(name: str, mark: str, wanted: list[str]) -> bool:
    """Have these lines in the place of those of a schedule, and nothing else changed; was anything different?"""
    with _alone():
        before = _read()
        ours = [at for at, entry in enumerate(before) if entry.endswith(_marked(name, mark))]
        first = ours[0] if ours else len(before)
        others = [entry for at, entry in enumerate(before) if at > first and at not in ours]
        after = [*before[:first], *wanted, *others]
        if after == before:
            return False
        done = _crontab("-", "".join(f"{entry}\n" for entry in after))
        if done.returncode:
            raise ConfigError(f"the crontab was not taken: {done.stderr.strip()}", fix=ELSE)
    return True


def _read() -> list[str]:
    """The lines of the user's crontab; none where there is none yet. Raises ConfigError where it cannot be read."""
    if shutil.which("crontab") is None:
        raise ConfigError("there is no cron on this computer", fix=NO_CRON)
    done = _crontab("-l")
    # The second is BusyBox's.
    if done.returncode and not any(words in done.stderr.lower() for words in ("no crontab", "no such file")):
        raise ConfigError(f"the crontab cannot be read: {done.stderr.strip()}", fix=ELSE)
    text = "" if done.returncode else done.stdout
    return text.removesuffix("\n").split("\n") if text else []


def _crontab(argument: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """The user's own lines come through byte by byte, whatever they are written in."""
    given = None if text is None else os.fsencode(text)
    done = subprocess.run(["crontab", argument], input=given, capture_output=True, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One at a time: all installations of a user have one crontab."""
    path = Path(tempfile.gettempdir()) / f"spotbroker-crontab-{os.getuid()}.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def units(name: str, schedule: Schedule, config: Config, now: float) -> dict[str, str]:
    """A systemd user service and its timer, by file name."""
    slug, found = plain(name), minutes(schedule, None, now)
    at = "*" if len(found) == 60 else ",".join(f"{minute:02d}" for minute in found)
    start = " ".join(_unit_quoted(word) for word in command(name, config))
    service = f"""[Unit]
Description=spotbroker: {slug}

[Service]
Type=exec
ExecStart={start}
# 75: nothing within price now; 104: a limit was reached and the newest snapshot is safe.
SuccessExitStatus=75 104
"""
    timer = f"""[Unit]
Description=spotbroker: {slug}

[Timer]
OnCalendar=*-*-* *:{at}:00
Persistent=true
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
    return {f"spotbroker-{slug}.service": service, f"spotbroker-{slug}.timer": timer}


def _unit_quoted(word: str) -> str:
    """A word of ExecStart (systemd.service(5)): `%` and `$` are doubled, the rest is quoted where it must be."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^\w@%+=:,./-]", word) else escaped


def unit_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def install_units(files: dict[str, str]) -> None:
    """Write the units, and start the timer. Raises ConfigError without systemd."""
    folder = unit_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    timer = next(name for name in files if name.endswith(".timer"))
    for arguments in (["daemon-reload"], ["enable", "--now", timer]):
        done = _systemctl(*arguments)
        if done is None or done.returncode:
            why = done.stderr.strip() if done is not None else "there is no systemctl"
            raise ConfigError(
                f"the timer {folder / timer} is written but does not run: {why}",
                fix="systemctl --user needs a login session; add the schedule without --systemd to use cron",
            )


def remove_units(name: str) -> bool:
    """Stop and remove a schedule's units; False where there are none."""
    names = [f"spotbroker-{plain(name)}.{kind}" for kind in ("timer", "service")]
    found = [unit_folder() / each for each in names if (unit_folder() / each).exists()]
    if found:
        _systemctl("disable", "--now", names[0])
        for path in found:
            path.unlink()
        _systemctl("daemon-reload")
    return bool(found)


def _systemctl(*arguments: str) -> subprocess.CompletedProcess[str] | None:
    if shutil.which("systemctl") is None:
        return None
    return subprocess.run(["systemctl", "--user", *arguments], capture_output=True, text=True, check=False)
