"""Fixtures that every test may ask for; the servers behind them start at first use."""

from __future__ import annotations

import os

import pytest

# The suite's asserts explain themselves, as if they stood here; before anything imports it.
pytest.register_assert_rewrite("broker.testing.conformance")

from clouds.aws.server import aws, aws_server, aws_state  # noqa: E402
from clouds.machine import machines  # noqa: E402
from clouds.postgres import postgres  # noqa: E402
from clouds.seaweedfs import seaweedfs  # noqa: E402

__all__ = ["aws", "aws_server", "aws_state", "machines", "postgres", "seaweedfs"]

# Prices that need no key are asked for by every plan. No test asks a real vendor; a stand-in's address is a setting.
os.environ["RUNPOD_API_BASE_URL"] = "http://127.0.0.1:9"
# Whoever runs these may be logged in to AWS: no test rents or asks there by their account.
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ |= {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
