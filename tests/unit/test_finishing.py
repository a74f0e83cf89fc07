"""Decisions for tasks that say how much work there is: the cost of finishing decides, and its parts are told."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import NoCapacity
from broker.offer import Market, Offer, OfferQuery
from broker.outlook import planned, wish_of
from broker.policy import Decision, Kind, Memory, Wish, choose
from broker.policy.cost import Prospect
from broker.policy.decision import clock
from broker.policy.hazard import Experience
from broker.task import Checkpoint, Resources, Task, Work

NOW = 1_790_000_000.0  # a Monday
H100 = (OfferQuery(gpu="H100", gpu_count=1),)


def offer(zone: str, price: float, market: Market = Market.SPOT, **more: Any) -> Offer:
    return Offer("vast", zone, "", "m", market, price, **{"gpu": "H100", "gpu_count": 1, **more})


def decide(offers: list[Offer], prospect: Prospect | None, memory: Memory | None = None, **more: Any) -> Decision:
    return choose(offers, wish=Wish(H100, prospect=prospect), memory=memory or Memory(), now=NOW, **more)


def finishing(decision: Decision, index: int = 0) -> float:
    cost = decision.ranked[index].finish
    assert cost is not None
    return cost.per_hour_of_progress


@pytest.mark.parametrize(("lost", "first", "hourly"), [(0.25, Market.SPOT, 1.465), (1.0, Market.ON_DEMAND, 1.49)])
def test_what_is_lost_with_a_machine_decides_between_spot_and_on_demand(
    lost: float, first: Market, hourly: float
) -> None:
    offers = [offer("a", 1.45), offer("a", 1.49, Market.ON_DEMAND)]
    decision = decide(offers, Prospect(48, lost=lost, restarts={"vast": 0.0}))
    assert decision.offer is not None
    assert decision.offer.market is first
    assert finishing(decision) == pytest.approx(hourly, abs=2e-3)
    # by price per hour alone spot would have been taken either way
    assert decide(offers, Prospect(None)).offer == offers[0]


def case() -> list[Offer]:
    """Three hosts: one charges for data, one is a little dearer per hour, one ends in 50 minutes."""
    data = {"download_per_gib": 0.02, "upload_per_gib": 0.02}
    return [
        offer("1", 0.31, Market.ON_DEMAND, extra=data, ends_at=NOW + 2_592_000),
        offer("2", 0.36, Market.ON_DEMAND, ends_at=NOW + 2_592_000),
        offer("3", 0.20, Market.ON_DEMAND, ends_at=NOW + 3000),
    ]


def test_data_and_the_end_of_a_host_count() -> None:
    prospect = Prospect(10, restarts={"vast": 0.0}, download=400, upload=50)
    decision = decide(case(), prospect)
    assert [(c.offer.region, round(c.finish.total, 2)) for c in decision.ranked if c.finish] == [
        ("2", 3.60),
        ("1", 12.10),
    ]
    (entry,) = decision.rejected
    assert (entry.kind, entry.reason) == (
        Kind.ENDING,
        f"its host ends at {clock(NOW + 3000)}, before the work is done",
    )


def test_a_host_that_ends_early_is_taken_knowingly_where_nothing_else_fits() -> None:
    decision = decide(case()[2:], Prospect(10))
    assert decision.offer == case()[2]
    assert decision.reasons[0].endswith(f"; ends {clock(NOW + 3000)}, migration planned")
    unknown = decide([replace(offer("a", 1.0, ends_at=NOW + 3000), fetched_at=NOW)], Prospect())
    assert unknown.reasons[0].endswith(f"; ends {clock(NOW + 3000)}, and how long the work takes is not known")
    assert decide(case()[2:], Prospect(0.5)).reasons[0].endswith("USD/h")


def test_a_host_that_lasts_some_days_competes_with_its_end_counted() -> None:
    cheap = offer("a", 0.20, Market.ON_DEMAND, ends_at=NOW + 5 * 86_400)
    lasting = offer("b", 0.36, Market.ON_DEMAND)
    decision = decide([lasting, cheap], Prospect(240))
    assert decision.offer == cheap
    best = decision.ranked[0].finish
    assert best is not None
    assert best.later == pytest.approx((240 - 120 + 5 / 60 + 0.25 + 5 / 60) * 0.36, rel=1e-3)
    assert "after its host's end" in decision.reasons[2]
    hardly = replace(cheap, price=0.3597)
    assert decide([lasting, hardly], Prospect(240)).offer == lasting


def test_the_reasons_show_the_parts_in_one_line() -> None:
    decision = decide([offer("a", 1.0, disk_price=0.1, interruption=0.05), offer("b", 2.0)], Prospect(20))
    assert decision.reasons[1].startswith("next best of 2: spot in vast/b at 2.0000, 40.7181 to finish")
    assert decision.reasons[2] == (
        "ranked by the cost of finishing 20 h of work, 22.4622 expected here (machine 20.00 + disk 2.00 + "
        "work done again 0.2773 + starting 0.1849): 1.1231 per hour of progress, 5 % an hour to be taken back"
    )


def test_without_work_the_price_per_hour_ranks_and_that_is_said_once() -> None:
    decision = decide([offer("a", 1.45), offer("a", 1.49, Market.ON_DEMAND)], Prospect(None))
    said = [reason for reason in decision.reasons if "does not say how much work" in reason]
    assert said == ["ranked by price per hour: the task does not say how much work there is (work: {hours: 6})"]
    assert all("finish" not in entry for entry in decision.to_json()["ranked"])


def test_experience_moves_the_ranking() -> None:
    good, bad = offer("good", 1.005), offer("bad", 1.0)
    seen = Experience()
    for day in range(4):
        at = NOW - (10 - day) * 86_400
        seen = seen.ran(bad, at, at + 3 * 3600, lost=True).ran(good, at, at + 86_000, lost=False)
    assert decide([good, bad], Prospect(10)).offer == bad
    assert decide([good, bad], Prospect(10), experience=seen).offer == good


def test_the_record_has_the_parts_and_is_plain() -> None:
    prospect = Prospect(10)
    record = json.loads(json.dumps(decide(case(), prospect).to_json()))
    finish = record["ranked"][0]["finish"]
    assert finish["total"] == pytest.approx(finish["machine"] + finish["restarts"])
    assert decide(list(reversed(case())), prospect).to_json() == decide(case(), prospect).to_json()


def test_what_cools_down_stays_out_and_order_goes_before_cost() -> None:
    first, second = offer("a", 1.0), offer("b", 2.0)
    memory = Memory().refused(first, NoCapacity("none"), NOW)
    assert decide([first, second], Prospect(5), memory).offer == second
    slow = replace(second, gpu="A100")
    wish = Wish((OfferQuery(gpu="A100", gpu_count=1), *H100), ordered=True, prospect=Prospect(5))
    decision = choose([first, slow], wish=wish, memory=Memory(), now=NOW)
    assert decision.offer == slow
    assert decision.reasons[-1].startswith("number 1 of 2 in the task's order")


def test_the_prospect_of_a_task() -> None:
    task = Task(
        name="t", run="true", resources=(Resources(cpus=1),), checkpoint=Checkpoint("c", every=1200), work=Work(hours=6)
    )
    assert wish_of(task).prospect == Prospect(6, lost=1 / 6)
    assert wish_of(replace(task, checkpoint=Checkpoint("c"))).prospect == Prospect(6, lost=0.25)
    assert wish_of(replace(task, checkpoint=None, spot="never")).prospect == Prospect(6, lost=3)
    assert wish_of(replace(task, work=Work(steps=3))).prospect == Prospect(None, lost=1 / 6)
    moved = Work(hours=6, download=400, upload=50)
    assert wish_of(replace(task, work=moved)).prospect == Prospect(6, lost=1 / 6, download=400, upload=50)


def test_a_simulated_machine_starts_at_once() -> None:
    rented, here = offer("a", 1.0, interruption=0.0), offer("a", 1.0, interruption=0.0, simulated=True)
    assert finishing(decide([rented], Prospect(1))) == pytest.approx(1 + 5 / 60)
    assert finishing(decide([here], Prospect(1))) == pytest.approx(1.0)


def test_the_order_is_that_of_the_figures_shown() -> None:
    cards = ("H100", "H100-SXM", "H100-PCIe")
    offers = [
        offer(
            f"r{i % 7}", 1 + i * 37 % 101 / 50, Market.SPOT if i % 3 else Market.ON_DEMAND, disk_price=i % 5 / 10,
            gpu=cards[i % 3], interruption=(i % 11) / 50 if i % 2 else None, simulated=i % 13 == 0,
            ends_at=NOW + i * 7200 if i % 4 == 0 else None, extra={"download_per_gib": 0.01} if i % 5 == 0 else {},
        )
        for i in range(200)
    ]  # fmt: skip
    offers = [replace(each, instance_type=f"m{index}") for index, each in enumerate(offers)]
    for prospect in (Prospect(30), Prospect(30, download=10), Prospect(30, speed={"H100-SXM": 1.5})):
        totals = [c.finish.total for c in decide(offers, prospect).ranked if c.finish]
        assert len(totals) > 100
        assert totals == pytest.approx(sorted(totals))


def test_a_hundred_thousand_offers_by_the_cost_of_finishing() -> None:
    offers = [
        offer(
            f"r{i % 30}", 1 + i % 977 / 100, Market.SPOT if i % 2 else Market.ON_DEMAND,
            ends_at=NOW + (i % 60) * 86_400 if i % 3 else None,
        )
        for i in range(100_000)
    ]  # fmt: skip
    start = time.process_time()
    decision = decide(offers, Prospect(100))
    assert time.process_time() - start < 3.0
    assert decision.offer is not None


def test_the_image_is_downloaded_by_every_machine() -> None:
    """3.3 GB of the default one; nothing is known of another, and a machine image boots."""
    plain = Task(name="t", run="true", work=Work(hours=10), checkpoint=Checkpoint("c"))
    found = planned(plain, "file:///h", {}, None, NOW).wish.prospect
    assert found is not None
    assert found.image == pytest.approx(3.3e9 / 2**30)
    host = offer("a", 1.0, Market.ON_DEMAND, extra={"download_per_gib": 0.02})
    assert found.cost(host, 0.0, NOW).download == pytest.approx(0.02 * 3.3e9 / 2**30)
    for image in ("docker:me/mine:1", "ami-0123456789abcdef0"):
        named = planned(replace(plain, resources=(Resources(image=image),)), "file:///h", {}, None, NOW).wish.prospect
        assert named is not None
        assert named.image == 0
