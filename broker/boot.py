"""What starts a machine: the guest as one zip, the one-time boot script with its secrets, the user data without any.

The user data is small enough for every provider (Vast takes 4,096 bytes). It arms a timer that ends the machine before
it touches the network, fetches the boot script and becomes it. The boot script writes the boot file to root-only disk,
fetches the guest, checks its hash and becomes the guest. A machine that comes back finds both scripts on its disk.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib
import importlib.util
import io
import math
import shlex
import time
import zipfile
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from broker.guest.bootfile import Boot

__all__ = ["USER_DATA_LIMIT", "Boot", "boot_script", "guest_zipapp", "user_data"]

USER_DATA_LIMIT = 4096
ENTRY = "from broker.guest.__main__ import main\n\nmain()\n"
# Ends the boot script's whole process group, the guest in it: right for a machine that is over when its first process
# is. A provider whose machines are not says `END_COMMAND` in its guest half.
END_COMMAND = "kill -KILL 0"
FETCH_FOR = 600  # seconds for which the boot script and the guest are tried
OLDEST_PYTHON = (3, 11)


def guest_zipapp(providers: Iterable[str] | None = None) -> tuple[bytes, str]:
    """The guest as an executable zip, and its SHA-256. The same sources give the same bytes.

    providers: import names such as `broker_local`, whose `guest.py` goes along; by default those of all installed.
    """
    root = Path(__file__).parent
    files = {"__main__.py": ENTRY.encode(), "broker/__init__.py": b""}
    todo = sorted(f"guest/{path.name}" for path in (root / "guest").glob("*.py"))
    while todo:
        name = todo.pop()
        if f"broker/{name}" not in files:
            source = (root / name).read_bytes()
            files[f"broker/{name}"] = source
            todo.extend(f"{module}.py" for module in _imports(source) if (root / f"{module}.py").is_file())
    for package in sorted(providers if providers is not None else _installed()):
        half = _guest_half(package)
        if half is not None:
            files |= {f"{package}/__init__.py": b"", f"{package}/guest.py": half.read_bytes()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.create_system = 3
            zipped.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    raw = buffer.getvalue()
    return raw, hashlib.sha256(raw).hexdigest()


def _imports(source: bytes) -> set[str]:
    """The modules directly below `broker` that a source imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "broker":
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
    return found


def _installed() -> set[str]:
    return {point.value.partition(":")[0].partition(".")[0] for point in entry_points(group="broker.providers")} | {
        "broker_local"
    }


def _guest_half(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (Path(folder) / "guest.py").is_file():
            return Path(folder) / "guest.py"
    return None


FETCH = r"""
fetch() { # URL FILE
  case $1 in file://*) cp "${1#file://}" "$2" ;;
  *) curl -fsSL --connect-timeout 10 --max-time 300 -o "$2" "$1" || wget -q -T 300 -O "$2" "$1" ||
    python3 -c 'import sys,urllib.request as u
open(sys.argv[2],"wb").write(u.urlopen(sys.argv[1],timeout=300).read())' "$1" "$2" ;;
  esac 2>/dev/null
}
"""

USER_DATA = r"""#!/bin/sh
# spotbroker
umask 077
D=${SPOTBROKER_DIR:-/var/lib/spotbroker}
SPOTBROKER_DIR=$D
export SPOTBROKER_DIR
mkdir -p "$D"
now() { if read -r u _ </proc/uptime; then echo "${u%%.*}"; else date +%s; fi; } 2>/dev/null
finish() { why=$1; until { @END@; }; do sleep 10; done; while :; do sleep 60; done; }
echo $(($(now) + @SECONDS@)) >"$D/deadline"
(
  while n=$(now); d=$(cat "$D/deadline") && [ "$n" -lt "$d" ]; do
    r=$((d - n)); [ "$r" -gt 5 ] && r=5; sleep "$r"
  done
  finish end_by
) </dev/null &
SPOTBROKER_TIMER=$!
export SPOTBROKER_TIMER
@FETCH@
U=@URL@
e=$(($(now) + @FETCH_FOR@))
while [ ! -s "$D/boot" ]; do
  if fetch "$U" "$D/boot.new"; then sync; mv "$D/boot.new" "$D/boot"; break; fi
  [ "$(now)" -lt "$e" ] || finish "the boot script could not be fetched"
  sleep 2
done
exec sh "$D/boot"
"""

BOOT_SCRIPT = r"""#!/bin/sh
# spotbroker: what one machine is told, once; secrets below
umask 077
D=${SPOTBROKER_DIR:?}
now() { if read -r u _ </proc/uptime; then echo "${u%%.*}"; else date +%s; fi; } 2>/dev/null
fail() { echo "spotbroker: $1" >&2; why=$1; until { @END@; }; do sleep 10; done; while :; do sleep 60; done; }
@FETCH@
P=
for p in @PYTHON@ python3.13 python3.12 python3.11 python3; do
  if "$p" -I -c 'import sys; sys.exit(sys.version_info < @OLDEST@)' 2>/dev/null; then P=$p; break; fi
done
[ -n "$P" ] || fail "no Python of @OLDEST@ or newer is on this machine"
"$P" -I -c 'import base64,sys; sys.stdout.buffer.write(base64.b64decode(sys.stdin.buffer.read()))' \
  >"$D/boot.json.new" <<'SPOTBROKER' || fail "the boot file could not be written"
@JSON@
SPOTBROKER
mv "$D/boot.json.new" "$D/boot.json"
sync
U=@URL@
right() { [ -s "$1" ] && "$P" -I -c 'import hashlib,sys
sys.exit(hashlib.sha256(open(sys.argv[1],"rb").read()).hexdigest()!=sys.argv[2])' "$1" @SHA@; }
e=$(($(now) + @FETCH_FOR@))
until right "$D/guest.pyz"; do
  if fetch "$U" "$D/guest.new" && right "$D/guest.new"; then mv "$D/guest.new" "$D/guest.pyz"; break; fi
  [ "$(now)" -lt "$e" ] || fail "the guest could not be fetched whole"
  sleep 2
done
cd "$D" || fail "the machine's folder is gone"
exec "$P" -I "$D/guest.pyz"
"""


def boot_script(boot: Boot) -> bytes:
    """The POSIX-sh script behind the one-time URL. It carries the secrets, as base64 of the boot file's JSON."""
    encoded = base64.b64encode(boot.to_bytes()).decode("ascii")
    values = {
        "END": end_command(boot.provider_guest or f"broker_{boot.provider}.guest"),
        "FETCH": FETCH.strip(),
        "FETCH_FOR": str(FETCH_FOR),
        "PYTHON": shlex.quote(boot.python),
        "OLDEST": str(OLDEST_PYTHON).replace(" ", ""),
        "URL": _address(boot.guest_url),
        "SHA": shlex.quote(boot.guest_sha256),
        "JSON": "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76)),
    }
    return _filled(BOOT_SCRIPT, values).encode("utf-8")


def user_data(boot_url: str, end_by: float, *, frozen_at: float | None = None, provider: str = "") -> str:
    """The machine's first script. It holds no secret but the one-time URL of the boot script.

    end_by: seconds since the epoch; counted on the machine from its boot as `end_by - frozen_at`, now by default.
    provider: its name, whose guest half may say how a shell ends the machine. Raises ValueError above 4,096 bytes.
    """
    # The timer counts whole seconds and is the last resort: a moment late, never early.
    left = max(0, math.ceil(end_by - (time.time() if frozen_at is None else frozen_at))) + 1
    text = _filled(
        USER_DATA,
        {
            "END": end_command(f"broker_{provider}.guest") if provider else END_COMMAND,
            "SECONDS": str(left),
            "FETCH": FETCH.strip(),
            "FETCH_FOR": str(FETCH_FOR),
            "URL": _address(boot_url),
        },
    )
    if len(text.encode()) > USER_DATA_LIMIT:
        raise ValueError(
            f"the user data has {len(text.encode())} bytes; {USER_DATA_LIMIT} are the least that providers take"
        )
    return text


def end_command(module: str) -> str:
    """How a shell ends the machine, in the word of a provider's guest half; `$why` holds the reason."""
    try:
        return str(getattr(importlib.import_module(module), "END_COMMAND", END_COMMAND))
    except ModuleNotFoundError:
        return END_COMMAND


def _address(url: str) -> str:
    """A URL as one shell word; a folder's as the plain path that `cp` takes."""
    parts = urlsplit(url)
    return shlex.quote(f"file://{unquote(parts.path)}" if parts.scheme == "file" else url)


def _filled(template: str, values: dict[str, str]) -> str:
    """Put the values in once, so that no value is ever looked into."""
    parts = template.split("@")
    return "".join(values[part] if index % 2 else part for index, part in enumerate(parts))
