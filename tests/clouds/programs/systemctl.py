#!/usr/bin/python3 -I
"""`systemctl`, `shutdown`, `poweroff`, `halt` and `reboot` of a virtual machine, by the name it is called.

What it does not know it refuses, so that a test never goes on with less than it asked for. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
from pathlib import Path
from typing import Any

UNITS = Path("/etc/systemd/system")
SOCKET = "/run/init.socket"
FLAGS = {"--now", "--quiet", "-q", "--force", "-f", "--no-block", "--no-wall", "--no-pager", "--system"}
RB_POWER_OFF, RB_AUTOBOOT = 0x4321FEDC, 0x01234567


def fail(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    return code


def ask(**words: Any) -> tuple[int, str]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(SOCKET)
        peer.sendall(json.dumps(words).encode())
        answer = b""
        while part := peer.recv(65536):
            answer += part
    told = json.loads(answer or b'{"code": 1, "text": "the machine is going down"}')
    return told["code"], told["text"]


def end(action: str, after: float, force: int) -> int:
    if force > 1:  # at once, by the kernel, without a word to anybody
        ctypes.CDLL(None).reboot(RB_AUTOBOOT if action == "reboot" else RB_POWER_OFF)
        return fail("the kernel refused")
    code, text = ask(do=action, after=after, force=bool(force))
    return fail(text, code) if code else 0


def shutdown(words: list[str]) -> int:
    action, after = "poweroff", 60.0
    for word in words:
        if word in ("-c", "--cancel"):
            return ask(do="cancel")[0]
        if word in ("-r", "--reboot"):
            action = "reboot"
        elif word in ("now", "+0"):
            after = 0.0
        elif word.lstrip("+").isdigit():
            after = 60.0 * int(word.lstrip("+"))
        elif word not in ("-h", "-P", "-H", "--poweroff", "--halt", "--no-wall"):
            return fail(f"shutdown: {word} is not played here")
    return end(action, after, 0)


def enable(names: list[str], on: bool) -> int:
    for name in names:
        path = UNITS / name
        if not path.is_file():
            return fail(f"Failed to enable unit: Unit file {name} does not exist.")
        words = path.read_text(encoding="utf-8").replace(" ", "").splitlines()
        if not any(word.startswith("WantedBy=") for word in words):
            return fail("The unit files have no installation config (WantedBy=, RequiredBy=, Also=, Alias= settings).")
        link = UNITS / "multi-user.target.wants" / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        if on:
            link.symlink_to(path)
            print(f"Created symlink {link} -> {path}.", file=sys.stderr)
    return 0


def systemctl(words: list[str]) -> int:
    short = [f"-{letter}" for word in words if word[:1] == "-" != word[1:2] for letter in word[1:]]
    flags = [*short, *(word for word in words if word.startswith("--"))]
    verb, *names = [word for word in words if not word.startswith("-")] or ["list-units"]
    names = [name if "." in name else f"{name}.service" for name in names]
    unknown = [flag for flag in flags if flag not in FLAGS]
    if unknown:
        return fail(f"systemctl: {unknown[0]} is not played here")
    code, text = 0, ""
    if verb in ("poweroff", "halt", "reboot"):
        code = end(verb.replace("halt", "poweroff"), 0.0, sum(flag in ("-f", "--force") for flag in flags))
    elif verb in ("enable", "disable"):
        code = enable(names, verb == "enable")
        if code == 0 and "--now" in flags:
            return systemctl(["start" if verb == "enable" else "stop", *names])
    elif verb == "is-enabled":
        code = 0 if all((UNITS / "multi-user.target.wants" / name).exists() for name in names) else 1
        text = "disabled" if code else "enabled"
    elif verb in ("start", "stop", "restart"):
        for some in [names] if verb == "start" else [[name] for name in names]:
            code, text = ask(do=verb, units=some)
    elif verb in ("is-active", "status"):
        code, text = ask(do="state", units=names)
    elif verb == "is-system-running":
        text = "running"
    elif verb != "daemon-reload":
        code, text = 1, f"systemctl: {verb} is not played here"
    if text and not {"-q", "--quiet"} & set(flags):
        print(text, file=sys.stderr if code and not verb.startswith("is-") else sys.stdout)
    return code


def main() -> int:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "shutdown":
        return shutdown(words)
    if name in ("poweroff", "halt", "reboot"):
        return systemctl([name, *words])
    return systemctl(words)


if __name__ == "__main__":
    sys.exit(main())
