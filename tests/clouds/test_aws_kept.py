"""What is learnt of EC2 and kept on disk: for so long, by all processes, and never in the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker_aws.kept import Kept


class Clock:
    now = 1_800_000_000.0


def test_kept_for_so_long_and_by_all(tmp_path: Path) -> None:
    clock, asked = Clock(), []
    one, other = (Kept(tmp_path / "deep" / "aws", lambda: clock.now) for _ in range(2))

    def ask() -> dict[str, int]:
        asked.append(clock.now)
        return {"n": len(asked)}

    assert one.get("a/b c", 60.0, ask) == other.get("a/b c", 60.0, ask) == {"n": 1}
    clock.now += 61
    assert other.get("a/b c", 60.0, ask) == {"n": 2}
    clock.now -= 3600  # a clock that was set back keeps nothing for as long as it went
    assert one.get("a/b c", 60.0, ask) == {"n": 3}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1800000000.0}', '{"at": "x", "value": 1}', "\x00"])
def test_nonsense_on_disk_is_asked_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "zones.json").write_text(text)
    assert Kept(tmp_path, lambda: 1_800_000_001.0).get("zones", 60.0, lambda: [1]) == [1]


def test_a_folder_that_cannot_be_written_only_costs_the_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert Kept(tmp_path / "file" / "aws").get("zones", 60.0, lambda: [1]) == [1]


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    with pytest.raises(OSError, match="no answer"):
        kept.get("zones", 60.0, fail)
    assert kept.get("zones", 60.0, lambda: [1]) == [1]


def fail() -> None:
    raise OSError("no answer")


def test_regions_side_by_side_ask_once(tmp_path: Path) -> None:
    kept, asked, gate = Kept(tmp_path), [], threading.Barrier(8)

    def ask() -> list[int]:
        asked.append(1)
        return [len(asked)]

    def work() -> None:
        gate.wait()
        assert kept.get("prices", 60.0, ask) == [1]

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
