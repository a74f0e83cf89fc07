"""A home and a checkpoint folder, for tests of what goes from the one to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.home import Access, Home, folder_url


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(Access(folder_url(tmp_path / "home")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints"
    place.mkdir()
    return place
