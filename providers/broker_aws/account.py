"""`Account`: the SDK's clients for one set of credentials, and calls to many regions side by side."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from broker.errors import AuthFailed, ProviderUnavailable
from broker_aws.refusals import HOW_TO_LOG_IN, NAME, translated

T = TypeVar("T")
SIDE_BY_SIDE = 16  # regions asked at a time
CONNECT, READ = 5.0, 30.0  # seconds
DMI = (Path("/sys/class/dmi/id/sys_vendor"), Path("/sys/class/dmi/id/board_vendor"), Path("/sys/hypervisor/uuid"))
FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
OLD_FILES = ("~/.boto", "/etc/boto.cfg")
KEYLESS = re.compile(r"AWS_((DEFAULT_)?REGION|CA_BUNDLE|ENDPOINT_URL\w*|EC2_METADATA_DISABLED|PAGER|DEFAULT_OUTPUT)")
KEYS = ("env", "explicit", "shared-credentials-file", "config-file", "custom-process")  # where a key tells who it is


class Account:
    """Credentials come from the SDK's usual chain, endpoints from its own variables (AWS_ENDPOINT_URL_EC2 …)."""

    def __init__(self, profile: str = "") -> None:
        self.profile = profile
        self._session: Any = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.RLock()

    @property
    def session(self) -> Any:
        """The boto3 session. Raises AuthFailed where there are no credentials."""
        with self._lock, translated():
            if self._session is None:
                if not self.profile and find_spec("boto3") and _nowhere():
                    raise AuthFailed("there are no AWS credentials", provider=NAME, code="no key", fix=HOW_TO_LOG_IN)
                import boto3
                import botocore.session

                core = botocore.session.Session(profile=self.profile or None)
                core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
                if not _on_ec2():
                    # Elsewhere nobody answers at that address, or somebody who should not be asked.
                    core.get_component("credential_provider").remove("iam-role")
                if core.get_credentials() is None:
                    raise AuthFailed("there are no AWS credentials", provider=NAME, code="no key", fix=HOW_TO_LOG_IN)
                self._session = boto3.Session(botocore_session=core)
            return self._session

    def client(self, service: str, region: str) -> Any:
        """A client that sends each call once: when to send it again is not the SDK's to decide."""
        with self._lock:
            if (service, region) not in self._clients:
                from botocore.config import Config

                once = Config(
                    connect_timeout=CONNECT,
                    read_timeout=READ,
                    retries={"mode": "standard", "total_max_attempts": 1},
                    max_pool_connections=SIDE_BY_SIDE,
                    user_agent_extra="spotbroker",
                )
                with translated():
                    self._clients[service, region] = self.session.client(service, region_name=region, config=once)
            return self._clients[service, region]

    @property
    def home_region(self) -> str:
        """The region to ask for what is not regional."""
        return self.session.region_name or "us-east-1"

    def owner(self) -> str:
        """Tells what was learnt with these credentials from what was learnt with others; no secret is in it."""
        credentials = self.session.get_credentials()
        who = credentials.access_key if credentials.method in KEYS else credentials.method
        profile = self.profile or os.environ.get("AWS_PROFILE", "")
        ends = [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("AWS_ENDPOINT_URL")]
        return hashlib.sha256("\0".join((who, profile, *ends)).encode()).hexdigest()[:16]

    def each(self, regions: Iterable[str], ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, Exception]]:
        """Ask every region, side by side: the answers, and what was raised instead of one.

        By daemon threads: a region that never answers must not keep the process from ending.
        """
        regions = list(regions)
        todo = deque(regions)
        answers: dict[str, T] = {}
        failures: dict[str, Exception] = {}

        def work() -> None:
            while True:
                try:
                    region = todo.popleft()
                except IndexError:
                    return
                try:
                    answers[region] = ask(region)
                except Exception as error:  # noqa: BLE001 - it is the caller's to read
                    failures[region] = error

        threads = [
            threading.Thread(target=work, name=f"aws-{number}", daemon=True)
            for number in range(min(SIDE_BY_SIDE, len(regions)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for region in set(regions) - answers.keys() - failures.keys():
            failures[region] = ProviderUnavailable(f"{region} was not asked to the end", provider=NAME)
        return answers, failures


@lru_cache(maxsize=4)
def _loader(data_path: str | None) -> Any:
    """What reads the SDK's descriptions of its services, which are large: once per process, not per session."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _nowhere() -> bool:
    """Is there nothing that credentials could come from? Whoever has no AWS account need not wait for its SDK."""
    named = {name for name in os.environ if name.startswith("AWS_")} - FILES.keys()
    if any(KEYLESS.fullmatch(name) is None for name in named) or "BOTO_CONFIG" in os.environ or _on_ec2():
        return False
    files = [os.environ.get(name, usual) for name, usual in FILES.items()]
    return not any(_holds(Path(file).expanduser()) for file in (*files, *OLD_FILES))


def _holds(file: Path) -> bool:
    """May there be anything in it?"""
    try:
        found = file.stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return str(file) != os.devnull and (found.st_size > 0 or not stat.S_ISREG(found.st_mode))


def _on_ec2() -> bool:
    """Is this computer an EC2 machine itself, or is told to take another one's metadata?"""
    if os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return True
    for path in DMI:
        try:
            text = path.read_text(encoding="ascii", errors="replace").lower()
        except OSError:
            continue
        if "amazon" in text or text.startswith("ec2"):
            return True
    return False
