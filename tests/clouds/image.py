"""What machines have on their disks at first: files of this computer's own Debian packages, and nothing else of it.

`base` is a container image: Debian's required packages, python3, curl and CA certificates. `vm` lies over it, with
podman and what administers a machine. `store` holds `base` as an image for podman. All are made once and kept below
~/.cache; machines mount them read-only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

IMAGE = "spotbroker.test/python:3.11"  # Debian 12 with python3, curl and CA certificates; also what `docker run` finds
DPKG = Path("/var/lib/dpkg")
BASE = ("python3", "curl", "ca-certificates")
VM = ("podman", "runc", "conmon", "iproute2", "procps", "passwd")
# Networks of containers of their own, keys and debconf: large, and nothing here uses them.
WITHOUT = frozenset({"containernetworking-plugins", "netavark", "aardvark-dns", "gnupg", "debconf"})
NOT_COPIED = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr since Debian 12
KEPT_FOR = 7 * 86400  # seconds for which layers of other versions are left in the cache
FORMAT = 2  # of what lies in the cache; raise it when the code below makes something else of the same packages

Packages = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Image:
    """Where the layers are."""

    base: Path
    vm: Path
    store: Path

    @property
    def python(self) -> str:
        """The version of its Python, such as `3.11`."""
        return (self.base / "usr/bin/python3").readlink().name.removeprefix("python")


def missing() -> tuple[str, ...]:
    """Debian packages that must be installed here first."""
    packages, provided = _installed()
    return tuple(name for name in (*BASE, *VM) if name not in packages and name not in provided)


def image() -> Image:
    """The layers, made first where this computer has none of its packages' present versions."""
    packages, provided = _installed()
    required = [name for name, fields in packages.items() if fields.get("Priority") == "required"]
    base = _needed([*required, *BASE], packages, provided)
    vm = _needed([*base, *VM], packages, provided) - base
    versions = [(name, packages[name]["Version"]) for name in sorted(base | vm)]
    key = hashlib.sha256(json.dumps([FORMAT, IMAGE, versions]).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spotbroker-machines"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / key
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            new = cache / f"{key}.new"
            shutil.rmtree(new, ignore_errors=True)
            _make_base(new / "base", base)
            _copy(new / "vm", vm)
            _make_store(new)
            new.rename(place)
            for other in cache.iterdir():
                if other.is_dir() and other != place and other.stat().st_mtime < time.time() - KEPT_FOR:
                    shutil.rmtree(other)
    return Image(place / "base", place / "vm", place / "store")


def _installed() -> tuple[Packages, Mapping[str, str]]:
    """The installed packages' fields by name, and who provides the names that are no packages."""
    packages: dict[str, dict[str, str]] = {}
    provided: dict[str, str] = {}
    status = DPKG / "status"
    for paragraph in status.read_text(encoding="utf-8").split("\n\n") if status.exists() else ():
        pairs = (line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line[0].isspace())
        fields = dict(pairs)
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields
            for name in fields.get("Provides", "").split(","):
                provided.setdefault(name.split("(")[0].strip(), fields["Package"])
    return packages, provided


def _needed(names: Iterable[str], packages: Packages, provided: Mapping[str, str]) -> set[str]:
    """Those packages with all that they depend on."""
    todo, found = list(names), set()
    while todo:
        name = todo.pop()
        name = name if name in packages else provided.get(name, "")
        if not name or name in found or name in WITHOUT:
            continue
        found.add(name)
        for field in ("Pre-Depends", "Depends"):
            for dependency in packages[name].get(field, "").split(","):
                choices = [choice.split("(")[0].split(":")[0].strip() for choice in dependency.split("|")]
                todo.extend([choice for choice in choices if choice in packages or choice in provided][:1])
    return found


def _copy(top: Path, packages: Iterable[str]) -> None:
    """Their files as they are here, into a tree of its own."""
    (top / "usr").mkdir(parents=True)
    for name in MERGED:
        if Path("/", name).is_symlink():
            (top / name).symlink_to(f"usr/{name}")
            (top / "usr" / name).mkdir()
    for package in sorted(packages):
        for file in DPKG.glob(f"info/{package}.list"), DPKG.glob(f"info/{package}:*.list"):
            for found in file:
                for line in found.read_text(encoding="utf-8").splitlines():
                    if not line.startswith(NOT_COPIED) and line != "/.":
                        _copy_one(Path(line), top / line.lstrip("/"))


def _copy_one(source: Path, target: Path) -> None:
    try:
        kind = source.lstat()
    except FileNotFoundError:
        return  # removed by this computer's administrator
    if stat.S_ISLNK(kind.st_mode):
        if not target.is_symlink() and not target.exists():
            target.symlink_to(source.readlink())
    elif stat.S_ISDIR(kind.st_mode):
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(stat.S_IMODE(kind.st_mode))
    elif stat.S_ISREG(kind.st_mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        os.chown(target, kind.st_uid, kind.st_gid)


def _make_base(top: Path, packages: Iterable[str]) -> None:
    """The base, and what the packages' own scripts make when they are installed."""
    _copy(top, packages)
    for name in ("passwd", "group"):
        shutil.copyfile(top / f"usr/share/base-passwd/{name}.master", top / "etc" / name)
    (top / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    shutil.copyfile("/etc/ssl/certs/ca-certificates.crt", top / "etc/ssl/certs/ca-certificates.crt")
    (top / "usr/bin/awk").symlink_to("mawk")
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "mnt", "media", "opt", "srv"):
        (top / name).mkdir(exist_ok=True)
    (top / "root").chmod(0o700)
    (top / "tmp").chmod(0o1777)
    subprocess.run(["ldconfig", "-r", top], check=True)


def _make_store(new: Path) -> None:
    """podman's store with the base in it. Its locks are shared by all of a computer's stores: here they are its own."""
    (new / "run").mkdir()
    podman = (
        "mount -t tmpfs none /dev/shm && exec podman --root store --runroot run --tmpdir run/tmp"
        " --storage-driver overlay --events-backend none import --change 'CMD /bin/bash' - "
    )
    script = f"set -o pipefail; tar -C base -c . | ({podman}{IMAGE})"
    subprocess.run(["unshare", "--mount", "bash", "-c", script], check=True, cwd=new, capture_output=True)
    shutil.rmtree(new / "run")
