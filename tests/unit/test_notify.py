"""Whom a job tells what, and that no URL is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ConfigError, TaskError
from broker.notify import USUAL, News, Notify, news
from broker.store import Event
from broker.task import Task

URL = "https://hooks.example.com/services/T0/KEY0001"
SAFE = "run: x\nspot: never\n"


def read(folder: Path, text: str) -> Task:
    (folder / "job.yaml").write_text(text, encoding="utf-8")
    return Task.from_yaml(folder / "job.yaml", environ={})


def events(*kinds: tuple[str, str]) -> list[Event]:
    return [Event(seq, "j", 1, 0.0, kind, text, {}) for seq, (kind, text) in enumerate(kinds, 1)]


def test_what_is_news() -> None:
    story = events(
        ("submitted", ""), ("launched", "m-1"), ("running", ""), ("nothing", "waiting"), ("nothing", "waiting"),
        ("launched", "m-2"), ("stuck", "no sign"), ("ended", "succeeded: succeeded"),
    )  # fmt: skip
    told = [(item.what, item.seq) for item in news(story, 0, "succeeded")]
    assert told == [("nothing", 4), ("moved", 6), ("stuck", 7), ("finished", 8)]
    assert list(news(story, 7, "succeeded")) == [News("finished", 8, "succeeded: succeeded")]
    assert list(news(story, 8, "succeeded")) == []


@pytest.mark.parametrize(
    ("status", "what"),
    [("failed", "failed"), ("error", "failed"), ("limit", "budget"), ("unavailable", "nothing"), ("stopped", None)],
)
def test_every_end_is_one_kind_of_news_and_a_users_stop_is_none(status: str, what: str | None) -> None:
    told = [item.what for item in news(events(("ended", f"{status}: why")), 0, status)]
    assert told == ([what] if what else [])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("notify-send done", Notify(command="notify-send done")),
        (f"{{webhook: '{URL}', on: [moved, failed]}}", Notify(("moved", "failed"), webhook=URL)),
        ("{on: failed, apprise: [env:MAIL]}", Notify(("failed",), apprise=("env:MAIL",))),
        (f"{{command: cat, webhook: '{URL}'}}", Notify(USUAL, "cat", URL)),
    ],
)
def test_it_is_read(tmp_path: Path, written: str, meant: Notify) -> None:
    assert read(tmp_path, f"{SAFE}notify: {written}\n").notify == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{on: [failed]}", "notify: tells nobody"),
        ("{command: cat, on: [exploded]}", "notify.on: must be of finished, failed"),
        ("{webhook: hooks.example.com/KEY0001}", "notify.webhook: must be an http"),
        ("{webhook: 'file:///etc/passwd'}", "notify.webhook: must be an http"),
        ("{mail: me@example.com}", "notify.mail: unknown field"),
    ],
)
def test_what_tells_nobody_is_refused_without_a_word_of_its_url(tmp_path: Path, written: str, why: str) -> None:
    with pytest.raises(TaskError, match=why) as raised:
        read(tmp_path, f"{SAFE}notify: {written}\n")
    assert "KEY0001" not in str(raised.value)


def test_a_task_that_is_written_down_shows_only_where_it_leads(tmp_path: Path) -> None:
    task = read(tmp_path, f"{SAFE}notify: {{webhook: '{URL}', apprise: ['tgram://KEY0002/chat']}}\n")
    for shown in (repr(task), str(task.to_json()), task.to_yaml(), repr(Task.from_json(task.to_json()))):
        assert "KEY000" not in shown
    assert task.to_json()["notify"]["webhook"] == "https://hooks.example.com/…"
    assert task.to_json()["notify"]["apprise"] == ["tgram://…"]
    assert Task.from_json(task.to_json()).notify is not None


def test_a_url_may_come_from_the_environment() -> None:
    asked = Notify(webhook="env:HOOK", apprise=("env:MAIL", "tgram://x"))
    assert asked.variables == ("HOOK", "MAIL")
    assert asked.filled({"HOOK": URL, "MAIL": "m"}) == Notify(webhook=URL, apprise=("m", "tgram://x"))
    with pytest.raises(ConfigError, match="the environment has no MAIL"):
        asked.filled({"HOOK": URL})
