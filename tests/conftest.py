"""Fixtures that every test may ask for; the servers behind them start at first use."""

from __future__ import annotations

from clouds.aws.server import aws, aws_server
from clouds.machine import machines
from clouds.postgres import postgres
from clouds.seaweedfs import seaweedfs

__all__ = ["aws", "aws_server", "machines", "postgres", "seaweedfs"]
