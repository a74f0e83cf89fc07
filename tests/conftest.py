"""Fixtures that every test may ask for; the servers behind them start at first use."""

from __future__ import annotations

import os

from clouds.aws.server import aws, aws_server, aws_state
from clouds.machine import machines
from clouds.postgres import postgres
from clouds.seaweedfs import seaweedfs

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
