"""A third party's provider, `crooked`, that breaks its contract as its settings say: for `broker verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.errors import ProviderError
from broker.provider import Instance, LaunchRequest
from broker.testing import FakeProvider, sample_offers

ACCOUNT: dict[str, Instance] = {}


class Crooked(FakeProvider):
    how_to_key = "keys are made at https://crooked.example/keys"

    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        super().__init__(settings, state, name="crooked", stock=sample_offers("crooked"))
        self.machines = ACCOUNT  # the account outlives the client

    def launch(self, request: LaunchRequest) -> Instance:
        if self.settings.get("fault") == "leaky":
            raise ProviderError(
                f"account 123456789012 at 203.0.113.7 (me@example.com) may not, with the key {self.settings['key']}",
                provider="crooked", code="E_42",
            )  # fmt: skip
        made = super().launch(request)
        return replace(made, hourly=made.hourly * 3) if self.settings.get("fault") == "price" else made

    def terminate(self, instance: Instance) -> None:
        super().terminate(instance)
        if instance.id not in ACCOUNT and self.settings.get("fault") == "ghost":
            raise KeyError(instance.id)

    def instances(self) -> Sequence[Instance]:
        return list(ACCOUNT.values())


def install(site: Path) -> None:
    info = site / "crooked-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crooked\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[broker.providers]\ncrooked = crooked_adapter:Crooked\n")
    (site / "crooked_adapter.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
