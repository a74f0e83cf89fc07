"""What is shipped: every provider's folder is in the wheel, found by its entry point and held to the contract."""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROVIDERS = PYPROJECT["project"]["entry-points"]["broker.providers"]


@pytest.fixture
def installed() -> Distribution:
    try:
        return distribution("spotbroker")
    except PackageNotFoundError:
        pytest.skip("spotbroker is not installed here, only on the path")


def test_folders_wheel_and_entry_points_agree() -> None:
    packages = {value.split(":")[0] for value in PROVIDERS.values()}
    shipped = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) - {"broker"}
    assert shipped == {f"providers/{package}" for package in packages}
    sources = ROOT / "providers"
    if sources.is_dir():
        assert packages == {path.parent.name for path in sources.glob("*/__init__.py")}


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_typed_and_has_its_conformance_suite(name: str) -> None:
    module = import_module(PROVIDERS[name].split(":")[0])
    assert module.__file__ is not None
    assert (Path(module.__file__).parent / "py.typed").is_file()
    suites = [path.name for path in (ROOT / "tests" / "conformance").glob(f"test_*{name}*.py")]
    assert suites, f"no test in tests/conformance is named for {name}"


def test_the_installed_package_has_both_commands_and_the_providers(installed: Distribution) -> None:
    found = {(point.group, point.name): point.value for point in installed.entry_points}
    assert found["console_scripts", "broker"] == found["console_scripts", "spotbroker"]
    assert {name for group, name in found if group == "broker.providers"} == set(PROVIDERS)


def test_the_version_is_the_same_everywhere(installed: Distribution) -> None:
    import broker

    assert broker.__version__ == installed.version == PYPROJECT["project"]["version"]


def test_the_bundled_tasks_are_found(installed: Distribution) -> None:
    from broker import bundled

    assert "quickstart" in bundled.names()
