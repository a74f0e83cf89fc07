"""One decision from beginning to end, and its record: what it was made of, what it came to, and the same again. Pure.

`decide` is all that the phases ask: `choose` ranks and times, patience holds out for spot a while, and a job that moves
of its own accord takes what it moves to or stays. `to_json` keeps the inputs beside the decision, so that `replay`
makes the same decision of the record alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from broker.offer import Market, Offer, OfferQuery, Trust
from broker.policy.choose import choose
from broker.policy.cost import Prospect
from broker.policy.decision import Decision, Kind, Wish, money
from broker.policy.due import Due
from broker.policy.hazard import Experience
from broker.policy.memory import Memory
from broker.policy.past import Past

VERSION = 2
MOST = 1000
"""Offers that a record keeps. Beyond, the dearest are left out of it: they were never near being taken."""
SOONEST = 0.1
"""Seconds until the next look at the least."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long spot is held out for before on-demand takes its place. Seconds, and moments since the epoch.

    fallback: how long; look: until the market is looked at again; since: since when there has been no spot, None if
    there was at the last look; had: the job has run on spot.
    """

    fallback: float
    look: float
    since: float | None = None
    had: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a decision rests on. heading: the key of the offer that the job is moving to while its machine runs.

    past: what was seen of prices and zones; None where neither counts.
    """

    offers: tuple[Offer, ...]
    wish: Wish
    memory: Memory
    now: float
    failures: Mapping[str, str] = field(default_factory=dict)
    experience: Experience = field(default_factory=Experience)
    due: Due | None = None
    patience: Patience | None = None
    heading: str | None = None
    past: Past | None = None


def decide(inputs: Inputs) -> Decision:
    """What is done now."""
    decision = choose(
        inputs.offers,
        wish=inputs.wish,
        memory=inputs.memory,
        now=inputs.now,
        failures=inputs.failures,
        experience=inputs.experience,
        due=inputs.due,
        past=inputs.past,
    )
    if inputs.heading is not None:
        return _headed(decision, inputs.heading)
    return _patient(decision, inputs, inputs.patience) if inputs.patience is not None else decision


def _headed(decision: Decision, heading: str) -> Decision:
    there = next((c for c in decision.ranked if c.offer.key == heading), None)
    if there is None:
        return replace(decision, offer=None, reasons=(f"{heading} is not to be had any more",))
    rest = tuple(c for c in decision.ranked if c is not there)
    return replace(decision, offer=there.offer, ranked=(there, *rest), reasons=(there.why, *decision.reasons[1:]))


def _patient(decision: Decision, inputs: Inputs, patience: Patience) -> Decision:
    """On demand takes the place of spot only once there has been no spot for a while.

    Where spot is dearer, or such machines have no spot at all, there is nothing to wait for; with a deadline the timing
    has decided.
    """
    wish = inputs.wish
    timed = inputs.due is not None and wish.prospect is not None and wish.prospect.hours is not None
    if decision.offer is None or timed or wish.spot != "auto" or decision.offer.market is Market.SPOT:
        return decision
    cools = any(r.kind is Kind.COOLDOWN and r.offer.market is Market.SPOT for r in decision.rejected)
    dearer = any(c.offer.market is Market.SPOT for c in decision.ranked)
    dearer = dearer or any(
        r.kind in (Kind.TIE, Kind.PRICE) and r.offer.market is Market.SPOT for r in decision.rejected
    )
    if dearer or not (cools or patience.had):
        return decision
    since = inputs.now if patience.since is None else patience.since
    if inputs.now - since >= patience.fallback:
        reasons = (*decision.reasons, f"on demand: no spot for {inputs.now - since:.0f} s")
        return replace(decision, reasons=reasons, spotless=since)
    only = choose(
        inputs.offers,
        wish=replace(wish, spot="only"),
        memory=inputs.memory,
        now=inputs.now,
        failures=inputs.failures,
        experience=inputs.experience,
        past=inputs.past,
    )
    if only.offer is not None:
        return replace(only, spotless=since)
    left = since + patience.fallback - inputs.now
    again = min(inputs.now + patience.look, inputs.now + left, only.next_try or inputs.now + left)
    text = f"no spot is to be had now; on demand, at {money(decision.ranked[0].cost)}, in {left:.0f} s if none comes"
    return replace(decision, offer=None, reasons=(text,), next_try=max(again, inputs.now + SOONEST), spotless=since)


def to_json(inputs: Inputs, decision: Decision) -> dict[str, Any]:
    """Plain JSON: the inputs, and the decision with every alternative."""
    offers = inputs.offers
    if len(offers) > MOST:
        kept = {id(c.offer) for c in decision.ranked[:MOST]}
        offers = tuple(offer for offer in offers if id(offer) in kept)
    wish = inputs.wish
    return {
        "version": VERSION,
        "now": inputs.now,
        "offers": [offer.to_json() for offer in offers],
        "left_out": len(inputs.offers) - len(offers),
        "wish": {
            "queries": [{**asdict(query), "markets": list(map(str, query.markets))} for query in wish.queries],
            "spot": wish.spot,
            "max_price": wish.max_price,
            "ordered": wish.ordered,
            "prospect": asdict(wish.prospect) if wish.prospect else None,
            "trust": {name: str(kind) for name, kind in wish.trust.items()},
        },
        "memory": inputs.memory.to_json(),
        "failures": dict(inputs.failures),
        "experience": inputs.experience.to_json(),
        "due": inputs.due.to_json() if inputs.due else None,
        "patience": asdict(inputs.patience) if inputs.patience else None,
        "heading": inputs.heading,
        "past": inputs.past.within(offers).to_json() if inputs.past else None,
        "decision": decision.to_json(limit=MOST),
    }


def inputs_of(data: Mapping[str, Any]) -> Inputs:
    """What a record's decision was made of."""
    wish = data["wish"]
    queries = tuple(
        OfferQuery(**{**q, "infra": tuple(q["infra"]), "markets": tuple(map(Market, q["markets"]))})
        for q in wish["queries"]
    )
    prospect = Prospect(**wish["prospect"]) if wish["prospect"] else None
    trust = {name: Trust(kind) for name, kind in wish["trust"].items()}
    return Inputs(
        offers=tuple(Offer.from_json(offer) for offer in data["offers"]),
        wish=Wish(**{**wish, "queries": queries, "prospect": prospect, "trust": trust}),
        memory=Memory.from_json(data["memory"]),
        now=data["now"],
        failures=data["failures"],
        experience=Experience.from_json(data["experience"]),
        due=Due.from_json(data["due"]) if data["due"] else None,
        patience=Patience(**data["patience"]) if data["patience"] else None,
        heading=data["heading"],
        past=Past.from_json(data["past"]) if data["past"] else None,
    )


def replay(data: Mapping[str, Any]) -> Decision:
    """The decision of a record, made again of what it was made of."""
    return decide(inputs_of(data))
