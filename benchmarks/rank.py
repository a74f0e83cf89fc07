"""Ranking many offers by the expected cost of finishing, against `sorted()` over the same objects by bare price.

    python benchmarks/rank.py [OFFERS]        # 100,000 unless said otherwise

The cost holds hazards by place and card, lost work, restarts, and the checkpoint's egress; once more with the age of
every zone, nights and weekends, and a week of prices of its own for one offer in a hundred: then the first thousand are
exact, see `Reckoning.order`. Beside it stands the whole decision: what fits, what cools down, what is rejected and why,
and a candidate for each offer. All are measured in turns and the fastest round of each counts. The last line is the
figure, the larger of the two; the exit code is 1 where it is more than 5x.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broker.offer import Market, Offer, OfferQuery
from broker.policy import Memory, Wish, choose
from broker.policy.cost import Prospect
from broker.policy.due import Due
from broker.policy.hazard import Experience
from broker.policy.past import Past
from broker.policy.reckon import Reckoning
from broker.policy.season import Season

NOW = 1_790_000_000.0
WANTED = 5.0
ROUNDS = 7


def market(count: int) -> list[Offer]:
    """Offers of eight providers in 40 regions each, of one card, a tenth of it on demand, with interruption rates."""
    rng = random.Random(1)
    return [
        Offer(
            provider=f"p{rng.randrange(8)}",
            region=f"r{rng.randrange(40)}",
            zone=f"z{number}",
            instance_type="m",
            market=Market.ON_DEMAND if rng.random() < 0.1 else Market.SPOT,
            price=rng.uniform(0.2, 5.0),
            disk_price=0.01,
            gpu="A100-80GB",
            gpu_count=1,
            gpu_memory=80.0,
            cpus=float(rng.choice((4, 8, 16))),
            memory=120.0,
            interruption=rng.choice((None, 0.01, 0.05)),
        )
        for number in range(count)
    ]


def by_cost(reckoning: Reckoning, offers: list[Offer]) -> list[Offer]:
    """By what finishing costs with them, the cheapest first, as `choose` does it."""
    return [offers[n] for n in reckoning.order(offers)[0]]


def fastest(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of the fastest round of each, all in turns, so that what else the computer does hits all alike."""
    took = dict.fromkeys(calls, math.inf)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            took[name] = min(took[name], time.perf_counter() - begun)
    return took


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    offers = market(count)
    query = OfferQuery(gpu="A100-80GB", gpu_count=1, cpus=4.0)
    prospect = Prospect(24.0, lost=0.25, checkpoint=12.0, egress={f"p{n}": 0.09 for n in range(8)})
    wish = Wish((query,), prospect=prospect)
    past = Past(
        {
            offer.key: Season(tuple(1 + (hour + n) % 7 / 20 for hour in range(48)))
            for n, offer in enumerate(offers[::100])
        },
        {offer.key: NOW - number % 300 * 600.0 for number, offer in enumerate(offers)},
    )
    due = Due(NOW + 40 * 3600.0)
    took = fastest(
        {
            "by bare price, sorted()": lambda: sorted(offers, key=lambda offer: offer.price),
            "by the cost of finishing": lambda: by_cost(Reckoning(prospect, Experience(), NOW), offers),
            "the same, with ages and seasons": lambda: by_cost(Reckoning(prospect, Experience(), NOW, past), offers),
            "the whole decision": lambda: choose(offers, wish=wish, memory=Memory(), now=NOW),
            "a decision under a deadline over 2,000": lambda: choose(
                offers[:2000], wish=wish, memory=Memory(), now=NOW, due=due
            ),
        }
    )
    bare, *ranked = list(took.values())[:3]
    print(f"{count} offers, in ms, and in times of sorted()")
    for name, seconds in took.items():
        print(f"{name:40}{1000 * seconds:8.1f}  {seconds / bare:6.1f}x")
    print(f"{max(ranked) / bare:.1f}x sorted() by the cost of finishing, at most {WANTED:g}x is wanted")
    return 0 if max(ranked) / bare <= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
