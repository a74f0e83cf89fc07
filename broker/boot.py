"""What starts a machine: the guest as one zip, the one-time boot script with its secrets, the user data without any.

The user data is small enough for every provider (Vast takes 4,096 bytes). It arms a timer that ends the machine before
it touches the network, fetches the boot script and becomes it. The boot script finds a Python in the image or unpacks
the one that was sent along, writes the boot file to root-only disk, fetches guest and obstore, checks their hashes and
becomes the guest. A machine that comes back finds all of it on its disk.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.util
import io
import math
import re
import shlex
import time
import zipfile
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from broker.guest.bootfile import Boot
from broker.provider import Kind

__all__ = ["USER_DATA_LIMIT", "Boot", "boot_script", "guest_zipapp", "start_command", "user_data"]

USER_DATA_LIMIT = 4096
# Beside the zip lies what the boot script has unpacked for it: a wheel's extension does not load from inside a zip.
ENTRY = """import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(sys.path[0])), "runtime"))
from broker.guest.__main__ import main

main()
"""
# Where a provider's guest half says no `END_COMMAND`. Bare: ends the boot script's whole process group, the guest in
# it, right for a machine that is over when its first process is. A container can do nothing but leave, and is started
# again by most providers: theirs must say how a machine ends.
END_COMMANDS = {Kind.BARE: "kill -KILL 0", Kind.CONTAINER: "kill -KILL -1", Kind.VM: "shutdown -h now || poweroff -f"}
MACHINES = {"x86_64": "x86_64|amd64", "aarch64": "aarch64|arm64"}  # what `uname -m` says
FETCH_FOR = 600  # seconds for which the boot script and the guest are tried
OLDEST_PYTHON = (3, 11)
IMPORT = re.compile(r"^[ \t]*from broker(?:\.(\w+)[\w.]*)? import (\([^)]*\)|[^\n]*)", re.MULTILINE)


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
    """The modules directly below `broker` that a source imports anywhere, or only has a text say so."""
    found: set[str] = set()
    for module, names in IMPORT.findall(source.decode()):
        found |= {module} if module else {name.split()[0] for name in names.strip("()").split(",") if name.strip()}
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


# The last line of what went wrong stays in `$D/err`. Without any of the three nothing can be fetched, which is said.
FETCH = r"""
fetch() { # URL FILE
  case $1 in file://*) cp "${1#file://}" "$2" ;; *)
    command -v curl && curl -fsSL --connect-timeout 10 --max-time 300 -o "$2" "$1" && return
    command -v wget && { wget -q -T 60 -O "$2" "$1" && return || echo "wget failed" >&2; }
    command -v python3 && python3 -c 'import sys,urllib.request as u
open(sys.argv[2],"wb").write(u.urlopen(sys.argv[1],timeout=60).read())' "$1" "$2" && return
    [ -s "$D/err" ] || echo "there is no curl, wget or python3" >&2
    false ;;
  esac >/dev/null 2>"$D/err"
}
"""

NOW = r"""
now() { if read -r u _ </proc/uptime; then echo "${u%%.*}"; else date +%s; fi; } 2>/dev/null
"""

# Counted from the first start after a boot: what is started again and again still ends in time.
START = r"""#!/bin/sh
# spotbroker
umask 077
D=${SPOTBROKER_DIR:-/var/lib/spotbroker}
SPOTBROKER_DIR=$D
export SPOTBROKER_DIR
mkdir -p "$D"
@NOW@
finish() { why=$1; echo "spotbroker: $why" >&2; until { @END@; }; do sleep 10; done; while :; do sleep 60; done; }
b=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
[ -s "$D/deadline" ] && [ "$b" = "$(cat "$D/booted")" ] || echo $(($(now) + @SECONDS@)) >"$D/deadline"
echo "$b" >"$D/booted"
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
  [ "$(now)" -lt "$e" ] || finish "the boot script could not be fetched: $(tail -n 1 "$D/err")"
  sleep 2
done
exec sh "$D/boot"
"""

# cloud-init runs this once, at the first boot; the unit starts the same again at every later one.
UNIT = r"""#!/bin/sh
# spotbroker
umask 077
D=${SPOTBROKER_DIR:-/var/lib/spotbroker}
mkdir -p "$D"
cat >"$D/start" <<'SPOTBROKER_START'
@START@
SPOTBROKER_START
U=/etc/systemd/system/spotbroker.service
cat >$U <<E
[Unit]
Description=spotbroker: runs one job on this machine
Wants=network-online.target
After=network-online.target docker.service
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh $D/start
Environment=HOME=/root SPOTBROKER_DIR=$D
Delegate=yes
KillMode=mixed
TimeoutStopSec=90
Restart=always
RestartSec=5
[Install]
WantedBy=multi-user.target
E
chmod 644 $U
systemctl daemon-reload && systemctl enable spotbroker.service && systemctl start --no-block spotbroker.service ||
  exec sh "$D/start"
"""

BOOT_SCRIPT = r"""#!/bin/sh
# spotbroker: what one machine is told, once; secrets below
umask 077
D=${SPOTBROKER_DIR:?}
@NOW@
fail() { echo "spotbroker: $1" >&2; why=$1; until { @END@; }; do sleep 10; done; while :; do sleep 60; done; }
@FETCH@
P=
sum() { # FILE
  if command -v sha256sum >/dev/null; then sha256sum <"$1"
  else for p in "$P" python3 python; do
    "$p" -I -c 'import hashlib,sys; print(hashlib.sha256(open(sys.argv[1],"rb").read()).hexdigest())' "$1" && break
  done; fi 2>/dev/null
}
right() { s=$(sum "$1"); [ -s "$1" ] && [ "${s%% *}" = "$2" ]; }
e=$(($(now) + @FETCH_FOR@))
get() { # URL SHA FILE WHAT
  w=0
  until [ -s "$3" ] && right "$3" "$2"; do
    if fetch "$1" "$3.new"; then
      right "$3.new" "$2" && mv "$3.new" "$3" && break
      [ -n "$s" ] || fail "this image has neither sha256sum nor Python: $4 cannot be checked"
      w=$((w + 1)); [ $w -lt 3 ] || fail "$4 could not be fetched whole: it does not hash to what was promised"
    fi
    [ "$(now)" -lt "$e" ] || fail "$4 could not be fetched whole: $(tail -n 1 "$D/err")"
    sleep 2
  done
}
good() {
  "$1" -I -S -c 'import sys,ctypes,hashlib,json,ssl,zipfile,zlib
sys.exit(sys.version_info<@OLDEST@ or sys.implementation.name!="cpython" or
not getattr(sys,"_is_gil_enabled",lambda:True)())' 2>/dev/null
}
loads() { "$1" -I -S -c 'import sys; sys.path.insert(0,sys.argv[1]); import obstore.store' "$D/runtime" 2>"$D/err"; }
for p in @PYTHON@ python3.14 python3.13 python3.12 python3.11 python3 python /usr/local/bin/python3 /opt/*/bin/python3 \
  /opt/*/*/bin/python3 /venv/*/bin/python3 /usr/bin/python3.1? /root/*conda*/bin/python3; do
  if good "$p"; then P=$p; break; fi
done
@RUNTIME@
"$P" -I -c 'import base64,sys; sys.stdout.buffer.write(base64.b64decode(sys.stdin.buffer.read()))' \
  >"$D/boot.json.new" <<'SPOTBROKER' || fail "the boot file could not be written"
@JSON@
SPOTBROKER
mv "$D/boot.json.new" "$D/boot.json"
sync
U=@URL@
get "$U" @SHA@ "$D/guest.pyz" "the guest"
cd "$D" || fail "the machine's folder is gone"
exec "$P" -I @ALONE@ "$D/guest.pyz"
"""

# A machine of this computer's own has the broker's interpreter with all that it needs.
BROKERS_OWN = r"""[ -n "$P" ] || fail "no Python of @OLDEST@ or newer is on this machine"
"""

# Every Python of the image is tried before the static one: that one takes a longer download.
RUNTIME = r"""
case $(uname -m) in @ARCH@) ;; *) fail "this machine is $(uname -m), and what was sent is for @ARCH@" ;; esac
static() {
  P=$D/python/bin/python3
  [ -x "$P" ] && return
  U=@PYTHON_URL@
  [ -n "$U" ] || fail "no Python of @OLDEST@ or newer that loads obstore is on this machine, and none was sent along"
  command -v tar >/dev/null && command -v gzip >/dev/null || fail "this image has no tar and gzip to unpack Python with"
  get "$U" @PYTHON_SHA@ "$D/python.tar.gz" "the static Python"
  rm -rf "$D/python.new" "$D/python"
  mkdir "$D/python.new" && tar -xzf "$D/python.tar.gz" -C "$D/python.new" && mv "$D/python.new/python" "$D/python" ||
    fail "the static Python could not be unpacked"
  rm -rf "$D/python.new" "$D/python.tar.gz"
  good "$P" || fail "the static Python does not run here: it needs an image that is built on glibc, not on musl"
}
[ -n "$P" ] || static
if [ ! -d "$D/runtime" ]; then
  U=@OBSTORE_URL@
  get "$U" @OBSTORE_SHA@ "$D/obstore.whl" obstore
  rm -rf "$D/runtime.new"
  "$P" -I -S -c 'import sys,zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$D/obstore.whl" \
    "$D/runtime.new" && mv "$D/runtime.new" "$D/runtime" || fail "obstore could not be unpacked"
  rm -f "$D/obstore.whl"
fi
loads "$P" || { static; loads "$P" || fail "obstore does not load on this machine: $(tail -n 1 "$D/err")"; }
"""


def boot_script(boot: Boot) -> bytes:
    """The POSIX-sh script behind the one-time URL. It carries the secrets, as base64 of the boot file's JSON."""
    encoded = base64.b64encode(boot.to_bytes()).decode("ascii")
    values = {
        "END": end_command(boot.provider_guest or f"broker_{boot.provider}.guest", boot.kind),
        "NOW": NOW.strip(),
        "FETCH": FETCH.strip(),
        "FETCH_FOR": str(FETCH_FOR),
        "PYTHON": shlex.quote(boot.python),
        "OLDEST": str(OLDEST_PYTHON).replace(" ", ""),
        "RUNTIME": _runtime(boot).strip(),
        "ALONE": "-S" if _alone(boot) else "",
        "URL": _address(boot.guest_url),
        "SHA": shlex.quote(boot.guest_sha256),
        "JSON": "\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76)),
    }
    return _filled(BOOT_SCRIPT, values).encode("utf-8")


def _alone(boot: Boot) -> bool:
    """Does the machine get a runtime of its own, rather than use the broker's?"""
    return boot.runtime is not None and boot.runtime.get("obstore") is not None


def _runtime(boot: Boot) -> str:
    """The part of the boot script that brings Python and obstore."""
    values = {"OLDEST": ".".join(map(str, OLDEST_PYTHON))}
    if not _alone(boot):
        return _filled(BROKERS_OWN, values)
    assert boot.runtime is not None
    obstore, python = boot.runtime["obstore"], boot.runtime.get("python")
    values |= {
        "ARCH": MACHINES[boot.runtime["architecture"]],
        "OBSTORE_URL": _address(obstore["url"]),
        "OBSTORE_SHA": shlex.quote(obstore["sha256"]),
        "PYTHON_URL": _address(python["url"]) if python else "''",
        "PYTHON_SHA": shlex.quote(python["sha256"]) if python else "''",
    }
    return _filled(RUNTIME, values)


def user_data(
    boot_url: str,
    end_by: float,
    *,
    frozen_at: float | None = None,
    provider: str = "",
    kind: str = Kind.BARE,
    limit: int = USER_DATA_LIMIT,
) -> str:
    """The machine's first script. It holds no secret but the one-time URL of the boot script.

    A VM's is run once, as root, and installs the unit that starts the guest at every boot; a container's is its first
    process, by `start_command`. end_by: seconds since the epoch; counted on the machine from its boot as
    `end_by - frozen_at`, now by default. provider: its name, whose guest half may say how a shell ends the machine.
    limit: bytes that the provider takes. Raises ValueError above it.
    """
    # The timer counts whole seconds and is the last resort: a moment late, never early.
    left = max(0, math.ceil(end_by - (time.time() if frozen_at is None else frozen_at))) + 1
    text = _filled(
        START,
        {
            "END": end_command(f"broker_{provider}.guest", kind) if provider else END_COMMANDS[Kind(kind)],
            "NOW": NOW.strip(),
            "SECONDS": str(left),
            "FETCH": FETCH.strip(),
            "FETCH_FOR": str(FETCH_FOR),
            "URL": _address(boot_url),
        },
    )
    # No line of it needs its indentation, and every byte counts.
    text = "\n".join(line.strip() for line in text.splitlines()) + "\n"
    if kind == Kind.VM:
        text = _filled(UNIT, {"START": text.rstrip("\n")})
    if len(text.encode()) > limit:
        raise ValueError(f"the user data has {len(text.encode())} bytes; {provider or 'the provider'} takes {limit}")
    return text


def start_command(text: str) -> list[str]:
    """The command that makes user data the first process of a container, for providers whose machines are containers.

    It must replace the image's entrypoint, not be handed to it. The shell becomes the guest by `exec`, so the guest is
    PID 1: signals reach it, and what the job leaves behind comes to it.
    """
    return ["/bin/sh", "-c", text]


def end_command(module: str, kind: str = Kind.BARE) -> str:
    """How a shell ends the machine, in the word of a provider's guest half; `$why` holds the reason."""
    default = END_COMMANDS[Kind(kind)]
    try:
        return str(getattr(importlib.import_module(module), "END_COMMAND", default))
    except ModuleNotFoundError:
        return default


def _address(url: str) -> str:
    """A URL as one shell word; a folder's as the plain path that `cp` takes."""
    parts = urlsplit(url)
    return shlex.quote(f"file://{unquote(parts.path)}" if parts.scheme == "file" else url)


def _filled(template: str, values: dict[str, str]) -> str:
    """Put the values in once, so that no value is ever looked into."""
    parts = template.split("@")
    return "".join(values[part] if index % 2 else part for index, part in enumerate(parts))
