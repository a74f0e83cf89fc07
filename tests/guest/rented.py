"""Guests on rented machines: real containers and VMs, the home in a real S3 server, keys for one job only.

The cloud behind them is one small server: it tells a machine its notice, and ends the one that asks for its end.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clouds.machine import Gpus, Machine, Machines
from clouds.seaweedfs import SeaweedFS
from guest.placements import Job, Placement

from broker.access import mint
from broker.artefacts import PINNED, Artefact, Artefacts, Runtime
from broker.boot import guest_zipapp, start_command
from broker.config import Config
from broker.home import Access, Home

GUEST_HALF = """
import json, os, subprocess, urllib.request

END_COMMAND = '@SHELL@'

def ask(path, data=None):
    with urllib.request.urlopen(os.environ["CLOUD"] + path, data, timeout=5) as reply:
        return reply.read()

def notice():
    return json.loads(ask("/notice"))

def end_machine(why):
    @PYTHON@

def sigterm_is_notice():
    return 5.0
"""
# A marketplace's container asks its provider for the end; a VM shuts itself down.
HALVES = {
    "rented": ('curl -fsS -d "$why" "$CLOUD/end"', 'ask("/end", why.encode())'),
    "rentedvm": ("shutdown -h now", 'subprocess.run(["shutdown", "-h", "now"], check=True)'),
}


class Cloud:
    """What machines ask. ended: machine's address -> why it asked for its end."""

    def __init__(self, address: str) -> None:
        self.notices: dict[str, Mapping[str, Any]] = {}
        self.ended: dict[str, str] = {}
        self.machines: dict[str, Machine] = {}
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(json.dumps(cloud.notices.get(self.client_address[0])).encode())

            def do_POST(self) -> None:
                here = self.client_address[0]
                why = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self.answer(b"{}")
                cloud.ended.setdefault(here, why)
                threading.Thread(target=cloud.machines[here].kill, daemon=True).start()

            def answer(self, data: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.url = f"http://{address}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Rented(Placement):
    """One generation's machine, rented."""

    machine: Machine
    how: Mapping[str, Any]

    def start(self) -> Rented:
        job = self.job
        assert isinstance(job, RentedJob)
        text = (self.folder / "user-data").read_text()
        env = {"CLOUD": job.cloud.url, **self.env}
        name = f"{job.id[:8]}-{self.generation}"
        if self.boot.kind == "vm":
            self.machine = job.machines.vm(name, user_data=text.encode(), env=env, gpus=job.gpus)
        else:
            self.machine = job.machines.container(name, command=[*job.first, *start_command(text)], env=env)
        job.cloud.machines[self.machine.address] = self.machine
        return self

    @property
    def why(self) -> str:
        """Why it asked its provider for its end; empty where it did not."""
        job = self.job
        assert isinstance(job, RentedJob)
        return job.cloud.ended.get(self.machine.address, "")

    @property
    def console(self) -> str:
        return self.machine.log()

    def kill(self) -> None:
        self.machine.remove()


class RentedJob(Job):
    """A job whose machines are rented. gpus: what its VMs have.

    first: words before a container's command, which must run what follows.
    """

    placement = Rented

    def __init__(
        self, folder: Path, guest: tuple[bytes, str], home: Home, config: Config, machines: Machines, cloud: Cloud
    ) -> None:
        super().__init__(folder, guest, home)
        self.config, self.machines, self.cloud = config, machines, cloud
        self.first: tuple[str, ...] = ()
        self.gpus: Gpus | None = None
        self.runtime: dict[str, Any] | None = None

    def rent(self, generation: int = 1, *, kind: str = "container", **changes: Any) -> Rented:
        end_by = changes.pop("end_by", None)
        until = end_by or time.time() + 1800
        half = "rentedvm" if kind == "vm" else "rented"
        access = mint(self.config, self.home.url, self.id, generation, until)
        placed = self.place(
            generation, kind=kind, provider=half, home=access, runtime=self.runtime, end_by=until, python="python3",
            **changes,
        )  # fmt: skip
        assert isinstance(placed, Rented)
        return placed

    def bring(self, artefacts: Artefacts) -> None:
        """Put the runtime into the home, and sign for it."""
        given = artefacts.provide(self.home, self.keys, "x86_64")

        def told(sha256: str | None) -> dict[str, str] | None:
            if sha256 is None:
                return None
            key = self.keys.artefact(sha256)
            return {"url": self.home.sign_get(key, 600), "sha256": sha256, "key": key}

        self.runtime = {"architecture": "x86_64", "obstore": told(given.obstore), "python": told(given.python)}


@contextmanager
def halves() -> Iterator[tuple[bytes, str]]:
    """The packed guest with both provider halves, which can be imported meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (shell, python) in HALVES.items():
            package = Path(folder) / f"broker_{name}"
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "guest.py").write_text(GUEST_HALF.replace("@SHELL@", shell).replace("@PYTHON@", python))
        sys.path.insert(0, folder)
        try:
            yield guest_zipapp([f"broker_{name}" for name in HALVES])
        finally:
            sys.path.remove(folder)


def home_in(seaweedfs: SeaweedFS, machines: Machines, folder: Path) -> tuple[Home, Config]:
    """A home that machines reach, and a configuration that mints keys for one job in it."""
    endpoint = machines.reach(seaweedfs.endpoint)
    url = seaweedfs.new_home()
    settings = {**seaweedfs.mints("federation"), "endpoint": endpoint, "sts_endpoint": endpoint}
    config = Config(state=folder / "state", file=folder / "config.toml", home=url, home_config=settings)
    return Home(Access(url, {**seaweedfs.settings(), "endpoint": endpoint})), config


def static_python(folder: Path) -> Artefacts:
    """A table whose static Python is Debian's own interpreter, laid out as the pinned one is."""
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    archive = folder / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(f"/usr/bin/python{version}", "python/bin/python3")
        tar.add(
            f"/usr/lib/python{version}", f"python/lib/python{version}",
            filter=lambda entry: None if "__pycache__" in entry.name or "config-" in entry.name else entry,
        )  # fmt: skip
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    python = Artefact("python", version, archive.name, sha256, archive.stat().st_size, url=archive.as_uri())
    return Artefacts(cache=folder / "cache", table={"x86_64": Runtime(PINNED["x86_64"].obstore, python)})
