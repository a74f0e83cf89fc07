"""Where a provider's key is found, how it is kept, and what cannot be one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from broker import keys
from broker.errors import ConfigError

VARIABLE = "ACME_API_KEY"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def find(state: Path, **settings: str) -> keys.Key | None:
    return keys.find("acme", settings, state, variable=VARIABLE)


def test_configuration_then_variable_then_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(tmp_path) is None
    keys.keep("acme", "from-file", tmp_path)
    found = find(tmp_path)
    assert found is not None
    assert (found.value, found.source) == ("from-file", str(tmp_path / "keys" / "acme"))
    monkeypatch.setenv(VARIABLE, "from-variable")
    found = find(tmp_path)
    assert found is not None
    assert (found.value, found.source) == ("from-variable", f"${VARIABLE}")
    found = find(tmp_path, key="from-configuration")
    assert found is not None
    assert (found.value, found.source) == ("from-configuration", "[providers.acme] key")


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    keys.keep("acme", "  k-1\n", state)
    path = keys.place("acme", state)
    assert path.read_text() == "k-1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    keys.keep("acme", "k-2", state)
    assert path.read_text() == "k-2\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["acme"]


def test_a_file_that_others_can_read_is_made_private_again(tmp_path: Path) -> None:
    keys.keep("acme", "k-1", tmp_path)
    path = keys.place("acme", tmp_path)
    path.chmod(0o644)
    keys.keep("acme", "k-2", tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_never_shows_in_repr() -> None:
    assert "k-1" not in repr(keys.Key("k-1", "a test"))


@pytest.mark.parametrize("value", ["", "   ", "two words", "line\nbreak", "ünïcode", "tab\tin", "null\0"])
def test_what_no_header_can_carry_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    with pytest.raises(ConfigError, match=r"\[providers\.acme\] key") as caught:
        find(tmp_path, key=value)
    assert "broker check acme" in caught.value.fix
    with pytest.raises(ConfigError):
        keys.keep("acme", value, tmp_path)
    assert not keys.place("acme", tmp_path).exists()
    if value.strip() and "\0" not in value:
        monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(ConfigError, match=VARIABLE):
            find(tmp_path)
    place = keys.place("acme", tmp_path)
    place.parent.mkdir(exist_ok=True)
    place.write_text(value, encoding="utf-8")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=str(place)):
        find(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    place = keys.place("acme", tmp_path)
    place.parent.mkdir()
    place.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        find(tmp_path)
    place.unlink()
    place.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        find(tmp_path)
