"""`Settings`: what `[providers.aws]` in the configuration may say. Credentials are the AWS SDK's own affair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.errors import ConfigError

# The list behind AWS's own Spot Instance Advisor page.
ADVISOR = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
COMMON = ("patience", "min_interval")  # read by broker.contract


@dataclass(frozen=True, slots=True)
class Settings:
    """profile: a profile of the AWS configuration. regions: where to look for offers, all enabled ones by default.

    subnets, security_groups: ids by region, where the default VPC is not to be used. advisor_url: where the
    interruption bands are, empty for none. placement_scores: ask for them.
    """

    profile: str = ""
    regions: tuple[str, ...] = ()
    subnets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    security_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    advisor_url: str = ADVISOR
    placement_scores: bool = False


def read(settings: Mapping[str, Any]) -> Settings:
    """Raises ConfigError that names the key."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        if key in COMMON:
            continue
        if key in ("profile", "advisor_url"):
            made[key] = _is(key, value, str, "a text")
        elif key == "placement_scores":
            made[key] = _is(key, value, bool, "true or false")
        elif key == "regions":
            made[key] = _texts(key, value)
        elif key in ("subnets", "security_groups"):
            table = _is(key, value, dict, 'a table, such as {us-east-1 = ["…"]}')
            made[key] = {region: _texts(f"{key}.{region}", ids) for region, ids in table.items()}
        else:
            known = (*Settings.__dataclass_fields__, *COMMON)
            raise ConfigError(f"providers.aws.{key}: no such setting", fix=f"known are: {', '.join(sorted(known))}")
    return Settings(**made)


def _is(key: str, value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"providers.aws.{key} must be {what}, not {value!r}")
    return value


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ConfigError(f"providers.aws.{key} must be a list of names, not {value!r}")
    return tuple(value)
