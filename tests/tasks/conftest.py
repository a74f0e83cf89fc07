"""An installation of its own for every test."""

from __future__ import annotations

from cli.conftest import cli

__all__ = ["cli"]
