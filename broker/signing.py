"""Who signs for a home on S3 that has no key of its own: a profile of the AWS configuration.

Such as a session that `aws sso login` opened, or a role that another profile may take on. `[home_config] profile` names
it. What it gives ends, mostly within hours, and is asked for anew as long as the session lasts. It is the user's own,
so it goes to no machine. Needs boto3's botocore; runs on the broker's side only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from broker.errors import AuthFailed, ConfigError
from broker.home import log_in

SETTING = "profile"
GOOD_FOR = timedelta(minutes=10)
"""What the store's client is told: it asks again after half of it, and botocore hands out nothing that ends sooner."""


def session(profile: str) -> Any:
    """A botocore session that signs by this profile alone. Raises ConfigError where there is no such profile."""
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise ConfigError(
            f"[home_config] {SETTING} = {profile!r} needs boto3", fix="pip install 'spotbroker[aws]'"
        ) from error
    made = botocore.session.Session(profile=profile)
    try:
        # Of a profile that has nothing, the SDK would go on to ask whoever answers at the metadata address.
        made.get_component("credential_provider").remove("iam-role")
    except BotoCoreError as error:
        raise ConfigError(
            f"[home_config] {SETTING} = {profile!r}: {error}", fix="aws configure list-profiles shows those that are"
        ) from error
    return made


def keys(profile: str, made: Any = None) -> dict[str, str]:
    """The profile's keys of this moment, by the store's names. Raises AuthFailed, ConfigError."""
    made = made or session(profile)
    try:
        found = made.get_credentials()
        frozen = found.get_frozen_credentials() if found is not None else None
    except Exception as error:  # the SDK has a dozen kinds of it, and EOFError where it asks for an MFA code
        raise AuthFailed(f"the profile {profile} gives no keys: {error}", fix=log_in(profile)) from error
    if frozen is None or not frozen.access_key:
        raise AuthFailed(f"the profile {profile} gives no keys: it has none", fix=log_in(profile))
    told = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
    return {**told, "session_token": frozen.token} if frozen.token else told


def provider(profile: str) -> Callable[[], Mapping[str, Any]]:
    """What obstore asks for keys, from any thread. Raises ConfigError where there is no such profile."""
    made = session(profile)

    def give() -> Mapping[str, Any]:
        found = keys(profile, made)
        return {
            "access_key_id": found["access_key_id"],
            "secret_access_key": found["secret_access_key"],
            "token": found.get("session_token"),
            "expires_at": datetime.now(UTC) + GOOD_FOR,
        }

    return give


def lasting(profile: str) -> bool:
    """Are the profile's keys ones that do not end by themselves? Asks nobody: a session's are known by their kind."""
    from botocore.credentials import RefreshableCredentials

    found = session(profile).get_credentials()
    return found is not None and not isinstance(found, RefreshableCredentials) and not found.token
