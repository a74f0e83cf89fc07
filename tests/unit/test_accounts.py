"""Machines of another account: they stay listed, and nothing is forgotten that nobody can vouch for."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from broker.accounts import UNLISTED, Accounts
from broker.errors import AuthFailed, ProviderUnavailable
from broker.keys import Key
from broker.offer import Market
from broker.provider import TAG_JOB, Cause, Instance, Notice, State

ONE = Instance(
    provider="fake",
    id="i/1",
    state=State.PENDING,
    market=Market.SPOT,
    hourly=0.4,
    tags={TAG_JOB: "j"},
    notice=Notice(at=1.0),
)


def accounts(folder: Path, key: str, owner: str | None = None) -> Accounts:
    def asked() -> str:
        if owner is None:
            raise ProviderUnavailable("no answer")
        return owner

    return Accounts(folder, Key(key, "test"), asked)


def old(folder: Path) -> None:
    for path in (folder / "rented").iterdir():
        os.utime(path, (time.time() - UNLISTED - 1,) * 2)


def test_what_its_own_account_does_not_list_is_gone_and_forgotten_later(tmp_path: Path) -> None:
    mine = accounts(tmp_path, "a", "me")
    assert mine.rented(ONE) is ONE
    assert mine.listed([]) == []
    assert len(list((tmp_path / "rented").iterdir())) == 1, "a list may be late"
    old(tmp_path)
    assert mine.listed([]) == []
    assert not list((tmp_path / "rented").iterdir())


@pytest.mark.parametrize("owner", ["somebody else", "", None])
def test_what_another_account_rented_is_there_until_that_account_says_otherwise(
    tmp_path: Path, owner: str | None
) -> None:
    accounts(tmp_path, "a", "me").rented(replace(ONE, state=State.STOPPED, cause=Cause.PREEMPTED))
    other = accounts(tmp_path, "b", owner)
    old(tmp_path)
    assert other.listed([]) == [replace(ONE, state=State.RUNNING, notice=None)]
    with pytest.raises(AuthFailed, match="another account"):
        other.reach(ONE)
    accounts(tmp_path, "a").reach(ONE)
    assert accounts(tmp_path, "a").listed([]) == []
    assert other.listed([]) == []


def test_a_key_whose_owner_nobody_told_vouches_for_itself_only(tmp_path: Path) -> None:
    accounts(tmp_path, "a").rented(ONE)
    assert accounts(tmp_path, "a").listed([]) == []
    assert len(accounts(tmp_path, "b", "me").listed([])) == 1


def test_without_a_key_that_is_what_is_missing(tmp_path: Path) -> None:
    accounts(tmp_path, "a", "me").rented(ONE)
    nobody = Accounts(tmp_path, None, lambda: "")
    nobody.reach(ONE)
    assert nobody.findings() == []


def test_a_machine_that_the_key_in_use_lists_is_of_its_account(tmp_path: Path) -> None:
    accounts(tmp_path, "a", "me").rented(ONE)
    renewed = accounts(tmp_path, "b")
    assert renewed.listed([ONE]) == [ONE]
    renewed.reach(ONE)
    assert renewed.listed([]) == []


@pytest.mark.parametrize("state", [State.STOPPING, State.TERMINATED])
def test_what_is_ending_is_not_written_down_again(tmp_path: Path, state: State) -> None:
    mine = accounts(tmp_path, "a", "me")
    mine.rented(ONE)
    mine.ended(ONE)
    mine.listed([replace(ONE, state=state)])
    assert accounts(tmp_path, "b", "other").listed([]) == []


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"key": "x"}', '{"key": "x", "instance": {"id": 1}}'])
def test_what_cannot_be_read_is_no_machine(tmp_path: Path, text: str) -> None:
    mine = accounts(tmp_path, "a", "me")
    mine.rented(ONE)
    (path,) = (tmp_path / "rented").iterdir()
    path.write_text(text)
    assert accounts(tmp_path, "b", "other").listed([]) == []
    mine.reach(ONE)


def test_a_folder_that_takes_nothing_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    mine = accounts(tmp_path / "file", "a", "me")
    assert mine.rented(ONE) is ONE
    assert mine.listed([ONE]) == [ONE]
    mine.reach(ONE)
    mine.ended(ONE)
