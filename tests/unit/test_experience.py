"""What an installation sees, keeps and decides by: on SQLite and Postgres, and through the real phases."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.stage import START, Stage, offer

from broker import learning
from broker.cache import Cache, Folder, Times
from broker.experience import LOOKED_AWAY, Lesson, Records
from broker.home import JobKeys
from broker.manifest import File, Manifest
from broker.observing import EVERY, MOST, observe, queries
from broker.offer import Market, OfferQuery
from broker.outlook import outlook_of, planned
from broker.policy.hazard import Seen, hazard
from broker.store import Store, open_store
from broker.task import Checkpoint, Resources, Task, Work

HOUR = 3600.0
A1, B1 = offer("a1", gpu="H100", gpu_count=1), offer("b1", gpu="H100", gpu_count=1)
ANY = [OfferQuery(gpu="H100", gpu_count=1)]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    database = "" if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()
    opened = open_store(tmp_path / "state", database)
    yield opened
    opened.close()


def lesson(generation: int, **more: Any) -> Lesson:
    values: dict[str, Any] = {
        "job": "j", "generation": generation, "offer": A1, "began": START, "ended": START + 10 * HOUR, "lost": True,
        "task": "train",
    }  # fmt: skip
    return Lesson(**{**values, **more})


def task(**more: Any) -> Task:
    return Task(**{"run": "x", "name": "train", "checkpoint": Checkpoint("c"), **more})


def test_a_placement_teaches_once(store: Store) -> None:
    records = Records(store)
    taught: list[bool] = []
    threads = [threading.Thread(target=lambda: taught.append(Records(store).learn(lesson(1)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taught) == [False, False, False, True]
    assert records.learn(lesson(2, lost=False))
    assert records.experience().seen == {"fake/a/H100": Seen(20.0, 0.0, 1)}
    assert records.learn(lesson(3, offer=replace(A1, simulated=True)))
    assert records.experience().seen["fake/a/H100"].hours == 20.0


def test_losses_seen_raise_the_hazard_there(store: Store) -> None:
    records = Records(store)
    before = hazard(A1, at=START)
    for generation in range(8):
        records.learn(lesson(generation))
    after = hazard(A1, at=START, experience=records.experience())
    assert after > 1.5 * before
    assert after >= hazard(B1, at=START, experience=records.experience()) > before  # another region of the provider's


def test_measures_follow_the_last_ones(store: Store) -> None:
    records = Records(store)
    for generation, seconds in enumerate((100.0, 200.0, 300.0)):
        records.learn(lesson(generation, restart=seconds, checkpoint=2**30, save=4.0, pace=1000.0, image="i"))
    found = records.measured(task())
    assert found.restarts["fake"] == pytest.approx(200.0 / HOUR)
    assert (found.checkpoint, found.save, found.paces) == (1.0, 4.0, {"H100": 1000.0})
    for generation in range(3, 30):
        records.learn(lesson(generation, restart=500.0))
    assert records.measured(task()).restarts["fake"] == pytest.approx(500.0 / HOUR, rel=0.01)
    assert records.measured(task(resources=Resources(image="i"))).restarts["fake"] == pytest.approx(200.0 / HOUR)
    other = records.measured(task(name="other"))
    assert (other.checkpoint, other.save, other.paces) == (0.0, None, {})
    assert other.restarts["fake"] > 0


def test_zones_are_kept_as_they_come_and_go(store: Store) -> None:
    records = Records(store)
    for minute in range(0, 120, 10):
        up = [A1] if 30 <= minute < 60 else [A1, B1]
        records.looked(ANY, up, START + minute * 60, answered={"fake"})
    sky, prices = records.sky([("fake", "v100")], START - 1, START + 3 * HOUR)
    a, b = sky.zones["fake/a/a1/v100"], sky.zones["fake/b/b1/v100"]
    assert (a.up, b.up) == (True, True)
    assert b.since == pytest.approx((START + HOUR) / HOUR)
    assert a.hazard(START / HOUR + 2) < b.hazard(START / HOUR + 2)
    assert prices["fake/b/b1/v100"] == B1.hourly


def test_what_was_not_asked_says_nothing_of_a_zone(store: Store) -> None:
    records = Records(store)
    records.looked(ANY, [A1, B1], START, answered={"fake"})
    records.looked(ANY, [A1], START + 600, answered=())  # its provider failed
    records.looked([OfferQuery(cpus=64)], [], START + 1200, answered={"fake"})  # other machines were asked for
    records.looked([replace(ANY[0], infra=("fake/a",))], [A1], START + 1800, answered={"fake"})
    sky, _ = records.sky([("fake", "v100")], START, START + HOUR)
    assert sky.zones["fake/b/b1/v100"].up
    records.looked(ANY, [A1], START + 2400, answered={"fake"})
    sky, _ = records.sky([("fake", "v100")], START, START + HOUR)
    assert not sky.zones["fake/b/b1/v100"].up


def test_a_zone_that_nobody_looked_at_for_long_is_met_anew(store: Store) -> None:
    records = Records(store)
    records.looked(ANY, [A1], START, answered={"fake"})
    later = START + LOOKED_AWAY + 3 * HOUR
    records.looked(ANY, [A1], later, answered={"fake"})
    sky, _ = records.sky([("fake", "v100")], START, later)
    assert sky.zones["fake/a/a1/v100"].since == pytest.approx(later / HOUR - 6.0)


def test_a_zone_that_has_been_up_for_weeks_is_old(store: Store) -> None:
    """Nothing has changed in it for longer than its past is looked at, and it was looked at all the time."""
    records = Records(store)
    records.looked(ANY, [B1], START, answered={"fake"})
    for look in range(1, 20 * 6):
        records.looked(ANY, [A1, B1], START + look * 4 * HOUR, answered={"fake"})
    now = START + 20 * 24 * HOUR
    sky, _ = records.sky([("fake", "v100")], now - 14 * 24 * HOUR, now)
    assert sky.zones["fake/b/b1/v100"].since == pytest.approx(START / HOUR - 6.0)
    past = records.past([A1, B1], now)
    assert past.since == {A1.key: pytest.approx(START - 2 * HOUR), B1.key: pytest.approx(START - 6 * HOUR)}


def test_prices_are_kept_when_they_change(store: Store) -> None:
    import sqlalchemy as sa

    from broker.store import prices

    records = Records(store)
    for minute, price in enumerate((1.0, 1.0, 1.2, 1.2, 1.0)):
        records.looked(ANY, [replace(A1, price=price)], START + 60 * minute, answered={"fake"})
    with store.engine.connect() as db:
        found = [(row.at - START, row.price) for row in db.execute(sa.select(prices).order_by(prices.c.at))]
    assert found == [(0, 1.0), (120, 1.2), (240, 1.0)]


def test_of_decisions_that_rent_nothing_the_newest_is_kept(store: Store) -> None:
    records = Records(store)
    for at in (1.0, 2.0, 3.0):
        records.decided("j", at, {"at": at}, passing=True)
    records.decided("j", 4.0, {"at": 4.0})
    records.decided("j", 5.0, {"at": 5.0})
    assert [record["at"] for record in records.decisions("j")] == [3.0, 4.0, 5.0]
    assert records.decisions("other") == []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(
        tmp_path, [A1, B1, offer("a1", Market.ON_DEMAND, gpu="H100", gpu_count=1)], restart=600.0, work=2 * HOUR
    )
    yield made
    made.close()


def test_a_job_teaches_the_next_one(stage: Stage) -> None:
    """Start-up, pace and losses of a first job are in the second one's reckoning; steps alone then tell its work."""
    first = stage.submit(resources=Resources(gpu="H100", gpu_count=1, disk=0.001), cache=("~/models",))
    stage.run(first, until=lambda: stage.clock() > START + HOUR)
    files = {"m": File("0" * 64, 3 * 2**30, 0o644)}
    folder = Folder(Manifest(1, 0, START, None, {}, files), {}, {})
    keys = JobKeys(first.id)
    stage.world.home(first.row.home).put(keys.cache(1), Cache({"~/models": folder}, Times(660.0, 300.0)).to_bytes())
    for machine in stage.cloud.living():
        stage.cloud.take_back(machine.id)
    stage.run(first)
    assert first.status == "succeeded", stage.story(first)
    records = stage.world.records
    assert records.experience().seen["fake/a/H100"].losses == 1
    second = task(name="t", work=Work(steps=7200), deadline="9h", resources=Resources(gpu="H100", gpu_count=1))
    outlook = planned(second, "s3://bucket/x", {"region": "a"}, records, START)
    assert outlook.left.hours == pytest.approx(2.0, rel=0.01)
    assert "as earlier jobs of this task made them" in outlook.left.source
    prospect = outlook.wish.prospect
    assert prospect is not None
    assert prospect.restarts["fake"] == pytest.approx(600.0 / HOUR)
    assert prospect.cache == 0, "it names no folders"
    again = planned(replace(second, cache=("~/models",)), "s3://bucket/x", {"region": "a"}, records, START)
    assert again.wish.prospect is not None
    assert (again.wish.prospect.cache, again.wish.prospect.spared) == (3.0, pytest.approx(0.1))


@pytest.mark.parametrize(
    ("work", "speed"),
    [
        (Work(hours=6), {}),  # of whichever card: steps an hour say nothing of it
        (Work(hours=6, on="A100"), {}),  # never seen here
        (Work(hours=6, on="H100"), {"H100": 1.0, "L4": 0.25}),
        (Work(steps=7200), {"H100": 1.0, "L4": 0.25}),
    ],
)
def test_paces_are_speeds_only_beside_the_card_that_the_hours_are_for(
    store: Store, work: Work, speed: dict[str, float]
) -> None:
    records = Records(store)
    records.learn(lesson(1, pace=3600.0))
    records.learn(lesson(2, pace=900.0, offer=replace(B1, gpu="L4")))
    outlook = planned(task(work=work, resources=Resources(gpu="H100", gpu_count=1)), "file:///h", {}, records, START)
    assert outlook.wish.prospect is not None
    assert outlook.wish.prospect.speed == speed


def test_work_left_comes_from_progress(stage: Stage) -> None:
    stage.at_tick = lambda now: now + 60.0
    job = stage.submit(work=None, resources=Resources(gpu="H100", gpu_count=1, disk=0.001))
    stage.run(job, until=lambda: stage.clock() > START + HOUR)
    found = outlook_of(job.row, job.task, stage.state(job), stage.world).left
    assert found.hours == pytest.approx((7200 - (stage.clock() - START - 600)) / HOUR, rel=0.03)
    assert found.source.startswith("its progress: ")
    assert found.on == "H100"


def test_without_progress_what_was_not_saved_is_work_left(stage: Stage) -> None:
    job = stage.submit(resources=Resources(gpu="H100", gpu_count=1, disk=0.001))
    stage.run(job, until=lambda: stage.clock() > START + HOUR)
    stage.store.update_placement(job.id, 1, beat={"seq": 2}, ended_at=START + HOUR)
    state = replace(stage.state(job), live=None)
    only_first = outlook_of(job.row, job.task, state, stage.world).left
    assert only_first.hours == pytest.approx(2.0, abs=0.01), "saved once, when it began"
    stage.store.event(job.id, "snapshot", "snapshot 2", generation=1, once="2", at=START + 600 + HOUR / 2)
    assert outlook_of(job.row, job.task, state, stage.world).left.hours == pytest.approx(1.5, abs=0.01)
    alive = outlook_of(job.row, job.task, stage.state(job), stage.world).left
    assert alive.hours == pytest.approx(2.0 - (stage.clock() - START - 600) / HOUR, abs=0.01)


def test_saves_send_what_they_do_not_share_with_the_one_before(stage: Stage) -> None:
    job = stage.submit(resources=Resources(gpu="H100", gpu_count=1, disk=0.001))
    stage.run(job, until=lambda: stage.clock() > START + HOUR)
    (row,) = job.placements()
    row = replace(row, beat={"seq": 6}, program_at=START)
    home, keys = stage.world.home(job.row.home), JobKeys(job.id)
    for seq, names in ((5, "ab"), (6, "bcd")):
        files = {name: File(name * 64, 1000, 0o644) for name in names}
        home.put(keys.manifest(1, seq), Manifest(1, seq, START, None, {}, files).to_bytes())
    assert learning.snapshots(row, job.row.home, START + 2 * HOUR, stage.world) == (3000, 6 * 2000 / 2)
    home.delete([keys.manifest(1, 5)])
    assert learning.snapshots(row, job.row.home, START + 2 * HOUR, stage.world) == (3000, 6 * 3000 / 2), "all of it"
    silent = replace(row, beat=None)
    assert learning.snapshots(silent, job.row.home, START + 2 * HOUR, stage.world) == (None, None)


def test_a_live_broker_looks_at_zones_between_jobs_at_a_bounded_price(stage: Stage) -> None:
    wishes = [Resources(gpu="H100", gpu_count=1, disk=float(size)) for size in range(1, 9)]
    for wish in wishes:
        stage.submit(resources=wish)
    assert len(queries(stage.world)) == MOST
    asked = 0
    for _ in range(12):
        before = len([call for call in stage.cloud.calls if call.name == "offers"])
        looked = observe(stage.world)
        asked += looked
        assert len([call for call in stage.cloud.calls if call.name == "offers"]) - before <= MOST * looked
        stage.clock.advance(EVERY / 4)
    assert asked == 6
    assert stage.world.records.sky([("fake", "v100")], START, stage.clock())[0].zones
    stage.clock.advance(30 * 86_400)
    assert not observe(stage.world)  # nobody has asked for them for a month


def test_work_left_comes_from_the_checkpoint_itself(stage: Stage) -> None:
    """Hugging Face's trainer writes its step and all steps beside the weights; the program reports nothing."""
    job = stage.submit(work=None, resources=Resources(gpu="H100", gpu_count=1, disk=0.001))
    stage.at_tick = lambda now: now + 60.0
    stage.run(job, until=lambda: stage.clock() > START + HOUR)
    rows = job.placements()
    beat = {**(rows[0].beat or {}), "seq": 1, "manifest_step": 300}
    beat["progress"] = {"step": 300, "total": None, "at": stage.clock()}
    stage.store.update_placement(job.id, 1, beat=beat)
    assert outlook_of(job.row, job.task, stage.state(job), stage.world).left.hours is None
    home, keys = stage.world.home(job.row.home), JobKeys(job.id)
    trainer = json.dumps({"global_step": 300, "max_steps": 900, "log_history": []}).encode()
    sha = hashlib.sha256(trainer).hexdigest()
    home.put(keys.blob(sha), trainer)
    files = {"checkpoint-300/trainer_state.json": File(sha, len(trainer), 0o644)}
    home.put(keys.manifest(1, 1), Manifest(1, 1, START, 300, {"checkpoint-300": "hf"}, files).to_bytes())
    found = outlook_of(job.row, job.task, stage.state(job), stage.world).left
    assert found.source.startswith("its checkpoint (step 300 of 900): 600 steps left at ")
    ran = (stage.clock() - START - 600) / HOUR
    assert found.hours == pytest.approx(600 / (300 / ran), rel=0.05)


def test_saves_leave_the_machines_cloud(store: Store) -> None:
    """Within a bucket's region for nothing; to another one, or to a store elsewhere, for what the cloud takes."""
    records = Records(store)
    records.learn(lesson(1, sent=2 * 2**30, checkpoint=2**30))
    asked = task(work=Work(hours=6), resources=Resources(gpu="H100", gpu_count=1))

    def cost(home: str, settings: dict[str, str], region: str = "us-east-1", **changed: Any) -> float:
        prospect = planned(asked, home, settings, records, START).wish.prospect
        assert prospect is not None
        assert prospect.saves == 12.0
        return prospect.cost(replace(A1, provider="aws", region=region, **changed), 0.0, START).upload

    assert cost("s3://b/p", {"region": "us-east-1"}) == 0.0
    assert cost("s3://b/p", {"region": "us-west-2"}) == pytest.approx(12 * 0.02)
    assert cost("s3://b/p", {"endpoint": "https://x.r2.cloudflarestorage.com"}) == pytest.approx(12 * 0.09)
    assert cost("gs://b/p", {}) == pytest.approx(12 * 0.09)
    assert cost("s3://b/p", {"region": "us-east-1"}, "ap-southeast-2") == pytest.approx(12 * 0.098)
    assert cost("s3://b/p", {"region": "ap-southeast-2"}, "ap-southeast-2") == 0.0
    assert cost("s3://b/p", {"endpoint": "https://x.r2.cloudflarestorage.com"}, "sa-east-1") == pytest.approx(12 * 0.15)
    assert cost("s3://b/p", {"endpoint": "https://minio.example.com"}) == 0.0, "nobody knows"
    host = {"extra": {"upload_per_gib": 0.005}}
    assert cost("s3://b/p", {"region": "us-east-1"}, **host) == pytest.approx(12 * 0.005), "as its host says"


def test_a_move_takes_the_checkpoint_out_of_the_home(store: Store) -> None:
    records = Records(store)
    records.learn(lesson(1, checkpoint=12 * 2**30))
    asked = task(work=Work(hours=6), resources=Resources(gpu="H100", gpu_count=1))

    def cost(home: str, provider: str, region: str, settings: dict[str, str] | None = None) -> float:
        prospect = planned(asked, home, settings or {}, records, START).wish.prospect
        assert prospect is not None
        assert prospect.checkpoint == 12.0
        found = prospect.egress_of(replace(A1, provider=provider, region=region))
        assert found is not None
        return found

    assert cost("s3://b/p", "vast", "x") == 0.09
    assert cost("s3://b/p", "aws", "us-east-1", {"region": "us-east-1"}) == 0.0
    assert cost("s3://b/p", "aws", "us-west-2", {"region": "us-east-1"}) == 0.02
    assert cost("s3://b/p", "aws", "us-west-2", {"region": "sa-east-1"}) == 0.138, "as its bucket's region has it"
    assert cost("gs://b/p", "runpod", "x") == 0.12
    assert cost("s3://b/p", "vast", "x", {"endpoint": "https://x.r2.cloudflarestorage.com"}) == 0.0
    assert cost("s3://b/p", "vast", "x", {"endpoint": "https://s3.us-west-004.backblazeb2.com"}) == 0.01
    own = planned(asked, "s3://b/p", {"endpoint": "https://minio.example.com"}, records, START).wish.prospect
    assert own is not None
    assert own.egress_of(A1) is None  # nobody knows
