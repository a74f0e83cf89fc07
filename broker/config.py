"""Where this installation keeps its things, and what its user has set.

The file is `config.toml` in the configuration folder, readable by its owner only; `SPOTBROKER_CONFIG` names another
file and `SPOTBROKER_STATE` another state folder. An example::

    home = "s3://my-bucket/spotbroker"      # where jobs keep what must outlive machines
    database = "postgresql://…"             # instead of the SQLite file in the state folder

    [home_config]                           # the object store's own settings, as obstore names them
    endpoint = "https://s3.eu-central-1.amazonaws.com"

    [providers.local]                       # one table per provider, read by its adapter
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import ConfigError

APP = "spotbroker"
KNOWN = {"home", "home_config", "database", "providers", "notify"}


@dataclass(frozen=True, slots=True)
class Config:
    """What the user has set. home: URL, empty for the folder `homes` in the state folder."""

    state: Path
    file: Path
    home: str = ""
    home_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    database: str = field(default="", repr=False)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def provider(self, name: str) -> Mapping[str, Any]:
        return self.providers.get(name, {})


def load(*, state: Path | None = None, file: Path | None = None) -> Config:
    """Read the configuration; a missing file means defaults. Raises ConfigError with file, key and fix."""
    import platformdirs

    state = state or Path(os.environ.get("SPOTBROKER_STATE") or platformdirs.user_state_dir(APP))
    file = file or Path(
        os.environ.get("SPOTBROKER_CONFIG") or Path(platformdirs.user_config_dir(APP)) / "config.toml"
    )
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        data = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", fix=f"mend or remove {file}") from error
    for key in data:
        if key not in KNOWN:
            raise ConfigError(f"{file}: unknown key {key!r}", fix=f"known are: {', '.join(sorted(KNOWN))}")
    for key, kind in (("home", str), ("database", str), ("home_config", dict), ("providers", dict)):
        if key in data and not isinstance(data[key], kind):
            raise ConfigError(f"{file}: {key} must be a {'table' if kind is dict else 'string'}")
    return Config(
        state=state.expanduser().absolute(),
        file=file,
        home=data.get("home", ""),
        home_config={str(k): str(v) for k, v in data.get("home_config", {}).items()},
        database=data.get("database", ""),
        providers=data.get("providers", {}),
    )
