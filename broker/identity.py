"""Who a machine is by itself: EC2's instance profile, by which it reaches the home without a key.

Its credentials renew themselves, so access never ends. But one profile serves all machines and reaches the whole home,
and the job's program can use it as well: it is for clouds only, never for hosts of a marketplace. In `[home_config]`
`instance_profile` names it; every other machine gets a key by `mint`, or, where that is "instance-profile", is not
rented at all. Runs on the broker's side only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from broker import access, signing
from broker.config import Config
from broker.errors import BrokerError, ConfigError
from broker.offer import Offer, Trust
from broker.policy.egress import store
from broker.provider import Finding, GivesIdentity, Provider

if TYPE_CHECKING:
    from broker.home import Access

GIVER = "aws"
"""The provider whose identities an S3 home knows."""
UNNAMED = "[home_config] mint = 'instance-profile' needs instance_profile, the profile's name"
UNNAMED_FIX = "set it, or let broker home setup --store s3 --instance-profile NAME make one"
NO_KEY = "machines would get the home's key as [home_config] has it, and it has none"
NO_KEY_FIX = "broker home setup takes one; what is in this computer's environment goes to no machine"


def of(config: Config, home_url: str, provider: Provider, offer: Offer) -> str:
    """The identity that a machine of this offer gets for its home; empty where it needs a key."""
    name = config.home_config.get("instance_profile", "")
    if not home_url.startswith("s3:") or offer.trust is not Trust.CLOUD or not isinstance(provider, GivesIdentity):
        return ""
    return "" if _foreign(config, home_url) else name


def _foreign(config: Config, home_url: str) -> str:
    """Whose store, behind an endpoint, knows none of EC2's identities; empty for Amazon's, and where nobody knows."""
    whose = store(home_url, config.home_config)
    return "" if whose == GIVER else whose


def entry(
    config: Config, home_url: str, job: str, generation: int, until: float, provider: Provider, offer: Offer
) -> tuple[Access, str]:
    """A placement's access to its home, and its identity where it needs no key. Raises as `access.mint`."""
    if name := of(config, home_url, provider, offer):
        return access.keyless(config, home_url), name
    if provider.traits.simulated and (
        access.only_identities(config.home_config) or signing.SETTING in config.home_config
    ):
        return access.lent(config, home_url), ""  # that machine is this computer
    made = access.mint(config, home_url, job, generation, until)
    if home_url.startswith("s3:") and not provider.traits.simulated and not access.has_key(made.config):
        raise ConfigError(f"{offer.where} could not reach the home: {NO_KEY}", fix=NO_KEY_FIX)
    return made, ""


def reaching(provider: Provider, config: Config, offers: Sequence[Offer]) -> Sequence[Offer]:
    """The offers; those whose machines could not reach the home are marked as blocked."""
    why = _without(config.home_config)
    if not why or not config.home.startswith("s3:") or provider.traits.simulated:
        return offers
    return [
        offer if offer.blocked or of(config, config.home, provider, offer) else replace(offer, blocked=why)
        for offer in offers
    ]


def _without(settings: Mapping[str, str]) -> str:
    """Why a machine that is nobody by itself could not reach a home on S3, and what to do; empty where it can."""
    name = settings.get("instance_profile", "")
    if access.only_identities(settings):
        if not name:
            return f"{UNNAMED}: {UNNAMED_FIX}"
        return (
            f"its machines cannot have the instance profile {name}, and no other way to the home is set: "
            "set mint in [home_config], such as federation"
        )
    return "" if settings.get("mint", "none") != "none" or access.has_key(settings) else f"{NO_KEY}: {NO_KEY_FIX}"


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
    if whose := _foreign(config, home_url):
        text = f"{name} reaches no store of {whose}, so machines get keys instead"
        return Finding("instance profile", False, text, "take instance_profile out of [home_config]")
    try:
        (found,) = _giver(config).identify(name, access.home_policy(config.home_config, home_url), make=False)
    except BrokerError as error:
        return Finding("instance profile", False, error.message, error.fix)
    return found


def _giver(config: Config) -> GivesIdentity:
    from broker import registry

    # Whoever signs for the home makes and looks at its identity, unless the provider has a profile of its own.
    profile = config.home_config.get(signing.SETTING, "")
    if profile and not config.provider(GIVER).get("profile"):
        own = {**config.provider(GIVER), "profile": profile}
        config = replace(config, providers={**config.providers, GIVER: own})
    provider = registry.get(GIVER, config)
    if not isinstance(provider, GivesIdentity):
        raise ConfigError(f"the provider {GIVER} that is installed gives machines no identity")
    return provider
