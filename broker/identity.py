"""Who a machine is by itself: EC2's instance profile, by which it reaches the home without a key.

Its credentials renew themselves, so access never ends. But one profile serves all machines and reaches the whole home,
and the job's program can use it as well: it is for clouds only, never for hosts of a marketplace. In `[home_config]`
`instance_profile` names it; every other machine gets a key by `mint`, or, where that is "instance-profile", is not
rented at all. Runs on the broker's side only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker import access
from broker.config import Config
from broker.errors import BrokerError, ConfigError
from broker.offer import Offer, Trust
from broker.provider import Finding, GivesIdentity, Provider

if TYPE_CHECKING:
    from broker.home import Access

GIVER = "aws"
"""The provider whose identities an S3 home knows."""
UNNAMED = "[home_config] mint = 'instance-profile' needs instance_profile, the profile's name"
UNNAMED_FIX = "set it, or let broker home setup --store s3 --instance-profile NAME make one"


def of(config: Config, home_url: str, provider: Provider, offer: Offer) -> str:
    """The identity that a machine of this offer gets for its home; empty where it needs a key."""
    name = config.home_config.get("instance_profile", "")
    if not home_url.startswith("s3:") or offer.trust is not Trust.CLOUD or not isinstance(provider, GivesIdentity):
        return ""
    return name


def entry(
    config: Config, home_url: str, job: str, generation: int, until: float, provider: Provider, offer: Offer
) -> tuple[Access, str]:
    """A placement's access to its home, and its identity where it needs no key. Raises as `access.mint`."""
    if name := of(config, home_url, provider, offer):
        return access.keyless(config, home_url), name
    if provider.traits.simulated and access.only_identities(config.home_config):
        return access.own(config, home_url), ""  # that machine is this computer
    return access.mint(config, home_url, job, generation, until), ""


def reaching(provider: Provider, config: Config, offers: Sequence[Offer]) -> Sequence[Offer]:
    """The offers; those whose machines could not reach the home are marked as blocked."""
    settings = config.home_config
    if not access.only_identities(settings) or provider.traits.simulated:
        return offers
    name = settings.get("instance_profile", "")
    word = f"{UNNAMED}: {UNNAMED_FIX}"
    if name:
        word = (
            f"its machines cannot have the instance profile {name}, and no other way to the home is set: "
            "set mint in [home_config], such as federation"
        )

    def barred(offer: Offer) -> bool:
        return not (name and isinstance(provider, GivesIdentity) and offer.trust is Trust.CLOUD)

    return [replace(offer, blocked=word) if barred(offer) and not offer.blocked else offer for offer in offers]


def word(name: str, provider: str) -> str:
    """The plan's line for a machine with that identity."""
    return (
        f"{provider}'s machines share the instance profile {name}: it reaches the whole home, the job's program can "
        "use it too, and it does not end"
    )


def make(config: Config, home_url: str, name: str) -> Sequence[Finding]:
    """See that the identity is there and reaches the home. config: with the home's settings.

    Raises AuthFailed with the permission that is missing, ConfigError for a name that is somebody else's.
    """
    return _giver(config).identify(name, access.home_policy(config.home_config, home_url), make=True)


def finding(config: Config, home_url: str) -> Finding | None:
    """How the identity of the configuration is, for `broker check`; None where none is named, or to no use."""
    name = config.home_config.get("instance_profile", "")
    if not home_url.startswith("s3:"):
        return None
    if not name:
        alone = access.only_identities(config.home_config)
        return Finding("instance profile", False, UNNAMED, UNNAMED_FIX) if alone else None
    try:
        (found,) = _giver(config).identify(name, access.home_policy(config.home_config, home_url), make=False)
    except BrokerError as error:
        return Finding("instance profile", False, error.message, error.fix)
    return found


def _giver(config: Config) -> GivesIdentity:
    from broker import registry

    provider = registry.get(GIVER, config)
    if not isinstance(provider, GivesIdentity):
        raise ConfigError(f"the provider {GIVER} that is installed gives machines no identity")
    return provider
