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
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from broker.config import Config
from broker.errors import ConfigError
from broker.schedule import Schedule, minutes

NO_CRON = (
    "install cron (Debian: apt-get install cron), or add --systemd, or add --up and keep `broker up` running on this "
    "computer"
)


def command(name: str, config: Config) -> list[str]:
    """What is woken: everything that it needs said in it, since cron gives it nothing."""
    kept = {"SPOTBROKER_STATE": str(config.state), "SPOTBROKER_CONFIG": str(config.file)}
    if os.environ.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.environ["PYTHONPATH"]
    assigned = [f"{key}={value}" for key, value in kept.items()]
    return ["/usr/bin/env", *assigned, sys.executable, "-m", "broker", "schedule", "fire", name]


def line(name: str, schedule: Schedule, config: Config, mark: str, now: float) -> str:
    """The crontab's line. In it a `%` would end the command, so it is escaped (crontab(5))."""
    system = datetime.fromtimestamp(now).astimezone().tzinfo
    assert system is not None
    shell = " ".join(map(shlex.quote, command(name, config))).replace("%", r"\%")
    return f"{_listed(minutes(schedule, system, now))} * * * * {shell} {_marked(name, mark)}"


def _listed(found: Sequence[int]) -> str:
    return "*" if len(found) == 60 else ",".join(map(str, found))


def _marked(name: str, mark: str) -> str:
    return f"# spotbroker:{mark}:{plain(name)}"


def plain(name: str) -> str:
    """A schedule's name as a comment or a file's name holds it: another one for every name."""
    from broker.task import slug_of

    slug = slug_of(name)
    return slug if slug == name else f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def install(text: str, name: str, config: Config, mark: str) -> None:
    """Put a line into the crontab, over the one that was there for it. Raises ConfigError without cron."""
    _edit(config, lambda lines: [*_others(lines, name, mark), text])


def uninstall(name: str, config: Config, mark: str) -> bool:
    """Take a schedule's line out of the crontab; False where there was none, or is no cron."""
    if shutil.which("crontab") is None:
        return False
    return _edit(config, lambda lines: _others(lines, name, mark))


def installed(mark: str) -> list[str]:
    """The lines of this installation that are in the crontab."""
    if shutil.which("crontab") is None:
        return []
    return [entry for entry in _read() if f"# spotbroker:{mark}:" in entry]


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


def _others(lines: Sequence[str], name: str, mark: str) -> list[str]:
    return [entry for entry in lines if not entry.endswith(_marked(name, mark))]


def _edit(config: Config, change: object) -> bool:
    """Read, change and write the crontab, one at a time; was anything different?"""
    assert callable(change)
    with _alone(config):
        before = _read()
        after: list[str] = change(before)
        if after == before:
            return False
        text = "".join(f"{entry}\n" for entry in after)
        done = subprocess.run(["crontab", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"the crontab was not taken: {done.stderr.strip()}", fix=NO_CRON)
    return True


def _read() -> list[str]:
    """The user's crontab; empty where there is none yet. Raises ConfigError where it cannot be read."""
    if shutil.which("crontab") is None:
        raise ConfigError("there is no cron on this computer", fix=NO_CRON)
    done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
    if done.returncode and "no crontab" not in done.stderr.lower():
        raise ConfigError(f"the crontab cannot be read: {done.stderr.strip()}", fix=NO_CRON)
    return done.stdout.splitlines() if not done.returncode else []


@contextlib.contextmanager
def _alone(config: Config) -> Iterator[None]:
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(config.state / "crontab.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def units(name: str, schedule: Schedule, config: Config, now: float) -> dict[str, str]:
    """A systemd user service and its timer, by file name."""
    system, slug = datetime.fromtimestamp(now).astimezone().tzinfo, plain(name)
    assert system is not None
    found = minutes(schedule, system, now)
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
