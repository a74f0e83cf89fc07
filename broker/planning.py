"""What would be rented for a task now, and why: `plan`. It costs nothing and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.config import Config
from broker.config import load as load_config
from broker.task import Task
from broker.task import load as load_task

if TYPE_CHECKING:
    from broker.coverage import FieldReport
    from broker.experience import Records
    from broker.mounts import Measured
    from broker.policy.choose import Decision
    from broker.policy.cost import Prospect
    from broker.policy.decision import Wish
    from broker.policy.work import Left


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What would be rented for a task, and why. `failures` names providers that did not answer.

    home: where the job's snapshots would go. size: bytes of the workdir, None without one. mounts: what else is brought
    along. fields: what becomes of each field of the task file. balance: what a prepaid account still pays for.
    left_out: what providers' own settings leave out, for people. left:
    the work ahead, with what tells it; prospect: what the policy reckons with. deadline: seconds since the epoch.
    unattended: until when a machine goes on while no broker lives, where its key ends before the task's own limit.
    identity: by what the machine reaches the home without a key, and what that opens.
    month: what is left of the month's budget, and for how long it pays.
    """

    task: Task
    decision: Decision
    failures: Mapping[str, str]
    home: str
    size: int | None
    providers: tuple[str, ...]
    mounts: tuple[Measured, ...] = ()
    fields: tuple[FieldReport, ...] = ()
    balance: str = ""
    left_out: tuple[str, ...] = ()
    left: Left | None = None
    prospect: Prospect | None = None
    deadline: float | None = None
    unattended: str = ""
    identity: str = ""
    month: str = ""

    @property
    def egress(self) -> tuple[float, float] | None:
        """What a move takes out of the home: GiB, and USD per GiB where that machine reads; None where not known."""
        if self.prospect is None or self.decision.offer is None or not self.prospect.checkpoint:
            return None
        price = self.prospect.egress_of(self.decision.offer)
        return (self.prospect.checkpoint, price) if price is not None else None

    @property
    def upload(self) -> tuple[float, float] | None:
        """What saves send until the work is done: GiB, and USD per GiB that the machine's side charges for it; None
        where not known."""
        known, offer = self.prospect, self.decision.offer
        if known is None or offer is None or known.hours is None or known.sent is None:
            return None
        price = known.leaving_of(offer)
        return (known.sent * known.hours, price) if price is not None else None

    def __repr__(self) -> str:
        offer = self.decision.offer
        what = f"{offer.key} at {offer.hourly:.4f} USD/h" if offer else "; ".join(self.decision.reasons) or "nothing"
        return f"<Plan {self.task.name}: {what}>"

    def _repr_html_(self) -> str:
        from broker.notebook import of_plan

        return of_plan(self)


def overridden(task: Task, changes: Mapping[str, Any]) -> Task:
    """The task with the caller's overrides, and the home that holds it."""
    given = {key: value for key, value in changes.items() if value is not None}
    task = task.within(given.pop("infra", ()))
    return dataclasses.replace(task, **given) if given else task


def home_of(task: Task, config: Config) -> str:
    """The URL of the home that a task's job gets: the task's, the configured one, or a folder for `local` only."""
    from broker.home import folder_url

    return task.home or config.home or folder_url(config.state / "home")


def plan(
    task: Task | Path | str,
    *,
    spot: str | None = None,
    max_price: float | None = None,
    infra: Sequence[str] = (),
    config: Config | None = None,
) -> Plan:
    """Rank what could be rented for a task now, with reasons. Costs nothing and leaves nothing behind."""
    from broker.consent import consented
    from broker.taskfile import placing

    config = config or load_config()
    task = consented(overridden(load_task(task), {"spot": spot, "max_price": max_price, "infra": infra}), config.state)
    with placing(task):
        return _plan(task, config)


def _plan(task: Task, config: Config) -> Plan:
    from broker import identity, registry
    from broker.market import Marketplace
    from broker.mounts import measure
    from broker.outlook import planned, with_sky
    from broker.placement import left_out
    from broker.policy import record
    from broker.policy.memory import Memory
    from broker.policy.past import Past
    from broker.renewals import unattended
    from broker.workdir import size

    home = home_of(task, config)
    mounts = measure(task.file_mounts, config, home, min(resources.disk for resources in task.resources))
    now, records = time.time(), records_of(config)
    outlook = planned(task, home, config.home_config, records, now)
    book, due = Marketplace(config).offers(outlook.wish.queries), outlook.due
    if due is not None:
        tick = config.limits(simulated=all(offer.simulated for offer in book.offers)).weigh
        due = with_sky(due, book.offers, outlook.wish, records, now, tick)
    past = records.past(book.offers, now) if records is not None else Past()
    decision = record.decide(
        record.Inputs(book.offers, outlook.wish, Memory(), now, book.failures, outlook.experience, due, past=past)
    )
    decision, month = _affordable(decision, task, outlook.wish, config, records, now)
    itself = _identity(decision, home, config)
    return Plan(
        task=task,
        decision=decision,
        failures=book.failures,
        home=home,
        size=size(task.workdir, left_out(task, config)) if task.workdir else None,
        providers=tuple(registry.names()),
        mounts=mounts,
        fields=_fields(task),
        balance=_balance(decision, config),
        left_out=book.left_out_words,
        left=outlook.left,
        prospect=outlook.wish.prospect,
        deadline=due.at if due is not None else None,
        month=month,
        unattended="" if itself else unattended(config, home, task.max_hours, now),
        identity=identity.word(itself, decision.offer.provider) if itself and decision.offer else "",
    )


def records_of(config: Config) -> Records | None:
    """What this installation has seen; None before its first job, since a plan leaves nothing behind."""
    from broker.experience import Records
    from broker.store import open_store

    if not config.database and not (config.state / "jobs.db").exists():
        return None
    return Records(open_store(config.state, config.database))


def _affordable(
    decision: Decision, task: Task, wish: Wish, config: Config, records: Records | None, now: float
) -> tuple[Decision, str]:
    """The decision, without its offer where no budget pays for as much as its start; and how the month stands."""
    from broker.policy.bid import bid
    from broker.policy.decision import money
    from broker.policy.due import told
    from broker.purse import MONTHLY, ahead, freed_by, least, short, standing

    offer = decision.offer
    if offer is None:
        return decision, ""
    store = records.store if records is not None else None
    limiting = ahead(task, config, store, now, simulated=offer.simulated)
    finish = decision.ranked[0].finish
    highest = bid(decision, wish, finish.hazard if finish is not None else 0.0, limited=bool(limiting))
    hourly = max(offer.hourly, highest or 0.0)
    lack = short(limiting, offer, hourly, least(config, wish.prospect, offer), now)
    if lack is not None:
        purse, text = lack
        text += f"; finishing is expected to cost {money(finish.total)}" if finish is not None else ""
        text += f"; {freed_by(purse, now)}" if purse.name == MONTHLY else ""
        return dataclasses.replace(decision, offer=None, reasons=(text,), short=purse.name), ""
    month = next((purse for purse in limiting if purse.name == MONTHLY), None)
    if month is None:
        return decision, ""
    lasts = told((month.until(hourly, now) - now) / 3600)
    left = f"{money(max(0.0, month.left(now)))} of {money(month.limit)} USD left: {standing(month, now)}"
    return decision, f"{left}; what is left pays for {lasts} of this machine"


def _identity(decision: Decision, home: str, config: Config) -> str:
    from broker import identity, registry

    if decision.offer is None or not config.home_config.get("instance_profile"):
        return ""
    return identity.of(config, home, registry.get(decision.offer.provider, config), decision.offer)


def _balance(decision: Decision, config: Config) -> str:
    from broker import registry
    from broker.balance import plan_word

    if decision.offer is None:
        return ""
    finish = decision.ranked[0].finish
    provider = registry.get(decision.offer.provider, config)
    return plan_word(provider, decision.offer, finish.total if finish is not None else None)


def _fields(task: Task) -> tuple[FieldReport, ...]:
    """What becomes of each field of the file that the task was read from; nothing for a task made in Python."""
    if task.source is None or not task.source.is_file():
        return ()
    from broker.coverage import fields_report
    from broker.taskfile import document

    return tuple(fields_report(document(task.source)))
