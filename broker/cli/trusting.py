"""What keeping secrets from hosts that could read them costs: a line of the plan, and the one question about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cli.screen import Screen
from broker.offer import Trust
from broker.policy.decision import HOME_KEY, Decision, Kind, Rejected, money

if TYPE_CHECKING:
    from broker.config import Config
    from broker.planning import Plan
    from broker.task import Task

READERS = {
    Trust.CLOUD: "clouds only",
    Trust.DATACENTER: "clouds and vouched data centres only",
}


def cost_of_refusing(decision: Decision, task: Task) -> str:
    """`3 offers from $0.19 hidden; the cheapest left is $0.44`, after who may read what; empty where nothing is."""
    hidden = _hidden(decision)
    if not hidden:
        return ""
    named = {name for entry in hidden for name in entry.exposed}
    kept = {name: kind for name, kind in {**task.readers, HOME_KEY: Trust.CLOUD}.items() if name in named}
    said = [
        f"{', '.join(name for name, least in kept.items() if least is kind)}: {words}"
        for kind, words in READERS.items()
        if kind in kept.values()
    ]
    advice = ". `broker home setup` can find narrower keys" if HOME_KEY in named else ""
    return f"{'; '.join(said)}. {_costs(hidden, decision)}{advice}"


def wants_cheaper(screen: Screen, plan: Plan, config: Config) -> bool:
    """Ask, once for each task, whether its secrets may go where it is cheaper; True where they may from now on.

    Only a person at a terminal is asked, and only about secrets whose trust the task leaves open.
    """
    from broker.consent import remember

    sealed = plan.task.with_hidden_sealed()
    open_ones = {name for name in sealed.secrets if name not in sealed.trust}
    hidden = [entry for entry in _hidden(plan.decision) if set(entry.exposed) <= open_ones]
    left = plan.decision.ranked
    if not screen.interactive or not hidden or (left and hidden[0].cost >= min(entry.cost for entry in left)):
        return False
    names = sorted({name for entry in hidden for name in entry.exposed})
    kinds = " and ".join(sorted({str(entry.offer.trust) for entry in hidden}))
    it = "it" if len(names) == 1 else "them"
    screen.say(f"{', '.join(names)}: kept from {kinds} hosts, whose owners could read {it}.")
    agreed = screen.ask(
        f"{_costs(hidden, plan.decision)}. Let such a host have {it}, in every run of {plan.task.name}?",
        instead=f"`secrets: {{{names[0]}: {{trust: community}}}}` to the task",
    )
    least = max((entry.offer.trust for entry in hidden), key=list(Trust).index)
    remember(config.state, plan.task.name, dict.fromkeys(names, least if agreed else Trust.DATACENTER))
    if not agreed:
        screen.say("remembered; a `trust` in the task's secrets changes it")
    return agreed


def _hidden(decision: Decision) -> list[Rejected]:
    return sorted((entry for entry in decision.rejected if entry.kind is Kind.TRUST), key=lambda entry: entry.cost)


def _costs(hidden: list[Rejected], decision: Decision) -> str:
    several = f"{len(hidden)} offer{'s' * (len(hidden) != 1)} from ${money(hidden[0].cost)} hidden"
    left = min((entry.cost for entry in decision.ranked), default=None)
    return f"{several}; " + (f"the cheapest left is ${money(left)}" if left is not None else "nothing else is left")
