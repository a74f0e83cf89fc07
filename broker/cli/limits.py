"""What the plan says of a task's limits: the work left, the deadline, the budget, and what each move takes."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.planning import Plan


LEAST = 0.001
"""GiB below which what a move takes is not worth a line."""


def limit_lines(plan: Plan) -> list[tuple[str, str]]:
    """Lines for the foot of the plan."""
    from broker.cli.tables import duration
    from broker.policy.decision import clock, money

    lines: list[tuple[str, str]] = []
    if plan.left is not None and plan.left.hours is not None:
        lines.append(("work", f"{plan.left.hours:.3g} h left, by {plan.left.source}"))
    timing, offer = plan.decision.timing, plan.decision.offer
    if plan.deadline is not None:
        told = [r.removeprefix("the ").removeprefix("deadline ") for r in plan.decision.reasons if "deadline in " in r]
        lines.append(("deadline", "; ".join([clock(plan.deadline), *told])))
    if timing is not None:
        lines.append(("timing", timing.reason))
    if plan.month:
        lines.append(("this month", plan.month))
    if plan.task.budget is not None and offer is not None:
        hours, finish = plan.task.budget / offer.hourly, plan.decision.ranked[0].finish
        text = f"{money(plan.task.budget)} USD pay for {hours:.3g} h of this machine"
        if finish is not None:
            enough = f"{ceil(100 * finish.total) / 100:.2f}"
            word = f"more than that; budget: {enough} would do" if finish.total > plan.task.budget else "within it"
            text += f"; finishing is expected to cost {money(finish.total)}, {word}"
        lines.append(("budget", text + _plan_b(plan)))
    if (keep := plan.task.keep_on_failure) is not None and offer is not None:
        long, most = duration(keep.lasts(offer.hourly)), money(keep.costs(offer.hourly))
        lines.append(("on failure", f"the machine is kept for {long}, which costs {most} USD at most"))
    if plan.egress is not None and plan.egress[0] >= LEAST:
        size, price = plan.egress
        text = f"{size:.3g} GiB x {price:g} USD/GiB = {money(size * price)} USD, as checkpoints of this task were"
        lines.append(("egress per move", text))
    if plan.upload is not None and plan.upload[0] >= LEAST:
        size, price = plan.upload
        text = f"{size:.3g} GiB x {price:g} USD/GiB = {money(size * price)} USD until done, as this task saved before"
        lines.append(("egress of saves", text))
    if plan.unattended:
        lines.append(("unattended", plan.unattended))
    return lines


def _plan_b(plan: Plan) -> str:
    """That a budget does not pay for what would hold the deadline where spot does not come, where that is so."""
    from broker.offer import Market
    from broker.policy.decision import money

    offer, budget = plan.decision.offer, plan.task.budget
    if plan.deadline is None or budget is None or offer is None or offer.market is not Market.SPOT:
        return ""
    steady = [c.finish.total for c in plan.decision.ranked if c.finish and c.offer.market is Market.ON_DEMAND]
    if not steady or min(steady) <= budget:
        return ""
    return f"; all of it on demand would cost {money(min(steady))}, more than that, so that the deadline hangs on spot"
