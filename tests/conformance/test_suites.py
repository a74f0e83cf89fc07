"""Every provider that ships has its suite, and the page that specifies the suite says what the suite checks."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from broker.testing import ProviderConformance

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "write-a-provider.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROVIDERS = PROJECT["project"]["entry-points"]["broker.providers"]


def said() -> dict[str, str]:
    """Number → sentence, as the page has them."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    return {number: rest.strip() for number, rest in re.findall(r"- \*\*([A-Z]\d)\*\* (.*?)(?= - \*\*| ###? |$)", text)}


def checked() -> dict[str, str]:
    """Number → sentence, as the tests' docstrings have them."""
    found: dict[str, str] = {}
    for name in dir(ProviderConformance):
        if name.startswith("test_"):
            number, colon, sentence = (getattr(ProviderConformance, name).__doc__ or "").partition(": ")
            assert colon, f"{name} cites no sentence"
            assert number not in found, f"two tests check {number}"
            found[number] = sentence
    return found


def test_page_and_suite_say_the_same() -> None:
    page, suite = said(), checked()
    assert page.keys() == suite.keys()
    for number, sentence in suite.items():
        assert page[number].replace("`", "").startswith(sentence.replace("`", "").rstrip(".")), number


@pytest.mark.parametrize("name", PROVIDERS)
def test_provider_has_its_suite(name: str) -> None:
    path = Path(__file__).with_name(f"test_{name}.py")
    assert path.is_file(), f"{path.name} is missing"
    bases = [
        ast.unparse(base)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
        for base in node.bases
    ]
    assert "ProviderConformance" in bases, f"{path.name} does not run the whole suite"


def test_folders_wheel_and_entry_points_agree() -> None:
    if not (ROOT / "providers").is_dir():
        pytest.skip("the sources are not here, only what was installed")
    folders = {path.parent.name for path in (ROOT / "providers").glob("broker_*/__init__.py")}
    wheel = {Path(package).name for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    assert folders == wheel - {"broker"} == {value.partition(":")[0] for value in PROVIDERS.values()}
    for folder in folders:
        assert (ROOT / "providers" / folder / "README.md").is_file(), f"{folder} has no README.md"
