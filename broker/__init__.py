"""Rents the cheapest GPU that will finish a job, and moves the job when the machine is taken back.

The public names are below; each is imported at first use, so that `import broker` costs next to nothing::

    import broker

    job = broker.run("task.yaml")           # plan, launch, follow, move, until it has ended
    job = broker.run(task, detach=True)     # returns at once; a background broker carries it on
    broker.plan(task)                       # what would be rented and why; costs nothing
    broker.offers("A100:8")                 # what can be rented now
    broker.jobs(), broker.get("name"), broker.costs()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker import errors
    from broker.job import Job, costs, get, jobs, offers, run
    from broker.offer import Offer
    from broker.planning import Plan, plan
    from broker.task import Task

__version__ = "0.1.0"
__all__ = ["Job", "Offer", "Plan", "Task", "costs", "errors", "get", "jobs", "offers", "plan", "run"]

_HOMES = {
    "Job": "broker.job",
    "Plan": "broker.planning",
    "costs": "broker.job",
    "get": "broker.job",
    "jobs": "broker.job",
    "offers": "broker.job",
    "plan": "broker.planning",
    "run": "broker.job",
    "Offer": "broker.offer",
    "Task": "broker.task",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("broker.errors")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'broker' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
