"""Installations for one test each, and what stands between them and their store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds.partition import Partition, before
from clouds.seaweedfs import SeaweedFS
from crash.harness import Site


@pytest.fixture
def partition(seaweedfs: SeaweedFS) -> Iterator[Partition]:
    """A proxy between this test's broker and guests, and their store."""
    with before(seaweedfs.endpoint) as proxy:
        yield proxy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An installation whose home is a folder, with what it started gone at the end."""
    made = Site(tmp_path)
    yield made
    made.close()
