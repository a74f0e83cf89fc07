"""The guest's half on EC2, against a metadata service of version 2."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from clouds.aws import inputs
from clouds.aws.metadata import InstanceMetadata, on_loopback

from broker.guest.notice import Notices
from broker.testing import wait_for
from broker_aws import guest

ACTION = "/latest/meta-data/spot/instance-action"


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[InstanceMetadata]:
    """A machine's metadata service on loopback, where the SDKs' own variable points."""
    service = InstanceMetadata("i-1")
    with on_loopback(service) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        importlib.reload(guest)  # it holds the token of a machine, and this is a new one
        yield service


def test_no_notice_is_404(metadata: InstanceMetadata) -> None:
    assert guest.notice() is None
    assert metadata.asked[:2] == [("PUT", "/latest/api/token", 200), ("GET", ACTION, 404)]
    assert guest.notice() is None
    assert [method for method, _, _ in metadata.asked].count("PUT") == 1, "a token is kept"


def test_case_33(metadata: InstanceMetadata) -> None:
    """404 is none; 401 renews the token and asks again; 200 is the notice with its moment; no answer is unknown."""
    script = inputs.data("cases/inputs/c33_imds.json")
    assert [step.get("http", step.get("note")) for step in script] == [
        404, 401, "fetch new token", 404, 200, "timeout",
    ]  # fmt: skip
    assert guest.notice() is None
    metadata.forget_tokens()
    metadata.asked.clear()
    assert guest.notice() is None
    assert [(method, status) for method, path, status in metadata.asked if "rebalance" not in path] == [
        ("GET", 401), ("PUT", 200), ("GET", 404),
    ]  # fmt: skip
    body = script[4]["body"]
    moment = datetime.fromisoformat(body["time"]).timestamp()
    metadata.interrupt(moment, body["action"])
    found = guest.notice()
    assert found is not None
    assert (found["ends_at"], found["kind"]) == (moment, "terminate")
    assert abs(found["at"] - time.time()) < 5
    metadata.silent = guest.TIMEOUT + 0.5
    with pytest.raises(OSError, match="timed out"):
        guest.notice()


def test_a_token_that_is_always_refused_is_unknown(metadata: InstanceMetadata) -> None:
    metadata.token_life = 0.0
    with pytest.raises(OSError, match="401"):
        guest.notice()


def test_a_storm_of_401_is_unknown_while_it_lasts_and_no_flood(metadata: InstanceMetadata) -> None:
    metadata.interrupt(time.time() + 120)
    metadata.token_life = 0.0
    for _ in range(5):
        with pytest.raises(OSError, match="401"):
            guest.notice()
    assert len(metadata.asked) == 5 * 4, "a token and a page, and both once more"
    metadata.token_life = 60.0
    assert guest.notice() is not None


def test_a_notice_that_is_gone_again_has_been_one(metadata: InstanceMetadata) -> None:
    """404, 200, 404: EC2 takes the machine all the same, or not; what was said is not unsaid."""
    heard: list[int] = []
    notices = Notices(guest.notice, usual=120.0, seen=lambda: heard.append(1), warn=lambda _: None)
    assert notices.look() is None
    metadata.interrupt(time.time() + 120)
    word = notices.look()
    assert word is not None
    del metadata.pages[ACTION]
    assert notices.look() is word
    assert heard == [1]


@pytest.mark.parametrize(("action", "told"), [("stop", "stop"), ("hibernate", "hibernate"), (None, "terminate")])
def test_a_notice_of_another_kind_or_of_the_past_leaves_the_usual_time(
    metadata: InstanceMetadata, action: str | None, told: str
) -> None:
    metadata.pages[ACTION] = json.dumps({"action": action, "time": "2020-01-01T00:00:00Z"})
    notices = Notices(guest.notice, usual=120.0, seen=lambda: None, warn=lambda _: None)
    word = notices.look()
    assert word is not None
    assert word.kind == told
    assert word.ends - time.monotonic() == pytest.approx(120, abs=5)


@pytest.mark.parametrize("status", [500, 403, 503])
def test_a_fault_of_the_service_is_unknown(metadata: InstanceMetadata, status: int) -> None:
    assert guest.notice() is None
    metadata.status = status
    with pytest.raises(OSError, match=str(status)):
        guest.notice()


def test_nonsense_is_unknown(metadata: InstanceMetadata) -> None:
    metadata.pages[ACTION] = "<html>"
    with pytest.raises(ValueError, match="Expecting value"):
        guest.notice()


@pytest.mark.parametrize(
    ("page", "ends_at"),
    [
        ('{"action": "stop", "time": "2026-08-20T12:03:00"}', 1787227380.0),
        ('{"action": "hibernate", "time": "2026-08-20T14:03:00+02:00"}', 1787227380.0),
        ('{"action": "terminate", "time": "soon"}', None),
        ('{"action": "terminate", "time": null}', None),
        ("{}", None),
    ],
)
def test_a_notice_without_a_time_is_one_all_the_same(
    metadata: InstanceMetadata, page: str, ends_at: float | None
) -> None:
    metadata.pages[ACTION] = page
    found = guest.notice()
    assert found is not None
    assert found["ends_at"] == ends_at


def test_a_rebalance_hint_alone_moves_nothing(metadata: InstanceMetadata, capsys: pytest.CaptureFixture[str]) -> None:
    metadata.recommend()
    assert guest.notice() is None
    assert "recommends to rebalance" in capsys.readouterr().err
    assert guest.notice() is None
    assert not capsys.readouterr().err, "said once"
    hints = [path for _, path, _ in metadata.asked if "rebalance" in path]
    assert len(hints) == 1


def test_the_guest_sees_the_notice_within_a_second_or_two(metadata: InstanceMetadata) -> None:
    seen, warnings = threading.Event(), []
    notices = Notices(guest.notice, usual=120.0, seen=seen.set, warn=warnings.append)
    notices.start()
    assert wait_for(lambda: len(metadata.asked) >= 2, 5.0)
    at = time.time() + 120
    metadata.interrupt(at)
    assert seen.wait(3.0)
    assert notices.word is not None
    assert notices.word.ends - time.monotonic() == pytest.approx(120, abs=5)
    assert not warnings
