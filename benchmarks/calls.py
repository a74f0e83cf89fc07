"""API calls per minute that watching so many live instances takes, against each vendor's documented limits.

    python benchmarks/calls.py [PROVIDER ...]

What watches is what a broker runs: `instances()`, then `traits.poll` seconds of rest, and again, through the adapter's
own budget of calls. What answers is the vendor's stand-in. The adapter's time runs at a tenth, so that two minutes take
twelve seconds. The exit code is 1 where more calls are made than the vendor documents as its limit, or where a page
full of instances takes more calls than one instance.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from broker.provider import Provider

SCALE = 0.1
MINUTES = 2.0
SIZES = (1, 25, 100, 1000)


@dataclass(frozen=True)
class Watched:
    """calls: how many the stand-in has counted so far. rest: seconds between two looks, already at the scale.

    page: rows that one call gives at most. limit: calls per minute that the vendor takes.
    """

    provider: Provider
    calls: Callable[[], int]
    rest: float
    page: int
    limit: float


Opened = Callable[[Path, int], AbstractContextManager[Watched]]


@contextmanager
def vast(state: Path, count: int) -> Iterator[Watched]:
    """GET /api/v1/instances/: 25 rows a page, one call a second."""
    from clouds.vast.stage import Stage

    with Stage(state) as stage:
        stage.server.spec = None  # its judgement takes longer than the calls
        host = stage.host(parts=count)
        for number in range(count):
            stage.account.rent(host, {"label": f"spotbroker:i:job-{number}:1", "image": "i", "price": 0.3})
        provider = stage.provider(pace=SCALE)
        yield Watched(provider, lambda: sum(stage.server.calls.values()), provider.traits.poll, 25, 60.0)


@contextmanager
def runpod(state: Path, count: int) -> Iterator[Watched]:
    """GET /v2/pods and one GraphQL query, both without pages; 60 REST calls a minute, GraphQL publishes no limit."""
    from clouds.runpod.cloud import RunPod
    from clouds.runpod.hand import opened
    from clouds.runpod.pods import Pod

    cloud = RunPod()
    cloud.judged = False
    for number in range(count):
        shape = {"image": "i", "gpu_id": "NVIDIA A40", "gpu_count": 1, "cloud": "SECURE", "centre": "EU-RO-1"}
        rest = {"env": {}, "disk": 20, "command": "", "price": 0.28, "boot": 0.0, "bid": 0.28}
        cloud.keep(Pod(name=f"sb-i-job-{number}-1", **shape, **rest))
    cloud.start()
    try:
        provider = opened(cloud, state)
        yield Watched(provider, lambda: len(cloud.calls), provider.traits.poll * SCALE, 1000, 60.0)
    finally:
        cloud.close()


@contextmanager
def lambda_cloud(state: Path, count: int) -> Iterator[Watched]:
    """GET /instances, without pages; one request a second."""
    from clouds.lambda_cloud.cloud import KINDS, Lambda, Rented
    from clouds.lambda_cloud.hand import opened

    cloud = Lambda()
    cloud.judged = False
    for number in range(count):
        tags = [{"key": "spotbroker-job", "value": f"job-{number}"}, {"key": "spotbroker-generation", "value": "1"}]
        one = Rented(KINDS[0][0], "us-east-1", {"ssh_key_names": ["spotbroker"], "tags": tags}, 0.0)
        cloud.rented[one.id] = one
    cloud.start()
    try:
        provider = opened(cloud, state, pace=SCALE)
        yield Watched(provider, lambda: len(cloud.calls), provider.traits.poll * SCALE, 1000, 60.0)
    finally:
        cloud.close()


PROVIDERS: dict[str, Opened] = {"lambda": lambda_cloud, "runpod": runpod, "vast": vast}


def per_minute(watched: Watched, count: int) -> float:
    """Calls per minute of the vendor's time."""
    provider = watched.provider
    assert len(provider.instances()) == count
    time.sleep(watched.rest)
    began, before = time.monotonic(), watched.calls()
    while time.monotonic() - began < MINUTES * 60 * SCALE:
        provider.instances()
        time.sleep(watched.rest)
    return (watched.calls() - before) / (time.monotonic() - began) * 60 * SCALE


def main() -> int:
    names = sys.argv[1:] or list(PROVIDERS)
    bad = False
    print("API calls per minute, by live instances\n")
    print(f"{'':8}{'limit':>8}" + "".join(f"{size:>8}" for size in SIZES))
    for name in names:
        found: dict[int, float] = {}
        for size in SIZES:
            with tempfile.TemporaryDirectory(prefix="calls-") as folder, PROVIDERS[name](Path(folder), size) as watched:
                found[size] = per_minute(watched, size)
                limit, page = watched.limit, watched.page
        print(f"{name:8}{limit:>8.0f}" + "".join(f"{value:>8.1f}" for value in found.values()), flush=True)
        whole = max(value for size, value in found.items() if size <= page)
        bad = bad or max(found.values()) > limit or whole > 1.5 * found[1]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
