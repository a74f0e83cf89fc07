"""`VastProvider`: the provider contract over Vast's contracts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker import images, keys
from broker.accounts import Accounts
from broker.boot import start_command
from broker.errors import (
    Ambiguous,
    AuthFailed,
    BrokerError,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    ProviderUnavailable,
)
from broker.offer import Market, Offer, OfferQuery
from broker.provider import Finding, Instance, Kind, LaunchRequest, Notice, PartialOffers, Traits
from broker_vast import contract, label, offers, settings
from broker_vast.api import HOW_TO_KEY, NAME, Stillborn, Vast
from broker_vast.records import Records

ARGUMENTS = 4096  # characters of onstart and args together; PUT /asks/{id}
USER_DATA_LIMIT = ARGUMENTS - len("".join(start_command("")))
POLL = 10.0  # seconds between two looks at the list; ten times what Vast allows to a list of one page
NAMES_FRESH = 86_400.0  # seconds for which the names of the cards are good
# Seconds for which one search answers all jobs that ask the same: Vast takes ten a minute from one address.
SEARCH_FRESH = 15.0
NO_KEY = f"no key yet: {HOW_TO_KEY}"


class VastProvider:
    """Contracts of one Vast account. Which of them we have destroyed is kept in the state folder, nothing in memory."""

    name = NAME
    traits = Traits(
        token=False,
        list_lag=15.0,
        poll=POLL,
        boot_limit=1800.0,  # a host's own line brings the image; that time costs its disk only
        notice=None,
        outside_limit="the end of the host's offer",
        kind=Kind.CONTAINER,
        user_data_limit=USER_DATA_LIMIT,
        no_shell="Vast puts SSH into a machine only in the place of what is to be its first process, and that is ours",
    )

    how_to_key = HOW_TO_KEY

    def __init__(self, table: Mapping[str, Any], state: Path) -> None:
        """table: `[providers.vast]`; state: the installation's folder. Raises ConfigError that names the setting."""
        self.settings = settings.read(table)
        self.key = keys.find(NAME, table, state, variable="VAST_API_KEY")
        self.records = Records(state / NAME)
        self.traits = replace(type(self).traits, poll=max(1.0, POLL * self.settings.pace))
        self.vast = Vast(self.settings.api, self.key, state, pace=self.settings.pace)
        self.accounts = Accounts(state / NAME, self.key, lambda: str(self.vast.account().get("id") or ""))

    def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """What hosts offer with so many of these cards, by bid and on-demand, as an `OfferList` that says what the
        settings left out. Needs no key: without one the offers are blocked. A task without a card gets nothing here.
        """
        if not query.gpu_count or images.fits(Kind.CONTAINER, query.image):
            return []
        try:
            return self._searched(query)
        except ProviderUnavailable as error:
            if self.key is not None:
                raise
            # Without a key it is a look into a shop window, which must not keep anybody waiting: not asked again.
            raise ProviderError(error.message, provider=NAME, code=error.code) from error

    def _searched(self, query: OfferQuery) -> Sequence[Offer]:
        names = self._names(query)
        if names == []:
            return []
        found: dict[Market, list[dict[str, Any]]] = {}
        failures: dict[str, Exception] = {}
        for market in query.markets:
            try:
                found[market] = self._search(offers.search_body(query, market, names))
            except ProviderError as error:
                failures[f"{NAME}/{offers.TYPES[market]}"] = error
        if failures and not found:
            raise next(iter(failures.values()))
        blocked = "" if self.key is not None else NO_KEY
        read = offers.read(found, query, self.settings, blocked=blocked, now=time.time())
        if failures:
            raise PartialOffers(read, failures)
        return read

    def launch(self, request: LaunchRequest) -> Instance:
        """Rent the offer and read back what was rented: that is what is returned, also where it is another market.

        NoCapacity where the offer is gone or the bid does not win; what such a call leaves behind is destroyed first.
        Ambiguous where a contract was made but cannot be read: it is listed under its label.
        """
        body = self._body(request)
        try:
            made = self.vast.create(int(request.offer.extra["ask"]), body)
            self.records.made(made)
        except Stillborn as error:
            self._bury(error.contract)
            raise NoCapacity(error.message, provider=NAME, code=error.code) from error
        try:
            row = self.vast.show(made)
        except ProviderError as error:
            raise Ambiguous(f"contract {made} was made and cannot be read: {error}", provider=NAME) from error
        if row is None:
            raise Ambiguous(f"contract {made} was made and is not shown yet", provider=NAME, code="no instance")
        kept = row.get("label") or body["label"]
        instance = self._instance({**row, "label": kept})
        if instance is None or (instance.installation, instance.job, instance.generation) != label.whose(request.tags):
            # Nobody would find it in the list, or it would be taken for another job's.
            self._bury(made)
            raise InvalidRequest(
                f"Vast keeps the label {body['label']!r} as {kept!r}, by which {made} would not be found again",
                provider=NAME,
                code="label",
            )
        if contract.at_rest(row):
            self._bury(made)
            raise NoCapacity(
                f"contract {made} was made in a stopped state: the bid does not win", provider=NAME, code="stopped"
            )
        priced = instance if instance.hourly > 0 else replace(instance, hourly=_expected(request, instance, body))
        return self.accounts.rented(priced)

    def instances(self) -> Sequence[Instance]:
        """Every contract with our label, a call for 25; the credit is asked for where one rests that we did not end."""
        rows = self.vast.contracts()
        self.records.forget({str(row["id"]) for row in rows})
        credit: list[bool | None] = []

        def paid() -> bool | None:
            if not credit:
                try:
                    credit.append(self.vast.credit() > 0)
                except ProviderError:
                    credit.append(None)
            return credit[0]

        found = (self._instance(row, paid) for row in rows)
        return self.accounts.listed(instance for instance in found if instance is not None)

    def terminate(self, instance: Instance) -> None:
        """Destroy the contract and its disk. An unknown id is success; ids of Vast are numbers."""
        if instance.id.isascii() and instance.id.isdigit():
            self.accounts.reach(instance)
            self.records.note(instance.id)
            self.vast.destroy(instance.id)
            self.accounts.ended(instance)

    def notice(self, instance: Instance) -> Notice | None:  # noqa: ARG002 - the contract's argument
        """Always None: Vast gives none."""
        return None

    def change_bid(self, instance: Instance, bid: float) -> None:
        """Bid anew, USD per hour of the whole machine without its disk. An outbid contract whose bid wins resumes."""
        _bounds(bid)
        self.vast.change_bid(instance.id, bid)

    def balance(self) -> float:
        """USD of credit. At zero every contract is stopped, and its disk goes on being charged."""
        return self.vast.credit()

    def check(self) -> Sequence[Finding]:
        """The key, whose account it opens, the search; list and balance are looked at besides. Rents nothing."""
        if self.key is None:
            return [Finding("key", ok=False, found="none", fix=HOW_TO_KEY), self._found("search", self._named)]
        return [
            Finding("key", ok=True, found=f"from {self.key.source}"),
            self._found("account", self._owner),
            self._found("search", self._named),
            *self.accounts.findings(),
        ]

    def _owner(self) -> str:
        account = self.vast.account()
        return f"{account.get('email') or 'without an address'}, number {account.get('id')}"

    def _named(self) -> str:
        return f"{len(self.vast.gpu_names())} kinds of card"

    def _found(self, what: str, look: Callable[[], str]) -> Finding:
        try:
            return Finding(what, ok=True, found=look())
        except BrokerError as error:
            return Finding(what, ok=False, found=error.message, fix=error.fix)

    def _body(self, request: LaunchRequest) -> dict[str, Any]:
        """What is sent to rent. The image's entrypoint is replaced by a shell with our script, so that the guest is
        the first process (runtype `args`; `ssh` and `jupyter` put a process of Vast's own there).
        """
        offer = request.offer
        known = offers.type_of(offer.extra.get("machine"), offer.gpu_count, offer.gpu or "")
        if not isinstance(offer.extra.get("ask"), int) or offer.instance_type != known:
            raise InvalidRequest(f"{offer.key} is no offer of Vast's", provider=NAME, code="no such offer")
        if len(request.user_data.encode()) > USER_DATA_LIMIT:
            raise InvalidRequest(
                f"user data of {len(request.user_data.encode())} bytes; Vast takes {USER_DATA_LIMIT}", provider=NAME
            )
        shell, *arguments = start_command(request.user_data)
        body: dict[str, Any] = {
            "client_id": "me",
            "image": request.container or images.DEFAULT,
            "disk": offers.disk_of(request.disk),
            "label": label.encode(request.tags),
            "runtype": "args",
            "onstart": shell,
            "args": arguments,
            "env": {} if self.settings.api == settings.API else {"VAST_URL": self.settings.api},
            "target_state": "running",
            # Without this an interruptible that cannot start is made all the same, stopped and billed.
            "cancel_unavail": True,
        }
        if offer.market is Market.SPOT:
            # Without a price Vast rents on-demand, at its higher price, and does not say so.
            body["price"] = self._bid(request)
        return body

    def _bid(self, request: LaunchRequest) -> float:
        """What is bid for the whole machine, never above what it costs without a bid."""
        bid = request.offer.price if request.bid is None else request.bid
        on_demand = request.offer.extra.get("on_demand")
        if isinstance(on_demand, int | float) and on_demand > 0:
            bid = min(bid, on_demand)
        _bounds(bid)
        return bid

    def _instance(self, row: Mapping[str, Any], paid: Callable[[], bool | None] = lambda: None) -> Instance | None:
        return contract.instance_of(row, now=time.time(), destroyed_at=self.records.noted(str(row["id"])), paid=paid)

    def _bury(self, made: str) -> None:
        """Destroy what a launch left. Raises Ambiguous where that fails: it is there, under its label, and billed."""
        self.records.note(made)
        try:
            self.vast.destroy(made)
        except ProviderError as error:
            raise Ambiguous(f"contract {made} was made and is not ended yet: {error}", provider=NAME) from error

    def _search(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        whose = self.key.value if self.key is not None else ""
        question = [self.settings.api, hashlib.sha256(whose.encode()).hexdigest(), body]
        rows: list[dict[str, Any]] = self.records.answer(
            question, SEARCH_FRESH * self.settings.pace, lambda: self.vast.search(body)
        )
        return rows

    def _names(self, query: OfferQuery) -> list[str] | None:
        """Vast's names of the cards asked for; None to ask for any: for a wish by memory, and where no names come."""
        if query.gpu is None or offers.by_memory(query.gpu):
            return None
        try:
            known = self.records.answer("gpu_names", NAMES_FRESH, self.vast.gpu_names)
        except ProviderError as error:
            # A service that cannot be reached is not asked for the rest; one that does not know this still searches.
            if isinstance(error, AuthFailed) or error.code.endswith(("Timeout", "Error")):
                raise
            return None
        return offers.spellings(query, known) if known else None


def _expected(request: LaunchRequest, instance: Instance, body: Mapping[str, Any]) -> float:
    """USD per hour of what was rented, disk included, where its row names no price: nothing is booked as free."""
    offer = request.offer
    bid = body.get("price") if instance.market is Market.SPOT else None
    return float(bid or offer.extra.get("on_demand") or offer.price) + offer.disk_price


def _bounds(bid: float) -> None:
    if not offers.LEAST_BID <= bid <= offers.MOST_BID:
        raise InvalidRequest(
            f"a bid of {bid:g} USD per hour; Vast takes {offers.LEAST_BID:g} to {offers.MOST_BID:g}", provider=NAME
        )
