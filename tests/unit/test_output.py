"""A job's output as its home keeps it: no line is left out, comes twice or is cut, wherever one begins to read."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from broker import quantity
from broker.config import Config, load
from broker.guest.log import OURS
from broker.home import JobKeys
from broker.job import Job
from broker.output import Output, shown
from broker.store import JobRow, PlacementRow, open_store

NOW = 1_800_000_000.0


class Log:
    """The output of one job in a home of its own. `reads` counts the parts that were read."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.folder = folder / "home"
        url = f"file://{self.folder}"
        self.store = open_store(config.state)
        row = JobRow(id="j-1", name="j", created_at=NOW, status="running", home=url, task={})
        self.store.add_job(row)
        self.folder.mkdir()
        self.job = Job(row, config, self.store)
        self.reads = 0

    def add(self, generation: int, seq: int, data: bytes, at: float) -> None:
        path = self.folder / JobKeys("j-1").log(generation, seq)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (at, at))

    def rows(self, *ended: bool) -> list[PlacementRow]:
        return [
            PlacementRow(
                job="j-1", generation=n, status="launched", request={}, reasons=(), picked_at=NOW,
                ended_at=NOW if over else None,
            )
            for n, over in enumerate(ended, start=1)
        ]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(load(state=tmp_path / "state", file=tmp_path / "config.toml"), tmp_path)
    # What a file manager leaves in a folder that somebody has looked into is no part of the output.
    (made.folder / JobKeys("j-1").logs(1)).mkdir(parents=True)
    (made.folder / JobKeys("j-1").logs(1) / ".DS_Store").write_bytes(b"not ours\n")
    return made


def cut(text: bytes, lot: random.Random) -> list[bytes]:
    places = sorted(lot.sample(range(1, len(text)), min(len(text) - 1, lot.randrange(1, 9))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_no_line_is_left_out_twice_or_cut_over_a_move(log: Log, seed: int) -> None:
    """Read from wherever: the end of everything is the end of what is read, while parts come in."""
    lot = random.Random(seed)
    texts = dict.fromkeys((1, 2), "")
    for n in texts:
        texts[n] = "".join(f"{n}: sträng {k}{' ' * lot.randrange(40)}\n" for k in range(lot.randrange(1, 30)))
    texts[2] += "no end"
    everything = [(n, line) for n in (1, 2) for line in texts[n].splitlines()]
    parts = [(n, seq, data) for n in (1, 2) for seq, data in enumerate(cut(texts[n].encode(), lot), start=1)]
    begun = lot.randrange(len(parts))
    for number, part in enumerate(parts[:begun]):
        log.add(*part, NOW + number)
    count, since = lot.choice([(None, NOW + begun - 3), (7, NOW), (2, NOW + begun - 2), (0, 0.0), (None, NOW + 999)])
    output = Output(log.job)
    there = {part[0] for part in parts[:begun]}
    found = output.last(log.rows(True, False) if 2 in there else log.rows(False), count, since=since)
    pending = output.pending()
    if pending is not None:
        assert any(line.startswith(pending[1].rstrip("\ufffd")) for _, line in everything)
    for number, part in enumerate(parts[begun:], start=begun):
        log.add(*part, NOW + number)
        found += output.lines(log.rows(part[0] == 2, False))
    found += output.lines(log.rows(True, True), final=True)
    assert found == everything[len(everything) - len(found) :]
    if count == 7:
        assert len(found) >= min(7, len(everything))


def test_the_last_lines_of_a_huge_log_are_read_alone(log: Log) -> None:
    for seq in range(1, 2001):
        log.add(1, seq, f"{seq} a\n{seq} b\n".encode(), NOW + seq)
    output = Output(log.job)
    read: list[str] = []
    find = output.home.find
    output.home.find = lambda key: read.append(key) or find(key)  # type: ignore[method-assign, func-returns-value]
    assert output.last(log.rows(False), 3) == [(1, "1999 b"), (1, "2000 a"), (1, "2000 b")]
    assert len(read) <= 3
    read.clear()
    assert [line for _, line in Output.last(output, log.rows(False), since=NOW + 1999)] == [
        "1999 a", "1999 b", "2000 a", "2000 b",
    ]  # fmt: skip
    assert len(read) <= 3


def test_of_a_long_output_the_ends_are_read(log: Log) -> None:
    for seq in range(1, 101):
        log.add(1, seq, f"step {seq}\n".encode(), NOW)
    output = Output(log.job)
    assert output.ends(1, 20).split("\n")[:-1] == ["step 1", "step 2", "step 99", "step 100"]
    assert output.ends(1).count("step") == 100
    assert output.ends(2) == ""


def test_since_before_everything_and_after_everything(log: Log) -> None:
    log.add(1, 1, f"{OURS}setup\na\n50%\r60%\r".encode(), NOW)
    output = Output(log.job)
    assert output.last(log.rows(False), since=NOW - 1e6) == [(1, f"{OURS}setup"), (1, "a")]
    assert output.pending() == (1, "60%")
    assert output.last(log.rows(False), since=NOW + 1e6) == []
    log.add(1, 2, b"70%\ndone\n", NOW + 1)
    lines = [line for _, line in output.lines(log.rows(False))]
    assert lines == ["50%\r60%\r70%", "done"], "a line that has begun before comes whole"
    assert [shown(line) for line in lines] == ["70%", "done"]


LISBON = ZoneInfo("Europe/Lisbon")


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("10m", "2026-10-25T11:50:00+00:00"),
        ("1h30m", "2026-10-25T10:30:00+00:00"),
        ("90", "2026-10-25T11:58:30+00:00"),
        ("22:00", "2026-10-24T21:00:00+00:00"),  # summer time, the evening before
        ("11:59", "2026-10-25T11:59:00+00:00"),
        ("2026-10-24T22:00", "2026-10-24T21:00:00+00:00"),
        ("2026-10-25 13:00+02:00", "2026-10-25T11:00:00+00:00"),
        ("2026-10-25T11:00Z", "2026-10-25T11:00:00+00:00"),
        ("2026-10-01", "2026-09-30T23:00:00+00:00"),
    ],
)
def test_a_time_that_has_passed(text: str, when: str) -> None:
    now = datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp()
    assert quantity.past(text, now, LISBON) == datetime.fromisoformat(when).timestamp()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yesterday", "10m"),
        ("", "10m"),
        ("-5m", "10m"),
        ("25:00", "10m"),
        ("nan", "10m"),
        ("2027-01-01", "not come"),
    ],
)
def test_no_such_time(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quantity.past(text, datetime(2026, 10, 25, 12, tzinfo=UTC).timestamp(), LISBON)


def test_when_a_line_was_printed_first(log: Log) -> None:
    """By the part in which it is whole: a part ends anywhere."""
    for seq, data in enumerate((b"loading\n", b"loss 3.1 st", b"ep 12\n", b"loss 3.0 step 13\nloss 3.1 step 12\n"), 1):
        log.add(1, seq, data, NOW + seq)
    output = Output(log.job)
    assert output.when(1, "loss 3.1 step 12") == NOW + 3
    assert output.when(1, "loss 3.0 step 13") == NOW + 4
    assert output.when(1, "step 14") is None
    assert output.when(1, "loss 3.0 step 13", most=20) is None
