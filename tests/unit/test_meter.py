"""What verifying a provider may cost: counted before it is sent, written down before it is done, always ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker import registry
from broker.config import load
from broker.contract import wrap
from broker.errors import Ambiguous, ConfigError, NoCapacity, ProviderUnavailable
from broker.meter import ENDS_ITSELF, Ledger, Meter, NoMoneyLeft, Tab
from broker.offer import OfferQuery
from broker.provider import State
from broker.redaction import Redactor
from broker.testing import FakeClock, FakeProvider
from broker.testing.conformance import request_for, safe_tests
from broker.verification import Account, Trial, choose, meter_of, verify

CHEAP = OfferQuery()


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def meter(fake: FakeProvider, tmp_path: Path) -> Meter:
    tab = Tab(Ledger(tmp_path / "log"), 1.0, FakeClock())
    return Meter(wrap(fake, {"patience": 0.1}), tab)


def lines(meter: Meter) -> list[str]:
    return [entry["what"] for entry in meter.tab.ledger.entries()]


def test_what_might_cost_more_than_is_left_is_not_sent(meter: Meter, fake: FakeProvider) -> None:
    offer = meter.offers(CHEAP)[0]
    meter.tab.max_usd = 2.5 * meter.worst(offer)
    meter.launch(request_for(offer))
    second = request_for(offer)
    meter.launch(second)
    with pytest.raises(NoMoneyLeft):
        meter.launch(request_for(offer))
    assert meter.launch(second).id, "the same again is the same machine, and costs nothing more"
    assert [call.name for call in fake.calls].count("launch") == 3
    assert not meter.end_all()
    assert meter.launch(request_for(offer)), "what has ended is counted as what it cost"


def test_a_least_time_that_is_billed_counts(meter: Meter) -> None:
    offer = replace(meter.offers(CHEAP)[0], extra={"minimum_hours": 10.0})
    assert meter.worst(offer) == pytest.approx(10 * offer.hourly)
    meter.tab.max_usd = 9 * offer.hourly
    with pytest.raises(NoMoneyLeft):
        meter.launch(request_for(offer))
    meter.tab.max_usd = 11 * offer.hourly
    meter.launch(request_for(offer))
    meter.end_all()
    assert meter.tab.spent == pytest.approx(10 * offer.hourly)


def test_the_intent_is_on_disk_before_the_call(meter: Meter, fake: FakeProvider) -> None:
    seen: list[list[str]] = []
    inner: Callable[..., object] = fake.launch

    class Watching(FakeProvider):
        def launch(self, request: object) -> object:  # type: ignore[override]
            seen.append(lines(meter))
            return inner(request)

    meter.provider = wrap(Watching())
    meter.launch(request_for(meter.offers(CHEAP)[0]))
    assert seen == [["intent"]]
    assert lines(meter) == ["intent", "rented"]


def test_a_machine_ends_itself_where_its_provider_lets_it(meter: Meter, fake: FakeProvider) -> None:
    request = request_for(meter.offers(CHEAP)[0], user_data="#!/bin/sh\nexec sleep 600\n# changed\n")
    meter.launch(request)
    sent = next(call.argument for call in fake.calls if call.name == "launch").user_data
    assert f"why=verify; sleep {ENDS_ITSELF:.0f}; " in sent
    assert sent.endswith("# changed\n"), "two requests that differ still do"


def test_what_may_have_been_rented_is_looked_for_and_ended(meter: Meter, fake: FakeProvider) -> None:
    offer = meter.offers(CHEAP)[0]
    fake.fail("launch", Ambiguous("no answer"), after=True)
    request = request_for(offer)
    with pytest.raises(Ambiguous):
        meter.launch(request)
    assert fake.machines, "it was made after all"
    assert meter.tab.ledger.open_jobs() == {request.job}
    assert not meter.end_all()
    assert not [i for i in fake.machines.values() if i.state is not State.TERMINATED]
    assert not meter.tab.ledger.open_jobs()


def test_a_refusal_for_capacity_leaves_nothing_open(meter: Meter, fake: FakeProvider) -> None:
    fake.fail("launch", NoCapacity("none"))
    with pytest.raises(NoCapacity):
        meter.launch(request_for(meter.offers(CHEAP)[0]))
    assert not meter.tab.ledger.open_jobs()


def test_a_list_that_does_not_come_is_asked_again(meter: Meter, fake: FakeProvider) -> None:
    meter.launch(request_for(meter.offers(CHEAP)[0]))
    told: list[str] = []
    fake.fail("instances", *[ProviderUnavailable("no")] * 3)
    assert not meter.end_all(tell=told.append)
    assert not [i for i in fake.machines.values() if i.alive]


def test_any_wait_sees_when_a_machine_is_first_listed(meter: Meter, fake: FakeProvider) -> None:
    """A test waits for what is surely listed; what is measured is when it was."""
    clock = meter.tab.clock
    assert isinstance(clock, FakeClock)
    meter.tab.sleep = clock.advance
    meter.launch(request_for(meter.offers(CHEAP)[0]))
    fake.fail("instances", *[ProviderUnavailable("no")] * 2)
    assert not Account(meter, lambda: meter).wait(lambda: False, 100.0)
    assert meter.tab.measured["listed after"] == pytest.approx([2 * meter.pause])


def test_other_peoples_machines_are_left_alone(meter: Meter, fake: FakeProvider) -> None:
    request = request_for(meter.offers(CHEAP)[0])
    theirs = fake.launch(replace(request, tags={**request.tags, "spotbroker-installation": "somebody"}, token="t"))
    colleague = fake.launch(request_for(request.offer))
    meter.launch(request_for(request.offer))
    meter.end_all()
    assert fake.machines[theirs.id].alive
    assert fake.machines[colleague.id].alive, "another computer's run"
    meter.end_all(everything=True)
    assert fake.machines[theirs.id].alive
    assert not fake.machines[colleague.id].alive


def test_a_log_that_was_cut_off_is_read_to_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "log")
    assert not ledger.open_jobs()
    ledger.note("intent", "a")
    ledger.note("intent", "b")
    ledger.note("ended", "a")
    with ledger.path.open("a") as file:
        file.write('{"what": "end')
    assert ledger.open_jobs() == {"b"}
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_the_trial_is_the_cheapest_within_the_money(meter: Meter, fake: FakeProvider) -> None:
    assert choose(meter).offer.hourly == min(o.hourly for o in meter.offers(replace(CHEAP, disk=10.0)))
    meter.tab.max_usd = 0.01
    with pytest.raises(ConfigError, match="may cost"):
        choose(meter)
    fake.stock = [replace(offer, blocked="no key yet: get one") for offer in fake.stock]
    with pytest.raises(ConfigError, match="cannot rent yet: no key yet"):
        choose(meter)
    fake.stock = []
    with pytest.raises(ConfigError, match="offers nothing now"):
        choose(meter)


def test_no_safe_test_rents_more_than_it_says(tmp_path: Path) -> None:
    config = load(state=tmp_path, file=tmp_path / "config.toml")
    registry.forget("local")
    meter = meter_of("local", config, 1.0)
    trial = choose(meter)
    for test in safe_tests(many=False):
        number = (test.__doc__ or "").partition(":")[0]
        if number in ("O1", "O2", "O3", "O4", "O5", "T2", "N1", "I2", "L5"):
            continue  # the slower ones of one machine, and those of none
        before = {e["instance"] for e in meter.tab.ledger.entries() if "instance" in e}
        verify(meter, trial, config, lambda verdict: None, only=[number])
        after = {e["instance"] for e in meter.tab.ledger.entries() if "instance" in e}
        assert len(after - before) <= test.machines, number  # type: ignore[attr-defined]
    assert isinstance(trial, Trial)


def test_what_is_private_is_taken_out_and_the_rest_stays() -> None:
    redact = Redactor(["sk-secret-EXAMPLE", "abc"], {"us-east-1", "standard_nc24ads_a100_v4"})
    text = (
        "arn:aws:iam::123456789012:user/me at 10.1.2.3 and 2001:db8::ff00:42:8329, account 123456789012, "
        "i-0abc1234def567890 in us-east-1 standard_nc24ads_a100_v4, key sk-secret-EXAMPLE, me@example.com, "
        "InsufficientInstanceCapacity 503 at 12:30:45 on 2026-12-01, 0.0832 USD/h, abc"
    )
    shown = redact(text)
    private = ("123456789012", "10.1.2.3", "2001:db8", "i-0abc1234def567890", "sk-secret", "example.com", "user/me")
    assert not [word for word in private if word in shown]
    public = ("us-east-1", "standard_nc24ads_a100_v4", "InsufficientInstanceCapacity 503", "12:30:45", "2026-12-01")
    assert not [word for word in public if word not in shown]
    assert "0.0832 USD/h, abc" in shown
    assert redact("i-0abc1234def567890").startswith("<id ")
    assert redact("i-0abc1234def567890") in shown, "the same thing has the same name everywhere"
    assert json.dumps(redact.all({"a": ["10.1.2.3", 5, None]})) == '{"a": ["<address 1>", 5, null]}'
