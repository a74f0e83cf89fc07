"""What a notebook shows: the same tables as the command line, as safe HTML."""

from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from pathlib import Path

from cli.command import Cli

import broker
from broker.config import load
from broker.offer import Offer
from broker.task import Resources, Task


class Words(HTMLParser):
    """The text of a page; fails on a tag that is none of ours."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("pre", "span", "p"), tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_job_is_its_story(finished: tuple[Cli, str, subprocess.CompletedProcess[str]]) -> None:
    cli, name, _ = finished
    config = load(state=cli.state, file=cli.folder / "config.toml")
    text = Words(broker.get(name, config=config)._repr_html_()).text
    assert "succeeded" in text
    assert "local/north-1" in text


def test_a_plan_and_offers_are_their_tables(tmp_path: Path) -> None:
    config = load(state=tmp_path / "state", file=tmp_path / "none")
    task = Task(run="true", name="a", spot="never", resources=(Resources(infra=("local",)),))
    plan = broker.plan(task, config=config)
    assert repr(plan) == "<Plan a: local/north/north-1/cpu-2/on_demand at 0.0322 USD/h>"
    text = Words(plan._repr_html_()).text
    assert "local/" in text
    assert "home" in text
    found = broker.offers(infra=("local",), config=config)
    assert isinstance(found[0], Offer)
    assert "local/north-1" in Words(found._repr_html_()).text
    assert "no offers" in broker.offers("H100", infra=("local",), config=config)._repr_html_()


def test_nothing_in_a_table_is_taken_for_html() -> None:
    from broker.notebook import html

    assert Words(html(["<script>[bold]x[/bold] & y"])).text.strip() == "<script>[bold]x[/bold] & y"
