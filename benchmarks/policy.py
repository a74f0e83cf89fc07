"""How far above the omniscient optimum a job with a deadline ends up: published policies and ours, on real traces.

    python benchmarks/policy.py YARDSTICK            # the table; needs numpy and numba
    python benchmarks/policy.py YARDSTICK hazards    # recounts the constants of broker/policy from the same traces

YARDSTICK is the folder of the deadline benchmark: its `evaluate.py`, `core.py` and `policies.py`, with the tuning part
of the spot traces that SkyPilot's authors published. The last line is the figure: the part of the gap between
Uniform Progress (NSDI'24) and the optimum that ours closes, in one zone and over several. The exit code is 1 where
that is less than 40 %, a deadline was missed, a choice was invalid, or any slack costs more than Uniform Progress.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

POLICIES = {
    "on-demand only": "policies:on_demand",
    "greedy": "policies:greedy",
    "SkyPilot FAILOVER, no deadline": "policies:failover",
    "SkyPilot EAGER, no deadline": "policies:eager",
    "Uniform Progress": "policies:uniform_progress",
    "Uniform Progress, EAGER zones": "policies:uniform_progress_eager",
    "ours": "broker.policy.yardstick:policy",
    "ours, nothing seen before": "broker.policy.yardstick:policy",
}
WANTED = 0.40
EDGES = (0.0, 0.17, 0.34, 0.67, 1.34, 2.7, 5.4, 10.7, 21.4, 1e9)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    sys.path.insert(0, sys.argv[1])
    if sys.argv[2:] == ["hazards"]:
        return hazards()
    evaluate = importlib.import_module("evaluate")
    core = importlib.import_module("core")
    results = {}
    for name, spec in POLICIES.items():
        seen = 0.0 if "nothing" in name else 336.0
        results[name] = evaluate.evaluate(spec, "tune", 1, ("single", "multi"), seen)
    for mode, title in (("single", "One zone"), ("multi", "Two to four zones")):
        print(f"\n{title}: cost above the omniscient optimum, %\n")
        print(f"| policy | mean | p95 | missed | invalid | {' | '.join(f'slack {slack:g}' for slack in core.SLACKS)} |")
        print("|---" * (5 + len(core.SLACKS)) + "|")
        for name, result in results.items():
            row = result[mode]
            cells = " | ".join(f"{100 * above(core, row, slack):.1f}" for slack in core.SLACKS)
            p95 = 100 * (np.percentile(row["cost"] / row["om"], 95) - 1)
            print(
                f"| {name} | {100 * above(core, row):.1f} | {p95:.0f} | {int(row['miss'].sum())} "
                f"| {int(row['invalid'].sum())} | {cells} |"
            )
    began = time.process_time()
    importlib.import_module("broker.policy.renewal").table(0.123, 0.3, 48.0)
    made = time.process_time() - began
    print(f"\n{per_tick():.0f} µs a decision (4 zones, tables made), {made:.2f} s to make a table")
    return verdict(core, results)


def above(core: Any, row: dict[str, Any], slack: float | None = None) -> float:
    """The mean over settings of cost over optimum, less 1."""
    chosen = [one for one in np.unique(row["si"]) if slack is None or core.setting_of(one)[1] == slack]
    return (
        float(np.mean([row["cost"][row["si"] == one].sum() / row["om"][row["si"] == one].sum() for one in chosen])) - 1
    )


def verdict(core: Any, results: dict[str, Any]) -> int:
    published, ours = results["Uniform Progress"], results["ours"]
    closed = {mode: 1 - above(core, ours[mode]) / above(core, published[mode]) for mode in ours}
    sound = all(not row["miss"].sum() and not row["invalid"].sum() for row in ours.values())
    worse = [
        (mode, slack)
        for mode in ours
        for slack in core.SLACKS
        if above(core, ours[mode], slack) > above(core, published[mode], slack)
    ]
    if worse:
        print("worse than Uniform Progress at", worse)
    print(
        f"closes {closed['single']:.0%} of Uniform Progress's gap in one zone and {closed['multi']:.0%} over several "
        f"(+{above(core, ours['single']):.1%} and +{above(core, ours['multi']):.1%} above the optimum)"
    )
    return 0 if sound and not worse and min(closed.values()) >= WANTED else 1


def per_tick() -> float:
    """Microseconds of processor time for one decision between four zones of which two are up."""
    from broker.policy.yardstick import policy

    plugin = policy()
    looks = [{f"zone-{n}": (n + turn) % 2 == 0 for n in range(4)} for turn in (0, 1)]
    plugin.reset({"zones": list(looks[0]), "history": dict.fromkeys(looks[0], b""), "tick_s": 195.0})
    count = 20_000
    took = 0.0
    for number in range(count + 100):
        if number == 100:
            took = time.process_time()
        now = 4.0 * number
        plugin.decide(
            now, now / 2, 195.0, 86_400.0, 130_000.0, 720.0, 0.97, 3.06, looks[number // 10 % 2], None, "NONE"
        )
    return (time.process_time() - took) / count * 1e6


def hazards() -> int:
    """Ends of spells per hour by age, and the factors for a zone's record."""
    core = importlib.import_module("core")
    rows = [row for group in core.load_split("tune") for row in spells(group.avail, group.gap / 3600)]
    table = np.array(rows)
    bins = np.searchsorted(EDGES, table[:, 2] - 1e-9, side="right") - 1
    for up, name in ((1, "UP_HAZARD"), (0, "DOWN_HAZARD")):
        chosen = table[:, 0] == up
        hours = np.bincount(bins[chosen], table[chosen, 4], len(EDGES) - 1)
        ends = np.bincount(bins[chosen], table[chosen, 1], len(EDGES) - 1)
        print(name, np.round(ends / hours, 3).tolist(), f"{int(ends.sum())} ends in {hours.sum():.0f} h")
        base = np.log((ends / hours)[bins[chosen]] * table[chosen, 4])
        print("  factor (1, log age, logit share up, log flips)", fit(table[chosen], base).round(3).tolist())
    return 0


def spells(available: Any, tick: float) -> list[tuple[float, ...]]:
    """For each zone and tick within a spell whose start was seen: up, ends now, age, record, hours."""
    from broker.policy.spells import FLIP_MEMORY, FLIPS, SHARE_MEMORY

    rows = []
    for looks in available:
        share, flips, age = 0.5, FLIP_MEMORY * FLIPS, 0
        keep, fade = np.exp(-tick / SHARE_MEMORY), np.exp(-tick / FLIP_MEMORY)
        for n in range(1, len(looks) - 1):
            share = looks[n - 1] + (share - looks[n - 1]) * keep
            changed = looks[n] != looks[n - 1]
            flips = flips * fade + changed
            age = 1 if changed else age + 1 if age else 0
            if age:
                ends = looks[n + 1] != looks[n]
                rows.append((looks[n], ends, age * tick, share, tick, flips / FLIP_MEMORY))
    return rows


def fit(rows: Any, base: Any) -> Any:
    """Poisson regression by Newton's method, with a ridge of 1."""
    features = np.stack(
        [
            np.ones(len(rows)),
            np.log(rows[:, 2]),
            np.log((rows[:, 3] + 0.03) / (1.03 - rows[:, 3])),
            np.log(rows[:, 5] + 0.02),
        ],
        1,
    )
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        expected = np.exp(np.clip(features @ weights + base, -20, 3))
        slope = features.T @ (rows[:, 1] - expected) - weights
        curve = (features * expected[:, None]).T @ features + np.eye(len(weights))
        weights += np.clip(np.linalg.solve(curve, slope), -1, 1)
    return weights


if __name__ == "__main__":
    sys.exit(main())
