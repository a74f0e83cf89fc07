"""Until when a machine goes on by itself: as long as its key for the home lasts, which the plan says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.cli.limits import limit_lines
from broker.config import Config
from broker.planning import plan
from broker.renewals import unattended
from broker.resources import Resources
from broker.task import Checkpoint, Task

NOW = 1_800_000_000.0
USER: Mapping[str, str] = {"access_key_id": "AKIA", "secret_access_key": "s"}
SESSION: Mapping[str, str] = {**USER, "session_token": "t"}


def config(tmp_path: Path, **settings: str) -> Config:
    return Config(state=tmp_path / "state", file=tmp_path / "config.toml", home_config=settings)


@pytest.mark.parametrize(
    ("mint", "keys", "hours", "seconds", "word"),
    [
        ("assume-role", USER, 24, 12 * 3600, "a live broker renews it"),
        ("assume-role", SESSION, 24, 3600, "a live broker goes on with the next"),
        ("federation", USER, 48, 36 * 3600, "a live broker renews it"),
        ("r2", USER, 200, 7 * 86_400, "a live broker renews it"),
    ],
)
def test_what_the_plan_says(
    tmp_path: Path, mint: str, keys: Mapping[str, str], hours: float, seconds: float, word: str
) -> None:
    text = unattended(config(tmp_path, mint=mint, **keys), "s3://b/home", hours, NOW, {})
    until = time.localtime(NOW + seconds)
    assert text.startswith(f"until {time.strftime('%H:%M' if seconds < 86_400 else '%d %b %H:%M', until)}: ")
    assert f"lasts {seconds / 3600:g} h" in text
    assert text.endswith(word)


@pytest.mark.parametrize(
    ("mint", "hours", "home"),
    [
        ("assume-role", 12, "s3://b/home"),
        ("federation", 36, "s3://b/home"),
        ("b2", 23_000, "s3://b/home"),
        ("none", 1e6, "s3://b/home"),
        ("assume-role", 24, "file:///tmp/home"),
    ],
)
def test_nothing_where_the_task_ends_sooner(tmp_path: Path, mint: str, hours: float, home: str) -> None:
    assert not unattended(config(tmp_path, mint=mint, **USER), home, hours, NOW, {})


def test_it_stands_in_the_plan(tmp_path: Path) -> None:
    task = Task(
        name="long",
        run="true",
        resources=(Resources(cpus=1, infra=("local",)),),
        checkpoint=Checkpoint("ckpt"),
        max_hours=24.0,
        home="s3://bucket/home",
    )
    lines = dict(limit_lines(plan(task, config=config(tmp_path, mint="assume-role", **USER))))
    assert "12 h" in lines["unattended"]
