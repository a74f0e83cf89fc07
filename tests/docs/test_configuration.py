"""The page on configuration names every key that is read, and its example is one that loads."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from broker import access
from broker.config import KNOWN, SIMULATED, Limits, load
from broker.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def example() -> str:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_every_key_is_on_the_page() -> None:
    for key in (*KNOWN, *(entry.name for entry in fields(Limits)), *access.OURS):
        assert re.search(rf"^{key} = |^\[{key}[\].]", example(), re.MULTILINE), f"{key} is not in the example"


def test_the_example_loads(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(example())
    config = load(state=tmp_path / "state", file=file)
    assert config.limits(simulated=False) == Limits()
    assert config.home == "s3://my-bucket/spotbroker"


def test_the_table_tells_the_defaults() -> None:
    for entry in fields(Limits):
        row = re.search(rf"^\| `{entry.name}` \| .* \| (\S+) \|$", PAGE, re.MULTILINE)
        assert row
        assert float(row[1]) == getattr(SIMULATED, entry.name)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("hom = 'x'", "unknown key 'hom'"),
        ("home = 3", "home must be a string"),
        ("[limits]\nbeat = 0", "limits.beat = 0 is not a limit"),
        ("[limits]\nbeet = 1", "limits.beet = 1 is not a limit"),
        ("[limits]\nbeat = inf", "limits.beat = inf is not a limit"),
        ("monthly_budget = inf", "monthly_budget = inf is no sum"),
        ("[providers.runpdo]\nclouds = ['secure']", "no provider 'runpdo'; did you mean runpod?"),
        ("[providers]\nvast = 3", "providers.vast must be a table"),
        ("limits = 4", "limits must be a table"),
        ("home = ", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, want: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(want)) as caught:
        load(state=tmp_path / "state", file=file)
    assert str(file) in str(caught.value)
