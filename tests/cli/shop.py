"""Third-party providers, installed as any: `shop` is a marketplace with a key, `plain` has nothing optional."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import AuthFailed, ProviderUnavailable
from broker.keys import find
from broker.offer import Offer, OfferQuery, Trust
from broker.provider import Finding, Instance
from broker.testing import FakeProvider, sample_offers

if TYPE_CHECKING:
    from cli.command import Cli

KEY = "good-key-EXAMPLE"
MAKE_KEY = "keys are made at https://shop.example/keys"


class Plain(FakeProvider):
    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        super().__init__(settings, state, name="plain")

    def offers(self, query: OfferQuery) -> list[Offer]:
        if self.settings.get("down"):
            raise ProviderUnavailable("plain did not answer: connection refused", provider="plain")
        return super().offers(query)


class Shop(FakeProvider):
    """Its prices are public; its hosts are anybody's, but for region `r2`, a data centre. A good key begins so."""

    how_to_key = MAKE_KEY
    traits = replace(FakeProvider.traits, simulated=False)

    def __init__(self, settings: Mapping[str, Any], state: Path) -> None:
        stock = [
            replace(offer, simulated=False, trust=Trust.COMMUNITY if offer.region == "r2" else Trust.DATACENTER)
            for offer in sample_offers("shop")
        ]
        super().__init__(settings, state, name="shop", stock=stock)
        self.key = find("shop", settings, state, variable="SHOP_API_KEY")

    def offers(self, query: OfferQuery) -> list[Offer]:
        blocked = "" if self.key else f"no key yet: {MAKE_KEY}; `broker check shop` takes one"
        return [replace(offer, blocked=blocked) for offer in super().offers(query)]

    def instances(self) -> Sequence[Instance]:
        if self.key is None:
            raise AuthFailed("there is no key for shop", provider="shop", code="no key", fix=MAKE_KEY)
        if not self.key.value.startswith("good"):
            raise AuthFailed("shop does not know this key", provider="shop", code="401")
        return super().instances()

    def check(self) -> Sequence[Finding]:
        return [Finding("key", True, "works"), Finding("quota", True, "4 machines at once")]

    def balance(self) -> float:
        return float(self.settings.get("balance", 20.0))


def install(site: Path) -> None:
    """Put both into a folder that is on the path, as a distribution of its own."""
    info = site / "shop-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[broker.providers]\nshop = shop_adapter:Shop\nplain = shop_adapter:Plain\n")
    (site / "shop_adapter.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")


def given(cli: Cli, key: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`broker check ARGS` with a key on its stdin."""
    process = cli.start("check", *args, "--key-stdin", stdin=subprocess.PIPE)
    out, err = process.communicate(f"{key}\n", timeout=60)
    return subprocess.CompletedProcess(args, process.returncode, out, err)
