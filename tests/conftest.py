"""Fixtures that every test may ask for; the servers behind them start at first use."""

from __future__ import annotations

import gc
import os

import pytest

# The suite's asserts explain themselves, as if they stood here; before anything imports it.
pytest.register_assert_rewrite("broker.testing.conformance")

from clouds.aws.server import aws, aws_server, aws_state  # noqa: E402
from clouds.machine import machines  # noqa: E402
from clouds.postgres import postgres  # noqa: E402
from clouds.seaweedfs import seaweedfs  # noqa: E402

__all__ = ["aws", "aws_server", "aws_state", "machines", "postgres", "seaweedfs"]


LONGEST_FIRST = (
    "test_the_real_daemon",
    "killed_at_random",
    "test_every_example_runs",
    "test_it_survives_a_notice",
    "test_two_workers_learn",
    "test_from_runpod_spot",
)
WAITING_FIRST = ("crash", "docs", "tasks", "cli", "guest", "clouds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker is left with it when the others are done."""

    def rank(item: pytest.Item) -> tuple[bool, bool, int]:
        folder = item.path.parent.name
        return (
            not any(word in item.name for word in LONGEST_FIRST),
            item.get_closest_marker("slow") is None,
            WAITING_FIRST.index(folder) if folder in WAITING_FIRST else len(WAITING_FIRST),
        )

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """What has been collected stays to the end: looking through it for garbage over and over is for nothing."""
    gc.freeze()
    gc.set_threshold(20_000)


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
