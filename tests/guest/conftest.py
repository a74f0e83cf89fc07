"""A packed guest, and a job with a home of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest.placements import PROVIDER, Job

from broker.boot import guest_zipapp


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bytes, str]]:
    """The packed guest, with a provider whose notice and end are files beside the machine's disk."""
    package = tmp_path_factory.mktemp("providers") / "broker_testing"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "guest.py").write_text(PROVIDER)
    sys.path.insert(0, str(package.parent))
    os.environ.setdefault("SPOTBROKER_DIR", str(package.parent))  # the module reads it on import
    yield guest_zipapp(["broker_testing"])
    sys.path.remove(str(package.parent))


@pytest.fixture
def job(tmp_path: Path, guest: tuple[bytes, str]) -> Iterator[Job]:
    made = Job(tmp_path, guest)
    yield made
    for placement in made.placements:
        placement.kill()
    shutil.rmtree(tmp_path, ignore_errors=True)
