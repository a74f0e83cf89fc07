"""Contracts as Vast lists them: every page, every word for a state, why one rests, and what it all cost."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds.vast.limits import PER_PERIOD, THRESHOLDS
from clouds.vast.stage import QUERY, Stage

from broker.contract import wrap
from broker.errors import AuthFailed, ProviderUnavailable, RateLimited
from broker.offer import Market
from broker.provider import Cause, Instance, State
from broker.testing.conformance import request_for
from broker_vast import VastProvider

LIST = "GET /api/v1/instances/"


@pytest.fixture
def vast(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def rent(vast: Stage, market: Market = Market.SPOT, **host: Any) -> Instance:
    vast.account.hosts.clear()
    vast.host(**host)
    return vast.provider().launch(request_for(vast.offer(market)))


def seen(vast: Stage) -> Instance:
    (instance,) = vast.provider().instances()
    return instance


def fill(vast: Stage, count: int) -> None:
    """So many contracts of ours, made behind the API's back."""
    host = vast.host(parts=count)
    for number in range(count):
        vast.account.rent(host, {"label": f"spotbroker:i:job-{number}:1", "image": "i", "price": 0.3})


# The list


@pytest.mark.parametrize("count", [0, 1, 24, 25, 26, 75])
def test_all_pages_or_none(vast: Stage, count: int) -> None:
    fill(vast, count)
    vast.account.rent(vast.host(), {"label": "somebody's own", "image": "i"})
    found = vast.provider().instances()
    assert sorted(instance.job for instance in found) == sorted(f"job-{n}" for n in range(count))
    assert vast.server.calls[LIST] == count // 25 + 1
    assert vast.server.calls["GET /api/v0/instances/{id}/"] == 0
    vast.server.calls.clear()
    vast.server.lies.broken[LIST] = [*[""] * (count // 25), "502"]
    with pytest.raises(ProviderUnavailable):
        vast.provider().instances()


@pytest.mark.parametrize("how", ["500", "null", "text", "cut", "html", "hang up"])
def test_a_list_without_an_answer_is_no_empty_list(vast: Stage, how: str) -> None:
    rent(vast)
    vast.server.lies.broken[LIST] = [how]
    with pytest.raises(ProviderUnavailable):
        vast.provider().instances()


def test_a_list_that_is_shorter_than_it_says_is_none(vast: Stage) -> None:
    fill(vast, 3)
    vast.server.lies.total = 4
    with pytest.raises(ProviderUnavailable, match="3 of 4"):
        vast.provider().instances()


def test_pages_that_do_not_end_are_no_list(vast: Stage) -> None:
    fill(vast, 30)
    vast.server.lies.same_token = True
    with pytest.raises(ProviderUnavailable, match="do not end"):
        vast.provider().instances()


def test_pages_that_lead_back_to_the_first_are_no_list(vast: Stage) -> None:
    fill(vast, 60)
    vast.server.lies.round = True
    with pytest.raises(ProviderUnavailable, match="do not end"):
        vast.provider().instances()


def test_too_often_told_with_status_200_is_asked_again(vast: Stage) -> None:
    rent(vast)
    vast.server.lies.broken[LIST] = ["often"]
    with pytest.raises(RateLimited):
        vast.provider().instances()


def test_what_others_have_in_the_account_is_in_nobodys_way(vast: Stage) -> None:
    """Other installations, other programs, and labels of every kind."""
    mine = rent(vast)
    host = vast.host(parts=9)
    for label in (
        None,
        "",
        "spotbroker",
        "spotbroker:i:j:x",
        "spotbroker:a:b:1:2",
        "x" * 300,
        "spotbroker:other:job:1",
    ):
        vast.account.rent(host, {"label": label, "image": "i"})
    found = {instance.installation: instance.id for instance in vast.provider().instances()}
    assert found == {mine.installation: mine.id, "other": found["other"]}


def test_a_wrong_key_lists_nothing(vast: Stage) -> None:
    rent(vast)
    with pytest.raises(AuthFailed):
        vast.provider(key="vast-WRONG").instances()


def test_the_list_of_another_account_ends_no_machine(vast: Stage) -> None:
    """Nor does its key end one: what the first account rented stays listed, and known, until that account says more."""
    instance = rent(vast)
    with Stage(vast.state) as other:
        other.account.number = 4712
        stranger = other.provider()
        (still,) = stranger.instances()
        assert (still.id, still.state, still.tags) == (instance.id, State.RUNNING, instance.tags)
        with pytest.raises(AuthFailed, match="another account") as caught:
            stranger.terminate(still)
        (told,) = [finding for finding in stranger.check() if instance.id in finding.what]
        assert (told.ok, "may go on being billed" in told.found) == (False, True)
        assert str(vast.state / "vast" / "rented" / instance.id) in caught.value.fix
    assert list(vast.account.contracts) == [int(instance.id)]
    vast.provider().terminate(instance)
    assert not vast.account.contracts
    assert not vast.provider().instances()


def test_a_new_key_of_the_account_tells_what_is_gone(vast: Stage) -> None:
    instance = rent(vast)
    vast.account.key = "vast-EXAMPLE-renewed"
    vast.account.destroy(vast.account.contracts[int(instance.id)])
    assert vast.provider().instances() == []


# States


@pytest.mark.parametrize(
    ("words", "state", "cause"),
    [
        ({"actual_status": None}, State.PENDING, None),
        ({"actual_status": "created"}, State.PENDING, None),
        ({"actual_status": "loading", "status_msg": "pulling"}, State.PENDING, None),
        ({"actual_status": "running"}, State.RUNNING, None),
        ({"actual_status": "rebooting"}, State.RUNNING, None),
        ({"actual_status": "frozen"}, State.RUNNING, None),
        ({"actual_status": "unknown"}, State.RUNNING, None),
        ({"actual_status": "offline"}, State.RUNNING, None),
        ({"actual_status": "some new word"}, State.RUNNING, None),
        ({"actual_status": "exited"}, State.STOPPED, Cause.FAILED),
        ({"actual_status": "created", "status_msg": "x: OCI runtime create failed: y"}, State.STOPPED, Cause.FAILED),
        ({"actual_status": "loading", "status_msg": "Error response from daemon: z"}, State.STOPPED, Cause.FAILED),
        ({"actual_status": "stopped"}, State.STOPPED, None),
        ({"actual_status": "stopped", "cur_state": "stopped"}, State.STOPPED, Cause.PREEMPTED),
        ({"actual_status": "exited", "cur_state": "stopped"}, State.STOPPED, Cause.PREEMPTED),
        ({"actual_status": None, "cur_state": "stopped"}, State.PENDING, None),
        ({"cur_state": "unloaded", "actual_status": None}, State.TERMINATED, None),
        (
            {"actual_status": "running", "cur_state": "stopped", "next_state": "stopped", "intended_status": "stopped"},
            State.STOPPED,
            Cause.PREEMPTED,
        ),
        (
            {"actual_status": "running", "next_state": "stopped"},
            State.RUNNING,
            None,
        ),
    ],
)
def test_every_word_for_a_state(vast: Stage, words: dict[str, Any], state: State, cause: Cause | None) -> None:
    rent(vast)
    (contract,) = vast.account.contracts.values()
    contract.frozen_words = words
    assert (seen(vast).state, seen(vast).cause) == (state, cause)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"actual_status": "loading", "status_msg": " Error response from daemon: pull access denied for me/private\n"},
         "Error response from daemon: pull access denied for me/private"),
        ({"actual_status": "exited", "status_msg": None}, "its container has ended"),
        ({"actual_status": "exited", "status_msg": "x" * 999}, "x" * 300),
        ({"actual_status": "running", "status_msg": "success"}, ""),
        ({"actual_status": "stopped", "cur_state": "stopped"}, ""),
    ],
)  # fmt: skip
def test_why_a_contract_failed_is_told_in_vasts_words(vast: Stage, words: dict[str, Any], told: str) -> None:
    rent(vast)
    (contract,) = vast.account.contracts.values()
    contract.frozen_words = words
    assert seen(vast).word == told
    contract.frozen_words = {}
    vast.account.credit = 0.0
    assert seen(vast).word == "the account has no credit left"


@pytest.mark.parametrize(
    ("market", "what", "cause"),
    [
        (Market.SPOT, "outbid", Cause.PREEMPTED),
        (Market.SPOT, "credit", Cause.FAILED),
        (Market.SPOT, "end", Cause.PREEMPTED),
        (Market.ON_DEMAND, "end", Cause.PREEMPTED),
        (Market.ON_DEMAND, "credit", Cause.FAILED),
        (Market.ON_DEMAND, "console", Cause.USER),
        # No field tells this one from an outbid (see the README); the job goes on elsewhere.
        (Market.SPOT, "console", Cause.PREEMPTED),
    ],
)
def test_why_it_rests(vast: Stage, market: Market, what: str, cause: Cause) -> None:
    rent(vast, market)
    (contract,) = vast.account.contracts.values()
    if what == "outbid":
        vast.account.outbid(contract)
    elif what == "credit":
        vast.account.credit = 0.0
    elif what == "end":
        contract.end_date = time.time() - 1
    else:
        vast.account.set_running(contract, wants=False)
    assert (seen(vast).state, seen(vast).cause) == (State.STOPPED, cause)


def test_unknown_credit_is_no_cause(vast: Stage) -> None:
    rent(vast)
    (contract,) = vast.account.contracts.values()
    vast.account.outbid(contract)
    vast.server.lies.broken["GET /api/v0/users/current/"] = ["502"]
    assert seen(vast).cause is None
    assert seen(vast).cause is Cause.PREEMPTED


def test_credit_is_asked_once_and_only_where_it_decides(vast: Stage) -> None:
    fill(vast, 5)
    assert len(vast.provider().instances()) == 5
    assert vast.server.calls["GET /api/v0/users/current/"] == 0
    for contract in vast.account.contracts.values():
        vast.account.outbid(contract)
    assert all(instance.cause is Cause.PREEMPTED for instance in vast.provider().instances())
    assert vast.server.calls["GET /api/v0/users/current/"] == 1


def test_outbid_then_resumed(vast: Stage) -> None:
    instance = rent(vast)
    contract = vast.account.contracts[int(instance.id)]
    vast.account.outbid(contract, 0.35)
    assert seen(vast).state is State.STOPPED
    vast.account.leave(contract.host)
    assert (seen(vast).state, seen(vast).cause) == (State.RUNNING, None)


def test_our_own_end_is_told_from_an_outbid(vast: Stage) -> None:
    instance = rent(vast)
    contract = vast.account.contracts[int(instance.id)]
    vast.server.lies.keep = True  # accepted, and still listed for a while
    vast.provider().terminate(instance)
    assert (seen(vast).state, seen(vast).cause) == (State.STOPPING, Cause.BROKER)
    vast.account.outbid(contract)
    assert (seen(vast).state, seen(vast).cause) == (State.STOPPING, Cause.BROKER)
    contract.frozen_words = {"cur_state": "unloaded"}
    end = seen(vast)
    assert (end.state, end.cause) == (State.TERMINATED, Cause.BROKER)
    assert end.ended_at is not None
    assert end.ended_at >= (end.launched_at or 0)


def test_a_contract_that_somebody_ended_ends_no_later_than_now(vast: Stage) -> None:
    """Its `end_date` is that of the host's offer, weeks ahead: what was spent does not run on until then."""
    rent(vast)
    (contract,) = vast.account.contracts.values()
    contract.frozen_words = {"cur_state": "unloaded"}
    assert (seen(vast).state, seen(vast).ended_at) == (State.TERMINATED, None)
    contract.end_date = contract.made + 0.001
    assert seen(vast).ended_at == contract.end_date


def test_a_number_that_comes_again_is_a_contract_of_its_own(vast: Stage) -> None:
    first = rent(vast)
    vast.provider().terminate(first)
    vast.account._numbers = itertools.count(int(first.id))
    again = rent(vast)
    assert again.id == first.id
    assert (again.state, seen(vast).state) == (State.RUNNING, State.RUNNING)


@pytest.mark.parametrize("how", ["file", "nonsense"])
def test_records_that_cannot_be_read_end_nothing(vast: Stage, how: str) -> None:
    vast.host()
    offer = vast.offer()
    folder = vast.state / "vast"
    if how == "file":
        shutil.rmtree(folder)
        folder.write_text("in the way")
    assert vast.provider().launch(request_for(offer)).state is State.RUNNING
    assert seen(vast).state is State.RUNNING
    if how == "nonsense":
        vast.provider().terminate(seen(vast))
        (path,) = (folder / "destroyed").iterdir()
        path.write_text("nonsense")
        assert vast.provider().records.noted(path.name) == pytest.approx(time.time(), abs=30)


def test_records_of_what_we_ended_do_not_pile_up(vast: Stage) -> None:
    instance = rent(vast)
    vast.provider().terminate(instance)
    folder = vast.state / "vast" / "destroyed"
    assert [path.name for path in folder.iterdir()] == [instance.id]
    vast.provider().instances()
    assert [path.name for path in folder.iterdir()] == [instance.id]
    os.utime(folder / instance.id, (1, 1))
    vast.provider().instances()
    assert not list(folder.iterdir())


def test_an_end_that_is_refused_is_no_end(vast: Stage) -> None:
    instance = rent(vast)
    vast.server.lies.broken["DELETE /api/v0/instances/{id}/"] = ["502"]
    with pytest.raises(ProviderUnavailable):
        vast.provider().terminate(instance)
    assert seen(vast).alive
    vast.provider().terminate(instance)
    assert not vast.provider().instances()


def test_a_host_that_disappears_is_not_called_an_end(vast: Stage) -> None:
    instance = rent(vast)
    vast.account.vanish(vast.account.contracts[int(instance.id)].host)
    assert (seen(vast).state, seen(vast).cause) == (State.RUNNING, None)
    vast.provider().terminate(instance)
    assert not vast.provider().instances()


# Money


def test_ledger(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    with Stage(tmp_path, clock=lambda: now[0]) as vast:
        vast.host(dph=0.6, min_bid=0.2, storage_cost=0.73)
        for host in vast.account.hosts.values():
            host.since = now[0]
        account = vast.account
        instance = vast.provider().launch(request_for(vast.offer()))
        contract = account.contracts[int(instance.id)]
        assert instance.hourly == pytest.approx(0.21 + 20 * 0.001)
        now[0] += 3600.0
        assert account.spent() == pytest.approx(instance.hourly)
        account.outbid(contract, 0.3)
        now[0] += 1800.0  # stopped: its disk only
        assert account.spent() == pytest.approx(instance.hourly + 0.01)
        vast.provider().terminate(instance)
        now[0] += 3600.0
        assert account.spent() == pytest.approx(instance.hourly + 0.01)
        assert account.credit == pytest.approx(25.0 - instance.hourly - 0.01)


# Limits


def test_within_every_documented_limit(tmp_path: Path) -> None:
    """Two processes' adapters over one state folder; the times are counted from before the first call on, so that no
    delay on the way makes one look too early.
    """
    pace = 0.04
    with Stage(tmp_path) as vast:
        vast.host(parts=50)
        began = time.monotonic()
        one, other = (vast.provider(pace=pace) for _ in range(2))
        for _ in range(3):
            for provider in (one, other):
                offer = next(offer for offer in provider.offers(QUERY) if offer.market is Market.ON_DEMAND)
                instance = provider.launch(request_for(offer))
                provider.instances()
                provider.terminate(instance)
        assert vast.server.calls["PUT /api/v0/asks/{id}/"] == 6
        limits = {endpoint: (1, seconds) for endpoint, seconds in THRESHOLDS.items()} | PER_PERIOD
        undocumented = {"GET /api/v0/gpu_names/unique/", "GET /api/v0/users/current/"}
        assert limits.keys() >= vast.server.calls.keys() - undocumented
        for endpoint in vast.server.calls.keys() - undocumented:
            calls, seconds = limits[endpoint]
            for number, at in enumerate(vast.server.limits.heard[endpoint]):
                assert at - began >= number // calls * seconds * pace, (endpoint, number)


def test_the_server_does_refuse_who_calls_too_often(tmp_path: Path) -> None:
    with Stage(tmp_path, scale=60.0) as vast:
        vast.provider().instances()
        with pytest.raises(RateLimited):
            vast.provider().instances()
        assert vast.server.limits.refused == 1


@pytest.mark.parametrize(
    ("form", "header", "least", "most"),
    [("text", None, 5.0, 5.0), ("text", 1, 1.0, 10.0), ("threshold", None, 10.2, 10.2), ("detail", None, 10.2, 10.2),
     ("json", 1, 10.2, 10.2), ("json", 30, 30.0, 30.0), ("text", 30, 30.0, 30.0)],
)  # fmt: skip
def test_a_429_in_every_form(tmp_path: Path, form: str, header: int | None, least: float, most: float) -> None:
    with Stage(tmp_path, scale=10.0) as vast:
        vast.server.limits.form, vast.server.limits.retry_after = form, header
        vast.provider().instances()
        with pytest.raises(RateLimited) as caught:
            vast.provider().instances()
        assert least <= caught.value.retry_after <= most


def test_a_429_is_waited_for_by_the_contract_around_it(tmp_path: Path) -> None:
    with Stage(tmp_path, scale=2.0) as vast:
        vast.server.limits.form = "threshold"
        rented = wrap(vast.provider(), {"patience": 10.0})
        assert rented.instances() == []
        assert rented.instances() == []
        assert vast.server.limits.refused >= 1


def test_another_process_keeps_the_same_intervals(tmp_path: Path) -> None:
    with Stage(tmp_path) as vast:
        vast.provider(pace=0.2).instances()
        began = time.monotonic()
        vast.provider(pace=0.2).instances()
        assert time.monotonic() - began > 0.1


def test_traits_say_what_vast_is() -> None:
    traits = VastProvider.traits
    assert (traits.notice, traits.token, traits.simulated) == (None, False, False)
    assert traits.user_data_limit <= 4096
