"""The way into a machine, run as `python -I -S inside.py`, with a JSON object on stdin that says what and where.

`boot`: makes namespaces, root file system and devices, and becomes the machine's first process. This process stays
outside as the machine's power: killed, it takes the machine along, as it is taken along by the runner.
`enter`: one more process in a machine that is up, with the rights that its first process has.

Exit code: that of the process inside, 128 + N where signal N ended it. Standard library only; nothing of the project.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWTIME = 0x20000000, 0x40000000, 0x80
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1 << 5, 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
CLOCKS = (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME))

# docker's: chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod
# audit_write setfcap. A machine of its own has all that cannot reach the kernel it shares with this computer:
# no sys_module, sys_rawio, sys_time.
CONTAINER_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
NOT_A_VMS = {16, 17, 25}

NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
LINKS |= {"stderr": "/proc/self/fd/2"}
READ_ONLY = ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs")  # of the shared kernel
HIDDEN = ("proc/kcore", "proc/keys", "proc/timer_list", "proc/sched_debug", "proc/kmsg")


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    checked(libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None), f"mount {source} on {target}")


def die_with_parent() -> None:
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def drop_capabilities(vm: bool) -> None:
    for number in range(64):
        if (number in NOT_A_VMS) if vm else (number not in CONTAINER_CAPABILITIES):
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)


def become(spec: dict[str, Any], ready: int | None) -> NoReturn:
    """The command, with the signals, limits and rights that a process has there."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft_limit, 1024), hard_limit), hard_limit))
    os.setgroups([])
    os.umask(0o022)
    drop_capabilities(spec["vm"])
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["env"])
    except OSError as error:
        text = f"exec {spec['command'][0]}: {error.strerror}\n".encode()
        os.write(2 if ready is None else ready, text)
        os._exit(127)


def join_groups(spec: dict[str, Any]) -> None:
    for group in spec["groups"]:
        Path(group, "cgroup.procs").write_text("0")


def root(spec: dict[str, Any]) -> Path:
    """Mount the machine's disk; what it gets at its first start is put there."""
    disk = Path(spec["disk"])
    top = disk / "root"
    layers = f"lowerdir={':'.join(spec['layers'])},upperdir={disk / 'up'},workdir={disk / 'work'}"
    mount("overlay", str(top), "overlay", 0, layers)
    for source, target, mode in spec["files"]:
        place = top / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copyfile(source, place)
        place.chmod(mode)
    for name, text in (("hosts", spec["hosts"]), ("hostname", spec["hostname"] + "\n"), ("resolv.conf", spec["dns"])):
        (top / "etc" / name).unlink(missing_ok=True)
        (top / "etc" / name).write_text(text)
    return top


def devices(top: Path) -> None:
    mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, (major, minor) in NODES.items():
        os.mknod(top / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (top / "dev" / name).chmod(0o666)
    for name, target in LINKS.items():
        (top / "dev" / name).symlink_to(target)
    (top / "dev/pts").mkdir()
    (top / "dev/shm").mkdir()
    mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
    mount("shm", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def kernel(spec: dict[str, Any], top: Path) -> None:
    """/proc and /sys of these namespaces; what belongs to the shared kernel cannot be written."""
    mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in READ_ONLY:
        if (top / name).exists():
            mount(name, name, "", MS_BIND | MS_REC)
            mount(name, name, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in HIDDEN:
        if (top / name).exists():
            mount("dev/null", name, "", MS_BIND)
    mount("sysfs", "sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("cgroup", "sys/fs/cgroup", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755")
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | (0 if spec["vm"] else MS_RDONLY)
    for name, kind, data in spec["hierarchies"]:
        (top / "sys/fs/cgroup" / name).mkdir()
        mount("cgroup", f"sys/fs/cgroup/{name}", kind, flags, data)


def first(spec: dict[str, Any], ready: int) -> NoReturn:
    """The machine's first process, from the fork to its command."""
    join_groups(spec)
    checked(libc.setns(spec["network"], CLONE_NEWNET), "setns")
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    top = root(spec)
    os.chdir(top)
    devices(top)
    kernel(spec, top)
    if spec["vm"]:
        mount(spec["boot_id"], "proc/sys/kernel/random/boot_id", "", MS_BIND)
        mount("run", "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        mount("tmp", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for source, target, read_only in spec["binds"]:
        (top / target).mkdir(parents=True, exist_ok=True)
        mount(source, target, "", MS_BIND)
        if read_only:
            mount(source, target, "", MS_BIND | MS_REMOUNT | MS_RDONLY)
    name = spec["hostname"].encode()
    checked(libc.sethostname(name, len(name)), "sethostname")
    checked(libc.pivot_root(b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")
    os.setsid()
    become(spec, ready)


def reported(child: int) -> NoReturn:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def zero_uptime() -> None:
    """A virtual machine's clocks count from its own boot: those of the next process that is forked here."""
    if Path("/proc/self/ns/time").exists():
        checked(libc.unshare(CLONE_NEWTIME), "unshare")
        offsets = [f"{name} -{int(time.clock_gettime(clock))} 0" for name, clock in CLOCKS]
        Path("/proc/self/timens_offsets").write_text("\n".join(offsets))


def boot(spec: dict[str, Any]) -> NoReturn:
    ready = spec["ready"]
    os.set_inheritable(ready, False)
    os.set_inheritable(spec["network"], False)
    console = os.open(spec["console"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in (1, 2):
        os.dup2(console, number)
    checked(libc.unshare(CLONE_NEWPID), "unshare")
    if spec["vm"]:
        zero_uptime()
    child = os.fork()
    if child == 0:
        die_with_parent()
        try:
            first(spec, ready)
        except OSError as error:
            os.write(ready, f"{error}\n".encode())
            os._exit(125)
    os.write(ready, f"{child}\n".encode())
    os.close(ready)
    os.close(spec["network"])
    reported(child)


def enter(spec: dict[str, Any]) -> NoReturn:
    """As `nsenter -a` does it; and in the machine's control groups, so that its limits and its end hold here too."""
    join_groups(spec)
    target = os.pidfd_open(spec["pid1"])
    kinds = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWPID | CLONE_NEWNET
    if Path("/proc/self/ns/time").exists():
        kinds |= CLONE_NEWTIME
    checked(libc.setns(target, kinds), "setns")
    os.close(target)
    os.chdir("/root")
    child = os.fork()
    if child == 0:
        die_with_parent()
        become(spec, None)
    reported(child)


if __name__ == "__main__":
    runner = int(sys.argv[2])
    die_with_parent()
    if os.getppid() != runner:
        os._exit(137)
    with os.fdopen(int(sys.argv[3]), encoding="utf-8") as given:
        told = json.load(given)
    {"boot": boot, "enter": enter}[sys.argv[1]](told)
