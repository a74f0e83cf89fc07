"""What a look at EC2's market and at one's machines costs: seconds and API calls, over 17 regions.

    python benchmarks/aws.py [MACHINES]

The other side is the tests' stand-in, moto behind a layer, in a process of its own on this computer: it answers without
a network's delay and more slowly than EC2 itself, so calls are what carries over, and seconds are an upper bound of the
adapter's own work. Cold is a new installation; warm is one that has learnt zones, types, list prices and images; again
is the same process once more. The machines are spread over all regions. Exit code 1 where a region's prices took more
than one call and its pages, or the list more than two calls per region.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CARDS = (1, 2, 4, 8)
REGIONS = 17


def serve() -> None:
    """The other side: commands on standard input, answers as JSON."""
    sys.path.insert(0, str(ROOT / "tests"))
    from clouds.aws.server import running
    from clouds.aws.state import OPEN

    with running() as aws:
        aws.world.enabled = list(OPEN)
        print(json.dumps(aws.variables()), flush=True)
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "fill":
                fill(aws, int(number))
            told = dict(aws.world.counted())
            aws.world.calls.clear()
            print(json.dumps(told), flush=True)


def fill(aws: Any, machines: int) -> None:
    """Machines that carry our tags, in every region."""
    os.environ.update(aws.variables())
    import boto3

    for number, region in enumerate(aws.world.enabled):
        count = machines // REGIONS + (number < machines % REGIONS)
        ami = next(iter(aws.world.amis[region]))
        tags = [{"Key": "spotbroker-installation", "Value": "bench"}, {"Key": "spotbroker-job", "Value": f"j-{number}"}]
        boto3.client("ec2", region_name=region).run_instances(
            ImageId=ami,
            InstanceType="c5.xlarge",
            MinCount=count,
            MaxCount=count,
            Placement={"AvailabilityZone": aws.world.zone_rows(region)[0].name},
            InstanceMarketOptions={"MarketType": "spot"},
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )


class Bench:
    def __init__(self) -> None:
        self.other = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        os.environ.update(self._read())
        self.worst = 0

    def _read(self) -> dict[str, Any]:
        assert self.other.stdout is not None
        answer: dict[str, Any] = json.loads(self.other.stdout.readline())
        return answer

    def tell(self, word: str) -> Counter[str]:
        """What was called since the last word."""
        assert self.other.stdin is not None
        self.other.stdin.write(word + "\n")
        self.other.stdin.flush()
        return Counter(self._read())

    def measure(self, name: str, act: Callable[[], int]) -> Counter[str]:
        self.tell("clear")
        begin, cpu = time.perf_counter(), time.process_time()
        number = act()
        seconds, own = time.perf_counter() - begin, time.process_time() - cpu
        calls = self.tell("count")
        by_name = ", ".join(f"{count} {call.partition(':')[2]}" for call, count in sorted(calls.items()))
        print(f"{name:34} {number:6} {seconds:6.2f} s {own:6.2f} s CPU {calls.total():4} calls: {by_name}")
        return calls


def main() -> int:
    from broker.offer import OfferQuery
    from broker.provider import PartialOffers
    from broker_aws import AwsProvider

    machines = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    bench, ok = Bench(), True

    def look(provider: AwsProvider) -> int:
        found = 0
        for count in CARDS:
            try:
                found += len(provider.offers(OfferQuery(gpu="4GB+", gpu_count=count)))
            except PartialOffers as partial:
                found += len(partial.offers)
        return found

    settings = {"advisor_url": ""}
    print(f"{REGIONS} regions, every type with {', '.join(map(str, CARDS))} cards: offers, seconds, API calls")
    with tempfile.TemporaryDirectory(prefix="bench-aws-") as folder:
        first = AwsProvider(settings, Path(folder))
        bench.measure("offers, cold", lambda: look(first))
        second = AwsProvider(settings, Path(folder))
        for name in ("offers, warm, a new process", "offers, again"):
            calls = bench.measure(name, lambda: look(second))
            ok &= calls.total() == calls["ec2:DescribeSpotPriceHistory"] <= REGIONS * len(CARDS)
        bench.tell(f"fill {machines}")
        for name in ("instances()", "instances(), again"):
            calls = bench.measure(f"{name} over {machines}", lambda: len(second.instances()))
            ok &= calls.total() <= 2 * REGIONS
    bench.other.terminate()
    bench.other.wait()
    return 0 if ok else 1


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        sys.exit(main())
