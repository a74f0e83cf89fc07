"""What lies over the packages on a machine's disk: init and what talks to it, docker, nvidia-smi."""

from __future__ import annotations

import resource
import shlex
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
LIMITS = (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))
STORAGE = """[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = ["/run/images"]
"""
# The limits are those that this computer's root may give: without CAP_SYS_RESOURCE podman's own are refused.
CONTAINERS = """[containers]
default_ulimits = [{limits}]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""


@dataclass(frozen=True, slots=True)
class Gpus:
    """What nvidia-smi shows in a machine. name: as the driver says it; memory in MiB per card."""

    name: str
    count: int
    memory_mib: int


def nvidia(name: str, count: int, memory_mib: int) -> Gpus:
    """Cards for `gpus=`: `nvidia("NVIDIA H100 80GB HBM3", 8, 81559)`."""
    return Gpus(name, count, memory_mib)


def nvidia_smi(gpus: Gpus) -> bytes:
    text = (PROGRAMS / "nvidia_smi.sh").read_text()
    for mark, value in (("NAME", gpus.name), ("COUNT", str(gpus.count)), ("MEMORY", str(gpus.memory_mib))):
        text = text.replace(f"@{mark}@", shlex.quote(value))
    return text.encode()


def _limit(number: int) -> str:
    """What this computer's root may give at most, as podman writes it."""
    highest = resource.getrlimit(number)[1]
    return f"{highest}:{highest}" if highest != resource.RLIM_INFINITY else "-1:-1"


def vm_layer(top: Path) -> Path:
    """What a VM has besides Debian's packages: init, the commands that talk to it, and docker."""
    limits = [f"{name}={_limit(number)}" for name, number in LIMITS]
    texts = {
        "usr/sbin/init": (PROGRAMS / "init.py").read_text(),
        "usr/bin/systemctl": (PROGRAMS / "systemctl.py").read_text(),
        "usr/bin/docker": (PROGRAMS / "docker.sh").read_text(),
        "etc/containers/storage.conf": STORAGE,
        "etc/containers/containers.conf": CONTAINERS.format(limits=", ".join(f'"{limit}"' for limit in limits)),
    }
    for name, text in texts.items():
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    for name in ("shutdown", "poweroff", "halt", "reboot"):
        (top / "usr/sbin" / name).symlink_to("../bin/systemctl")
    (top / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    (top / "var/lib/containers").mkdir(parents=True)
    (top / "var/log").mkdir(parents=True)
    return top
