"""The registry: what is installed, imported at first use, wrapped once, and named where it fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker import registry
from broker.config import Config
from broker.contract import Contract
from broker.errors import ConfigError
from broker.testing import FakeProvider


def config(tmp_path: Path, **providers: Mapping[str, Any]) -> Config:
    return Config(state=tmp_path, file=tmp_path / "config.toml", providers=providers)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path in which a test installs distributions by hand."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def install(site: Path, dist: str, **entries: str) -> None:
    info = site / f"{dist}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[broker.providers]\n{lines}\n")


def test_local_is_there_and_wrapped(tmp_path: Path) -> None:
    assert "local" in registry.names()
    provider = registry.get("local", config(tmp_path))
    assert isinstance(provider, Contract)
    assert provider.name == "local"


def test_one_object_for_the_same_settings(tmp_path: Path) -> None:
    one = registry.get("local", config(tmp_path))
    assert registry.get("local", config(tmp_path)) is one
    assert registry.get("local", config(tmp_path, local={"keep_disks": True})) is not one


def test_unknown_name_lists_what_is_installed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no provider 'nimbus'") as caught:
        registry.get("nimbus", config(tmp_path))
    assert "local" in caught.value.fix


def test_what_is_installed_meanwhile_is_found_and_what_has_gone_is_not(package: Path) -> None:
    """What is declared is read once for as long as nothing changes, by a process that may live for weeks."""
    before = registry.names()
    install(package, "third", nimbus="broker_nimbus:Nimbus")
    assert set(registry.names()) - set(before) == {"nimbus"}
    shutil.rmtree(package / "third-1.0.dist-info")
    assert registry.names() == before


def test_third_party_is_found_like_ours(tmp_path: Path, package: Path) -> None:
    install(package, "acme-cloud", acme="acme_cloud_adapter:Acme")
    (package / "acme_cloud_adapter.py").write_text(
        "from broker.testing import FakeProvider\n"
        "def Acme(settings, state):\n"
        "    return FakeProvider(settings, state, name='acme')\n"
    )
    assert "acme" in registry.names()
    assert registry.get("acme", config(tmp_path, acme={"key": "k"})).name == "acme"


def test_two_of_one_name_are_an_error(tmp_path: Path, package: Path) -> None:
    install(package, "rogue", local="rogue:Provider")
    with pytest.raises(ConfigError, match="two packages bring a provider 'local'") as caught:
        registry.get("local", config(tmp_path))
    assert "rogue" in str(caught.value)


def test_missing_package_comes_with_the_command(tmp_path: Path, package: Path) -> None:
    install(package, "acme-needs-sdk", acmesdk="acme_needs_sdk:Acme")
    (package / "acme_needs_sdk.py").write_text("import an_sdk_that_is_not_here\n")
    with pytest.raises(ConfigError, match="an_sdk_that_is_not_here") as caught:
        registry.get("acmesdk", config(tmp_path))
    assert caught.value.fix == "pip install an_sdk_that_is_not_here"


def test_bad_entry_point_is_named(tmp_path: Path, package: Path) -> None:
    install(package, "acme-wrong", acmewrong="json:NoSuchProvider")
    with pytest.raises(ConfigError, match="json:NoSuchProvider"):
        registry.get("acmewrong", config(tmp_path))


def test_settings_are_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"providers\.local: unknown key 'zone'"):
        registry.get("local", config(tmp_path, local={"zone": {}}))
    with pytest.raises(ConfigError, match=r"providers\.local\.patience must be a number"):
        registry.get("local", config(tmp_path, local={"patience": "long"}))


def test_register_for_one_process(tmp_path: Path) -> None:
    fakes: list[FakeProvider] = []

    def factory(settings: Mapping[str, Any], state: Path) -> FakeProvider:
        fakes.append(FakeProvider(settings, state, name="mine"))
        return fakes[-1]

    registry.register("mine", factory)
    try:
        assert "mine" in registry.names()
        assert registry.get("mine", config(tmp_path)) is registry.get("mine", config(tmp_path))
        assert len(fakes) == 1
        with pytest.raises(ConfigError, match="already"):
            registry.register("mine", factory)
        with pytest.raises(ConfigError, match="already"):
            registry.register("local", factory)
    finally:
        registry.unregister("mine")
    assert "mine" not in registry.names()


def test_a_broken_constructor_is_told(tmp_path: Path) -> None:
    def factory(settings: Mapping[str, Any], state: Path) -> FakeProvider:
        raise ZeroDivisionError("oops")

    registry.register("broken", factory)
    try:
        with pytest.raises(ConfigError, match="ZeroDivisionError: oops"):
            registry.get("broken", config(tmp_path))
    finally:
        registry.unregister("broken")


def test_naming_providers_imports_none() -> None:
    code = (
        "import sys; from broker import registry; registry.names(); print([m for m in sys.modules if 'broker_' in m])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_broker_testing_does_not_need_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import broker.testing; broker.testing.FakeCloud()"
    subprocess.run([sys.executable, "-c", code], check=True)
