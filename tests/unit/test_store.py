"""The store, on SQLite and on Postgres."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ConfigError, JobNotFound
from broker.store import JobRow, OverBudget, PlacementRow, Store, database_url, filesystem, open_store


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    database = "" if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()
    opened = open_store(tmp_path / "state", database)
    yield opened
    opened.close()


def row(job: str, name: str = "n", at: float = 1.0, status: str = "pending") -> JobRow:
    return JobRow(id=job, name=name, created_at=at, status=status, home="file:///h", task={"name": name})


def placement(generation: int, **request: int) -> PlacementRow:
    return PlacementRow("a", generation, "intent", request, ["because"], 5.0)


def test_the_installation_keeps_its_name(store: Store) -> None:
    assert store.installation() == store.installation()


def test_a_job_is_found_by_id_and_the_newest_by_name(store: Store) -> None:
    store.add_job(row("a", "train", 1.0))
    store.add_job(row("b", "train", 2.0))
    assert store.find("a").id == "a"
    assert store.find("train").id == "b"
    with pytest.raises(JobNotFound, match="no job 'c'"):
        store.find("c")


def test_adding_twice_changes_nothing(store: Store) -> None:
    store.add_job(row("a", "first"))
    store.add_job(row("a", "second"))
    assert store.job("a").name == "first"


def test_only_one_claims_a_job(store: Store) -> None:
    store.add_job(row("a"))
    won: list[bool] = []
    threads = [threading.Thread(target=lambda n=n: won.append(store.claim("a", f"x{n}"))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert store.unclaimed() == []


def test_an_intent_may_be_replaced_until_it_is_sent(store: Store) -> None:
    store.intend(placement(1, first=1))
    assert store.intend(placement(1, second=2)).request == {"second": 2}
    store.update_placement("a", 1, status="sent")
    assert store.intend(placement(1, third=3)).request == {"second": 2}


def test_an_event_with_the_same_mark_is_written_once(store: Store) -> None:
    for _ in range(3):
        store.event("a", "snapshot", "snapshot 4", generation=1, once="4", seq=4)
    store.event("a", "snapshot", "snapshot 5", generation=1, once="5", seq=5)
    found = store.events("a")
    assert [event.data["seq"] for event in found] == [4, 5]
    assert store.events("a", after=found[0].seq) == found[1:]


def test_what_is_set_once_stays(store: Store) -> None:
    store.intend(placement(1))
    store.first("a", 1, noticed_at=10.0)
    store.first("a", 1, noticed_at=20.0)
    assert store.placement("a", 1).noticed_at == 10.0


def test_a_wish_reaches_only_jobs_that_have_not_ended(store: Store) -> None:
    store.add_job(row("a"))
    store.add_job(row("b", status="succeeded"))
    for job in ("a", "b"):
        store.ask(job, "stop")
    assert store.wants() == {"a": "stop"}


def test_cost_runs_until_the_end(store: Store) -> None:
    store.intend(placement(1))
    assert store.placement("a", 1).cost(99.0) == 0.0
    store.update_placement("a", 1, hourly=3.6, launched_at=1000.0)
    assert store.placement("a", 1).cost(2000.0) == pytest.approx(1.0)
    store.update_placement("a", 1, ended_at=1500.0)
    assert store.placement("a", 1).cost(9999.0) == pytest.approx(0.5)


def test_a_network_filesystem_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/export {tmp_path} nfs4 rw 0 0\n")
    assert filesystem(tmp_path / "state", mounts) == "nfs4"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/export {tmp_path}else nfs4 rw 0 0\n")
    assert filesystem(tmp_path / "state", mounts) == "ext4"


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(ConfigError, match=r"state folder .*/home/state cannot be made: Not a directory"):
        open_store(tmp_path / "home" / "state")


def test_a_database_must_be_postgres(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        database_url(tmp_path, "mysql://x/y", "jobs.db")


@pytest.mark.parametrize(("order", "until"), [("keep", 1120.0), ("end", 90_000.0)])
def test_a_kept_machine_holds_no_more_back_than_its_keeping_costs(store: Store, order: str, until: float) -> None:
    """Another job's money is free once it is known when the guest ends it; what has only been told may not be heard."""
    request = {"offer": {"price": 1.0, "disk_price": 0.0, "simulated": False}, "end_by": 90_000.0}
    retiring = {"held": {"generation": 1, "end_by": 90_000.0}, "order": order, "terminate_at": 1000.0}
    store.add_job(row("a"))
    store.update_job("a", state={"retiring": [retiring], "live": None})
    store.intend(PlacementRow("a", 1, "intent", request, [], 0.0))
    store.update_placement("a", 1, status="launched", launched_at=0.0, hourly=1.0)
    assert store.bills(0.0, simulated=False)["a", 1].until == until


def test_no_two_jobs_take_the_same_dollar(store: Store) -> None:
    """What else may cost money is read while nobody else can write: of eight that fit alone only two get through."""
    offer = {"price": 1.0, "disk_price": 0.0, "simulated": False}
    taken: list[str] = []

    def take(job: str) -> None:
        intent = PlacementRow(job, 1, "intent", {"offer": offer, "end_by": 3600.0}, ["because"], 0.0)
        try:
            store.intend(intent, fits=lambda bills: sum(bill.committed(0.0) for bill in bills.values()) + 1.0 <= 2.5)
            taken.append(job)
        except OverBudget:
            pass

    for number in range(8):
        store.add_job(row(f"j{number}"))
    threads = [threading.Thread(target=take, args=(f"j{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 2
    assert {key[0] for key in store.bills(0.0, simulated=False)} == set(taken)
    assert store.bills(0.0, simulated=True) == {}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa55word@127.0.0.1:9/jobs",
        "postgresql://me:pa55word@127.0.0.1:port/jobs",
        "postgres://me:pa55word@127.0.0.1:99999/jobs",
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="the database postgresql://") as caught:
        open_store(tmp_path, url)
    assert "127.0.0.1" in str(caught.value)
    assert "pa55word" not in f"{caught.value} {caught.value.fix}"
    assert "`database`" in caught.value.fix
    assert caught.value.__cause__ is None, "a traceback would show the URL"
