"""The user's crontab: one line of ours in it, and every other as it was. The program `crontab` is a stand-in here."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import crontab
from broker.errors import ConfigError

# Debian's, where it keeps the text: in a file beside it.
PROGRAM = """#!/bin/sh
kept="$(dirname "$0")/kept"
case $1 in
  -l) [ -e "$kept" ] || { echo "no crontab for user" >&2; exit 1; }; exec cat "$kept" ;;
  -) exec cat > "$kept" ;;
esac
"""
OWN = b'# my own\nMAILTO=""\n\n5 4 * * * echo caf\xe9 \x0c a%b # not: spotbroker:x\r\n0 1 * * * true'


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the crontab holds."""
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    put(program, PROGRAM)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program.parent / "kept"


def put(program: Path, text: str) -> None:
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)


def line(name: str, what: str = "x", mark: str = "m") -> str:
    return f"0 * * * * {what} # spotbroker:{mark}:{name}"


def test_one_line_comes_and_goes_and_every_other_stays_as_it_is(kept: Path) -> None:
    kept.write_bytes(OWN)  # without an end of its last line, which cron would not run
    crontab.install(line("a"), "a", "m")
    crontab.install(line("b"), "b", "m")
    with kept.open("ab") as file:
        file.write(b"# added later\n")
    crontab.install(line("a", "y"), "a", "m")
    assert kept.read_bytes() == OWN + f"\n{line('a', 'y')}\n{line('b')}\n# added later\n".encode()
    assert crontab.uninstall("a", "m")
    assert not crontab.uninstall("a", "m")
    assert not crontab.uninstall("b", "another installation's")
    assert crontab.uninstall("b", "m")
    assert kept.read_bytes() == OWN + b"\n# added later\n"


@pytest.mark.parametrize("words", ["no crontab for user", "crontab: can't open 'user': No such file or directory"])
def test_no_crontab_yet(kept: Path, words: str) -> None:
    put(kept.with_name("crontab"), PROGRAM.replace('"no crontab for user"', f'"{words}"'))
    crontab.install(line("a"), "a", "m")
    assert kept.read_text() == f"{line('a')}\n"


def test_a_crontab_that_may_not_be_had_is_not_written_over(kept: Path) -> None:
    kept.write_bytes(OWN)
    put(kept.with_name("crontab"), PROGRAM.replace("-l)", '-l) echo "you are not allowed to use this" >&2; exit 1;'))
    with pytest.raises(ConfigError, match="cannot be read: you are not allowed") as raised:
        crontab.install(line("a"), "a", "m")
    assert raised.value.fix == "add --systemd, or add --up and keep `broker up` running on this computer"
    assert kept.read_bytes() == OWN


def test_a_crontab_that_keeps_nothing_is_found_out(kept: Path) -> None:
    put(kept.with_name("crontab"), PROGRAM.replace('exec cat > "$kept"', "exit 0"))
    with pytest.raises(ConfigError, match="does not keep the schedule's line"):
        crontab.install(line("a"), "a", "m")


def test_a_line_that_cron_would_cut_off_is_refused(kept: Path) -> None:
    with pytest.raises(ConfigError, match="would be 1017 bytes long, and cron takes 998"):
        crontab.install(line("a", "y" * 1000), "a", "m")
    assert not kept.exists()
