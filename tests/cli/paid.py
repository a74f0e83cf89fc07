"""A provider of somebody else's: machines that really run, for money that is not simulated.

It is a package of its own, found by its entry point, with everything that the contract asks for and no more.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cli.command import Cli
from clouds.seaweedfs import SeaweedFS

import broker_local

PACKAGE = '''
from dataclasses import replace

from broker.provider import Kind, Traits
from broker_local.provider import LocalProvider


class PaidProvider(LocalProvider):
    """Two sizes of money: what is rented costs, and an hour is billed at least where `minimum` says so."""

    name = "paid"
    traits = Traits(token=True, list_lag=0.2, poll=1.0, boot_limit=120.0, notice=None, kind=Kind.BARE)

    def __init__(self, settings, state):
        settings = dict(settings)
        self.extra = settings.pop("extra", {})
        super().__init__({"root": str(state / "paid"), **settings}, state)

    def offers(self, query):
        found = super().offers(query)
        return [replace(offer, provider="paid", simulated=False, extra=dict(self.extra)) for offer in found]

    def _view(self, machine, record, now):
        return replace(super()._view(machine, record, now), provider="paid")
'''


def install(cli: Cli, home: str = "", store: SeaweedFS | None = None, settings: str = "") -> None:
    """Install the provider for this command line, and set a home that its machines can reach."""
    site = cli.folder / "site"
    package, info = site / "broker_paid", site / "broker_paid-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    shutil.copy(Path(broker_local.__file__).parent / "guest.py", package / "guest.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broker-paid\nVersion: 1.0\n", encoding="utf-8")
    entry = "[broker.providers]\npaid = broker_paid:PaidProvider\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    cli.env["PYTHONPATH"] = os.pathsep.join([str(site), cli.env["PYTHONPATH"]])
    lines = [f'home = "{home}"'] if home else []
    if store is not None:
        lines += ["[home_config]", *(f'{key} = "{value}"' for key, value in store.settings().items())]
    # Real machines speak rarely, since their requests are billed; nobody pays for these.
    lines += ["[limits]", "beat = 1.0", "scan = 0.5", "quiet = 2.0", "store_poll = 0.5", "[providers.paid]", settings]
    (cli.folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
