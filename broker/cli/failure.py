"""How a verb ends: its exit code, and an error as one or two lines, the second naming what to try next."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.cli.lines import wrapped
from broker.cli.screen import OutputLost, mute_broken, open_streams
from broker.errors import BrokerError

INTERRUPTED = 130
USAGE = 2


def exit_code(app: Callable[..., Any]) -> int:
    """Run the command and turn whatever comes out of it into an exit code, with words on stderr."""
    name = Path(sys.argv[0]).name
    program = "python -m broker" if name in ("__main__.py", "-c", "-m") else name
    open_streams()
    try:
        code = _run(app, program)
    except OSError:
        # stderr has gone too: there is nobody to tell.
        code = 1
    mute_broken()
    return code


def _run(app: Callable[..., Any], program: str) -> int:
    try:
        code = app(prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokerError as error:
        return report(error.message, error.fix, error.exit_code)
    except KeyboardInterrupt:
        return report("interrupted", "", INTERRUPTED)
    except BrokenPipeError:
        return 1
    except OutputLost as error:
        # A reader who has gone, as with `| head`, wants no words.
        return 1 if error.errno == errno.EPIPE else report(f"the output cannot be written: {error.strerror}", "", 1)
    except Exception as error:  # noqa: BLE001 - the last resort, so that nobody is shown a traceback
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # type: ignore[attr-defined]  # noqa: T201
            return 0
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _misused(error, program)
        if type(error).__name__ == "Abort":
            return report("interrupted", "", INTERRUPTED)
        return _unexpected(error)


def report(what: str, fix: str, code: int) -> int:
    """Print an error, a line for each thing that is wrong, and what to try; hand back its exit code."""
    first, *others = [line.strip() for line in what.split("\n") if line.strip()] or [""]
    print(_styled("error:", "1;31"), wrapped(first, sys.stderr, indent=7), file=sys.stderr)  # noqa: T201
    for other in others:
        print(f"       {wrapped(other, sys.stderr, indent=7)}", file=sys.stderr)  # noqa: T201
    if fix:
        text = wrapped(" ".join(fix.split("\n")), sys.stderr, indent=7)
        print(_styled("  try:", "1;32"), text, file=sys.stderr)  # noqa: T201
    return code


def _misused(error: Any, program: str) -> int:
    """An error that the parser of the command line found."""
    context = getattr(error, "ctx", None)
    path = str(getattr(context, "command_path", "") or program)
    message = str(error.format_message()).rstrip(".")
    return report(message, f"{path} --help", int(error.exit_code))


def _unexpected(error: Exception) -> int:
    """An error that nobody foresaw: one line for people, the traceback in a file."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "database or disk is full" in str(error):
        told = "this computer's disk is full: what jobs do cannot be written down here, though they go on"
        return report(told, "make some room, then the same again; broker check says where the state folder is", 1)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    text = "".join(traceback.format_exception(error))
    where = _write(f"crash-{stamp}-{os.getpid()}.txt", text)
    what = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
    if isinstance(error, ImportError | AttributeError) and (others := _clashing()):
        return report(
            f"{what}: {' and '.join(others)} installs a package `broker` too, and one has overwritten the other",
            f"pip uninstall {' '.join(others)}, then pip install --force-reinstall spotbroker; traceback in {where}",
            1,
        )
    return report(f"unexpected {what}", f"read the traceback in {where}; a report with it is welcome", 1)


def _clashing() -> list[str]:
    """Other distributions here that install an import package `broker`, as PyPI's project of that name does."""
    from importlib.metadata import packages_distributions

    return sorted(set(packages_distributions().get("broker", ())) - {"spotbroker"})


def _write(name: str, text: str) -> Path:
    from broker.config import load

    def state() -> Path:
        return load().state

    def temporary() -> Path:
        return Path(tempfile.gettempdir())

    for folder in (state, temporary):
        try:
            folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder() / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            return path
        except (OSError, BrokerError):
            continue
    sys.stderr.write(text)
    return Path("the lines above")


def _styled(text: str, code: str) -> str:
    colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and "--no-color" not in sys.argv
    return f"\x1b[{code}m{text}\x1b[0m" if colored else text
