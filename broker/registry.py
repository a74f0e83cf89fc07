"""The providers there are: found by the entry-point group `broker.providers`, imported at first use.

Ours are registered exactly as a third party's: a distribution declares ::

    [project.entry-points."broker.providers"]
    example = "broker_example:ExampleProvider"

and `ExampleProvider(settings, state)` keeps the contract of `broker.provider`. Two providers of one name are an error,
never a silent override.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from broker.config import APP, Config
from broker.contract import Contract, wrap
from broker.errors import BrokerError, ConfigError
from broker.provider import Provider

NEEDS = "needs the package"
GROUP = "broker.providers"
Factory = Callable[[Mapping[str, Any], Path], Provider]

_registered: dict[str, Factory] = {}
_opened: dict[tuple[str, str, str], Contract] = {}
_lock = threading.RLock()


def names() -> tuple[str, ...]:
    """Every provider that is installed or registered, sorted. Raises ConfigError where two have one name."""
    return tuple(sorted({*_found(), *_registered}))


def get(name: str, config: Config) -> Contract:
    """The provider of that name, inside its contract; the same object for the same settings, so rates are shared.

    Raises ConfigError for an unknown name, a missing package or settings that the provider refuses.
    """
    settings = config.provider(name)
    key = (name, str(config.state), json.dumps(settings, sort_keys=True, default=str))
    with _lock:
        if key not in _opened:
            _opened[key] = wrap(_made(name, _factory(name), settings, config.state), settings)
        return _opened[key]


def register(name: str, factory: Factory) -> None:
    """Add a provider for this process: for programs that bring their own, and for tests.

    factory: called with the provider's settings and the state folder. Raises ConfigError where the name is taken.
    """
    with _lock:
        if name in names():
            raise ConfigError(f"there is a provider {name!r} already")
        _registered[name] = factory


def unregister(name: str) -> None:
    """Take back `register`; a name that was not registered is no error."""
    with _lock:
        _registered.pop(name, None)
    forget(name)


def forget(name: str) -> None:
    """Open the provider anew the next time it is asked for: its key has changed."""
    with _lock:
        for key in [key for key in _opened if key[0] == name]:
            del _opened[key]


def _factory(name: str) -> Factory:
    if name in _registered:
        return _registered[name]
    entry = _found().get(name)
    if entry is None:
        raise ConfigError(
            f"there is no provider {name!r}",
            fix=f"installed are: {', '.join(names()) or 'none'}; another one comes with its package",
        )
    try:
        factory: Factory = entry.load()
    except ModuleNotFoundError as error:
        raise missing(name, error) from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"provider {name!r} ({entry.value}) cannot be imported: {error}") from error
    return factory


def _made(name: str, factory: Factory, settings: Mapping[str, Any], state: Path) -> Provider:
    try:
        provider = factory(settings, state)
    except BrokerError:
        raise
    except ModuleNotFoundError as error:
        raise missing(name, error) from error
    except Exception as error:
        raise ConfigError(f"provider {name!r} cannot be set up: {type(error).__name__}: {error}") from error
    if provider.name != name:
        raise ConfigError(f"the provider registered as {name!r} calls itself {provider.name!r}")
    return provider


def missing(name: str, error: ModuleNotFoundError) -> ConfigError:
    """Our providers' packages come as extras; what a third party's needs, only its own package could say."""
    entry = _found().get(name)
    ours = entry is not None and _owner(entry) == APP
    wanted = f"'{APP}[{name}]'" if ours else error.name
    return ConfigError(f"provider {name!r} {NEEDS} {error.name}", fix=f"pip install {wanted}")


def _found() -> Mapping[str, metadata.EntryPoint]:
    return _read(tuple((path, _changed(path)) for path in sys.path))


def _changed(path: str) -> float:
    """When something was last installed there, or taken away; zero for no folder."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


@lru_cache(maxsize=2)
def _read(_path: tuple[tuple[str, float], ...]) -> Mapping[str, metadata.EntryPoint]:
    """Read what every distribution here declares, which takes longer than most of what is then done with it."""
    found: dict[str, metadata.EntryPoint] = {}
    for entry in (*metadata.entry_points(group=GROUP), *_of_source_tree()):
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            raise ConfigError(
                f"two packages bring a provider {entry.name!r}: {_owner(other)} ({other.value}) "
                f"and {_owner(entry)} ({entry.value})",
                fix=f"pip uninstall {_owner(entry)}",
            )
        found[entry.name] = entry
    return found


def _of_source_tree() -> list[metadata.EntryPoint]:
    """Run from its sources without an installation, the project declares the same in its pyproject.toml."""
    if any(True for _ in metadata.Distribution.discover(name=APP)):
        return []
    import tomllib

    try:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return []
    if project.get("name") != APP:
        return []
    declared = project.get("entry-points", {}).get(GROUP, {})
    return [metadata.EntryPoint(name, value, GROUP) for name, value in declared.items()]


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else APP
