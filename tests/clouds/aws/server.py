"""The stand-in as a server: moto in this process, the layer before it, one for the whole session.

The adapter finds it by the SDK's own variables. `aws` gives a test an empty account that tells the truth.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from clouds.aws.layer import Layer
from clouds.aws.market import public_images
from clouds.aws.state import CLOSED, OPEN, Ami, Ec2

SIZES = {"a": 8, "b": 8, "c": 8, "d": 30}  # GiB of an image's root disk, by the letter of its kind
ARCHS = {"b": "arm64"}


@dataclass(frozen=True, slots=True)
class Aws:
    """A running stand-in. endpoint: its URL on loopback."""

    endpoint: str
    world: Ec2

    def variables(self) -> dict[str, str]:
        """The environment of a program whose AWS this is."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE000000001",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def settings(self) -> dict[str, Any]:
        """`[providers.aws]`."""
        return {"advisor_url": f"{self.endpoint}/spot-advisor-data.json"}


def images() -> dict[str, dict[str, Ami]]:
    """Region → AMI → what it is like."""
    found: dict[str, dict[str, Ami]] = {}
    for region in (*OPEN, *CLOSED):
        for ami in public_images(region).values():
            kind = ami[len("ami-000")]
            root = "/dev/xvda" if kind == "d" else "/dev/sda1"
            found.setdefault(region, {})[ami] = Ami(root, SIZES[kind], ARCHS.get(kind, "x86_64"))
    return found


@contextmanager
def running() -> Iterator[Aws]:
    """A server on a free port, for machines too; it ends with the block."""
    amis = images()
    with tempfile.TemporaryDirectory(prefix="spotbroker-aws-") as folder:
        _configure_moto(Path(folder), amis)
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        world = Ec2(amis=amis)
        moto = DomainDispatcherApplication(create_backend_app)

        class Handler(WSGIRequestHandler):
            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time.time() + world.clock, usegmt=True)

        server = make_server("0.0.0.0", 0, Layer(moto, world), threaded=True, request_handler=Handler)
        thread = threading.Thread(target=server.serve_forever, name="aws", daemon=True)
        thread.start()
        try:
            yield Aws(f"http://127.0.0.1:{server.server_port}", world)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _configure_moto(folder: Path, amis: dict[str, dict[str, Ami]]) -> None:
    """moto reads the images there are once, when it is imported; by default thousands per region."""
    assert "moto.ec2" not in sys.modules, "moto was imported before its images were named"
    listed = [
        {
            "ami_id": ami,
            "name": ami,
            "description": ami,
            "owner_id": "amazon",
            "public": True,
            "virtualization_type": "hvm",
            "architecture": image.arch,
            "state": "available",
            "platform": None,
            "image_type": "machine",
            "hypervisor": "xen",
            "root_device_name": image.root,
            "root_device_type": "ebs",
            "sriov": "simple",
            "image_location": ami,
        }
        for region in amis.values()
        for ami, image in region.items()
    ]
    path = folder / "amis.json"
    path.write_text(json.dumps(listed))
    os.environ["MOTO_AMIS_PATH"] = str(path)


@pytest.fixture(scope="session")
def aws_server() -> Iterator[Aws]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def aws_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder for tests that leave zones, types, list prices and images as they are: learnt once for all."""
    return tmp_path_factory.mktemp("aws")


@pytest.fixture
def aws(aws_server: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    """An empty account, and this process's environment pointing at it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws_server.variables().items():
        monkeypatch.setenv(name, value)
    aws_server.world.reset()
    yield aws_server
    aws_server.world.reset()
