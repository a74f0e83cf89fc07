"""GPU names: one card's spellings agree, different cards differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker import gpus

CASES = Path(__file__).parents[3] / "shared" / "cases" / "inputs" / "c14_names.json"


def test_every_canonical_name_stands_for_itself() -> None:
    assert all(gpus.canonical(name) == name == gpus.canonical(f" nvidia {name.lower()}\n") for name in gpus.names())


def test_a_name_is_never_taken_by_its_beginning() -> None:
    different = ["A10", "A100", "A100-80GB", "A40", "A4000", "T4", "T4g", "L4", "L40", "L40S", "H100", "H100-NVL"]
    different += ["RTX6000", "RTXA6000", "RTX6000-Ada", "RTXPRO6000", "V100", "V100-32GB"]
    assert len({gpus.canonical(name) for name in different}) == len(different)


def test_the_case_of_many_spellings() -> None:
    if not CASES.is_file():
        pytest.skip("the shared cases are not here")
    found: dict[str, set[str]] = {}
    for spelling, card in json.loads(CASES.read_text(encoding="utf-8")):
        found.setdefault(card, set()).add(gpus.canonical(spelling))
    assert all(len(names) == 1 for names in found.values()), found
    assert len(set().union(*found.values())) == len(found)


@pytest.mark.parametrize("name", ["A100-40G", "", "B", "H10O", "nvidia", "RTX 40900"])
def test_an_unknown_card_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown GPU"):
        gpus.canonical(name)
