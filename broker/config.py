"""Where this installation keeps its things, and what its user has set.

The file is `config.toml` in the configuration folder, readable by its owner only; `SPOTBROKER_CONFIG` names another
file and `SPOTBROKER_STATE` another state folder. An example::

    home = "s3://my-bucket/spotbroker"      # where jobs keep what must outlive machines
    database = "postgresql://…"             # instead of the SQLite file in the state folder
    monthly_budget = 100.0                  # USD that all jobs together may cost in a calendar month (UTC)

    [home_config]                           # the object store's own settings, as obstore names them
    endpoint = "https://s3.eu-central-1.amazonaws.com"

    [providers.local]                       # one table per provider, read by its adapter
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from broker.errors import ConfigError

APP = "spotbroker"
KNOWN = {"home", "home_config", "database", "providers", "limits", "monthly_budget"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that broker and guests go by; the table `[limits]` changes them.

    beat: between two beats of a guest. silence: without a changed beat until a machine counts as lost. scan: between
    two looks at the checkpoint folder. quiet: unchanged until a file of no known format counts as complete. grace: for
    a program to save and exit after SIGTERM. store_poll: between two looks at the home. weigh: between two looks at the
    market for a job that waits, or that another machine may be worth moving to. fallback: without a spot machine to be
    had, until a job with `spot: auto` that had one takes one on demand.
    """

    beat: float = 30.0
    silence: float = 300.0
    scan: float = 5.0
    quiet: float = 10.0
    grace: float = 60.0
    store_poll: float = 10.0
    weigh: float = 180.0
    fallback: float = 300.0


SIMULATED = Limits(beat=1.0, silence=60.0, scan=0.5, quiet=2.0, grace=60.0, store_poll=0.5, weigh=5.0, fallback=1.0)


@dataclass(frozen=True, slots=True)
class Config:
    """What the user has set. home: URL, empty for the folder `homes` in the state folder. monthly_budget: USD."""

    state: Path
    file: Path
    home: str = ""
    home_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    database: str = field(default="", repr=False)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    changed_limits: Mapping[str, float] = field(default_factory=dict)
    monthly_budget: float | None = None

    def provider(self, name: str) -> Mapping[str, Any]:
        return self.providers.get(name, {})

    def limits(self, *, simulated: bool) -> Limits:
        """The limits for a machine; a simulated one beats faster, since nobody pays for its requests."""
        return replace(SIMULATED if simulated else Limits(), **self.changed_limits)


def load(*, state: Path | None = None, file: Path | None = None) -> Config:
    """Read the configuration; a missing file means defaults. Raises ConfigError with file, key and fix."""
    import platformdirs

    state = state or Path(os.environ.get("SPOTBROKER_STATE") or platformdirs.user_state_dir(APP))
    file = file or Path(os.environ.get("SPOTBROKER_CONFIG") or Path(platformdirs.user_config_dir(APP)) / "config.toml")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        data = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", fix=f"mend or remove {file}") from error
    for key in data:
        if key not in KNOWN:
            raise ConfigError(f"{file}: unknown key {key!r}", fix=f"known are: {', '.join(sorted(KNOWN))}")
    changed = data.get("limits", {})
    names = [entry.name for entry in fields(Limits)]
    for key, value in changed.items() if isinstance(changed, dict) else ():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key not in names or not (number and 0 < value < math.inf):
            raise ConfigError(
                f"{file}: limits.{key} = {value!r} is not a limit",
                fix=f"seconds above 0 for one of: {', '.join(names)}",
            )
    for key, kind in (("limits", dict), ("home", str), ("database", str), ("home_config", dict), ("providers", dict)):
        if key in data and not isinstance(data[key], kind):
            raise ConfigError(f"{file}: {key} must be a {'table' if kind is dict else 'string'}")
    _check_providers(data.get("providers", {}), file)
    monthly = data.get("monthly_budget")
    number = isinstance(monthly, int | float) and not isinstance(monthly, bool)
    if monthly is not None and not (number and 0 < monthly < math.inf):
        raise ConfigError(f"{file}: monthly_budget = {monthly!r} is no sum", fix="USD above 0, or leave it out")
    return Config(
        state=state.expanduser().absolute(),
        file=file,
        home=data.get("home", ""),
        home_config={str(k): str(v) for k, v in data.get("home_config", {}).items()},
        database=data.get("database", ""),
        providers=data.get("providers", {}),
        changed_limits=dict(changed),
        monthly_budget=monthly,
    )


def _check_providers(tables: Mapping[str, Any], file: Path) -> None:
    """Raises ConfigError for what is no table, and for a name that is nearly an installed provider's.

    Another name may be of a provider that a program brings along.
    """
    if not tables:
        return
    from difflib import get_close_matches

    from broker import registry

    known = registry.names()
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{file}: providers.{name} must be a table", fix=f"[providers.{name}] and its keys below it"
            )
        near = [] if name in known else get_close_matches(name.lower(), known, n=1, cutoff=0.7)
        if near:
            raise ConfigError(
                f"{file}: there is no provider {name!r}; did you mean {near[0]}?", fix=f"[providers.{near[0]}]"
            )
