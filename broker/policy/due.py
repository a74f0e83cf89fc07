"""A decision under a deadline: which market, which machine, or to wait; and whether the deadline can be met. Pure.

`broker.policy.choose` has ranked what can be had; here `timing` says which of it is taken now. It thinks in hours of
the machine on demand that would meet the deadline for the least: a machine twice as fast at the same price counts as
one at half the price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from broker.offer import Market, Offer
from broker.policy.cost import Prospect
from broker.policy.decision import Candidate, Decision, Wish, money
from broker.policy.spells import Sky, Zone
from broker.policy.timing import Choice, Refusals, Situation, Spot, Timing, decide

_SMALL = 1e-6


@dataclass(frozen=True, slots=True)
class Due:
    """When the work must be done, and what is known of the market for it.

    at: the deadline, seconds since the epoch. tick: hours until this is asked again. sky: what was seen of spot zones,
    by `zone`. prices: USD per hour that each zone's machine cost when it was last seen, for those that are gone.
    running: what the job's machine is, and starting: the hours that its start-up still takes. began: it has had a
    machine before. reserve: the hours before the deadline at which the machine begins to save and end, so that the work
    must be done by then.
    """

    at: float
    tick: float = 0.05
    sky: Sky = field(default_factory=Sky)
    prices: Mapping[str, float] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    running: Choice = Choice.WAIT
    starting: float = 0.0
    began: bool = False
    reserve: float = 0.0

    def to_json(self) -> dict[str, Any]:
        refusals = [self.refusals.asked, self.refusals.refused]
        plain = {name: getattr(self, name) for name in ("at", "tick", "starting", "began", "reserve")}
        return {
            **plain,
            "sky": self.sky.to_json(),
            "prices": dict(self.prices),
            "running": str(self.running),
            "refusals": refusals,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Due:
        made = {"sky": Sky.from_json(data["sky"]), "running": Choice(data["running"])}
        return cls(**{**data, **made, "refusals": Refusals(*data["refusals"])})


def zone(offer: Offer) -> str:
    """What comes and goes together: one kind of machine in one zone."""
    return f"{offer.provider}/{offer.region}/{offer.zone}/{offer.instance_type}"


def timed(decision: Decision, wish: Wish, due: Due, now: float) -> Decision:
    """The decision that the deadline asks for; the same offers, another first. Needs the work's hours.

    A job that runs on spot stays there: what else there is only tells how much to bid.
    """
    if due.running is Choice.SPOT:
        return decision
    prospect = wish.prospect
    assert prospect is not None
    assert prospect.hours is not None
    time = (due.at - now) / 3600 - due.reserve
    # What the deadline hangs on may be the fastest of the market, behind any number of cheaper ones.
    ranked = decision.ranked
    need = {id(c): hours_of(c.offer, prospect, prospect.hours) for c in ranked}
    steady = [c for c in ranked if c.offer.market is Market.ON_DEMAND]
    in_time = [c for c in steady if need[id(c)] <= time + _SMALL]
    if not due.began and not any(hours <= time + _SMALL for hours in need.values()):
        reasons = _impossible(ranked, need, prospect.hours, time, due)
        return replace(decision, offer=None, reasons=reasons, next_try=None)
    if not steady:
        return _without(decision, ranked, need, time, wish, due)
    base = in_time[0] if in_time else min(steady, key=lambda c: need[id(c)])
    known = [c for c in ranked if c.finish is not None]
    if base.finish is None:
        known.append(base)
        # Among those that carry their figures, and that a record keeps.
        place = len(known) - 2
        decision = replace(decision, ranked=(*ranked[:place], base, *(c for c in ranked[place:] if c is not base)))
    situation = _situation(known, base, prospect, due, time, now)
    timing = decide(situation)
    why = (timing.reason, *_chances(situation, due, prospect.hours, base if in_time else None))
    if timing.choice is Choice.WAIT:
        return replace(decision, offer=None, reasons=why, next_try=now + due.tick * 3600, timing=timing)
    first = base if timing.choice is Choice.ON_DEMAND else next(c for c in known if _is(c, timing))
    return _with(decision, first, why, timing)


def hours_of(offer: Offer, prospect: Prospect, work: float) -> float:
    """Hours from a launch to the end of the work, without a loss."""
    return prospect.restart(offer) + work / prospect.speed_of(offer)


def _is(candidate: Candidate, timing: Timing) -> bool:
    return candidate.offer.market is Market.SPOT and zone(candidate.offer) == timing.zone


def _with(decision: Decision, first: Candidate, why: Sequence[str], timing: Timing | None) -> Decision:
    ranked = (first, *(c for c in decision.ranked if c is not first))
    return replace(
        decision, offer=first.offer, ranked=ranked, reasons=(first.why, *why, *decision.reasons[1:]), timing=timing
    )


def _without(
    decision: Decision, known: Sequence[Candidate], need: Mapping[int, float], time: float, wish: Wish, due: Due
) -> Decision:
    """No on-demand machine to fall back on: the best that would be done in time, and no promise."""
    why = "spot: only" if wish.spot == "only" else "no machine on demand is to be had"
    in_time = [c for c in known if need[id(c)] <= time + _SMALL]
    text = f"{why}: the deadline in {told(time + due.reserve)} cannot be promised, it hangs on spot"
    return _with(decision, (in_time or list(known))[0], (text,), None)


def _situation(
    known: Sequence[Candidate], base: Candidate, prospect: Prospect, due: Due, time: float, now: float
) -> Situation:
    assert prospect.hours is not None
    pace = prospect.speed_of(base.offer)
    at, seen = now / 3600, due.sky.zones
    spots: dict[str, Spot] = {}
    slow: set[str] = set()
    for c in known:
        if c.offer.market is Market.SPOT:
            name = zone(c.offer)
            if _too_slow(c.offer, base.offer, prospect, time):
                slow.add(name)
                continue
            up = seen[name] if name in seen and seen[name].up else Zone(at, True, name)
            price = _mean(c) * pace / prospect.speed_of(c.offer)
            spots[name] = Spot(name, True, up.hazard(at), price, up.lasts(at, prospect.hours / pace))
    for name, standing in seen.items():
        if name not in spots and name not in slow and name in due.prices:
            down = standing if not standing.up else Zone(at, False, name)
            spots[name] = Spot(name, False, down.hazard(at), due.prices[name], 0.0)
    return Situation(
        work=prospect.hours / pace,
        time=time,
        delay=max(prospect.restart(c.offer) for c in known),
        tick=due.tick,
        on_demand=base.cost,
        spots=tuple(spots.values()),
        running=due.running,
        starting=due.starting,
        refusals=due.refusals,
    )


def _too_slow(spot: Offer, base: Offer, prospect: Prospect, time: float) -> bool:
    """Would a loss near the end leave no time for the faster machine on demand? Spot that runs is not left."""
    if prospect.speed_of(spot) >= prospect.speed_of(base):
        return False
    assert prospect.hours is not None
    return hours_of(spot, prospect, prospect.hours) + prospect.restart(base) > time + _SMALL


def _mean(candidate: Candidate) -> float:
    """USD per hour over the hours that the work takes, as `finish` reckons it: by night the price now is none of the
    day's."""
    season = candidate.finish.season if candidate.finish is not None else 1.0
    return candidate.cost + (season - 1) * candidate.offer.price


def _chances(now: Situation, due: Due, work: float, in_time: Candidate | None) -> tuple[str, ...]:
    spare = now.time - now.work
    text = f"deadline in {told(now.time + due.reserve)}, {work:.3g} h of work left, {told(spare)} to spare"
    if in_time is None:
        return (f"{text}: no machine on demand that is to be had now can meet it any more",)
    chance = now.refusals.miss(spare, now.delay)
    if now.refusals.refused:
        asked = f"on demand was refused {now.refusals.refused} of {now.refusals.asked} times"
        return (f"{text}; {asked}: the chance to miss it is {100 * chance:.2g} %",)
    return (text,)


def _impossible(
    known: Sequence[Candidate], need: Mapping[int, float], work: float, time: float, due: Due
) -> tuple[str, ...]:
    """What is said before anything is rented: why not, and what would do, with its price."""
    left = time + due.reserve
    when = f"in {told(left)}" if left > 0 else f"of {told(-left)} ago"
    lines = [f"the deadline {when} cannot be met: {work:.3g} h of work"]
    if known:
        fast = min(known, key=lambda c: (need[id(c)], c.cost))
        steady = [c for c in known if c.offer.market is Market.ON_DEMAND and need[id(c)] <= need[id(fast)] + _SMALL]
        fast = min(steady, key=lambda c: c.cost, default=fast)
        soonest = need[id(fast)]
        lines[0] += f", done soonest in {told(soonest)} by {_named(fast)}, for {money(soonest * fast.cost)}"
        cheap = known[0]
        assert cheap.finish is not None
        if cheap is not fast:
            took = f"{told(cheap.finish.hours)} expected"
            lines.append(f"the cheapest is {_named(cheap)}: {took}, for {money(cheap.finish.total)}")
        lines.append(f"deadline: {ceil((soonest + due.reserve) * 60 - _SMALL) + 1}m would do")
    return tuple(lines)


def _named(candidate: Candidate) -> str:
    return f"{candidate.offer.market.told} in {candidate.offer.where} at {money(candidate.cost)}"


def told(hours: float) -> str:
    """`6 h 20 m`, `45 m`, `30 s`; with a minus where it has passed."""
    sign, seconds = ("-" if hours < 0 else ""), abs(hours) * 3600
    if seconds < 90:
        return f"{sign}{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{sign}{minutes // 60} h {minutes % 60:02} m" if minutes >= 60 else f"{sign}{minutes} m"
