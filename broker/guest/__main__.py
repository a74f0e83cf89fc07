"""The guest's entry: read the boot file, run the placement, end the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from broker.guest.bootfile import Boot
from broker.guest.disk import fire_timer
from broker.guest.machine import Machine
from broker.guest.provider import ProviderHalf

DEFAULT_FOLDER = "/var/lib/spotbroker"
AFTER_END = 120.0  # seconds in which an accepted end takes effect


def main() -> None:
    """Never returns before the machine's end was accepted: a container whose PID 1 has gone is only started again."""
    os.umask(0o077)
    going_down = threading.Event()
    folder = Path(os.environ.get("SPOTBROKER_DIR") or DEFAULT_FOLDER)

    def refused(text: str) -> None:
        """The provider's half did not end the machine; the shell's timer has a way of its own."""
        say(text)
        with contextlib.suppress(OSError):
            fire_timer(folder)

    try:
        boot = Boot.from_bytes((folder / "boot.json").read_bytes())
        provider = ProviderHalf.load(boot.provider_guest)
    except Exception:  # noqa: BLE001 - without either nothing can be run, and nobody told
        traceback.print_exc()
        refused("the guest could not start")
    else:
        why = _placement(boot, folder, provider)
        # A machine that shuts down waits for its units: whoever stays bills for another TimeoutStopSec.
        signal.signal(signal.SIGTERM, lambda *_: going_down.set())
        say(f"ending this machine: {why}")
        provider.end_machine(why, refused)
    going_down.wait(AFTER_END)
    if os.getpid() == 1:
        threading.Event().wait()


def _placement(boot: Boot, folder: Path, provider: ProviderHalf) -> str:
    try:
        machine = Machine(boot, folder, provider, dict(os.environ))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=machine.sigterm, name="sigterm").start())
        return machine.run()
    except Exception as error:  # noqa: BLE001 - whatever happens, a machine must not stay behind
        traceback.print_exc()
        return f"the guest failed: {type(error).__name__}"


def say(text: str) -> None:
    print(f"spotbroker: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the machine's console


if __name__ == "__main__":
    main()
